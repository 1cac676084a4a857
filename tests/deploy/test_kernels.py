# SPDX-License-Identifier: Apache-2.0
"""C kernels compute what the kernels of the simulator compute, on the examples of every primitive."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from itertools import product

import numpy as np
import pytest

from arch.spec.isa import TeamWork
from arch.spec.program import Compute, Effect
from configs.dtypes import FP32
from shared.c_kernels import check_action, check_case, laid_out
from shared.primitive_harness import Case, all_cases, build
from shared.tiers import sweep_nine_of_ten
from trainlib.ir.graph import Op
from trainlib.ir.numerics import ACCUMULATIONS, matmul
from trainlib.kernels.catalogue import depthwise_names, kernel_names, matmul_work
from trainlib.kernels.library import LIBRARY

NO_OP = Op("", "", "", "", (), ())

CASES = [case for case in all_cases() if case.dtype == "fp32"]
NARROW = [case for case in all_cases() if case.dtype in ("fp16", "bf16")]


def by_primitive(case: Case) -> str:
    return case.primitive


@pytest.mark.needs_gcc
@pytest.mark.parametrize("case", sweep_nine_of_ten(CASES, by_primitive))
def test_a_kernel_in_c_computes_what_the_simulator_does(case: Case) -> None:
    check_case(case, *build(case))


@pytest.mark.needs_gcc
@pytest.mark.parametrize("accumulation", ACCUMULATIONS)
@pytest.mark.parametrize("case", sweep_nine_of_ten(NARROW, share=300))
def test_a_kernel_in_16_bit_rounds_what_the_simulator_rounds(case: Case, accumulation: str) -> None:
    check_case(case, *build(case), accumulation=accumulation)


SHAPES = ((1, 1, 1), (3, 5, 2), (17, 7, 9), (33, 4, 35), (70, 3, 66))
"""N, K, M: leftovers of every block, cores that get too little for one, whole blocks."""

in_order = partial(matmul, dtype=FP32, accumulation="kernel")


@cache
def product_of(shape: tuple[int, int, int], form: str, accumulate: bool) -> dict[str, np.ndarray]:
    """A, B, C before, and C after; what is added to holds whole numbers, whose sums are exact."""
    (n, k, m), generator = shape, np.random.default_rng(1)
    of_b = {"plain": (k, m), "turned": (m, k)}.get(form, (m, n, k))
    drawn = [generator.uniform(-4, 4, size).astype(np.float32) for size in ((n, k), of_b, (n, m))]
    a, b, c = map(np.rint, drawn) if accumulate else drawn
    if form in ("plain", "turned"):
        after = in_order(a, b.T if form == "turned" else b)
    else:
        taps = a[:, ::-1] if form == "reversed" else a
        after = np.concatenate([in_order(taps[row : row + 1], b[:, row].T) for row in range(n)])
    return {"A": a, "B": b, "C": c, "after": c + after if accumulate else after}


def forms(codegen: str, kernel: str) -> dict[str, Callable[..., TeamWork]]:
    """How a kernel may find B, and its work."""
    header = LIBRARY.header(codegen, kernel)
    if header.is_depthwise:
        form = "reversed" if "in_grad" in kernel else "channels"
        ways = {form: False}
    else:
        ways = {"turned" if turned else "plain": turned for turned in (False, True)}
        ways = {form: turned for form, turned in ways.items() if header.trans_b in (None, turned)}
    return {
        form: lambda n, k, m, *rest, trans_b=trans_b, **more: matmul_work(
            kernel, codegen, n, k, m, trans_b, *rest, **more
        )
        for form, trans_b in ways.items()
    }


MATMULS = [
    *(("clang-xpulp", name) for name in (*kernel_names("clang-xpulp"), *depthwise_names("clang-xpulp"))),
    *(("asm-xpulp", name) for name in kernel_names("asm-xpulp") if name.startswith("asm_")),
]


@pytest.mark.needs_gcc
@pytest.mark.parametrize(("codegen", "kernel"), MATMULS)
def test_a_matmul_is_the_product_at_any_size_on_any_team(codegen: str, kernel: str) -> None:
    for shape, (cores, accumulate) in product(SHAPES, ((1, False), (3, True), (8, False))):
        for form, work in forms(codegen, kernel).items():
            arrays = dict(product_of(shape, form, accumulate))
            after = arrays.pop("after")
            tile = laid_out(arrays)
            places = [tile.places[name] for name in "ABC"]
            addresses = (place.address for place in places)
            team = work(*shape, cores, *addresses, accumulate=accumulate)
            effect = Effect(tuple(places[:2]), (places[2],), lambda given, made=after: (made,))
            what = f"{kernel} {shape} {form}, {cores} cores, {accumulate=}"
            assert check_action(Compute(0, team=team, effect=effect), NO_OP, tile, what)
