# SPDX-License-Identifier: Apache-2.0
"""Projections of attention as kernel calls: q, k, v and y from their weights, and the gradients of these.

Sequences inside are [batch, F, L], x and y are [batch, L, E]: matmul extents are those of PULP-TrainLib, with
its transposes where a layout needs them. What an adapter adds is one more product of rank R in the steps of
the frozen weight, and h [batch, R, L] = alpha / R · down · x before it: the low-rank part never lies in a
tensor as large as a sequence.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod

from trainlib.ir.graph import Op
from trainlib.ir.steps import Tensors
from trainlib.primitives.attention.attention import AttentionLowering, alpha_over_rank, scaling
from trainlib.primitives.lowering.axes import Area, Axes, Form, Groups
from trainlib.primitives.lowering.calls import BATCH
from trainlib.primitives.lowering.forks import Fork, column_sum, row_sum
from trainlib.primitives.lowering.products import (
    Call,
    Calls,
    Each,
    Product,
    ProductLowering,
    multiplied,
    turning,
)

PROJECTIONS = {**dict.fromkeys("qkv", ("features", "width")), "o": ("width", "features")}
"""Queries, keys, values and output: rows and columns of their weights. Each may have an adapter."""

ENDS = ("_down", "_up")
"""Of the names of the two matrices of an adapter, behind that of the weight."""

_AXES: dict[str, Axes] = {
    **dict.fromkeys("xy", (BATCH, "tokens", "width")),
    **dict.fromkeys(("q", "k", "v", "map"), (BATCH, "features", "tokens")),
}
"""Dimensions of every tensor, and of its gradient."""
for _name, (_rows, _columns) in PROJECTIONS.items():
    _AXES |= {f"h{_name}": (BATCH, "rank", "tokens"), f"w{_name}": (_rows, _columns), f"b{_name}": (_rows,)}
    _AXES |= zip((f"w{_name}{end}" for end in ENDS), (("rank", _columns), (_rows, "rank")), strict=True)


def low_rank(op: Op) -> list[tuple[str, str]]:
    """What the terms that adapters add to a step are made of: a matrix and an inner sequence each."""
    hidden = [role for role in op.reads if role.removeprefix("d")[0] == "h"]
    return list(zip([role for role in op.reads if role.endswith(ENDS)], hidden, strict=False))


class _Projection(ProductLowering, AttentionLowering):
    """What the steps share."""

    once = ""
    """A bias, its gradient and the terms of adapters belong to the tile that begins this dimension."""
    term: Axes
    """Dimensions of what an adapter adds to a sample."""
    always = True
    """Whether there may be such a thing without an adapter."""

    def even(self, op: Op, tensors: Tensors) -> Collection[str]:
        """All but that one."""
        return self.dimensions(op, tensors).keys() - ({self.once} if self.always or low_rank(op) else set())

    def axes(self, role: str) -> Axes:
        """Batch, tokens (L), width (E), features (F) and rank (R)."""
        return _AXES[role.removeprefix("d")]

    def loaded(self, area: Area) -> Sequence[str]:
        if area.begins(self.once):
            return area.op.reads
        late = {role for pair in low_rank(area.op) for role in pair}
        return [role for role in area.op.reads if role not in late and role[0] != "b"]

    def stored(self, area: Area) -> Sequence[str]:
        return [role for role in area.op.writes if role[:2] != "db" or area.begins(self.once)]

    def macs(self, op: Op, tensors: Tensors) -> int:
        """With the products of the adapters."""
        sizes = self.dimensions(op, tensors)
        inner = len(low_rank(op)) * sizes.get("rank", 0)
        return super().macs(op, tensors) + inner * prod(sizes[name] for name in self.kept)

    def turned(self, form: Form) -> Sequence[str]:
        """What is transposed, into a buffer of that name."""
        return [weight for weight, _ in low_rank(form.op) if weight.endswith("_down")]

    def scratch(self, form: Form) -> Mapping[str, Groups]:
        """A term of the adapters, and what is transposed."""
        return {"low_rank": tuple((axis,) for axis in self.term), **self.transposes(form)}

    def transposes(self, form: Form) -> Mapping[str, Groups]:
        """Buffers of what is transposed."""
        axes = {role: form.axes(role)[-2:] for role in self.turned(form)}
        return {f"{role}_transposed": ((columns,), (rows,)) for role, (rows, columns) in axes.items()}

    def first(self, form: Form, total: str, bias: str = "") -> Each:
        """What is added to a sample of a total: a bias, and the products of adapters."""
        rows, tokens = self.term
        moves, formula = f"{total} {bias} -> {total}", lambda y, b: y + b
        sizes: dict[str, Axes] = {"N": (rows,), "M": (tokens,)}
        biased = Fork("row_bias", f"Y:{total} G:{bias}", moves, formula, sizes, ("N",), ("M",))
        products = [
            multiplied(form, self._upright(form, weight), hidden, total, rows, "rank", tokens, "low_rank")
            for weight, hidden in low_rank(form.op)
        ]
        return Each((), [*([biased] if bias in form.op else []), *products], (self.once,))

    def _upright(self, form: Form, role: str) -> str:
        return f"{role}_transposed" if role in self.turned(form) else role

    def turnings(self, form: Form) -> list[Fork]:
        """Transposes what it has to."""
        return [turning(role, f"{role}_transposed", *form.axes(role)[-2:]) for role in self.turned(form)]

    def scaled(self, form: Form, target: str) -> Sequence[Fork]:
        """Times alpha / R, if it is the inner sequence of an adapter."""
        factor = alpha_over_rank(form.op) if "rank" in self.kept else 1
        return [scaling(target, self.kept[1:], factor)] if factor != 1 else []


class Projection(_Projection):
    """One of q, k, v [F, L] = W[F, E] · xᵀ + b; (F, E, L). Of an adapter, one of h [R, L]: `rows` rank."""

    multiplies = "{}"
    """The matrix, by the role of the weight."""

    def __init__(self, rows: str = "features", source: str = "x") -> None:
        self.kept, self.term = (BATCH, rows, "tokens"), (rows, "tokens")
        self.once = "width" if source in ("x", "dy") else "features"
        self.summed = (self.once,)

    def kernels(self, form: Form) -> Sequence[Each | Fork]:
        """Some features of some tokens; the bias with the first elements of the tokens."""
        (source, weight, *_), (name,), (rows, tokens) = form.op.reads, form.op.writes, self.term
        matrix = self.multiplies.format(weight)
        product = multiplied(form, matrix, source, name, rows, self.once, tokens)
        made: Calls = [product, self.first(form, name, f"b{name}"), *self.scaled(form, name)]
        return Each((), self.turnings(form), (self.once,)), Each((BATCH,), made)


class OutputProjection(_Projection):
    """y[L, E] = (Wo[E, F] · map[F, L] + bo)ᵀ; (E, F, L)."""

    kept, summed, once = (BATCH, "tokens", "width"), ("features",), "features"
    term = ("width", "tokens")

    def scratch(self, form: Form) -> Mapping[str, Groups]:
        """With the result of a sample."""
        return {"y_transposed": (("width",), ("tokens",)), **super().scratch(form)}

    def kernels(self, form: Form) -> Sequence[Each]:
        """Some elements of some tokens; the bias with the first features."""
        product = multiplied(form, "wo", "map", "y_transposed", "width", "features", "tokens")
        turned = turning("y_transposed", "y", "width", "tokens")
        made: Calls = [product, self.first(form, "y_transposed", "bo"), turned]
        return Each((), self.turnings(form), (self.once,)), Each((BATCH,), made)


class OutputGradient(Projection):
    """dmap[F, L] = Woᵀ · dyᵀ; (F, E, L). Of an adapter, one of dh [R, L] = upᵀ · gradient: `rows` rank."""

    always = False
    multiplies = "{}_transposed"

    def scratch(self, form: Form) -> Mapping[str, Groups]:
        """With the weight."""
        turned: Groups = (self.term[:1], (self.once,))
        return {f"{form.op.reads[1]}_transposed": turned, **super().scratch(form)}

    def kernels(self, form: Form) -> Sequence[Each | Fork]:
        """Some columns of the weight, transposed once."""
        weight = form.op.reads[1]
        turned = turning(weight, self.multiplies.format(weight), self.once, self.term[0])
        return turned, *super().kernels(form)


class ProjectionWeightGradient(_Projection):
    """dW[F, E] = sum over the batch of d[F, L] · x[L, E] of one of q, k, v, and its bias; (F, L, E).

    Of the output dWo[E, F] = sum of dyᵀ · mapᵀ, both transposed first; (E, L, F). The gradients of an adapter
    have R rows or columns.
    """

    summed = (BATCH, "tokens")

    def __init__(self, rows: str = "features", columns: str = "width") -> None:
        self.kept, self.once = (rows, columns), columns

    def turned(self, form: Form) -> Sequence[str]:
        """What has the tokens where the other one should have them."""
        left, right = form.op.reads
        at = {left: 1, right: 2}
        return [role for role, place in at.items() if form.axes(role)[place] == "tokens"]

    def scratch(self, form: Form) -> Mapping[str, Groups]:
        """What is transposed, and a term."""
        return {**self.transposes(form), "dw_of_sample": (self.kept[:1], self.kept[1:])}

    def kernels(self, form: Form) -> Sequence[Each]:
        """A box of dW; the bias with the first of its columns."""
        (left, right), (result, *bias), (rows, columns) = form.op.reads, form.op.writes, self.kept
        a, b = (self._upright(form, role) for role in (left, right))
        dimensions = (rows,), ("tokens",), (columns,)
        product = Product(a, b, result, *dimensions, term="dw_of_sample", over=(BATCH,))
        if left in self.turned(form):
            sums = [column_sum(left, role, (BATCH, "tokens"), (rows,)) for role in bias]
        else:
            sums = [row_sum(left, role, (BATCH,), (rows,), ("tokens",)) for role in bias]
        return Each((BATCH,), [*self.turnings(form), product]), Each((), sums, (self.once,))


class InputGradient(_Projection):
    """dx[L, E] = sum over q, k, v of (Wᵀ · d)ᵀ; three times (E, F, L)."""

    kept, summed, once = (BATCH, "tokens", "width"), ("features",), "features"
    term = ("width", "tokens")
    always = False

    def macs(self, op: Op, tensors: Tensors) -> int:
        """Three products, and those of the adapters."""
        sizes = self.dimensions(op, tensors)
        return super().macs(op, tensors) + 2 * prod(sizes[name] for name in (*self.kept, *self.summed))

    def scratch(self, form: Form) -> Mapping[str, Groups]:
        """With one of the weights, and the result of a sample."""
        image: Groups = (("width",), ("tokens",))
        own: dict[str, Groups] = {"w_transposed": (("width",), ("features",))}
        return {**own, "dx_transposed": image, "dx_of_one": image, **super().scratch(form)}

    def kernels(self, form: Form) -> Sequence[Each]:
        """A box of the weights; per sample three products, added up and transposed."""
        made: list[Call] = []
        for name, term in ("q", ""), ("k", "dx_of_one"), ("v", "dx_of_one"):
            made.append(turning(f"w{name}", "w_transposed", "features", "width"))
            where = "dx_transposed", "width", "features", "tokens"
            made.append(multiplied(form, "w_transposed", f"d{name}", *where, term))
        made += [self.first(form, "dx_transposed"), turning("dx_transposed", "dx", "width", "tokens")]
        return Each((), self.turnings(form), (self.once,)), Each((BATCH,), made)
