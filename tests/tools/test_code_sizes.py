# SPDX-License-Identifier: Apache-2.0
"""The sizes of compiled code are those of the C of today."""

from __future__ import annotations

import json

import pytest

from tools.deployed.code_sizes import STORED, c_kernels, data_of, rules

AGAIN = "python -m tools.deployed.code_sizes"
KEPT = json.loads(STORED.read_text(encoding="utf-8"))


def test_bytes_and_cycles_of_records_and_words_of_arguments_are_as_the_tool_has_them() -> None:
    assert rules() == {name: KEPT[name] for name in rules()}, AGAIN


@pytest.mark.needs_ziglang
@pytest.mark.parametrize("every", [40, pytest.param(1, marks=pytest.mark.slow)])
def test_kernels_compile_to_the_bytes_of_the_file(every: int) -> None:
    found = data_of(list(c_kernels())[::every])
    for name, sizes in found.items():
        assert sizes == {key: KEPT[name][key] for key in sizes}, AGAIN
