# SPDX-License-Identifier: Apache-2.0
"""The file of an exploration: a model, what is varied and how, and what counts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from configs.edit import with_value
from configs.errors import DoesNotFitError, InputError, PulptrainError
from configs.library import open_config
from configs.model_file import ModelSpec, read_model
from configs.model_text import model_tree
from configs.old_names import OBJECTIVES as FORMER
from configs.old_names import new_objectives
from configs.parameters import load_parameters
from configs.problems import Problems
from configs.schema import Schema, check_keys, required_and_optional
from configs.suggest import suggestion
from configs.values import Struct, replace
from configs.yaml_file import Node, load_yaml
from pulptrain.foreign.model_source import open_source
from pulptrain.inputs.layers import caller_of, node_of
from pulptrain.inputs.option import ALL, MODEL_PREFIX, ModelOptions, SourceOptions, options_of
from pulptrain.inputs.real_values import of_python
from pulptrain.inputs.settings import Settings, schedule_options, soc_timing
from pulptrain.inputs.source_kind import SPEC, refuse_others
from pulptrain.running.energy import Chip, asked_chip, check_asked, chip_of
from pulptrain.running.session import model_of
from scheduler.explore.point import Outcome, Point, point_of, refusal
from scheduler.options import of_programs
from scheduler.schedule import check_names
from scheduler.tuner.schedule_file import as_tuned, file_of, load_schedule, options_from
from scheduler.tuner.tuned_schedule import TunedSchedule
from trainlib.kernels.catalogue import kernel_names
from trainlib.training.options import check_options
from trainlib.training.phases import TrainingPhases, build_training_phases

_SWEPT = {key: option for key, option in ALL.items() if option.swept}

SHORT_PATHS: Mapping[str, str] = {
    key: option.path for key, option in _SWEPT.items() if option.path.startswith(MODEL_PREFIX)
}
"""Paths of the model that also have the name of their option."""

OF_ONE: Mapping[str, str] = {
    option.flag.removeprefix("--").replace("-", "_"): key for key, option in _SWEPT.items() if option.many
}
"""Options of the command line for one op, step or tensor, and their field of `Settings`.

They are written ``kernel.conv1.FW: mm`` for ``--kernel conv1.FW=mm``.
"""

OF_MODEL: Mapping[str, str] = {
    ALL[key].flag.removeprefix("--").replace("-", "_"): key for key in options_of(SourceOptions)
}
"""What `settings` may say of a model from elsewhere, as on the command line, and the field of `Settings`."""

SETTINGS = tuple(key for key, option in _SWEPT.items() if not option.many and key not in SHORT_PATHS)
"""Settings a sweep may vary; they are called as on the command line, with _ for -."""

ENERGY, DELAY = "energy_joules", "edp_joule_seconds"
"""Objectives that need the coefficients of a chip."""

OBJECTIVES: Mapping[str, str] = {
    "cycles": "cycles of an iteration",
    "seconds": "time of an iteration (s)",
    "peak_l1_bytes": "L1 used (B)",
    "peak_l2_bytes": "L2 used (B)",
    "peak_l3_bytes": "L3 used (B)",
    "dma_bytes": "bytes moved by the DMA (B)",
    "cores": "cores",
    "l1_size_bytes": "L1 size (B)",
    ENERGY: "energy of an iteration (J)",
    DELAY: "energy-delay product of an iteration (J s)",
}
"""What may be made small, and how an axis of the picture calls it."""

MAX_POINTS = 100_000
"""Most points of one file: more is a slip of the pen."""

NO_SCHEDULE = "none"
"""In place of a schedule file: the scheduler's own choices."""


class SpecPoint(Struct, frozen=True):
    """One combination of values: as written, and what is simulated, or why it cannot be."""

    values: Mapping[str, Any]
    point: Point | None = None
    """None if it is refused."""
    chip: Chip | None = None
    """Energy coefficients and operating point, if there are any."""
    refused: Outcome = Outcome()


class Spec(Struct, frozen=True):
    """A read and checked file; all points in order, the combinations of `sweep` before those of `points`."""

    name: str
    model: str
    objectives: tuple[str, ...]
    axes: tuple[str, ...]
    points: tuple[SpecPoint, ...]
    baseline: int
    """Number of the point that speed-ups are over."""


class ExploreSchema(Schema):
    """An exploration: a model, the values to vary, and the quantities to minimise."""

    name: str
    """Name in tables and pictures."""
    model: str
    """A model by name, or a model file by its path from this file."""
    settings: object = None
    """Options of all points, named as on the command line, with _ for -."""
    sweep: object = None
    """Axes and their values; all combinations are points. An axis is a setting, a parameter of the SoC, a
    path of the model (`model.layers.0.out_channels`), or an option for one op (`kernel.conv1.FW`)."""
    points: object = None
    """Single points, after those of the sweep."""
    objectives: object = None
    """Quantities to minimise (the axes of the Pareto front); default: cycles and peak_l1_bytes."""
    baseline: object = None
    """Values of the point to which speed-ups refer (default: the first point)."""


def load_spec(path: str | Path, given: Mapping[str, Any] | None = None) -> Spec:
    """Read an exploration file; `given` are fields of `Settings` that go before its `settings`.

    Raises `ConfigError` with ``file:line`` for whatever it does not know: keys, settings, paths of the SoC or
    the model, values out of range. A combination that cannot exist, each of its values being legal, is a
    point that says why.
    """
    refuse_others(str(path), SPEC, "explore")
    return _spec(load_yaml(Path(path)), Path(path).parent, given or {}, {})


def spec_of(plan: Mapping[str, Any], given: Mapping[str, Any]) -> Spec:
    """The exploration of a plain mapping with the keys of a file; its `model` may be a tree itself.

    What `pulptrain.tune` returns may stand where the name of a schedule file may. Raises as `load_spec`.
    """
    file, line, _ = caller_of(__name__)
    schedules: dict[str, TunedSchedule] = {}

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: plain(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [plain(item) for item in value]
        tuned = getattr(value, "schedule", None)
        if isinstance(tuned, TunedSchedule):
            label = f"tuned {len(schedules) + 1}" if schedules else "tuned"
            schedules[label] = tuned
            return label
        return of_python(value)

    return _spec(node_of(plain(plan), file, line), Path(), given, schedules)


def _spec(node: Node, folder: Path, given: Mapping[str, Any], schedules: Mapping[str, TunedSchedule]) -> Spec:
    what = "the exploration"
    top = node.mapping(what)
    if "energy" in top:
        raise top["energy"].error(
            "costs per instruction and byte were replaced by the energy coefficients of a chip",
            SETTINGS_OF_ENERGY,
        )
    check_keys(node, what, *required_and_optional(ExploreSchema))
    name = _text(top["name"], "name")
    if "sweep" not in top and "points" not in top:
        raise node.error("the file has neither 'sweep' nor 'points'", "add 'sweep: ...' or 'points: ...'")
    settings = top.get("settings")
    base, base_model = _base(settings, given)
    codegen_given = "codegen" in given or (
        settings is not None and "codegen" in settings.mapping("'settings'")
    )
    combinations = [*_sweep(top.get("sweep")), *_listed(top.get("points"))]
    builder = _Builder(
        top["model"],
        base,
        base_model,
        folder,
        schedules,
        codegen_given=codegen_given,
        models_vary=any("model" in combination for combination in combinations),
    )
    problems = Problems()
    checked: set[int] = set()
    for combination in combinations:
        for key, value in combination.items():
            if id(value) not in checked:
                checked.add(id(value))
                problems.of(builder.check, key, value)
    has_energy = bool(base.energy or base.vdd) or any({"energy", "vdd"} & {*each} for each in combinations)
    objectives = problems.of(_objectives, top.get("objectives"), has_energy) or ()
    needs_energy = bool({ENERGY, DELAY} & {*objectives})
    if needs_energy and not any({"soc", "energy", "vdd", "freq"} & {*each} for each in combinations):
        said = settings.mapping("").get("energy") if settings is not None else None
        problems.of(builder.check_energy, said or top.get("objectives", node))
    baseline = problems.of(_baseline, top.get("baseline"), combinations)
    problems.refuse()
    return Spec(
        name,
        builder.name,
        objectives,
        tuple(dict.fromkeys(key for combination in combinations for key in combination)),
        tuple(builder.build(item, needs_energy) for item in combinations),
        baseline or 0,
    )


SETTINGS_OF_ENERGY = (
    "settings: {energy: gap9}, or a file (docs/energy.md): pulptrain new mine.yaml --kind energy"
)
"""How a file says what energy is counted with."""


def _baseline(node: Node | None, combinations: Sequence[Mapping[str, Node]]) -> int:
    """Number of the point with these values; the first one if nothing is said."""
    if node is None:
        return 0
    children = {SHORT_PATHS.get(key, key): child for key, child in node.mapping("'baseline'").items()}
    wanted = {key: child.plain() for key, child in children.items()}
    for number, combination in enumerate(combinations):
        if all(key in combination and combination[key].plain() == value for key, value in wanted.items()):
            return number
    raise node.error("no point of the sweep matches 'baseline'", "set 'baseline' to the values of one point")


class _Builder:
    """Builds points from the base and some values, and remembers graphs."""

    def __init__(
        self,
        model: Node,
        base: Settings,
        base_model: Mapping[str, Node],
        folder: Path,
        schedules: Mapping[str, TunedSchedule],
        *,
        codegen_given: bool,
        models_vary: bool,
    ) -> None:
        self._model = model
        self._base_model = base_model
        self._schedules = schedules
        self._models_vary = models_vary
        self._codegen_given = codegen_given
        self._base = base
        self._folder = folder
        self._paths = tuple(load_parameters(base.soc, base.timing))
        self._known: dict[tuple[object, ...], tuple[ModelSpec, TrainingPhases]] = {}
        self._opened: dict[str, Node] = {}
        self.name = "" if model.is_mapping else _text(model, "model")
        self._at(model, lambda: self._phases({}))
        if model.is_mapping:
            self.name = _text(model.mapping("'model'")["name"], "name")

    def check(self, key: str, value: Node) -> None:
        """Raise `ConfigError` at `value` unless it is legal on its own."""
        if not (_is_setting(key) or key.startswith(MODEL_PREFIX) or key in (*self._paths, "model")):
            names = (*SETTINGS, *SHORT_PATHS, *self._paths)
            cure = suggestion(key, names).split(" (")[0]
            raise value.error(
                f"unknown parameter '{key}'",
                cure if cure.startswith("use '") else "use a setting, a path of the SoC file, or model.PATH",
            )
        if (
            value.is_mapping
            or (value.is_sequence and not key.startswith(MODEL_PREFIX))
            or value.value is None
        ):
            raise value.error(f"'{key}' is {value.kind}, not one value", f"write one value for '{key}'")

        def try_it() -> None:
            settings = self._settings({key: value})
            soc_timing(settings)
            check_asked(settings)
            options = schedule_options(settings)
            kernel_names(options.codegen)
            phases = self._phases({key: value})
            if not self._models_vary:
                graphs = phases.graphs
                for graph, of_program in zip(graphs, of_programs(options, graphs), strict=True):
                    check_names(graph, of_program)

        self._at(value, try_it)

    def check_energy(self, asked: Node) -> None:
        """Raise `ConfigError` at what asks for it unless all points have coefficients."""
        self._at(asked, lambda: chip_of(self._base, soc_timing(self._base)))

    def build(self, values: Mapping[str, Node], needs_energy: bool) -> SpecPoint:
        """The point of a combination of legal values."""
        plain = {key: value.plain() for key, value in values.items()}
        try:
            settings = self._settings(values)
            chip = (chip_of if needs_energy else asked_chip)(settings, soc_timing(settings))
            return SpecPoint(plain, self._point(values), chip)
        except PulptrainError as error:
            return SpecPoint(plain, refused=refusal(error))

    def _point(self, values: Mapping[str, Node]) -> Point:
        settings, (spec, phases) = self._settings(values), self._model_of(values)
        timing, options = soc_timing(settings), schedule_options(settings, spec)
        file = self._schedule(settings)
        written = phases.mini_batch
        if file is not None and file.layout:
            phases = build_training_phases(as_tuned(file, spec))
        graphs = phases.graphs
        chosen = of_programs(options, graphs)
        if file is not None:
            if settings.resident is not None:
                file = file.but(resident={})
            chosen = options_from(file, graphs, timing, options, written)
        return point_of(zip(graphs, (phases.mini_batches, 1), strict=False), timing, chosen)

    def _schedule(self, settings: Settings) -> TunedSchedule | None:
        """The schedule file of a point: one of the user's, or what tuning has found in Python."""
        name = settings.schedule
        if name is None or name == NO_SCHEDULE:
            return None
        if not isinstance(name, str):
            return file_of(name)
        if name in self._schedules:
            return file_of(self._schedules[name])
        return load_schedule(name if Path(name).is_absolute() else self._folder / name)

    def _settings(self, values: Mapping[str, Node]) -> Settings:
        changes = {key: _setting(key, value) for key, value in values.items() if key in SETTINGS}
        overrides = tuple(
            f"{key}={_word(value)}"
            for key, value in values.items()
            if not (_is_setting(key) or key.startswith(MODEL_PREFIX) or key == "model")
        )
        for key, value in values.items():
            option, _, name = key.partition(".")
            if option in OF_ONE and name:
                of_field = OF_ONE[option]
                before = changes.get(of_field, getattr(self._base, of_field))
                changes[of_field] = (*before, f"{name}={_word(value)}")
        if "soc" in changes and not self._codegen_given:
            changes.setdefault("codegen", "")  # that of the SoC file
        return replace(self._base, **changes, overrides=(*self._base.overrides, *overrides))

    def _phases(self, values: Mapping[str, Node]) -> TrainingPhases:
        return self._model_of(values)[1]

    def _model_of(self, values: Mapping[str, Node]) -> tuple[ModelSpec, TrainingPhases]:
        changes = {
            **self._base_model,
            **{key: value for key, value in values.items() if key.startswith(MODEL_PREFIX)},
        }
        model = values.get("model", self._model)
        named = model.plain() if not model.is_mapping else ""
        settings = self._settings(values)
        paths = tuple((name, str(node.plain())) for name, node in changes.items())
        of_model = tuple(getattr(settings, key) for key in (*options_of(ModelOptions), "variants"))
        key = (str(named), paths, of_model)
        if key not in self._known:
            tree = model if model.is_mapping else self._tree(str(model.value))
            for path, value in changes.items():
                tree = with_value(tree, path.removeprefix(MODEL_PREFIX), value)
            spec = model_of(read_model(tree, check_options), settings)
            self._known[key] = (spec, build_training_phases(spec))
        return self._known[key]

    def _tree(self, model: str) -> Node:
        """The file of a model, or what it would be of one from elsewhere, opened once."""
        if model not in self._opened:
            source = open_source(model, self._base, self._folder)
            network = source.network(self._base)
            self._opened[model] = (
                open_config("models", model, folder=self._folder)
                if isinstance(network, str)
                else node_of(model_tree(network), model, 1)
            )
        return self._opened[model]

    @staticmethod
    def _at(value: Node, action: Any) -> None:
        """Errors of `action` in the user's input, told at the line of `value`."""
        try:
            action()
        except DoesNotFitError:
            return
        except InputError as error:
            message = error.message if not error.where else f"{error.where}: {error.message}"
            if error.where is not None and error.where.startswith(f"{value.file}:"):
                raise
            raise value.error(message, _in_a_file(error.cure, value.file)) from None


def _in_a_file(cure: str | None, file: str) -> str | None:
    """A cure with its options as a file of YAML says them."""

    def as_setting(option: re.Match[str]) -> str:
        key = option[1].replace("-", "_")
        known = key in (*SETTINGS, *SHORT_PATHS, *OF_MODEL)
        if known and option[2] == "with":  # prose goes on, no value
            return f"{key!r} of settings with"
        return f'settings: {{{key}: "{option[2]}"}}' if known else option[0]

    if not cure or not file.endswith((".yaml", ".yml")):
        return cure
    parts = re.split("(`[^`]*`|pulptrain [^;]*)", cure)  # commands to type keep their options
    parts[::2] = [re.sub(r"--([a-z0-9-]+) ([^\s;]*[^\s;,])", as_setting, part) for part in parts[::2]]
    return "".join(parts)


def _is_setting(key: str) -> bool:
    option, _, name = key.partition(".")
    return key in SETTINGS or (option in OF_ONE and bool(name))


def _base(node: Node | None, given: Mapping[str, Any]) -> tuple[Settings, dict[str, Node]]:
    """What holds for all points: settings, and values of the model by path."""
    values: Mapping[str, Node] = {}
    if node is not None:
        check_keys(node, "'settings'", (), (*SETTINGS, *SHORT_PATHS, *OF_MODEL))
        values = node.mapping("'settings'")
    of_model = {SHORT_PATHS[key]: value for key, value in values.items() if key in SHORT_PATHS}
    of_model |= {
        SHORT_PATHS[key]: Node(value, f"--{key}", 1) for key, value in given.items() if key in SHORT_PATHS
    }
    fields = {key: _setting(key, value) for key, value in values.items() if key in SETTINGS}
    fields |= {field: _setting(field, values[key]) for key, field in OF_MODEL.items() if key in values}
    fields |= {key: value for key, value in given.items() if key not in SHORT_PATHS}
    return Settings(**fields), of_model


def _setting(key: str, value: Node) -> Any:
    if ALL[key].kind is float and isinstance(value.value, int | float):
        return float(value.value)
    if ALL[key].kind is int:
        if isinstance(value.value, bool) or not isinstance(value.value, int):
            raise value.error(f"'{key}' is {value.kind}", f"write a whole number for '{key}'")
        return value.value
    return _word(value)


def _word(value: Node) -> str:
    return ("on" if value.value else "off") if isinstance(value.value, bool) else str(value.value)


def _sweep(node: Node | None) -> Iterator[dict[str, Node]]:
    """All combinations of the values of the axes; the last axis varies fastest."""
    if node is None:
        return
    children = {SHORT_PATHS.get(key, key): child for key, child in node.mapping("'sweep'").items()}
    axes = {key: tuple(child.sequence(f"'{key}'")) for key, child in children.items()}
    count = 1
    for key, values in axes.items():
        count *= len(values)
        if not values:
            raise children[key].error(f"'{key}' has no values", f"list values of '{key}'")
    if count > MAX_POINTS:
        raise node.error(f"the sweep has too many points: {count}", f"use at most {MAX_POINTS} points")
    for values in product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def _listed(node: Node | None) -> Iterator[dict[str, Node]]:
    if node is not None:
        for item in node.sequence("'points'"):
            yield {SHORT_PATHS.get(key, key): value for key, value in item.mapping("a point").items()}


def _objectives(node: Node | None, has_energy: bool) -> tuple[str, ...]:
    if node is None:
        return ("cycles", "peak_l1_bytes", *((ENERGY,) if has_energy else ()))
    names = []
    for item in node.sequence("'objectives'"):
        if item.value == "energy_nj":
            raise item.error(
                "the objective 'energy' has a new name, with its unit",
                f"use '{ENERGY}' ({SETTINGS_OF_ENERGY})",
            )
        if item.value not in (*OBJECTIVES, *FORMER):  # a mapping or a list may stand there
            cure = suggestion(str(item.value), OBJECTIVES)
            raise item.error(f"unknown objective {item.value!r}", cure)
        names.append(str(item.value))
    if not names:
        raise node.error("'objectives' is empty", "remove 'objectives', or list objectives")
    return tuple(dict.fromkeys(new_objectives(names)))


def _text(node: Node, key: str) -> str:
    if not isinstance(node.value, str) or not node.value:
        raise node.error(f"'{key}' is {node.kind}, not a text", f"write a text for '{key}'")
    return node.value
