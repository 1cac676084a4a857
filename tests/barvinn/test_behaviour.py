# SPDX-License-Identifier: Apache-2.0
"""Units as their RTL is and as documented: what each makes of the same jobs, measured rows, the crossbar."""

from __future__ import annotations

from dataclasses import fields
from itertools import pairwise

import numpy as np
import pytest

from barvinn.machine.array import BarvinnArray
from barvinn.machine.behaviour import BEHAVIOURS, DOCUMENTED, RTL, Behaviour, behaviour_of
from barvinn.machine.job import csr_writes, job_of
from barvinn.machine.timing import BarvinnTiming
from barvinn.mapping.compiler import compile_network
from barvinn.mapping.images import map_words
from barvinn.mapping.layers import IntegerLayer, Integers, LayerShape, pool_layer
from configs.errors import DoesNotFitError, InputError, RaceError, UnsupportedLayerError
from configs.values import replace
from shared.barvinn_layers import drawn, drawn_layer, executed, integer_layer, machine, published
from shared.paths import MEASURED
from tools.barvinn_jobs import Case, load_barvinn, outputs, predict, read_cases
from traces.events import COMPUTE
from traces.recorder import Recorder

CASES = read_cases(MEASURED / "barvinn-jobs.csv.gz")

BY_NUMBERS = {"relu.cfg", "scale-bias-128.cfg", "conv-pad1.cfg", "conv-2-2-2.cfg, word 0 = 90"}
"""Cases in which words that got other operands came out equal with the numbers of the measurement."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_measured_jobs_take_the_predicted_cycles_and_have_the_predicted_words(case: Case) -> None:
    found = predict(case, published())
    for column in (
        *("run_cycles", "command_to_interrupt", "last_product_to_last_plane_written", "words_written"),
    ):
        assert getattr(found, column) == tuple(int(row[column]) for row in case.rows), column
    first = case.rows[0]
    assert (found.activation_reads, found.words) == (int(first["activation_reads"]), int(first["words"]))
    measured = int(first["words_wrong"])
    assert found.words_wrong == measured or (case.label in BY_NUMBERS and 0 < measured < found.words_wrong)


def test_the_measured_file_has_all_rows_and_cases_that_are_not_known_are_refused() -> None:
    assert (len(CASES), sum(len(case.rows) for case in CASES)) == (21, 97)
    with pytest.raises(InputError, match="unknown case"):
        predict(replace(CASES[0], name="conv-2-2-2.magic"), published())


@pytest.mark.parametrize("behaviour", BEHAVIOURS.values(), ids=list(BEHAVIOURS))
def test_a_unit_reads_back_the_job_that_was_written(behaviour: Behaviour) -> None:
    timing = replace(machine(), behaviour=behaviour)
    for seed in range(6):
        layer, x = drawn_layer(seed)
        for unit, job in compile_network([layer], x, timing, 2).layers[0].jobs:
            registers = {write.name: write.value for write in csr_writes(job, unit, behaviour)}
            found = job_of(registers, job, behaviour)
            # Jumps of outputs have registers but no effect, and outputs of a job lie in a row anyway.
            output = job.output if behaviour.output_jumps else found.output
            assert found == replace(job, output=output, destinations=1 << unit)


def test_jobs_for_the_rtl_are_right_on_both_units() -> None:
    for seed in range(0, 40, 4):
        layer, x = drawn_layer(seed)
        expected = outputs([layer], x)[0]
        for unit in (published(), machine()):
            found, _, network = executed([layer], x, timing=published(), unit=unit, units=1 + seed % 4)
            assert (found == expected).all(), (seed, unit.behaviour.name)
        assert not any(job.compare for _, job in network.layers[0].jobs)


def convolution(
    *,
    co: int = 64,
    pad: int = 1,
    relu: bool = False,
    scaled: bool = False,
    bits: int = 2,
    columns: int = 5,
) -> tuple[IntegerLayer, Integers]:
    rng = np.random.default_rng(3)
    shape = LayerShape("conv", "conv", 64, 5, columns, co, (3, 3), (1, 1), (pad, pad, pad, pad))
    layer = integer_layer(
        shape,
        drawn(rng, bits, is_signed=True, shape=(co, 64, 3, 3)),
        bits=(bits, bits, bits),
        relu=relu,
        msb_index=10,
        scaler=rng.integers(1, 8, co) if scaled else None,
        bias=rng.integers(-99, 99, co) if scaled else None,
    )
    return layer, drawn(rng, bits, is_signed=False, shape=(64, 5, columns))


@pytest.mark.parametrize(
    ("layer", "rule"),
    [
        (convolution(), {"output_jumps": True}),
        (convolution(relu=True, pad=0), {"compare_bit": 16}),
        (convolution(co=128, pad=0, scaled=True), {"entry_levels": (1, 2, 3, 4)}),
        (convolution(pad=0, scaled=True), {"extra_cycles": 0}),
    ],
    ids=["output jumps", "comparator", "entry levels", "extra cycles"],
)
def test_each_rule_that_jobs_are_not_made_for_makes_wrong_words(
    layer: tuple[IntegerLayer, Integers], rule: dict[str, object]
) -> None:
    made = replace(published(), behaviour=replace(RTL, **rule))  # type: ignore[arg-type]
    network = compile_network([layer[0]], layer[1], made)
    array = BarvinnArray(published())
    for memory in array.units[0].memories.all():
        memory.is_strict = False
    array.run(network.program)
    expected = outputs([layer[0]], layer[1])[0]
    right = executed([layer[0]], layer[1], timing=published())[0]
    assert (right == expected).all()
    found = array.output(network.program.layers[0])
    assert (found != map_words(expected, layer[0].output_bits)).any()


def test_registers_as_documented_are_read_otherwise_by_the_rtl() -> None:
    layer, x = convolution(pad=0)
    for as_made in (True, False):
        found = executed([layer], x, unit=published(), as_made=as_made)[0]
        assert (found != outputs([layer], x)[0]).any() == as_made  # nothing else is in the way here


def two_layers() -> tuple[list[IntegerLayer], Integers]:
    """Long rows, so that all registers of the second layer could be written under the last."""
    first, x = convolution(pad=0, columns=60)
    shape = LayerShape("next", "conv", 64, 3, 58, 64)
    weights = drawn(np.random.default_rng(5), 3, is_signed=True, shape=(64, 64, 1, 1))
    return [first, integer_layer(shape, weights, bits=(2, 3, 4), signed=(True, True), msb_index=9)], x


def test_a_register_without_shadow_is_not_written_under_a_job() -> None:
    layers, x = two_layers()
    assert (executed(layers, x, timing=published())[0] == outputs(layers, x)[-1]).all()
    hasty = replace(published(), behaviour=replace(RTL, live={}))
    with pytest.raises(RaceError, match=r"mvuprecision is written in cycle .* the running job"):
        executed(layers, x, timing=hasty, unit=published(), as_made=True)


def test_word_0_stays_free_and_is_counted() -> None:
    layers, x = two_layers()
    network = compile_network(layers, x, published())
    assert network.program.first_word == 1
    assert min(layer.program.first_word for layer in network.layers) == 1
    jobs = [job for layer in network.layers for _, job in layer.jobs]
    assert min(min(job.input_base, job.output_base) for job in jobs) >= 1
    words = 5 * 60 * 2 + 3 * 58 * 2
    for room, fits in ((words + 1, True), (words, False)):
        small = replace(published(), memory=replace(published().memory, activation_words=room))
        if fits:
            assert (executed(layers[:1], x, timing=small)[0] == outputs(layers[:1], x)[0]).all()
        else:
            with pytest.raises(DoesNotFitError, match="the activation RAM of a matrix-vector unit"):
                executed(layers[:1], x, timing=small)


@pytest.mark.parametrize("units", [1, 3])
def test_the_host_computes_relu_and_pool_where_there_is_no_comparator(units: int) -> None:
    layer, x = convolution(relu=True, scaled=True)
    shape = LayerShape("pool", "pool", 64, 5, 5, 64, (2, 2), (2, 2))
    shape_2 = LayerShape("last", "conv", 64, 2, 2, 64)
    weights = drawn(np.random.default_rng(6), 2, is_signed=True, shape=(64, 64, 1, 1))
    last = integer_layer(shape_2, weights, bits=(2, 2, 4), relu=False, msb_index=8)
    layers = [layer, pool_layer(shape, 2, is_signed=False), last]
    found, result, network = executed(layers, x, units=units, timing=published())
    assert (found == outputs(layers, x)[-1]).all()
    steps = [each.program.host for each in network.layers]
    assert [step and (step.op, step.values) for step in steps] == [
        *(("Relu", 64 * 25), ("MaxPool", 64 * 4), None),
    ]
    assert list(result.layer_ends_cycles) == sorted(result.layer_ends_cycles)
    assert result.cycles == result.layer_ends_cycles[-1]


def test_sums_shorter_than_the_extra_cycles() -> None:
    """One bit each: a corner has 4 products, an edge 6; the next sum must not end in the 6 extra cycles."""
    layer, x = convolution(scaled=True, bits=1)
    found, _, network = executed([layer], x, timing=published())
    assert (found == outputs([layer], x)[0]).all()
    assert {4, 6} <= {job.product_cycles for _, job in network.layers[0].jobs}
    shape = LayerShape("point", "conv", 64, 2, 2, 64)
    point = integer_layer(
        shape, np.ones((64, 64, 1, 1), np.int64), bits=(1, 1, 1), signed=(False, False), bias=np.arange(64)
    )
    ones = np.ones((64, 2, 2), np.int64)
    with pytest.raises(UnsupportedLayerError, match="computes a result every 1 cycles") as caught:
        executed([point], ones, timing=published())
    assert "--behaviour documented" in str(caught.value.cure)
    assert (executed([point], ones)[0] == outputs([point], ones)[0]).all()


def test_from_interrupt_to_command_the_published_program_takes_304_cycles() -> None:
    layer, x = convolution(pad=0)
    recorder = Recorder()
    timing = load_barvinn()
    executed([layer], x, timing=timing, tracer=recorder)
    runs = [event for event in recorder.slices if event.kind == COMPUTE and event.track == "barvinn.mvu0"]
    gaps = {
        after.start_cycles - timing.launch.start_cycles - before.end_cycles - timing.launch.done_cycles
        for before, after in pairwise(runs)
    }
    assert gaps == {304}


def test_the_input_takes_the_time_of_the_host_link() -> None:
    layer, x = convolution(pad=0)
    cycles = {}
    for rate in (0, 8):
        timing = load_barvinn("barvinn", {"hart.handler_instructions": 0, "host.bytes_per_cycle": rate})
        _, result, _ = executed([layer], x, timing=timing)
        cycles[rate] = result.cycles
        moved = 25 * 2 * 8 + 18 * 512 + 128 + 256
        assert result.host_bytes == moved
    assert cycles[8] - cycles[0] == moved // 8


def crossed(timing: BarvinnTiming, masks: dict[int, int]) -> BarvinnArray:
    """Every unit computes the same job; unit i sends its results to the units of masks[i]."""
    layer, x = convolution(pad=0)
    network = compile_network([layer], x, timing)
    program = network.program.layers[0]
    segment = program.units[0][0]
    segments = tuple(
        (replace(segment, jobs=(replace(segment.jobs[0], destinations=mask),)),) for mask in masks.values()
    )
    array = BarvinnArray(timing)
    array.run(
        replace(
            network.program,
            layers=(replace(program, units=segments, owned=(np.zeros(0, np.int64),) * len(masks)),),
        )
    )
    return array


def written(array: BarvinnArray, unit: int) -> bool:
    memory = array.units[unit].memories.activations
    return any(int(memory.held(word)) for word in range(len(memory) - 18, len(memory)))


def test_the_crossbar_is_off_for_a_unit_that_sends_to_itself() -> None:
    for timing, expected in ((published(), [True, False]), (machine(), [True, True])):
        array = crossed(timing, {0: 0b11})
        assert [written(array, unit) for unit in (0, 1)] == expected
    array = crossed(published(), {0: 0b10})
    assert [written(array, unit) for unit in (0, 1)] == [False, True]
    alone = crossed(published(), {0: 0b01})
    assert array.units[0].drained_cycles == alone.units[0].drained_cycles + 1  # one register stage more


def test_two_writes_to_a_bank_in_one_cycle_are_refused() -> None:
    # Unit 0 to unit 1 comes a cycle later than unit 1's own: planes of two cycles each meet.
    with pytest.raises(RaceError, match="another word are written to one bank"):
        crossed(published(), {0: 0b10, 1: 0b10})


def test_rules_have_sources_and_names_are_checked() -> None:
    rules = [field.metadata for field in fields(Behaviour) if field.metadata]
    assert len(rules) == 10
    assert all(len(rule["about"]) > 20 and len(rule["source"]) > 10 for rule in rules)
    assert behaviour_of("rtl") is RTL
    assert behaviour_of("documented") is DOCUMENTED
    with pytest.raises(InputError, match="unknown behaviour 'rlt'") as caught:
        behaviour_of("rlt")
    assert "'rtl'" in str(caught.value.cure)
