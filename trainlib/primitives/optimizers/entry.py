# SPDX-License-Identifier: Apache-2.0
"""What an optimizer says about itself, and the primitive that follows from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from configs.dtypes import BY_WORD, FP32, INT32
from configs.model_file import OptimizerSchema
from configs.values import Struct
from trainlib.ir.graph import Initial, Op, Tensor
from trainlib.primitives.definition import Buffer, Example, OptimizerPrimitive, Step, Values
from trainlib.primitives.formulas import Formula, assigned, by_name, in_float64, present
from trainlib.primitives.lowering.elementwise import ElementwiseLowering, VectorLoop


class State(Struct, frozen=True):
    """What an optimizer keeps beside a weight: of its shape, in `state_dtype` whatever the weight's dtype.

    `number`: one int32 instead, or one fp32 if it is `fractional`. `when` names an option that must not be 0
    for the state to be there, `start` the option that it begins with, or that number.
    """

    number: bool = False
    when: str = ""
    start: str | float = 0.0
    fractional: bool = False

    def buffer(self, attributes: Mapping[str, Any], weight: Tensor) -> Buffer:
        """Its tensor beside this weight."""
        first = present(attributes[self.start]) if isinstance(self.start, str) else self.start
        initial = Initial("constant", float(first))
        if self.number:
            return Buffer((1,), initial, FP32 if self.fractional else INT32)
        return Buffer(weight.shape, initial, BY_WORD[attributes["state_dtype"]])


def optimizer(
    name: str,
    *,
    update: Mapping[str, Formula],
    nest: str | Formula,
    options: type[OptimizerSchema],
    examples: tuple[Example, ...],
    states: Mapping[str, State] | None = None,
) -> OptimizerPrimitive:
    """The optimizer `name`: `update` assigns what its names say, one formula after the other.

    Each formula sees ``w``, ``dw``, the states, the options, and what formulas before it have assigned; new
    values of ``w`` and of the states are kept, other names are for the formulas behind. With the option
    `maximize` they see ``-dw`` as ``dw``, a sign that a multiply-add takes for nothing. `nest` has the arrays
    ``w``, ``dw`` and those of the states, in this order; it may be a formula of the options.
    """
    kept = states or {}
    optional = {state: "?" if item.when else "" for state, item in kept.items()}
    reads = ("w", "dw", *(f"{state}{mark}" for state, mark in optional.items()))
    writes = ("w_updated", *(f"{state}_updated{mark}" for state, mark in optional.items()))
    numbers = tuple(state for state, item in kept.items() if item.number)
    steps = _updated({**_UPHILL, **update}, ("w", *kept))
    named = by_name(nest) if not isinstance(nest, str) else lambda op, values: nest
    roles = ("w", "dw", *kept)
    results = ("w_updated", *(f"{state}_updated" for state in kept))

    def states_of(attributes: Mapping[str, Any], weight: Tensor) -> Mapping[str, Buffer]:
        return {
            state: item.buffer(attributes, weight)
            for state, item in kept.items()
            if not item.when or attributes[item.when]
        }

    lowering = ElementwiseLowering(
        lambda op: (VectorLoop(named(op, {}), roles, roles, results, steps),),
        numbers=(*numbers, *(f"{state}_updated" for state in numbers)),
        batched=False,
    )
    return OptimizerPrimitive(
        name=name,
        schema=options,
        step=Step("UPD", reads, writes, in_float64(steps), lowering, formula=True),
        states=states_of,
        examples=examples,
    )


_UPHILL: Mapping[str, Formula] = {"dw": lambda dw, maximize=False: -dw if maximize else dw}


def _updated(formulas: Mapping[str, Formula], kept: Sequence[str]) -> Callable[[Op, Values], Values]:
    """The new values, by the roles of the update step that write them."""
    compute = assigned(formulas)

    def updated(op: Op, values: Values) -> Values:
        computed = compute(op, values)
        return {f"{name}_updated": computed[name] for name in kept if name in computed}

    return updated
