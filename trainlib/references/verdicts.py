# SPDX-License-Identifier: Apache-2.0
"""Whether a tensor is what it should be: passed, failed, or not decidable as rounding could hide a defect."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod, sqrt
from typing import Any

import numpy as np

from configs.dtypes import FP32, DType, float_of, is_float
from configs.values import Struct, replace
from trainlib.ir.steps import Array
from trainlib.references.op_truth import exact, slices

PASSED, NOT_DECIDABLE, WITHOUT_TRUTH, FAILED = "passed", "not_decidable", "without_truth", "failed"

GRAVITY = (NOT_DECIDABLE, PASSED, WITHOUT_TRUTH, FAILED)
"""What counts of two verdicts about one tensor, the later word.

Other values may decide what some left open; what nothing was compared with in one iteration stays so.
"""

WIDE_CAP, NARROW_CAP = 1e-3, 0.05
"""Most that arithmetic may add to the error of an element, relative to the largest element of its tensor.

A tensor that needs more is not decidable: a defect of that size could hide in its rounding.
"""


LEANING_ELEMENTS, LEANING_DEVIATIONS = 32, 8
"""Inexact elements a tensor needs before it can be said to lean, and standard errors of their mean."""

LEANING_STEPS = 0.2
"""Steps it must lean by at least: rounding towards 0 leans by a half."""

ROUNDING_DEVIATION = 12**-0.5
"""Standard deviation of one rounding to nearest, in steps of the format."""

MOST_SORTED = 1 << 18
"""Elements of a tensor that are sorted at once."""


class Verdict(Struct, frozen=True):
    """What was found of one tensor: error and tolerance of its worst element, relative to the tensor's scale.

    The error is what is beyond the one rounding with which an element is stored. The worst element is the
    one with the largest error for its tolerance; `abs_error` is the largest difference of any. The scale is
    the largest element of the truth; of a tensor that is zero but for rounding, that of what it is a sum of.
    `why` says more of a verdict that is not "passed".
    """

    name: str
    verdict: str
    error: float = 0.0
    tolerance: float = 0.0
    abs_error: float = 0.0
    why: str = ""
    gain: float = 0.0
    """The largest of an element: how far it moves with its inputs (`trainlib.references.op_truth`)."""
    room: float = 0.0
    """The largest of an element: how far rounding may have taken it; 0 if that is not known."""

    @property
    def ratio(self) -> float:
        """Error over tolerance; 0 of a tensor without error."""
        if self.error == 0:
            return 0.0
        return self.error / self.tolerance if self.tolerance else float("inf")


def together(one: Verdict, other: Verdict) -> Verdict:
    """One verdict about a tensor from those of two iterations; of equal ones that with the larger ratio.

    All iterations run the same kernels and transfers, so values that tell right from wrong in one of them
    decide what others left open; a single failure counts.
    """
    graver = max(one, other, key=lambda item: (GRAVITY.index(item.verdict), item.ratio))
    return replace(graver, gain=max(one.gain, other.gain), room=max(one.room, other.room))


class Judgement:
    """Compares a float tensor, as it is stored, with its truth in float64, some elements after the others.

    An element is right if it is the truth, moved by at most its room, rounded to the format it is stored in
    once: infinities and NaN are right where that gives them and nowhere else. In a format without infinities
    what is too large is a NaN, which counts as the infinity it stands for. Where the terms of an element
    overflow the format they are summed in, so may the element, though their sum would not.

    All elements are added in their order, and then, while `open`, all of them once more: where there is more
    room than the cap allows, the scale of the tensor must be known first.
    """

    def __init__(self, name: str, shape: tuple[int, ...], dtype: Any, summed_as: DType = FP32) -> None:
        self.name = name
        self.open = True
        self._shape = shape
        self._dtype = np.dtype(dtype)
        self._overflow = summed_as.largest
        self._largest = self._largest_room = self._largest_gain = 0.0
        self._wrong = 0
        self._first: tuple[int, float, float] | None = None
        """Of those that are wrong: which, what it is and what it should be."""
        self._cap: float | None = None
        """None while elements are added for the first time."""
        self._hidden = False
        self._worst = _Worst()

    @np.errstate(all="ignore")
    def add(self, ours: Array, truth: Array, room: Array, gain: Array, first: int = 0) -> None:
        """Compare the elements from number `first` on; `room` and `gain` are those of
        `trainlib.references.op_truth`."""
        checked = _with_infinities(ours.astype(np.float64), truth, self._dtype)
        room = np.where(np.isfinite(room), room, 0)
        magnitude = np.abs(truth)
        beyond = np.isfinite(truth) & (magnitude + gain >= self._overflow) & ~np.isfinite(checked)
        if self._cap is None:
            self._largest = max(self._largest, _largest_finite(magnitude))
            self._largest_room = max(self._largest_room, float(np.max(room, initial=0.0)))
            self._largest_gain = max(self._largest_gain, _largest_finite(gain))
            self._look(checked, truth, _outside(checked, truth, room, self._dtype) & ~beyond, first)
        if beyond.any():
            checked, truth = np.where(beyond, 0, checked), np.where(beyond, 0, truth)
        if self._cap is not None:
            room = np.minimum(room, self._cap)
            self._hidden = self._hidden or bool(_outside(checked, truth, room, self._dtype).any())
        self._worst.add(checked, truth, room, self._dtype)

    def end(self) -> None:
        """All elements have been added."""
        if not self.open:
            return
        cap = _cap(self._dtype) * self._scale
        if self._cap is None and self._largest_room > cap:
            self._cap, self._worst = cap, _Worst()
        else:
            self.open = False

    def verdict(self) -> Verdict:
        """What was found, once it is no longer open."""
        unit, worst = self._scale or 1.0, self._worst
        figures = worst.error / unit, worst.room / unit, worst.difference
        sizes = self._largest_gain, self._largest_room
        verdict, why = PASSED, ""
        if self._first is not None:
            number, wrong, truth = self._first
            place = tuple(int(index) for index in np.unravel_index(number, self._shape))
            why = f"{self._wrong} of {prod(self._shape)} elements, the first at {place}: "
            verdict, why = FAILED, f"{why}{wrong:.6g}, not {truth:.6g}"
        elif self._hidden:
            share = self._largest_room / self._scale if self._scale else 0
            verdict, why = NOT_DECIDABLE, f"rounding alone can reach {share:.1e} of its scale"
        return Verdict(self.name, verdict, *figures, why, *sizes)

    @property
    def _scale(self) -> float:
        """The largest element of the truth; of a tensor that is zero but for rounding, the largest gain."""
        return self._largest if self._largest > self._largest_room else self._largest_gain

    def _look(self, result: Array, truth: Array, wrong: Array, first: int) -> None:
        count = int(wrong.sum())
        if count and self._first is None:
            place = int(np.argmax(wrong))
            self._first = first + place, float(result[place]), float(truth[place])
        self._wrong += count


class _Worst:
    """The element with the largest error for its room, and the largest difference of any."""

    def __init__(self) -> None:
        self.difference = self.error = 0.0
        self._ratio: float | None = None
        self._room_of_worst = self._largest_room = 0.0

    @property
    def room(self) -> float:
        """That of the worst element; of a tensor without any difference the largest."""
        return self._room_of_worst if self.difference else self._largest_room

    def add(self, ours: Array, truth: Array, room: Array, dtype: Any) -> None:
        """Some more elements."""
        self._largest_room = max(self._largest_room, float(np.max(room, initial=0.0)))
        difference = np.where(ours == truth, 0, np.abs(ours - truth))
        difference = np.where(np.isnan(truth) & np.isnan(ours), 0, difference)
        difference = np.where(np.isnan(difference), np.inf, difference)
        if not difference.any():
            if self._ratio is None and room.size:
                self._take(0.0, 0.0, float(room[0]))
            return
        self.difference = max(self.difference, float(difference.max()))
        stored = np.spacing(np.abs(truth).astype(dtype)).astype(np.float64) / 2
        error = np.where(np.isfinite(stored), np.maximum(difference - stored, 0), 0)
        ratio = np.divide(error, room, out=np.where(error > 0, np.inf, 0.0), where=room > 0)
        worst = int(np.argmax(ratio))
        self._take(float(ratio[worst]), float(error[worst]), float(room[worst]))

    def _take(self, ratio: float, error: float, room: float) -> None:
        if self._ratio is None or ratio > self._ratio:
            self._ratio, self.error, self._room_of_worst = ratio, error, room


def judged(
    name: str, ours: Array, truth: Array, room: Array, gain: Array, summed_as: DType = FP32
) -> Verdict:
    """The `Judgement` of a tensor whose truth, room and gain are known as a whole."""
    judgement = Judgement(name, ours.shape, ours.dtype, summed_as)
    ours, truth, room, gain = (array.reshape(-1) for array in (ours, truth, room, gain))
    while judgement.open:
        for where in slices(ours.size):
            judgement.add(ours[where], truth[where], room[where], gain[where], where.start)
        judgement.end()
    return judgement.verdict()


@np.errstate(all="ignore")
def leans(ours: Array, truth: Array) -> float:
    """By how many steps of its format a tensor is larger than the rounded truth on average; 0 if by chance.

    Rounding to nearest errs to both sides alike. A tensor whose elements have roundings of their own and that
    leans to one side was rounded another way, or scaled by less than the tolerance of an element shows.
    Elements of equal truth round alike and count once; those that are exact or smaller than a step do not.
    """
    flat = ours.reshape(-1)
    value = np.where(np.isfinite(truth), truth, 0).reshape(-1)
    parts = [_steps_off(flat[some], value[some]) for some in _equals_together(value)]
    errors = [error for error, _ in parts]
    count = sum(error.size for error in errors)
    if count < LEANING_ELEMENTS:
        return 0.0
    average = sum(float(error.sum()) for error in errors) / count
    deviation = sqrt(sum(float(np.square(error - average).sum()) for error in errors) / count)
    spread = max(deviation, ROUNDING_DEVIATION) / sqrt(count)
    mean = average - sum(right for _, right in parts) / count
    return mean if abs(mean) > max(LEANING_STEPS, LEANING_DEVIATIONS * spread) else 0.0


def _steps_off(ours: Array, truth: Array) -> tuple[Array, float]:
    """By how many steps each truth that counts was rounded up in size, and by how many all should be."""
    value, first = np.unique(truth, return_index=True)
    steps = np.spacing(np.abs(value).astype(ours.dtype)).astype(np.float64)
    error = np.sign(value) * (ours[first].astype(np.float64) - value) / steps
    right = np.sign(value) * (value.astype(ours.dtype).astype(np.float64) - value) / steps
    counted = np.isfinite(error) & np.isfinite(right) & (error != 0) & (np.abs(value) >= steps)
    return error[counted], float(right[counted].sum())


def _equals_together(value: Array) -> Iterator[Array | slice]:
    """Some elements after the others, such that equal ones come together: to sort all takes much memory."""
    if value.size <= MOST_SORTED:
        yield slice(None)
        return
    groups = np.empty(value.size, np.uint8)
    for where in slices(value.size):
        bits = value[where].view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        groups[where] = bits >> np.uint64(56)
    for group in range(256):
        yield np.flatnonzero(groups == group)


def judged_numbers(name: str, ours: Array, truth: Array) -> Verdict:
    """Compare a tensor of integers (positions, counts, masks): all must be equal."""
    wrong = np.not_equal(ours, truth)
    if not wrong.any():
        return Verdict(name, PASSED)
    place = tuple(int(index) for index in np.argwhere(wrong)[0])
    why = (
        f"{int(wrong.sum())} of {wrong.size} numbers, the first at {place}: {ours[place]}, not {truth[place]}"
    )
    return Verdict(name, FAILED, float("inf"), 0.0, float("inf"), why)


def judged_copy(name: str, ours: Array, kept: Array, why: str) -> Verdict:
    """Compare a tensor with what it was before, to the bit."""
    if np.array_equal(_bytes(ours), _bytes(kept)):
        return Verdict(name, PASSED)
    if not is_float(ours.dtype):
        return judged_numbers(name, ours, kept)
    verdict = judged(name, ours, exact(kept), np.zeros(kept.shape), np.zeros(kept.shape))
    return Verdict(name, FAILED, verdict.error, 0.0, verdict.abs_error, why)


def _bytes(array: Array) -> Array:
    raw: Array = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return raw


def _outside(ours: Array, truth: Array, room: Array, dtype: Any) -> Array:
    """Which elements are not between the truth less room and the truth plus room, each rounded to `dtype`."""
    low, high = (_stored(truth + way * room, dtype) for way in (-1, 1))
    same = np.isnan(truth) & np.isnan(ours)
    outside: Array = ~((low <= ours) & (ours <= high)) & ~same
    return outside


def _stored(array: Array, dtype: Any) -> Array:
    """The numbers in the format, as float64; those too large for it are infinite, as they are in most."""
    return _with_infinities(array.astype(dtype).astype(np.float64), array, dtype)


def _with_infinities(stored: Array, array: Array, dtype: Any) -> Array:
    """`stored` with an infinity for each NaN that a number of `array` has become for want of one."""
    kind = float_of(dtype)
    if kind is None or kind.has_infinity:
        return stored
    return np.where(np.isnan(stored) & ~np.isnan(array), np.copysign(np.inf, array), stored)


def _cap(dtype: Any) -> float:
    kind = float_of(dtype)
    return NARROW_CAP if kind is not None and kind.is_narrow else WIDE_CAP


def _largest_finite(array: Array) -> float:
    return float(np.max(array, initial=0.0, where=np.isfinite(array)))
