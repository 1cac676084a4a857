# SPDX-License-Identifier: Apache-2.0
"""Which layers say with code, not with data, what a tile calls (docs/decisions/0006-access-maps.md)."""

from __future__ import annotations

from collections.abc import Iterator

from trainlib.ir.steps import StepLowering
from trainlib.primitives.definition import Step
from trainlib.primitives.lowering.axes import AxesLowering
from trainlib.primitives.lowering.elementwise import ElementwiseLowering, LossLowering
from trainlib.registry import PRIMITIVES

GENERAL = (AxesLowering, ElementwiseLowering, LossLowering)
"""What layers share: they carry out lists of kernels, of loops, and entries of the table of losses."""

KEEPING = {
    *("conv1d", "conv2d", "conv_transpose2d", "depthwise"),  # strategies of a matmul
    *("rnn", "gru", "lstm"),  # a buffer for each gate
}
"""Layers that keep such a function today; one that is turned into data leaves the list."""


def _own_code(lowering: StepLowering) -> bool:
    """Whether a class of its own says what is called."""
    maker = next(kind for kind in type(lowering).__mro__ if {"tile", "compute"} & vars(kind).keys())
    return maker not in GENERAL


def _lowerings(step: Step) -> Iterator[StepLowering]:
    yield step.lowering
    for variant in step.variants.values():
        yield variant.lowering


def test_few_layers_keep_a_function() -> None:
    """A layer keeps one if a step of it does, in any variant."""
    keeping = {
        primitive.name
        for primitive in PRIMITIVES.values()
        for step in primitive.steps
        for lowering in _lowerings(step)
        if _own_code(lowering)
    }
    assert keeping <= KEEPING
    assert len(KEEPING) <= 0.1 * len(PRIMITIVES)
