# SPDX-License-Identifier: Apache-2.0
"""Every transfer of a schedule costs the master the address code around it: that of a range or of a box."""

from __future__ import annotations

from arch.blocks.soc import Soc
from arch.pricing.team_cost_model import TeamCostModel
from arch.spec.program import DmaStart
from arch.spec.soc_config import load_soc
from arch.spec.timing import SocTiming
from configs.model_file import load_model
from configs.values import replace
from scheduler.options import ScheduleOptions
from scheduler.planned import Schedule
from scheduler.schedule import build_schedule
from trainlib.training.phases import build_training_graph

TIMING = load_soc("pulp-open", "rtl")


def schedule_of(timing: SocTiming) -> tuple[Schedule, TeamCostModel]:
    """The tutorial network with tiles of a few output rows, so that there are boxes to move."""
    cost_model = TeamCostModel(timing)
    graph = build_training_graph(load_model("tutorial-cnn"))
    options = ScheduleOptions(buffer_depth=1, tile_sizes={"conv1.FW": {"ho": 2}})
    return build_schedule(graph, timing, cost_model, options), cost_model


def cycles(schedule: Schedule, timing: SocTiming, cost_model: TeamCostModel) -> int:
    return Soc(timing, cost_model).run(schedule.program, effects=False).cycles


def starts(schedule: Schedule) -> list[DmaStart]:
    return [action for action in schedule.program.actions if isinstance(action, DmaStart)]


def test_ranges_and_boxes_have_the_code_of_the_soc() -> None:
    schedule, _ = schedule_of(TIMING)
    found = {
        (max(item.lines for item in action.commands) > 1, action.code_cycles) for action in starts(schedule)
    }
    dma = TIMING.dma
    assert found == {(False, dma.transfer_code_1d_cycles), (True, dma.transfer_code_2d_cycles)}


def test_single_buffered_every_cycle_of_code_is_a_cycle_of_the_program() -> None:
    """Nothing runs beside the master there, so the sum of the code is the whole difference."""
    schedule, cost_model = schedule_of(TIMING)
    bare = replace(
        schedule.program,
        actions=tuple(
            replace(action, code_cycles=0) if isinstance(action, DmaStart) else action
            for action in schedule.program.actions
        ),
    )
    without = Soc(TIMING, cost_model).run(bare, effects=False).cycles
    code_cycles = sum(action.code_cycles for action in starts(schedule))
    assert code_cycles > 0
    # The last word of a transfer is pushed later, but several inputs of a tile overlap in the engine.
    assert without < cycles(schedule, TIMING, cost_model) <= without + code_cycles
