# SPDX-License-Identifier: Apache-2.0
"""Losses in other words than their terms and slopes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from trainlib.ir.graph import Op
from trainlib.ir.steps import Array
from trainlib.primitives.definition import Values
from trainlib.primitives.derivative import constant, derivative, elementary
from trainlib.primitives.formulas import Formula, arguments, parameters
from trainlib.primitives.losses.labels import counted
from trainlib.primitives.losses.likelihood import LEAST_LOG, LEAST_VARIANCE, per_channel
from trainlib.primitives.losses.margins import LEAST_SQUARE

Truth = Callable[[Op, Values], tuple[Any, Any, float]]
"""Terms of a loss, their slopes by y, and what a mean of them divides by."""


def derived(terms: Formula) -> Truth:
    """The truth of a loss whose terms are one per element: these, and what they are derived to."""
    names = parameters(terms)

    def truth(op: Op, values: Values) -> tuple[Any, Any, float]:
        given = arguments(names, op, values)
        return terms(**given), derivative(terms, given, "y"), float(given["y"].size)

    return truth


def _berhu_reference(y: Array, label: Array, alpha: float) -> Any:
    size = np.abs(y - label)
    limit = alpha * np.max(constant(size))
    return np.where(size <= limit, size, (size * size + limit * limit) / (2 * limit))


def _huber_reference(y: Any, label: Array, delta: float) -> Any:
    size = np.abs(y - label)
    return np.where(size <= delta, size * size * 0.5, delta * size - delta * delta / 2)


def _bce_truth(op: Op, values: Values) -> tuple[Any, Any, float]:
    """By the probability of what did not come, p = |t - y| for targets 0 and 1; a mixture of both between."""
    y, label = np.clip(values["y"], 0, 1), values["label"]
    weights = per_channel(op.attributes["element_weights"], y)
    positive, negative = (-np.log(np.clip(share, np.exp(LEAST_LOG), None)) for share in (y, 1 - y))
    each = weights * (label * positive + (1 - label) * negative)
    slope = weights * (y - label) / np.clip(y - np.square(y), LEAST_VARIANCE, None)
    return each, slope, float(y.size)


_softplus = elementary(lambda x: 0.5 * (1 + np.tanh(x / 2)))(lambda x: np.logaddexp(0, x))


def _logits_reference(y: Any, label: Array, pos_weight: Any, element_weights: Any) -> Any:
    """The two classes' terms, each with its probability's logarithm."""
    came, did_not = per_channel(pos_weight, label) * label * _softplus(-y), (1 - label) * _softplus(y)
    return (came + did_not) * per_channel(element_weights, label)


def _kl_reference(y: Any, label: Array, log_target: bool) -> Any:
    share = np.exp(label) if log_target else label
    entropy = np.sum(share * np.log(share, out=np.zeros(share.shape), where=share > 0))
    return entropy / share.size - y * share  # the entropy of the targets, shared out: the sum is the same


def _poisson_reference(y: Any, label: Array, log_input: bool, full: bool, eps: float) -> Any:
    log_rate = y if log_input else np.log(y + eps)
    rate = np.exp(y) if log_input else y
    above = np.maximum(label, 1)
    stirling = (above + 0.5) * np.log(above) - above + 0.5 * np.log(2 * np.pi)
    return rate - log_rate * label + np.where(label > 1, stirling if full else 0.0, 0.0)


_log_sigmoid = elementary(lambda x: 0.5 * (1 - np.tanh(x / 2)))(
    lambda x: np.minimum(x, 0) - np.log1p(np.exp(-np.abs(x)))
)


def _multi_margin_truth(op: Op, values: Values) -> tuple[Any, Any, float]:
    """Pair by pair of the label's class and another: each pushes both."""
    y, options = values["y"], op.attributes
    counted(values["label"], y.shape[1], op.name)
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
    counts = counted(label, y.shape[1], op.name, op.attributes["ignore_index"])
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
    "mse": derived(lambda y, label: (y - label) ** 2),
    "l1": derived(lambda y, label: np.abs(label - y)),
    "berhu": derived(_berhu_reference),
    "huber": derived(_huber_reference),
    "smooth_l1": derived(lambda y, label, beta: _huber_reference(y, label, beta) * (1 / beta)),
    "output": derived(lambda y: 1 * y),
    "bce": _bce_truth,
    "bce_with_logits": derived(_logits_reference),
    "kl_div": derived(_kl_reference),
    "poisson_nll": derived(_poisson_reference),
    "nll": _nll_truth,
    "hinge_embedding": derived(
        lambda y, label, margin: (label > 0) * y - (label < 0) * np.minimum(0, y - margin)
    ),
    "soft_margin": derived(lambda y, label: -_log_sigmoid(y * label)),
    "multi_margin": _multi_margin_truth,
    "cosine": _cosine_truth,
    "cross_entropy": _truth,
}


def _loss(truth: Truth) -> Callable[[Op, Values], Values]:
    def evaluated(op: Op, values: Values) -> Values:
        each, slope, number = truth(op, values)
        parts = {"mean": number, "batchmean": len(values["y"]), "sum": 1}
        share = op.attributes["weight"] / parts[op.attributes["reduction"]]
        return {
            "loss": np.array([share * np.sum(each)]),
            "dy": np.broadcast_to(np.asarray(slope) * share, values["y"].shape),
        }

    return evaluated


ORACLES: Mapping[tuple[str, str], Callable[[Op, Values], Values]] = {
    (name, "LOSS"): _loss(truth) for name, truth in _TRUTHS.items()
}
"""By primitive and step: results by role from arrays by role."""
