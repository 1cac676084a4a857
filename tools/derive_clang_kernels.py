"""Write configs/kernels/clang-xpulp/<matmul>.yaml from the measured tables of the compiled library.

    python tools/derive_clang_kernels.py ORDER.csv COUNTS.csv [OUT_DIR]

ORDER.csv holds the order of instruction classes in every loop, COUNTS.csv trip formulas, nesting and size.
What the tables cannot say is in tools/clang_paths.py: which blocks of straight-line code run in which case.
"""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path

from clang_paths import ALIGNMENT_NOPS, PATHS, Paths

BOUNDS = {
    "K": "0..K",
    "M": "0..M",
    "N": "0..N",
    "(stop-start)": "start..stop",
    "((stop-start))/2": "start..stop step 2",
    "((stop-start))/4": "start..stop step 4",
    "((stop-start))/8": "start..stop step 8",
    "((stop-1-start))/2": "start..stop - 1 step 2",
    "((K&0xfffffffe))/2": "0..K - K % 2 step 2",
    "((M&0xfffffffe))/2": "0..M - M % 2 step 2",
    "((M&0xfffffffc))/4": "0..M - M % 4 step 4",
    "((M&0xfffffff8))/8": "0..M - M % 8 step 8",
    "((N&0xfffffffe))/2": "0..N - N % 2 step 2",
    "((N&0xfffffffc))/4": "0..N - N % 4 step 4",
    "((N&0xfffffff8))/8": "0..N - N % 8 step 8",
    "(N_par)/2": "0..N - N % 2 step 2",
    "(N_par)/4": "0..N - N % 4 step 4",
    "(M-(M-(M&0x00000001)))": "M - M % 2..M",
    "(M-(M-(M&0x00000003)))": "M - M % 4..M",
    "(M-(M-(M&0x00000007)))": "M - M % 8..M",
    "(N-(N-(N&0x00000003)))": "N - N % 4..N",
    "(M-M-M_left)": "M - M % {V}..M",
    "(M-(M-M_left))": "M - M % {V}..M",
    "(N-(N-N_left))": "N - N % {U}..N",
    "(N-N-N_left)": "N - N % {U}..N",
    "(j_stop-j_start)": "other_start..other_stop",
    "(i_stop-i_start)": "other_start..other_stop",
    "(i+2-i)": "i..i + 2",
    "(i+4-i)": "i..i + 4",
    "(j+2-j)": "j..j + 2",
    "(j+4-j)": "j..j + 4",
}
"""Trip formula of the table -> bounds of the loop in the nest language."""


def compact(text: str) -> str:
    """`A A A B` -> `A*3 B`; instructions with an address or a `'` stay single."""
    result: list[list[str | int]] = []
    for token in text.split():
        plain = token.isalpha() or token.endswith("+")
        if plain and result and result[-1][0] == token:
            result[-1][1] = int(result[-1][1]) + 1
        else:
            result.append([token, 1])
    return " ".join(f"{token}" if count == 1 else f"{token}*{count}" for token, count in result)


def layout(text: str, indent: int) -> list[str]:
    """Nest text with loops, conditions around loops and runs of instructions on lines of their own."""
    tokens = re.findall(
        r"for [^{]*\{|\} else \{|if \([^{]*\) \{|\{|\}|[^\s{}(]+(?:\([^()]*\)[^\s{}]*)?", text
    )
    pad = "  " * indent
    lines: list[str] = []
    run: list[str] = []

    def flush() -> None:
        while run:
            line: list[str] = []
            while run and len(pad) + len(" ".join([*line, run[0]])) < 106:
                line.append(run.pop(0))
            lines.append(pad + " ".join(line))

    position = 0
    while position < len(tokens):
        token = tokens[position]
        if not token.endswith("{"):
            run.append(token)
            position += 1
            continue
        depth, end = 1, position + 1
        while depth:
            depth += tokens[end].endswith("{") - tokens[end].startswith("}")
            depth += tokens[end] == "} else {" and depth == 0
            end += 1
        block = tokens[position:end]
        flat = " ".join(block)
        if "for " not in flat[4:] and len(flat) < 92 and (not flat.startswith("for") or " if" not in flat):
            if flat.startswith("for"):
                flush()
                lines.append(pad + flat)
            else:
                run.append(flat)
        else:
            flush()
            lines.append(pad + token)
            inner: list[str] = []
            level = 1
            for part in block[1:]:
                level += part.endswith("{") and not part.startswith("}")
                level -= part == "}"
                if level == 0 or (level == 1 and part == "} else {"):
                    lines += layout(" ".join(inner), indent + 1)
                    inner = []
                    lines.append(pad + part)
                else:
                    inner.append(part)
        position = end
    flush()
    return lines


class Writer:
    """Assembles the text of one kernel for one transposition."""

    def __init__(self, kernel: str, order: dict[str, str], counts: list[dict[str, str]]) -> None:
        self.kernel = kernel
        self.order = order
        self.loops = {row["loop_id"].split(".")[-1]: row for row in counts if row["loop_id"]}
        tile = re.search(r"(\d)x(\d)", kernel)
        self.tile = (int(tile[1]), int(tile[2])) if tile else (1, 1)
        self.paths = PATHS[kernel]

    def expand(self, text: str, indent: int, enclosing: dict[str, tuple[str, int]]) -> str:
        """Replace every {Lx} by its loop."""

        def loop(match: re.Match[str]) -> str:
            return "\n" + self.loop(match[1], indent, dict(enclosing)) + "\n" + "  " * indent

        return re.sub(r"\{(L\d+)\}\s*", loop, text)

    def loop(self, name: str, indent: int, enclosing: dict[str, tuple[str, int]]) -> str:
        """One loop as text. `enclosing` maps row and col to the index expression and the tile width."""
        row = self.loops[name]
        bounds = BOUNDS[row["trip_count_formula"]].format(U=self.tile[0], V=self.tile[1])
        variable, bounds = self.paths.loops.get(name, (row["source_var"], bounds))
        source = "k" if variable == "kk" else variable
        step = re.search(r"step (\d)", bounds)
        axis = {"i": "row", "j": "col"}.get(source[0])
        if axis:
            enclosing[axis] = (source, int(step[1]) if step else 1)
        enclosing.update(self.paths.fixed.get(name, {}))
        kind = "hw" if row["loop_kind"] == "hardware" else "branch"
        body = self.paths.bodies.get(name)
        if body is None:
            body = self.simple_body(name)
        elif (
            row["loop_kind"] != "hardware" and row["basic_blocks"] != "1" and "J" in "".join(self.order[name])
        ):
            kind = "jump"
        body = re.sub(r"(?<![\w'])([A-Z]\+?)\*(\d+)", lambda m: " ".join([m[1]] * int(m[2])), body)
        # mul, shift, add to a pointer: the shift uses the product (seen in the cycles of all such rows).
        body = re.sub(r"U('?) A( A V| A S| A L| L)", r"U\1 A'\2", body)
        if name in self.paths.accesses:
            # An element of C listed twice is loaded and then stored, by a leftover pass that adds to it.
            listed = self.paths.accesses[name]
            again = [item[0] == "C" and item in listed[at + 1 :] for at, item in enumerate(listed)]
            loads = [item for item, more in zip(listed, again, strict=True) if item[0] != "C" or more]
            stores = [item for item, more in zip(listed, again, strict=True) if item[0] == "C" and not more]
            for letter, chosen in (("L", loads), ("S", stores)):
                body = self.with_accesses(body, letter, chosen) if chosen else body
        if source[0] == "k":
            body = self.inner_accesses(name, body, enclosing, int(step[1]) if step else 1)
        if name not in self.paths.bodies and "C(" not in body and axis and self.is_tile(name):
            body = self.stores(name, body, enclosing)
        builds = ALIGNMENT_NOPS.get(f"{self.kernel}.{name}")
        if builds is not None:
            nop = f"if ({builds}) {{ A }}" if builds else "A"
            body = re.sub(r"(?<![\w'])H'?", f"{nop} H", body, count=1)
        body = self.expand(compact(body), indent + 1, enclosing)
        pad = "  " * indent
        lines = [line.rstrip() for line in f"{pad}  {body}".split("\n") if line.strip()]
        if len(lines) == 1 and len(lines[0]) + len(bounds) < 88:
            return f"{pad}for {source} in {bounds} {kind} {{ {lines[0].strip()} }}"
        return f"{pad}for {source} in {bounds} {kind} {{\n" + "\n".join(lines) + f"\n{pad}}}"

    def is_tile(self, name: str) -> bool:
        """Whether a loop is the one around (or is itself) an innermost loop, so that its stores write C."""
        levels = [r["level"] for r in self.loops.values() if r["parent_id"].split(".")[-1] == name]
        return all("inner_k" in level or "zero" in level for level in levels)

    def simple_body(self, name: str) -> str:
        """A body of one path: an inner hardware loop follows its H, a branch loop the preheader."""
        text = self.order[name]
        children = [child for child, row in self.loops.items() if row["parent_id"].split(".")[-1] == name]
        children = [child for child in children if "zero" not in self.loops[child]["level"]]
        if not children:
            return text
        (child,) = children
        if self.loops[child]["loop_kind"] == "hardware":
            return re.sub(r"(?<![\w'])(H'?)", rf"\1 {{{child}}}", text, count=1)
        # The latch starts at the last pair of plain A's (the counter and the bound), else after the last V.
        tokens = text.split()
        pairs = [at for at in range(len(tokens) - 1) if tokens[at : at + 2] == ["A", "A"]]
        latch = pairs[-1] if pairs else max(at for at, token in enumerate(tokens) if token == "V") + 1
        return " ".join([*tokens[:latch], f"{{{child}}}", *tokens[latch:]])

    def inner_accesses(self, name: str, text: str, enclosing: dict[str, tuple[str, int]], k_step: int) -> str:
        """Name the elements an inner loop over k loads: row 0 of A, all columns of B, then further rows."""
        if name in self.paths.accesses:
            return text
        row, u = enclosing.get("row", ("0", 1))
        col, v = enclosing.get("col", ("0", 1))
        if k_step == 2:
            order = [f"A({row},k)", f"B(k,{col})", f"A({row},k + 1)", f"B(k + 1,{col})"]
        else:
            a = [f"A({plus(row, i)},k)" for i in range(u)]
            b = [f"B(k,{plus(col, j)})" for j in range(v)]
            order = [a[0], *b, *a[1:]]
        return self.with_accesses(text, "L", order)

    def stores(self, name: str, text: str, enclosing: dict[str, tuple[str, int]]) -> str:
        """Name the elements of C that a tile stores, row by row; further stores are spills."""
        row, u = enclosing.get("row", ("0", 1))
        col, v = enclosing.get("col", ("0", 1))
        order = [f"C({plus(row, i)},{plus(col, j)})" for i in range(u) for j in range(v)]
        return self.with_accesses(text, "S", order)

    def with_accesses(self, text: str, letter: str, order: list[str]) -> str:
        """Attach `order` to the accesses marked `letter`; spills are marked `@` in the paths table."""
        pending = list(order)
        tokens = []
        listed = text.split()
        free = sum(1 for token in listed if token[0] == letter and "@" not in token)
        spills = free - len(order)
        for position, token in enumerate(listed):
            if token[0] != letter:
                tokens.append(token)
                continue
            if "@" in token:
                tokens.append(token.replace("@", ""))
                continue
            following = listed[position + 1] if position + 1 < len(listed) else ""
            reloads = letter == "L" and "+" not in token and following.endswith("'")
            if not pending or (spills > 0 and (reloads or letter == "S")):
                spills -= 1
                tokens.append(token)
                continue
            mark = token.endswith("'")
            element = pending.pop(0).replace(" ", "")
            tokens.append(token.rstrip("'") + ":" + element + ("'" if mark else ""))
        return " ".join(tokens)


def plus(variable: str, offset: int) -> str:
    """`i`, 1 -> `i + 1`."""
    return variable if offset == 0 else f"{variable}+{offset}"


def kernel_yaml(kernel: str, order: dict[str, str], counts: list[dict[str, str]]) -> str:
    """The YAML text of one kernel."""
    writer = Writer(kernel, order, counts)
    paths: Paths = writer.paths
    notes = next(row["notes"] for row in counts if row["level"] == "function_total")
    code_bytes = re.search(r"(\d+) bytes", notes)
    assert code_bytes
    lines = [
        f"kernel: {kernel}",
        f"about: {paths.about}",
        f"code_bytes: {code_bytes[1]}",
        "arrays: {A: 2, B: 2, C: 2}",
        "names:",
        *(f"  {name}: {text}" for name, text in paths.names.items()),
    ]
    if paths.fallbacks:
        lines.append("fallback:")
        for when, use, cost in paths.fallbacks:
            lines.append(f"  - when: {when}\n    use: {use}\n    cost: {cost}")
    lines.append("nest: |")
    sections = (paths.entry, "if (trans_b) {", paths.transposed, "} else {", paths.straight, "}", paths.exit)
    text = " ".join(writer.expand(section, 1, {}) for section in sections)
    lines += layout(" ".join(text.split()), 1)
    return "\n".join([*lines, ""])


def main(order_csv: str, counts_csv: str, out_dir: str) -> None:
    """Read the two tables and write one file per kernel."""
    with open(order_csv, newline="", encoding="utf-8") as file:
        order_rows = list(csv.DictReader(file))
    with open(counts_csv, newline="", encoding="utf-8") as file:
        count_rows = list(csv.DictReader(file))
    for kernel in PATHS:
        order = {r["loop_id"].split(".")[-1]: r["order"] for r in order_rows if r["function"] == kernel}
        counts = [row for row in count_rows if row["kernel"] == kernel]
        Path(out_dir, f"{kernel}.yaml").write_text(kernel_yaml(kernel, order, counts), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else "configs/kernels/clang-xpulp")
