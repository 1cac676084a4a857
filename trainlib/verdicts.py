"""Whether a tensor is what it should be: passed, failed, or not decidable as rounding could hide a defect."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np

from configs.dtypes import BY_NAME, float_of, is_float
from trainlib.op_truth import exact
from trainlib.steps import Array

PASSED, NOT_DECIDABLE, WITHOUT_TRUTH, FAILED = "passed", "not_decidable", "without_truth", "failed"

GRAVITY = (WITHOUT_TRUTH, NOT_DECIDABLE, PASSED, FAILED)
"""What counts of two verdicts about one tensor, the later word."""

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


@dataclass(frozen=True, slots=True)
class Verdict:
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
    return max(one, other, key=lambda item: (GRAVITY.index(item.verdict), item.ratio))


@np.errstate(all="ignore")
def judged(
    name: str, ours: Array, truth: Array, room: Array, gain: Array, summed_as: str = "float32"
) -> Verdict:
    """Compare a float tensor, as it is stored, with its truth in float64.

    An element is right if it is the truth, moved by at most `room`, rounded to the format of `ours` once:
    infinities and NaN are right where that gives them and nowhere else. In a format without infinities what
    is too large is a NaN, which counts as the infinity it stands for. `room` and `gain` are those of
    `trainlib.op_truth`. Where the terms of an element overflow the format they are summed in, so may the
    element, though their sum would not.
    """
    dtype = ours.dtype
    found = _with_infinities(ours.astype(np.float64), truth, dtype)
    room = np.where(np.isfinite(room), room, 0)
    scale = float(np.max(np.abs(truth), initial=0.0, where=np.isfinite(truth)))
    if scale <= np.max(room, initial=0.0):  # zero but for rounding
        scale = float(np.max(gain, initial=0.0, where=np.isfinite(gain)))
    wide = _outside(found, truth, room, dtype)
    beyond = np.isfinite(truth) & (np.abs(truth) + gain >= BY_NAME[summed_as].largest) & ~np.isfinite(found)
    found, truth = np.where(beyond, 0, found), np.where(beyond, 0, truth)
    wide &= ~beyond
    capped = np.minimum(room, _cap(dtype) * scale)
    narrow = wide if np.array_equal(capped, room) else _outside(found, truth, capped, dtype)
    error, tolerance, absolute = _worst(found, truth, capped, dtype, scale)
    if wide.any():
        place = tuple(int(index) for index in np.argwhere(wide)[0])
        why = f"{int(wide.sum())} of {wide.size} elements, the first at {place}: "
        why += f"{found[place]:.6g}, not {truth[place]:.6g}"
        return Verdict(name, FAILED, error, tolerance, absolute, why)
    if narrow.any():
        why = f"rounding alone may be {float(np.max(room)) / scale if scale else 0:.1e} of its scale"
        return Verdict(name, NOT_DECIDABLE, error, tolerance, absolute, why)
    return Verdict(name, PASSED, error, tolerance, absolute)


@np.errstate(all="ignore")
def leans(ours: Array, truth: Array) -> float:
    """By how many steps of its format a tensor is larger than the rounded truth on average; 0 if by chance.

    Rounding to nearest errs to both sides alike. A tensor whose elements have roundings of their own and that
    leans to one side was rounded another way, or scaled by less than the tolerance of an element shows.
    Elements of equal truth round alike and count once; those that are exact or smaller than a step do not.
    """
    value, first = np.unique(np.where(np.isfinite(truth), truth, 0).reshape(-1), return_index=True)
    steps = np.spacing(np.abs(value).astype(ours.dtype)).astype(np.float64)
    found = ours.reshape(-1)[first].astype(np.float64)
    error = np.sign(value) * (found - value) / steps
    right = np.sign(value) * (value.astype(ours.dtype).astype(np.float64) - value) / steps
    counted = np.isfinite(error) & np.isfinite(right) & (error != 0) & (np.abs(value) >= steps)
    error, right = error[counted], right[counted]
    if error.size < LEANING_ELEMENTS:
        return 0.0
    spread = max(float(error.std()), ROUNDING_DEVIATION) / sqrt(error.size)
    mean = float(error.mean() - right.mean())
    return mean if abs(mean) > max(LEANING_STEPS, LEANING_DEVIATIONS * spread) else 0.0


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
    if ours.tobytes() == kept.tobytes():
        return Verdict(name, PASSED)
    if not is_float(ours.dtype):
        return judged_numbers(name, ours, kept)
    verdict = judged(name, ours, exact(kept), np.zeros(kept.shape), np.zeros(kept.shape))
    return Verdict(name, FAILED, verdict.error, 0.0, verdict.abs_error, why)


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


def _worst(ours: Array, truth: Array, room: Array, dtype: Any, scale: float) -> tuple[float, float, float]:
    """(error, tolerance) of the worst element, relative to `scale`, and the largest difference, absolute."""
    difference = np.where(ours == truth, 0, np.abs(ours - truth))
    difference = np.where(np.isnan(truth) & np.isnan(ours), 0, difference)
    difference = np.where(np.isnan(difference), np.inf, difference)
    if not difference.any():
        return 0.0, float(np.max(room, initial=0.0)) / (scale or 1.0), 0.0
    stored = np.spacing(np.abs(truth).astype(dtype)).astype(np.float64) / 2
    error = np.where(np.isfinite(stored), np.maximum(difference - stored, 0), 0)
    ratio = np.divide(error, room, out=np.where(error > 0, np.inf, 0.0), where=room > 0)
    worst = int(np.argmax(ratio))
    unit = scale or 1.0
    return float(error.flat[worst]) / unit, float(room.flat[worst]) / unit, float(difference.max())
