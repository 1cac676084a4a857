# SPDX-License-Identifier: Apache-2.0
"""Rows measured on RTL: the bare tile loop from its listing, hand-written loops, rows named by build."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from arch.spec.isa import Loop, Node, Op
from arch.spec.program import Compute, DmaStart, DmaWait
from arch.spec.soc_config import load_soc
from configs.errors import ConfigError, InputError
from configs.values import replace
from pulptrain.inputs.settings import Settings
from pulptrain.running.kernel_cost import kernel_cost
from scheduler.validation.rows import bare_loop, icache, loop, micro, micro_sync, tiled
from scheduler.validation.rows.cases import Case, read_cases
from scheduler.validation.rows.kinds import KINDS
from scheduler.validation.rows.machines import RTL_MACHINE
from scheduler.validation.rows.measured_code import code_at_hand
from shared.paths import MEASURED
from trainlib.kernels.catalogue import loop_work

TIMING = load_soc(RTL_MACHINE, "rtl")


def rows(file: str, kind: str) -> dict[str, Case]:
    return {case.id: case for case in KINDS[kind].read(MEASURED / f"{file}.csv.gz", (), [])}


def test_the_cycles_of_the_bare_code_are_those_of_its_instructions() -> None:
    """`over`: and after the load 2 (in `look`, so 1 here), taken branch 3, store 1, return 2."""
    assert bare_loop.code_cycles(TIMING, "over") == 1 + 3 + 1 + 2
    # Seven instructions, then the `and` waits for the load: one cycle more than the parts by themselves.
    assert bare_loop.code_cycles(TIMING, "look") == 7
    driver = bare_loop.bare_driver(TIMING).dma
    unit = TIMING.event_unit
    assert driver.wait_check_cycles == 7
    # Awake again, a jump and a taken branch go to 32 bit instructions, one of two of which lies across words.
    assert driver.wait_wake_cycles - unit.event_wake_cycles == bare_loop.code_cycles(TIMING, "woken") + 1
    # Identifier, length, addresses: 6 instructions, one of which waits for the address it stores.
    assert driver.program_1d_cycles == driver.program_next_cycles == 7


@pytest.mark.parametrize("buffering", ["single", "double"])
def test_what_the_bare_program_does_between_transfers_keeps_their_order(buffering: str) -> None:
    """Pushes, waits and kernels are the schedule's; an output is awaited before the next one is pushed."""
    double = int(buffering == "double")
    case = rows("rtl-tiled", "tiled")[f"asm_2x2-8x8x8-T4-c8-db{double}-private-lat1"]
    program, timing = tiled.program(case)
    found = bare_loop.bare_loop(program.actions, timing, buffering)
    assert [action.id for action in found] == list(range(len(found)))
    forks = [action for action in found if isinstance(action, Compute) and action.fork]
    starts = [action for action in found if isinstance(action, DmaStart)]
    waits = [action for action in found if isinstance(action, DmaWait)]
    assert (len(forks), len(starts), len(waits)) == (4, 12, 12)
    assert {wait.transfer for wait in waits} == {start.id for start in starts}
    under_way = most = 0
    for action in found:
        if isinstance(action, DmaStart) and not action.commands[0].to_l1:
            under_way += 1
        if isinstance(action, DmaWait) and not starts_of(found)[action.transfer].commands[0].to_l1:
            under_way -= 1
        most = max(most, under_way)
    assert most == 1


def starts_of(actions: list[object]) -> dict[int, DmaStart]:
    return {action.id: action for action in actions if isinstance(action, DmaStart)}


@pytest.mark.parametrize("buffering", ["single", "double"])
def test_a_command_waits_for_the_control_port_of_the_dma(buffering: str) -> None:
    """B is pushed one instruction behind A, and the port grants nothing for four cycles."""
    double = int(buffering == "double")
    case = rows("rtl-tiled", "tiled")[f"none-8x8x8-T4-c8-db{double}-private-lat1"]
    program, timing = tiled.program(case)
    found = bare_loop.bare_loop(program.actions, timing, buffering, returns=True)
    pairs = [
        after
        for before, after in pairwise(found)
        if isinstance(before, DmaStart) and isinstance(after, DmaStart) and after.commands[0].to_l1
    ]
    assert len(pairs) == 4
    assert {push.code_cycles for push in pairs} == {4}
    assert bare_loop.code_cycles(timing, "next input") == 1


def test_jumps_cost_what_their_targets_and_return_addresses_make_them_wait() -> None:
    """Half a cycle for every 32 bit target, one for a return by a register just loaded."""
    found = {name: part.jumps_cycles for name, part in bare_loop.parts().items() if part.jumps_cycles}
    # wait_in comes back by `lw ra; addi sp; ret`, to a load or an addition of 32 bits.
    assert found.pop("inputs are there") == 1.5
    assert found.pop("woken") == 1.0
    assert set(found.values()) == {0.5}
    assert {"first input", "output", "wait for one"} <= set(found)


def test_a_kernel_that_only_returns_takes_what_the_measured_one_takes() -> None:
    """Column cycles_compute_per_tile: arguments, fork, return, join, all code in the private caches."""
    case = rows("rtl-tiled", "tiled")["none-8x8x8-T16-c8-db0-private-lat1"]
    program, timing = tiled.program(case)
    found = bare_loop.bare_loop(program.actions, timing, "single", returns=True)
    call = next(action for action in found if isinstance(action, Compute) and action.fork)
    fork_cycles = tiled.program_cycles(code_at_hand(timing), "none", [replace(call, id=0)])
    arguments_cycles = bare_loop.code_cycles(timing, "arguments")
    assert fork_cycles + arguments_cycles == int(case.cells["cycles_compute_per_tile"]) == 51


def test_the_first_pass_of_straight_code_is_exact() -> None:
    """Every line from L2, and the one behind the code, which the prefetcher asks for before the return."""
    cases = [case for case in rows("rtl-icache", "icache-rtl").values() if case.cells["measure"] == "cold"]
    assert len(cases) == 39
    for case in cases:
        assert icache.predict_cold(case, rtl=True).cycles == case.number("cold_iter0_max"), case.id


def test_hand_written_loops_on_one_core_are_as_near_as_asked() -> None:
    """Fork, join, the loop, and waits for code, whose two line counts were chosen with a look at these."""
    errors = [
        loop.predict(case).cycles / case.number("cycles") - 1
        for case in rows("rtl-loops", "loop").values()
        if case.number("cores") == 1
    ]
    assert len(errors) == 36
    assert max(map(abs, errors)) < 0.05
    assert abs(sum(errors) / len(errors)) < 0.005


def test_rows_of_divisions_are_within_a_cycle() -> None:
    names = ("fdiv_dep", "fdiv_indep", "fdiv_then_15nop", "fdiv_fadd_indep", "fsqrt", "fmadd_waw_li")
    found = [case for case in rows("rtl-micro", "micro").values() if case.text("name") in names]
    assert {case.text("name") for case in found} == set(names)
    for case in found:
        assert abs(micro.predict(case).cycles - case.number("cycles_minus_base")) <= 1, case.id


def test_a_part_nobody_wrote_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="unknown part 'outputs'") as caught:
        bare_loop.code("outputs")
    assert "output" in str(caught.value.cure)


def executed(body: tuple[Node, ...], op: Op | None = None) -> int:
    return sum(
        node.trips * executed(node.body, op) if isinstance(node, Loop) else op in (None, node.op)
        for node in body
    )


def test_hand_written_loops_execute_what_was_counted() -> None:
    """The counter has the same few instructions around every call, whatever the sizes."""
    lacking: dict[str, set[float]] = {}
    for case in rows("rtl-loops", "loop").values():
        cores = case.number("cores")
        (kernel,), _ = loop.kernels(case)
        works = [core for core in kernel.team.cores if core is not None]
        count = int(case.cells["instructions"]) - sum(executed(work.body) for work in works)
        lacking.setdefault(case.text("kernel"), set()).add(count / cores)
    assert len(lacking) == 11
    assert {few for found in lacking.values() for few in found} <= {4, 5}
    assert all(len(found) == 1 for found in lacking.values())


def test_a_loop_of_ones_own_is_called_by_its_file() -> None:
    """im2row says how long its image is; the rows follow it in L1."""
    team, size_bytes = loop_work("asm-xpulp", "im2row", {"N": 3, "M": 8, "K": 3, "elements": 972}, 8)
    assert size_bytes == 4 * (3 * 8 * 8 + 972)
    assert sum(executed(core.body, Op.LOAD) for core in team.cores if core is not None) > 972
    with pytest.raises(InputError, match="several indices"):
        loop_work("asm-xpulp", "asm_2x2", {"N": 8, "M": 8, "K": 8, "elements": 64}, 8)
    case = next(iter(rows("rtl-loops", "loop").values()))
    unreadable = replace(case, values={**case.values, "parameters": "64"})
    with pytest.raises(InputError, match="cannot read parameters '64'"):
        loop.predict(unreadable)


LISTING = """#@ about one element of A per turn, each core its share
#@ arrays {A: 1, C: 1}
#@ let block = ceildiv(N, cores)
#@ let start = core * block
#@ let stop = min(start + block, N)
scale:
    lp.setup x0,t3,.Llast
#@ for i in start..stop hw {
    p.lw t0,4(a1!)   #@ A(i)
    fmul.s t0,t0,t2
.Llast:
    p.sw t0,4(a3!)   #@ C(i)
#@ }
    ret
"""


def test_a_users_own_loop_is_priced_from_its_listing(tmp_path: Path) -> None:
    """Per element three instructions and the wait for the load; one set-up and a return."""
    file = tmp_path / "scale.S"
    file.write_text(LISTING)
    cost = kernel_cost(str(file), 64, 1, 1, settings=Settings(soc=RTL_MACHINE, cores=1))
    assert cost["instructions"] == 64 * 3 + 2
    assert cost["stalls"]["load_use"] == 64
    assert cost["macs"] == 0
    with pytest.raises(InputError, match="is not a matrix product"):
        kernel_cost(str(file), 64, 1, 1, trans_b=True)


def test_rows_without_an_id_are_named_by_their_build() -> None:
    names = [case.id for case in KINDS["micro"].read(MEASURED / "rtl-micro.csv.gz", (), [])]
    assert "cluster_pe0-fadd_dep-1-64-private-1-private-lat2" in names
    assert len(set(names)) > 400
    assert not any("private-lat" in case.id for case in read_cases_of_gvsoc())


def read_cases_of_gvsoc() -> tuple[Case, ...]:
    kind = KINDS["micro"]
    return read_cases(MEASURED / "micro.csv.gz", kind.columns, (), kind.named_by)


def test_the_event_unit_rows_that_have_a_model_are_within_a_cycle() -> None:
    """Forks, barriers and mutexes on 1 to 8 cores; what the model counts elsewhere says so."""
    refused = set()
    for case in KINDS["micro"].read(MEASURED / "rtl-micro.csv.gz", (), []):
        if case.text("group") != "sync":
            continue
        measure = KINDS["micro"].measure_of(case)
        try:
            cycles = measure.predict(case).cycles
        except InputError:
            refused.add(case.text("name"))
            continue
        assert abs(cycles - case.number("cycles_minus_base")) <= 1, case.id
    assert refused == set(micro_sync.RTL_NOT_MODELLED)
