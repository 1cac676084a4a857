# SPDX-License-Identifier: Apache-2.0
"""export-rv32: nests read off the compiled C, against whole exports that were executed (docs/deploy.md).

No shape of these models was read. The counts are those of `python -m tools.deployed.instructions`.
"""

from __future__ import annotations

from collections import defaultdict

import pytest

from pulptrain.deploying.deployed import EXPORTED
from tools.deployed.instructions import FAR, rows, walks_by_model
from tools.deployed.rv32 import Decoded, Program, decode
from tools.deployed.walked import sums
from trainlib.kernels.catalogue import matmul_work
from trainlib.kernels.team import Array, team_work

AN_ITERATION = 0.01

BY_DATA = {"gelu_fw_erf", "gelu_bw_erf", "tanh_fw"}
"""Kernels that branch on data have the shares of other data."""

MOST_BY_DATA = 0.03
"""GELU of tiny-vit was counted on 204 numbers."""


def off(sums: dict[str, list[int]], most: float) -> set[str]:
    """Names of predicted and counted sums that are farther apart."""
    return {name for name, (predicted, counted) in sums.items() if abs(predicted / counted - 1) > most}


def test_iterations_have_the_instructions_that_were_counted() -> None:
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for model, _, predicted, counted in rows():
        sums[model][0] += predicted
        sums[model][1] += counted
    assert len(sums) >= 10
    assert off(sums, AN_ITERATION) == set()


def test_kernels_have_the_instructions_that_were_counted() -> None:
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for _, kernels, predicted, counted in rows():
        sums[kernels][0] += predicted
        sums[kernels][1] += counted
    assert len(sums) >= 20
    assert off(sums, FAR) <= BY_DATA
    assert off(sums, MOST_BY_DATA) == set()


@pytest.mark.parametrize("kernel", ["gelu_erf_fw", "tanh_fw"])
def test_few_elements_a_core_have_the_shares_of_many(kernel: str) -> None:
    """Each core's own rounding left out up to 40 % of them."""

    def instructions(elements: int) -> float:
        arrays = {name: Array(address, (1,), 4) for name, address in (("X", 0), ("Y", 1 << 16))}
        return sum(team_work(EXPORTED, kernel, {"elements": elements}, arrays, 8).issued)

    each = (instructions(8008) - instructions(4008)) / 4000
    for one in (8, 16, 24, 40):
        assert instructions(one) - instructions(8) == pytest.approx(each * (one - 8), rel=0.03, abs=each / 2)


def test_the_walk_of_tables_is_priced_as_it_is_executed() -> None:
    """Of the first five models the prices were read off; the others test them."""
    for model, walks in walks_by_model().items():
        _, _, cycles, priced = sums(walks)
        assert abs(priced / cycles - 1) <= 0.05, model
    assert len(walks_by_model()) >= 8


@pytest.mark.parametrize("kernel", ["mm", "mm_M", "mm_u2", "mm_unroll_2x4", "mm_M_unroll_4x2"])
def test_matmuls_add_to_c_too(kernel: str) -> None:
    """Derived by the rule of all codegens: every sum is loaded instead of cleared."""
    plain, adding = (
        matmul_work(kernel, EXPORTED, 16, 7, 12, True, 1, 0, 4000, 8000, accumulate=accumulate)
        for accumulate in (False, True)
    )
    assert 0 <= adding.issued[0] - plain.issued[0] <= 16 * 12


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        (0x0505A503, Decoded("L", 4, 10, (11,), 4, 11)),  # lw a0,80(a1)
        (0x00A58423, Decoded("S", 4, 0, (10, 11), 1, 11)),  # sb a0,8(a1)
        (0x68C5F543, Decoded("F", 4, 10, (11, 12, 13))),  # fmadd.s a0,a1,a2,a3
        (0x10C5F553, Decoded("M", 4, 10, (11, 12))),  # fmul.s a0,a1,a2
        (0x5805F553, Decoded("D", 4, 10, (11,))),  # fsqrt.s a0,a1
        (0x02C5C533, Decoded("Q", 4, 10, (11, 12))),  # div a0,a1,a2
        (0x4188, Decoded("L", 2, 10, (11,), 4, 11)),  # c.lw a0,0(a1)
        (0x852E, Decoded("V", 2, 10, (11,))),  # c.mv a0,a1
        (0x952E, Decoded("A", 2, 10, (10, 11))),  # c.add a0,a1
        (0x8082, Decoded("J", 2, 0, (1,))),  # ret
    ],
)
def test_instructions_are_decoded_as_the_manual_has_them(word: int, expected: Decoded) -> None:
    assert decode(word.to_bytes(4, "little"), 0) == expected


def test_straight_runs_end_where_qemu_ends_them() -> None:
    """At a page, before an instruction on two pages, behind that one, and behind a jump."""
    program, start = Program.__new__(Program), 0x1000 - 8
    program.elf = b"".join(word.to_bytes(size, "little") for word, size in (*ADDITIONS, (0x8082, 2)))
    program.loaded, program._known = [(start, 0, len(program.elf))], {}
    program.starts, program.spans = [start], [(start, start + len(program.elf), "kernel")]
    assert program.straight(start, start + 6) == [(start, start + 4), (start + 4, start + 6)]
    assert program.straight(start + 6, start + 10) == [(start + 6, start + 10)]
    assert program.straight(start + 6, start + 6) == []
    assert program.straight(start + 10, 0x40) == [(start + 10, 0x40)]


ADDITIONS = (0x00A50533, 4), (0x952E, 2), (0x00A50533, 4)
