# SPDX-License-Identifier: Apache-2.0
"""What would help a model that does not fit, found by planning again with one thing changed at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

from arch.spec.soc_config import READABLE
from arch.spec.timing import SocTiming
from configs.errors import DoesNotFitError, Lever, PulptrainError
from configs.model_file import LayerSpec, ModelSpec
from configs.values import Struct, replace
from scheduler.code_in_l2 import has_code
from scheduler.memory.memory_plan import least_l2_bytes, plan_memory
from scheduler.options import WHOLE_OPS, ScheduleOptions
from scheduler.programs.program_code import CODE
from scheduler.schedule import streamer_of, tiler_of
from scheduler.tiles.partial_sums import SUM
from scheduler.tiles.tiling import Tiling
from trainlib.ir.graph import Op, TrainingGraph
from trainlib.registry import layer_primitive
from trainlib.training.options import GRADIENT_KEYS
from trainlib.training.phases import build_training_phases
from trainlib.training.variants import with_variants

MAX_LEVERS = 10
"""Levers a report lists."""

L3_TRIED_BYTES = 8 * 1024 * 1024
"""Size of the L3 that is tried where there is none: a 64 Mbit HyperRAM."""


class Attempt(Struct, frozen=True):
    """One thing changed: what, how the user asks for it, and the request that results."""

    name: str
    how: str
    spec: ModelSpec
    timing: SocTiming
    options: ScheduleOptions


_Changed = Callable[[str, str, ModelSpec], Attempt]
"""Makes the attempt of a changed model from its name, how to ask for it, and the model."""


def with_levers(
    error: DoesNotFitError, spec: ModelSpec, timing: SocTiming, options: ScheduleOptions
) -> DoesNotFitError:
    """The report with up to `MAX_LEVERS` changes that lower what the level requires, the best first.

    Every one is planned again from the changed model; one that cannot be built or saves nothing is left out.
    Planned are tensors, beside the code as it is: that of the changed model is another one, so whether it
    fits is not known where code is fetched.
    """
    levers: list[Lever] = []
    codes = error.level != "l1" and has_code(timing, options.code_start)

    def needs(attempt: Attempt) -> tuple[int, bool]:
        phases = build_training_phases(attempt.spec)
        graphs = [with_variants(graph, attempt.options.variants) for graph in phases.graphs]
        needed = [_requirement(error, graph, attempt) for graph in graphs]
        return max(item[0] for item in needed), all(item[1] for item in needed)

    # Of L2 beside L3 the report has a size that was tried; of a changed model only a bound is asked.
    before_bytes = error.required_bytes
    with suppress(PulptrainError):
        before_bytes = min(before_bytes, needs(Attempt("", "", spec, timing, options))[0])
    for attempt in _attempts(error, spec, timing, options):
        try:
            required_bytes, fits = needs(attempt)
        except PulptrainError:
            continue  # this layer, dtype or optimizer cannot be changed so
        saved_bytes = before_bytes - required_bytes
        if saved_bytes > 0:
            known = None if fits and codes else fits
            levers.append(Lever(attempt.name, attempt.how, required_bytes, saved_bytes, known))
    levers.sort(key=lambda lever: (-lever.saved_bytes, lever.name))
    found = tuple(levers[:MAX_LEVERS])
    if error.level != "l1":
        return error.but(levers=found)
    reserved_bytes = timing.l1.size_bytes - timing.l1_usable_bytes
    size = f"use --l1 {-(-(timing.l1.size_bytes + error.missing_bytes) // 1024)}KiB (stacks"
    size += f"{' and tables' if timing.l1.tables_bytes else ''} take {reserved_bytes} B of it)"
    if error.missing_bytes <= timing.l1.tables_bytes:
        size += f", or --form {READABLE}, which has no tables"
    whole = options.buffer_depth == WHOLE_OPS
    return error.but(
        levers=found, cure=f"{size}, or --buffering single, which cuts ops into tiles" if whole else size
    )


def _requirement(error: DoesNotFitError, graph: TrainingGraph, attempt: Attempt) -> tuple[int, bool]:
    """Bytes the level of `error` requires after the change, and whether that fits."""
    timing, options = attempt.timing, attempt.options
    if error.level == "l1":
        name = _op_of(error)
        ops = [op for op in graph.ops if op.name == name]
        if not ops:  # the layer may be made of other ops now
            ops = [op for op in graph.ops if op.layer == name.partition(".")[0]]
        if not ops:
            return 0, True
        required_bytes = max(_refused_tiling(op, graph, timing, options).l1_bytes for op in ops)
        # The report is of the first op that is too large; another may be, too.
        fits = all(
            _refused_tiling(op, graph, timing, options).l1_bytes <= timing.l1_usable_bytes for op in graph.ops
        )
        return required_bytes, fits
    code_bytes = sum(item.size_bytes for item in error.contributors if item.name == CODE)
    timing = replace(timing, l2=replace(timing.l2, size_bytes=max(0, timing.l2.size_bytes - code_bytes)))
    try:
        plan = plan_memory(graph, timing, options.memory, streamer_of(graph, timing, options))
    except DoesNotFitError as still:
        if still.level == error.level:
            return still.required_bytes + code_bytes, False
        # L2 was enough before, or L3 is too small now: where it hurts has moved, nothing is saved.
        return error.required_bytes, False
    if error.level == "l3":
        return plan.peak_bytes["l3"], True
    least_bytes = least_l2_bytes(graph, timing, options.memory, streamer_of(graph, timing, options))
    return least_bytes + code_bytes, True


def _refused_tiling(op: Op, graph: TrainingGraph, timing: SocTiming, options: ScheduleOptions) -> Tiling:
    """The tiling an L1 report is about: the one asked for, the whole op, or the smallest tiles."""
    tiler = tiler_of(op, graph, timing, options)
    if op.name in options.tile_sizes or op.name in options.loop_orders:
        return tiler.build(options.tile_sizes.get(op.name, {}), options.loop_orders.get(op.name))
    if options.buffer_depth == WHOLE_OPS:
        return tiler.build({})
    return tiler.smallest()


def _l1_attempts(
    error: DoesNotFitError, spec: ModelSpec, timing: SocTiming, options: ScheduleOptions
) -> Iterator[Attempt]:
    """Fewer buffers: tiles instead of the whole op, one buffer for all operands, or for the largest."""
    if options.buffer_depth == WHOLE_OPS:
        cut = replace(options, buffer_depth=1)
        yield Attempt("tiles instead of whole ops", "--buffering single", spec, timing, cut)
        return
    name = _op_of(error)
    phases = build_training_phases(spec)
    graphs = phases.graphs
    refused = next(((op, graph) for graph in graphs for op in graph.ops if op.name == name), None)
    several = []
    if refused is not None:
        tiling = _refused_tiling(*refused, timing, options)
        several = [buffer for buffer in tiling.buffers if buffer.slots > 1]
    if options.buffer_depth > 1 or several:
        single = replace(options, buffer_depth=1, buffers={})
        yield Attempt("single buffering", "--buffering single", spec, timing, single)
    if len(several) > 1:
        largest = max(several, key=lambda buffer: buffer.size_bytes - buffer.slot_bytes).name
        operand = largest.removesuffix(SUM)
        depths = {**options.buffers.get(name, {}), operand: 1}
        one = replace(options, buffers={**options.buffers, name: depths})
        how = f"--buffering {options.buffer_depth},{name}.{operand}=1"
        yield Attempt(f"one buffer for {operand}", how, spec, timing, one)


def _step_by_step(error: DoesNotFitError, spec: ModelSpec, changed: _Changed) -> Iterator[Attempt]:
    """A layer that can be computed by ops per step instead of one for all: recurrent ones, norms."""
    name = _op_of(error).partition(".")[0]
    layer = next((layer for layer in spec.layers if layer.name == name), None)
    if layer is None or "stepwise" not in layer_primitive(layer.type).schema.model_fields:
        return
    if not layer.attributes.get("stepwise"):
        apart = replace(layer, attributes={**layer.attributes, "stepwise": True}, node=None)
        layers = tuple(apart if other is layer else other for other in spec.layers)
        how = f"stepwise: true of {name} in the model file"
        yield changed(f"{name} step by step", how, replace(spec, layers=layers))


def _op_of(error: DoesNotFitError) -> str:
    """Name of the op an L1 report is about."""
    return error.where or ""


def _attempts(
    error: DoesNotFitError, spec: ModelSpec, timing: SocTiming, options: ScheduleOptions
) -> Iterator[Attempt]:
    def changed(name: str, how: str, new: ModelSpec) -> Attempt:
        return Attempt(name, how, new, timing, options)

    if error.level == "l1":
        yield from _l1_attempts(error, spec, timing, options)
        yield from _step_by_step(error, spec, changed)
    elif timing.l3.size_bytes == 0:
        larger = replace(timing, l3=replace(timing.l3, size_bytes=L3_TRIED_BYTES))
        yield Attempt("tensors in L3", "--l3 8MiB", spec, larger, options)
    if spec.dtype == "fp32":
        yield changed("16-bit numbers", "--dtype bf16", replace(spec, dtype="bf16"))
    for batch in sorted({spec.batch // 2, 1} - {0}, reverse=True):
        if batch < spec.batch:
            yield changed(f"batch of {batch}", f"--batch {batch}", replace(spec, batch=batch))
    if error.level != "l1":
        yield changed("last layer only", "train: last in the model file", replace(spec, train="last"))
        if spec.optimizer.name != "sgd":
            plain = replace(spec.optimizer, name="sgd", options=_rate(spec))
            how = "optimizer: {name: sgd} in the model file"
            yield changed("optimizer without states", how, replace(spec, optimizer=plain))
        for layer in _layers_of(error, spec):
            yield from _of_layer(layer, spec, changed)


def _of_layer(layer: LayerSpec, spec: ModelSpec, changed: _Changed) -> Iterator[Attempt]:
    where = f"in layer {layer.name}"

    def with_layer(name: str, how: str, new: LayerSpec) -> Attempt:
        layers = tuple(new if other is layer else other for other in spec.layers)
        return changed(name, f"{how} {where}", replace(spec, layers=layers))

    if not layer.recompute:
        yield with_layer(f"recompute {layer.name}", "recompute: true", replace(layer, recompute=True))
    if layer.trainable is True:
        yield with_layer(f"freeze {layer.name}", "trainable: false", replace(layer, trainable=False))
        channels = _output_channels(layer)
        if layer.update_channels is None and channels > 1:
            half = channels // 2
            yield with_layer(
                f"update half of {layer.name}",
                f"update_channels: {half}",
                replace(layer, update_channels=(0, half)),
            )


def _output_channels(layer: LayerSpec) -> int:
    for key in ("out_channels", "out_features"):
        value = layer.attributes.get(key)
        if isinstance(value, int):
            return value
    return 0


def _layers_of(error: DoesNotFitError, spec: ModelSpec) -> list[LayerSpec]:
    """Layers whose tensors are among the largest contributors, in the order of the model."""
    names = {item.name.partition(".")[0] for item in error.largest}
    return [layer for layer in spec.layers if layer.name in names]


def _rate(spec: ModelSpec) -> dict[str, object]:
    """The options of the optimizer that plain SGD has as well: the rate, and those of all optimizers."""
    common = ("learning_rate", *GRADIENT_KEYS)
    return {key: value for key, value in spec.optimizer.options.items() if key in common}
