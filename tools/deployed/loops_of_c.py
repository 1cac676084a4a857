# SPDX-License-Identifier: Apache-2.0
"""Loops of C kernels that are not those of the nest in `clang-xpulp`: names and accesses, no instructions.

`only`: which calls are read, where the C decides by numbers that the nest is not called with.
"""

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
        single = _block("i+u", "j", 1, 1, 1)
        text += f" for u in 0..{high} jump {{ for j in M - M % {wide}..M jump {{ {single} }} }}"
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


def _own(items: str) -> dict[str, str]:
    """`pt_own`."""
    return {
        "block": f"ceildiv({items}, cores)",
        "start": f"min(core * block, {items})",
        "stop": f"min(core * block + block, {items})",
        "idle": "start >= stop",
        "clip": f"core * block + block >= {items}",
    }


def _windows(high: str, wide: str, inside: str, outside: str, store: str = "") -> str:
    """Kernel positions of windows, one by one: `rows_in` x `cols_in` are inside the image."""
    return (
        f"for h in 0..{high} jump {{ for w in 0..{wide} jump {{ {store} }} }} "
        f"for y in 0..rows_in * {wide} jump {{ }} for y in 0..rows_out * {wide} jump {{ }} "
        f"for e in 0..rows_in * cols_in jump {{ {inside} }} "
        f"for e in 0..rows_in * cols_out jump {{ {outside} }}"
    )


def _patches(high: str, wide: str, *, both: bool) -> dict[str, Any]:
    """`of_planes` of im2row.c, where the border is counted by channel."""
    size = "h*stride+y,w*stride+x" if both else "h+y,w+x"
    loops = "for h in 0..{0} jump {{ for w in 0..{1} jump {{ for c in start..stop jump {{ {2} }} }} }}"
    copied = f"for y in 0..hk jump {{ for x in 0..wk jump {{ L:X(c,{size}) S:R(h,w,c,y,x) }} }}"
    tested = loops.format(high, wide, "for y in 0..hk jump { for x in 0..wk jump { S:R(h,w,c,y,x) } }")
    tested += (
        " for c in start..stop jump { for e in 0..rows_in * cols_in jump { L:X(c,0,e) } "
        f"for e in 0..rows_in * cols_out jump {{ }} for e in 0..rows_in * {wide} jump {{ }} "
        f"for e in 0..rows_out * {wide} jump {{ }} }}"
    )
    if both:
        nest = f"if (padded) {{ {tested} }} else {{ {loops.format(high, wide, copied)} }}"
    else:
        nest = f"if (stride == 1) {{ {tested} }} else {{ {tested} }}"
    only = "1" if both else "divisor_h == stride and divisor_w == stride"
    return {"names": _own("ci"), "nest": nest, "only": only}


_INSIDE = (
    "top >= 0 and left >= 0 and (ho - 1) * step_h + top + hk <= hi and (wo - 1) * step_w + left + wk <= wi"
)
"""Windows of pooling without padding."""

OTHERS: dict[str, dict[str, Any]] = {
    **{name: {"only": _INSIDE} for name in ("avgpool_fw", "avgpool_bw", "maxpool_fw", "maxpool_fw_argmax")},
    "reduce_max_fw": {
        "nest": "if (wide) { for p in 0..outer jump { for i in start..stop jump { "
        "for r in 0..count jump { L:X(p,r,i) } S:Y(p,i) } } } else { for p in start..stop jump { "
        "for i in 0..inner jump { for r in 0..count jump { L:X(p,r,i) } S:Y(p,i) } } }",
    },
    "row_max": {"nest": "for i in start..stop jump { for j in 0..M jump { L:X(i,j) } S:R(i) }"},
    "transpose_matrix": {
        "names": {"larger": "max(N, M)", **_own("larger")},
        "nest": "if (M > N) { for i in 0..N jump { for j in start..stop jump { L:X(i,j) S:Y(j,i) } } } "
        "else { for i in start..stop jump { for j in 0..M jump { L:X(i,j) S:Y(j,i) } } }",
    },
    "vect_sum": {
        "only": "repeated == (G_n < elements)",
        "names": _own("elements"),
        "nest": "if (repeated) { for i in start..stop jump { L:X(i) L:G(0) S:Y(i) } } "
        "else { for i in start..stop jump { L:X(i) L:G(i) S:Y(i) } }",
    },
    "im2row_fw": _patches("ho", "wo", both=True),
    "im2row_ig": _patches("hi", "wi", both=False),
    "dw_ig": {
        "names": _own("ci"),
        "nest": "for c in start..stop jump { "
        + _windows("hi", "wi", "L:W(c,0,e) L:Y(c,0,e)", "", "S:X(c,h,w)")
        + " }",
    },
    "dw_wg": {
        "names": _own("ci"),
        "nest": "for c in start..stop jump { for y in 0..hk jump { for x in 0..wk jump { "
        "for h in 0..ho jump { for w in 0..wo jump { L:Y(c,h,w) L:X(c,h+y,w+x) } } S:W(c,y,x) } } }",
    },
    "conv_direct_ig": {
        "names": _own("channels"),
        "nest": "if (strided) { NEST } else { NEST }".replace(
            "NEST",
            "for c in start..stop jump { for p in 0..hi * wi jump { S:X(c,p) } for o in 0..depth jump { "
            + _windows("hi", "wi", "L:W(c,o,e) L:Y(c*step+o,0,e)", "")
            + " } }",
        ),
    },
    **{
        f"{name}_channels": {
            "names": _own("channels"),
            "nest": "for c in start..stop jump { for n in 0..samples jump { L:W(c) "
            f"for i in 0..elements jump {{ {loads} S:Y(n,c,i) }} }} }}",
        }
        for name, loads in (("prelu_fw", "L:X(n,c,i)"), ("prelu_bw", "L:X(n,c,i) L:G(n,c,i)"))
    },
    "rmsnorm_scale": {
        "names": _own("elements"),
        "nest": "for r in 0..rows jump { L:R(r) for i in start..stop jump { L:X(r,i) L:W(i) S:Y(r,i) } }",
    },
    "rmsnorm_sum": {
        "names": _own("rows"),
        "nest": "for r in start..stop jump { for i in 0..elements jump { L:X(r,i) } S:R(r) }",
    },
    "cross_entropy_fw": {
        "names": {},
        "nest": "for i in 1..elements jump { L:X(i) } for i in 0..elements jump { L:X(i) } "
        "for i in 1..elements jump { } if (soft) { for i in 0..elements jump { L:T(i) L:X(i) } } "
        "else { for i in 0..elements jump { L:X(i) } } S:Y(0)",
    },
    "cross_entropy_bw": {
        "names": {},
        "nest": "for i in 1..elements jump { L:X(i) } for i in 0..elements jump { L:X(i) } "
        "for i in 1..elements jump { } if (soft) { for i in 0..elements jump { L:T(i) } "
        "for i in 0..elements jump { L:X(i) L:T(i) S:Y(i) } } else { for i in 0..elements jump { } "
        "for i in 0..elements jump { L:X(i) S:Y(i) } }",
    },
}
"""Of other kernels, by name."""
