# SPDX-License-Identifier: Apache-2.0
"""Loops of C kernels that are not those of the nest in `clang-xpulp`: names and accesses, no instructions."""

from __future__ import annotations

import re
from typing import Any

_MATMUL = re.compile(r"mm(_M)?(?:_unroll_(\d)x(\d))?(_u2)?")
_PAIRS = ("mm_unroll_2x1", "mm_unroll_2x4")


def loops_of_c(name: str) -> dict[str, Any]:
    """`names` and `nest` of a kernel file; empty where the C has the loops of `clang-xpulp`."""
    match = _MATMUL.fullmatch(name)
    if match:
        high, wide = int(match[2] or 1), int(match[3] or 1)
        return _product(bool(match[1]), high, wide, 2 if match[4] else 1, name in _PAIRS)
    return dict(OTHERS.get(name, {}))


def _block(i: str, j: str, high: int, wide: int, steps: int) -> str:
    """High x wide elements of C from (i, j) on."""

    def turn(k: str) -> str:
        loads = [f"L:A({i}+{u},{k})" for u in range(high)] + [f"L:B({k},{j}+{v})" for v in range(wide)]
        return " ".join(loads)

    stores = " ".join(f"S:C({i}+{u},{j}+{v})" for u in range(high) for v in range(wide))
    if steps == 1:
        return f"for k in 0..K jump {{ {turn('k')} }} {stores}"
    return (
        f"for k in 0..K - K % 2 step 2 jump {{ {turn('k')} {turn('k+1')} }} "
        f"for k in K - K % 2..K jump {{ {turn('k')} }} {stores}"
    )


def _strip(high: int, wide: int, steps: int) -> str:
    """Rows i to i + high."""
    text = f"for j in 0..M - M % {wide} step {wide} jump {{ {_block('i', 'j', high, wide, steps)} }}"
    if wide > 1:
        text += f" for u in 0..{high} jump {{ for j in M - M % {wide}..M jump {{ {_block('i+u', 'j', 1, 1, 1)} }} }}"
    return text


def _product(columns: bool, high: int, wide: int, steps: int, pairs: bool) -> dict[str, Any]:
    """`rows`, `pairs` or `columns` of matmul.c."""
    size, unit = ("M", wide) if columns else ("N", 1 if pairs else high)
    single = _block("i", "j", 1, 1, 1)
    names = {
        "whole": f"{size} - {size} % {unit}",
        "block": f"ceildiv(whole // {unit}, cores) * {unit}",
        "start": "min(core * block, whole)",
        "stop": "min(core * block + block, whole)",
        "idle": "start >= stop",
        "clip": "core * block + block >= whole",
    }
    if columns:
        body = f"for i in 0..N - N % {high} step {high} jump {{ {_block('i', 'j', high, wide, steps)} }}"
        if high > 1:
            inner = _block("i", "j+v", 1, 1, 1)
            body += f" for i in N - N % {high}..N jump {{ for v in 0..{wide} jump {{ {inner} }} }}"
        text = f"for j in start..stop step {wide} jump {{ {body} }}"
    elif pairs:
        text = f"for i in start..stop - (stop - start) % 2 step 2 jump {{ {_strip(2, wide, 1)} }}"
        text += f" for i in stop - (stop - start) % 2..stop jump {{ {_strip(1, wide, 1)} }}"
    else:
        text = f"for i in start..stop step {high} jump {{ {_strip(high, wide, steps)} }}"
    other = "N" if columns else "M"
    if (wide if columns else high) > 1 and not pairs:
        names |= {
            "each": f"ceildiv({other}, cores)",
            "first": f"min(core * each, {other})",
            "last": f"min(core * each + each, {other})",
            "other_idle": "first >= last",
            "other_clip": f"core * each + each >= {other}",
        }
        loops = (
            ("for i in first..last", "for j in whole..M")
            if columns
            else ("for i in whole..N", "for j in first..last")
        )
        text += f" {loops[0]} jump {{ {loops[1]} jump {{ {single} }} }}"
    nest = f"if (trans_b) {{ {text} }} else {{ {text} }}"
    if (high, wide) == (1, 1):
        over = ("0..N", "start..stop") if columns else ("start..stop", "0..M")
        alone = f"for i in {over[0]} jump {{ L:A(i,0) for j in {over[1]} jump {{ L:B(0,j) S:C(i,j) }} }}"
        nest = f"if (K == 1) {{ {alone} }} else {{ {nest} }}"
    return {"names": names, "nest": nest}


OTHERS: dict[str, dict[str, Any]] = {}
"""Of other kernels."""
