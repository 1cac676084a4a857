# SPDX-License-Identifier: Apache-2.0
"""Untiled NumPy evaluation of the linear layer."""

from __future__ import annotations

import numpy as np

from trainlib.ir.graph import Op
from trainlib.primitives.definition import Values


def forward(op: Op, values: Values) -> Values:
    """y = x · wᵀ + b."""
    result = np.einsum("...i,oi->...o", values["x"], values["w"], optimize=True)
    return {"y": result + values["b"] if "b" in values else result}


def weight_gradient(op: Op, values: Values) -> Values:
    """dw = dyᵀ · x, db = sum of dy over the rows."""
    rows = tuple(range(values["x"].ndim - 1))
    return {
        "dw": np.tensordot(values["dy"], values["x"], axes=(rows, rows)),
        "db": values["dy"].sum(axis=rows),
    }


def input_gradient(op: Op, values: Values) -> Values:
    """dx = dy · w."""
    return {"dx": np.einsum("...o,oi->...i", values["dy"], values["w"], optimize=True)}
