"""Which blocks of straight-line code run, kernel by kernel: read from the listing, checked by 1-core counts.

`entry` is the prologue up to the branch on trans_b, `transposed` and `straight` the two halves, `exit` the
epilogue; {Lx} stands for a loop of the table. `bodies` gives the executed path of loops with several blocks.
"""

# ruff: noqa: E501 (a table)
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Paths:
    """Executed paths of one kernel."""

    about: str
    names: dict[str, str]
    entry: str
    transposed: str
    straight: str
    exit: str
    fallbacks: tuple[tuple[str, str, str], ...] = ()
    bodies: dict[str, str] = field(default_factory=dict)
    accesses: dict[str, list[str]] = field(default_factory=dict)
    fixed: dict[str, dict[str, tuple[str, int]]] = field(default_factory=dict)
    tiles: dict[str, tuple[int, int]] = field(default_factory=dict)
    loops: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Variable and bounds of loops whose table formula is not the executed one."""


ALIGNMENT_NOPS: dict[str, str] = {
    "mm.L2": "",
    "mm.L8": "",
    "mm_unroll_8x1.L1": "",
    "mm_unroll_8x1.L8": "",
    "mm_M_u2.L4": "cores == 1",
    "mm_M_unroll_1x4.L1": "",
    "mm_M_unroll_1x4.L4": "",
    "mm_M_unroll_1x8.L4": "",
    "mm_M_unroll_4x1.L1": "",
    "mm_M_unroll_8x1.L1": "",
    "mm_M_unroll_8x1.L4": "",
    "mm_M_unroll_4x2.L12": "",
    "mm_M.L4": "",
    "mm_u2.L1": "cores == 1",
    "mm_u2.L4": "",
    "mm_u2.L8": "",
    "mm_unroll_1x2.L12": "",
    "mm_unroll_1x2.L1": "cores == 1",
    "mm_unroll_1x4.L4": "",
    "mm_unroll_1x4.L14": "",
    "mm_unroll_1x4.L1": "cores == 1",
    "mm_unroll_1x8.L4": "cores == 1",
    "mm_unroll_1x8.L14": "",
    "mm_unroll_2x2.L10": "",
    "mm_unroll_2x2.L1": "",
    "mm_unroll_2x4.L12": "",
    "mm_unroll_2x4.L16": "",
    "mm_unroll_2x1.L4": "",
    "mm_unroll_2x1.L1": "cores == 1",
    "mm_unroll_2x1.L8": "",
    "mm_unroll_2x1.L13": "",
    "mm_unroll_4x1.L8": "cores != 2",
    "mm_unroll_4x1.L1": "cores == 1 or cores == 4",
    "mm_unroll_4x2.L1": "",
    "mm_unroll_4x4.L21": "",
    "mm_unroll_4x4.L10": "",
    "mm_unroll_4x4.L1": "",
    "mm_unroll_4x2.L18": "",
    "mm_M.L1": "cores == 1",
    "mm_M_unroll_1x2.L4": "",
    "mm_M_unroll_2x1.L1": "",
    "mm_M_unroll_2x1.L4": "",
    "mm_M_unroll_2x2.L10": "",
    "mm_M_unroll_2x4.L1": "",
    "mm_M_unroll_2x4.L11": "",
    "mm_unroll_4x1.L4": "cores == 8",
    "mm_M_unroll_1x2.L1": "cores >= 4",
    "mm_M_unroll_1x2.L9": "cores != 2",
    "mm_M_unroll_1x2.L14": "cores > 1",
    "mm_M_unroll_2x2.L7": "",
    "mm_M_unroll_2x2.L16": "",
    "mm_M_unroll_2x4.L3": "",
    "mm_M_unroll_2x4.L8": "",
    "mm_M_unroll_4x4.L12": "",
    "mm_M_unroll_4x4.L1": "",
    "mm_M_unroll_4x4.L9": "",
    "mm_M_unroll_4x4.L20": "",
}
"""Loops whose inner hardware loop is preceded by an alignment nop, and the builds that have it (\"\": all).

The nop depends on where the loop falls in the program, so it is visible in the instruction counts only.
"""


def split(size: str, parallel: str, other: str = "") -> dict[str, str]:
    """Names of the chunking: `size` is N or M, `parallel` the part that is split, `other` what leftovers split."""
    names = {
        "block": f"ceildiv({parallel}, cores)",
        "start": "core * block",
        "clip": f"start + block >= {parallel}",
        "stop": f"min(start + block, {parallel})",
        "idle": "start >= stop",
    }
    if other:
        names |= {
            "other_block": f"ceildiv({other}, cores)",
            "other_start": "core * other_block",
            "other_clip": f"other_start + other_block >= {other}",
            "other_stop": f"min(other_start + other_block, {other})",
            "other_idle": "other_start >= other_stop",
        }
    return names


CLIP = "B?(not clip) if (clip) { V }"
TILE_4X4 = [f"C({row},{col})" for row in ("i", "i+1", "i+2", "i+3") for col in ("j", "j+1", "j+2", "j+3")]

PATHS: dict[str, Paths] = {}

PATHS["mm"] = Paths(
    about="rows over cores, one output at a time",
    names=split("N", "N"),
    entry=f"L*2 C A*3 U A' {CLIP} A S*3 L*5 B?(not trans_b) B V B?(K != 1) B?(idle)",
    transposed="if (not idle) { if (K == 1) { B U A U A*3 J {L0} } else { B A U*2 A*2 J {L4} } }",
    straight="if (not idle) { if (K == 1) { B U A U A*3 J {L2} } else { B A U*2 A*3 {L7} } }",
    exit="L*3 A J",
    accesses={"L1": ["A(i,0)", "B(0,j)"], "L3": ["A(i,0)", "B(0,j)"]},
)
PATHS["mm_M"] = Paths(
    about="columns over cores, one output at a time",
    names=split("M", "M"),
    entry=f"L*3 C A*3 U A' {CLIP} A S*5 L*4 A*3 B?(not trans_b) B?(idle)",
    transposed="if (not idle) { B V U*2 A*3 J {L0} }",
    straight="if (not idle) { B V U A*4 J {L3} }",
    exit="L*5 A J",
)

ZERO = "V*2 A H for j in 0..M hw { V S+:C(i,j) } V A*2 B"

PATHS["mm_u2"] = Paths(
    about="rows over cores, one output at a time, two k a turn",
    names=split("N", "N"),
    entry=f"L*2 C A*3 U A' {CLIP} A S*11 L*5 B?(not trans_b) B?(idle)",
    transposed="if (not idle) { B A B?(K < 2) if (K >= 2) { A*2 U*2 A*3 V J {L0} } else "
    f"{{ U*2 A*3 V for i in start..stop branch {{ {ZERO} }} }} "
    "A B?(K % 2 == 0) if (K % 2) { B A U A U A*5 J {L8} } }",
    straight="if (not idle) { B A B?(K < 2) if (K >= 2) { A*2 U*2 A*4 V J {L3} } else "
    f"{{ U*2 A*3 V for i in start..stop branch {{ {ZERO} }} }} "
    "A B?(K % 2 == 0) if (K % 2) { B A U A U*2 A*6 {L12} } }",
    exit="L*11 A J",
    accesses={
        "L5": ["A(i,k)", "B(k,j)", "A(i,k+1)", "B(k+1,j)"],
        **{name: ["A(i,K-1)", "B(K-1,j)", "C(i,j)", "C(i,j)"] for name in ("L9", "L13")},
    },
)
PATHS["mm_unroll_1x2"] = Paths(
    about="rows over cores, blocks of 1 row by 2 columns",
    names=split("N", "N"),
    fallbacks=(("M < 2", "mm", f"A S*12 L*2 C A*3 U A' {CLIP} V B L*12 A J"),),
    entry=f"A S*12 L*2 C A*3 U A' {CLIP} V B! L*5 B?(not trans_b)",
    transposed="B?(idle) if (not idle) { A B A*2 U A U A*2 V J {L0} } A B?(M % 2 == 0) "
    "if (M % 2) { B?(idle) if (not idle) { A U*3 A*5 J {L8} } }",
    straight="B?(idle) if (not idle) { A B U A*2 U A*3 V J {L3} } A B?(M % 2 == 0) "
    "if (M % 2) { B?(idle) if (not idle) { A U A U A*4 J {L12} } }",
    exit="L*12 A J",
    fixed={name: {"col": ("M-1", 1)} for name in ("L8", "L12")},
)
PATHS["mm_unroll_1x4"] = Paths(
    about="rows over cores, blocks of 1 row by 4 columns",
    names=split("N", "N"),
    fallbacks=(("M < 4", "mm_unroll_1x2", f"A S*13 L*2 C A*3 U A' {CLIP} V B L*13 A J"),),
    entry=f"A S*13 L*2 C A*3 U A' {CLIP} V B! L*3 S' L*2 B?(not trans_b)",
    transposed="B?(idle) if (not idle) { A*2 S*4 B A*2 L A' S U A*2 S U A S A*2 V S*2 J {L0} } "
    "A L*4 B?(M % 4 == 0) if (M % 4) { B?(idle) if (not idle) { B A U*3 A*2 L A' A J {L8} } }",
    straight="B?(idle) if (not idle) { A S V B U A L A' U A*3 V J {L3} } "
    "A L B?(M % 4 == 0) if (M % 4) { B?(idle) if (not idle) { B A U A U L A' A*3 J {L13} } }",
    exit="L*13 A J",
)
PATHS["mm_unroll_1x8"] = Paths(
    about="rows over cores, blocks of 1 row by 8 columns",
    names=split("N", "N"),
    fallbacks=(("M < 8", "mm_unroll_1x4", f"A S*13 L*2 C A*3 U A' {CLIP} V B L*13 A J"),),
    entry=f"A S*13 L*2 C A*3 U A' {CLIP} V B! L*3 S' L S' L S B?(not trans_b)",
    transposed="B?(idle) if (not idle) { A S*4 B A U*2 A*3 S J {L0} } "
    "A L*4 B?(M % 8 == 0) if (M % 8) { B?(idle) if (not idle) { B A U*2 A U A*2 L A' A J {L8} } }",
    straight="B?(idle) if (not idle) { A S*3 B U A L A' U A*4 V J {L3} } "
    "A L*3 B?(M % 8 == 0) if (M % 8) { B?(idle) if (not idle) { B A U A U L A' A*3 J {L13} } }",
    exit="L*13 A J",
)
OTHER = "A*2 U A' B?(not other_clip) if (other_clip) { V } B?(other_idle)"
PATHS["mm_unroll_2x2"] = Paths(
    about="rows over cores (odd last row over columns), blocks of 2 by 2",
    names=split("N", "N - N % 2", "M"),
    fallbacks=(
        (
            "(N - N % 2) // cores < 2",
            "mm_unroll_1x8",
            "A S*13 L C A*4 U A' S B?(not clip) if (clip) { S } V B L*13 A J",
        ),
    ),
    entry="A S*13 L C A*4 U A' S B?(not clip) if (clip) { S } V B! L*3 S' L S' L*2 A S*2 B?(not trans_b)",
    transposed="S L B'?(idle) if (not idle) { A*2 S A*4 S A U L A' S A*3 S*2 J {L0} } "
    f"L*2 B'?(N % 2 == 0) if (N % 2) {{ {OTHER} if (not other_idle) "
    "{ L A' U A B U A U A U L A' A L A' A J {L7} } }",
    straight="L B'?(idle) if (not idle) { A*2 S L A' S A*5 J {L9} } "
    f"L B'?(N % 2 == 0) if (N % 2) {{ {OTHER} if (not other_idle) "
    "{ L A' U A B U A U A*2 L A' L A' A J {L16} } }",
    exit="L*13 A J",
    bodies={
        "L0": "B?(M<2) if (M>=2) { V U*4 A*4 L A' A L A' A L*4 B' {L1} A B?(M%2==0) } else { A B } if (M%2) { A*2 B U L A' J {L3} } A V L B'",
        "L9": "B?(M<2) if (M>=2) { V U*4 A*4 L A' A*3 L*2 B' {L10} A B?(M%2==0) } else { A B } if (M%2) { A*2 B U L A' J {L12} } A V L B'",
    },
    fixed={
        **{name: {"col": ("M-1", 1), "row": ("ii", 1)} for name in ("L3", "L12")},
        **{name: {"row": ("N-1", 1)} for name in ("L7", "L16")},
    },
)
PATHS["mm_unroll_2x4"] = Paths(
    about="rows over cores (an odd row of the block alone), blocks of 2 by 4",
    names=split("N", "N"),
    fallbacks=(
        ("N // cores < 2", "mm_unroll_1x8", f"A S*13 L C A*3 U A' {CLIP} V B L*13 A J"),
        ("M < 4", "mm_unroll_2x2", f"A S*13 L C A*3 U A' {CLIP} V B! L V B L*13 A J"),
    ),
    entry=f"A S*13 L C A*3 U A' {CLIP} V B! L V B! L*3 S' L*2 A*2 S A S*4 B?(not trans_b)",
    transposed="A*3 S B?(idle) if (not idle) { A*4 S L A' S A S U A S U A*2 U A S U*4 A*14 S*3 J {L0} "
    "L B'?(rows % 2 == 0) if (rows % 2) { A U*2 A*3 B V L A' A*2 L A' A*2 J {L9} "
    "L*3 B'?(M % 4 == 0) if (M % 4) { B L A' A U A L A' J {L23} } } }",
    straight="B?(idle) if (not idle) { A*2 S A*2 S U L A' S A*2 S U A U*4 A*13 L S*2 J {L11} "
    "L B'?(rows % 2 == 0) if (rows % 2) { A U*2 A*3 B V L A' L A' A J {L20} "
    "A L B?(M % 4 == 0) if (M % 4) { B L A' A*2 L A' J {L27} } } }",
    exit="L*13 A J",
    bodies={
        "L0": "S V S*2 B V A U A U A' S A*2 S L*4 J {L1} A L*6 B?(M%4==0) if (M%4) { V B {L4} V*2 B J*2 } "
        "A*2 L*2 A' L A' A L B'",
        "L11": "S V S*2 B V A U A U A' A*2 L J {L12} A L*5 B?(M%4==0) if (M%4) { V B {L15} V*2 B J*2 } "
        "L A' A L*2 A' L A' A L B'",
    },
    fixed={
        **{name: {"row": ("stop-1", 1)} for name in ("L9", "L20", "L23", "L27")},
        **{name: {"row": ("ii", 1), "col": ("j", 1)} for name in ("L5", "L16")},
    },
    accesses={
        "L1": [f"C({r},{c})" for r in ("i", "i+1") for c in ("j", "j+1", "j+2", "j+3")],
    },
)
PATHS["mm_unroll_2x4"].names["rows"] = "stop - start"


ROW_STAGED = "B?(not clip) if (clip) { S } V"
PATHS["mm_unroll_2x1"] = Paths(
    about="rows over cores (an odd row of the block alone), blocks of 2 rows by 1 column",
    names=split("N", "N") | {"rows": "stop - start"},
    fallbacks=(("N // cores < 2", "mm", f"L C A*3 U A' {CLIP} V B J"),),
    entry=f"L C A*3 U A' {CLIP} V B! A S*9 L*6 A*3 B?(not trans_b)",
    transposed="B?(idle) if (not idle) { B B U A*2 U A*2 U A*3 J {L0} "
    "B?(rows % 2 == 0) if (rows % 2) { U A*2 B V U A*3 J {L8} } }",
    straight="B?(idle) if (not idle) { B B U A*2 U A*2 U A*3 J {L3} "
    "B?(rows % 2 == 0) if (rows % 2) { U A*2 B V U A*3 J {L13} } }",
    exit="L*9 A J",
    fixed={name: {"row": ("stop-1", 1)} for name in ("L8", "L13")},
)
PATHS["mm_unroll_4x1"] = Paths(
    about="rows over cores (last rows over columns), blocks of 4 rows by 1 column",
    names=split("N", "N - N % 4", "M"),
    fallbacks=(
        ("(N - N % 4) // cores < 4", "mm_unroll_2x1", f"A S*13 L C A*4 U A' S {ROW_STAGED} B L*13 A J"),
    ),
    entry=f"A S*13 L C A*4 U A' S {ROW_STAGED} B! S*2 L*3 S' L S' L S' L A S B?(not trans_b)",
    transposed="L B'?(idle) if (not idle) { B L U' A S A U A*4 U*3 L A' A*4 J {L0} } "
    f"L*3 B'?(N % 4 == 0) if (N % 4) {{ {OTHER} if (not other_idle) "
    "{ B U*2 A*2 L A' A U A L A' J {L12} } }",
    straight="S L B'?(idle) if (not idle) { A*2 S U A*3 S A*2 U A*4 U*3 A U*3 L A' S A*6 L A' A*3 J {L3} } "
    f"L*4 B'?(N % 4 == 0) if (N % 4) {{ {OTHER} if (not other_idle) "
    "{ B U A*2 L A' A U A L A' A J {L7} } }",
    exit="L*13 A J",
    bodies={
        "L3": "S*5 B V U A*4 U*3 L A' A*6 L J {L4} L A' L A' A*2 L A' S L*2 A' L A' L A' L A' L B'",
    },
    accesses={name: [f"C({r},j)" for r in ("i", "i+1", "i+2", "i+3")] for name in ("L1", "L4")},
)
PATHS["mm_unroll_8x1"] = Paths(
    about="rows over cores (last rows over columns), blocks of 8 rows by 1 column",
    names=split("N", "N - N % 8", "M"),
    fallbacks=(
        ("(N - N % 8) // cores < 8", "mm_unroll_4x1", f"A S*13 L C A*3 U A' S {ROW_STAGED} B L*13 A J"),
    ),
    entry=f"A S*13 L C A*3 U A' S {ROW_STAGED} B! S*3 L*3 S' L S' L S' L S A S*3 B?(not trans_b)",
    transposed="L B'?(idle) if (not idle) { B L U' A S A U A S L U' U A*2 L A' S L A' A J {L0} } "
    f"L*4 B'?(N % 8 == 0) if (N % 8) {{ {OTHER} if (not other_idle) "
    "{ B U*2 A L U' A*2 L A' L A' J {L4} } }",
    straight="L B'?(idle) if (not idle) { B L U' A S A*2 U L U' U A*2 L A' S L A' A S J {L7} } "
    f"L*4 B'?(N % 8 == 0) if (N % 8) {{ {OTHER} if (not other_idle) "
    "{ B U A L U' A*2 L A' L A' A J {L11} } }",
    exit="L*13 A J",
    bodies={
        "L0": "S*2 B V U A*8 U*7 L A' S A*8 S A S A S A*4 L J {L1} L A' L*2 A' S L*2 A' L B'",
        "L7": "S*2 B V U A*8 U*7 L A' S A*8 S A*6 L J {L8} L A' L*2 A' S L*2 A' L B'",
    },
    accesses={
        name: [f"C({plus},j)" for plus in ("i", *(f"i+{n}" for n in range(1, 8)))] for name in ("L1", "L8")
    },
)
PATHS["mm_unroll_4x2"] = Paths(
    about="rows over cores (last rows over columns), blocks of 4 by 2",
    names=split("N", "N - N % 4", "M"),
    fallbacks=(
        ("(N - N % 4) // cores < 4", "mm_unroll_1x8", f"A S*13 L C A*4 U A' {CLIP} V B L*13 A J"),
        ("M < 2", "mm_unroll_2x2", f"A S*13 L C A*4 U A' {CLIP} V B! L V B L*13 A J"),
    ),
    entry=f"A S*13 L C A*4 U A' {CLIP} V B! L V B! S*2 L*2 S' L S' L S' L S A S*3 B?(not trans_b)",
    transposed="B?(idle) if (not idle) { A*2 S A*3 S A*4 S U*2 A S A*2 U A U*3 L A' S A*4 L A' A*3 L A' A U A*6 "
    f"S*5 J {{L0}} }} L*4 B'?(N % 4 == 0) if (N % 4) {{ {OTHER} if (not other_idle) "
    "{ B B U*2 A*2 L A' A U A L A' J {L7} } }",
    straight="B?(idle) if (not idle) { A*2 S A*3 S A*2 U L A' S A U A S A*2 U*3 A*4 L A' A*3 L A' S A U A S A S "
    f"A S A*2 S*4 J {{L10}} }} L*4 B'?(N % 4 == 0) if (N % 4) {{ {OTHER} if (not other_idle) "
    "{ B B U A*2 L A' A U A L A' A J {L17} } }",
    exit="L*13 A J",
    bodies={
        "L0": "S*2 V A*3 U A U*3 L A' A*6 L*10 B! B {L1} if (M%2) { A V J {L3} } A L A' A*3 L A' A V B",
        # The build for four cores reloads an address in every tile and spills one in every row.
        "L10": "S*2 V A*3 U A U*3 L A' A*6 L*10 B! B {L11} if (M%2) { A L J {L13} } "
        "if (cores == 4) { S L } A L*2 A' S L A' S L A' S L A' S L A' A V B",
        "L11": "V*9 if (cores == 4) { L A' A } L*5 H' {L12} V A*4 S S A*2 S S S S S S A B",
    },
    accesses={
        "L11": [f"C({row},{col})" for row in ("i", "i+1", "i+2", "i+3") for col in ("j", "j+1")],
    },
    loops=dict.fromkeys(("L3", "L13"), ("ii", "i..i + 4")),
    fixed={name: {"row": ("ii", 1), "col": ("M-1", 1)} for name in ("L3", "L13")},
)
PATHS["mm_unroll_4x4"] = Paths(
    about="rows over cores (last rows over columns), blocks of 4 by 4, many spills",
    names=split("N", "N - N % 4", "M"),
    fallbacks=(
        ("(N - N % 4) // cores < 2", "mm_unroll_1x8", f"A S*13 L C A*4 U A' S {ROW_STAGED} B L*13 A J"),
        ("(N - N % 4) // cores < 4", "mm_unroll_2x4", f"A S*13 L C A*4 U A' S {ROW_STAGED} B! V B L*13 A J"),
        ("M < 4", "mm_unroll_2x2", f"A S*13 L C A*4 U A' S {ROW_STAGED} B! V B! L V B L*13 A J"),
    ),
    entry=f"A S*13 L C A*4 U A' S {ROW_STAGED} B! V B! L V B! S*2 L*2 S' L S' L*2 S A S*4 B?(not trans_b)",
    transposed="L B'?(idle) if (not idle) { A*4 S A*2 S A*2 U*2 A S A S A*2 U*3 L A' S A S L U' U*2 A*5 S A*4 L A' "
    f"A*6 S*3 J {{L0}} }} L*4 B'?(N % 4 == 0) if (N % 4) {{ {OTHER} if (not other_idle) "
    "{ B B U*2 A*2 L A' A U A L A' J {L9} } }",
    straight="L B'?(idle) if (not idle) { A S A S A*2 S A*2 L A' S A U A U*4 L U' A U A*7 L A' S A S A S A S A*2 "
    f"S*3 J {{L12}} }} L*4 B'?(N % 4 == 0) if (N % 4) {{ {OTHER} if (not other_idle) "
    "{ B B U A*2 L A' A U A L A' A J {L20} } }",
    exit="L*13 A J",
    bodies={
        "L0": "S*6 B V A*3 U A U*3 A S A*4 S A S A S L*4 J {L1} L A' L*8 B?(M%4==0) if (M%4) { V*2 B {L4} J } "
        "L A' L A' L A' A L*2 A' A L B'",
        "L12": "S V A*3 S U A U*3 A S A*4 S A S A S L J {L13} L A' L*6 B?(M%4==0) if (M%4) { L V B {L15} J } "
        "L*2 A' S L A' S L A' S L A' S L A' L B'",
        # The build for four cores moves two accumulators more in every turn and every tile.
        "L14": "S L+ L L L L+ V*4 L+ F*4 L+ F*3 V*4 L F' S V*10 L F' F*3 L+ F' F*3 if (cores == 4) { V*2 }",
        "L13": "S*2 B V*14 S V if (cores == 4) { V*2 } L*4 H {L14} V J L A' A L A' L A' L A' L A' S*7 L S' S*8 L A' L*2 B'",
    },
    accesses={"L13": TILE_4X4},
)

M_ZERO = "{ V A*5 for i in 0..N branch { V*2 for j in start..stop branch { S+:C(i,j) A B } A*2 B } }"

PATHS["mm_M_u2"] = Paths(
    about="columns over cores, one output at a time, two k a turn",
    names=split("M", "M"),
    entry="A if (cores == 1) { A*4 S*2 } S*11 L*2 C A*3 U A' B?(not clip) if (clip) { V } L*5 B?(not trans_b) B?(idle)",
    transposed="if (not idle) { B A B?(K < 2) if (K >= 2) { V U A U A*4 J {L0} } else " + M_ZERO + " "
    "B?(K % 2 == 0) if (K % 2) { B V A*4 U A*5 J {L8} } }",
    straight="if (not idle) { B A B?(K < 2) if (K >= 2) { V A U A*5 J {L3} } else " + M_ZERO + " "
    "B?(K % 2 == 0) if (K % 2) { B V A*5 U A*5 {L12} } }",
    exit="L*11 if (cores == 1) { L*2 } A J",
    # The build for one core has other bodies than the listed one; these are what its counts show.
    bodies={
        "L3": "if (cores == 1) { A } U A' A V*2 {L4} A*2 B",
        "L4": "V*4 A*3 if (cores == 1) { A } H {L5} A*3 S:C(i,j) A B",
        "L5": "if (cores == 1) { L L L+ L+ F A F } else { L L L+ A L F A A F }",
    },
    accesses={
        "L5": ["A(i,k)", "B(k,j)", "A(i,k+1)", "B(k+1,j)"] * 2,
        **{name: ["A(i,K-1)", "B(K-1,j)", "C(i,j)", "C(i,j)"] for name in ("L9", "L13")},
    },
)


def m_kernel(u: int, v: int) -> dict[str, Any]:
    """Names and tile description shared by the column-parallel kernels."""
    parallel = f"M - M % {v}" if v > 1 else "M"
    return {
        "about": f"columns over cores (last columns over rows), blocks of {u} by {v}"
        if v > 1
        else f"columns over cores, blocks of {u} by 1",
        "names": split("M", parallel, "N" if v > 1 else ""),
    }


PATHS["mm_M_unroll_1x2"] = Paths(
    **m_kernel(1, 2),
    fallbacks=(("(M - M % 2) // cores < 2", "mm_M", f"A S*11 L C A*4 U A' {CLIP} V B L*11 A J"),),
    entry=f"A S*11 L C A*4 U A' {CLIP} V B! L*6 A*5 B?(not trans_b)",
    transposed="B?(idle) if (not idle) { U B A*2 U A*2 U A*3 J {L0} } "
    f"B?(M % 2 == 0) if (M % 2) {{ {OTHER} if (not other_idle) {{ B A U*2 A U A*4 J {{L8}} }} }}",
    straight="B?(idle) if (not idle) { B A U A*4 J {L3} } "
    f"B?(M % 2 == 0) if (M % 2) {{ {OTHER} if (not other_idle) {{ B A U A U A*4 J {{L13}} }} }}",
    exit="L*11 A J",
)
PATHS["mm_M_unroll_1x4"] = Paths(
    **m_kernel(1, 4),
    fallbacks=(("(M - M % 4) // cores < 4", "mm_M_unroll_1x2", f"A S*13 L C A*4 U A' {CLIP} V B L*13 A J"),),
    entry=f"A S*13 L C A*4 U A' {CLIP} V B! L*6 A*5 B?(not trans_b)",
    transposed="B?(idle) if (not idle) { U B A*2 U A*2 U A*3 J {L0} } "
    f"B?(M % 4 == 0) if (M % 4) {{ {OTHER} if (not other_idle) {{ B B A U*2 A U A*4 J {{L8}} }} }}",
    straight="S B?(idle) if (not idle) { B A U A L A' A*2 J {L3} } "
    f"L B?(M % 4 == 0) if (M % 4) {{ {OTHER} if (not other_idle) {{ B B A U A U A*4 J {{L15}} }} }}",
    exit="L*13 A J",
)
PATHS["mm_M_unroll_1x8"] = Paths(
    **m_kernel(1, 8),
    fallbacks=(("(M - M % 8) // cores < 8", "mm_M_unroll_1x4", f"A S*13 L C A*3 U A' {CLIP} V B L*13 A J"),),
    entry=f"A S*13 L C A*3 U A' {CLIP} V B! L*3 S' L S' L*2 A S*3 B?(not trans_b)",
    transposed="S*2 B?(idle) if (not idle) { B B L U' A S L U' A L A' A S J {L0} } "
    f"L*3 B'?(M % 8 == 0) if (M % 8) {{ {OTHER} if (not other_idle) "
    "{ B B L U' U*2 A*2 L A' A L A' J {L8} } }",
    straight="B?(idle) if (not idle) { B B A L U' A L A' A*2 J {L3} } "
    f"L*2 B?(M % 8 == 0) if (M % 8) {{ {OTHER} if (not other_idle) "
    "{ B B A U A U L A' A L A' A J {L15} } }",
    exit="L*13 A J",
)
PATHS["mm_M_unroll_2x1"] = Paths(
    **m_kernel(2, 1),
    fallbacks=(("N < 2", "mm_M", f"A S*13 L*2 C A*3 U A' {CLIP} V B L*13 A J"),),
    entry=f"A S*13 L*2 C A*3 U A' {CLIP} V B! L*3 S' L*2 A*2 B?(not trans_b)",
    transposed="B S*2 B?(idle) if (not idle) { B A*2 U A L U' A L A' V J {L0} "
    "L*2 B'?(N % 2 == 0) if (N % 2) { A U A B U A U A U A*2 L A' A J {L8} } }",
    straight="B S B?(idle) if (not idle) { B A*2 U A*2 L A' A V J {L3} "
    "L B'?(N % 2 == 0) if (N % 2) { A U A B U A U A*3 L A' A J {L13} } }",
    exit="L*13 A J",
    fixed={name: {"row": ("N-1", 1)} for name in ("L8", "L13")},
)
PATHS["mm_M_unroll_4x1"] = Paths(
    **m_kernel(4, 1),
    fallbacks=(("N < 4", "mm_M_unroll_2x1", f"A S*13 L*2 C A*3 U A' {CLIP} V B L*13 A J"),),
    entry=f"A S*13 L*2 C A*3 U A' {CLIP} V B! L*2 S' L*3 A*2 S*3 B?(not trans_b)",
    transposed="B S*6 B?(idle) if (not idle) { B A*3 L U' A L A' S*2 A S L U' S A S A L A' L J {L0} "
    "L*7 B'?(N % 4 == 0) if (N % 4) { B U*2 A*4 U A L A' J {L8} } }",
    straight="B S*6 B?(idle) if (not idle) { B A*3 L*2 U' A L A' S A S A*2 S L A' A L J {L3} "
    "L*7 B'?(N % 4 == 0) if (N % 4) { B U A*4 U A L A' A J {L15} } }",
    exit="L*13 A J",
)
PATHS["mm_M_unroll_8x1"] = Paths(
    **m_kernel(8, 1),
    fallbacks=(("N < 8", "mm_M_unroll_4x1", f"A S*13 L*2 C A*3 U A' {CLIP} V B L*13 A J"),),
    entry=f"A S*13 L*2 C A*3 U A' {CLIP} V B! L*2 S' L S' L*2 A*2 S*3 B?(not trans_b)",
    transposed="B S*5 B?(idle) if (not idle) { L B' A S L U' L U' A L A' S A L S J {L0} "
    "L*7 B'?(N % 8 == 0) if (N % 8) { B U*2 A*2 L A' A U A L A' J {L12} } }",
    straight="B S*6 B?(idle) if (not idle) { A S L*2 U' A*3 L A' S L A' A S L J {L3} "
    "L*6 B'?(N % 8 == 0) if (N % 8) { B U A*2 L A' A U A L A' A J {L7} } }",
    exit="L*13 A J",
    bodies={"L3": "S*2 B V A L A' L J {L4} L A' L A' S L A' L B'"},
)
PATHS["mm_M_unroll_2x2"] = Paths(
    **m_kernel(2, 2),
    fallbacks=(
        ("(M - M % 2) // cores < 2", "mm_M_unroll_8x1", f"A S*13 L C A*4 U A' S {ROW_STAGED} B L*13 A J"),
    ),
    entry=f"A S*13 L C A*4 U A' S {ROW_STAGED} B! S L S' L S' L S' L*3 A S*2 A B?(not trans_b)",
    transposed="A S L B'?(idle) if (not idle) { L A' S A*3 L A' U*2 L A' S L S A S A*5 J {L0} } "
    f"L*3 B?(M % 2 == 0) if (M % 2) {{ {OTHER} if (not other_idle) "
    "{ B L A' A U*3 A*2 L A' L A' A J {L7} } }",
    straight="L B'?(idle) if (not idle) { L A' A*4 L A' U*2 L A' S*2 A S A*5 J {L9} } "
    f"L*2 B'?(M % 2 == 0) if (M % 2) {{ {OTHER} if (not other_idle) "
    "{ A B L A' L A' U A U A L A' A J {L16} } }",
    exit="L*13 A J",
    bodies={
        "L0": "B?(N<2) if (N>=2) { V L A' U A*2 U L A' A*2 L*3 B' {L1} A B?(N%2==0) } else { A B } if (N%2) { A U L A' J {L3} } A V L B'",
        "L9": "B?(N<2) if (N>=2) { V L A' L A' A L*2 B {L10} A B?(N%2==0) } else { A B } if (N%2) { A L A' J {L12} } A V L B'",
    },
    fixed={
        **{name: {"row": ("N-1", 1), "col": ("jj", 1)} for name in ("L3", "L12")},
        **{name: {"col": ("M-1", 1)} for name in ("L7", "L16")},
    },
)
PATHS["mm_M_unroll_2x4"] = Paths(
    **m_kernel(2, 4),
    fallbacks=(
        (
            "(M - M % 4) // cores < 4",
            "mm_M_unroll_8x1",
            "A S*13 L C A*4 U A' S*2 B?(not clip) L S' V B L*13 A J",
        ),
        ("N < 2", "mm_M_unroll_2x2", "A S*13 L C A*4 U A' S*2 B?(not clip) L S' V B! L V B L*13 A J"),
    ),
    entry="A S*13 L C A*4 U A' S*2 B?(not clip) if (clip) { L S' } V B! L V B! L*2 S' L S' L S' L A S A S*4 "
    "B?(not trans_b)",
    transposed="L B'?(idle) if (not idle) { L A' S A*3 S L A' A S A U*2 L A' S A*4 S A S*4 J {L0} } "
    f"L*2 B'?(M % 4 == 0) if (M % 4) {{ {OTHER} if (not other_idle) "
    "{ B B A U L U' A U A*2 L A' L A' J {L7} } }",
    straight="L B'?(idle) if (not idle) { L A' S A*4 L A' A U*2 L A' S A*4 S A S*3 J {L10} } "
    f"L*2 B'?(M % 4 == 0) if (M % 4) {{ {OTHER} if (not other_idle) "
    "{ B B A U A L U' L A' A L A' A J {L17} } }",
    exit="L*13 A J",
    bodies={
        "L0": "S B V L*2 A' U A*4 U*3 L A' S A*4 S A*2 L*6 B {L1} A B?(N%2==0) if (N%2) { U L A' J {L3} } A V L B'",
        "L10": "S L B' V L*2 A' L A' A L*6 B {L11} A B?(N%2==0) if (N%2) { L*2 A' J {L13} } A V L B'",
    },
    fixed={name: {"row": ("N-1", 1), "col": ("jj", 1)} for name in ("L3", "L13")},
)
PATHS["mm_M_unroll_4x2"] = Paths(
    **m_kernel(4, 2),
    fallbacks=(
        ("(M - M % 2) // cores < 2", "mm_M_unroll_8x1", f"A S*13 L C A*4 U A' S {ROW_STAGED} B L*13 A J"),
        ("N < 4", "mm_M_unroll_2x2", f"A S*13 L C A*4 U A' S {ROW_STAGED} B! L V B L*13 A J"),
    ),
    entry=f"A S*13 L C A*4 U A' S {ROW_STAGED} B! L V B! S L*2 S' L S' L*2 A S A S*3 B?(not trans_b)",
    transposed="A L B'?(idle) if (not idle) { A*3 S A*2 S U A*2 S A*3 U L S A S A S A*2 S*2 A S U*2 A*2 S L A' A*6 "
    f"S*2 J {{L0}} }} L*2 B'?(M % 2 == 0) if (M % 2) {{ {OTHER} if (not other_idle) "
    "{ B A*2 U*3 A*2 L A' L A' A J {L9} } }",
    straight="L B'?(idle) if (not idle) { A*3 S A S L U' A*2 S A*3 L A' S A S A S A S U*2 A S L A' S A*3 S A*3 "
    f"S J {{L11}} }} L*2 B'?(M % 2 == 0) if (M % 2) {{ {OTHER} if (not other_idle) "
    "{ A B A L A' U A U A L A' A J {L20} } }",
    exit="L*13 A J",
    bodies={
        "L0": "S*2 B B V L A' L A' S L*4 J {L1} L A' L*5 B?(N%4==0) if (N%4) { V*2 B {L4} J } "
        "L A' A L A' S A L B'",
        "L11": "S*3 B L B' V L A' L A' S L*4 J {L12} L A' L*6 B?(N%4==0) if (N%4) { V*2 B {L15} J } "
        "L A' S L A' S A*2 L B'",
    },
    fixed={
        **{name: {"col": ("jj", 1)} for name in ("L4", "L15")},
        **{name: {"col": ("M-1", 1)} for name in ("L9", "L20")},
    },
)
PATHS["mm_M_unroll_4x4"] = Paths(
    **m_kernel(4, 4),
    fallbacks=(
        ("(M - M % 4) // cores < 2", "mm_M_unroll_8x1", f"A S*13 L C A*4 U A' S {ROW_STAGED} B L*13 A J"),
        (
            "(M - M % 4) // cores < 4",
            "mm_M_unroll_4x2",
            f"A S*13 L C A*4 U A' S {ROW_STAGED} B! V B L*13 A J",
        ),
        ("N < 4", "mm_M_unroll_2x2", f"A S*13 L C A*4 U A' S {ROW_STAGED} B! V B! L V B L*13 A J"),
    ),
    entry=f"A S*13 L C A*4 U A' S {ROW_STAGED} B! V B! L V B! S*2 L*2 S' L S' L*2 A S*5 B?(not trans_b)",
    transposed="L B'?(idle) if (not idle) { A S A*3 S U A S A*7 U*3 L A' S A S U*2 L A' A*4 S A*9 S*3 J {L0} } "
    f"L*3 B'?(M % 4 == 0) if (M % 4) {{ {OTHER} if (not other_idle) "
    "{ B B A U*2 A U A*2 L A' L A' J {L8} } }",
    straight="L B'?(idle) if (not idle) { A S A*3 S A S L U' A*3 L A' S A S A U*2 A S L A' A*3 S A*3 S*2 J {L11} } "
    f"L*3 B'?(M % 4 == 0) if (M % 4) {{ {OTHER} if (not other_idle) "
    "{ B B A U A U A L A' A L A' A J {L19} } }",
    exit="L*13 A J",
    bodies={
        "L0": "S*5 V S A*2 S L*2 S' L*2 J {L1} L A' L*8 B?(N%4==0) if (N%4) { V*2 B {L3} J } "
        "L A' L A' L A' L A' A L B'",
        # The builds for one and two cores move and spill accumulators: 21 (23) instructions more than listed; that
        # for four spills one more than that for eight.
        "L2": "if (cores <= 2) { L A' A A L A' V A L A' L L L L L V L F F F F L A' L F F F F L A' L F F F F F F F "
        "L F' V*21 S A if (cores == 2) { V*2 } } else { L A' A A L A' V A L A' L L L L L V L F F F F L A' L F F F F "
        "L A' L F*8 V V A if (cores == 4) { S V } }",
        "L1": "S B V*18 H {L2} V J L*2 U' A L A' S A U A*2 S A U A*2 S A*2 L A' A L A' S U A*2 S*13 A L*2 B'",
        "L11": "S*2 V S A*2 S L*4 J {L12} L A' L*7 B?(N%4==0) if (N%4) { V*2 B {L14} J } L A' S A*2 L B'",
        "L13": "S*2 L+ L+ L+ L+ V*9 L L L L+ F L F' S F L F' S V*9 L F' F*7 L F' F*3 "
        "if (cores == 4) { L@ S V }",
        "L12": "S*5 B V*2 S V*3 S V*10 if (cores == 4) { S@ L } L H {L13} V J L*2 U' A L A' S A U A*2 L S' A U A*2 S A*2 L*2 A' L A' L A' "
        "U A*2 L S' S*12 L A' L*2 B'",
    },
    fixed={name: {"col": ("jj", 1)} for name in ("L3", "L14")},
    accesses={
        "L2": [
            *("A(i,k)", "B(k,j)", "B(k,j+1)", "B(k,j+2)", "B(k,j+3)", "A(i+1,k)", "A(i+2,k)", "A(i+3,k)"),
        ]
        * 2,
        "L1": TILE_4X4,
        "L12": TILE_4X4,
    },
)
