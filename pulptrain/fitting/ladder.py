# SPDX-License-Identifier: Apache-2.0
"""The ladder: the smallest memories in which each form of training fits, from inference to all parameters."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from arch.pricing.code_caches import WARM
from configs.errors import DoesNotFitError, InputError, Lever, PulptrainError
from configs.limits import size_text
from configs.model_file import AdapterSpec, LayerSpec, ModelSpec
from configs.values import replace
from configs.version import VERSION
from pulptrain.fitting.fit_model import (
    SMALLEST_SECONDS,
    Fitting,
    as_immediate,
    host_bytes,
    sized,
    smallest_of,
)
from pulptrain.fitting.ways import Way, from_inputs
from pulptrain.inputs.settings import Settings, code_start, schedule_options, soc_timing
from pulptrain.process.progress import NOBODY, Teller
from pulptrain.running.machine import Prepared
from pulptrain.running.session import prepare, run_prepared, settled
from scheduler.fit.of_graph import problem_of
from scheduler.fit.prices import Prices
from scheduler.fit.problem import Decisions, evaluate
from scheduler.fit.solver import SECONDS, Solution
from scheduler.memory.host_memory import tensor_bytes
from scheduler.memory.memory_plan import least_l2_bytes, plan_memory
from scheduler.schedule import streamer_of, tiler_of
from scheduler.search.cache import ResultCache
from scheduler.tuner.objective import CYCLES
from trainlib.ir.graph import TrainingGraph
from trainlib.training.adapters import ADAPTABLE
from trainlib.training.phases import build_training_phases
from trainlib.training.sparse_update import SUPPORTED

INFERENCE, LAST, BIAS, ADAPTER, QUARTER, SPARSE, LISTED, FULL = (
    "inference",
    "last layer",
    "bias only",
    "adapter",
    "last quarter",
    "sparse",
    "as listed",
    "full",
)
NAMED = 3
"""Layers of the user's own list that its form names."""

RANK = 4
"""Of the adapters of the ladder."""

SPARSE_PART = 8
"""Of the output channels of a layer one in so many is updated in the sparse form of the ladder."""

AT_ONCE, RECOMPUTE, PAGING, STREAMING = "update at once", "recompute", "paging", "streaming"

LEAST_L2_BYTES = 1024
"""An L2 that can be asked for."""

ROUNDS = 8
"""How often an L2 is made larger where addresses leave more bytes unused than live bytes tell."""


@dataclass(frozen=True, slots=True)
class Form:
    """A form of training: its name and the model that is trained so."""

    name: str
    spec: ModelSpec


def forms_of(spec: ModelSpec) -> list[Form]:
    """The forms a model has, the one that needs least first; what its layers do not have is left out.

    If the model, or ``--train``, says what is trained that is a form of its own; the others do not heed it.
    """
    whole = _whole(spec)
    listed = _with_parameters(spec)
    names = ", ".join(listed[:NAMED]) + (f" and {len(listed) - NAMED} more" if len(listed) > NAMED else "")
    own = [Form(f"{LISTED} ({names})", spec)] if whole is not spec else []
    spec = whole
    every = _with_parameters(spec)
    quarter = every[-max(1, len(every) // 4) :]
    found = [
        Form(INFERENCE, replace(spec, steps=("fw",))),
        Form(LAST, replace(spec, train="last")),
        Form(BIAS, _only_biases(spec)),
        Form(ADAPTER, _adapted(spec)),
        Form(f"{QUARTER} (from {quarter[0]})", replace(spec, train=tuple(quarter))),
        Form(f"{SPARSE} (1/{SPARSE_PART} of the channels)", _sparse(spec)),
        *own,
        Form(FULL, spec),
    ]
    return [form for form in found if _builds(form.spec)]


def _whole(spec: ModelSpec) -> ModelSpec:
    """The model with all parameters trained; itself if it says so, or if that cannot be."""
    layers = tuple(replace(layer, trainable=True, update_channels=None) for layer in spec.layers)
    changed = replace(spec, train=None, layers=layers)
    return changed if changed != spec and _builds(changed) else spec


def _builds(spec: ModelSpec) -> bool:
    try:
        build_training_phases(spec)
    except PulptrainError:
        return False
    return True


def _with_parameters(spec: ModelSpec) -> list[str]:
    """Layers of which something is trained."""
    graph = build_training_phases(spec).mini_batch
    trained = {name.partition(".")[0] for name in graph.gradients}
    return [layer.name for layer in spec.layers if layer.name in trained]


def _only_biases(spec: ModelSpec) -> ModelSpec:
    """All biases that can be trained by themselves, or with the other parameters of a norm; nothing else."""
    graph = build_training_phases(spec).mini_batch
    with_bias = {name.removesuffix(".bias") for name in graph.gradients if name.endswith(".bias")}

    def only(names: Collection[str]) -> ModelSpec:
        layers = tuple(
            replace(layer, trainable=_bias_of(layer) if layer.name in names else False, adapter=None)
            for layer in spec.layers
        )
        return replace(spec, layers=layers)

    return only({name for name in with_bias if _builds(only({name}))})


def _bias_of(layer: LayerSpec) -> tuple[str, ...]:
    """A norm computes the gradients of both its parameters together."""
    return ("weight", "bias") if "norm" in layer.type else ("bias",)


def _adapted(spec: ModelSpec) -> ModelSpec:
    """Adapters of rank `RANK` beside all layers that can have one, all else frozen."""
    layers = []
    for layer in spec.layers:
        changed = replace(
            layer, trainable=True, update_channels=None, adapter=AdapterSpec(RANK, float(RANK)), node=None
        )
        can = layer.type in ADAPTABLE and layer.attributes.get("groups", 1) == 1
        layers.append(changed if can and layer.weights_of is None else replace(layer, trainable=False))
    return replace(spec, layers=tuple(layers))


def _sparse(spec: ModelSpec) -> ModelSpec:
    """One in `SPARSE_PART` output channels updated of every layer that can be cut so; all else as it is."""
    weights = build_training_phases(spec).mini_batch.tensors

    def part(layer: LayerSpec) -> LayerSpec:
        weight = weights.get(f"{layer.name}.weight")
        if layer.type not in SUPPORTED or layer.attributes.get("groups", 1) != 1 or weight is None:
            return layer
        channels = layer.attributes.get("out_channels") or layer.attributes.get("out_features")
        return replace(layer, update_channels=(0, max(1, (channels or weight.shape[0]) // SPARSE_PART)))

    return replace(spec, layers=tuple(map(part, spec.layers)))


@dataclass(frozen=True, slots=True)
class _Rung:
    """A form with levers, the model it is then, the L2 its tensors need, and whether less is too little."""

    form: str
    levers: tuple[str, ...]
    spec: ModelSpec
    l2_bytes: int
    proved: bool


def _rungs(
    forms: Iterable[Form], settings: Settings, seconds: float, teller: Teller = NOBODY
) -> Iterator[_Rung]:
    for form in forms:
        for levers, way in _ways(form, settings, seconds):
            teller.stage(f"{form.name}: {', '.join(levers) or 'unchanged'}")
            with suppress(PulptrainError):
                chosen, l2_bytes, proved = way()
                yield _Rung(form.name, levers, chosen, max(l2_bytes, LEAST_L2_BYTES), proved)


def _ways(
    form: Form, settings: Settings, seconds: float
) -> Iterator[tuple[tuple[str, ...], Callable[[], tuple[ModelSpec, int, bool]]]]:
    """Levers, and what makes the model, the L2 it needs with them, and whether less is too little."""
    yield (), lambda: (form.spec, _peak_bytes(form.spec, settings), True)
    trains = form.name != INFERENCE
    changed = as_immediate(form.spec) if trains else form.spec
    at_once = (AT_ONCE,) if changed is not form.spec else ()
    if trains:
        yield (*at_once, RECOMPUTE), lambda: _recomputed(changed, settings, seconds)
    if soc_timing(settings).l3.size_bytes:
        yield (*at_once, PAGING), lambda: (changed, _least_bytes(changed, settings), True)
        yield (*at_once, STREAMING), lambda: (changed, _streamed_bytes(changed, settings), False)


def _row(rung: _Rung, settings: Settings, cache: ResultCache | None) -> dict[str, Any] | None:
    planned = _planned(rung, settings, rung.l2_bytes, cache)
    if planned is None:
        return None
    memories, prepared = planned
    summary = run_prepared(prepared, memories, functional=False).summary
    return {
        "form": rung.form,
        "techniques": list(rung.levers),
        "bytes": {**summary["peak_bytes"], "l1": _least_l1_bytes(rung.spec, settings)},
        "at_most": not rung.proved,
        "cycles": summary["cycles"],
    }


def _planned(
    rung: _Rung, settings: Settings, l2_bytes: int, cache: ResultCache | None, unit_bytes: int = 1
) -> tuple[Settings, Prepared] | None:
    """A rung, with its code, in the first L2 from so many bytes on, in whole units, in which it has room."""
    paged = bool({PAGING, STREAMING} & {*rung.levers})
    for _ in range(ROUNDS):
        l2_bytes = -(-l2_bytes // unit_bytes) * unit_bytes
        memories = sized(settings, l2=l2_bytes, **({} if paged else {"l3": 0}))
        try:
            return memories, prepare(rung.spec, memories, cache, traced=False, advise=False)
        except DoesNotFitError as error:
            is_known = not paged or code_start(settings) != WARM
            l2_bytes = max(l2_bytes + max(256, l2_bytes // 100), error.required_bytes if is_known else 0)
    return None


def _graph(spec: ModelSpec) -> TrainingGraph:
    return build_training_phases(spec).mini_batch


def _roomy_bytes(graph: TrainingGraph) -> int:
    return 2 * tensor_bytes(graph) + (64 << 10)


def _peak_bytes(spec: ModelSpec, settings: Settings) -> int:
    """L2 for everything, as it is planned without an L3."""
    graph, options = _graph(spec), schedule_options(settings)
    timing = soc_timing(sized(settings, l2=_roomy_bytes(graph), l3=0))
    plan = plan_memory(graph, timing, options.memory)
    return plan.peak_bytes["l2"]


def _recomputed(spec: ModelSpec, settings: Settings, seconds: float) -> tuple[ModelSpec, int, bool]:
    """The model with what is done again for the smallest peak, that, and whether none is smaller.

    Gradients are computed from inputs where that makes it smaller, as `fit` does where nothing else fits.
    """
    ways = (Way(spec), *from_inputs(Way(spec)))
    tried = [_smallest(way.spec, settings, seconds / len(ways)) for way in ways]
    chosen, found = min(tried, key=lambda one: one[1].value)
    return chosen, found.value, all(found.value <= other.bound for _, other in tried)


def _smallest(spec: ModelSpec, settings: Settings, seconds: float) -> tuple[ModelSpec, Solution]:
    """The model with what is done again for the smallest peak found, and what the search says of that."""
    graph = _graph(spec)
    timing = soc_timing(sized(settings, l2=_roomy_bytes(graph), l3=0))
    problem = problem_of(graph, Prices(), timing, None, frozenset(layer.name for layer in spec.layers))
    found = smallest_of(problem, seconds=seconds)
    assert found is not None  # there is no deadline
    if found.interrupted:
        raise KeyboardInterrupt
    again = {problem.groups[number] for number in found.decisions.again}
    layers = tuple(replace(layer, recompute=layer.recompute or layer.name in again) for layer in spec.layers)
    return replace(spec, layers=layers), found


def _least_bytes(spec: ModelSpec, settings: Settings) -> int:
    """L2 for the op that needs most of it, with its tensors whole and everything else in L3."""
    graph = _graph(spec)
    problem = problem_of(graph, Prices(), soc_timing(sized(settings, l2=LEAST_L2_BYTES)))
    moved = frozenset(number for number in problem.uses if problem.buffers[number].movable)
    ends = {
        (number, use)
        for number in moved
        for run in problem.visits(number).runs
        for use in (run.first, run.last)
    }
    return evaluate(problem, Decisions(frozenset(), moved, frozenset(ends), frozenset(ends))).peak_bytes


def _streamed_bytes(spec: ModelSpec, settings: Settings) -> int:
    """An L2 in which ops stream: as large as L1, and at most half of what paging needs.

    Less will do, down to slots of a few elements, at so many transfers that nobody wants to simulate them.
    """
    graph, timing, options = _graph(spec), soc_timing(settings), schedule_options(settings)
    least_bytes = least_l2_bytes(graph, timing, options.memory, streamer_of(graph, timing, options))
    return max(least_bytes, min(timing.l1_usable_bytes, _least_bytes(spec, settings) // 2))


def _least_l1_bytes(spec: ModelSpec, settings: Settings) -> int:
    """L1 for every op cut as small as it can be, and the stacks."""
    timing, options = soc_timing(settings), schedule_options(settings)
    stacks_bytes = timing.l1.size_bytes - timing.l1_usable_bytes
    return stacks_bytes + max(
        tiler_of(op, graph, timing, options).smallest().l1_bytes
        for graph in build_training_phases(spec).graphs
        for op in graph.ops
    )


def first_step(fitting: Fitting, l2_bytes: int, ladder_command: str, ends: float) -> PulptrainError:
    """Why nothing fits so much L2: what full training needs, the forms that fit, or the smallest form.

    `ladder_command` shows all forms; here it `ends` (`time.perf_counter`) with those looked at until then.
    """
    settings, name = fitting.settings, fitting.written.name
    seconds = min(SMALLEST_SECONDS, max(1.0, ends - time.perf_counter()))
    forms = list(forms_of(fitting.written))
    rungs = list(_until(ends, _rungs(forms, settings, seconds)))
    asked = next((form.name for form in forms if form.name.startswith(LISTED)), FULL)

    def tested(rungs: Iterable[_Rung], least_bytes: int = 0) -> list[tuple[int, _Rung]]:
        """Sizes of L2 in whole KiB, none below a least one, and what has room in each, the smallest first."""
        found = [
            (int(planned[1].timing.l2.size_bytes), rung)
            for rung in _until(ends, rungs)
            if (planned := _planned(rung, settings, max(least_bytes, rung.l2_bytes), fitting.cache, 1024))
        ]
        return sorted(found, key=lambda one: one[0])

    others = [rung for rung in rungs if rung.form != asked]
    every = f"`{ladder_command}` lists the L2 needed for every choice of trained parameters"
    has_time = time.perf_counter() < ends
    own = tested((rung for rung in rungs if rung.form == asked), l2_bytes + 1) if has_time else []
    required_bytes = own[0][0] if own else fitting.needed_bytes
    rows = tested(rung for rung in others if rung.l2_bytes <= l2_bytes)
    fits = [row for row in rows if row[0] <= l2_bytes]
    if not fits:
        rows = rows or tested([min(others, key=lambda rung: rung.l2_bytes)])
        least_bytes, least = [*rows, *own, (required_bytes, rungs[-1])][0]
        if time.perf_counter() >= ends:
            return InputError(
                f"the search reached its time limit before it found parameters of {name} that can be trained "
                f"in {size_text(l2_bytes)} of L2; a longer search may find some",
                where="--time-limit",
                cure=f"use a longer --time-limit, or --l2 {-(-least_bytes // 1024)}KiB for {least.form}; "
                f"{every}",
            )
        return InputError(
            f"{size_text(l2_bytes)} of L2 is too small to train any parameters of {name}: even {least.form} "
            f"needs {least_bytes:,} B",
            where="--l2",
            cure=f"use --l2 {-(-least_bytes // 1024)}KiB for {least.form}, or --l2 "
            f"{-(-required_bytes // 1024)}KiB for {'all parameters' if asked == FULL else asked}; {every}",
        )
    levers = tuple(
        Lever(
            *(rung.form, ", ".join(rung.levers) or "with no other change", size_bytes),
            *(required_bytes - size_bytes, True),
        )
        for size_bytes, rung in fits
    )
    cure = f"use --l2 {-(-required_bytes // 1024)}KiB, or choose trained parameters that fit"
    if not fitting.timing.l3.size_bytes:
        cure += "; or add an L3 to page to: --l3 8MiB"
    cure += f"; {every}"
    return DoesNotFitError(
        "l2", required_bytes, l2_bytes, where=name, what="training", levers=levers, cure=cure
    )


def _until(ends: float, rungs: Iterable[_Rung]) -> Iterator[_Rung]:
    """The first, and the others until a time is over."""
    for rung in rungs:
        yield rung
        if time.perf_counter() >= ends:
            return


def check_ladder(**options: Any) -> None:
    """Raise `InputError` for an option, by name and with its value, that says nothing to a ladder.

    A ladder is of all forms and of no one answer: no file of a model, no clock, no goal.
    """
    for key, value in options.items():
        if value != _OF_AN_ANSWER[key]:
            name = key.replace("_", "-")
            raise InputError(
                f"--{name} applies to one choice of trained parameters, but --ladder lists all choices",
                where=f"--ladder with --{name}",
                cure=f"run two commands: one with --ladder, one with --{name}",
            )


_OF_AN_ANSWER: Mapping[str, Any] = {
    "deadline": None,
    "objective": CYCLES,
    "allow": None,
    "points": 0,
    "time_limit": SECONDS,
    "save_model": None,
}
"""Options of `fit` that a ladder has no use for, and what they are if they are not given."""


def ladder_summary(
    model: str | ModelSpec,
    settings: Settings | None = None,
    *,
    cache: ResultCache | None = None,
    teller: Teller = NOBODY,
) -> tuple[dict[str, Any], bool]:
    """What ``fit --ladder --json`` prints, and whether Ctrl-C ended it: the rows found by then are kept.

    A row per form and levers: smallest bytes of L1, L2 and L3, and cycles of an iteration with these L2.
    L1 is what the ops need cut as small as they can be, with the stacks; the cycles are those with the L1 of
    the settings. Every row is planned, with its code, and simulated; ``at_most`` says of a row that a smaller
    one may have been missed.
    """
    started = time.perf_counter()
    spec, settings = settled(model, settings or Settings())
    rows: list[dict[str, Any]] = []
    interrupted = False
    try:
        for rung in _rungs(forms_of(spec), settings, SMALLEST_SECONDS, teller):
            with suppress(InputError):  # too much to simulate in the memory of this computer
                row = _row(rung, settings, cache)
                rows += [row] if row is not None else []
    except KeyboardInterrupt:
        interrupted = True
    summary = {
        "model": spec.name,
        "soc": settings.soc,
        "feasible": None,
        "peak_bytes": None,
        "cycles": None,
        "optimality_gap": None,
        "decisions": [],
        "points": [],
        "ladder": rows,
        "notes": [],
        "version": VERSION,
        "simulator": {"wall_seconds": time.perf_counter() - started, "host_bytes": host_bytes()},
    }
    return summary, interrupted
