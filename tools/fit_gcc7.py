# SPDX-License-Identifier: Apache-2.0
"""Write configs/kernels/pulp-gcc7/*.yaml, with the few constants the published numbers must give.

    python -m tools.fit_gcc7 ANCHORS.csv[.gz] OUT_DIR

Only 1-core rows of single layers are read; 8-core rows and the whole step stay as a test. Everything else
follows from tools/gcc7_matmul.py and the loops below. Fitted are, each from the rows named:

- relu FW, BW: instructions an element and the cost of a call (two rows, both say the same cost of a call);
- linear FW: instructions per row of blocks;
- conv2d FW, WG: instructions per kernel row of im2row;
- the three 16-bit vector-matrix rows: instructions per output.
"""

from __future__ import annotations

import csv
import gzip
import math
import sys
from collections.abc import Mapping
from pathlib import Path

from tools.gcc7_matmul import FITTED, KERNELS, Constants, kernel_file, measured_line
from tools.nest_tree import layout

EMPTY_FORK_CYCLES = 31
"""Fork and join of one core around nothing: 11 + 6 + 14, event unit of configs/soc/pulp-open.yaml."""

TAKEN = 2
"""Cycles lost at a taken branch, configs/soc/pulp-open.yaml; likewise 1 at a load's or product's use."""

Rows = Mapping[tuple[str, str, str], int]


def anchors(path: Path) -> Rows:
    """(primitive, step, kernel) -> cycles of the 1-core layers."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        return {
            (row["primitive"], row["step"], row["kernel"]): int(row["cycles"])
            for row in csv.DictReader(file)
            if row["cores"] == "1" and row["primitive"] != "tutorial_step"
        }


CHUNK = {
    "block": "ceildiv({0}, cores)",
    "start": "core * block",
    "clip": "start + block >= {0}",
    "stop": "min(start + block, {0})",
    "idle": "start >= stop",
}
ENTRY = "L*2 C A*4 U A' B?(not clip) if (clip) { V } B?(idle)"
ENTRY_CYCLES = 15
"""One core: 12 instructions, a multiply of 2 cycles whose result is used at once."""

MEASURED = {
    **{name: f"primitive=relu step={name[-2:].upper()}" for name in ("relu_fw", "relu_bw")},
    **dict.fromkeys(("sgd", "mse_fw", "mse_bw"), "primitive=tutorial_step"),
    "im2row_fw": "primitive=conv2d",
    **{name: f"kernel={name}" for name in ("vm_naive", "vm_SIMD_pack", "vm_SIMD_transposed")},
}
"""Which published rows have a function; `blocktransp` and `im2row_ig` are in none."""

RELU_ELEMENTS = 576
MOVES = "V*2"


def relu(rows: Rows, step: str) -> tuple[float, int]:
    """(cycles an element, cycles of the rest): elements cost a multiple of half a cycle."""
    cycles = rows["relu", step, "-"]
    element = math.floor(2 * cycles / RELU_ELEMENTS) / 2
    return element, round(cycles - element * RELU_ELEMENTS)


def files(rows: Rows) -> dict[str, str]:
    """All kernel files by name."""
    forward, call = relu(rows, "FW")
    backward, other_call = relu(rows, "BW")
    if abs(call - other_call) > 20:
        raise SystemExit(f"the two ReLU rows give calls of {call} and {other_call} cycles")
    first_call = (call + other_call) // 2 - EMPTY_FORK_CYCLES - ENTRY_CYCLES - 8
    mm = first_call + 30 + 4 + EMPTY_FORK_CYCLES
    row_cycles = (rows["linear", "FW", "mm"] - mm - 32 * 576 * 4) / 32 - 9
    # A row of blocks: a product of 2 cycles used at once and the taken branch are stalls; A*2 B close it.
    row = round(row_cycles - 2 - TAKEN) - 3
    constants = Constants(row, first_call)
    result = {shape.name: kernel_file(shape, constants) for shape in KERNELS}
    result["im2row_fw"] = im2row(rows, constants, mm, row + 7)
    fetch = f"for e in 0..{first_call} hw {{ V }}"
    result |= elementwise(fetch, forward, backward)
    result |= {name: vector_matrix(name, rows, mm, first_call) for name in VECTOR_MATRIX}
    result["im2row_ig"] = im2row_gradient(fetch)
    result["blocktransp"] = page(
        "blocktransp",
        "weights [co,ci,hk,wk] to [ci,co,hk,wk] with reversed windows, co over cores",
        {"X": 3, "Y": 3},
        chunk("co") | {"window": "hk * wk"},
        f"{ENTRY} {fetch} if (not idle) {{ S*8 L*4 U*3 for o in start..stop branch {{ V*2 A "
        "for i in 0..ci branch { V U A' A*3 H "
        "for e in 0..window hw { L+:X(o,i,e) S+:Y(i,o,window-1-e)' } A*2 B } A*2 B } L*8 } J",
        "Not published: a copy loop like the one of im2row.",
    )
    return result


def chunk(extent: str) -> dict[str, str]:
    """Names of a share of `extent`."""
    return {name: text.format(extent) for name, text in CHUNK.items()}


def page(
    name: str,
    about: str,
    arrays: Mapping[str, int],
    names: Mapping[str, str],
    nest: str,
    comment: str,
    more: tuple[str, ...] = (),
) -> str:
    """A kernel file; `more` are further keys."""
    listed = ", ".join(f"{array}: {indices}" for array, indices in arrays.items())
    lines = [
        f"kernel: {name}",
        "# Written by tools/fit_gcc7.py.",
        "# fitted: the loop `e`, the first call (waiting for uncached code).",
        f"# {comment}",
        f"about: {about}",
        f"code_bytes: {2 * len(nest.split())}",
        f"arrays: {{{listed}}}",
        *measured_line(name, MEASURED),
        FITTED,
        *more,
        "names:",
        *(f"  {key}: {text}" for key, text in names.items()),
        "nest: |",
        *layout(nest, 1),
    ]
    if not names:
        lines.remove("names:")
    return "\n".join(lines) + "\n"


def elementwise(fetch: str, forward: float, backward: float) -> dict[str, str]:
    """relu, sgd, losses; an element of relu costs instructions, 1 for its load, 2 x the taken share."""
    instructions = {step: math.ceil(cost) - 2 for step, cost in (("fw", forward), ("bw", backward))}
    share = {
        step: (cost - 1 - instructions[step]) / TAKEN for step, cost in (("fw", forward), ("bw", backward))
    }
    note = {
        step: f"fitted: {instructions[step]} instructions an element, a branch taken in {share[step]:.0%}."
        for step in share
    }
    loops = {
        "relu_fw": (
            "y = x where x > 0, else 0; elements over cores",
            {"X": 1, "Y": 1},
            f"L+:X(i) f' B%{share['fw']} {MOVES} A*{instructions['fw'] - 6} S+:Y(i)",
            note["fw"],
        ),
        "relu_bw": (
            "dx = dy where x > 0, else 0; elements over cores",
            {"X": 1, "G": 1, "Y": 1},
            f"L+:G(i) L+:X(i) f' B%{share['bw']} {MOVES} A*{instructions['bw'] - 7} S+:Y(i)",
            note["bw"],
        ),
        "sgd": (
            "w -= learning_rate * dw, no weight decay; elements over cores",
            {"W": 1, "G": 1},
            "L+:G(i) L:W(i) F' S+:W(i)",
            "Not fitted: two loads, a multiply-add that waits for the second, a store, in a hardware loop.",
        ),
    }
    result = {
        name: page(
            name,
            about,
            arrays,
            chunk("elements"),
            f"{ENTRY} {fetch} if (not idle) {{ L*3 A*3 H for i in start..stop hw {{ {body} }} }} J",
            comment,
        )
        for name, (about, arrays, body, comment) in loops.items()
    }
    for name, about, tail, body in (
        ("mse_fw", "mean of squared differences, master core alone", "S:Y(0)", "L+:X(i) L+:T(i) f' A F"),
        (
            "mse_bw",
            "gradient of the mean of squared differences, master core alone",
            "",
            "L+:X(i) L+:T(i) f' M S+:Y(i)",
        ),
    ):
        result[name] = page(
            name,
            about,
            {"X": 1, "T": 1, "Y": 1},
            {},
            f"L*3 B' V f V D L*2 A*4 {fetch} H for i in 0..elements hw {{ {body} }} {tail} J",
            "Not fitted: the loop of the source with post-increments in a hardware loop.",
        )
    return result


PATCHES, CHANNELS, KERNEL = 36, 8, 3
"""The convolution of the anchors: 6 x 6 output positions, 8 channels, 3 x 3 kernel, 16 outputs."""


def im2row(rows: Rows, constants: Constants, call_cycles: int, row_cycles: int) -> str:
    """The copy loop, with the instructions of a kernel row solved from the two convolution rows."""
    n, patch = 16, CHANNELS * KERNEL * KERNEL
    left = 0.0
    for step, k, m in (("FW", patch, PATCHES), ("WG", PATCHES, patch)):
        block_cycles = 9 + TAKEN + 4 * k
        left += (rows["conv2d", step, "mm"] - call_cycles - n * (row_cycles + m * block_cycles - TAKEN)) / 2
    kernel_rows = PATCHES * CHANNELS * KERNEL
    around = PATCHES * (14 + CHANNELS * 10) + call_cycles
    kernel_row = (left - around) / kernel_rows - 3 * KERNEL
    # V, the integer instructions and H in front, A*2 B behind; the branch is taken 2 times of 3.
    integer = round(kernel_row - TAKEN * (KERNEL - 1) / KERNEL) - 5
    fetch = f"for e in 0..{constants.first_call_cycles} hw {{ V }}"
    element = "A*3 L A' B%0.5 A*2"
    return page(
        "im2row_fw",
        "patches of a CHW input to rows, channels over cores",
        {"X": 3, "R": 5},
        chunk("ci"),
        f"{ENTRY} {fetch} if (not idle) {{ S*8 L*12 A*8 U*3 if (not padded) {{ "
        "for h in 0..ho branch { V A*2 "
        "for w in 0..wo branch { V A*7 for c in start..stop branch { V A*3 for y in 0..hk branch { "
        f"V A*{integer} H for x in 0..wk hw {{ L+:X(c,h*stride+y,w*stride+x) S+:R(h,w,c,y,x)' }} A*2 B "
        "} A*2 B } A*2 B } A*2 B } } else { for c in start..stop branch { V A*3 "
        f"for e in 0..rows_in * cols_in jump {{ {element} L:X(c,0,e) S:R(0,0,c,0,e)' A B! }} "
        f"for e in 0..rows_in * cols_out + rows_out * wo * wk jump {{ {element} S:R(0,0,c,0,e) A B! }} "
        "A*2 B } } "
        "L*8 } J",
        f"fitted: the {integer} integer instructions in front of a kernel row. Padding tests every element.",
    )


def im2row_gradient(fetch: str) -> str:
    """Mode 1 of im2row: every position is tested against the borders; not published."""
    element = "A*3 L A' B%0.5 A*2"
    return page(
        "im2row_ig",
        "patches of a CHW output gradient, virtually padded, to rows; channels over cores",
        {"X": 3, "R": 5},
        chunk("ci"),
        f"{ENTRY} {fetch} if (not idle) {{ S*8 L*12 A*8 U*3 for c in start..stop branch {{ V A*3 "
        f"for e in 0..rows_in * cols_in jump {{ {element} L:X(c,0,e) S:R(0,0,c,0,e)' A B! }} "
        f"for e in 0..rows_in * cols_out + rows_out * wi * wk jump {{ {element} S:R(0,0,c,0,e) A B! }} "
        "A*2 B } L*8 } J",
        "Not published: 12 instructions an element inside, 11 outside, one branch taken in half of them.",
    )


VECTOR_MATRIX: dict[str, tuple[str, int, int, str]] = {
    "vm_naive": ("L+.2:A(i,k) L+.2:B(k,j) F'", 1, 4, "S+.2:C(i,j)"),
    "vm_SIMD_pack": ("L+:A(i,k) L+.2:B(k,j) L+.2:B(k+1,j) f F", 2, 5, "f S+.2:C(i,j)"),
    "vm_SIMD_transposed": ("L+:A(i,k) L+:B(k,j) F'", 2, 4, "f S+.2:C(i,j)"),
}
"""Inner loop, its step in K, its cycles, end of an output, of the tutorial's 16-bit products."""


def vector_matrix(name: str, rows: Rows, call_cycles: int, first_call: int) -> str:
    """One row of A times B, columns over cores; instructions per output solved from its 1-core row."""
    body, step, cycles, end = VECTOR_MATRIX[name]
    size = 128
    output = (rows["linear", "IG", name] - call_cycles) / size - size // step * cycles
    ends = len(end.split())
    integer = max(0, round(output - TAKEN) - 3 - ends)
    return page(
        name,
        "16-bit vector times matrix (N = 1), columns over cores",
        {"A": 2, "B": 2, "C": 2},
        chunk("M"),
        f"{ENTRY} for e in 0..{first_call} hw {{ V }} if (not idle) {{ S*4 L*8 A*4 for i in 0..N branch {{ "
        f"for j in start..stop branch {{ V A*{integer} H "
        f"for k in 0..K step {step} hw {{ {body} }} {end} B }} A*2 B }} L*4 }} J",
        f"fitted: the {integer} integer instructions per output.",
        ("element_bytes: 2", f"trans_b: {str(name.endswith('transposed')).lower()}"),
    )


PROFILE = """about: >-
  PULP GCC 7 (rv32imcxgap9, floats in integer registers), as in the published PULP-TrainLib numbers; functions
  without a published number are those of clang-xpulp
base: clang-xpulp
transform: none
estimates: true
waits_for_code: true
"""


def main(arguments: list[str]) -> None:
    """Entry point; see the top of the file."""
    if len(arguments) != 2:
        raise SystemExit(__doc__)
    out = Path(arguments[1])
    out.mkdir(parents=True, exist_ok=True)
    (out / "codegen.yaml").write_text(PROFILE, encoding="utf-8")
    for name, text in files(anchors(Path(arguments[0]))).items():
        (out / f"{name}.yaml").write_text(text, encoding="utf-8")
    print(f"{out}: {len(list(out.glob('*.yaml')))} files")


if __name__ == "__main__":
    main(sys.argv[1:])
