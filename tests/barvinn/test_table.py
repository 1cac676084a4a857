# SPDX-License-Identifier: Apache-2.0
"""The job table: as published to the digit, as corrected, and what its registers make a unit visit."""

from __future__ import annotations

import csv
from fractions import Fraction

import numpy as np
import pytest

from barvinn.machine.address_generator import jumps_taken, offsets, stepped_offsets, walk
from barvinn.machine.job import Job, Loops
from barvinn.mapping.compiler import CompiledLayer, CompiledNetwork, compile_network
from barvinn.mapping.layers import LayerShape
from barvinn.mapping.published import TableRow, published_rows
from barvinn.mapping.table import COLUMNS, corrected_table, published_table, table_csv, table_text
from configs.values import replace
from shared.barvinn_layers import integer_layer, machine
from shared.paths import DATA
from tools.plain_resnet18 import shapes

GOLDEN = DATA / "barvinn-published.csv"
"""Table and total of the documentation of hossein1387/BARVINN 76c77d7, "Software Stack", at 2/2 bits."""

VALID_TAPS = (*[35344] * 5, 17672, *[33856] * 3, 16928, *[30976] * 3, 15488, *[25600] * 3)
"""Cycles of the 17 layers when every tap in the padding is left out, by hand: (3 W - 2)^2 / s^2 and so on."""


def golden() -> list[dict[str, str]]:
    with GOLDEN.open(encoding="utf-8") as stream:
        return list(csv.DictReader(line for line in stream if not line.startswith("#")))


GOLDEN_ROWS = golden()


@pytest.mark.parametrize("number", range(17))
def test_a_published_row_is_reproduced_to_the_digit(number: int) -> None:
    rows, _ = published_rows(shapes(), 2, 2)
    found = published_table(rows)[number]
    expected = GOLDEN_ROWS[number]
    cells = [" ".join(map(str, value)) if isinstance(value, list) else str(value) for value in found.values()]
    assert cells == list(expected.values())


def test_the_published_total_is_reproduced() -> None:
    assert len(GOLDEN_ROWS) == 17
    assert published_rows(shapes(), 2, 2)[1] == 532872


def test_the_second_published_row_is_reproduced() -> None:
    shape = LayerShape("conv1", "conv", 64, 32, 32, 64, (3, 3), (1, 1), (1, 1, 1, 1))
    rows, total = published_rows([shape], 8, 8)
    assert (rows[0].countdown, total) == (17280, 587520)


def test_the_published_matrix_multiply_takes_16_cycles() -> None:
    """128 x 128 at 2/2 bits, csrc/matmul of hossein1387/BARVINN."""
    rows, total = published_rows([LayerShape("fc", "matmul", 128, 1, 1, 128)], 2, 2)
    assert (rows[0].countdown, total) == (16, 16)
    assert rows[0].weight.lengths == (0, 3, 1, 0, 0)
    assert rows[0].input == Loops((-2, 2, 0, 0, 0), (0, 1, 0, 0, 0))


def test_a_published_countdown_need_not_be_whole() -> None:
    shape = LayerShape("odd", "conv", 64, 9, 8, 64, (3, 3), (4, 4))
    assert published_rows([shape], 2, 2)[0][0].countdown == Fraction(9 * 4 * 6, 4)
    odd = replace(shape, wi=9, dilations=(1, 1))
    row = published_table(published_rows([odd], 1, 1)[0])[0]
    assert row["countdown"] == 9 * 7 / 4


def compiled(units: int = 1) -> CompiledNetwork:
    layers = [
        integer_layer(shape, np.ones((shape.co, shape.ci, 3, 3), np.int64), bits=(2, 2, 2), msb_index=20)
        for shape in shapes()
    ]
    return compile_network(layers, np.zeros((3, 32, 32), np.int64), machine(), units)


@pytest.fixture(scope="module")
def network() -> CompiledNetwork:
    return compiled()


def test_corrected_totals_count_valid_taps_only(network: CompiledNetwork) -> None:
    rows = corrected_table(network.layers, published_rows(shapes(), 2, 2)[0], machine())
    assert tuple(row["total"] for row in rows) == VALID_TAPS
    assert sum(VALID_TAPS) == 498104
    # A matrix of 64 x 64 takes one cycle per pair of planes: the products say the same as the jobs.
    for row, shape in zip(rows, shapes(), strict=True):
        products = shape.macs // (shape.ci * shape.co) * shape.blocks_in * shape.blocks_out
        assert row["total"] == products * 4


def test_rows_say_what_differs_from_the_published_ones_and_why(network: CompiledNetwork) -> None:
    published = published_rows(shapes(), 2, 2)[0]
    rows = corrected_table(network.layers, published, machine())
    jump = [any("window jump" in reason for reason in row["differs"]) for row in rows]
    assert jump == [row.input_shape[0] != 2 for row in published]
    assert all(any(reason.startswith("padding") for reason in row["differs"]) for row in rows)
    weights = ["weights" in " ".join(row["differs"]) for row in rows]
    assert weights == [False] * 13 + [True] * 4
    assert [row["weight_words"] for row in rows[12:]] == [288, 576, 1152, 1152, 1152]
    assert "channels: 3 to 64" in " ".join(rows[0]["differs"])
    for row, old in zip(rows[:13], published, strict=False):
        assert row["ijump"][1:] == list(old.input.jumps[1:])
        assert (row["wlength"], row["wjump"]) == (list(old.weight.lengths), list(old.weight.jumps))
        assert row["countdown"] == old.countdown


@pytest.mark.parametrize("units", [1, 8])
def test_every_weight_jump_fits_its_register(units: int) -> None:
    for layer in compiled(units).layers:
        for _, job in layer.jobs:
            assert max(map(abs, job.weight.jumps)) < 512
            assert job.weight_base < 512


def visited(job: Job, layer: CompiledLayer) -> dict[int, np.ndarray]:
    """Per output word (of plane 0) the sorted pairs of input and weight words whose bits are multiplied."""
    steps = walk(job)
    pairs = (job.input_base + steps.input_offsets) * 1024 + job.weight_base + steps.weight_offsets
    sums = np.split(pairs, np.flatnonzero(steps.begins)[1:])
    words = job.output_base + stepped_offsets(job.output, len(sums) * job.output_bits)
    return {int(word): np.sort(found) for word, found in zip(words[:: job.output_bits], sums, strict=True)}


def plain_loop_nest(layer: CompiledLayer, blocks: range, first_word: int) -> dict[int, np.ndarray]:
    """The same for an input map at word 0, said as loops: outputs, taps inside it, blocks, planes."""
    shape, bits, planes = layer.layer.shape, layer.layer.input_bits, layer.layer.weight_bits
    C, F = shape.blocks_in, shape.blocks_out
    c, a, w = np.meshgrid(np.arange(C), np.arange(bits), np.arange(planes), indexing="ij")
    found = {}
    for y in range(shape.ho):
        for x in range(shape.wo):
            taps = [
                (v, u, ky, kx)
                for ky in range(3)
                for kx in range(3)
                if 0 <= (v := y * shape.strides[0] - 1 + ky) < shape.hi
                and 0 <= (u := x * shape.strides[1] - 1 + kx) < shape.wi
            ]
            for number, f in enumerate(blocks):
                parts = [
                    (((v * shape.wi + u) * C + c) * bits + a) * 1024
                    + (((number * 3 + ky) * 3 + kx) * C + c) * planes
                    + w
                    for v, u, ky, kx in taps
                ]
                word = first_word + ((y * shape.wo + x) * F + f) * layer.layer.output_bits
                found[word] = np.sort(np.concatenate([part.ravel() for part in parts]))
    return found


@pytest.mark.parametrize("number", range(17))
def test_the_generators_visit_what_a_plain_loop_nest_visits(number: int, network: CompiledNetwork) -> None:
    layer = network.layers[number]
    base = 0 if number % 2 == 0 else network.layers[number - 1].program.first_word
    first = 0
    for segment, blocks in zip(layer.program.units[0], layer.parts[0], strict=True):
        found: dict[int, np.ndarray] = {}
        for job in segment.jobs:
            own = visited(replace(job, input_base=job.input_base - base), layer)
            assert not own.keys() & found.keys()  # no output is computed twice
            found |= own
        expected = plain_loop_nest(layer, range(first, first + blocks), layer.program.first_word)
        assert found.keys() == expected.keys()
        assert all((found[word] == expected[word]).all() for word in expected)
        first += blocks
    assert first == layer.layer.shape.blocks_out


def loop_nest_of_row(row: TableRow, stride: int, bits: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Input and weight words in the order of the loops of one row of outputs: column, block, pair, tap."""
    C, _, W = row.input_shape
    F, kh, kw = row.filter_shape
    column, f, _, ky, kx, c = np.indices((columns, F, bits * bits, kh, kw, C))
    inputs = ((ky * W + column * stride + kx) * C + c) * bits
    weights = (((f * kh + ky) * kw + kx) * C + c) * bits
    return inputs.ravel(), weights.ravel()


@pytest.mark.parametrize("number", range(17))
def test_the_published_window_jump_is_right_for_two_channel_blocks_only(number: int) -> None:
    row = published_rows(shapes(), 2, 2)[0][number]
    shape = shapes()[number]
    stride = shape.strides[0]
    columns = (shape.wi - 3) // stride + 1
    inputs, weights = loop_nest_of_row(row, stride, 2, columns)

    def walked(loops: Loops) -> np.ndarray:
        return offsets(loops, jumps_taken(loops.lengths, len(inputs)))

    assert (walked(row.weight) == weights).all()
    assert (walked(row.input) == inputs).all() == (row.input_shape[0] == 2)
    reach = 2 * (row.input_shape[0] * (2 * shape.wi + 3) - 1)
    right = 2 * row.input_shape[0] * stride - reach
    corrected = replace(row.input, jumps=(right, *row.input.jumps[1:]))
    assert (walked(corrected) == inputs).all()
    if row.input_shape[0] == 1 and stride == 1:
        assert row.input.jumps[0] == row.input.jumps[1]  # the window never slides


def test_tables_as_text_and_csv(network: CompiledNetwork) -> None:
    published = published_rows(shapes(), 2, 2)[0]
    text = table_text(published_table(published)).splitlines()
    assert text[0].split() == list(COLUMNS)
    assert text[1].split("  ")[0] == "conv1.0"
    assert len({len(line) for line in text}) == 1
    corrected = corrected_table(network.layers, published, machine())
    text = table_text(corrected).splitlines()
    assert text[0].split() == [*COLUMNS, "differs"]
    marked = [line.split("]")[-1].split()[1:] for line in text[5:8]]
    assert marked == [["35344", "a", "b"], ["17672", "a", "b"], ["33856", "b"]]
    assert text[18] == "differs from published:"
    assert text[19].startswith("  a  window jump: ")
    rows = list(csv.DictReader(table_csv(corrected).splitlines()))
    assert rows[0]["ijump"] == "-130 -132 60 2 0"
    assert rows[13]["differs"].count("; ") == 2
