# SPDX-License-Identifier: Apache-2.0
"""Write configs/kernels/clang-rv32/*.yaml: the compiled library without Xpulp, from counters alone.

    python -m tools.derive_rv32_kernels MM.csv[.gz] XPULP_DIR OUT_DIR

MM.csv are measured matmul rows; only those of clang-rv32 and clang-xpulp on 1 core, without contention, are
read. XPULP_DIR holds the kernels of clang-xpulp: the same sources through the same compiler, so the loops,
the blocks that run and the accesses are theirs (loads and stores of the two agree in every row). Needs scipy.

What differs is solved once per kernel and transposition, in integers, from the 1-core rows:

- every hardware loop becomes a loop closed by a branch (checked against the taken branches), its set-up goes,
  and so do the instructions that only align it;
- per loop level, how many instructions more it has: the solution with the least sum of absolute errors in the
  instruction column, unless the expectation explains it as well (one A per lost post-increment and one for
  the counter in a loop that was a hardware loop, one instruction less in front of it);
- per loop level, how many loads are used by the next instruction: the same, from the load-stall column.

Order, one rule for every loop: the instructions both have stand as in clang-xpulp; an added integer
instruction first parts a load from its user where the load stalls say so, then stands between two
multiply-adds that follow each other, the rest in front of the closing branch. In levels around other loops
they stand in front of the inner loop. A kernel without rows gets the expectation.
"""

from __future__ import annotations

import csv
import gzip
import itertools
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from ruamel.yaml import YAML
from scipy.optimize import Bounds, LinearConstraint, milp

from tools.nest_tree import TOKEN, Counts, If, Item, Loop, count, layout, levels, parse, rendered, value

Numbers = np.ndarray[Any, Any]
Row = Mapping[str, str]

FORK_INSTRUCTIONS = 7
"""Instructions of the fork itself that the counters of a 1-core row include."""

TOLERANCE = 0.0002
"""Share of a row's instructions that is not worth an instruction nobody expects."""


@dataclass
class Half:
    """One transposition of a kernel: its part of the tree, as the level outside all loops, and its levels."""

    root: Loop
    levels: list[Loop] = field(default_factory=list)


def without_xpulp(items: list[Item]) -> list[Item]:
    """Hardware loops as branch loops, plain accesses, no set-up; code for 1 core where it depends."""
    result: list[Item] = []
    for item in items:
        if isinstance(item, If):
            if "cores" in item.condition.split():
                aligning = all(code in ("A", "V") for code in item.then)
                built = item.then if value(item.condition, {"cores": 1}) and not aligning else item.otherwise
                result += without_xpulp(built)
                continue
            result.append(If(item.condition, without_xpulp(item.then), without_xpulp(item.otherwise)))
        elif isinstance(item, Loop):
            increments = sum(code[1:2] == "+" for code in item.body if isinstance(code, str))
            loop = Loop(item.variable, item.start, item.stop, item.step, item.kind, without_xpulp(item.body))
            if item.kind == "hw":
                loop.kind, loop.was_hardware, loop.lost_increments = "branch", True, increments
                loop.body.append("B")
            result.append(loop)
        elif item[0] != "H":
            result.append(item.replace("+", "", 1) if item[1:2] == "+" else item)
    return result


def solve(matrix: Numbers, target: Numbers, expected: Numbers, low: Numbers, tolerance: Numbers) -> Numbers:
    """Integers x >= low with the least sum over rows of |matrix x - target| / (tolerance of the row) plus
    sum |x - expected|: an unexpected instruction must explain more than the tolerance of a row.
    """
    rows, columns = matrix.shape
    scale = 1.0 / tolerance
    # Variables: x, error per row, distance per column.
    cost = np.concatenate([np.zeros(columns), np.ones(rows), np.ones(columns)])
    eye_r, eye_c, zero = np.eye(rows), np.eye(columns), np.zeros
    scaled, wanted = matrix * scale[:, None], target * scale
    constraints = LinearConstraint(
        np.block(
            [
                [scaled, -eye_r, zero((rows, columns))],
                [-scaled, -eye_r, zero((rows, columns))],
                [eye_c, zero((columns, rows)), -eye_c],
                [-eye_c, zero((columns, rows)), -eye_c],
            ]
        ),
        ub=np.concatenate([wanted, -wanted, expected, -expected]),
    )
    integral = np.concatenate([np.ones(columns), np.zeros(rows + columns)])
    bounds = Bounds(np.concatenate([low, np.zeros(rows + columns)]), np.inf)
    solution = milp(cost, constraints=constraints, integrality=integral, bounds=bounds)
    if solution.x is None:
        raise SystemExit(f"no solution: {solution.message}")
    rounded: Numbers = np.rint(solution.x[:columns]).astype(int)
    return rounded


class Kernel:
    """One kernel file of clang-xpulp, turned into its form without Xpulp."""

    def __init__(self, data: Any) -> None:
        self.data = data
        self.name = str(data["kernel"])
        self.items = without_xpulp(parse(str(data["nest"])))
        choices = [item for item in self.items if isinstance(item, If) and item.condition == "trans_b"]
        sides = [choices[0].otherwise, choices[0].then] if choices else [self.items]
        self.halves = [self._half(side) for side in sides]
        self.measured = [False] * len(sides)

    @staticmethod
    def _half(items: list[Item]) -> Half:
        working = (item.then for item in items if isinstance(item, If) and item.condition == "not idle")
        inside = next(working, items)
        return Half(Loop("", "0", "1", 1, "jump", inside), list(levels(items)))

    def names(self, row: Row) -> dict[str, int]:
        """Sizes and names of the only core of a row."""
        names = {"N": int(row["n"]), "K": int(row["k"]), "M": int(row["m"]), "core": 0, "cores": 1}
        names["trans_b"] = int(row["trans_b"])
        for key, text in (self.data.get("names") or {}).items():
            names[str(key)] = value(str(text), names)
        return names

    def falls_back(self, names: Mapping[str, int]) -> bool:
        """Whether another kernel runs instead."""
        return any(value(str(entry["when"]), names) for entry in self.data.get("fallback") or ())

    def fit(self, rows: list[tuple[Row, Row]], transposed: int) -> str:
        """Solve one half from (clang-rv32, clang-xpulp) rows; the line that reports what is left."""
        half = self.halves[transposed]
        expected = np.array([0] + [expectation(loop) for loop in half.levels])
        for loop, more in zip(half.levels, expected[1:], strict=True):
            loop.added = int(more)
            loop.pairs = 0 if loop.was_hardware else marks(loop)
        used = [
            (row, xpulp, names)
            for row, xpulp in rows
            if int(row["trans_b"]) == transposed and not self.falls_back(names := self.names(row))
        ]
        half.root.pairs = 0
        if not used:
            return "no rows"
        self.measured[transposed] = True
        tallies = []
        for _, _, names in used:
            counts = Counts()
            count(self.items, names, 1, half.root, counts)
            tallies.append(counts)
        runs = [[tally.executions.get(id(loop), 0) for loop in half.levels] for tally in tallies]
        matrix = np.array([[1, *row] for row in runs])
        instructions = np.array([int(row["instructions"]) - FORK_INSTRUCTIONS for row, _, _ in used])
        tolerance = np.maximum(TOLERANCE * instructions, 1.0)
        added = solve(
            matrix,
            instructions - np.array([tally.instructions for tally in tallies]),
            expected,
            np.array([-4, *(-removable(loop) for loop in half.levels)]),
            tolerance,
        )
        stalls = np.array([int(row["load_stalls"]) - int(xpulp["load_stalls"]) for row, xpulp, _ in used])
        before = np.array([0, *(marks(loop) for loop in half.levels)])
        expected_pairs = np.array([0, *(loop.pairs for loop in half.levels)])
        pairs = solve(matrix, stalls + matrix @ before, expected_pairs, np.zeros(len(before)), tolerance)
        half.root.added = int(added[0])
        for loop, more, used_at_once in zip(half.levels, added[1:], pairs[1:], strict=True):
            loop.added, loop.pairs = int(more), int(used_at_once)
        left = instructions - np.array([tally.instructions for tally in tallies]) - matrix @ added
        taken = np.array([int(row["taken_branches"]) for row, _, _ in used]) - np.array(
            [tally.taken for tally in tallies]
        )
        stall_left = stalls + matrix @ before - matrix @ pairs
        return (
            f"left: instructions {abs(left).max()}, taken branches {taken.min()}..{taken.max()}, "
            f"load stalls {abs(stall_left).max()}"
        )


def expectation(loop: Loop) -> int:
    """Instructions a level should have more: address steps, a counter, less what prepared a hardware loop."""
    own = (loop.lost_increments + 1) * loop.was_hardware
    return int(own - sum(isinstance(item, Loop) and item.was_hardware for item in loop.body))


def marks(loop: Loop) -> int:
    """Loads of a level that the next instruction uses."""
    codes = [item if isinstance(item, str) else "" for item in loop.body]
    return sum(before[:1] == "L" and code.endswith("'") for before, code in itertools.pairwise(codes))


def removable(loop: Loop) -> int:
    """Instructions a level could do without: integer ones and moves."""
    return sum(isinstance(item, str) and item[0] in "AV" and not item.endswith("'") for item in loop.body)


def _plain(code: str) -> str:
    return code.removesuffix("'")


def ordered(loop: Loop) -> list[Item]:
    """The body of a level under the rule of this file."""
    body = list(loop.body)
    for _ in range(-loop.added):
        body.remove(next(item for item in reversed(body) if item in ("V", "A")))
    extra: list[Item] = ["A"] * max(0, loop.added)
    if not loop.leaf:
        at = next(index for index, item in enumerate(body) if isinstance(item, Loop | If))
        return _with_pairs(body[:at] + extra + body[at:], loop.pairs)
    codes = [str(item) for item in body]
    closing: list[Item] = [codes.pop()] if codes[-1] == "B" else []
    spare = len(extra)
    parted: list[str] = []
    stalls = sum(map(_is_pair, codes, codes[1:]))
    for code in codes:
        if parted and stalls > loop.pairs and _is_pair(parted[-1], code):
            stalls -= 1
            if spare:
                parted.append("A")
                spare -= 1
            parted.append(_plain(code))
        else:
            parted.append(code)
    result: list[Item] = []
    placed: list[Item] = list(parted)
    for item in _with_pairs(placed, loop.pairs) if stalls < loop.pairs else placed:
        if spare and result and str(result[-1])[0] == "F" and str(item)[0] == "F":
            result.append("A")
            spare -= 1
        result.append(item)
    return [*result, *["A"] * spare, *closing]


def _is_pair(first: str, second: str) -> bool:
    return first[0] == "L" and second.endswith("'")


def _with_pairs(body: list[Item], pairs: int) -> list[Item]:
    """Keep the `'` of the last `pairs` loads that have one, add more from the end if there are too few."""
    at = [
        index
        for index in range(1, len(body))
        if isinstance(load := body[index - 1], str)
        and isinstance(user := body[index], str)
        and load[0] == "L"
        and user[0] in "AVFfMSUB"
        and ("'" in user or ":" not in user)
    ]
    marked = [index for index in at if str(body[index]).endswith("'")]
    unmarked = [index for index in at if index not in marked and body[index] in ("A", "V", "B", "S")]
    keep = {*unmarked[: max(0, pairs - len(marked))], *marked[len(marked) - min(pairs, len(marked)) :]}
    result = list(body)
    for index in at:
        code = _plain(str(body[index]))
        result[index] = code + "'" if index in keep else code
    return result


SOURCE: dict[tuple[bool, ...], str] = {
    (
        True,
        True,
    ): "Levels solved from the instruction, load, store and branch columns of 1-core rows of mm.csv",
    (True, False): "Levels solved from 1-core rows of mm.csv for B as stored; B transposed: as expected",
    (False, True): "Levels solved from 1-core rows of mm.csv for B transposed; else as expected",
}
"""Comment by which halves were measured."""


def write(kernel: Kernel, out: Path) -> None:
    """The YAML file of a kernel."""
    data = kernel.data
    for half in kernel.halves:
        more = half.root.added
        if more >= 0:
            half.root.body[:0] = ["A"] * more
        else:
            for _ in range(-more):
                half.root.body.remove(next(item for item in half.root.body if item in ("V", "A")))
    for half in kernel.halves:
        for loop in half.levels:
            loop.body = ordered(loop)
    text = rendered(kernel.items)
    size = 4 * len([token for token in TOKEN.findall(text) if token[0].isupper() or token[0] == "f"])
    lines = [
        f"kernel: {kernel.name}",
        f"# {SOURCE.get(tuple(kernel.measured), 'No rows: levels as expected from clang-xpulp')}",
        "# (tools/derive_rv32_kernels.py). No listing; one rule orders the instructions, docs/codegen.md.",
        f"about: {data['about']}",
        f"code_bytes: {max(size, int(data['code_bytes']))}",
        f"arrays: {{{', '.join(f'{array}: {indices}' for array, indices in data['arrays'].items())}}}",
    ]
    lines += [f"{key}: {str(data[key]).lower()}" for key in ("element_bytes", "trans_b") if key in data]
    if any(kernel.measured):
        lines.append(f"measured: mm.csv kernel={kernel.name}")
        lines.append(f"fitted: mm.csv kernel={kernel.name} cores=1")
    if data.get("names"):
        lines += ["names:", *(f"  {key}: {item}" for key, item in data["names"].items())]
    if data.get("fallback"):
        lines.append("fallback:")
        for entry in data["fallback"]:
            cost = rendered(without_xpulp(parse(str(entry["cost"]))))
            lines += [f"  - when: {entry['when']}", f"    use: {entry['use']}", f"    cost: {cost}"]
    lines += ["nest: |", *layout(text, 1)]
    (out / f"{kernel.name}.yaml").write_text("\n".join(lines) + "\n", encoding="utf-8")


ALONE = ["1", "0", "4-static", "fp32"]
"""Cores, bank conflicts, FPUs and type of the rows that are read."""


def measured(path: Path) -> dict[str, list[tuple[Row, Row]]]:
    """(clang-rv32 row, clang-xpulp row) of equal shape, by kernel; 1 core, no contention."""
    opener = gzip.open if path.suffix == ".gz" else open
    found: dict[tuple[str, ...], dict[str, Row]] = {}
    with opener(path, "rt", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if [row[name] for name in ("cores", "bank_conflicts", "fpus", "dtype")] == ALONE:
                key = tuple(row[name] for name in ("kernel", "n", "k", "m", "trans_b"))
                found.setdefault(key, {})[row["codegen"]] = row
    rows: dict[str, list[tuple[Row, Row]]] = {}
    for key, by_codegen in found.items():
        if {"clang-rv32", "clang-xpulp"} <= by_codegen.keys():
            rows.setdefault(key[0], []).append((by_codegen["clang-rv32"], by_codegen["clang-xpulp"]))
    return rows


HALF_BYTES = 2
"""16-bit floats are Xpulp: without it there are no such kernels."""


def main(arguments: list[str]) -> None:
    """Entry point; see the top of the file."""
    if len(arguments) != 3:
        raise SystemExit(__doc__)
    rows, out = measured(Path(arguments[0])), Path(arguments[2])
    out.mkdir(parents=True, exist_ok=True)
    for file in sorted(Path(arguments[1]).glob("*.yaml")):
        data = YAML(typ="rt").load(file.read_text(encoding="utf-8"))
        if "nest" not in data or data.get("element_bytes") == HALF_BYTES:
            continue
        if "[" in data["nest"]:  # names its registers, which is not read here: codegen.yaml derives it
            continue
        kernel = Kernel(data)
        for transposed, half in enumerate(kernel.halves):
            report = kernel.fit(rows.get(kernel.name, []), transposed)
            solved = " ".join(f"{loop.variable}:{loop.added:+d}/{loop.pairs}" for loop in half.levels)
            print(f"{kernel.name} B{'^T' * transposed}: {report}; {half.root.added:+d} {solved}")
        write(kernel, out)


if __name__ == "__main__":
    main(sys.argv[1:])
