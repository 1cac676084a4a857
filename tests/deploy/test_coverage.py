# SPDX-License-Identifier: Apache-2.0
"""Every fp32 kernel a schedule can name has a C source."""

from __future__ import annotations

from scheduler.tiles.code_sizes import shipped_sizes
from tools.kernel_sources import NONE_NEEDED, covered
from trainlib.kernels.library import LIBRARY, WORDS


def test_what_examples_call_has_a_source_but_for_other_formats() -> None:
    known = covered()
    narrow = {name for name in known.refused if name.endswith(tuple(f"_{word}" for word in WORDS.values()))}
    assert set(known.refused) == narrow


def test_every_fp32_kernel_file_is_known() -> None:
    known = covered()
    files = {name for name in LIBRARY.kernel_names("clang-xpulp") if "_fp16" not in name}
    assert files <= known.sources.keys()


def test_every_kernel_with_a_source_was_compiled_for_its_size() -> None:
    """Others, as those of 16 bit only, are as large as their nests; `python -m tools.deployed.code_sizes`."""
    sources = covered().sources
    known = {name for name, file in sources.items() if file not in (NONE_NEEDED, "lanes.c")}
    compiled = {name for name in known if "fp16" not in name}
    assert compiled <= shipped_sizes()["kernels"].keys()
