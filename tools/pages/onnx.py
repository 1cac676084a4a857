# SPDX-License-Identifier: Apache-2.0
"""docs/onnx.md: which ops are taken, and how ONNX's own tests of single nodes end."""

from __future__ import annotations

from collections import Counter

from tools.pages.page import Page, table

REASONS = 3
"""Reasons shown per op, the most frequent first."""


def ops() -> str:
    """The ops of forward graphs, and those of training graphs."""
    from importers.onnx.forward import HANDLERS as FORWARD
    from importers.onnx.losses import LOSSES
    from importers.training.graph import HANDLERS as TRAINING

    def listed(names: set[str]) -> str:
        return ", ".join(f"`{name}`" for name in sorted(names, key=str.lower))

    training = {*TRAINING, "SGD"}
    forward = {name for name in (*FORWARD, *LOSSES) if not name.startswith("importer:")}
    rows = [("networks", len(forward), listed(forward)), ("training graphs", len(training), listed(training))]
    return table(("graphs", "ops", "which"), rows)


def nodes() -> str:
    """Cases of `onnx.backend.test` by op."""
    from tools.onnx_node_tests import PASSED, REFUSED, outcomes

    found = list(outcomes())
    rows = []
    for op in sorted({item.op for item in found}, key=str.lower):
        own = [item for item in found if item.op == op]
        counts = Counter(item.status for item in own)
        reasons = Counter(item.reason for item in own if item.status == REFUSED).most_common(REASONS)
        wrong = len(own) - counts[PASSED] - counts[REFUSED]
        rows.append((op, counts[PASSED], counts[REFUSED], wrong, "; ".join(text for text, _ in reasons)))
    total = Counter(item.status for item in found)
    others = len(found) - total[PASSED] - total[REFUSED]
    rows.append(("**all**", total[PASSED], total[REFUSED], others, ""))
    return table(("op", "passed", "refused", "wrong", "most frequent reasons"), rows)


PAGE = Page("docs/onnx.md", {"ops": ops, "nodes": nodes}, {"nodes": ops})
