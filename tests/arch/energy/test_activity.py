# SPDX-License-Identifier: Apache-2.0
"""Activity is exact: what a program executes and moves, counted by hand and by the slices."""

from __future__ import annotations

from typing import Any

import pytest

from arch.blocks.soc import Soc
from arch.energy.activity import ASLEEP, NO_OP, Activity, activity_of, whole_activity
from arch.pricing.team_cost_model import TeamCostModel
from arch.spec.isa import CoreWork, Instruction, Loop, Op, Stream, TeamWork
from arch.spec.program import (
    Action,
    Command,
    Compute,
    DmaStart,
    DmaWait,
    Program,
    UdmaCommand,
    UdmaStart,
    UdmaWait,
)
from arch.spec.soc_config import load_soc
from configs.dtypes import BY_WORD, DType
from pulptrain.inputs.settings import Settings
from shared.kept_plans import run_model
from traces.events import Work
from traces.metrics import Metrics, measure
from traces.recorder import Recorder

TIMING = load_soc("pulp-open")


def executed(
    actions: tuple[Action, ...], formats: dict[str, DType] | None = None
) -> tuple[Activity, Metrics]:
    program, recorder = Program("tiny", actions), Recorder()
    result = Soc(TIMING, TeamCostModel(TIMING), recorder).run(program, effects=False)
    metrics = measure(recorder.slices, result.cycles)
    return activity_of(program, metrics, TIMING, formats or {}), metrics


def nest(trips: int, width_bytes: int = 4) -> CoreWork:
    """One constant, then `trips` times two loads, a multiply-add and a store, in a hardware loop."""
    body = (
        Instruction(Op.LOAD, 1, stream=0, width_bytes=width_bytes),
        Instruction(Op.LOAD, 2, stream=0, width_bytes=width_bytes),
        Instruction(Op.FMA, 3, (1, 2, 3)),
        Instruction(Op.STORE, -1, (3,), stream=0, width_bytes=width_bytes),
    )
    return CoreWork((Instruction(Op.MOVE), Loop(trips, body, hardware=True)), (Stream(0, (4,)),))


@pytest.mark.smoke
def test_a_kernel_is_counted_as_by_hand() -> None:
    team = TeamWork("by hand", tuple(nest(trips) for trips in (10, 20, 0, 5, 0, 0, 0, 0)))
    activity, metrics = executed((Compute(0, work=Work("a", "FW"), team=team),))
    counts = activity.by_op["a.FW"]
    assert counts["instructions"] == 8 + 4 * 35 == metrics.total.instructions
    assert counts["instructions_move"] == 8
    assert counts["instructions_fma"] == counts["fpu_fp32x1"] == counts["l1_writes"] == 35
    assert counts["l1_reads"] == 70
    assert counts["l1_words"] == 105
    assert counts["barriers"] == 1
    assert [activity.by_core[f"core{core}"]["instructions"] for core in range(8)] == [
        41, 81, 1, 21, 1, 1, 1, 1,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("word", "width_bytes", "counter"),
    [
        ("fp16", 4, "fpu_fp16x2"),
        ("bf16", 4, "fpu_bf16x2"),
        ("fp16", 2, "fpu_fp16x1"),
        ("fp32", 4, "fpu_fp32x1"),
    ],
)
def test_an_operation_has_the_width_of_what_is_loaded_before_it(
    word: str, width_bytes: int, counter: str
) -> None:
    team = TeamWork("by hand", (nest(10, width_bytes),) + (None,) * 7)
    formats = {"a.FW": BY_WORD[word]}
    activity, _ = executed((Compute(0, work=Work("a", "FW"), team=team, fork=False),), formats)
    assert {name: count for name, count in activity.total.items() if name.startswith("fpu")} == {counter: 10}


def test_transfers_count_their_bytes_by_direction_and_the_words_they_touch() -> None:
    actions = (
        DmaStart(
            0,
            commands=(Command(True, 2, "l2", 0, 100), Command(True, 200, "l2", 0, 16, 4, 64)),
            work=Work("a", "FW"),
        ),
        DmaWait(1, (0,), Work("a", "FW"), 0),
        DmaStart(2, commands=(Command(False, 0, "l2", 0, 40),), work=Work("a", "FW")),
        DmaWait(3, (2,), Work("a", "FW"), 2),
        UdmaStart(4, commands=(UdmaCommand(True, 0, 0, 256), UdmaCommand(False, 0, 0, 64))),
        UdmaWait(5, (4,), transfer=4),
    )
    activity, metrics = executed(actions)
    counts = activity.by_op["a.FW"]
    assert counts["dma_commands"] == 3
    assert counts["dma_bytes_in"] == counts["l2_read_bytes"] == 164 == metrics.bytes_in
    assert counts["dma_bytes_out"] == counts["l2_written_bytes"] == 40 == metrics.bytes_out
    assert counts["l1_dma_words"] == 26 + 16 + 10  # bytes 2 to 102 touch 26 words
    staged = activity.by_op[NO_OP]
    assert (staged["udma_commands"], staged["udma_bytes"]) == (2, 320)
    assert (staged["l3_read_bytes"], staged["l2_written_bytes"]) == (256, 256)
    assert (staged["l3_written_bytes"], staged["l2_read_bytes"]) == (64, 64)


def test_several_programs_add_up() -> None:
    activity, _ = executed((Compute(0, work=Work("a", "FW"), team=TeamWork("k", (nest(3),) * 8)),))
    whole = whole_activity([(activity, 3), (activity, 1)])
    assert whole.total == {name: 4 * count for name, count in activity.total.items()}
    assert whole.by_core.keys() == activity.by_core.keys()


@pytest.mark.parametrize("options", [{}, {"dtype": "fp16"}, {"accumulate": 2}, {"soc": "gap9", "cores": 3}])
def test_a_run_conserves_instructions_bytes_and_cycles(options: dict[str, Any]) -> None:
    summary = run_model("tutorial-cnn", Settings(**options), functional=False).summary
    activity, counts = summary["activity"], summary["activity"]["counters"]
    for name, count in counts.items():
        assert sum(item["counters"].get(name, 0) for item in activity["by_op"]) == count
    assert sum(item["counters"]["instructions"] for item in activity["by_core"]) == counts["instructions"]
    assert (
        counts["instructions"] == sum(op["instructions"] for op in summary["ops"]) == summary["busy_cycles"]
    )
    assert (
        sum(count for name, count in counts.items() if name.startswith("instructions_"))
        == counts["instructions"]
    )
    assert (counts["dma_bytes_in"], counts["dma_bytes_out"]) == (summary["bytes_in"], summary["bytes_out"])
    assert counts["cycles"] == summary["cycles"]
    assert counts["asleep_cycles"] == sum(summary["stalls"][word] for word in ASLEEP)
    states = ("instructions", "stalled_cycles", "runtime_cycles", "asleep_cycles")
    assert sum(counts[name] for name in states) == summary["cores"] * summary["cycles"]
    by_op = {item["name"]: item["counters"] for item in activity["by_op"]}
    for op in summary["ops"]:
        assert by_op[op["name"]].get("instructions", 0) == op["instructions"]
        assert by_op[op["name"]]["cycles"] == op["cycles"]
