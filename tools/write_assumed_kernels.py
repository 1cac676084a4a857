# SPDX-License-Identifier: Apache-2.0
"""Write the kernels no listing and no measurement exists for: 16-bit matmuls and the depthwise family.

    python tools/write_assumed_kernels.py [OUT_DIR]

OUT_DIR is configs/kernels/clang-xpulp. The 16-bit kernels without SIMD are the nests of their fp32
counterparts with 2-byte accesses. The SIMD kernels and the depthwise family come from one template each;
what a template assumes stands at the head of every file it writes.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent / "configs" / "kernels" / "clang-xpulp"

SCALAR = {
    "mm_fp16": "mm",
    "mm_M_fp16": "mm_M",
    "mm_fp16_unroll_2x1": "mm_unroll_2x1",
    "mm_fp16_unroll_4x1": "mm_unroll_4x1",
    "mm_fp16_unroll_8x1": "mm_unroll_8x1",
}
"""16-bit kernel -> the fp32 kernel with the same loops."""

SCALAR_HEAD = """
No listing: the nest of {other}.yaml with 2-byte loads and stores, and the scalar 16-bit multiply-add in
place of the fp32 one. Loops, chunks and fallbacks of both are the same in the library.
"""

SIMD_HEAD = """
No listing. Per inner iteration (two k) as counted from the library's source: {inner}. Assumed: operands
and accumulators stay in registers, every pointer has a post-increment, loads come first, then broadcasts,
then multiply-adds. Around it: one constant per accumulator, one move per pointer and one for the trip
count; an odd K adds half-word loads and scalar multiply-adds per tile; with B transposed every output is
the sum of two lanes (shift, add), packed in pairs for the store. Row and column levels as in the fp32
kernels of the same split.
"""

DW_HEAD = """
Of the branch `pulp-trainlib-paper` (2022); no listing. C(n,m) = sum over k of A(n,k) B(m,n,k): N channels
over the cores, K taps, M positions, B the rows of im2row. Assumed: an inner loop of post-increment loads
and multiply-adds, one constant per accumulator, one move per pointer and one for the trip count. The
columns left over by the unrolling are computed again after every block of columns, as published.
"""


def scalar(name: str, other: str) -> str:
    """A 16-bit kernel without SIMD from its fp32 counterpart."""
    text = (HERE / f"{other}.yaml").read_text(encoding="utf-8")
    renamed = {fp32: half for half, fp32 in SCALAR.items()}
    text = re.sub(r"\b(mm\w*)\b", lambda match: renamed.get(match[1], match[1]), text)
    text = re.sub(r"\b([LS])(\+?):", r"\1\2.2:", text)
    text = re.sub(r"^measured: .*\n", "", text, flags=re.MULTILINE)
    text = text.replace("arrays:", "element_bytes: 2\narrays:", 1)
    return wrapped(SCALAR_HEAD.format(other=other)) + text


def plus(base: str, offset: int) -> str:
    """`i` and 2 -> `i+2`."""
    return f"{base}+{offset}" if offset else base


def lane_tile(row: str, rows: int, cols: int, trans: bool, split: str) -> str:
    """A tile of rows x cols, two k at a time: body of the loop over tiles."""
    r, v = range(rows), range(cols)
    pairs = range(cols // 2)
    sums = [f"c{a}{b}" for a in r for b in (v if trans else pairs)]
    a_loads = [f"L+:A({plus(row, a)},k)[a{a}<]" for a in r]
    tail_a = [f"L.2:A({plus(row, a)},K-1)[a{a}<]" for a in r]
    if trans:
        b_loads = [f"L+:B(k,{plus('j', b)})[b{b}<]" for b in v]
        tail_b = [f"L.2:B(K-1,{plus('j', b)})[b{b}<]" for b in v]
        middle: list[str] = []
        adds = [f"F[c{a}{b}<a{a},b{b},c{a}{b}]" for a in r for b in v]
        tail = [*tail_a, *tail_b, *adds]
        finish = [f"A[h<{c}] f[{c}<{c},h]" for c in sums]
        stores = [
            f"A[{low}<{low},c{a}{2 * p + 1}] S.4:C({plus(row, a)},{plus('j', 2 * p)})[<{low}]"
            for a in r
            for p in pairs
            for low in (f"c{a}{2 * p}",)
        ]
        pointers = rows + cols
    else:
        b_loads = [
            f"L+:B({k},{plus('j', 2 * p)})[{b}{p}<]" for k, b in (("k", "b"), ("k+1", "d")) for p in pairs
        ]
        tail_b = [f"L.4:B(K-1,{plus('j', 2 * p)})[b{p}<]" for p in pairs]
        middle = [f"A[x{a}<a{a}] A[y{a}<a{a}]" for a in r]
        adds = [
            f"F[c{a}{p}<{x}{a},{b}{p},c{a}{p}]" for a in r for x, b in (("x", "b"), ("y", "d")) for p in pairs
        ]
        first = [add for add in adds if "<x" in add]
        tail = [*tail_a, *[f"A[x{a}<a{a}]" for a in r], *tail_b, *first]
        finish = []
        stores = [f"S.4:C({plus(row, a)},{plus('j', 2 * p)})[<c{a}{p}]" for a in r for p in pairs]
        pointers = rows + 2
    lines = [
        f"V*{len(sums) + pointers + 1} H",
        "for k in 0..K - K % 2 step 2 hw {",
        *("  " + line for line in filled([*a_loads, *b_loads, *middle, *adds])),
        "}",
        "B?(K % 2 == 0)",
        "if (K % 2) {",
        *("  " + line for line in filled(tail)),
        "}",
        *filled(["V", "U" if split == "M" else "A", "A*2", *finish, *stores, "A B"]),
    ]
    return "\n".join(lines)


def filled(tokens: list[str], width: int = 84) -> list[str]:
    """Tokens in lines."""
    lines = [""]
    for token in tokens:
        if len(lines[-1]) + len(token) > width:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + token
    return lines


def block(head: str, body: str) -> str:
    """`head {` body `}`."""
    inner = "\n".join("  " + line if line else line for line in body.split("\n"))
    return f"{head} {{\n{inner}\n}}"


def outputs(row: str, column: str) -> str:
    """One output by itself, as in the scalar leftovers."""
    return (
        f"V*4 H\nfor k in 0..K hw {{ L+.2:A({row},k) L+.2:B(k,{column}) F' }}\n"
        f"V A*3 S.2:C({row},{column}) A B"
    )


def simd(name: str, split: str, rows: int, cols: int, fallbacks: list[tuple[str, str]]) -> str:
    """A SIMD kernel of the library."""
    whole = "N" if split == "N" else f"M - M % {cols}"
    names = {
        "block": f"ceildiv({whole}, cores)",
        "start": "core * block",
        "clip": f"start + block >= {whole}",
        "stop": f"min(start + block, {whole})",
        "idle": "start >= stop",
    }
    if split == "N":
        names["rows"] = "stop - start"
    else:
        names |= {
            "other_block": "ceildiv(N, cores)",
            "other_start": "core * other_block",
            "other_clip": "other_start + other_block >= N",
            "other_stop": "min(other_start + other_block, N)",
            "other_idle": "other_start >= other_stop",
        }
    start = "A S*12 L*2 C A*3 U A' B?(not clip) if (clip) { V }"
    paths = [(over_rows if split == "N" else over_columns)(rows, cols, trans) for trans in (True, False)]
    nest = (
        f"{start} {'V B! ' * len(fallbacks)}L*5 B?(not trans_b)\n"
        f"{block('if (trans_b)', paths[0])} else {{\n{block('', paths[1])[3:]}\nL*12 A J"
    )
    inner = (
        f"{rows} A and {cols} B vector loads, {2 * rows} broadcasts and {rows * cols} multiply-adds, or with "
        f"B transposed {rows + cols} loads and {rows * cols} multiply-adds"
    )
    cost = [f"{start} {'V B! ' * index}V B L*12 A J" for index in range(len(fallbacks))]
    return "".join(
        [
            wrapped(SIMD_HEAD.format(inner=inner)),
            f"kernel: {name}\n",
            f"about: {'rows' if split == 'N' else 'columns'} over cores, "
            f"blocks of {rows} by {cols}, two k at a time\n",
            f"code_bytes: {900 if rows == 1 else 2000}\nelement_bytes: 2\n",
            "arrays: {A: 2, B: 2, C: 2}\nnames:\n",
            *(f"  {key}: {value}\n" for key, value in names.items()),
            "fallback:\n",
            *(
                f"  - when: {when}\n    use: {use}\n    cost: {text}\n"
                for (when, use), text in zip(fallbacks, cost, strict=True)
            ),
            "nest: |\n",
            *("  " + line + "\n" for line in nest.split("\n")),
        ]
    )


def wrapped(text: str) -> str:
    """A comment block with lines of at most 112 characters."""
    words = " ".join(line.lstrip("# ") for line in text.splitlines()).split()
    return "".join(f"# {line}\n" for line in filled(words, 110))


def over_rows(rows: int, cols: int, trans: bool) -> str:
    """Rows over the cores: all levels inside the choice of transposition."""
    tiles = f"for j in 0..M - M % {cols} step {cols} branch"
    rest = f"for j in M - M % {cols}..M branch"
    if rows == 1:
        main = block(
            "for i in start..stop branch",
            f"V U A' A V*2\n{block(tiles, lane_tile('i', 1, cols, trans, 'N'))}\nA*2 B",
        )
        left = block("for i in start..stop branch", f"V U A' A\n{outputs('i', 'M-1')}")
        main = block("if (not idle)", "A B A*2 U A U A*2 V J\n" + main)
        left = block("if (not idle)", "A U*3 A*5 J\n" + left)
        return f"B?(idle)\n{main}\nA B?(M % 2 == 0)\n{block('if (M % 2)', 'B?(idle)' + chr(10) + left)}"
    left_rows = block("for ii in i..i + 2 branch", f"U A' A V*2\n{block(rest, outputs('ii', 'j'))}\nA*2 B")
    pair = block(
        "for i in start..stop - 1 step 2 branch",
        f"V U A' A V*2\n{block(tiles, lane_tile('i', 2, cols, trans, 'N'))}\nB?(M % {cols} == 0)\n"
        f"{block(f'if (M % {cols})', 'V' + chr(10) + left_rows)}\nA*2 B",
    )
    last = (
        f"A U*2 A*3 V\n{block(tiles, lane_tile('stop-1', 1, cols, trans, 'N'))}\nB?(M % {cols} == 0)\n"
        f"{block(f'if (M % {cols})', 'U A*2' + chr(10) + block(rest, outputs('stop-1', 'j')))}"
    )
    return "B?(idle)\n" + block(
        "if (not idle)",
        f"A B A*2 U A U A*2 V J\n{pair}\nB?(rows % 2 == 0)\n{block('if (rows % 2)', last)}",
    )


def over_columns(rows: int, cols: int, trans: bool) -> str:
    """Columns over the cores, the columns left over by the tiles over the rows."""
    step = f" step {rows}" if rows > 1 else ""
    whole = "N" if rows == 1 else f"N - N % {rows}"
    tiles = block(f"for i in 0..{whole}{step} branch", lane_tile("i", rows, cols, trans, "M"))
    odd = ""
    if rows > 1:
        single = block(f"for jj in j..j + {cols} branch", outputs("N-1", "jj"))
        odd = f"B?(N % {rows} == 0)\n{block(f'if (N % {rows})', 'U A J' + chr(10) + single)}\n"
    main = block(f"for j in start..stop step {cols} branch", f"V A*2 V A\n{tiles}\n{odd}A*2 B")
    left = block(
        "for ii in other_start..other_stop branch",
        f"U A' A V*2\n{block(f'for jj in M - M % {cols}..M branch', outputs('ii', 'jj'))}\nA*2 B",
    )
    rest = "A*2 U A' B?(not other_clip) if (other_clip) { V } B?(other_idle)\n" + block(
        "if (not other_idle)", f"B A U*2 A U A*4 J\n{left}"
    )
    return (
        f"B?(idle)\n{block('if (not idle)', 'U B A*2 U A*2 U A*3 J' + chr(10) + main)}\n"
        f"B?(M % {cols} == 0)\n{block(f'if (M % {cols})', rest)}"
    )


def depthwise(name: str, cols: int, taps: int, flipped: bool) -> str:
    """A kernel of the depthwise family: blocks of `cols` positions, `taps` taps a turn."""

    def tap(offset: int, position: str, width: int, at: str = "t") -> str:
        where = plus(at, offset)
        weight = f"K-1-{at}" + (f"-{offset}" if offset else "") if flipped else where
        loads = [
            f"L+:A(c,{weight})[a<]",
            *(f"L+:B({where},c,{plus(position, v)})[b{v}<]" for v in range(width)),
        ]
        return " ".join([*loads, *(f"F[s{v}<a,b{v},s{v}]" for v in range(width))])

    def outputs_of(position: str, width: int) -> str:
        bounds = "0..K hw" if taps == 1 else f"0..K - K % {taps} step {taps} hw"
        turns = "\n".join("  " + tap(u, position, width) for u in range(taps))
        odd = ""
        if taps > 1:
            one = block(f"for t in K - K % {taps}..K branch", tap(0, position, width) + "\nB")
            odd = f"B?(K % {taps} == 0)\n{block(f'if (K % {taps})', one)}\n"
        stores = " ".join(f"S:C(c,{plus(position, v)})[<s{v}]" for v in range(width))
        return f"V*{2 * width + 2} H\nfor t in {bounds} {{\n{turns}\n}}\n{odd}V A*3 {stores} A B"

    channels = "for c in start..stop branch"
    body = f"V A*2 U A'\n{block(channels, outputs_of('j', cols))}\n"
    if cols > 1:
        rest = block(f"for jj in M - M % {cols}..M branch", outputs_of("jj", 1))
        body += (
            f"B?(M % {cols} == 0)\n"
            + block(f"if (M % {cols})", block(channels, f"V A*2\n{rest}\nA*2 B"))
            + "\n"
        )
    step = f" step {cols}" if cols > 1 else ""
    bound = f"M - M % {cols}" if cols > 1 else "M"
    main = block(f"for j in 0..{bound}{step} branch", body + "A*2 B")
    start = "A S*12 L*3 C A*3 U A' B?(not clip) if (clip) { V }"
    back = f"{'V B! ' if cols > 1 else ''}"
    inner = "A B A*2 U A U A*2 V J\n" + main
    nest = f"{start} {back}L*5 B?(idle)\n{block('if (not idle)', inner)}\nL*12 A J"
    other = "mm_dw_in_grad" if flipped else "mm_dw"
    fallback = (
        f"fallback:\n  - when: M < {cols}\n    use: {other}\n    cost: {start} V B L*12 A J\n"
        if cols > 1
        else ""
    )
    return (
        wrapped(DW_HEAD)
        + f"kernel: {name}\nabout: depthwise, channels over cores, {cols} positions and {taps} taps a turn"
        + (", weights reversed" if flipped else "")
        + f"\ncode_bytes: {300 + 80 * cols * taps}\narrays: {{A: 2, B: 3, C: 2}}\nnames:\n"
        "  block: ceildiv(N, cores)\n  start: core * block\n  clip: start + block >= N\n"
        "  stop: min(start + block, N)\n  idle: start >= stop\n"
        + fallback
        + "nest: |\n"
        + "".join("  " + line + "\n" for line in nest.split("\n"))
    )


def main(out: Path) -> None:
    """Write all files."""
    files = {name: scalar(name, other) for name, other in SCALAR.items()}
    few = [("M < 2", "mm_fp16"), ("K < 2", "mm_fp16")]
    for prefix, split in (("mm_fp16_SIMD", "N"), ("mm_M_fp16_SIMD", "M")):
        files[f"{prefix}_2x4"] = simd(f"{prefix}_2x4", split, 1, 2, few)
        small = f"{prefix}_2x4"
        if split == "N":
            big = [("M < 4", small), ("K < 2", small), ("(N - N % 2) // cores < 2", small)]
        else:
            big = [("(M - M % 4) // cores < 4", small), ("K < 2", small), ("N < 2", small)]
        files[f"{prefix}_4x8"] = simd(f"{prefix}_4x8", split, 2, 4, big)
    for flipped in (False, True):
        suffix = "_in_grad" if flipped else ""
        for shape, cols, taps in (
            ("", 1, 1), ("_u2", 1, 2), ("_u3", 1, 3), ("_unroll_1x2", 2, 1), ("_unroll_1x4", 4, 1),
            ("_unroll_1x2_u2", 2, 2), ("_unroll_1x4_u2", 4, 2),
        ):  # fmt: skip
            name = f"mm_dw{suffix}{shape}"
            files[name] = depthwise(name, cols, taps, flipped)
    for name, text in files.items():
        (out / f"{name}.yaml").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
