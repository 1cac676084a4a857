# SPDX-License-Identifier: Apache-2.0
"""`schedule.yaml`: what was tuned, for what, and the choices; written for people, read strictly."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq

from arch.pricing.code_caches import WARM
from arch.spec.timing import SocTiming
from configs.errors import ConfigError, DoesNotFitError, InputError, ShapeError, UnsupportedLayerError
from configs.files import start_of, write_text
from configs.model_file import ModelSpec
from configs.problems import Problems
from configs.schema import Schema, check_keys, required_and_optional, validate
from configs.suggest import check_known, suggestion
from configs.values import replace
from configs.yaml_file import Node, load_yaml, parse_yaml
from scheduler.options import ScheduleOptions, of_programs
from scheduler.tiles.resident_tensors import tensor_and_ops
from scheduler.tuner.search_space import Cut
from scheduler.tuner.tuned_residents import PROGRAMS
from scheduler.tuner.tuned_schedule import (
    OpChoice,
    TunedSchedule,
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

FORMAT = 1
"""Version of the file's layout."""

_HEADER = (
    "Tuned schedule: `pulptrain run MODEL --schedule FILE`. kernel, variant, tile, loop_order and buffering\n"
    "may be edited; an op that is left out is scheduled as without this file. The rest says what it is for."
)
_WIDTH = 240


class NamedSchema(Schema):
    """Model of the schedule."""

    name: str
    """Its name."""
    content: str
    """Hash of its content; a schedule for other content is refused."""


class TunedSocSchema(NamedSchema):
    """SoC of the schedule."""

    timing: str
    """Timing profile: rtl or gvsoc."""


class ResidentSchema(Schema):
    """Tensors that stay in L1 between ops, by program."""

    iteration: list[str] = Field(default_factory=list)
    """Tensors, or `TENSOR@OP..OP` for part of a life, in the iteration."""
    update: list[str] = Field(default_factory=list)
    """The same for an update in a separate program."""


class ChoiceSchema(Schema):
    """Choices for one op; `op`, `kernel`, `variant`, `tile`, `loop_order` and `buffering` are read."""

    op: str
    """Layer and step, as in the table: `conv1.FW`."""
    tile: dict[str, Annotated[int, Field(ge=1)]]
    """Sizes of a tile, by the names of its loops."""
    loop_order: list[str]
    """Loop order, outermost first."""
    buffering: Annotated[int, Field(ge=1)]
    """Buffers per operand: 2 loads a tile while another is computed."""
    kernel: str = ""
    """Matmul kernel, if the op has one."""
    variant: str = ""
    """Variant of the step (default: that of the model)."""
    im2col: str = ""
    """Former name of `variant` for convolutions."""
    tiles: int = 0
    """Number of tiles."""
    l1_bytes: int = 0
    """L1 used by its buffers (B)."""
    cycles: int = 0
    """Simulated cycles of the op alone."""
    candidates: int = 0
    """Number of combinations."""
    evaluated: int = 0
    """Number of simulated combinations."""
    runner_up: object = None
    """Second best choice, with its cycles."""


class ScheduleSchema(Schema):
    """A schedule file, as `pulptrain tune` writes it."""

    format: int
    """Version of the file format."""
    model: object
    """Model of the schedule."""
    soc: object
    """SoC of the schedule."""
    codegen: str
    """Compiler profile of the kernels."""
    choices: object
    """One entry per op; omitted ops are scheduled as without the file."""
    pulptrain: object = None
    """Version of pulptrain that wrote the file."""
    simulator: object = None
    """Hash of the simulator's sources."""
    strategy: object = None
    """Search strategy."""
    candidates: object = None
    """Number of combinations."""
    evaluated: object = None
    """Number of simulated combinations."""
    cycles: object = None
    """Cycles of an iteration with this schedule."""
    icache: object = None
    """Initial instruction-cache state of the tuning run (default: warm)."""
    resident: object = None
    """Tensors that stay in L1 between ops."""
    layout: object = None
    """CHW or HWC by layer, if it differs from the model."""


def schedule_text(schedule: TunedSchedule) -> str:
    """The file as text: keys in a fixed order, no dates, so that equal schedules are equal files."""
    resident = {name: list(texts) for name, texts in schedule.resident.items() if texts}
    top = CommentedMap(
        {
            "format": FORMAT,
            "pulptrain": schedule.version,
            "simulator": schedule.simulator,
            "model": _flow({"name": schedule.model, "content": schedule.model_content}),
            "soc": _flow({"name": schedule.soc, "timing": schedule.timing, "content": schedule.soc_content}),
            "codegen": schedule.codegen,
            "strategy": schedule.strategy,
            "candidates": schedule.candidates,
            "evaluated": schedule.evaluated,
            "cycles": schedule.cycles,
            "icache": schedule.icache,
            **({"layout": _flow(dict(schedule.layouts))} if schedule.layouts else {}),
            **({"resident": resident} if schedule.resident else {}),
            "choices": [_choice_map(choice) for choice in schedule.choices],
        }
    )
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


def _choice_map(choice: OpChoice) -> dict[str, Any]:
    best, second = choice.best, choice.runner_up
    return {
        "op": choice.op,
        **_cut_map(best),
        **{"tiles": best.tiles, "l1_bytes": best.l1_bytes, "cycles": best.cycles},
        **{"candidates": choice.candidates, "evaluated": choice.evaluated},
        "runner_up": second and _flow({**_cut_map(second), "cycles": second.cycles}),
    }


def _cut_map(cut: Cut) -> dict[str, Any]:
    order = CommentedSeq(cut.order)
    order.fa.set_flow_style()
    values = {**cut.written, "tile": _flow(dict(cut.sizes)), "loop_order": order}
    return {key: value for key, value in values.items() if value != ""}


def _flow(values: dict[str, Any]) -> CommentedMap:
    result = CommentedMap(values)
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
    check_keys(node, what, *required_and_optional(ScheduleSchema))
    top = node.mapping(what)
    number = top["format"].value
    if type(number) is not int or number != FORMAT:
        raise top["format"].error(
            f"format {top['format'].plain()!r} is unknown; the installed pulptrain reads format {FORMAT}",
            "use the pulptrain version that wrote the file, or tune again",
        )
    model = validate(NamedSchema, top["model"], "'model'")
    soc = validate(TunedSocSchema, top["soc"], "'soc'")
    codegen = top["codegen"].value
    if not isinstance(codegen, str):
        raise top["codegen"].error(f"'codegen' is {top['codegen'].kind}", "write the name of a codegen")
    problems = Problems()
    read = (problems.of(_choice, item) for item in top["choices"].sequence("'choices'"))
    choices = tuple(choice for choice in read if choice is not None)
    for position, choice in enumerate(choices):
        if choice.op in {earlier.op for earlier in choices[:position]}:
            cure = "remove one of the two"
            problems.note(
                ConfigError(f"the file lists op {choice.op} twice", where=choice.where("op"), cure=cure)
            )
    problems.refuse()
    resident = (
        validate(ResidentSchema, top["resident"], "'resident'") if "resident" in top else ResidentSchema()
    )
    return TunedSchedule(
        model.name,
        model.content,
        soc.name,
        soc.timing,
        soc.content,
        codegen,
        choices,
        resident={name: tuple(getattr(resident, name)) for name in PROGRAMS},
        layouts=_layouts(top["layout"]) if "layout" in top else {},
        icache=str(top["icache"].plain()) if "icache" in top else WARM,
        node=node,
    )


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
    if not file.layouts:
        return spec
    try:
        changed = with_layouts(spec, file.layouts)
        build_training_phases(changed)
    except (InputError, ShapeError, UnsupportedLayerError) as error:
        raise ConfigError(error.message, where=file.where("layout"), cure=error.cure) from None
    return changed


def _choice(node: Node) -> OpChoice:
    read = validate(ChoiceSchema, node, "a choice")
    keys = node.mapping("a choice")
    if read.variant and read.im2col:
        raise keys["im2col"].error("'im2col' and 'variant' mean the same", "remove 'im2col'")
    tile = tuple(read.tile.items()), tuple(read.loop_order), read.buffering
    how = *tile, read.kernel, read.variant or read.im2col
    return OpChoice(read.op, Cut(*how, read.tiles, read.l1_bytes, read.cycles), node=node)


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
    if file.soc_content != soc_content(timing):
        named = (
            "other parameters"
            if (file.soc, file.timing) == (timing.name, timing.profile)
            else f"{timing.name} ({timing.profile})"
        )
        raise ConfigError(
            f"the schedule is for {file.soc} ({file.timing}), but this run uses {named}",
            where=file.where("soc"),
            cure="use the SoC options of the tuning run, or run tune again",
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
            options = replace(options, resident=file.resident.get(program, ()))
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
                f"{graph.name} has no tensor or op {name!r}, which 'resident' names",
                where=file.where("resident"),
                cure=suggestion(name, names),
            )


def check_model(
    file: TunedSchedule, graphs: Sequence[TrainingGraph], written: TrainingGraph | None = None
) -> None:
    """Raise `ConfigError` unless the file is for the model whose graphs these are (as of `options_from`)."""
    name, content = graphs[0].name, content_of(written or graphs[0])
    if (file.model, file.model_content) != (name, content):
        other = repr(name) if file.model != name else f"{name!r} with another batch, dtype or other layers"
        raise ConfigError(
            f"the schedule is for the model {file.model!r}, but this run has {other}",
            where=file.where("model"),
            cure="use the model and options of the tuning run, or run tune again",
        )
    op_names = [op.name for graph in graphs for op in graph.ops]
    for choice in file.choices:
        if choice.op not in op_names:
            cure = suggestion(choice.op, op_names).split(" (")[0]
            raise ConfigError(f"model {name} has no op {choice.op!r}", where=choice.where("op"), cure=cure)


def _options(
    file: TunedSchedule, graph: TrainingGraph, timing: SocTiming, base: ScheduleOptions
) -> ScheduleOptions:
    ops = {op.name: op for op in graph.ops}
    chosen = [choice for choice in file.choices if choice.op in ops]
    for choice in chosen:
        candidate, op = choice.best, ops[choice.op]
        if candidate.variant:
            try:
                op = with_variant(op, candidate.variant)
            except InputError as error:
                cure = error.cure or "remove 'variant'"
                raise ConfigError(
                    f"{choice.op}: {error.message}", where=choice.where("im2col", "variant"), cure=cure
                ) from None
        has_kernel = bool(lowering_of(op).default_kernel(op))
        if candidate.kernel and not has_kernel:
            without = f" in variant {own_variant(op)}" if own_variant(op) else ""
            raise ConfigError(
                f"{choice.op} does not use a matmul kernel{without}",
                where=choice.where("kernel"),
                cure="remove 'kernel'",
            )
        kernels = matmuls_of(op, graph.tensors, base.codegen)
        if has_kernel:
            unknown = f"unknown kernel {candidate.kernel!r} of {choice.op}"
            check_known(candidate.kernel, kernels, unknown, choice.where("kernel"), error=ConfigError)
        tiler = tiler_for(graph, op, timing, base.codegen, candidate)
        try:
            tiler.fixed(dict(candidate.sizes), timing.l1_usable_bytes, candidate.order)
        except DoesNotFitError as error:
            where = f"{choice.where('tile')}: {choice.op}"
            raise error.but(where=where, cure="use a smaller tile, or buffering 1", levers=()) from None
        except InputError as error:
            raise ConfigError(
                f"{choice.op}: {error.message}", where=choice.where("tile"), cure=error.cure
            ) from None
    return with_choices(base, graph, timing, [(choice.op, choice.best) for choice in chosen])
