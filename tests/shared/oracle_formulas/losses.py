# SPDX-License-Identifier: Apache-2.0
"""Losses in other words than their terms and slopes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from shared.oracle_formulas import Formula, Oracles, called

if TYPE_CHECKING:
    from trainlib.ir.graph import Op
    from trainlib.ir.steps import Array
    from trainlib.primitives.definition import Values

LEAST_LOG, LEAST_VARIANCE, LEAST_SQUARE = -100.0, 1e-12, 1e-12
"""Bounds of torch.nn, in BCELoss and CosineEmbeddingLoss."""

Truth = Callable[..., tuple[Any, Any, float]]
"""Terms of a loss, their slopes by y, and what a mean of them divides by."""


def each(terms: Formula, slopes: Formula) -> Truth:
    """The truth of a loss with a term for every element."""
    return lambda op, values: (
        called(terms, op, values),
        called(slopes, op, values),
        float(values["y"].size),
    )


def per_channel(option: Any, y: Any) -> Any:
    """An option of a number for each channel beside y."""
    return np.reshape(option, (1, -1, *(1,) * (y.ndim - 2))) if isinstance(option, list) else option


def _counted(label: Array, ignored: int | None) -> Array:
    return np.ones(label.shape, bool) if ignored is None else ~np.equal(label, ignored)


def _berhu(y: Array, label: Array, alpha: float) -> Any:
    size = np.abs(y - label)
    limit = alpha * np.max(size)
    return np.where(size <= limit, size, (size * size + limit * limit) / (2 * limit))


def _berhu_slopes(y: Array, label: Array, alpha: float) -> Any:
    size = np.abs(y - label)
    return np.sign(y - label) * np.maximum(size / (alpha * np.max(size)), 1)


def _huber(y: Any, label: Array, delta: float) -> Any:
    size = np.abs(y - label)
    return np.where(size <= delta, size * size * 0.5, delta * size - delta * delta / 2)


def _huber_slopes(y: Any, label: Array, delta: float) -> Any:
    return np.maximum(np.minimum(y - label, delta), -delta)


def _bce_truth(op: Op, values: Values) -> tuple[Any, Any, float]:
    """By the probability of what did not come, p = |t - y| for targets 0 and 1; a mixture of both between."""
    y, label = np.clip(values["y"], 0, 1), values["label"]
    weights = per_channel(op.attributes["element_weights"], y)
    positive, negative = (-np.log(np.clip(share, np.exp(LEAST_LOG), None)) for share in (y, 1 - y))
    terms = weights * (label * positive + (1 - label) * negative)
    slope = weights * (y - label) / np.clip(y - np.square(y), LEAST_VARIANCE, None)
    return terms, slope, float(y.size)


def _logistic(x: Any) -> Any:
    return 0.5 * (1 + np.tanh(x / 2))


def _logits(y: Any, label: Array, pos_weight: Any, element_weights: Any) -> Any:
    """The two classes' terms, each with its probability's logarithm."""
    came, did_not = (
        per_channel(pos_weight, label) * label * np.logaddexp(0, -y),
        (1 - label) * np.logaddexp(0, y),
    )
    return (came + did_not) * per_channel(element_weights, label)


def _logits_slopes(y: Any, label: Array, pos_weight: Any, element_weights: Any) -> Any:
    came = per_channel(pos_weight, label) * label * _logistic(-y)
    return ((1 - label) * _logistic(y) - came) * per_channel(element_weights, label)


def _kl(y: Any, label: Array, log_target: bool) -> Any:
    share = np.exp(label) if log_target else label
    entropy = np.sum(share * np.log(share, out=np.zeros(share.shape), where=share > 0))
    return entropy / share.size - y * share  # the entropy of the targets, shared out: the sum is the same


def _poisson(y: Any, label: Array, log_input: bool, full: bool, eps: float) -> Any:
    log_rate = y if log_input else np.log(y + eps)
    rate = np.exp(y) if log_input else y
    above = np.maximum(label, 1)
    stirling = (above + 0.5) * np.log(above) - above + 0.5 * np.log(2 * np.pi)
    return rate - log_rate * label + np.where(label > 1, stirling if full else 0.0, 0.0)


def _poisson_slopes(y: Any, label: Array, log_input: bool, eps: float) -> Any:
    return np.exp(y) - label if log_input else 1 - label / (y + eps)


def _multi_margin_truth(op: Op, values: Values) -> tuple[Any, Any, float]:
    """Pair by pair of the label's class and another: each pushes both."""
    y, options = values["y"], op.attributes
    total, slopes = 0.0, np.zeros(y.shape)
    for sample, label in enumerate(values["label"]):
        share = (options["class_weights"] or [1.0] * y.shape[1])[label] / y.shape[1]
        for other in set(range(y.shape[1])) - {int(label)}:
            gap = y[sample, label] - y[sample, other]
            if gap < options["margin"]:
                push = share if options["p"] == 1 else 2 * share * (options["margin"] - gap)
                total += share * (options["margin"] - gap) ** options["p"]
                slopes[sample, other] += push
                slopes[sample, label] -= push
    return total, slopes, float(len(y))


def _cosine_truth(op: Op, values: Values) -> tuple[Any, Any, float]:
    """With targets of length 1, and by the quotient rule."""
    y, label = values["y"], values["label"]
    unit = label / np.sqrt(np.einsum("nd,nd->n", label, label) + LEAST_SQUARE)[:, None]
    square = np.einsum("nd,nd->n", y, y)[:, None] + LEAST_SQUARE
    along = np.einsum("nd,nd->n", y, unit)[:, None]
    slope = along * y * square**-1.5 - unit * square**-0.5
    return len(y) - np.sum(along * square**-0.5), slope, float(len(y))


def marked(op: Op, values: Values) -> tuple[Array, Array]:
    """Weights of the classes where a label that counts is theirs, in the shape of y; and which labels count.

    The truth's own way to a label: by comparing, not by an index.
    """
    y, label = values["y"], values["label"]
    counts = _counted(label, op.attributes["ignore_index"])
    classes = np.arange(y.shape[1]).reshape(-1, *(1,) * (y.ndim - 2))
    marks = (np.expand_dims(label, 1) == classes) & np.expand_dims(counts, 1)
    weights = np.asarray(op.attributes["class_weights"] or np.ones(y.shape[1])).reshape(classes.shape)
    return marks * weights, counts


def _truth(op: Op, values: Values) -> tuple[Any, Any, float]:
    """Part by part, as torch.nn.CrossEntropyLoss is written: the labels' own, and that of the smoothing."""
    logits, smoothing = values["y"], op.attributes["label_smoothing"]
    classes = logits.shape[1]
    logits = logits - logits.max(axis=1, keepdims=True)  # beside large ones the sum's logarithm would be lost
    logs = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    of_class = np.asarray(op.attributes["class_weights"] or np.ones(classes))
    of_class = of_class.reshape(-1, *(1,) * (logits.ndim - 2))
    if op.attributes["labels"] == "hard":
        chosen, counts = marked(op, values)
        shares = (1 - smoothing) * chosen + smoothing / classes * of_class * np.expand_dims(counts, 1)
        count = float(chosen.sum())
    else:
        shares = of_class * (values["label"] + smoothing * (1 / classes - values["label"]))
        count = logs.size / classes
    return -np.sum(shares * logs), np.exp(logs) * shares.sum(axis=1, keepdims=True) - shares, count


def _nll_truth(op: Op, values: Values) -> tuple[Any, Any, float]:
    chosen, _ = marked(op, values)
    return -(chosen * values["y"]), -chosen, float(chosen.sum())


_TRUTHS: Mapping[str, Truth] = {
    "mse": each(lambda y, label: (y - label) ** 2, lambda y, label: (y - label) + (y - label)),
    "l1": each(lambda y, label: np.abs(label - y), lambda y, label: np.where(y > label, 1.0, -1.0)),
    "berhu": each(_berhu, _berhu_slopes),
    "huber": each(_huber, _huber_slopes),
    "smooth_l1": each(
        lambda y, label, beta: _huber(y, label, beta) * (1 / beta),
        lambda y, label, beta: _huber_slopes(y, label, beta) * (1 / beta),
    ),
    "output": each(lambda y: 1 * y, lambda y: 1 + 0 * y),
    "bce": _bce_truth,
    "bce_with_logits": each(_logits, _logits_slopes),
    "kl_div": each(_kl, lambda label, log_target: -(np.exp(label) if log_target else label)),
    "poisson_nll": each(_poisson, _poisson_slopes),
    "nll": _nll_truth,
    "hinge_embedding": each(
        lambda y, label, margin: (label > 0) * y - (label < 0) * np.minimum(0, y - margin),
        lambda y, label, margin: 1.0 * (label > 0) - (label < 0) * (y < margin),
    ),
    "soft_margin": each(
        lambda y, label: np.log1p(np.exp(-np.abs(y * label))) - np.minimum(y * label, 0),
        lambda y, label: -label * _logistic(-y * label),
    ),
    "multi_margin": _multi_margin_truth,
    "cosine": _cosine_truth,
    "cross_entropy": _truth,
}


def _loss(truth: Truth) -> Callable[[Op, Values], Values]:
    def evaluated(op: Op, values: Values) -> Values:
        terms, slope, number = truth(op, values)
        parts = {"mean": number, "batchmean": len(values["y"]), "sum": 1}
        share = op.attributes["weight"] / parts[op.attributes["reduction"]]
        return {
            "loss": np.array([share * np.sum(terms)]),
            "dy": np.broadcast_to(np.asarray(slope) * share, values["y"].shape),
        }

    return evaluated


ORACLES: Oracles = {(name, "LOSS"): _loss(truth) for name, truth in _TRUTHS.items()}
