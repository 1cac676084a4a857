# SPDX-License-Identifier: Apache-2.0
"""Boxes of tensors become 1D and 2D DMA commands that move exactly the bytes of the box."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from arch.spec.program import Command
from configs.values import replace
from scheduler.tiles.transfers import commands_for
from shared.soc_fixture import DMA
from trainlib.ir.steps import Region


def commands(
    shape: tuple[int, ...], region: Region, max_1d_bytes: int = 1 << 17, max_2d_bytes: int = 1 << 17
) -> tuple[Command, ...]:
    return commands_for(
        shape,
        4,
        region,
        external_level="l2",
        external_address=1000,
        l1_address=64,
        to_l1=True,
        dma=replace(DMA, max_command_1d_bytes=max_1d_bytes, max_command_2d_bytes=max_2d_bytes),
    )


def test_a_whole_tensor_is_one_1d_command() -> None:
    assert commands((8, 6, 6), ((0, 8), (0, 6), (0, 6))) == (Command(True, 64, "l2", 1000, 8 * 36 * 4),)


def test_some_channels_are_contiguous() -> None:
    assert commands((8, 6, 6), ((2, 5), (0, 6), (0, 6))) == (
        Command(True, 64, "l2", 1000 + 2 * 144, 3 * 144),
    )


def test_rows_of_every_channel_are_the_lines_of_one_2d_command() -> None:
    assert commands((8, 6, 6), ((0, 8), (1, 3), (0, 6))) == (Command(True, 64, "l2", 1000 + 24, 48, 8, 144),)


def test_a_box_cut_in_three_dimensions_needs_one_2d_command_per_outer_index() -> None:
    assert commands((2, 6, 6), ((0, 2), (1, 3), (2, 5))) == (
        Command(True, 64, "l2", 1000 + 4 * (6 + 2), 12, 2, 24),
        Command(True, 64 + 24, "l2", 1000 + 4 * (36 + 6 + 2), 12, 2, 24),
    )


def test_a_command_longer_than_the_length_field_is_split() -> None:
    split = commands((100,), ((0, 100),), max_1d_bytes=160, max_2d_bytes=160)
    assert [(c.l1_address, c.external_address, c.line_bytes) for c in split] == [
        (64, 1000, 160),
        (224, 1160, 160),
        (384, 1320, 80),
    ]
    lines = commands((4, 10), ((0, 4), (0, 5)), max_1d_bytes=50, max_2d_bytes=50)
    assert [(c.lines, c.line_bytes, c.external_address) for c in lines] == [(2, 20, 1000), (2, 20, 1080)]


def test_a_2d_command_may_be_longer_than_a_1d_command() -> None:
    """The call for 1D hands on fewer bits of the length than the DMA has."""
    (box,) = commands((4, 10), ((0, 4), (0, 5)), max_1d_bytes=50, max_2d_bytes=80)
    assert (box.lines, box.line_bytes, box.stride_bytes) == (4, 20, 40)
    assert not box.contiguous


def test_a_range_too_long_for_a_1d_command_is_the_equal_lines_of_a_2d_command() -> None:
    """64 KiB is the least that 16 bits cannot hold."""
    limits = {"max_1d_bytes": 65532, "max_2d_bytes": 131068}
    (halves,) = commands((128, 128), ((0, 128), (0, 128)), **limits)
    assert (halves.lines, halves.line_bytes, halves.stride_bytes) == (2, 32768, 32768)
    assert halves.contiguous, "so the master computes the addresses of a range"
    longest = commands((32766,), ((0, 32766),), **limits)
    assert [(c.lines, c.line_bytes) for c in longest] == [(2, 65532)], "of these lengths the longest"
    beyond = commands((32768,), ((0, 32768),), **limits)
    assert [(c.lines, c.line_bytes) for c in beyond] == [(1, 65532), (1, 65532), (1, 8)]


@st.composite
def boxes(draw: st.DrawFn) -> tuple[tuple[int, ...], Region]:
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    region = []
    for extent in shape:
        start = draw(st.integers(0, extent - 1))
        region.append((start, draw(st.integers(start + 1, extent))))
    return shape, tuple(region)


@given(boxes(), st.sampled_from([(4, 4), (12, 12), (12, 40), (40, 100), (1 << 17, 1 << 17)]))
def test_the_bytes_that_arrive_are_the_box(
    box: tuple[tuple[int, ...], Region], limits_bytes: tuple[int, int]
) -> None:
    shape, region = box
    tensor = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    external = np.zeros(1000 + tensor.nbytes, dtype=np.uint8)
    external[1000:] = tensor.view(np.uint8).reshape(-1)
    expected = np.ascontiguousarray(tensor[tuple(slice(*extent) for extent in region)])
    l1 = np.full(64 + expected.nbytes, 0xFF, dtype=np.uint8)
    for command in commands(shape, region, *limits_bytes):
        assert command.size_bytes <= limits_bytes[command.lines > 1]
        for line in range(command.lines):
            source = command.external_address + line * command.stride_bytes
            target = command.l1_address + line * command.line_bytes
            l1[target : target + command.line_bytes] = external[source : source + command.line_bytes]
    assert np.array_equal(l1[64:], expected.view(np.uint8).reshape(-1))
