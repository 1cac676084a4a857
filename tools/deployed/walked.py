# SPDX-License-Identifier: Apache-2.0
"""What core 0 executes to walk the tables of exports, beside what a run prices for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from arch.spec.program import DmaStart
from scheduler.programs.program_code import TABLE, OpActions
from scheduler.programs.rolling import Loop, Node, in_records
from scheduler.table_form import changes_of, is_wait
from scheduler.tiles.code_sizes import INSTRUCTION_BYTES, shipped_sizes
from tools.pages.page import table


def records_of(op: OpActions) -> dict[str, int]:
    """How often core 0 walks each kind of record.

    `loop` are turns, `changed` the words that turns change, `waits` all that are in records of waits, `alone`
    the forks that are calls of core 0 alone.
    """
    found = Counter(op=1, fetch=sum(_is_fetch(each, number) for number, each in enumerate(op.actions)))

    def count(nodes: Sequence[Node], around: tuple[Loop, ...], times: int) -> None:
        for node, *more in in_records(nodes, is_wait):
            if isinstance(node, Loop):
                found["loop"] += times * node.count
                count(node.body, (*around, node), times * node.count)
                continue
            assert isinstance(node.form, tuple)
            word = str(node.form[0])
            found[word] += times
            if word == "wait":
                found["waits"] += times * (1 + len(more))
            found["alone"] += times * (node.form == (word, node.form[1], False) and word == "fork")
            found["changed"] += times * len(changes_of(op, node, around))

    count(op.table_nodes, (), 1)
    return dict(found)


def _is_fetch(action: object, number: int) -> bool:
    """The one that a program begins with is in no table."""
    return isinstance(action, DmaStart) and action.work.what == TABLE and number > 0


def priced(records: Mapping[str, int]) -> dict[str, float]:
    """Cycles of core 0 by kind of record: what a walk takes more than a statement of a function, and that."""
    sizes = shipped_sizes()
    of_statements = {"op": "op", "waits": "wait", "fork": "fork"}
    return {
        kind: records.get(kind, 0)
        * (cycles + sizes["op"].get(of_statements.get(kind, ""), 0) / INSTRUCTION_BYTES)
        for kind, cycles in sizes["walk_cycles"].items()
    }


def sums(walks: Sequence[Mapping[str, Any]]) -> tuple[int, int, int, int]:
    """Tables, instructions and cycles executed, cycles priced."""
    ours = sum(sum(priced(walk["records"]).values()) for walk in walks)
    return (
        len(walks),
        sum(each["instructions"] for each in walks),
        sum(each["cycles"] for each in walks),
        round(ours),
    )


def solved(walks: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Cycles by kind of record that fit those of tables best; of kinds that enough tables have; without
    loops, whose turns and words that change are too few to be parted."""
    has = Counter(chain.from_iterable(+Counter(walk["records"]) for walk in walks))
    kinds = [kind for kind in KINDS if has[kind] >= ENOUGH]
    taken = [walk for walk in walks if (+Counter(walk["records"])).keys() <= set(kinds)]
    counts = np.array([[walk["records"].get(kind, 0) for kind in kinds] for walk in taken], float)
    found, *_ = np.linalg.lstsq(counts, np.array([walk["cycles"] for walk in taken], float), rcond=None)
    return dict(zip(kinds, found.tolist(), strict=True))


ENOUGH = 5
"""Tables that have a kind of record."""

KINDS = {
    "op": "begin and end of a table",
    "transfer_1d": "1D transfer",
    "transfer_2d": "2D transfer",
    "wait": "record of waits",
    "waits": "each of its waits",
    "fork": "fork",
    "alone": "kernel on core 0 alone, in addition to a fork",
    "fetch": "fetch of tables",
}


def page(models: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """By model and by kind of record the cycles of the walk that are priced, and those executed."""
    by_model = []
    for name, walks in models.items():
        tables, instructions, cycles, ours = sums(walks)
        numbers = (f"{each:,}" for each in (tables, instructions, cycles, ours))
        by_model.append((name, *numbers, f"{ours / cycles - 1:+.1%}"))
    found = solved([*chain.from_iterable(models.values())])
    ours_of = {kind: sum(priced({kind: 1}).values()) for kind in KINDS}
    by_kind = [(KINDS[kind], f"{ours_of[kind]:.0f}", f"{each:.0f}") for kind, each in found.items()]
    heads = ("model", "tables", "instructions executed", "cycles executed", "cycles predicted", "error")
    return "\n\n".join((table(heads, by_model), table(("record", "predicted", "executed"), by_kind)))
