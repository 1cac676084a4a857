"""The text of a kernel as a tree that a tool can change and write again.

Unlike `trainlib.kernels.nest`, which makes instructions of it, the tree keeps names, conditions and accesses
as text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from derive_clang_kernels import compact

from trainlib.kernels.expressions import parse_expression

TOKEN = re.compile(
    r"#[^\n]*|for [^{]*\{|\} else (?:if \((?:[^()]|\([^()]*\))*\) )?\{|if \((?:[^()]|\([^()]*\))*\) \{|\}"
    r"|[A-Za-z]\+?(?:\.\d)?(?::\w+\([^()]*(?:\([^()]*\)[^()]*)*\))?'?"
    r"(?:[!]|%[\d.]+|\?\((?:[^()]|\([^()]*\))*\))?(?:\*\d+)?"
)
HEAD = re.compile(r"for (?:(\w+) in )?(.+)\.\.(.+?)(?: step (\d+))? (branch|hw|jump) \{")


@dataclass
class If:
    """`if (condition) { then } else { otherwise }`."""

    condition: str
    then: list[Item]
    otherwise: list[Item]


@dataclass
class Loop:
    """A loop of the text; `added` and `pairs` are what is solved for its level."""

    variable: str
    start: str
    stop: str
    step: int
    kind: str
    body: list[Item]
    was_hardware: bool = False
    lost_increments: int = 0
    added: int = 0
    pairs: int = 0

    @property
    def leaf(self) -> bool:
        """Whether the body is straight-line code."""
        return all(isinstance(item, str) for item in self.body)


Item = str | If | Loop


def parse(text: str) -> list[Item]:
    """The tree of a nest text, repeats written out."""
    tokens = [token for token in TOKEN.findall(text) if not token.startswith("#")]
    return _items(iter(tokens))[0]


def _items(tokens: Iterator[str]) -> tuple[list[Item], str]:
    items: list[Item] = []
    for token in tokens:
        if token.startswith("}"):
            return items, token
        if token.startswith("for "):
            match = HEAD.fullmatch(token)
            if match is None:
                raise SystemExit(f"cannot read the loop '{token}'")
            variable, start, stop, step, kind = match.groups()
            body, _ = _items(tokens)
            items.append(Loop(variable or "", start.strip(), stop.strip(), int(step or 1), kind, body))
        elif token.startswith("if "):
            items.append(_choice(token[4:-3], tokens))
        else:
            plain, _, repeat = token.partition("*") if ":" not in token else (token, "", "")
            items += [plain] * int(repeat or 1)
    return items, ""


def _choice(condition: str, tokens: Iterator[str]) -> If:
    then, end = _items(tokens)
    otherwise: list[Item] = []
    if end.startswith("} else if"):
        otherwise = [_choice(end[len("} else if (") : -3], tokens)]
    elif end.startswith("} else"):
        otherwise, _ = _items(tokens)
    return If(condition, then, otherwise)


def levels(items: list[Item]) -> Iterator[Loop]:
    """All loops below `items`, in program order."""
    for item in items:
        if isinstance(item, Loop):
            yield item
            yield from levels(item.body)
        elif isinstance(item, If):
            yield from levels(item.then)
            yield from levels(item.otherwise)


@dataclass
class Counts:
    """What one row executes: executions per level and totals over the tree."""

    executions: dict[int, int] = field(default_factory=dict)
    instructions: int = 0
    taken: int = 0


def value(text: str, names: Mapping[str, int]) -> int:
    """The value of an expression of a kernel file."""
    return parse_expression(text, "nest").evaluate(names)


def count(items: list[Item], names: Mapping[str, int], times: int, level: Loop, counts: Counts) -> None:
    """Add `times` executions of `items`, which belong to `level`."""
    for item in items:
        if isinstance(item, str):
            counts.instructions += times
            direction = re.search(r"([!])|\?\((.*)\)$|%([\d.]+)", item)
            if item[0] == "B" and direction:
                always, condition, share = direction.groups()
                taken = 1.0 if always else float(share) if share else float(bool(value(condition, names)))
                counts.taken += round(times * taken)
        elif isinstance(item, If):
            chosen = item.then if value(item.condition, names) else item.otherwise
            count(chosen, names, times, level, counts)
        else:
            start = value(item.start, names)
            trips = max(0, -(-(value(item.stop, names) - start) // item.step))
            counts.executions[id(item)] = counts.executions.get(id(item), 0) + times * trips
            counts.taken += times * max(0, trips - 1) * (item.kind == "branch")
            count(item.body, {**names, item.variable: start}, times * trips, item, counts)


def rendered(items: list[Item]) -> str:
    """The nest as one line of text."""
    parts: list[str] = []
    run: list[str] = []
    for item in items:
        if isinstance(item, str):
            run.append(item)
            continue
        parts.append(compact(" ".join(run)))
        run = []
        if isinstance(item, If):
            text = f"if ({item.condition}) {{ {rendered(item.then)} }}"
            if item.otherwise:
                text += f" else {{ {rendered(item.otherwise)} }}"
            parts.append(text)
        else:
            variable = f"{item.variable} in " if item.variable else ""
            step = f" step {item.step}" if item.step > 1 else ""
            body = rendered(item.body)
            parts.append(f"for {variable}{item.start}..{item.stop}{step} {item.kind} {{ {body} }}")
    parts.append(compact(" ".join(run)))
    return " ".join(part for part in parts if part)
