"""Untiled NumPy evaluation of the linear layer."""

from __future__ import annotations

import numpy as np

from trainlib.graph import Op
from trainlib.primitives.definition import Values


def forward(op: Op, values: Values) -> Values:
    """y = x · wᵀ + b."""
    result = np.einsum("ni,oi->no", values["x"], values["w"], optimize=True)
    return {"y": result + values["b"] if "b" in values else result}


def weight_gradient(op: Op, values: Values) -> Values:
    """dw = dyᵀ · x, db = sum of dy over the batch."""
    return {
        "dw": np.einsum("ni,no->oi", values["x"], values["dy"], optimize=True),
        "db": values["dy"].sum(axis=0),
    }


def input_gradient(op: Op, values: Values) -> Values:
    """dx = dy · w."""
    return {"dx": np.einsum("no,oi->ni", values["dy"], values["w"], optimize=True)}
