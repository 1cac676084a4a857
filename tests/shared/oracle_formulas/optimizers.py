# SPDX-License-Identifier: Apache-2.0
"""Updates of the optimizers in other words than their formulas: a second derivation, in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from shared.oracle_formulas import Formula, Oracles, called

if TYPE_CHECKING:
    from trainlib.ir.graph import Op
    from trainlib.primitives.definition import Values


def _adam(decoupled: bool) -> Mapping[str, Formula]:
    return {
        "t": lambda t: t + 1,
        "g": lambda w, dw, weight_decay: dw + (0 if decoupled else weight_decay * w),
        "m": lambda m, g, beta1: m + (1 - beta1) * (g - m),
        "v": lambda v, g, beta2: v + (1 - beta2) * (g * g - v),
        "highest": lambda v, highest=0.0: np.where(v > highest, v, highest),
        "mean": lambda m, t, beta1: m / (1 - beta1 ** int(t[0])),
        "square": lambda v, highest, t, beta2, amsgrad: (
            (highest if amsgrad else v) / (1 - beta2 ** int(t[0]))
        ),
        "direction": lambda w, mean, square, eps, weight_decay: (
            mean / (np.sqrt(square) + eps) + (weight_decay * w if decoupled else 0)
        ),
        "w": lambda w, direction, learning_rate: w - learning_rate * direction,
    }


_FORMULAS: Mapping[str, Mapping[str, Formula]] = {
    "sgd": {
        "decayed": lambda w, dw, weight_decay: weight_decay * w + dw,
        "share": lambda dampening, t=(0,): 1 - dampening * (int(t[0]) > 0),
        "velocity": lambda decayed, momentum, share, velocity=0.0, t=(1,): (
            momentum * velocity * (int(t[0]) > 0) + share * decayed
        ),
        "t": lambda t=0: t + 1,
        "w": lambda w, decayed, velocity, momentum, nesterov, learning_rate: (
            w - learning_rate * (momentum * velocity + decayed if nesterov else velocity)
        ),
    },
    "adam": _adam(False),
    "adamw": _adam(True),
    "rmsprop": {
        "decayed": lambda w, dw, weight_decay: weight_decay * w + dw,
        "v": lambda v, decayed, alpha: v + (1 - alpha) * (decayed * decayed - v),
        "mean": lambda decayed, alpha, mean=0.0: mean + (1 - alpha) * (decayed - mean),
        "deviation": lambda v, mean, centered: (v - mean * mean * centered) ** 0.5,
        "velocity": lambda decayed, deviation, eps, momentum, velocity=0.0: (
            momentum * velocity + decayed / (deviation + eps)
        ),
        "w": lambda w, velocity, learning_rate: w - velocity * learning_rate,
    },
    "adagrad": {
        "rate": lambda t, learning_rate, lr_decay: learning_rate / (1 + lr_decay * int(t[0])),
        "t": lambda t: t + 1,
        "decayed": lambda w, dw, weight_decay: weight_decay * w + dw,
        "total": lambda total, decayed: decayed * decayed + total,
        "w": lambda w, decayed, total, rate, eps: w - decayed * (rate / (total**0.5 + eps)),
    },
    "adadelta": {
        "decayed": lambda w, dw, weight_decay: weight_decay * w + dw,
        "v": lambda v, decayed, rho: v + (1 - rho) * (decayed * decayed - v),
        "step": lambda v, u, decayed, eps: decayed * ((u + eps) / (v + eps)) ** 0.5,
        "u": lambda u, step, rho: u + (1 - rho) * (step * step - u),
        "w": lambda w, step, learning_rate: w - step * learning_rate,
    },
    "adamax": {
        "t": lambda t: t + 1,
        "decayed": lambda w, dw, weight_decay: weight_decay * w + dw,
        "m": lambda m, decayed, beta1: m + (1 - beta1) * (decayed - m),
        "size": lambda decayed, eps: np.where(decayed < 0, eps - decayed, eps + decayed),
        "u": lambda u, size, beta2: np.where(size > beta2 * u, size, beta2 * u),
        "w": lambda w, m, u, t, learning_rate, beta1: (
            w - learning_rate * (m / (u * (1 - beta1 ** int(t[0]))))
        ),
    },
    "nadam": {
        "t": lambda t: t + 1,
        "decayed": lambda w, dw, weight_decay, decoupled_weight_decay: (
            dw + weight_decay * w * (not decoupled_weight_decay)
        ),
        "m": lambda m, decayed, beta1: m + (1 - beta1) * (decayed - m),
        "v": lambda v, decayed, beta2: v + (1 - beta2) * (decayed * decayed - v),
        "shares": lambda t, beta1, momentum_decay: [
            beta1 - beta1 / 2 * 0.96 ** (momentum_decay * step) for step in (int(t[0]), int(t[0]) + 1)
        ],
        "product": lambda product, shares: shares[0] * product,
        "direction": lambda decayed, m, v, t, beta2, eps, shares, product: (
            (decayed * (1 - shares[0]) / (1 - product) + m * shares[1] / (1 - shares[1] * product))
            / ((v / (1 - beta2 ** int(t[0]))) ** 0.5 + eps)
        ),
        "w": lambda w, direction, learning_rate, weight_decay, decoupled_weight_decay: (
            w - learning_rate * (direction + weight_decay * w * decoupled_weight_decay)
        ),
    },
    "radam": {
        "t": lambda t: t + 1,
        "decayed": lambda w, dw, weight_decay, decoupled_weight_decay: (
            dw + weight_decay * w * (not decoupled_weight_decay)
        ),
        "m": lambda m, decayed, beta1: m + (1 - beta1) * (decayed - m),
        "v": lambda v, decayed, beta2: v + (1 - beta2) * (decayed * decayed - v),
        "limit": lambda beta2: (1 + beta2) / (1 - beta2),
        "length": lambda t, limit, beta2: limit - 2 * int(t[0]) / (beta2 ** -int(t[0]) - 1),
        "direction": lambda m, v, t, length, limit, beta1, beta2, eps: (
            m
            / (1 - beta1 ** int(t[0]))
            * (
                (1 - beta2 ** int(t[0])) ** 0.5
                / (v**0.5 + eps)
                * ((1 - 4 / length) * (length - 2) / (limit - 2) / (1 - 4 / limit)) ** 0.5
                if length > 5  # as in PyTorch; the paper has 4
                else 1
            )
        ),
        "w": lambda w, direction, learning_rate, weight_decay, decoupled_weight_decay: (
            w - learning_rate * (direction + weight_decay * w * decoupled_weight_decay)
        ),
    },
    "rprop": {
        "turned": lambda dw, before: ((dw < 0) & (before > 0)) | ((dw > 0) & (before < 0)),
        "still": lambda dw, before: (dw == 0) | (before == 0),
        "factor": lambda turned, still, eta_minus, eta_plus: np.select(
            [turned, still], [eta_minus, 1.0], eta_plus
        ),
        "size": lambda size, factor, size_min, size_max: np.minimum(
            np.maximum(size * factor, size_min), size_max
        ),
        "before": lambda dw, turned: dw * ~turned,
        "w": lambda w, before, size: np.select([before > 0, before < 0], [w - size, w + size], w),
    },
    "asgd": {
        "share": lambda t, t0: 1 / max(1.0, int(t[0]) - t0),
        "t": lambda t: t + 1,
        "w": lambda w, dw, eta, lambd, weight_decay: w - eta * (dw + (weight_decay + lambd) * w),
        "ax": lambda ax, w, share: (1 - share) * ax + share * w,
        "eta": lambda t, learning_rate, lambd, alpha: (
            learning_rate * np.power(1 + t.astype(np.float64) * learning_rate * lambd, -alpha)
        ),
    },
    "lion": {
        "side": lambda m, dw, beta1: np.sign(m + (1 - beta1) * (dw - m)),
        "w": lambda w, side, learning_rate, weight_decay: w - learning_rate * (side + weight_decay * w),
        "m": lambda m, dw, beta2: m + (1 - beta2) * (dw - m),
    },
}


def _updated(formulas: Mapping[str, Formula]) -> Callable[[Op, Values], Values]:
    def updated(op: Op, values: Values) -> Values:
        computed = {**values, "dw": -values["dw"] if op.attributes.get("maximize") else values["dw"]}
        for name, formula in formulas.items():
            computed[name] = called(formula, op, computed)
        return {role: computed[role.removesuffix("_updated")] for role in op.writes}

    return updated


def _accumulated(op: Op, values: Values) -> Values:
    kept = np.where(values["count"] % op.attributes["steps"] == 0, 0.0, values["total"])
    return {
        "total_updated": kept + op.attributes["share"] * values["dw"],
        "count_updated": values["count"] + np.int32(1),
    }


def _averaged(op: Op, values: Values) -> Values:
    w, kept = values["w"], values["average"]
    share = 1 - op.attributes["share"] * (values["count"] > 0)
    return {"average_updated": kept + share * (w - kept), "count_updated": values["count"] + np.int32(1)}


ORACLES: Oracles = {
    **{(name, "UPD"): _updated(formulas) for name, formulas in _FORMULAS.items()},
    ("sgd_momentum", "UPD"): _updated(_FORMULAS["sgd"]),
    ("gradient_accumulation", "ACCUMULATE"): _accumulated,
    ("weight_average", "UPD_AVERAGE"): _averaged,
}
