# SPDX-License-Identifier: Apache-2.0
"""The 24 fp32 matmul kernels of PULP-TrainLib as PULP GCC 7 makes them: one generator for the whole family.

A kernel computes blocks of `rows` x `columns` of C, split over the cores by rows (N) or by columns (M). Its
loops, leftovers, chunks and fallbacks are those of the published sources. The instructions follow rules:

- innermost loop: one load per operand, one multiply-add per output, pointers advance by post-increment and
  the loop is a hardware loop. What GCC leaves beyond that was counted in its rv32 code: `inner_rv32` less one
  address step per pointer and the branch. Loads come first; a lone multiply-add waits for the last of them.
- registers: outputs, operands and pointers share 27. Each value beyond is reloaded and written back in every
  iteration (only 4x4 has any).
- per block: what GCC's rv32 code has (`block_rv32`), and one move per output. That one move is chosen so that
  the three published pointwise rows (1x1, 2x1, 2x4) come out, so it counts as fitted.
- per row of blocks and per call: `Constants`, fitted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tools.nest_tree import layout

REGISTERS = 27
"""Integer registers GCC can allocate; floats live there as well (rv32imcxgap9)."""


@dataclass(frozen=True)
class Constants:
    """What is not derived from the sources."""

    row_instructions: int
    """Instructions per row of blocks: pointers of the row, its stride, loop control."""
    first_call_cycles: int
    """Cycles a call waits for code it executes for the first time."""


@dataclass(frozen=True)
class Shape:
    """One kernel of the catalogue. Pairs are (B as stored, B transposed)."""

    name: str
    split: str
    """rows, rows_odd (an odd row of a core's block alone), rows_part, columns or columns_part.

    `_part`: only the multiple of the block is split this way, the rest is split over the other dimension.
    """
    rows: int
    columns: int
    inner_rv32: tuple[int, int]
    block_rv32: tuple[int, int]
    fallbacks: tuple[tuple[str, str], ...] = ()
    """(condition, kernel) in the order of the source; `part` stands for the split multiple."""
    k_step: int = 1
    transposed_columns: int = 0
    """Columns of a block where B is transposed, if not `columns`."""


KERNELS: tuple[Shape, ...] = (
    Shape("mm", "rows", 1, 1, (6, 6), (8, 8)),
    Shape("mm_u2", "rows", 1, 1, (10, 11), (10, 10), k_step=2),
    Shape("mm_unroll_1x2", "rows", 1, 2, (8, 9), (11, 11), (("M < 2", "mm"),)),
    Shape("mm_unroll_1x4", "rows", 1, 4, (12, 15), (15, 15), (("M < 4", "mm_unroll_1x2"),)),
    Shape("mm_unroll_1x8", "rows", 1, 8, (20, 27), (23, 24), (("M < 8", "mm_unroll_1x4"),)),
    Shape("mm_unroll_2x1", "rows_odd", 2, 1, (9, 9), (13, 13), (("N // cores < 2", "mm"),)),
    Shape("mm_unroll_4x1", "rows_part", 4, 1, (15, 15), (21, 21), (("part // cores < 4", "mm_unroll_2x1"),)),
    Shape("mm_unroll_8x1", "rows_part", 8, 1, (27, 27), (38, 38), (("part // cores < 8", "mm_unroll_4x1"),)),
    Shape("mm_unroll_2x2", "rows_part", 2, 2, (13, 14), (16, 16), (("part // cores < 2", "mm_unroll_1x8"),)),
    Shape(
        "mm_unroll_2x4",
        "rows_odd",
        2,
        4,
        (19, 22),
        (24, 24),
        (("N // cores < 2", "mm_unroll_1x8"), ("M < 4", "mm_unroll_2x2")),
    ),
    Shape(
        "mm_unroll_4x2",
        "rows_part",
        4,
        2,
        (21, 22),
        (28, 28),
        (("part // cores < 4", "mm_unroll_1x8"), ("M < 2", "mm_unroll_2x2")),
    ),
    Shape(
        "mm_unroll_4x4",
        "rows_part",
        4,
        4,
        (31, 34),
        (44, 44),
        (
            ("part // cores < 2", "mm_unroll_1x8"),
            ("part // cores < 4", "mm_unroll_2x4"),
            ("M < 4", "mm_unroll_2x2"),
        ),
    ),
    Shape("mm_M", "columns", 1, 1, (6, 6), (9, 9)),
    Shape("mm_M_u2", "columns", 1, 1, (10, 11), (9, 10), k_step=2),
    Shape("mm_M_unroll_1x2", "columns_part", 1, 2, (8, 9), (11, 11), (("part // cores < 2", "mm_M"),)),
    Shape(
        "mm_M_unroll_1x4",
        "columns_part",
        1,
        4,
        (12, 9),
        (15, 11),
        (("part // cores < 4", "mm_M_unroll_1x2"),),
        transposed_columns=2,
    ),
    Shape(
        "mm_M_unroll_1x8",
        "columns_part",
        1,
        8,
        (20, 27),
        (23, 28),
        (("part // cores < 8", "mm_M_unroll_1x4"),),
    ),
    Shape("mm_M_unroll_2x1", "columns", 2, 1, (10, 10), (14, 14), (("N < 2", "mm_M"),)),
    Shape("mm_M_unroll_4x1", "columns", 4, 1, (16, 16), (24, 24), (("N < 4", "mm_M_unroll_2x1"),)),
    Shape("mm_M_unroll_8x1", "columns", 8, 1, (28, 28), (46, 46), (("N < 8", "mm_M_unroll_4x1"),)),
    Shape(
        "mm_M_unroll_2x2",
        "columns_part",
        2,
        2,
        (12, 14),
        (16, 16),
        (("part // cores < 2", "mm_M_unroll_8x1"),),
    ),
    Shape(
        "mm_M_unroll_2x4",
        "columns_part",
        2,
        4,
        (18, 22),
        (24, 24),
        (("part // cores < 4", "mm_M_unroll_8x1"), ("N < 2", "mm_M_unroll_2x2")),
    ),
    Shape(
        "mm_M_unroll_4x2",
        "columns_part",
        4,
        2,
        (20, 22),
        (28, 28),
        (("part // cores < 2", "mm_M_unroll_8x1"), ("N < 4", "mm_M_unroll_2x2")),
    ),
    Shape(
        "mm_M_unroll_4x4",
        "columns_part",
        4,
        4,
        (30, 34),
        (44, 48),
        (
            ("part // cores < 2", "mm_M_unroll_8x1"),
            ("part // cores < 4", "mm_M_unroll_4x2"),
            ("N < 4", "mm_M_unroll_2x2"),
        ),
    ),
)
"""The catalogue; counts of GCC's rv32 code per inner iteration and per block outside it."""

PUBLISHED = {
    **{name: f"kernel={name}" for name in ("mm", "mm_unroll_2x1", "mm_unroll_2x4")},
    "mm_M": "kernel=mm+mm_M",
}
"""Kernels with published cycles, and which rows these are."""

FITTED = "fitted: tutorial-anchors.csv cores=1"
"""The rows the constants were read off, as every file says."""

SINGLE = KERNELS[0]
"""The code of leftovers: one output at a time."""


def _times(code: str, count: int) -> str:
    return f"{code}*{count} " if count > 1 else f"{code} " if count == 1 else ""


def _at(variable: str, offset: int) -> str:
    return f"{variable}+{offset}" if offset else variable


def spills(rows: int, columns: int, transposed: bool) -> int:
    """Values of an inner iteration for which there is no register."""
    pointers = rows + (columns if transposed else 1)
    return max(0, rows * columns + rows + columns + pointers - REGISTERS)


def left_by_gcc(shape: Shape, rows: int, columns: int, transposed: bool) -> int:
    """Instructions of an inner iteration beyond loads, multiply-adds, address steps and the branch."""
    work = (rows + columns + rows * columns) * shape.k_step
    pointers = rows + (columns if transposed else 1)
    return shape.inner_rv32[transposed] - work - pointers - 1


def block(shape: Shape, rows: int, columns: int, transposed: bool, row: str, column: str) -> str:
    """The code of one block of C with its inner loop, without the branch that closes the loop around it."""
    outputs = rows * columns
    spilled = spills(rows, columns, transposed)
    loads, adds = [], []
    for step in range(shape.k_step):
        k = _at("k", step)
        loads += [f"L+:A({_at(row, r)},{k})" for r in range(rows)]
        loads += [f"L+:B({k},{_at(column, c)})" for c in range(columns)]
        adds += ["F"] * outputs
    if len(adds) == 1:
        adds = ["F'"]
    extra = left_by_gcc(shape, rows, columns, transposed)
    inner = (
        f"{_times('L', spilled)}{' '.join(loads)} {' '.join(adds)} {_times('A', extra)}{_times('S', spilled)}"
    )
    count = shape.block_rv32[transposed] + outputs
    stores = " ".join(f"S:C({_at(row, r)},{_at(column, c)})" for r in range(rows) for c in range(columns))
    integer = count - 2 * outputs - 2
    bounds = f"0..K - K % {shape.k_step} step {shape.k_step}" if shape.k_step > 1 else "0..K"
    before = integer // 2
    return (
        f"{_times('V', outputs)}{_times('A', integer - before)}H for k in {bounds} hw {{ {inner}}} "
        f"{_times('A', before)}{stores}"
    )


def single(row: str, column: str, transposed: bool) -> str:
    """One output of a leftover row or column, with the branch that closes its loop."""
    return block(SINGLE, 1, 1, transposed, row, column) + " B"


class Writer:
    """Writes the nest of one kernel."""

    def __init__(self, shape: Shape, constants: Constants) -> None:
        self.shape = shape
        self.row = f"V U A' {_times('A', constants.row_instructions - 4)}"
        self.first_call = f"for e in 0..{constants.first_call_cycles} hw {{ V }}"
        outputs = shape.rows * shape.columns
        self.saved = min(12, 3 + outputs)
        self.call_instructions = 30 + 4 * (outputs - 1)
        self.by_rows = shape.split.startswith("rows")
        self.part = shape.split.endswith("_part")

    def prologue(self) -> str:
        """Up to the test for an empty share; with the epilogue 30 instructions (1x1) to 90 (4x4)."""
        fixed = 2 * self.saved + 9 + 9 + 2
        more = max(0, self.call_instructions - fixed)
        return (
            f"A {_times('S', self.saved)}L*8 C A*3 U A' B?(not clip) if (clip) {{ V }} {_times('A', more)}"
            f"{self.first_call}"
        )

    def epilogue(self) -> str:
        """Restores what the prologue saved."""
        return f"{_times('L', self.saved)}A J"

    def names(self) -> dict[str, str]:
        """Chunks of ceil(extent / cores)."""
        extent, other = ("N", "M") if self.by_rows else ("M", "N")
        size = self.shape.rows if self.by_rows else self.shape.columns
        names: dict[str, str] = {}
        if self.part:
            names["part"] = f"{extent} - {extent} % {size}"
            extent = "part"
        names |= {
            "block": f"ceildiv({extent}, cores)",
            "start": "core * block",
            "clip": f"start + block >= {extent}",
            "stop": f"min(start + block, {extent})",
            "idle": "start >= stop",
        }
        if self.shape.split == "rows_odd":
            names["rows"] = "stop - start"
        if self.part:
            names |= {
                "other_block": f"ceildiv({other}, cores)",
                "other_start": "core * other_block",
                "other_stop": f"min(other_start + other_block, {other})",
            }
        return names

    def nest(self) -> str:
        """The whole text."""
        transposed, straight = self.half(True), self.half(False)
        if transposed != straight:
            body = f"if (trans_b) {{ {transposed} }} else {{ {straight} }}"
        else:
            body = straight
        return f"{self.prologue()} B?(idle) {body} {self.epilogue()}"

    def half(self, transposed: bool) -> str:
        """Both loops around the blocks and all leftovers, for one way B is stored."""
        shape = self.shape
        columns = (transposed and shape.transposed_columns) or shape.columns
        main = self.over_rows(columns, transposed) if self.by_rows else self.over_columns(columns, transposed)
        if shape.k_step > 1:
            main += f" B?(K % 2 == 0) if (K % 2) {{ {self.odd_k()} }}"
        if shape.name == "mm":
            main = f"B?(K == 1) if (K == 1) {{ {self.outer_product()} }} else {{ {main} }}"
        text = f"if (not idle) {{ {main} }}"
        if self.part:
            text += self.rest(transposed)
        return text

    def columns_of_row(self, row: str, rows: int, columns: int, transposed: bool) -> str:
        """All blocks of one row of blocks, then its leftover columns."""
        code = block(self.shape, rows, columns, transposed, row, "j")
        if columns == 1:
            return f"{self.row}for j in 0..M branch {{ {code} B }}"
        text = f"{self.row}for j in 0..M - M % {columns} step {columns} branch {{ {code} B }} "
        text += f"B?(M % {columns} == 0) "
        if rows == 1:
            left = f"for jj in M - M % {columns}..M branch {{ {single(row, 'jj', transposed)} }}"
        else:
            left = (
                f"for ii in {row}..{row} + {rows} branch {{ {self.row}"
                f"for jj in M - M % {columns}..M branch {{ {single('ii', 'jj', transposed)} }} A*2 B }}"
            )
        return text + f"if (M % {columns}) {{ {left} }}"

    def over_rows(self, columns: int, transposed: bool) -> str:
        """Split over N."""
        rows = self.shape.rows
        if rows == 1:
            return (
                f"for i in start..stop branch {{ {self.columns_of_row('i', 1, columns, transposed)} A*2 B }}"
            )
        stop = f"stop - {rows - 1}" if self.shape.split == "rows_odd" else "stop"
        inside = self.columns_of_row("i", rows, columns, transposed)
        text = f"for i in start..{stop} step {rows} branch {{ {inside} A*2 B }}"
        if self.shape.split == "rows_odd":
            alone = self.columns_of_row("stop - 1", 1, columns, transposed).replace("stop - 1", "stop-1")
            text += f" B?(rows % 2 == 0) if (rows % 2) {{ {alone} }}"
        return text

    def over_columns(self, columns: int, transposed: bool) -> str:
        """Split over M; single outputs go along a row, blocks down a column."""
        rows = self.shape.rows
        if rows == columns == 1 == self.shape.columns:
            code = block(self.shape, 1, 1, transposed, "i", "j")
            return f"for i in 0..N branch {{ {self.row}for j in start..stop branch {{ {code} B }} A*2 B }}"
        code = block(self.shape, rows, columns, transposed, "i", "j")
        step = f" step {columns}" if columns > 1 else ""
        down = f"0..N - N % {rows} step {rows}" if rows > 1 else "0..N"
        text = f"for j in start..stop{step} branch {{ {self.row}for i in {down} branch {{ {code} B }} "
        if rows > 1:
            one = single("ii", "jj" if columns > 1 else "j", transposed)
            if columns > 1:
                one = f"{self.row}for jj in j..j + {columns} branch {{ {one} }} A*2 B"
            text += (
                f"B?(N % {rows} == 0) if (N % {rows}) {{ for ii in N - N % {rows}..N branch {{ {one} }} }} "
            )
        return text + "A*2 B }"

    def rest(self, transposed: bool) -> str:
        """What the split multiple leaves over, split over the other dimension."""
        if self.by_rows:
            rows = self.shape.rows
            return (
                f" B?(N % {rows} == 0) if (N % {rows}) {{ for i in N - N % {rows}..N branch {{ {self.row}"
                f"for j in other_start..other_stop branch {{ {single('i', 'j', transposed)} }} A*2 B }} }}"
            )
        columns = self.shape.columns
        return (
            f" B?(M % {columns} == 0) if (M % {columns}) {{ "
            f"for i in other_start..other_stop branch {{ {self.row}"
            f"for j in M - M % {columns}..M branch {{ {single('i', 'j', transposed)} }} A*2 B }} }}"
        )

    def odd_k(self) -> str:
        """The last step of an odd K, added to C in a pass of its own."""
        rows, columns = ("start..stop", "0..M") if self.by_rows else ("0..N", "start..stop")
        return (
            f"for i in {rows} branch {{ {self.row}L:A(i,K-1) H "
            f"for j in {columns} hw {{ L:C(i,j) L+:B(K-1,j) F' S+:C(i,j) }} A*2 B }}"
        )

    def outer_product(self) -> str:
        """K = 1: no accumulation; A is read again for every output because C might alias it."""
        return (
            f"for i in start..stop branch {{ {self.row}H "
            "for j in 0..M hw { L:A(i,0) L+:B(0,j) M' S+:C(i,j) } A*2 B }"
        )


def measured_line(name: str, rows: Mapping[str, str]) -> tuple[str, ...]:
    """The line of a kernel file that says which published rows have it, if any."""
    return (f"measured: tutorial-anchors.csv {rows[name]}",) if name in rows else ()


def kernel_file(shape: Shape, constants: Constants) -> str:
    """The YAML text of a kernel."""
    writer = Writer(shape, constants)
    text = writer.nest()
    what = "rows" if writer.by_rows else "columns"
    names = writer.names()
    static = text.count(" ") // 2
    lines = [
        f"kernel: {shape.name}",
        "# Written by tools/fit_gcc7.py; counts per block from the rules in tools/gcc7_matmul.py.",
        "# fitted on the 1-core layers of tutorial-anchors.csv: one of the moves per output and block,",
        f"# fitted: {constants.row_instructions} instructions in front of a row of blocks,",
        f"# fitted: {constants.first_call_cycles} cycles of a first call (loop `e`: uncached code).",
        f"about: {what} over cores, blocks of {shape.rows} by {shape.columns}",
        f"code_bytes: {4 * static}",
        "arrays: {A: 2, B: 2, C: 2}",
        *measured_line(shape.name, PUBLISHED),
        FITTED,
        "names:",
        *(f"  {name}: {value}" for name, value in names.items()),
    ]
    if shape.fallbacks:
        lines.append("fallback:")
        for when, use in shape.fallbacks:
            cost = " ".join(f"{writer.prologue()} B! {writer.epilogue()}".split())
            lines += [f"  - when: {when}", f"    use: {use}", f"    cost: {cost}"]
    lines += ["nest: |", *layout(text, 1)]
    return "\n".join(lines) + "\n"
