# SPDX-License-Identifier: Apache-2.0
"""`python -m tools.deployed.nests`: kernel files of codegen `export-rv32`, read off the compiled C.

Needs `qemu-riscv32` and the package ziglang. Executes the C kernels on examples of all primitives
(`tools.deployed.executed`) and writes `configs/kernels/export-rv32/`: run it again when the C changes. The
loops of a kernel are those of its nest in `clang-xpulp`, or of `loops_of_c.py` where the C has others; the
instructions are those executed:

- How often an instruction was executed in each call is compared with how often each block of the nest is. One
  that is executed as often as a block, in every call, stands in this block, with the registers it has.
- Any other is executed a number of times that is a sum of those of blocks (one turn less than the loop, say),
  or, where the data decide, a share of one. It stands in a loop of its own at the end of the nest. Shares are
  rounded so that the cores of a team together have them (`of_all_cores`).

Addresses are those of the nest: loads and stores of a block in their order; a loop at the end walks along the
arrays. `--cached FILE` keeps what was executed, to read it again.
"""

from __future__ import annotations

import argparse
import pickle
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from ruamel.yaml import YAML

from tools.deployed.executed import CODEGEN, Execution, called, execute
from tools.deployed.instructions import issued
from tools.deployed.loops_of_c import loops_of_c
from tools.deployed.rv32 import STACK_POINTER, Program
from tools.nest_tree import If, Item, Loop, compact, layout, parse, value
from tools.pages.page import ROOT
from trainlib.kernels.library import AS, FP32_BYTES, LIBRARY

OUT = ROOT / "configs" / "kernels" / "export-rv32"

Numbers = np.ndarray[Any, Any]

TRACKED = frozenset("LUMfDFQ")
"""Classes whose result may be waited for: the registers they write have names in the text."""

NEAR = 3
"""Instructions behind one of them by which its result is there."""

MOST_OFF = 0.1
"""Of the instructions executed, by which a nest may be off: data decide more, and the estimate stays."""

ALIKE = 0.05
"""Of its instructions, by which a formula may differ from the nest that it shares to have none of its own."""

BETTER = 1.2
"""How much more a preferred fit may leave unexplained: one feature beside a pair, and a block beside any
other feature. Such features (the turns of a loop but the first, half of the turns) often fit by chance where
data decide, and predict too few instructions for a loop of few turns."""

MOST_PAIRS = 40
"""Pairs of features that are looked at, those that leave least first."""

RANK = {"rank": "core * 2 + 1", "ranks": "cores * 2"}
OF_RANK = "rank // ranks"
"""Where a core stands among those of a team, for the shares of `of_all_cores`."""

SHARES = (
    "cores > 1",
    "cores == 1",
    "cores > 1 and idle",
    "cores > 1 and clip",
    "cores > 1 and not clip",
    "cores > 1 and not idle",
    "idle",
    "cores > 1 and other_idle",
    "cores > 1 and other_clip",
    "cores > 1 and not other_idle",
)
"""Ways through the C that finds a core's share of the items (`pt_own` of kernel.h)."""


# --------------------------------------------------------------------------- blocks of a nest


@dataclass(eq=False)
class Block:
    """A straight part of a nest: its items, what it stands in, and how often it is executed, as text."""

    items: list[Item]
    times: str
    parent: Block | None = None
    loop: Loop | None = None
    own: list[int] = field(default_factory=list)
    """Addresses of the instructions in it, each as often as it stands there."""
    inside: dict[int, list[int]] = field(default_factory=dict)
    """By id of a loop: instructions executed once if it turns at all."""


def blocks_of(items: list[Item], times: str = "1", parent: Block | None = None) -> Iterator[Block]:
    """The whole nest, and every loop and alternative in it."""
    block = Block(items, times, parent)
    yield block
    yield from _below(items, block)


def _below(items: list[Item], block: Block) -> Iterator[Block]:
    for item in items:
        if isinstance(item, Loop):
            inner = Block(item.body, f"{block.times} * max(0, {trips_of(item)})", block, item)
            yield inner
            yield from _below(item.body, inner)
        elif isinstance(item, If):
            condition = f"(({item.condition}) != 0)"
            for side, wanted in ((item.then, condition), (item.otherwise, f"(1 - {condition})")):
                if side:
                    yield from blocks_of(side, f"{block.times} * {wanted}", block)


def trips_of(loop: Loop) -> str:
    """Turns of a loop, negative for none."""
    length = f"({loop.stop}) - ({loop.start})"
    return f"({length})" if loop.step == 1 else f"ceildiv({length}, {loop.step})"


@dataclass(eq=False)
class Feature:
    """A number of executions that the text can say: that of a block, or of turns of a loop but the first.

    `block` is where an instruction with it stands; `loop` is there if only when that loop turns.
    """

    times: str
    counts: Numbers
    block: Block | None = None
    loop: Loop | None = None


# --------------------------------------------------------------------------- a kernel


class Kernel:
    """A nest of `clang-xpulp` and what was executed for it."""

    def __init__(self, name: str, runs: Sequence[Execution], program: Program) -> None:
        self.name, self.program = name, program
        header = LIBRARY.header(CODEGEN, runs[0].nest.kernel)
        self.section = YAML(typ="rt").load(Path(header.section.file).read_text(encoding="utf-8"))
        shared = {} if AS in name else loops_of_c(runs[0].nest.kernel)
        self.section.update({**shared, **loops_of_c(name)})
        known = {"cores", *(self.section.get("names") or {})}

        def shares() -> list[Item]:
            return [
                If(condition, [""], [])
                for condition in SHARES
                if all(word in known for word in re.findall(r"[a-z]{4,}", condition))
            ]

        def with_shares(items: list[Item]) -> list[Item]:
            for item in items:
                if isinstance(item, If) and not {"idle", "core", "cores"} & set(
                    re.findall(r"\w+", item.condition)
                ):
                    item.then = with_shares(item.then)
                    item.otherwise = with_shares(item.otherwise)
            return [*shares(), *items]

        self.root = with_shares(parse(str(self.section["nest"])))
        self.blocks = list(blocks_of(self.root))
        names = [self.names(run) for run in runs]
        used = [
            number
            for number, known in enumerate(names)
            if not self.falls_back(known)
            and not runs[number].nest.accumulates
            and value(str(self.section.get("only", "1")), {**runs[number].numbers, **known})
        ]
        self.runs = [runs[number] for number in used]
        self.known = [names[number] for number in used]
        variables = {block.loop.variable: 0 for block in self.blocks if block.loop and block.loop.variable}
        self.given = [{**variables, **known} for known in self.known]

    def names(self, run: Execution) -> dict[str, int]:
        """Sizes and names of a core."""
        names = {**dict(run.nest.sizes), "cores": run.nest.cores, "core": run.core}
        if run.nest.per_core:
            names |= dict(run.nest.per_core[run.core])
        for key, text in (self.section.get("names") or {}).items():
            names[str(key)] = value(str(text), names)
        return names

    def falls_back(self, names: Mapping[str, int]) -> bool:
        """Whether another kernel runs instead."""
        return any(value(str(entry["when"]), names) for entry in self.section.get("fallback") or ())

    def counts(self, times: str) -> Numbers:
        """What `times` says, in every run."""
        return np.array([value(times, names) for names in self.given], float)

    def features(self) -> list[Feature]:
        """Different ones, the outer first."""
        found: list[Feature] = []

        def add(feature: Feature) -> None:
            if feature.counts.any() and not any(
                np.array_equal(feature.counts, other.counts) for other in found
            ):
                found.append(feature)

        later = []
        for block in self.blocks:
            counts = self.counts(block.times)
            add(Feature(block.times, counts, block))
            if block.loop is not None and block.parent is not None:
                turns = f"({trips_of(block.loop)} > 0)"
                entered = f"{block.parent.times} * {turns}"
                later.append(Feature(entered, self.counts(entered), block.parent, block.loop))
                again = f"{block.parent.times} * max(0, {trips_of(block.loop)} - 1)"
                later.append(Feature(again, self.counts(again)))
                half = f"{block.parent.times} * (max(0, {trips_of(block.loop)}) // 2)"
                later.append(Feature(half, self.counts(half)))
        for feature in later:
            add(feature)
        return found

    def fit(self) -> str:
        """Put every instruction where it is executed; the line that says what is left."""
        addresses = sorted({at for run in self.runs for at, _ in run.steps})
        column = {at: number for number, at in enumerate(addresses)}
        executed = np.zeros((len(self.runs), len(addresses)))
        taken = np.zeros_like(executed)
        for row, run in enumerate(self.runs):
            for (at, then), times in run.steps.items():
                executed[row, column[at]] += times
                if then != at + self.program.code(at).size_bytes:
                    taken[row, column[at]] += times
        self.executed = {at: executed[:, number] for at, number in column.items()}
        self.taken_in = {at: taken[:, number] for at, number in column.items()}
        total = executed.sum(axis=1)
        features = self.features()
        self.tail: dict[str, list[int]] = defaultdict(list)
        self.shared = Fraction(0)
        predicted = np.zeros(len(self.runs))
        alike: dict[bytes, list[int]] = defaultdict(list)
        for at in addresses:
            alike[self.executed[at].tobytes()].append(at)
        self.guessed = 0.0
        for places in alike.values():
            counts = self.executed[places[0]]
            terms, exact = explained(counts, features, total)
            for feature, share in terms:
                predicted += len(places) * float(share) * feature.counts
            if not exact:
                self.guessed += len(places) * counts.sum()
            self._place(places, terms)
        self.error = np.abs(predicted - total).sum() / max(total.sum(), 1)
        worst = np.abs(predicted - total) / np.maximum(total, 1)
        at = int(worst.argmax())
        return (
            f"{len(self.runs)} runs, error {self.error:.3%}, not exact {self.guessed / total.sum():.1%}, "
            f"worst {worst[at]:.1%} of {total[at]:.0f} at {self.known[at]}"
        )

    def like_shared(self) -> bool:
        """Whether the nest that it shares with others has its instructions, within `ALIKE`."""
        shared = sum(issued(OUT.name, run.nest[1:]) / run.nest.cores for run in self.runs)
        own = sum(run.steps.total() for run in self.runs)
        return abs(own - shared) <= ALIKE * shared

    def _place(self, places: list[int], terms: list[tuple[Feature, Fraction]]) -> None:
        if all(share.denominator == 1 and share > 0 and feature.block for feature, share in terms):
            for feature, share in terms:
                assert feature.block is not None
                for _ in range(int(share)):
                    if feature.loop is None:
                        feature.block.own += places
                    else:
                        feature.block.inside.setdefault(id(feature.loop), []).extend(places)
            return
        texts: list[str] = []
        for feature, share in terms:
            if share.denominator > 1:  # a loop of its own: both in one expression are too long to read
                self.tail[of_all_cores(share, feature.times, self.shared)] += places
                self.shared += share
                continue
            sign = "-" if share < 0 else "+" if texts else ""
            size = f"{abs(share)} * " if abs(share) != 1 else ""
            texts.append(f"{sign} {size}({feature.times})")
        if texts:
            self.tail[" ".join(texts).strip()] += places

    # ----------------------------------------------------------------------- text

    def text(self) -> str:
        """The nest, as one line."""
        arrays = {
            access.partition("(")[0].replace("+", ""): access.count(",")
            for block in self.blocks
            for access in block.items
            if isinstance(access, str) and ":" in access
        }
        walks = [f"{array}({'0,' * commas}e)" for array, commas in arrays.items()]
        loops = [
            f"for e in 0..{simplified(times)} jump {{ {self._code(sorted(places), list(walks))} }}"
            for times, places in self.tail.items()
        ]
        return " ".join([self._written(self.blocks[0]), *loops])

    def _written(self, block: Block) -> str:
        accesses = [item for item in block.items if isinstance(item, str) and ":" in item]
        parts: list[str] = []
        closing = None
        own = sorted(block.own)
        if block.loop is not None and block.parent is not None:
            again = self.counts(f"{block.parent.times} * max(0, {trips_of(block.loop)} - 1)")
            closing = next(
                (
                    at
                    for at in reversed(own)
                    if self.program.code(at).letter == "B" and np.array_equal(self.taken_in[at], again)
                ),
                None,
            )
            if closing is not None:
                own.remove(closing)
        children: list[tuple[int, str]] = []
        last = max(own, default=0)
        for item in block.items:
            if isinstance(item, Loop):
                inner = next(other for other in self.blocks if other.items is item.body)
                text, first = self._written(inner), self._first(inner)
                once = block.inside.get(id(item), [])
                if once:
                    before = f"if ({trips_of(item)} > 0) {{ {self._code(sorted(once), [])} }}"
                    children.append((min(*once, first or min(once)), before))
                if text:
                    kind = "branch" if text.endswith(CLOSING) else "jump"
                    variable = f"{item.variable} in " if item.variable else ""
                    step = f" step {item.step}" if item.step > 1 else ""
                    text = text.removesuffix(CLOSING) + (" B" if kind == "branch" else "")
                    head = f"for {variable}{item.start}..{item.stop}{step} {kind}"
                    children.append((first or last, f"{head} {{ {text} }}"))
            elif isinstance(item, If):
                sides = []
                first = 0
                for side in (item.then, item.otherwise):
                    chosen = next((other for other in self.blocks if other.items is side), None)
                    sides.append(self._written(chosen) if chosen else "")
                    first = first or self._first(chosen)
                if any(sides):
                    text = f"if ({item.condition}) {{ {sides[0]} }}"
                    children.append((first or last, text + (f" else {{ {sides[1]} }}" if sides[1] else "")))
        # Sub-blocks keep their order; straight code stands where its addresses do.
        # What the nest accesses behind its loops stands there, wherever the compiler has turned it to.
        after = max((at + 1 for at, item in enumerate(block.items) if not isinstance(item, str)), default=0)
        behind, ahead = (
            {item[0] for item in items if isinstance(item, str) and ":" in item}
            for items in (block.items[after:], block.items[:after])
        )
        late = [place for place in own if self._accesses(place, behind - ahead)]
        own = [place for place in own if place not in set(late)]
        for first, text in children:
            early = [place for place in own if place < first]
            if early:
                parts.append(self._code(early, accesses))
                own = own[len(early) :]
            parts.append(text)
        if own or late:
            parts.append(self._code([*own, *late], accesses))
        written = " ".join(parts)
        return f"{written} {CLOSING}" if closing is not None else written

    def _accesses(self, place: int, letters: set[str]) -> bool:
        code = self.program.code(place)
        return code.letter in letters and code.base != STACK_POINTER

    def _first(self, block: Block | None) -> int:
        if block is None:
            return 0
        inner = [other for other in self.blocks if _is_in(other, block)]
        return min((at for other in inner for at in other.own), default=0)

    def _code(self, places: Sequence[int], accesses: list[str]) -> str:
        """Instructions in this order; accesses are used up."""
        tokens: list[str] = []
        recent: dict[int, int] = {}
        before = ""
        for position, at in enumerate(places):
            code = self.program.code(at)
            token = code.letter
            waits = any(position - recent.get(register, -9) <= NEAR for register in code.read)
            if code.letter in "LS" and code.base != STACK_POINTER:
                width = "" if code.width_bytes == FP32_BYTES else f".{code.width_bytes}"
                token += width
                alike = f"{code.letter}{width}:"
                found = next((item for item in accesses if item.replace("+", "").startswith(alike)), None)
                if found is not None:
                    accesses.remove(found)
                    token += found[found.index(":") :].rstrip("'")
            # The rule without names lets these wait for what stands before them.
            ruled = code.letter in "MfDFS" and before in "MfD"
            if code.letter in "F" or waits or ruled or (code.letter in TRACKED and code.written):
                named = dict.fromkeys(f"r{register}" for register in code.read if register in recent)
                into = f"r{code.written}" if code.letter in TRACKED and code.written else ""
                token += f"[{into}<{','.join(named)}]"
            elif code.letter == "B":
                times = self.executed[at].sum()
                share = round(float(self.taken_in[at].sum() / times), 2) if times else 0.0
                token += "!" if share == 1 else f"%{share}" if share else ""
            if code.letter == "B" and "[" in token:
                share = round(float(self.taken_in[at].sum() / self.executed[at].sum()), 2)
                direction = "!" if share == 1 else f"%{share}" if share else ""
                token = token.replace("B", f"B{direction}", 1)
            if code.written:
                recent.pop(code.written, None)
                if code.letter in TRACKED:
                    recent[code.written] = position
            before = code.letter
            tokens.append(token)
        return compact(" ".join(tokens))


CLOSING = "B<closing>"


def _is_in(block: Block | None, other: Block) -> bool:
    while block is not None:
        if block is other:
            return True
        block = block.parent
    return False


def of_all_cores(share: Fraction, times: str, before: Fraction) -> str:
    """How often a core executes a share of `times` that is no whole number, in whole numbers.

    Where all cores have as many `times` they have the share together. Which cores have one more begins behind
    those that have one more of the shares `before`: a core that takes one way takes no other.
    """
    whole = share.denominator
    begins, turned = round(-before * whole) % whole, f"{whole} * {OF_RANK}"
    turned = f"({turned} + {begins}) % {whole}" if begins else turned
    return f"({share.numerator} * ({times}) + {turned}) // {whole}"


def simplified(times: str) -> str:
    """Without factors of one, and with no brackets around a name."""
    return re.sub(r"(?<!\w)\((\w+)\)", r"\1", times.replace("(1 * ", "("))


def explained(
    counts: Numbers, features: Sequence[Feature], total: Numbers
) -> tuple[list[tuple[Feature, Fraction]], bool]:
    """`counts` as a sum of few features, and whether it is exactly that."""
    for feature in features:
        if np.array_equal(feature.counts, counts):
            return [(feature, Fraction(1))], True
    for feature in features:
        share = counts.sum() / feature.counts.sum()
        for number in (round(share), Fraction(share).limit_denominator(8)):
            if number and np.array_equal(feature.counts * float(number), counts):
                return [(feature, Fraction(number))], True
    best: tuple[float, list[tuple[Feature, Fraction]]] | None = None
    matrix = np.stack([feature.counts for feature in features], axis=1)
    products, against = matrix.T @ matrix, matrix.T @ counts
    first, second = np.triu_indices(len(features), 1)
    ones, twos, mixed = products[first, first], products[second, second], products[first, second]
    determinant = ones * twos - mixed**2
    good = determinant > 1e-9 * ones * twos
    first, second, determinant = first[good], second[good], determinant[good]
    shares = np.stack(
        [
            (against[first] * twos[good] - against[second] * mixed[good]) / determinant,
            (against[second] * ones[good] - against[first] * mixed[good]) / determinant,
        ],
        axis=1,
    )
    left = counts @ counts - shares[:, 0] * against[first] - shares[:, 1] * against[second]
    for at in np.argsort(left, kind="stable")[:MOST_PAIRS]:
        pair = features[first[at]], features[second[at]]
        found, whole = shares[at], np.rint(shares[at])
        of_pair = matrix[:, [first[at], second[at]]]
        if whole.all() and np.array_equal(of_pair @ whole, counts):
            return [(feature, Fraction(int(share))) for feature, share in zip(pair, whole, strict=True)], True
        if (found > 0).all():
            wrong = float(np.abs(of_pair @ found - counts).sum()) * max(map(_doubt, pair))
            if best is None or wrong < best[0]:
                best = (
                    wrong,
                    [
                        (feature, Fraction(float(share)).limit_denominator(1000))
                        for feature, share in zip(pair, found, strict=True)
                    ],
                )
    alone = []
    for feature in features:
        share = float(counts @ feature.counts / (feature.counts @ feature.counts))
        wrong = float(np.abs(feature.counts * share - counts).sum()) * _doubt(feature)
        alone.append((wrong, feature, share))
    wrong, feature, share = min(alone, key=lambda item: item[0])
    found = [(feature, Fraction(share))] if best is None or wrong <= best[0] * BETTER else best[1]
    sums = float(sum(share * int(feature.counts.sum()) for feature, share in found))
    if sums <= 0:
        return [], False
    # In all calls together it is executed as often as it was.
    shares_of = [
        (feature, (share * Fraction(float(counts.sum()) / sums)).limit_denominator(1000))
        for feature, share in found
    ]
    return [(feature, share) for feature, share in shares_of if share], False


def _doubt(feature: Feature) -> float:
    """Factor of what a feature leaves unexplained, in the choice among fits."""
    return BETTER if feature.block is None else 1.0


def chosen(runs: Iterable[Execution]) -> dict[str, list[Execution]]:
    """By nest the runs of the C kernel that is its own: of its name, or else the one with most runs.

    Of row programs every form is one as well.
    """
    found: dict[str, dict[tuple[str, ...], list[Execution]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        found[run.nest.kernel][run.kernels].append(run)
        if run.form not in ("", run.nest.kernel):
            found[run.form][run.kernels].append(run)
    return {nest: ways.get((nest,)) or max(ways.values(), key=len) for nest, ways in sorted(found.items())}


def written(kernel: Kernel) -> str:
    """The kernel file."""
    program, section = kernel.program, kernel.section
    functions = {program.function(at) for at in kernel.executed}
    computed, borrowed, nest = kernel.name.partition(AS)
    about = f"{computed}, in the loop of {nest}" if borrowed else section.get("about")
    size_bytes = sum(program.functions[name][1] for name in functions)
    lines = [
        f"kernel: {kernel.name}",
        "# Read off the compiled C (python -m tools.deployed.nests): do not edit.",
        f"about: {about}" if about else "",
        f"code_bytes: {size_bytes}",
        f"arrays: {{{', '.join(f'{array}: {indices}' for array, indices in section['arrays'].items())}}}",
        *(f"{key}: {str(section[key]).lower()}" for key in ("trans_b",) if key in section),
    ]
    names, text = dict(section.get("names") or {}), kernel.text()
    if OF_RANK in text:
        names |= RANK
    if names:
        lines += ["names:", *(f"  {key}: {known}" for key, known in names.items())]
    if section.get("fallback"):
        lines.append("fallback:")
        for entry in section["fallback"]:
            cost = entry["cost"].replace("H", "V").replace("+", "")
            lines += [f"  - when: {entry['when']}", f"    use: {entry['use']}", f"    cost: {cost}"]
    lines += ["nest: |", *layout(text, 1)]
    return "\n".join(filter(None, lines)) + "\n"


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tools.deployed.nests", description=__doc__)
    parser.add_argument("kernels", nargs="*", help="nests by name (all)")
    parser.add_argument("--folder", default="out/nests", help="where the program is built")
    parser.add_argument("--cached", help="file to keep what was executed in")
    parser.add_argument("--out", default=str(OUT), help="folder of the kernel files")
    arguments = parser.parse_args()
    cached = Path(arguments.cached) if arguments.cached else None
    if cached and cached.is_file():
        network, runs = pickle.loads(cached.read_bytes())
    else:
        network, runs = execute(list(called()), Path(arguments.folder).absolute())
        if cached:
            cached.write_bytes(pickle.dumps((network, runs)))
    program, out = Program(Path(network)), Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    for name, own in sorted(chosen(runs).items(), key=lambda item: AS in item[0]):
        if arguments.kernels and name not in arguments.kernels:
            continue
        kernel = Kernel(name, own, program)
        print(f"{name} ({'+'.join(own[0].kernels)}): {kernel.fit()}", flush=True)
        file = out / f"{name}.yaml"
        if kernel.error > MOST_OFF or (AS in name and kernel.like_shared()):
            file.unlink(missing_ok=True)
        else:
            file.write_text(written(kernel), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
