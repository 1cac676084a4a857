# SPDX-License-Identifier: Apache-2.0
"""Programs of measured rows: what `run` and `primitive` carry out for the same op, on the same machine.

Nothing here describes a layer, a tile loop or a fork: the schedule is that of `scheduler.schedule`, the time
that of `arch.blocks.soc`. Many measured programs did a part of what a schedule does (operands that lay in
L1, tiles that were moved and not computed), so the actions may be taken apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from arch.pricing.window_plan import PricingWindow
from arch.spec.program import Action, Compute, DmaStart, DmaWait, Program
from arch.spec.timing import SocTiming
from configs.values import replace
from scheduler.options import WHOLE_OPS, ScheduleOptions
from scheduler.schedule import build_schedule, multiplying, tiler_of
from scheduler.validation.rows.cases import Case
from scheduler.validation.rows.machines import cost_model_of, machine_of, program_cycles
from scheduler.validation.rows.prediction import Prediction
from trainlib.ir.graph import TrainingGraph

Change = Callable[[SocTiming], SocTiming]
"""What the machine of a row is changed into, see `scheduler.validation.rows.measured_code`."""


def as_it_is(timing: SocTiming) -> SocTiming:
    """No change."""
    return timing


def options_of(
    case: Case,
    graph: TrainingGraph,
    *,
    kernels: Mapping[str, str] | None = None,
    buffer_depth: int = WHOLE_OPS,
    tile_sizes: Mapping[str, int] | None = None,
    loop_order: Sequence[str] = (),
    buffers: Mapping[str, int] | None = None,
    buffer_gap_bytes: int = 0,
) -> ScheduleOptions:
    """The choices a row leaves: every matmul runs the kernel of the row, or what `kernels` say.

    Tiles, loops and `buffers` of single operands are those of the only op.
    """
    matmuls = [op.name for op in multiplying(graph, {})]
    given = dict.fromkeys(matmuls, case.text("kernel")) if kernels is None else kernels
    name = graph.ops[0].name
    return ScheduleOptions(
        buffer_depth=buffer_depth,
        codegen=case.text("codegen"),
        kernels={name: given[name] for name in matmuls if name in given},
        tile_sizes={name: tile_sizes} if tile_sizes is not None else {},
        loop_orders={name: loop_order} if loop_order else {},
        buffers={name: buffers} if buffers else {},
        buffer_gap_bytes=buffer_gap_bytes,
        prefetch=False,
    )


def program_of(
    case: Case,
    graph: TrainingGraph,
    options: ScheduleOptions,
    *,
    change: Change = as_it_is,
    window: PricingWindow | None = None,
) -> tuple[Program, SocTiming]:
    """The program of a graph on the team of a row, and the machine of the row with room for it.

    The memories are as large as the program wants them, as those of the measured machines were. Raises the
    errors of `scheduler.schedule`.
    """
    bursts_bytes = machine_of(case).dma.burst_bytes * len(graph.tensors)
    l2_bytes = bursts_bytes + sum(tensor.size_bytes for tensor in graph.tensors.values())
    # Before anything is as large as the tensors: rows this computer should not hold are refused here.
    timing = _team_of(case, change(machine_of(case, l2_bytes=l2_bytes)))
    l1_bytes = timing.l1.size_bytes - timing.l1_usable_bytes
    l1_bytes += max(
        tiler_of(op, graph, timing, options).build(options.tile_sizes.get(op.name, {})).l1_bytes
        for op in graph.ops
    )
    timing = change(machine_of(case, l1_bytes=l1_bytes, l2_bytes=l2_bytes))
    schedule = build_schedule(graph, _team_of(case, timing), cost_model_of(timing, window), options)
    return schedule.program, timing


def _team_of(case: Case, timing: SocTiming) -> SocTiming:
    """The machine as a team smaller than its cluster sees it; the others sleep."""
    return replace(timing, cores=case.number("cores"))


def kernels_of(program: Program, names: Sequence[str] = ()) -> list[Compute]:
    """The kernels of a program whose operands lie in L1: no transfers; only those of some `names`, if any."""
    kernels = [
        action
        for action in program.actions
        if isinstance(action, Compute) and (not names or action.team.kernel in names)
    ]
    return [replace(kernel, id=index, deps=()) for index, kernel in enumerate(kernels)]


def transfers_of(program: Program) -> list[Action]:
    """The transfers of a program and the waits for them, as if nothing were computed."""
    kept = [action for action in program.actions if isinstance(action, DmaStart | DmaWait)]
    numbers = {action.id: number for number, action in enumerate(kept)}
    moved: list[Action] = []
    for action in kept:
        deps = tuple(numbers[dep] for dep in action.deps if dep in numbers)
        changed = replace(action, id=numbers[action.id], deps=deps)
        if isinstance(changed, DmaWait):
            changed = replace(changed, transfer=numbers[changed.transfer])
        moved.append(changed)
    return moved


def predicted(
    case: Case, timing: SocTiming, actions: Sequence[Action], window: PricingWindow | None = None
) -> Prediction:
    """Cycles the master spends on the actions, and the instructions of their kernels."""
    cost_model = cost_model_of(timing, window)
    teams = [action.team for action in actions if isinstance(action, Compute)]
    instructions = sum(core.instructions for team in teams for core in cost_model.price(team).cores)
    return Prediction(program_cycles(timing, case.id, actions, window), instructions)
