# SPDX-License-Identifier: Apache-2.0
"""BARVINN's units: address generators as in the RTL, launch and drain, hidden registers, refused misuse."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from barvinn.machine.address_generator import jumps_taken, offsets, plane_pairs
from barvinn.machine.array import BarvinnArray
from barvinn.machine.behaviour import DOCUMENTED
from barvinn.machine.job import CSR_ADDRESSES, CsrWrite, Job, Loops, csr_writes, write_instructions
from barvinn.machine.program import ArrayProgram, LayerProgram, Segment
from barvinn.machine.timing import BarvinnTiming
from barvinn.mapping.compiler import compile_network
from barvinn.mapping.layers import IntegerLayer, Integers, LayerShape
from configs.errors import ConfigError, PulptrainError, RaceError
from configs.library import list_names
from configs.parameters import load_parameters
from configs.values import replace
from shared.barvinn_layers import POLLING, drawn, executed, integer_layer, machine
from tools.barvinn_jobs import load_barvinn
from traces.events import COMPUTE, TRANSFER
from traces.parts import check_overlap
from traces.recorder import Recorder


def counted(loops: Loops, cycles: int) -> Iterator[tuple[int, int]]:
    """(address, jump taken) cycle by cycle, with the counters of agu.sv."""
    left = list(loops.lengths)
    address = 0
    for _ in range(cycles):
        level = 4
        while level > 0 and left[level] == 0:
            left[level] = loops.lengths[level]
            level -= 1
        if level > 0:
            left[level] -= 1
        yield address, level
        address += loops.jumps[level]


@pytest.mark.parametrize("seed", range(12))
def test_walks_are_what_the_counters_of_the_rtl_do(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lengths = (0, *(int(each) for each in rng.integers(0, 4, 4)))
    jumps = tuple(int(each) for each in rng.integers(-50, 50, 5))
    loops = Loops(jumps, lengths)  # type: ignore[arg-type]
    cycles = int(rng.integers(1, 400))
    taken = jumps_taken(loops.lengths, cycles)
    expected = list(counted(loops, cycles))
    assert taken.tolist() == [level for _, level in expected]
    assert offsets(loops, taken).tolist() == [address for address, _ in expected]


def zigzag(weight_bits: int, input_bits: int) -> Iterator[tuple[int, int, bool]]:
    """(weight plane, input plane, shift before it) step by step, with the registers of zigzagu.v."""
    w = d = 0
    shift = False
    for _ in range(weight_bits * input_bits):
        yield w, d, shift
        shift = w == 0 or d == input_bits - 1
        d, w = d + 1, w - 1
        if shift:
            w, d = w + d + 1, 0
            if w >= weight_bits:
                d = w - weight_bits + 1
                w -= d


@pytest.mark.parametrize("bits", [(1, 1), (2, 2), (1, 8), (8, 1), (3, 5), (5, 3), (8, 8), (16, 2)])
def test_pairs_of_planes_come_in_the_order_of_the_rtl(bits: tuple[int, int]) -> None:
    assert list(plane_pairs(*bits)) == list(zigzag(*bits))
    diagonals = [w + d for w, d, _ in plane_pairs(*bits)]
    assert diagonals == sorted(diagonals)
    assert sum(shift for _, _, shift in plane_pairs(*bits)) == sum(bits) - 2


def one_row(columns: int = 6, blocks: int = 1, bits: int = 2) -> tuple[IntegerLayer, Integers]:
    """A layer of one row without padding: one job."""
    shape = LayerShape("row", "conv", 64, 3, columns + 2, 64 * blocks, (3, 3))
    rng = np.random.default_rng(0)
    weights = drawn(rng, bits, is_signed=True, shape=(shape.co, 64, 3, 3))
    layer = integer_layer(shape, weights, bits=(bits, bits, bits), msb_index=12)
    return layer, drawn(rng, bits, is_signed=False, shape=(64, 3, columns + 2))


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_cycles_of_a_job_are_registers_command_launch_countdown_and_drain(bits: int) -> None:
    layer, x = one_row(bits=bits)
    _, result, network = executed([layer], x)
    ((_, job),) = network.layers[0].jobs
    assert job.countdown == 9 * bits * bits * 6
    registers = sum(write_instructions(write.signed) for write in csr_writes(job, 0, DOCUMENTED)) - 1
    launch, drain = 1, 2 + 3 + 1 + 3 + 1 + bits
    assert result.cycles == 8 * registers + 8 + launch + job.countdown + drain
    assert result.tallies[0].run_cycles == job.countdown


def rows_of(columns: int, rows: int) -> tuple[IntegerLayer, Integers]:
    """A layer of several rows without padding: a job per row, equal but for two base addresses."""
    shape = LayerShape("rows", "conv", 64, rows + 2, columns + 2, 64, (3, 3))
    weights = drawn(np.random.default_rng(1), 2, is_signed=True, shape=(64, 64, 3, 3))
    layer = integer_layer(shape, weights, bits=(2, 2, 2), msb_index=12)
    return layer, np.zeros((64, rows + 2, columns + 2), np.int64)


def test_registers_of_the_next_job_hide_behind_the_running_one() -> None:
    """Per further row: start, products, done, the rest of a poll, the command; no cycle for registers."""
    rows = 5
    layer, x = rows_of(columns=30, rows=rows)
    recorder = Recorder()
    _, result, network = executed([layer], x, tracer=recorder)
    jobs = [job for _, job in network.layers[0].jobs]
    assert len(jobs) == rows
    assert {job.countdown for job in jobs} == {1080}
    hart = [event for event in recorder.slices if event.track == "barvinn.hart0"]
    runs = [event for event in recorder.slices if event.track == "barvinn.mvu0" and event.kind == COMPUTE]
    poll = 32
    for number in range(1, rows):
        registers, before, run = hart[number], runs[number - 1], runs[number]
        # They are written while the job before runs ...
        assert before.start_cycles - 1 == registers.start_cycles
        assert registers.end_cycles < before.end_cycles
        # ... so that only interrupt, poll, command and start come between two jobs.
        interrupt = before.end_cycles + 1
        waited = -(interrupt - registers.end_cycles) % poll
        assert run.start_cycles == interrupt + waited + 8 + 1
    first = 8 * hart[0].instructions + 8 + 1
    between = sum(run.start_cycles - before.end_cycles for before, run in pairwise(runs))
    assert result.cycles == first + rows * 1080 + between + 10 + 2
    assert between < (rows - 1) * (1 + poll + 8 + 1)


def test_registers_longer_than_the_running_job_show() -> None:
    layer, x = rows_of(columns=1, rows=1)
    wide = replace(layer, shape=replace(layer.shape, kernel=(1, 1), hi=2, wi=3))
    wide = replace(wide, weights=layer.weights[:, :, :1, :1])
    recorder = Recorder()
    executed([wide], x[:, :2, :3], tracer=recorder)
    hart = [event for event in recorder.slices if event.track == "barvinn.hart0"]
    runs = [event for event in recorder.slices if event.track == "barvinn.mvu0" and event.kind == COMPUTE]
    assert runs[0].duration_cycles == 12
    assert hart[1].end_cycles > runs[0].end_cycles
    assert runs[1].start_cycles == hart[1].end_cycles + 8 + 1


def test_every_cycle_of_a_unit_is_accounted_for() -> None:
    layer, x = one_row(blocks=3)
    shape = LayerShape("next", "conv", 192, 1, 6, 64)
    more = integer_layer(
        shape,
        drawn(np.random.default_rng(2), 2, is_signed=True, shape=(64, 192, 1, 1)),
        bits=(2, 2, 2),
        msb_index=8,
    )
    for units in (1, 2, 5):
        recorder = Recorder()
        _, result, _ = executed([layer, more], x, units=units, tracer=recorder)
        check_overlap(recorder.slices)
        for unit in range(units):
            own = [event for event in recorder.slices if event.track == f"barvinn.mvu{unit}"]
            assert sum(event.duration_cycles for event in own) == result.cycles
            out = [event for event in recorder.slices if event.track == f"barvinn.mvu{unit}.output"]
            assert sum(event.bytes for event in out) == 8 * result.tallies[unit].output_words
            assert all(event.kind == TRANSFER for event in out)


def test_the_next_layer_waits_for_the_pipeline() -> None:
    layer, x = one_row(columns=1)
    shape = LayerShape("next", "conv", 64, 1, 1, 64)
    more = integer_layer(
        shape,
        drawn(np.random.default_rng(2), 2, is_signed=True, shape=(64, 64, 1, 1)),
        bits=(2, 2, 2),
        msb_index=6,
    )
    network = compile_network([layer, more], x, machine())
    assert [job.after_drain for each in network.layers for _, job in each.jobs] == [False, True]
    # Without waiting it would read words that are not yet written, and the model notices.
    second = network.program.layers[1]
    hasty = replace(second.units[0][0], jobs=(replace(second.units[0][0].jobs[0], after_drain=False),))
    slow = replace(machine(), drain=replace(machine().drain, scale_cycles=5000))
    program = replace(network.program, layers=(network.program.layers[0], replace(second, units=((hasty,),))))
    BarvinnArray(slow).run(network.program)
    with pytest.raises(RaceError, match="is read before anything was written"):
        BarvinnArray(slow).run(program)


def single(job: Job, layer: IntegerLayer, x: Integers, timing: BarvinnTiming | None = None) -> ArrayProgram:
    """A program of one job in place of the layer's own."""
    network = compile_network([layer], x, timing or machine())
    layer_program = network.program.layers[0]
    segment = replace(layer_program.units[0][0], jobs=(job,))
    return replace(network.program, layers=(replace(layer_program, units=((segment,),)),))


def test_misuse_is_refused() -> None:
    layer, x = one_row()
    job = compile_network([layer], x, machine()).layers[0].jobs[0][1]
    for change, text in (
        ({"input_base": 3000}, "is read before anything was written"),
        ({"weight_base": 1}, "is read before anything was written"),
        ({"output_bits": 40, "msb_index": 20}, "results are overwritten"),
        ({"msb_index": 27}, "MSB index of job .* is 27, but the hardware register holds at most 26"),
        ({"countdown": 1 << 29}, "countdown"),
    ):
        with pytest.raises(PulptrainError, match=text):
            BarvinnArray(machine()).run(single(replace(job, **change), layer, x))  # type: ignore[arg-type]


def test_a_command_to_a_busy_unit_is_refused() -> None:
    layer, x = one_row()
    job = compile_network([layer], x, machine()).layers[0].jobs[0][1]
    array = BarvinnArray(machine())
    array.run(single(job, layer, x))
    unit = array.units[0]
    unit.memories.weights.write(slice(0, 18), np.zeros((18, 64), np.uint64))
    unit.start_job(job)
    with pytest.raises(RaceError, match="while another one runs"):
        unit.start_job(job)


def test_sums_beyond_their_width_are_cut_and_reported() -> None:
    """An accumulator of 10 bits holds 511: sums of 64 x 9 products of up to 3 x 1 do not fit."""
    layer, x = one_row()
    timing = replace(machine(), width=replace(machine().width, accumulator_bits=10))
    heavy = replace(layer, weights=np.ones_like(layer.weights), msb_index=10)
    wanted, good, _ = executed([heavy], np.full_like(x, 3))
    found, cut, _ = executed([heavy], np.full_like(x, 3), timing=timing)
    assert good.tallies[0].accumulator_overflows == 0
    assert cut.tallies[0].accumulator_overflows == 6 * 64
    assert cut.tallies[0].overflowing_layers == ["row"]
    assert (found != wanted).any()
    # 64 * 9 * 3 = 1728 is 1728 - 2048 = -320 in 11 bits, in 10 bits -320 too: what a register would hold.
    unsigned = replace(heavy, relu=False, output_signed=True, msb_index=9, output_bits=10)
    assert (executed([unsigned], np.full_like(x, 3), timing=timing)[0] == -320).all()
    _, wraps, _ = executed([replace(unsigned, msb_index=7, output_bits=8)], np.full_like(x, 3))
    assert wraps.tallies[0].quantiser_wraps == 6 * 64


def test_the_host_link_takes_time_if_it_has_a_rate() -> None:
    layer, x = one_row()
    free = executed([layer], x)[1].cycles
    timing = load_barvinn("barvinn", {**POLLING, "host.bytes_per_cycle": 64}, DOCUMENTED)
    # 18 words of 512 B; scalers and biases of one entry, 64 numbers of 8 B as the model holds them.
    assert executed([layer], x, timing=timing)[1].cycles > free + 18 * 512 // 64


def test_registers_have_their_published_numbers() -> None:
    assert (CSR_ADDRESSES["mvuwbaseptr"], CSR_ADDRESSES["mvuusehpadder"]) == (0xF20, 0xF69)
    assert len(CSR_ADDRESSES) == 74
    for name, address in (
        *(("mvuijump_0", 0xF2A), ("mvuwlength_1", 0xF3F), ("mvuilength_1", 0xF43), ("mvuprecision", 0xF53)),
        *(("mvucommand", 0xF55), ("mvuquant", 0xF56), ("mvuconfig1", 0xF58), ("mvuomvusel", 0xF59)),
    ):
        assert CSR_ADDRESSES[name] == address


def test_a_job_is_written_as_its_registers_take_it() -> None:
    layer, x = one_row()
    job = compile_network([layer], x, machine()).layers[0].jobs[0][1]
    writes = csr_writes(job, 3, DOCUMENTED)
    values = {write.name: write.value for write in writes}
    assert writes[-1] == CsrWrite("mvucommand", 0xF55, 9 * 4 * 6 | 1 << 29 | 1 << 30)
    assert values["mvuprecision"] == 2 | 2 << 6 | 2 << 12 | 1 << 24
    assert values["mvuijump_1"] == job.input.jumps[1] & 0xFFFFFFFF > 0x7000
    assert values["mvuomvusel"] == 8
    assert values["mvuconfig1"] & 0xFFFF == 0x0703
    assert {write.signed for write in writes if write.name == "mvuijump_1"} == {job.input.jumps[1]}
    assert [write_instructions(value) for value in (0, 31, 32, -1, 2047, 2048, 4096, 5000)] == [
        *(1, 1, 2, 2, 2, 3, 2, 3)
    ]


def test_the_machine_says_where_its_values_come_from() -> None:
    tree = load_parameters("barvinn", machine="barvinn")
    assert all(len(each.source) > 15 and len(each.description) > 10 for each in tree.values())
    assert [each.path for each in tree.assumed] == ["host.bytes_per_cycle"]
    timing = machine()
    # 8 units of 4096 one-bit products at this clock are the published 8.2 TMAC/s.
    assert timing.units * 64 * 64 * timing.clock.hz == pytest.approx(8.2e12, rel=0.01)
    assert timing.memory.weight_words * 512 == timing.memory.activation_words * 8 == 256 * 1024


def test_machines_of_other_kinds_are_not_mixed_up() -> None:
    assert "barvinn" not in list_names("soc")
    assert list_names("soc", "barvinn") == ("barvinn",)
    with pytest.raises(ConfigError, match="of kind 'barvinn', but the command needs 'pulp'"):
        load_parameters("barvinn")
    with pytest.raises(ConfigError, match="of kind 'pulp', but the command needs 'barvinn'"):
        load_barvinn("pulp-open")


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        ("units", 9, "between 1 and 8"),
        ("memory.weight_words", 1024, "is 1024 words, but 9-bit addresses reach only 512"),
        ("launch.start_cycles", -1, "between 0 and"),
        ("width.accumulator_bits", 0, "between 1 and"),
        ("mvu.count", 8, "unknown parameter"),
    ],
)
def test_parameters_out_of_range_are_refused(path: str, value: int, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        load_barvinn("barvinn", {path: value})


def test_an_empty_segment_list_is_no_work() -> None:
    """A unit that has nothing to do waits for the others."""
    layer, x = one_row()
    _, result, network = executed([layer], x, units=8)
    assert [len(jobs) for jobs in network.program.layers[0].units] == [1, 0, 0, 0, 0, 0, 0, 0]
    assert [tally.jobs for tally in result.tallies] == [1, 0, 0, 0, 0, 0, 0, 0]
    assert isinstance(network.program.layers[0], LayerProgram)
    assert isinstance(network.program.layers[0].units[0][0], Segment)


def test_a_file_of_ones_own_changes_some_values(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "name: mine\ndescription: four units at half the clock\nbase: barvinn\nparameters:\n"
        "  units: {value: 4, source: a smaller device}\n"
        "  clock:\n    hz: {value: 125 MHz, source: the same}\n"
    )
    timing = load_barvinn(file)
    assert (timing.units, timing.clock.hz, timing.memory) == (4, 125_000_000, machine().memory)
    for kind in ("pulp", "unknown"):
        file.write_text(file.read_text().replace("base:", f"machine: {kind}\nbase:", 1))
        with pytest.raises(ConfigError, match=f"'machine' is '{kind}', but that of the base is 'barvinn'"):
            load_barvinn(file)
        file.write_text(file.read_text().replace(f"machine: {kind}\n", ""))
