# SPDX-License-Identifier: Apache-2.0
"""Activations made of several layers, trained slopes, softmaxes, and reductions over dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, pi
from types import MappingProxyType
from typing import Any

from configs.values import replace
from importers.graph.arranging import Site, regrouped, renumbered, rows, sample_word, under
from importers.graph.draft import CannotTakeError
from importers.graph.views import BATCH, View, neighbours
from importers.graph.weights import Constant
from importers.place.pairs import applied, as_view, power, root, scaled, shifted, two_operands
from importers.place.pooling import averaged_image


def selu(site: Site, view: View, alpha: float, gamma: float) -> View:
    """gamma · elu(x) of slope alpha (Klambauer et al. 2017)."""
    return scaled(site, applied(site, "elu", view, {"alpha": alpha}, suffix="_elu"), gamma)


def celu(site: Site, view: View, alpha: float) -> View:
    """alpha · elu(x / alpha)."""
    if alpha <= 0:
        raise CannotTakeError(f"Celu with alpha {alpha:g} is not supported", "use an alpha above 0")
    inner = scaled(site, view, 1 / alpha, suffix="_inner")
    return scaled(site, applied(site, "elu", inner), alpha, suffix="_outer")


def softsign(site: Site, view: View) -> View:
    """x / (1 + abs(x))."""
    size = shifted(site, applied(site, "absolute", view, suffix="_size"), 1.0, suffix="_below")
    return two_operands(site, "divide", view, size)


def shifted_sine(site: Site, view: View) -> View:
    """The sine a quarter of a turn later."""
    return applied(site, "sine", shifted(site, view, pi / 2, suffix="_quarter"))


def compared(site: Site, view: View, form: str, number: float, *, suffix: str = "") -> View:
    """1 where the comparison with a number holds, else 0."""
    return applied(site, "compare", view, {"form": form, "value": number}, suffix=suffix)


def sign(site: Site, view: View) -> View:
    """1 above 0, -1 below; no gradient."""
    above, below = (compared(site, view, form, 0.0, suffix=f"_{form}") for form in ("gt", "lt"))
    return two_operands(site, "subtract", above, below)


def shrunk(site: Site, view: View, bound: float, *, hard: bool) -> View:
    """0 up to a distance from 0, farther away x, or what x is farther away."""
    if hard:
        size = applied(site, "absolute", view, suffix="_size")
        return two_operands(site, "multiply", view, compared(site, size, "gt", bound, suffix="_outside"))
    inside = applied(site, "clip", view, {"low": -bound, "high": bound}, suffix="_inside")
    return two_operands(site, "subtract", view, inside)


def above(site: Site, view: View, bound: float, value: float) -> View:
    """x above a bound, else a number."""
    kept = two_operands(site, "multiply", view, compared(site, view, "gt", bound, suffix="_above"))
    if not value:
        return kept
    filled = scaled(site, compared(site, view, "le", bound, suffix="_below"), value, suffix="_value")
    return two_operands(site, "add", kept, filled)


def sloped(site: Site, view: View, slope: Constant) -> View:
    """PReLU: a trained slope below 0, one for all or one for each channel; of other shapes by products."""
    rank = len(view.dims)
    aligned = (1,) * (rank - len(slope.shape)) + slope.shape
    weights = {"w": slope.moved(lambda array: array.reshape(-1))}
    if slope.value.size == 1:
        return replace(view, word=site.layer("prelu", (view.word,), {}, weights).word)
    if view.batch_dim == 0 and aligned == (1, view.shape[1], *(1,) * (rank - 2)):
        word, _ = sample_word(site, view)
        return under(site.layer("prelu", (word,), {"per_channel": True}, weights), 0, rank)
    left = applied(site, "clip", view, {"high": 0.0}, suffix="_left")
    right = applied(site, "relu", view, suffix="_right")
    held = as_view(site, slope, view)
    return two_operands(site, "add", right, two_operands(site, "multiply", left, held, suffix="_slope"))


def softmax(site: Site, view: View, dim: int, *, kind: str = "softmax", suffix: str = "") -> View:
    """Softmax, or its logarithm, over one dimension."""
    if BATCH in view.dims[dim]:
        raise CannotTakeError("a softmax over the batch is not supported", "use a dimension after the batch")
    word, rest = rows(site, view, dim)
    made = site.layer(kind, (word,), suffix=suffix)
    return regrouped(view, made, rest, view.shape[dim], dim)


def norm(site: Site, view: View, dims: Sequence[int], order: float, *, keep: bool) -> View:
    """(sum of abs(x)^order)^(1 / order) over some dimensions; the largest for infinity."""
    if not order > 0:
        raise CannotTakeError(f"a norm of order {order:g} is not supported", "use an order above 0")
    sizes = view if order == 2 else applied(site, "absolute", view, suffix="_size")
    if order in (1, inf):
        return reduced(site, sizes, dims, "reduce_max" if order == inf else "reduce_sum", keep=keep)
    total = reduced(site, power(site, sizes, order), dims, "reduce_sum", keep=keep, suffix="_sum")
    return root(site, total, order)


def log_sum_exp(site: Site, view: View, dims: Sequence[int], *, keep: bool) -> View:
    """Logarithm of the sum of the exponentials, which are taken of what is left below the largest."""
    top = reduced(site, view, dims, "reduce_max", keep=True, suffix="_top")
    less = applied(site, "exponential", two_operands(site, "subtract", view, top), suffix="_exp")
    total = applied(site, "logarithm", reduced(site, less, dims, "reduce_sum", keep=True), suffix="_log")
    made = two_operands(site, "add", total, top)
    for dim in () if keep else sorted(dims, reverse=True):
        made = made.without_dim(dim)
    return made


def cosine(site: Site, left: View, right: View, dim: int, eps: float) -> View:
    """Cosine of the angle between vectors, whose norms count as `eps` at least."""
    dot = reduced(site, two_operands(site, "multiply", left, right), (dim,), "reduce_sum", keep=False)
    norms = [
        applied(site, "clip", norm(site, view, (dim,), 2, keep=False), {"low": eps}) for view in (left, right)
    ]
    return two_operands(site, "divide", dot, two_operands(site, "multiply", *norms, suffix="_norms"))


def reduced(
    site: Site,
    view: View,
    dims: Sequence[int],
    kind: str,
    *,
    keep: bool,
    suffix: str = "",
    options: Mapping[str, Any] = MappingProxyType({}),
) -> View:
    """The mean (sum, extreme) over some dimensions, none of which counts samples (unless there is one)."""
    if any(BATCH in view.dims[dim] for dim in dims) and view.batch > 1:
        raise CannotTakeError(
            f"a {kind.removeprefix('reduce_')} over the batch is not supported", "use later dimensions"
        )
    taken = sorted(piece for dim in dims for piece in view.dims[dim] if piece != BATCH)
    is_image = list(dims) == [2, 3] and len(view.dims) == 4 and view.batch_dim in (0, None)
    if kind == "reduce_mean" and is_image and taken and (view.batch_dim is None or view.samples_only(0)):
        return averaged_image(site, view, 2, keep=keep)
    seen = [() if index in dims else dim for index, dim in enumerate(view.dims) if keep or index not in dims]
    if not taken:
        return replace(view, dims=tuple(seen))
    before = [piece for piece in range(1, len(view.pieces)) if piece not in taken]
    after = [piece for piece in before if piece > taken[0]] if len(neighbours(taken)) == 1 else []
    before = [piece for piece in before if piece not in after]
    groups = [group for group in (before, taken, after) if group]
    word = site.stored(view, groups)
    said = {"axes": [1 if before else 0], "keep_dims": len(groups) == 1, **options}
    made = site.layer(kind, (word,), said, suffix=suffix)
    return renumbered(replace(view, dims=tuple(seen)), made, [*before, *after])
