# SPDX-License-Identifier: Apache-2.0
"""Overlap gains little where kernels dominate and a lot where transfers do; a larger machine is no slower."""

from itertools import pairwise

import pytest

from tools.pages import buffering as writer


def test_the_published_contrast() -> None:
    """On GVSoC 2.0 % for a layer bound by its kernel, 21.4 % for one bound by transfers (FloatGEMM)."""
    compute_bound, few_waits = writer.gain("conv", "gvsoc")
    memory_bound, many_waits = writer.gain("linear", "gvsoc")
    assert 0 < compute_bound < 0.04
    assert 0.15 < memory_bound < 0.35
    assert few_waits < 0.1
    assert many_waits > 0.25


def test_with_the_refills_of_rtl_smaller_tiles_cost_a_compute_bound_layer_what_overlap_saves() -> None:
    assert -0.02 < writer.gain("conv")[0] < 0.01
    assert writer.gain("linear")[0] > 0.15


@pytest.mark.parametrize("workload", ["conv", "pointwise", "linear, batch 4", "linear", "relu"])
def test_overlap_saves_no_more_than_waits_and_leaves_the_longest_of_kernels_loads_and_stores(
    workload: str,
) -> None:
    """With the same tiles; loads and stores overlap each other too, so half of the waits may be left."""
    double = writer.simulate(workload, buffering="double")
    single = writer.simulate_with(workload, "64KiB", 8, "single", double)
    assert double.cycles < single.cycles
    assert double.cycles >= max(single.kernel_cycles, single.wait_cycles / 2)


@pytest.mark.parametrize("buffering", ["single", "double"])
def test_tiles_of_a_smaller_l1_take_the_same_cycles_in_a_larger_one(buffering: str) -> None:
    """So the best over the tiles of all smaller sizes, as on the page, is what the larger machine reaches."""
    small = writer.simulate("linear", "32KiB", 8, buffering)
    again = writer.simulate_with("linear", "256KiB", 8, buffering, small)
    assert again.cycles == small.cycles


def test_the_best_of_a_sweep_is_monotone() -> None:
    """Width: every schedule is simulated again on the wider DMA. L1: see the test before."""
    widths = writer.best_by_width("linear", (2, 4, 8, 16))
    assert all(wider <= narrower for narrower, wider in pairwise(widths.values()))
    assert widths[16] < 0.7 * widths[2], "bound by transfers"
    sizes = writer.best_by_l1("linear", ("16KiB", "64KiB", "256KiB"))
    assert all(larger <= smaller for smaller, larger in pairwise(sizes.values()))


def test_every_exception_of_the_heuristic_is_listed_with_what_got_longer() -> None:
    """Cycles, of them kernels and waits, and tiles of a made-up sweep that gets slower twice."""
    figures = {"16KiB": (100, 70, 30, 9), "64KiB": (110, 85, 25, 5), "256KiB": (120, 80, 40, 2)}
    points = {(size, "double"): writer.Found(*found, {}, {}) for size, found in figures.items()}
    points |= {(size, "single"): writer.Found(90 - number, 60, 30 - number, 4, {}, {})
               for number, size in enumerate(figures)}  # fmt: skip
    listed = writer._exceptions("linear", tuple(figures), points)
    assert [row[:4] for row in listed] == [
        ("linear", "16KiB to 64KiB", "double", "+10 (10.0%)"),
        ("linear", "64KiB to 256KiB", "double", "+10 (9.1%)"),
    ]
    assert [row[4:7] for row in listed] == [("+15", "-5", "9 to 5"), ("-5", "+15", "5 to 2")]
    assert [row[7].partition(":")[0] for row in listed] == ["kernels", "waits"]


def test_the_tiles_of_a_linear_layer_get_no_worse_in_a_larger_l1() -> None:
    """Of the workloads of the page this one has no exception."""
    for buffering in writer.BUFFERINGS:
        cycles = [
            writer.simulate("linear", size, 8, buffering).cycles for size in ("16KiB", "64KiB", "256KiB")
        ]
        assert cycles == sorted(cycles, reverse=True)
