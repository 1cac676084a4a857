# SPDX-License-Identifier: Apache-2.0
"""`schedule.yaml`: what was tuned, for what, and the choices; written for people, read strictly."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq

from arch.pricing.code_caches import WARM
from arch.spec.timing import SocTiming
from configs.errors import ConfigError, DoesNotFitError, InputError, ShapeError, UnsupportedLayerError
from configs.files import start_of, write_text
from configs.model_file import ModelSpec
from configs.problems import Problems
from configs.schema import check_keys, required_and_optional, validate
from configs.suggest import check_known, suggestion
from configs.values import replace
from configs.yaml_file import Node, load_yaml, parse_yaml
from scheduler.options import ScheduleOptions, of_programs
from scheduler.tiles.resident_tensors import tensor_and_ops
from scheduler.tuner.tuned_residents import PROGRAMS
from scheduler.tuner.tuned_schedule import (
    FORMAT,
    Named,
    OpChoice,
    ResidentTensors,
    TunedSchedule,
    TunedSoc,
    place_of,
    soc_content,
    tiler_for,
    with_choices,
)
from scheduler.tuner.tuned_schedule import model_content as content_of
from trainlib.ir.graph import LAYOUTS, TrainingGraph
from trainlib.registry import lowering_of, matmuls_of
from trainlib.training.layouts import with_layouts
from trainlib.training.phases import build_training_phases
from trainlib.training.variants import own_variant, with_variant

_HEADER = (
    "Tuned schedule: `pulptrain run MODEL --schedule FILE`. kernel, variant, tile, loop_order and buffering\n"
    "may be edited; an op that is left out is scheduled as without this file. The rest says what it is for."
)
_WIDTH = 240


def schedule_text(schedule: TunedSchedule) -> str:
    """The file as text: keys in a fixed order, no dates, so that equal schedules are equal files."""
    said = {key: value for key, value in schedule.model_dump().items() if value != {}}
    said |= {key: _flow(said[key]) for key in ("model", "soc", "layout") if key in said}
    top = CommentedMap({**said, "choices": [_written(choice) for choice in said["choices"]]})
    top.yaml_set_start_comment(_HEADER)
    yaml = YAML()
    yaml.width = _WIDTH
    yaml.indent(mapping=2, sequence=4, offset=2)
    stream = io.StringIO()
    yaml.dump(top, stream)
    return stream.getvalue()


def write_schedule(schedule: TunedSchedule, path: Path) -> None:
    """Write a schedule file, whole or not at all. Raises `InputError` if it cannot be written."""
    write_text(path, schedule_text(schedule))


def is_schedule(path: Path) -> bool:
    """Whether a file has the keys a schedule of ours begins with, whatever it then says."""
    lines = start_of(path).splitlines()
    return all(any(line.startswith(key) for line in lines) for key in (b"format:", b"model:", b"soc:"))


def _written(choice: Mapping[str, Any]) -> dict[str, Any]:
    """What a file says of a choice, its mappings and lists on a line each."""
    return {key: _flow(value) for key, value in choice.items() if value != ""}


def _flow(value: Any) -> Any:
    if not isinstance(value, dict | list):
        return value
    result = CommentedSeq(value) if isinstance(value, list) else CommentedMap(_written(value))
    result.fa.set_flow_style()
    return result


def load_schedule(path: str | Path) -> TunedSchedule:
    """Read a schedule file. Raises `ConfigError` with ``file:line`` for whatever is not as it is written."""
    return _read(load_yaml(Path(path)))


def file_of(schedule: TunedSchedule) -> TunedSchedule:
    """What `load_schedule` would read if the schedule were written to a file."""
    return _read(parse_yaml(schedule_text(schedule), "the tuned schedule"))


def _read(node: Node) -> TunedSchedule:
    what = "the schedule"
    check_keys(node, what, *required_and_optional(TunedSchedule))
    top = node.mapping(what)
    number = top["format"].value
    if type(number) is not int or number != FORMAT:
        raise top["format"].error(
            f"format {top['format'].plain()!r} is unknown; the installed pulptrain reads format {FORMAT}",
            "use the pulptrain version that wrote the file, or tune again",
        )
    said: dict[str, Any] = {
        "model": validate(Named, top["model"], "'model'"),
        "soc": validate(TunedSoc, top["soc"], "'soc'"),
        "codegen": top["codegen"].value,
        "icache": str(top["icache"].plain()) if "icache" in top else WARM,
        "layout": _layouts(top["layout"]) if "layout" in top else {},
    }
    if not isinstance(said["codegen"], str):
        raise top["codegen"].error(f"'codegen' is {top['codegen'].kind}", "write the name of a codegen")
    problems, choices = Problems(), dict[str, OpChoice]()
    for item in top["choices"].sequence("'choices'"):
        choice = problems.of(_choice, item)
        if choice is not None and choices.setdefault(choice.op, choice) is not choice:
            where = place_of(item, "op")
            message = f"the file lists op {choice.op} twice"
            problems.note(ConfigError(message, where=where, cure="remove one of the two"))
    problems.refuse()
    if "resident" in top:
        said["resident"] = validate(ResidentTensors, top["resident"], "'resident'").model_dump()
    return TunedSchedule(format=FORMAT, **said, choices=tuple(choices.values())).read_from(node)


def _layouts(node: Node) -> dict[str, str]:
    layouts = {}
    for layer, item in node.mapping("'layout'").items():
        if item.value not in LAYOUTS:
            raise item.error(f"unknown layout {item.plain()!r}", suggestion(str(item.value), LAYOUTS))
        layouts[layer] = str(item.value)
    return layouts


def as_tuned(file: TunedSchedule, spec: ModelSpec) -> ModelSpec:
    """The model with the layouts of a file. Raises `ConfigError` (``file:line``) for a layer without a choice
    and for layouts that do not go together."""
    if not file.layout:
        return spec
    try:
        changed = with_layouts(spec, file.layout)
        build_training_phases(changed)
    except (InputError, ShapeError, UnsupportedLayerError) as error:
        raise ConfigError(error.message, where=file.where("layout"), cure=error.cure) from None
    return changed


def _choice(node: Node) -> OpChoice:
    op = node.mapping("an entry of 'choices'").get("op")
    choice = validate(OpChoice, node, "an entry of 'choices'" if op is None else f"op {op.plain()}")
    if choice.variant and choice.im2col:
        both = "'im2col' is the former name of 'variant', but the entry has both"
        raise node.mapping("")["im2col"].error(both, "remove 'im2col'")
    return choice


def options_from(
    file: TunedSchedule,
    graphs: Sequence[TrainingGraph],
    timing: SocTiming,
    base: ScheduleOptions,
    written: TrainingGraph | None = None,
) -> list[ScheduleOptions]:
    """The options `base` with the choices of a file, for every program of a model.

    `graphs` are those of `trainlib.training.phases.build_training_phases`, in the layouts of the file
    (`as_tuned`); `written` is the first of them without, if that differs. What `base` says of an op, and
    resident tensors it names, go first.
    Raises `ConfigError` (``file:line``) for a file made for another model, SoC or codegen profile, an unknown
    op, kernel or variant and an illegal tile or loop order, `DoesNotFitError` (``file:line``) for a tile too
    large.
    """
    check_model(file, graphs, written)
    soc = file.soc
    if soc.content != soc_content(timing):
        alike = (soc.name, soc.timing) == (timing.name, timing.profile)
        other = "other parameters" if alike else f"{timing.name} ({timing.profile})"
        raise ConfigError(
            f"the schedule is for {soc.name} ({soc.timing}), but this run uses {other}",
            where=file.where("soc"),
            cure="use the SoC options of the tuning run, or run `pulptrain tune` again",
        )
    if file.codegen != base.codegen:
        raise ConfigError(
            f"the schedule is for kernels of codegen {file.codegen}, but this run uses {base.codegen}",
            where=file.where("codegen"),
            cure=f"use --codegen {file.codegen}",
        )
    by_program = []
    for program, graph, given in zip(PROGRAMS, graphs, of_programs(base, graphs), strict=False):
        options = _options(file, graph, timing, given)
        if not base.resident:
            check_resident(file, program, graph)
            options = replace(options, resident=tuple(file.resident.get(program, ())))
        by_program.append(options)
    return by_program


def check_resident(file: TunedSchedule, program: str, graph: TrainingGraph) -> None:
    """Raise `ConfigError` (``file:line``) for a resident tensor or an op of its span that a graph has not."""
    ops = [op.name for op in graph.ops]
    for text in file.resident.get(program, ()):
        tensor, named = tensor_and_ops(graph, text)
        unknown = [(tensor, list(graph.tensors))] if tensor not in graph.tensors else []
        unknown += [(name, ops) for name in named if name not in ops]
        if unknown:
            name, names = unknown[0]
            raise ConfigError(
                f"'resident' names {name!r}, but model {graph.name} has no such tensor or op",
                where=file.where("resident"),
                cure=suggestion(name, names),
            )


def check_model(
    file: TunedSchedule, graphs: Sequence[TrainingGraph], written: TrainingGraph | None = None
) -> None:
    """Raise `ConfigError` unless the file is for the model whose graphs these are (as of `options_from`)."""
    name, content = graphs[0].name, content_of(written or graphs[0])
    if (file.model.name, file.model.content) != (name, content):
        other = f", but this run has {name!r}"
        if file.model.name == name:
            other = " with a different batch, dtype or layers than in this run"
        raise ConfigError(
            f"the schedule was tuned for the model {file.model.name!r}{other}",
            where=file.where("model"),
            cure="use the model and options of the tuning run, or run `pulptrain tune` again",
        )
    op_names = [op.name for graph in graphs for op in graph.ops]
    for choice in file.choices:
        if choice.op not in op_names:
            cure = suggestion(choice.op, op_names).split(" (")[0]
            raise ConfigError(
                f"model {name} has no op {choice.op!r}", where=file.where_of(choice, "op"), cure=cure
            )


def _options(
    file: TunedSchedule, graph: TrainingGraph, timing: SocTiming, base: ScheduleOptions
) -> ScheduleOptions:
    ops = {op.name: op for op in graph.ops}
    chosen = [choice for choice in file.choices if choice.op in ops]
    for choice in chosen:
        candidate, op, where = choice.best, ops[choice.op], partial(file.where_of, choice)
        if candidate.variant:
            try:
                op = with_variant(op, candidate.variant)
            except InputError as error:
                cure = error.cure or "remove 'variant'"
                raise ConfigError(
                    f"{choice.op}: {error.message}",
                    where=where("im2col", "variant"),
                    cure=cure,
                ) from None
        has_kernel = bool(lowering_of(op).default_kernel(op))
        if candidate.kernel and not has_kernel:
            without = f" in its variant '{own_variant(op)}'" if own_variant(op) else ""
            raise ConfigError(
                f"{choice.op} does not use a matmul kernel{without}",
                where=where("kernel"),
                cure="remove 'kernel'",
            )
        kernels = matmuls_of(op, graph.tensors, base.codegen)
        if has_kernel:
            unknown = f"unknown kernel {candidate.kernel!r} of {choice.op}"
            check_known(candidate.kernel, kernels, unknown, where("kernel"), error=ConfigError)
        tiler = tiler_for(graph, op, timing, base.codegen, candidate)
        try:
            tiler.fixed(dict(candidate.sizes), timing.l1_usable_bytes, candidate.order)
        except DoesNotFitError as error:
            place = f"{where('tile')}: {choice.op}"
            raise error.but(where=place, cure="use a smaller tile, or 'buffering: 1'", levers=()) from None
        except InputError as error:
            raise ConfigError(f"{choice.op}: {error.message}", where=where("tile"), cure=error.cure) from None
    return with_choices(base, graph, timing, [(choice.op, choice.best) for choice in chosen])
