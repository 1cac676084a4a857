# SPDX-License-Identifier: Apache-2.0
"""Formulas of the tables: functions whose parameters name what they take, roles and options alike.

``lambda x, slope: np.where(x > 0, x, slope * x)`` reads the role ``x`` and the option ``slope``. One formula
is what a tile computes (arrays are fp32 and numbers stay Python's, which take on the dtype of the arrays),
the untiled reference (whole tensors in float64) and the C (`deploy.calls.expression`). Whether it is the
right one only `truth` can tell, which shares nothing with it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from inspect import Parameter, Signature, signature
from typing import Any

import numpy as np

from trainlib.ir.graph import Op
from trainlib.ir.varying import Varying
from trainlib.primitives.definition import Values

Formula = Callable[..., Any]
"""Arrays and numbers by name in, an array out."""

WHERE = "where"
"""A parameter of this name gets the name of the op, for errors."""

OPTIONS = "options"
"""A parameter of this name gets all attributes of the op."""


@lru_cache(maxsize=1024)
def parameters(formula: Formula) -> tuple[str, ...]:
    """Names of what a formula takes."""
    return tuple(signature(formula).parameters)


def roles_of(formula: Formula, options: Collection[str]) -> tuple[str, ...]:
    """The parameters that are tensors: neither options nor `WHERE` nor `OPTIONS`, and without a default."""
    return tuple(
        name
        for name, parameter in signature(formula).parameters.items()
        if name not in (*options, WHERE, OPTIONS) and parameter.default is parameter.empty
    )


def through(formula: Formula, role: str, inner: Formula) -> Formula:
    """`formula` of what `inner` gives in place of `role`."""
    own = signature(inner).parameters
    both = {**own, **signature(formula).parameters}
    del both[role]

    def combined(**given: Any) -> Any:
        between = inner(**{name: given[name] for name in own})
        return formula(
            **{role: between}, **{name: given[name] for name in parameters(formula) if name in given}
        )

    named = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in both.values()]
    combined.__signature__ = Signature(named)  # type: ignore[attr-defined]
    return combined


def by_name(formula: Formula) -> Callable[[Op, Values], Any]:
    """The formula on the arrays of an op by role and on its options; what is neither has its default."""
    names = parameters(formula)
    return lambda op, values: formula(**arguments(names, op, values))


def arguments(names: Collection[str], op: Op, values: Values) -> dict[str, Any]:
    """What the parameters of these names get."""
    given: dict[str, Any] = {}
    for name in names:
        if name in values:
            given[name] = values[name]
        elif name in op.attributes:
            given[name] = present(op.attributes[name])
        elif name == WHERE:
            given[name] = op.name
        elif name == OPTIONS:
            given[name] = op.attributes
    return given


def options_of(formula: Formula, op: Op) -> dict[str, Any]:
    """What its parameters get that are options."""
    return arguments(parameters(formula), op, {})


def present(value: Any) -> Any:
    """An option as it is in the iteration under way."""
    return value.now if isinstance(value, Varying) else value


def assigned(formulas: Mapping[str, Formula]) -> Callable[[Op, Values], dict[str, Any]]:
    """One formula after the other, each seeing the results so far: all values by name."""
    named = {name: by_name(formula) for name, formula in formulas.items()}

    def compute(op: Op, values: Values) -> dict[str, Any]:
        computed = dict(values)
        for name, formula in named.items():
            computed[name] = formula(op, computed)
        return computed

    return compute


def in_float64(compute: Callable[[Op, Values], Values]) -> Callable[[Op, Values], Values]:
    """What a tile computes as the untiled reference: the same formulas of whole tensors, in float64."""
    return lambda op, values: compute(op, wide(values))


def wide(values: Values) -> Values:
    """Floats as float64, in which references compute; integers as they are."""
    return {
        role: array.astype(np.float64, copy=False) if array.dtype.kind == "f" else array
        for role, array in values.items()
    }
