# SPDX-License-Identifier: Apache-2.0
"""Where the code of a program lies: loops have their bytes once, ops, kernels and platform their own."""

from __future__ import annotations

import re
from typing import Any

import pytest

from arch.blocks.soc import Soc
from arch.pricing.code_caches import COLD, STEADY, WARM
from arch.pricing.team_cost_model import TeamCostModel
from arch.spec.program import Compute, DmaStart
from arch.spec.soc_config import FORMS
from configs.errors import DoesNotFitError
from configs.values import replace
from pulptrain.__main__ import run
from pulptrain.inputs.settings import Settings, soc_timing
from scheduler.programs.program_code import CODE, code_by_part, with_code
from scheduler.tiles.code_sizes import shipped_sizes
from shared.kept_plans import prepare

SETTINGS = Settings(timing="rtl", form="readable")


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


def test_turns_of_a_small_loop_have_code_of_their_own() -> None:
    """clang writes it out: on the RTL the six tiles of fc.FW wait for 106 lines (KIND steps)."""
    asked = replace(SETTINGS, soc="pulp-cluster-rtl", codegen="clang-rv32", l1="52KiB", icache="warm")
    program = prepare("tutorial-cnn", asked).schedule.program
    code = with_code(program).code
    assert code is not None
    calls = [
        action
        for action in program.actions
        if isinstance(action, Compute) and (action.work.op, action.work.step) == ("fc", "FW")
    ]
    assert len({code.pieces[action.id][0].address for action in calls}) == len(calls) == 10


def test_kernels_and_platform_lie_behind_the_ops_and_have_the_sizes_compiled() -> None:
    program = prepare("simple-mlp", SETTINGS).schedule.program
    code = with_code(program).code
    assert code is not None
    sizes = shipped_sizes()
    ends, places = [], dict[str, int]()
    for action in program.actions:
        pieces = code.pieces[action.id]
        ends += [piece.address + piece.size_bytes for piece in pieces]
        if isinstance(action, Compute):
            kernel = action.team.kernel
            names = [kernel, *sizes["called"].get(kernel, ())]
            executed = [piece for piece in pieces if piece.kernel]
            assert [piece.size_bytes for piece in executed] == [sizes["kernels"][name] for name in names]
            for name, piece in zip(names, executed, strict=True):
                assert places.setdefault(name, piece.address) == piece.address
    assert "pt_expf" in places, "both kernels of the loss share it"
    assert max(ends) <= code.size_bytes
    assert code.size_bytes == code.pieces[0][-1].address + sum(
        [*sizes["platform"].values()][[*sizes["platform"]].index("transfer_1d") :]
    )


@pytest.mark.parametrize("form", FORMS)
def test_parts_of_the_code_add_up_to_all_of_it(form: str) -> None:
    """What `deploy --json` lists is what a run fetches."""
    program = prepare("tutorial-cnn", replace(SETTINGS, form=form)).schedule.program
    code = with_code(program).code
    assert code is not None
    parts = code_by_part([program.actions])
    assert bool(parts["walk"]) == (form == "tables")
    assert sum(sum(part.values()) for part in parts.values()) == code.size_bytes


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
    assert cycles[WARM] + 14_000 < cycles[STEADY] < cycles[COLD]
    large = soc_timing(Settings(overrides=("icache.shared_bytes=65536", "icache.private_bytes=32768")))
    held = {
        start: Soc(large, costs, code_start=start).run(with_code(schedule.program), effects=False).cycles
        for start in (WARM, STEADY)
    }
    assert held[STEADY] - held[WARM] < 0.05 * (cycles[STEADY] - cycles[WARM])


SMALL = ["run", "simple-mlp", "--no-functional", "--quiet", "--no-cache", "--form", "readable"]


def refused_bytes(capsys: pytest.CaptureFixture[str], *options: str) -> int:
    """What is said to be enough."""
    assert run([*SMALL, "--icache", "steady", *options]) == 3
    match = re.search(r"try: use --l2 (\d+)B or", capsys.readouterr().err)
    assert match is not None
    return int(match[1])


def test_code_lies_in_l2_behind_the_tensors_and_is_part_of_what_is_required(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plan_bytes = prepare("simple-mlp", replace(SETTINGS, icache="warm")).schedule.peak_bytes["l2"]
    coded = prepare("simple-mlp", replace(SETTINGS, icache="steady")).schedule
    (code,) = (item for item in coded.plan.allocations if item.kind == "code")
    assert code.address == plan_bytes
    assert code.size_bytes > 4_000
    needed_bytes = coded.peak_bytes["l2"]
    assert needed_bytes == plan_bytes + code.size_bytes
    warm = ["--icache", "warm", "--l3", "0"]
    assert run([*SMALL, *warm, "--l2", f"{plan_bytes}B"]) == 0, "no code is counted"
    assert refused_bytes(capsys, "--l3", "0", "--l2", f"{plan_bytes}B") == needed_bytes
    assert refused_bytes(capsys, "--l3", "0", "--l2", f"{plan_bytes - 4}B") == needed_bytes
    assert refused_bytes(capsys, "--l3", "0", "--l2", f"{needed_bytes - 4}B") == needed_bytes
    assert run([*SMALL, "--l3", "0", "--icache", "steady", "--l2", f"{needed_bytes}B"]) == 0


def test_beside_code_tensors_go_to_l3() -> None:
    steady = replace(SETTINGS, icache="steady")
    alone_bytes = prepare("simple-mlp", steady).schedule.peak_bytes["l2"]
    moved = prepare("simple-mlp", replace(steady, overrides=(f"l2.size_bytes={alone_bytes - 256}",))).schedule
    assert "l3" in {item.level for item in moved.plan.allocations}
    assert moved.peak_bytes["l2"] <= alone_bytes - 256


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("simple-mlp", {"l2": "2KiB"}),
        ("simple-mlp", {"l2": "2KiB", "separate_update": True}),
        ("tutorial-cnn", {"l2": "24KiB", "l3": "0"}),
    ],
)
def test_a_size_of_l2_that_is_said_to_be_enough_is_enough(model: str, options: dict[str, Any]) -> None:
    """More L2 moves other tensors, which is more or less code."""
    with pytest.raises(DoesNotFitError) as raised:
        prepare(model, Settings(icache="steady", **options))
    error = raised.value
    assert error.cure == f"use --l2 {error.required_bytes}B or a smaller model"
    assert sum(item.size_bytes for item in error.contributors) >= error.required_bytes
    assert CODE in {item.name for item in error.contributors}
    assert not any(lever.fits for lever in error.levers), "other tensors have other code"
    prepare(model, Settings(icache="steady", **{**options, "l2": error.required_bytes}))
    smaller_bytes = error.required_bytes - (error.required_bytes - error.available_bytes) // 3
    with pytest.raises(DoesNotFitError):
        prepare(model, Settings(icache="steady", **{**options, "l2": smaller_bytes}))


def test_code_in_flash_takes_no_l2() -> None:
    flash = prepare("simple-mlp", Settings(soc="stm32l4", icache="steady")).schedule
    assert flash.program.code is not None
    assert flash.plan.code_bytes == 0
    warm = prepare("simple-mlp", Settings(soc="stm32l4", icache="warm")).schedule
    assert flash.peak_bytes["l2"] == warm.peak_bytes["l2"]
    least = Settings(soc="stm32l4", icache="steady", l2=warm.peak_bytes["l2"], l3="0")
    prepare("simple-mlp", least)
    in_l2 = replace(least, overrides=("l2.holds_code=true",))
    with pytest.raises(DoesNotFitError):
        prepare("simple-mlp", in_l2)


def test_programs_of_one_iteration_have_their_code_side_by_side() -> None:
    prepared = prepare("simple-mlp", replace(SETTINGS, icache="steady", separate_update=True))
    mini_batch, update = (item.program.code for item in prepared.schedules)
    assert mini_batch is not None
    assert update is not None
    assert mini_batch.size_bytes == update.size_bytes
    ops = [{pieces[0] for pieces in code.pieces if pieces} for code in (mini_batch, update)]
    assert not ops[0] & ops[1]
    for item in prepared.schedules:
        (code,) = (one for one in item.plan.allocations if one.kind == "code")
        assert code.address == max(
            one.end_address
            for other in prepared.schedules
            for one in other.plan.allocations
            if one.level == "l2" and one.kind != "code"
        )
