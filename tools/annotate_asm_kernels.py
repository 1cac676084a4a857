"""Write configs/kernels/asm-xpulp/<kernel>.yaml from the listing of our hand-scheduled matmul kernels.

    python tools/annotate_asm_kernels.py KERNELS.S [OUT_DIR]

Adds what the listing does not say: trip counts, the elements that loads and stores touch (followed through
the address arithmetic), which way branches go, and the alignment nops the assembler inserts (from the sizes
of compressed instructions).
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path

STACK = {"120": "A", "68": "B", "124": "C", "88": "A stride", "92": "C stride", "104": "column"}
"""What the stack slots of these kernels hold."""
BRANCHES = ("bgtu", "bleu", "bgeu", "bltu")


@dataclass(frozen=True)
class Pointer:
    """An array and how far the pointer is from element (row i or k, column j or k) of the tile."""

    array: str
    row: int = 0
    column: int = 0


def compressed(mnemonic: str, ops: list[str]) -> bool:  # noqa: PLR0911 - one answer per mnemonic
    """Whether the assembler has a 16-bit form of an instruction outside `norvc` regions."""

    def low(register: str) -> bool:
        return register in ("s0", "s1", "a0", "a1", "a2", "a3", "a4", "a5")

    if mnemonic in ("mv", "ret"):
        return True
    if mnemonic == "li":
        return -32 <= int(ops[1], 0) < 32
    if mnemonic == "addi":
        if ops[0] == ops[1] == "sp":
            return True
        return ops[0] == ops[1] and -32 <= int(ops[2], 0) < 32
    if mnemonic == "add":
        return ops[0] in ops[1:]
    if mnemonic == "slli":
        return ops[0] == ops[1]
    if mnemonic in ("srli", "andi"):
        return ops[0] == ops[1] and low(ops[0])
    if mnemonic in ("lw", "sw"):
        offset, base = re.fullmatch(r"(\d+)\((\w+)\)", ops[1]).groups()  # type: ignore[union-attr]
        if base == "sp":
            return int(offset) < 256
        return low(ops[0]) and low(base) and int(offset) < 128
    return False


def annotate(name: str, lines: list[str]) -> list[str]:  # noqa: PLR0912, PLR0915 - one pass, one state
    """The listing of one kernel with its annotations."""
    half = name.startswith("asm16")
    transposed = "_T_" in name
    u, v = (int(n) for n in re.search(r"(\d)x(\d)", name).groups())  # type: ignore[union-attr]
    size = 2 if half else 4
    heads = loop_heads(lines)
    rows, columns = row_bounds(u), column_bounds(v, half)
    out: list[str] = []
    offset, norvc = 0, False
    row_pass = column_pass = -1
    tags: dict[str, Pointer | str] = {}
    closes_inner = False
    steps: dict[str, int] = {}
    inner_end = ""
    depth_kinds: list[str] = []
    branch_count = 0
    for line in lines:
        code = line.strip()
        if code.endswith(":"):
            label = code[:-1]
            if label in heads:
                kind = "column" if depth_kinds and depth_kinds[-1] == "row" else "row"
                depth_kinds.append(kind)
                if kind == "row":
                    row_pass += 1
                    column_pass = -1
                    out.append(f"#@ for i in {rows[row_pass]} branch {{")
                else:
                    column_pass += 1
                    out.append(f"#@ for j in {columns[column_pass]} branch {{")
            if label == inner_end:
                closes_inner = True
            out.append(code)
            continue
        if code.startswith("."):
            if code == ".option norvc":
                norvc = True
            elif code == ".option pop":
                norvc = False
            elif code == ".p2align 2" and offset % 4:
                out.append("  c.nop  # alignment")
                offset += 2
            continue
        mnemonic, _, rest = code.partition(" ")
        ops = [op.strip() for op in rest.split(",")] if rest else []
        offset += 2 if not norvc and compressed(mnemonic, ops) else 4
        note = ""
        closing = False
        if mnemonic in BRANCHES:
            branch_count += 1
            if ops[2] in heads and heads[ops[2]]:
                closing = True
            elif branch_count == 1:
                note = "taken (not over)"
            elif branch_count == 2:
                note = "taken (idle)"
            else:
                inside = depth_kinds and depth_kinds[-1] == "row"
                bounds = columns[column_pass + 1] if inside else rows[row_pass + 1]
                first, last = bounds.split(" step")[0].split("..")
                note = f"taken ({first} >= {last})"
        elif mnemonic == "lp.setup":
            step = " step 2" if half and "srli a7,t5,1" in "".join(lines) else ""
            out.append(f"  {code}")
            out.append(f"#@ for k in 0..K{' - K % 2' if step else ''}{step} hw {{")
            inner_end, steps = ops[2], {}
            continue
        note = note or address(mnemonic, ops, tags, steps, size, transposed)
        out.append(f"  {code}" + (f"  #@ {note}" if note else ""))
        if branch_count == 1 and mnemonic == "bleu":
            out.append("#@ if (over) {")
        if mnemonic == "mv" and ops[0] == "a6":
            out.append("#@ }")
        if branch_count == 2 and mnemonic == "bgeu":
            out.append("#@ if (not idle) {")
        if closing:
            out.append("#@ }")
            depth_kinds.pop()
        if closes_inner:
            out.append("#@ }")
            closes_inner, inner_end = False, ""
    epilogue = next(at for at, line in enumerate(out) if line.strip() == "lw ra,0(sp)")
    out.insert(epilogue, "#@ }")
    return out


def loop_heads(lines: list[str]) -> dict[str, bool]:
    """Labels that a later branch jumps back to."""
    seen: set[str] = set()
    heads: dict[str, bool] = {}
    for line in lines:
        code = line.strip()
        if code.endswith(":"):
            seen.add(code[:-1])
        elif code.split(" ")[0] in BRANCHES and code.split(",")[-1] in seen:
            heads[code.split(",")[-1]] = True
    return heads


def row_bounds(u: int) -> list[str]:
    """Bounds of the passes over rows: tiles of u rows, then single rows."""
    if u == 1:
        return ["row_start..row_stop"]
    return [f"row_start..row_tiled step {u}", "row_tiled..row_stop"]


def column_bounds(v: int, half: bool) -> list[str]:
    """Bounds of the passes over columns: tiles of v columns, then single columns (fp32 only)."""
    if v == 1:
        return ["column_start..column_stop"]
    if half:
        return [f"column_start..column_stop step {v}"]
    return [f"column_start..column_tiled step {v}", "column_tiled..column_stop"]


def address(
    mnemonic: str,
    ops: list[str],
    tags: dict[str, Pointer | str],
    steps: dict[str, int],
    size: int,
    transposed: bool,
) -> str:
    """Follow pointers through one instruction; the element if it is a load or store of A, B or C."""
    if mnemonic in ("lw", "p.lw", "sw", "sh"):
        inner = re.fullmatch(r"(-?\w+)\((\w+)!?\)", ops[1])
        assert inner is not None, ops
        offset, base = inner.groups()
        if base == "sp":
            if mnemonic == "lw":
                tags[ops[0]] = _loaded(offset)
            return ""
        pointer = tags.get(base)
        note = ""
        if isinstance(pointer, Pointer):
            immediate = int(offset) // size if offset.lstrip("-").isdigit() and mnemonic != "p.lw" else 0
            note = _element(pointer, immediate, steps.get(base, 0), transposed)
            if mnemonic == "p.lw" and not offset.isdigit():
                steps[base] = steps.get(base, 0) + 1
        if mnemonic.endswith("lw") and ops[0] in tags:
            del tags[ops[0]]
        return note
    if mnemonic == "add":
        left, right = tags.get(ops[1], ""), tags.get(ops[2], "")
        if isinstance(right, Pointer):
            left, right = right, left
        if isinstance(left, Pointer):
            tags[ops[0]] = _moved(left, right)
            return ""
    if mnemonic in ("slli", "mul") and "column" in (tags.get(ops[1]), tags.get(ops[-1])):
        tags[ops[0]] = "column"
    elif mnemonic not in BRANCHES and ops:
        tags.pop(ops[0], None)
    return ""


def _loaded(offset: str) -> Pointer | str:
    held = STACK.get(offset, "")
    return Pointer(held) if held in ("A", "B", "C") else held


def _moved(pointer: Pointer, by: Pointer | str) -> Pointer | str:
    if by == "A stride":
        return replace(pointer, column=pointer.column + 1) if pointer.array == "B" else _down(pointer)
    if by == "C stride":
        return _down(pointer)
    return pointer


def _down(pointer: Pointer) -> Pointer:
    return replace(pointer, row=pointer.row + 1)


def _element(pointer: Pointer, immediate: int, advanced: int, transposed: bool) -> str:
    def plus(variable: str, number: int) -> str:
        return f"{variable}+{number}" if number else variable

    if pointer.array == "A":
        return f"A({plus('i', pointer.row)},{plus('k', immediate)})"
    if pointer.array == "B":
        column = pointer.column + (0 if transposed else immediate)
        return f"B({plus('k', advanced)},{plus('j', column)})"
    return f"C({plus('i', pointer.row)},{plus('j', pointer.column + immediate)})"


def kernel_yaml(name: str, listing: list[str]) -> str:
    """The kernel file."""
    half = name.startswith("asm16")
    by_columns = name.startswith("asm_M")
    u, v = (int(n) for n in re.search(r"(\d)x(\d)", name).groups())  # type: ignore[union-attr]
    size = "M" if by_columns else "N"
    rows, columns = (
        ("0", "N") if by_columns else ("start", "stop"),
        ("start", "stop") if by_columns else ("0", "M"),
    )
    code_bytes = 0
    norvc = False
    for line in listing:
        code = line.split("#")[0].strip()
        if not code or code.endswith(":"):
            continue
        mnemonic, _, rest = code.partition(" ")
        norvc = norvc or mnemonic == "lp.setup"
        code_bytes += 2 if mnemonic == "c.nop" or compressed(mnemonic, rest.split(",")) else 4
    lines = [
        f"kernel: {name}",
        f"about: {'columns' if by_columns else 'rows'} over cores, blocks of {u} by {v}, scheduled by hand",
        f"code_bytes: {code_bytes}",
        "arrays: {A: 2, B: 2, C: 2}",
        f"trans_b: {'true' if '_T_' in name else 'false'}",
        *(["element_bytes: 2"] if half else []),
        "names:",
        f"  block: ceildiv({size}, cores)",
        "  start: core * block",
        f"  over: start + block > {size}",
        f"  stop: min(start + block, {size})",
        "  idle: start >= stop",
        f"  row_start: {rows[0]}",
        f"  row_stop: {rows[1]}",
        f"  row_tiled: row_start + (row_stop - row_start) // {u} * {u}",
        f"  column_start: {columns[0]}",
        f"  column_stop: {columns[1]}",
        f"  column_tiled: column_start + (column_stop - column_start) // {v} * {v}",
        "listing: |2",
        *("  " + line for line in listing),
        "",
    ]
    return "\n".join(lines)


def main(source: str, out_dir: str) -> None:
    """Split the listing into kernels and write one file each."""
    text = Path(source).read_text(encoding="utf-8")
    for part in re.split(r"^\s*\.globl\s+\w+\s*$", text, flags=re.MULTILINE)[1:]:
        lines = [line for line in part.split("\n") if line.strip()]
        name_at = next(at for at, line in enumerate(lines) if line.strip().startswith("asm"))
        name = lines[name_at].strip()[:-1]
        Path(out_dir).mkdir(parents=True, exist_ok=True)
        listing = annotate(name, lines[name_at + 1 :])
        Path(out_dir, f"{name}.yaml").write_text(kernel_yaml(name, listing), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "configs/kernels/asm-xpulp")
