# SPDX-License-Identifier: Apache-2.0
"""Heads of attention as kernel calls: scores, their softmax, weighted sums, and the gradients of these.

Sequences are kept as [batch, F, L], a head is H = F / heads rows of that; scores as [batch, heads, queries,
keys]. One step does one product (or one softmax), so that every dimension of it may be cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from trainlib.ir.access import Index, Term
from trainlib.ir.graph import Op
from trainlib.ir.steps import Tensors
from trainlib.primitives.attention.softmax import SUMS, RowLowering, softmax_gradient_passes, softmax_passes
from trainlib.primitives.lowering.axes import Axes, AxesLowering, Form, Groups
from trainlib.primitives.lowering.calls import BATCH
from trainlib.primitives.lowering.forks import Fork
from trainlib.primitives.lowering.products import Each, ProductLowering, multiplied, turning

_SIZES = {
    BATCH: "batch",
    "heads": "heads",
    "queries": "length",
    "keys": "length",
    "tokens": "length",
    "width": "width",
    "features": "features",
    "rank": "rank",
}
"""Dimensions of steps, and the attributes that hold their sizes."""

SCORES = (BATCH, "heads", "queries", "keys")


class AttentionLowering(AxesLowering):
    """What the steps of attention share."""

    def default_kernel(self, op: Op) -> str:
        """The naive row-parallel kernel."""
        return "mm"

    def dimensions(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """Samples, heads, queries and keys or tokens (L), width (E), features (F), the rank of adapters."""
        numbers = op.attributes
        return {name: numbers[key] for name, key in _SIZES.items() if key in numbers}


def _head(op: Op) -> int:
    """H."""
    return int(op.attributes["features"] // op.attributes["heads"])


def alpha_over_rank(op: Op) -> float:
    """Weight of the products of the adapters."""
    return float(op.attributes["adapter"]["alpha"] / op.attributes["rank"])


class _OfHeads(ProductLowering, AttentionLowering):
    """A product per head; ``rows`` are those of the heads in a sequence."""

    def __init__(self, axes: Mapping[str, Axes]) -> None:
        self._axes = axes

    def axes(self, role: str) -> Axes:
        """Rows of heads by queries or keys, or scores."""
        return self._axes[role]

    def dimensions(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """With the rows of a head."""
        return {**super().dimensions(op, tensors), "of head": _head(op)}

    def maps(self, op: Op, tensors: Tensors) -> Mapping[str, Index]:
        terms = Term("heads", _head(op)), Term("of head")
        return {"rows": Index("rows", op.attributes["features"], terms)}

    def macs(self, op: Op, tensors: Tensors) -> int:
        return _head(op) * prod(self.dimensions(op, tensors)[name] for name in SCORES)


def scaling(buffer: str, axes: Axes, number: float) -> Fork:
    """A buffer *= number."""
    numbers, moves = {"factor": float(np.float32(number))}, f"{buffer} -> {buffer}"
    return Fork(
        "scale_by_number",
        f"X:{buffer} Y:{buffer}",
        moves,
        lambda x, factor: x * factor,
        {"elements": axes},
        elements=("elements",),
        numbers=numbers,
    )


class HeadScores(_OfHeads):
    """result[q, k] = leftᵀ[q, H] · right[H, k] of every head, times 1 / sqrt(H) if `scaled`.

    (queries, H, keys), the left one transposed first. Nothing of it is a sum that is cut: H is short.
    """

    kept = SCORES

    def __init__(self, left: str, right: str, result: str, *, scaled: bool) -> None:
        super().__init__({left: (BATCH, "rows", "queries"), right: (BATCH, "rows", "keys"), result: SCORES})
        self.scaled = scaled

    def scratch(self, form: Form) -> Mapping[str, Groups]:
        """The left one of a head."""
        return {"turned": (("queries",), ("of head",))}

    def kernels(self, form: Form) -> Sequence[Each | Fork]:
        """Some queries and keys of some heads."""
        left, right, result = self._axes
        turned = turning(left, "turned", "of head", "queries")
        scores = multiplied(form, "turned", right, result, "queries", "of head", "keys")
        scaled = [scaling(result, SCORES, _head(form.op) ** -0.5)] if self.scaled else []
        return [Each((BATCH, "heads"), [turned, scores]), *scaled]


class HeadSum(_OfHeads):
    """A sum of columns of `source`, weighted by the matrix `weights`, of every head.

    `over` keys: result[H, q] = source[H, k] · weights[q, k]ᵀ, the matmul with B transposed; over queries:
    result[H, k] = source[H, q] · weights[q, k].
    """

    def __init__(self, source: str, weights: str, result: str, over: str) -> None:
        left = "queries" if over == "keys" else "keys"
        super().__init__({source: (BATCH, "rows", over), weights: SCORES, result: (BATCH, "rows", left)})
        self.kept, self.summed = (BATCH, "heads", left), (over,)

    def kernels(self, form: Form) -> Sequence[Each]:
        """Some columns of some heads of the result, or what a part of their sums gives to them."""
        (source, weights, result), (over,), left = self._axes, self.summed, self.kept[-1]
        product = multiplied(form, source, weights, result, "of head", over, left)
        return [Each((BATCH, "heads"), [product])]


class _Rows(RowLowering, AttentionLowering):
    """A step on whole rows of scores."""

    kept = (BATCH, "heads", "queries")

    def default_kernel(self, op: Op) -> str:
        return ""

    def axes(self, role: str) -> Axes:
        return SCORES


def _scores_gradient(form: Form) -> list[Fork]:
    """In two passes and the scale."""
    passes = softmax_gradient_passes(form, "p", "dp", "ds")
    return [*passes, scaling("ds", SCORES, _head(form.op) ** -0.5)]


PROBABILITIES = _Rows(lambda form: softmax_passes(form, "s", "p"))
"""p = softmax of every row of the scores s, in its three passes."""

PROBABILITY_GRADIENT = _Rows(_scores_gradient, (SUMS,))
"""ds = (dp - sum of the row's dp · p) · p / sqrt(H)."""
