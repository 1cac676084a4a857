# SPDX-License-Identifier: Apache-2.0
"""Where the code of a program lies: loops have their bytes once, ops, kernels and platform their own."""

from __future__ import annotations

import re

import pytest

from arch.blocks.soc import Soc
from arch.pricing.code_caches import COLD, STEADY, WARM
from arch.pricing.team_cost_model import TeamCostModel
from arch.spec.program import Compute, DmaStart
from pulptrain.__main__ import run
from pulptrain.given.settings import Settings, soc_timing
from scheduler.programs.program_code import shipped_sizes, with_code
from shared.kept_plans import prepare

SETTINGS = Settings(timing="rtl")


def test_tiles_of_a_loop_share_its_code_and_ops_have_their_own() -> None:
    program = prepare("tutorial-cnn", SETTINGS).schedule.program
    code = with_code(program).code
    assert code is not None
    by_op: dict[str, set[int]] = {}
    for action in program.actions:
        if isinstance(action, DmaStart | Compute):
            own = code.pieces[action.id][0]
            by_op.setdefault(f"{action.work.op}.{action.work.step}", set()).add(own.address)
    ops = [*by_op.values()]
    assert all(not one & other for number, one in enumerate(ops) for other in ops[:number])
    updates = [action for action in program.actions if str(action.work.step) == "UPD"]
    assert len(by_op["fc.UPD"]) < len([action for action in updates if action.work.op == "fc"]) / 2


def test_kernels_and_platform_lie_behind_the_ops_and_have_the_sizes_compiled() -> None:
    program = prepare("simple-mlp", SETTINGS).schedule.program
    code = with_code(program).code
    assert code is not None
    sizes = shipped_sizes()
    ends = []
    for action in program.actions:
        for piece in code.pieces[action.id]:
            ends.append(piece.address + piece.size_bytes)
            if piece.kernel:
                assert isinstance(action, Compute)
                assert piece.size_bytes == sizes["kernels"][action.team.kernel]
    assert max(ends) <= code.size_bytes
    assert code.size_bytes == code.pieces[0][-1].address + sum(
        [*sizes["platform"].values()][[*sizes["platform"]].index("transfer_1d") :]
    )


def test_code_larger_than_the_shared_cache_comes_from_l2_in_every_iteration() -> None:
    """tutorial-cnn has about 9 KB of code: nearly all lines come again; with a cache of 64 KiB none do."""
    timing = soc_timing(SETTINGS)
    schedule = prepare("tutorial-cnn", SETTINGS).schedule
    costs = TeamCostModel(timing)
    cycles = {
        start: Soc(timing, costs, code_start=start).run(with_code(schedule.program), effects=False).cycles
        for start in (WARM, STEADY, COLD)
    }
    assert cycles[WARM] == Soc(timing, costs).run(schedule.program, effects=False).cycles
    assert cycles[WARM] + 15_000 < cycles[STEADY] < cycles[COLD]
    large = soc_timing(Settings(overrides=("icache.shared_bytes=65536", "icache.private_bytes=32768")))
    held = {
        start: Soc(large, costs, code_start=start).run(with_code(schedule.program), effects=False).cycles
        for start in (WARM, STEADY)
    }
    assert held[STEADY] - held[WARM] < 0.05 * (cycles[STEADY] - cycles[WARM])


def test_code_that_finds_no_room_beside_the_plan_is_refused_and_what_is_said_to_fit_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["run", "simple-mlp", "--no-functional", "--quiet"]
    plan_bytes = prepare("simple-mlp", SETTINGS).schedule.peak_bytes["l2"]
    assert run([*command, "--l2", f"{plan_bytes}B"]) == 0, "warm: no code is counted"
    assert run([*command, "--l2", f"{plan_bytes}B", "--icache", "steady"]) == 3
    said = capsys.readouterr().err
    assert "L2 is too small" in said
    match = re.search(r"--l2 (\d+)KiB", said)
    assert match is not None
    named_kib = int(match[1])
    assert named_kib * 1024 > plan_bytes + 4_000
    assert run([*command, "--l2", f"{named_kib}KiB", "--icache", "steady"]) == 0
