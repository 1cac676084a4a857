# SPDX-License-Identifier: Apache-2.0
"""What units compute bit by bit is what a plain integer reference computes."""

from __future__ import annotations

import numpy as np
import pytest

from barvinn.mapping import jobs
from barvinn.mapping.compiler import deal
from barvinn.mapping.images import map_values, map_words
from barvinn.mapping.layers import IntegerLayer, LayerShape, pool_layer
from barvinn.mapping.network import Precision, RealLayer, integer_network, integer_weights
from configs.errors import DoesNotFitError, InputError, ShapeError
from configs.values import replace
from shared.barvinn_layers import drawn, drawn_layer, executed, integer_layer, machine
from tools.barvinn_jobs import outputs
from tools.plain_resnet18 import layers as plain_resnet18

SEEDS = 200
TOGETHER = 20


@pytest.mark.parametrize("first", range(0, SEEDS, TOGETHER))
def test_drawn_convolutions_and_matrix_multiplies_are_equal_bit_for_bit(first: int) -> None:
    for seed in range(first, first + TOGETHER):
        layer, x = drawn_layer(seed)
        found, _, _ = executed([layer], x, units=8 if seed % 3 == 0 else 1)
        assert (found == outputs([layer], x)[0]).all(), (seed, layer.shape)


def test_the_drawn_layers_are_of_every_kind() -> None:
    """Precisions 1 to 8, both signs, channels off 64, strides, pads, dilations, several blocks."""
    layers = [drawn_layer(seed)[0] for seed in range(SEEDS)]
    for pick in (lambda it: it.input_bits, lambda it: it.weight_bits, lambda it: it.output_bits):
        assert {pick(layer) for layer in layers} == set(range(1, 9))
    assert {(layer.input_signed, layer.weight_signed) for layer in layers} == {
        (first, second) for first in (False, True) for second in (False, True)
    }
    assert {layer.shape.kind for layer in layers} == {"conv", "matmul"}
    assert {layer.shape.strides for layer in layers} == {(1, 1), (1, 2), (2, 1), (2, 2)}
    assert {layer.shape.blocks_in for layer in layers} == {1, 2, 3}
    assert {layer.shape.blocks_out for layer in layers} == {1, 2, 3, 4}
    assert any(layer.shape.dilations == (2, 2) for layer in layers)
    assert sum(any(layer.shape.pads) for layer in layers) > 50


def test_a_wrong_jump_makes_wrong_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference would notice: the published jump in place of the corrected one."""
    right = jobs._kernel_job

    def published(*given: object) -> object:
        job = right(*given)  # type: ignore[arg-type]
        jumps = (job.input.jumps[1], *job.input.jumps[1:])
        return replace(job, input=replace(job.input, jumps=jumps))

    monkeypatch.setattr(jobs, "_kernel_job", published)
    layer, x = drawn_layer(1)
    assert layer.shape.kind == "conv"
    assert (executed([layer], x)[0] != outputs([layer], x)[0]).any()


def test_a_network_of_17_layers_is_equal_bit_for_bit() -> None:
    layers = plain_resnet18()
    x = np.random.default_rng(0).integers(0, 4, (3, 32, 32))
    network = integer_network(layers, Precision(2, 2, 2), x, machine().width)
    assert (network.outputs[-1] == outputs(network.layers, x)[-1]).all()
    for units in (1, 8):
        found, result, _ = executed(network.layers, x, units=units)
        assert (found == network.outputs[-1]).all()
        assert not any(tally.accumulator_overflows or tally.quantiser_wraps for tally in result.tallies)
    assert all(len(np.unique(each)) >= 3 for each in network.outputs)  # not a network of zeros


def test_pools_are_equal_and_padding_never_wins() -> None:
    rng = np.random.default_rng(3)
    for kernel, strides, pads, channels, bits in (
        ((2, 2), (2, 2), (0, 0, 0, 0), 3, 2),
        ((3, 3), (2, 2), (1, 1, 1, 1), 70, 4),
        ((3, 2), (1, 3), (1, 0, 1, 1), 64, 8),
        ((1, 1), (2, 2), (0, 0, 0, 0), 5, 1),
    ):
        shape = LayerShape("pool", "pool", channels, 7, 8, channels, kernel, strides, pads)
        x = drawn(rng, bits, is_signed=False, shape=(channels, 7, 8))
        pool = pool_layer(shape, bits, is_signed=False)
        for units in (1, 3):
            found, _, _ = executed([pool], x, units=units)
            assert (found == outputs([pool], x)[0]).all()
    with pytest.raises(ShapeError, match="compares with 0"):
        pool_layer(shape, 2, is_signed=True)


def test_results_that_come_faster_than_their_planes_get_jobs_of_their_own() -> None:
    """One pair of planes, one tap: a result per cycle, eight planes each."""
    rng = np.random.default_rng(4)
    shape = LayerShape("fast", "conv", 40, 3, 4, 130)
    layer = integer_layer(
        shape, drawn(rng, 1, is_signed=False, shape=(130, 40, 1, 1)), bits=(1, 1, 8), signed=(False, False)
    )
    x = drawn(rng, 1, is_signed=False, shape=(40, 3, 4))
    found, _, network = executed([layer], x)
    assert (found == outputs([layer], x)[0]).all()
    assert len(network.layers[0].jobs) == 3 * 4 * 3
    wide = replace(layer, output_bits=16, msb_index=15)
    found, _, network = executed([wide], x)
    assert (found == outputs([wide], x)[0]).all()
    assert all(job.after_drain for _, job in network.layers[0].jobs)


def test_weights_larger_than_their_memory_come_in_parts() -> None:
    rng = np.random.default_rng(5)
    shape = LayerShape("large", "conv", 256, 5, 5, 300, (3, 3), (1, 1), (1, 1, 1, 1))
    layer = integer_layer(
        shape, drawn(rng, 3, is_signed=True, shape=(300, 256, 3, 3)), bits=(2, 3, 4), msb_index=11
    )
    x = drawn(rng, 2, is_signed=False, shape=(256, 5, 5))
    found, _, network = executed([layer], x)
    assert network.layers[0].parts == [[2, 3]]  # blocks of 108 words each, of 512
    assert (found == outputs([layer], x)[0]).all()


def test_weights_of_one_block_that_do_not_fit_are_refused() -> None:
    shape = LayerShape("deep", "conv", 512, 3, 3, 64, (3, 3))
    layer = integer_layer(shape, np.ones((64, 512, 3, 3), np.int64), bits=(1, 8, 8))
    with pytest.raises(DoesNotFitError) as caught:
        executed([layer], np.zeros((512, 3, 3), np.int64))
    assert (caught.value.required_bytes, caught.value.available_bytes) == (576 * 512, 512 * 512)


def test_maps_that_do_not_fit_are_refused() -> None:
    shape = LayerShape("wide", "conv", 64, 100, 100, 64)
    layer = integer_layer(shape, np.ones((64, 64, 1, 1), np.int64), bits=(2, 2, 2))
    with pytest.raises(DoesNotFitError, match="the activation RAM of a matrix-vector unit"):
        executed([layer], np.zeros((64, 100, 100), np.int64))


def test_units_that_are_not_there_are_refused() -> None:
    layer, x = drawn_layer(0)
    for units in (0, 9):
        with pytest.raises(InputError, match="--units"):
            executed([layer], x, units=units)


@pytest.mark.parametrize(
    ("rows", "blocks", "units", "expected"),
    [
        (32, 1, 8, (8, 1)),
        (4, 8, 8, (4, 2)),
        (1, 1, 8, (1, 1)),
        (1, 8, 8, (1, 8)),
        (5, 1, 1, (1, 1)),
        (3, 3, 8, (3, 2)),
    ],
)
def test_rows_are_dealt_and_blocks_where_rows_are_few(
    rows: int, blocks: int, units: int, expected: tuple[int, int]
) -> None:
    assert deal(rows, blocks, units) == expected


@pytest.mark.parametrize("is_signed", [False, True])
def test_a_map_survives_its_words(is_signed: bool) -> None:
    x = drawn(np.random.default_rng(7), 5, is_signed=is_signed, shape=(130, 3, 2))
    words = map_words(x, 5)
    assert len(words) == 3 * 2 * 3 * 5
    assert (map_values(words, x.shape, 5, is_signed=is_signed) == x).all()
    # Channel 65 of pixel (1, 0) is lane 1 of its block 1; plane 0 is the most significant bit.
    word = int(words[((1 * 2 + 0) * 3 + 1) * 5 + 0])
    assert word >> 1 & 1 == (int(x[65, 1, 0]) & 0x1F) >> 4


def test_weights_are_quantised_where_they_are_multiples_of_a_step() -> None:
    whole = np.array([[[[-2.0]], [[1.0]]], [[[0.0]], [[1.0]]]])
    assert integer_weights(whole, 2, "x")[1].tolist() == [1, 1]
    scaled, steps = integer_weights(whole * 0.037, 2, "x")
    assert (scaled == whole).all()
    assert np.allclose(steps, 0.037)
    per_channel = whole * np.array([0.5, 0.31]).reshape(2, 1, 1, 1)
    scaled, steps = integer_weights(per_channel.astype(np.float32).astype(float), 2, "x")
    assert scaled * steps.reshape(2, 1, 1, 1) == pytest.approx(per_channel)
    assert integer_weights(whole * 64, 2, "x")[1].tolist() == [64, 64]  # integers, but multiples of 64


@pytest.mark.parametrize(
    ("weights", "bits", "text"),
    [
        (np.array([[3.0, 1.0, -1.0]]), 2, "need 3 bits, but 2 are set"),
        (
            np.random.default_rng(0).normal(size=(4, 9)),
            2,
            "not quantised to 2 bits with one scale per output channel",
        ),
        (
            np.random.default_rng(0).normal(size=(4, 9)),
            8,
            "not quantised to 8 bits with one scale per output channel",
        ),
        (np.array([[np.nan, 1.0]]), 2, "infinities or NaN"),
    ],
)
def test_other_weights_are_refused(weights: np.ndarray, bits: int, text: str) -> None:
    with pytest.raises(InputError, match=text):
        integer_weights(weights, bits, "node 'c'")


def test_gain_and_offset_become_scaler_and_bias() -> None:
    """What the integers stand for is near what the real layer computes; nothing wraps."""
    rng = np.random.default_rng(9)
    shape = LayerShape("real", "conv", 20, 6, 6, 30, (3, 3), (1, 1), (1, 1, 1, 1))
    weights = rng.integers(-8, 8, (30, 20, 3, 3)) * 0.021
    layer = RealLayer(shape, weights, rng.uniform(-2, 2, 30), rng.normal(size=30), relu=False)
    x = rng.integers(0, 16, (20, 6, 6))
    network = integer_network([layer], Precision(4, 4, 8), x, machine().width)
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    sums = np.einsum("oiyx,ihwyx->ohw", weights, windows)
    real = sums * layer.gain[:, None, None] + layer.offset[:, None, None]
    step = network.steps[0]
    error = real - network.outputs[0] * step
    assert -0.05 * step < error.min() < error.max() < 1.05 * step  # cut, not rounded
    assert np.abs(network.outputs[0]).max() > 100  # of 128: the window of bits is well placed


def test_integers_without_scale_stay_exact() -> None:
    shape = LayerShape("exact", "matmul", 3, 1, 1, 2)
    layer = RealLayer(
        shape, np.array([[[[1.0]], [[-2.0]], [[1.0]]]] * 2), np.ones(2), np.array([5.0, -1.0]), False
    )
    x = np.array([3, 0, 2]).reshape(3, 1, 1)
    network = integer_network([layer], Precision(2, 2, 8), x, machine().width)
    assert network.outputs[0].ravel().tolist() == [10, 4]
    assert network.steps == (1.0,)


def test_the_last_output_has_its_own_precision() -> None:
    def matmul(name: str, ci: int, co: int) -> RealLayer:
        weights = np.random.default_rng(1).integers(-1, 2, (co, ci, 1, 1)).astype(float)
        return RealLayer(
            LayerShape(name, "matmul", ci, 1, 1, co), weights, np.ones(co), np.zeros(co), relu=True
        )

    x = np.random.default_rng(2).integers(0, 4, (30, 1, 1))
    made: tuple[IntegerLayer, ...] = integer_network(
        [matmul("a", 30, 20), matmul("b", 20, 10)], Precision(2, 2, 5), x, machine().width
    ).layers
    assert [(layer.input_bits, layer.output_bits) for layer in made] == [(2, 2), (2, 5)]


@pytest.mark.parametrize("bits", [0, 17, -1])
def test_precisions_out_of_range_are_refused(bits: int) -> None:
    for precision in (Precision(bits, 2, 2), Precision(2, bits, 2), Precision(2, 2, bits)):
        with pytest.raises(InputError, match="1 to 16"):
            precision.check()
