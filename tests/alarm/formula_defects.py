# SPDX-License-Identifier: Apache-2.0
"""Defects in formulas: tile, untiled reference and derivative compute the same wrong thing (decision 22).

Only PyTorch can tell. A defect is a piece of the text of a formula in other words: wherever the function is,
in a table, a row program or a closure, its code is exchanged, as if the file had been written so.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from inspect import getsource
from types import CodeType, FunctionType
from typing import Any

from alarm.graph_defects import FLAT, IMAGE, NORMED, PAIR, SEQUENCE, VECTOR, GraphDefect, Patch

Place = tuple[Any, ...]


def _functions(code: CodeType) -> Iterator[CodeType]:
    """The code of everything that some code defines, in the order of the text."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _functions(constant)


def _place(code: CodeType) -> Place:
    return code.co_filename, code.co_qualname, tuple(code.co_positions())


def exchanged(module: str, right: str, wrong: str) -> dict[Place, CodeType]:
    """The code that differs in a module of primitives with `wrong` for `right`, by the place of the old one.

    Raises ValueError unless `right` is in the text once, within a function.
    """
    found = import_module(f"trainlib.primitives.{module}")
    text, file = getsource(found), str(found.__file__)
    if text.count(right) != 1:
        raise ValueError(f"{file} has {text.count(right)} times: {right}")
    both = (compile(version, file, "exec") for version in (text, text.replace(right, wrong)))
    pairs = zip(*map(_functions, both), strict=True)
    changed = {_place(before): after for before, after in pairs if before != after}
    if not changed:
        raise ValueError(f"no function of {file} has: {right}")
    return changed


def _formula(module: str, right: str, wrong: str) -> Patch:
    @contextmanager
    def patched() -> Iterator[None]:
        changed = exchanged(module, right, wrong)
        gc.unfreeze()  # `configs.collector` hides what is there from the search for cycles, and from this one
        functions = [item for item in gc.get_objects() if type(item) is FunctionType]
        own = [item for item in functions if item.__module__ == f"trainlib.primitives.{module}"]
        old = [(item, item.__code__) for item in own if _place(item.__code__) in changed]
        try:
            for function, code in old:
                function.__code__ = changed[_place(code)]
            yield
        finally:
            for function, code in old:
                function.__code__ = code

    return patched


def _within(layer: str, shape: str = VECTOR, **more: str) -> dict[str, Any]:
    """A linear layer, the layer, and another linear one, so that no sum over its results is a constant."""
    return {"layers": (PAIR[0], f"name: x, type: {layer}", *FLAT), "shape": shape, **more}


def _image(norm: str) -> dict[str, Any]:
    return {"layers": (NORMED[0], f"name: norm, type: {norm}", *FLAT), "shape": IMAGE}


def _recurrent(cell: str) -> dict[str, Any]:
    return {"layers": (f"name: x, type: {cell}, hidden: 4", *FLAT), "shape": SEQUENCE}


def _optimizer(text: str) -> dict[str, Any]:
    return {"layers": PAIR, "optimizer": f"learning_rate: 0.05, name: {text}"}


def _loss(text: str, last: str = "") -> dict[str, Any]:
    layers = (*PAIR, f"name: end, type: {last}") if last else PAIR
    return {"layers": layers, "more": f"loss: {{name: {text}}}\nbatch: 4\n"}


ROWS, LOGS = "attention.softmax", "attention.log_softmax"
NORM = "norms.norm_formulas"
CELLS = "recurrent.cells"
UPDATES, TABLE, ARITHMETIC = "optimizers.table", "elementwise.table", "elementwise.arithmetic"
EPSILON = "eps: 0.1"

LISTED: tuple[tuple[str, str, str, str, dict[str, Any]], ...] = (
    # What is wrong, the module of the formula, its right text and its wrong one, a model that shows it.
    (
        "softmax: factor",
        ROWS,
        "lambda y, sums: y / sums)",
        "lambda y, sums: y / (2 * sums))",
        _within("softmax"),
    ),
    (
        "softmax: sign of the exponent",
        ROWS,
        "(x - highest).astype",
        "(highest - x).astype",
        _within("softmax"),
    ),
    ("softmax: dx without its sum", ROWS, "(dy - sums) * y", "dy * y", _within("softmax")),
    (
        "softmax: axis of a sum of dx",
        ROWS,
        "(y * dy).sum(axis=1)",
        "(y * dy).sum(axis=0)",
        _within("softmax", more="loss: mse\nbatch: 6\n"),
    ),
    ("log-softmax: sign", LOGS, "- highest - logs", "- highest + logs", _within("log_softmax")),
    (
        "log-softmax: dx without e^y",
        LOGS,
        "near, dy - np.exp(y) * totals",
        "near, dy - totals",
        _within("log_softmax"),
    ),
    (
        "layer norm: no epsilon",
        NORM,
        "offsets * rest) / count + eps",
        "offsets * rest) / count",
        _within(f"layer_norm, {EPSILON}"),
    ),
    ("layer norm: mean not taken off", NORM, "(offset - rest) * _times", "x * _times", _within("layer_norm")),
    ("layer norm: sign of b", NORM, 'y + b, "mean": first', 'y - b, "mean": first', _within("layer_norm")),
    (
        "layer norm: sign in dx",
        NORM,
        "centred - offset * along",
        "centred + offset * along",
        _within("layer_norm"),
    ),
    (
        "layer norm: mean of g missing",
        NORM,
        "g if mean is None else g - _total(g) / count",
        "g",
        _within("layer_norm"),
    ),
    (
        "layer norm: dw without deviation",
        NORM,
        "_total(terms * inv_std)",
        "_total(terms)",
        _within("layer_norm"),
    ),
    (
        "layer norm: sign of db",
        NORM,
        "_offset(x, mean), _total(dy)",
        "_offset(x, mean), -_total(dy)",
        _within("layer_norm"),
    ),
    (
        "layer norm in steps: factor in dx",
        NORM,
        "_offset(x, mean)) * inv_std / count}",
        "_offset(x, mean)) / count}",
        _within("layer_norm, stepwise: true"),
    ),
    ("RMS norm: a sum for a mean", NORM, "_total(x * x) / count", "_total(x * x)", _within("rms_norm")),
    (
        "batch norm: axis of the variance",
        NORM,
        "_total(offset * offset) / count}",
        "offset[:1, :1] ** 2 + 0 * _total(offset)}",
        _image("batch_norm"),
    ),
    ("batch norm: dx without deviation", NORM, "(mean_gx * inv_std)", "mean_gx", _image("batch_norm")),
    (
        "batch norm: w missing in fixed dx",
        NORM,
        "dy * _times(inv_std, w)",
        "dy * inv_std",
        _image("batch_norm, fixed_statistics: true"),
    ),
    (
        "batch norm: new mean instead of step",
        NORM,
        "(_total(new) / averaged - old)",
        "_total(new) / averaged",
        _image("batch_norm"),
    ),
    (
        "batch norm: running variance biased",
        NORM,
        "var * unbiased",
        "var",
        _image("batch_norm"),
    ),
    (
        "fixed statistics: no epsilon",
        NORM,
        "1 / np.sqrt(running_var + eps), **kept",
        "1 / np.sqrt(running_var), **kept",
        _image(f"batch_norm, fixed_statistics: true, {EPSILON}"),
    ),
    (
        "instance norm: epsilon kept in variance",
        NORM,
        "(1 / np.square(inv_std) - eps)",
        "1 / np.square(inv_std)",
        _image(f"instance_norm, running: true, {EPSILON}"),
    ),
    ("RNN: slope of tanh", CELLS, "* (1 - y) * (1 + y)", "* (1 - y)", _recurrent("rnn")),
    (
        "GRU: gates exchanged",
        CELLS,
        "new + update * (before - new)",
        "before + update * (new - before)",
        _recurrent("gru"),
    ),
    ("GRU: reset missing", CELLS, "p_n + reset * q_n", "p_n + q_n", _recurrent("gru")),
    (
        "GRU: reset missing in its gradient",
        CELLS,
        "g_new * reset), gradient",
        "g_new), gradient",
        _recurrent("gru"),
    ),
    (
        "LSTM: sign of what is let in",
        CELLS,
        "+ let_in * candidate",
        "- let_in * candidate",
        _recurrent("lstm"),
    ),
    (
        "LSTM: gradient of the cell not kept",
        CELLS,
        "gates_out, at_cell * keep",
        "gates_out, at_cell",
        _recurrent("lstm"),
    ),
    (
        "cells: factor in the logistic function",
        "recurrent.recurrent",
        "np.tanh(x / 2)",
        "np.tanh(x)",
        _recurrent("lstm"),
    ),
    (
        "SGD: dampening of the wrong share",
        UPDATES,
        "(1 - dampening) * g",
        "dampening * g",
        _optimizer("sgd, momentum: 0.9, dampening: 0.2"),
    ),
    (
        "Nesterov: gradient missing",
        UPDATES,
        "g + momentum * velocity if nesterov",
        "momentum * velocity if nesterov",
        _optimizer("sgd, momentum: 0.9, nesterov: true"),
    ),
    (
        "AdamW: decay without rate",
        UPDATES,
        "(1 - learning_rate * weight_decay) if decoupled else w\n",
        "(1 - weight_decay) if decoupled else w\n",
        _optimizer("adamw, weight_decay: 0.1"),
    ),
    (
        "Adam: second moment not corrected",
        UPDATES,
        " * (1 - beta2 ** t.item()) ** -0.5 + eps",
        " + eps",
        _optimizer("adam"),
    ),
    (
        "RMSprop: epsilon under the root",
        UPDATES,
        "(np.sqrt(variance) + eps)",
        "np.sqrt(variance + eps)",
        _optimizer(f"rmsprop, {EPSILON}"),
    ),
    (
        "Adadelta: square missing",
        UPDATES,
        "(1 - rho) * np.square(step)",
        "(1 - rho) * step",
        _optimizer("adadelta"),
    ),
    (
        "sigmoid: factor",
        "elementwise.functions",
        "/ (1 + small)\n    return share",
        "/ (1 + 2 * small)\n    return share",
        _within("sigmoid"),
    ),
    ("ELU: factor missing", ARITHMETIC, "alpha * np.expm1", "np.expm1", _within("elu, alpha: 0.5")),
    ("softplus: term missing", ARITHMETIC, "np.maximum(x, 0) + np.log1p", "np.log1p", _within("softplus")),
    (
        "square root: factor in dx",
        ARITHMETIC,
        "dy / (2 * y)",
        "dy / y",
        _within("sigmoid}\n  - {name: y, type: square_root"),
    ),
    (
        "PReLU: sign of the slope",
        "elementwise.prelu",
        "np.where(x > 0, x, w * x)",
        "np.where(x > 0, x, -w * x)",
        _within("prelu", SEQUENCE),
    ),
    (
        "reductions: axis",
        "pooling.reductions",
        "x.max(axis=1, keepdims=True) if",
        "x[:, :1] if",
        _within("reduce_max, axes: [1]", "[6, 5]"),
    ),
    (
        "cross-entropy: target missing in dx",
        "losses.cross_entropy",
        "keepdims=True) - target, y.shape",
        "keepdims=True), y.shape",
        _loss("cross_entropy"),
    ),
    (
        "binary cross-entropy: share of the other class",
        "losses.likelihood",
        "((label - 1) * others",
        "(-label * others",
        _loss("bce", "sigmoid"),
    ),
    (
        "cosine: epsilon as a factor",
        "losses.margins",
        "keepdims=True) + LEAST_SQUARE",
        "keepdims=True) * 2",
        _loss("cosine"),
    ),
)

FORMULA_DEFECTS = {what: GraphDefect(_formula(*text), **model) for what, *text, model in LISTED}
"""By what is wrong."""
