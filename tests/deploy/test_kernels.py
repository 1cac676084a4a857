# SPDX-License-Identifier: Apache-2.0
"""C kernels compute what the kernels of the simulator compute, on the examples of every primitive."""

from __future__ import annotations

import pytest

from shared.c_kernels import check_case
from shared.primitive_harness import Case, all_cases, build
from shared.tiers import sweep_nine_of_ten

CASES = [case for case in all_cases() if case.dtype == "fp32"]


def by_primitive(case: Case) -> str:
    return case.primitive


@pytest.mark.needs_gcc
@pytest.mark.parametrize("case", sweep_nine_of_ten(CASES, by_primitive))
def test_a_kernel_in_c_computes_what_the_simulator_does(case: Case) -> None:
    check_case(case, *build(case))
