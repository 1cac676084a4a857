# SPDX-License-Identifier: Apache-2.0
"""What the address generators of a unit do in the cycles of a job, all cycles at once.

The RTL counts five loops down and adds one of five jumps per cycle (agu.sv); a zig-zag generator adds the
bit plane (zigzagu.v). Which jump a cycle takes depends on the lengths alone, so a walk is a running sum.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from barvinn.machine.job import Job, Loops
from configs.values import Struct

Integers = NDArray[np.int64]

MOST_KNOWN_CYCLES = 1 << 18
"""Longer walks are not kept: 6 MiB each."""

WALK_BYTES_PER_CYCLE = 128
"""What a walk takes of this computer's memory while it is worked out, at most."""


def jumps_taken(lengths: tuple[int, ...], cycles: int) -> Integers:
    """Which jump, 0 to 4, follows each of `cycles` cycles; shape [cycles]."""
    taken = np.full(cycles, 4, np.int64)
    period = 1
    for level in (4, 3, 2, 1):
        period *= lengths[level] + 1
        if period > cycles:
            break
        taken[period - 1 :: period] = level - 1
    return taken


def offsets(loops: Loops, taken: Integers) -> Integers:
    """Words between the base and the address of each cycle; the jump of a cycle counts from the next on."""
    moved = np.cumsum(np.asarray(loops.jumps, np.int64)[taken])
    return np.concatenate([np.zeros(1, np.int64), moved[:-1]])


@lru_cache(maxsize=256)
def plane_pairs(weight_bits: int, input_bits: int) -> tuple[tuple[int, int, bool], ...]:
    """(weight plane, input plane, first of its diagonal) in the order of the zig-zag, plane 0 the MSB.

    All pairs of one diagonal have equal weight; the accumulator doubles where a new one begins.
    """
    return tuple(
        (diagonal - plane, plane, position == 0 and diagonal > 0)
        for diagonal in range(weight_bits + input_bits - 1)
        for position, plane in enumerate(
            range(max(0, diagonal - weight_bits + 1), min(diagonal, input_bits - 1) + 1)
        )
    )


class Walk(Struct, frozen=True):
    """What a job does in each cycle, but for its base addresses; arrays of shape [countdown].

    `input_offsets` and `weight_offsets` contain the bit planes; `negate` says that one of the planes is the
    sign; `doubles` that the sum is doubled first; `begins` that a new sum is begun; `ends` that a sum is
    handed on; `releases` that the comparator hands over.
    """

    input_offsets: Integers
    weight_offsets: Integers
    negate: NDArray[np.bool_]
    doubles: NDArray[np.bool_]
    begins: NDArray[np.bool_]
    ends: NDArray[np.bool_]
    releases: NDArray[np.bool_]


def walk(job: Job) -> Walk:
    """The walk of a job; short walks of equal registers are worked out once."""
    made = _known_walk if job.countdown <= MOST_KNOWN_CYCLES else _walk
    return made(
        job.input,
        job.weight,
        job.countdown,
        (job.weight_bits, job.input_bits, job.weight_signed, job.input_signed),
        (job.zigzag_select, job.accumulate_select, job.compare_select),
    )


def _walk(
    inputs: Loops,
    weights: Loops,
    cycles: int,
    precision: tuple[int, int, bool, bool],
    selects: tuple[int, int, int],
) -> Walk:
    weight_bits, input_bits, weight_signed, input_signed = precision
    input_jumps = jumps_taken(inputs.lengths, cycles)
    weight_jumps = jumps_taken(weights.lengths, cycles)
    zigzag, ends, releases = (((select >> weight_jumps) & 1).astype(bool) for select in selects)
    pairs = np.array(plane_pairs(weight_bits, input_bits), np.int64)
    steps = np.cumsum(zigzag)
    pair = pairs[np.concatenate([np.zeros(1, np.int64), steps[:-1]]) % len(pairs)]
    after_step = np.concatenate([np.zeros(1, bool), zigzag[:-1]])
    is_sign = (pair[:, :2] == 0) & np.array([weight_signed, input_signed])
    return Walk(
        input_offsets=offsets(inputs, input_jumps) + pair[:, 1],
        weight_offsets=offsets(weights, weight_jumps) + pair[:, 0],
        negate=is_sign[:, 0] ^ is_sign[:, 1],
        doubles=after_step & pair[:, 2].astype(bool),
        begins=np.concatenate([np.ones(1, bool), ends[:-1]]),
        ends=ends,
        releases=releases,
    )


_known_walk = lru_cache(maxsize=16)(_walk)


def stepped_offsets(loops: Loops, steps: int) -> Integers:
    """Offsets of a generator that is stepped by events (output planes, scalers, biases), per step."""
    return offsets(loops, jumps_taken(loops.lengths, steps)) if steps else np.zeros(0, np.int64)
