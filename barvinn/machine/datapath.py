# SPDX-License-Identifier: Apache-2.0
"""The numbers of a job, bit by bit: products, shift-accumulator, scaler, comparator, quantiser.

Everything is read from the unit's memories at the addresses its generators make; 64 dot products of 64 bits
per cycle. Cycles are worked out together, sum by sum.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from barvinn.machine.address_generator import Integers, Walk, stepped_offsets, walk
from barvinn.machine.behaviour import Behaviour
from barvinn.machine.job import Job
from barvinn.machine.memories import UnitMemories, packed_lanes
from barvinn.machine.timing import LANES, Widths
from configs.values import Struct

CYCLES_TOGETHER = 1 << 14
"""Cycles worked out at a time: 8 MiB of weights."""


class JobResult(Struct, frozen=True):
    """What a job will have written: words at addresses, and sums that did not fit.

    `release_cycles` are the cycles of the job in which the last product of each handed-over result was made.
    `accumulator_overflows` and `scaled_overflows` count sums and scaled values that were cut to their width,
    `quantiser_wraps` values whose leading bits were cut off (lanes times blocks).
    """

    addresses: Integers
    words: NDArray[np.uint64]
    release_cycles: Integers
    accumulator_overflows: int
    scaled_overflows: int
    quantiser_wraps: int


def compute(job: Job, memories: UnitMemories, width: Widths, rules: Behaviour) -> JobResult:
    """Carry out a job on the numbers. Raises `RaceError` for words that nobody has written."""
    steps = walk(job)
    sums = np.concatenate([np.zeros((0, LANES), np.int64), *_sums(job, steps, memories, width, rules)])
    ends = np.flatnonzero(steps.ends)
    accumulated = wrapped(sums, width.accumulator_bits)
    scaled = _scaled(job, accumulated, ends >= job.countdown - rules.blind_cycles, memories, width)
    limited = wrapped(scaled, width.scaled_bits)
    released = steps.releases[steps.ends]
    compared = _compared(job, limited, released)
    addresses, words = _planes(job, compared, width)
    shift = job.msb_index - job.output_bits + 1
    kept = compared >> shift if shift >= 0 else compared << -shift
    least = -(1 << (job.output_bits - 1)) if job.output_signed else 0
    fits = (kept >= least) & (kept < least + (1 << job.output_bits))
    return JobResult(
        addresses,
        words,
        ends[released],
        int((accumulated != sums).sum()),
        int((limited != scaled).sum()),
        int((~fits).sum()),
    )


def wrapped(values: Integers, bits: int) -> Integers:
    """The values in two's complement of `bits`, as a register of that width holds them."""
    half = np.int64(1) << np.int64(bits - 1)
    return ((values + half) & (2 * half - 1)) - half


def _sums(
    job: Job, steps: Walk, memories: UnitMemories, width: Widths, rules: Behaviour
) -> Iterator[Integers]:
    """The finished sums of all lanes, [sums, 64], before they are cut to the accumulator's width.

    Addition and doubling modulo a power of two do not care when one wraps, so the sum is taken exactly and
    cut once. A sum that the countdown ends before its time is never handed on, so it does not matter what is
    read for it.
    """
    activation_mask = (1 << width.activation_jump_bits) - 1
    weight_mask = (1 << width.weight_jump_bits) - 1
    lasts = np.flatnonzero(steps.ends)
    firsts = np.flatnonzero(steps.begins)[: len(lasts)]
    doublings = np.cumsum(steps.doubles)
    finished = int(lasts[-1]) + 1 if len(lasts) else 0
    later: Integers = np.repeat(doublings[lasts], lasts - firsts + 1) - doublings[:finished]
    factor: Integers = np.left_shift(1, later)
    factor[steps.negate[:finished]] *= -1
    begin = 0
    while begin < len(firsts):
        end = int(np.searchsorted(firsts, firsts[begin] + CYCLES_TOGETHER))
        end = max(end - 1, begin + 1) if end < len(firsts) else len(firsts)
        first, last = int(firsts[begin]), int(lasts[end - 1]) + 1
        inputs = (job.input_base + steps.input_offsets[first:last]) & activation_mask
        weights = (job.weight_base + steps.weight_offsets[first:last]) & weight_mask
        activations = memories.activations.read(inputs)
        if rules.bank_words is not None:
            beside = memories.activations.held(0)
            activations = np.where(inputs < rules.bank_words, activations, activations | beside)
        both = np.bitwise_and(memories.weights.read(weights), activations[:, None])
        products = np.bitwise_count(both) * factor[first:last, None]
        sums = np.add.reduceat(products, firsts[begin:end] - first, axis=0)
        yield sums
        begin = end


def _scaled(
    job: Job, sums: Integers, blind: NDArray[np.bool_], memories: UnitMemories, width: Widths
) -> Integers:
    """Scaler and bias of each sum's 64 output channels; their generators step once per sum.

    A `blind` sum comes when its memories are no more read, and gets zeros from them.
    """
    scaler: Integers | int = job.scaler
    bias: Integers | int = 0
    sees = ~blind[:, None]
    if job.use_scaler_memory:
        places = (job.scaler_base + stepped_offsets(job.scaler_loops, len(sums))) % len(memories.scalers)
        scaler = memories.scalers.read(places) * sees
    if job.use_bias_memory:
        places = (job.bias_base + stepped_offsets(job.bias_loops, len(sums))) % len(memories.biases)
        bias = wrapped(memories.biases.read(places) * sees, width.bias_bits)
    return sums * scaler + bias


def _compared(job: Job, values: Integers, released: NDArray[np.bool_]) -> Integers:
    """What the comparator hands over: every value, or the largest since it was cleared to 0."""
    if not len(values):
        return values
    ends = np.flatnonzero(released)
    if not job.compare:
        return values[ends]
    if not len(ends):
        return values[:0]
    firsts = np.concatenate([[0], ends[:-1] + 1])
    return np.maximum(np.maximum.reduceat(values[: ends[-1] + 1], firsts, axis=0), 0)


def _planes(job: Job, values: Integers, width: Widths) -> tuple[Integers, NDArray[np.uint64]]:
    """Bit planes from `msb_index` down, one word each, and where they go."""
    planes = job.msb_index - np.arange(job.output_bits)
    bits = (values[:, None, :] >> np.maximum(planes, 0)[None, :, None]) & 1
    bits[:, planes < 0] = 0  # below bit 0 the shift register holds zeros
    words = packed_lanes(bits).ravel()
    places = job.output_base + stepped_offsets(job.output, len(words))
    return places & ((1 << width.activation_jump_bits) - 1), words
