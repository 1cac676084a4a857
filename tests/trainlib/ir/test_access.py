# SPDX-License-Identifier: Apache-2.0
"""Access maps: boxes, halos, sums and counts of a contraction, against loops that are really run."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.primitive_harness import Case, build
from traces.report import _throughput
from trainlib.ir.access import Contraction, Index, Space, Term
from trainlib.primitives.contractions.convolution import CONVOLUTION
from trainlib.primitives.definition import Example
from trainlib.registry import lowering_of

pytestmark = pytest.mark.smoke

LINEAR = Contraction(y="n co", x="n ci", w="co ci")

STRIDED = {"sh": 2, "sw": 1, "dh": 1, "dw": 2, "up": 1, "left": 0}
"""3x2 window, stride 2 down, dilation 2 across, a row of zeros above."""


def convolution(result: str, groups: int = 1) -> Space:
    sizes = {
        "n": 2,
        "co": 4,
        "ci": 4,
        "w.ci": 4 // groups,
        "hi": 6,
        "wi": 5,
        "ho": 3,
        "wo": 3,
        "hk": 3,
        "wk": 2,
    }
    return CONVOLUTION.space(
        result, sizes, {**STRIDED, "co_of_group": 4 // groups, "ci_of_group": 4 // groups}
    )


def touched(index: Index, iteration: dict[str, int]) -> int | None:
    """The element one iteration touches; None for a zero."""
    value = index.offset
    for term in index.terms:
        place = iteration[term.loop] // (term.block or 1)
        value += term.stride * (place % term.period if term.period else place)
    if value % index.divisor or not 0 <= value // index.divisor < index.size:
        return None
    return value // index.divisor


def whole(space: Space, ranges):
    """The interval of every loop of a tile; loops it does not name are whole."""
    return {name: ranges.get(name, (0, size)) for name, size in space.loops.items()}


def iterations(space: Space, ranges=None):
    """Every iteration of (a tile of) the nest, and what it touches by role; None for a zero."""
    intervals = whole(space, ranges or {})
    for values in itertools.product(*(range(*intervals[name]) for name in space.loops)):
        iteration = dict(zip(space.loops, values, strict=True))
        yield {role: [touched(index, iteration) for index in axes] for role, axes in space.accesses.items()}


def test_the_steps_of_a_linear_layer():
    sizes = {"n": 2, "co": 3, "ci": 5}
    forward, weights, inputs = (LINEAR.space(result, sizes) for result in ("y", "dw", "dx"))
    assert (forward.extents, forward.reductions) == ({"n": 2, "co": 3}, {"ci": 5})
    assert (weights.extents, weights.reductions) == ({"co": 3, "ci": 5}, {"n": 2})
    assert (inputs.extents, inputs.reductions) == ({"n": 2, "ci": 5}, {"co": 3})
    assert [space.macs for space in (forward, weights, inputs)] == [30, 30, 30]
    assert forward.meeting(forward.loops) == []


def test_the_gradient_of_a_strided_convolution_gathers_and_knows_its_zeros():
    inputs = convolution("dx")
    assert inputs.extents == {"n": 2, "ci": 4, "hi": 6, "wi": 5}
    assert inputs.reductions == {"co": 4, "hk": 3, "wk": 2}
    # ho = (hi + 1 - hk) / 2, where that is whole; wo = wi - 2·wk.
    assert inputs.index("dy", "ho") == Index("ho", 3, (Term("hi"), Term("hk", -1)), 1, 2)
    assert inputs.index("dy", "wo") == Index("wo", 3, (Term("wi"), Term("wk", -2)))
    assert inputs.macs == 2 * 4 * 30 * 4 * 6
    assert inputs.useful_macs < inputs.macs / 2


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_useful_products_are_the_same_in_all_three_steps(groups):
    counts = set()
    for result in ("y", "dw", "dx"):
        space = convolution(result, groups)
        found = list(iterations(space))
        assert len(found) == space.macs
        useful = sum(all(None not in places for places in item.values()) for item in found)
        assert useful == space.useful_macs
        counts.add(useful)
    assert len(counts) == 1


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("result", ["y", "dw", "dx"])
@settings(max_examples=15, deadline=None, derandomize=True)
@given(data=st.data())
def test_a_box_is_what_the_iterations_of_a_tile_touch(result, groups, data):
    space = convolution(result, groups)
    ranges = {}
    for name, size in space.loops.items():
        if name not in ("hk", "wk") and size > 1:
            start = data.draw(st.integers(0, size - 1), label=name)
            ranges[name] = (start, data.draw(st.integers(start + 1, size)))
    found = list(iterations(space, ranges))
    for role, axes in space.accesses.items():
        spans = [index.span(whole(space, ranges)) for index in space.accesses[role]]
        for axis, span in enumerate(spans):
            places = {item[role][axis] for item in found} - {None}
            if places:
                # At a border, or in a gradient, a box may end with elements that a window steps over.
                assert span.start <= min(places)
                assert max(places) < span.stop
                strides = [abs(term.stride) for term in axes[axis].terms]
                if axes[axis].divisor == 1 and min(strides) == max(strides):
                    assert (span.start, span.stop) == (min(places), max(places) + 1)
            else:
                assert span.count == 1, "one element at least"


@pytest.mark.parametrize("result", ["y", "dx"])
def test_taps_are_the_elements_a_window_meets(result):
    space = convolution(result)
    image, axis, outer = ("x", "hi", "ho") if result == "y" else ("dy", "ho", "hi")
    index = space.index(image, axis)
    ranges = whole(space, {outer: (1, 3)})
    span = index.span(ranges)
    expected = []
    for position in range(1, 3):
        window = [touched(index, {outer: position, "hk": tap}) for tap in range(3)]
        # The kernel of a gradient is rotated.
        window = window if result == "y" else window[::-1]
        expected.append([-1 if place is None else place - span.start for place in window])
    np.testing.assert_array_equal(index.taps(outer, "hk", ranges, span.extent), expected)


def test_loops_meet_where_an_axis_needs_both():
    assert convolution("y").meeting(["n", "co", "ho", "wo", "ci"]) == []
    assert convolution("y", groups=2).meeting(["n", "co", "ho", "wo", "ci"]) == [("co", "ci")]
    assert set(convolution("dx", groups=2).meeting(["ci", "co", "hi", "hk"])) == {("hi", "hk"), ("ci", "co")}


@pytest.mark.parametrize("text", ["n co*ci", "n, c: co*ci", "n, c: co//2//2", "n, c: f(co)"])
def test_text_that_is_no_sum_of_loops_is_refused(text):
    contraction = Contraction(y="n co", x=text, w="co ci")
    with pytest.raises(ValueError, match="must be a product of a loop variable and symbols"):
        contraction.space("y", {"n": 1, "co": 2, "ci": 2, "c": 4})


def test_the_input_gradient_of_stride_two_says_that_three_quarters_of_its_products_are_zero():
    example = Example({"out_channels": 3, "kernel": 1, "stride": 2}, ((2, 6, 6),))
    graph, _ = build(Case("conv2d", 0, example, "fp32", 1))
    for op in graph.ops:
        lowering = lowering_of(op)
        share = lowering.useful_macs(op, graph.tensors) / lowering.macs(op, graph.tensors)
        assert share == (0.25 if op.step == "IG" else 1)


def test_the_throughput_line_says_what_share_of_the_products_meets_zeros():
    summary = {
        "macs": 400,
        "useful_macs": 100,
        "mac_per_cycle": 1.5,
        "utilisation": {f"core{core}": 0.5 for core in range(8)},
    }
    assert _throughput(summary).endswith(
        "; 75% of the products multiply padding zeros or zeros between strides"
    )
    assert _throughput(summary | {"useful_macs": 400}) == "1.50 MAC/cycle on 8 cores"
