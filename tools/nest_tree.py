# SPDX-License-Identifier: Apache-2.0
"""The text of a kernel as a tree that a tool can change and write again.

Unlike `trainlib.kernels.nest`, which makes instructions of it, the tree keeps names, conditions and accesses
as text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

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
