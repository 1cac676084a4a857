# SPDX-License-Identifier: Apache-2.0
"""What an elementwise layer says about itself, and the primitive that follows from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from configs.errors import ShapeError
from configs.model_file import LAYER_KEYS, LayerSchema
from configs.values import replace
from trainlib.ir.graph import Op, Tensor
from trainlib.ir.steps import Array
from trainlib.primitives.definition import (
    AS_PUBLISHED,
    AsPublished,
    DrawnInput,
    Example,
    LayerPlan,
    LayerPrimitive,
    Step,
    Values,
    Variant,
)
from trainlib.primitives.derivative import derivative
from trainlib.primitives.formulas import (
    Formula,
    arguments,
    by_name,
    in_float64,
    parameters,
    roles_of,
    through,
    wide,
)
from trainlib.primitives.lowering.elementwise import ElementwiseLowering, VectorLoop

Plan = Callable[[Mapping[str, Any], Sequence[Tensor], str], LayerPlan]


WIDE = (
    Example(inputs=((7,),)),
    Example(inputs=(DrawnInput((3, 4, 5), low=-6, high=6),)),
    Example(inputs=(DrawnInput((4, 16), low=-12, high=12),)),
)
"""Cases of smooth activations, into their flat ends."""


@dataclass(frozen=True, slots=True)
class Elementwise:
    """The mathematics of a layer, as formulas of roles and options (`trainlib.primitives.formulas`).

    `y` and `dx` (`dx1` by a second input, `dx2` by a third) are what the loops of `nests` compute, in this
    order; a layer without `dx` passes dy on as it is. The parameters that are no options are the roles a loop
    reads, in the order of the arrays of its nest, the result behind them.

    The untiled reference are the formulas in float64, but of a gradient that reads an input: that is the
    derivative of `y` (`trainlib.primitives.derivative`), so that `dx` is held against `y`; with `own_slope`,
    which differs from it at a kink, it is `dx` as well.
    What else a `dx` of ``x`` can be computed from, the formulas say (`_read_off`); `more` is a formula with
    other bits, and its nest. `z` is what y and dx read of x, where that is not x itself.
    """

    y: Formula
    nests: tuple[str, ...]
    dx: Formula | None = None
    dx1: Formula | None = None
    dx2: Formula | None = None
    own_slope: bool = False
    more: tuple[Formula, str] | None = None
    z: Formula | None = None

    @property
    def gradients(self) -> dict[str, Formula]:
        """The formulas of the backward step by the role they make."""
        by_role = {"dx": self.dx, "dx1": self.dx1, "dx2": self.dx2}
        return {role: formula for role, formula in by_role.items() if formula is not None}


def elementwise(
    name: str,
    forms: Mapping[str, Elementwise] | None = None,
    *,
    examples: tuple[Example, ...],
    options: type[LayerSchema] = LayerSchema,
    plan: Plan | None = None,
    takes_over: bool = False,
    internal: bool = False,
    published: Elementwise | None = None,
    **formulas: Any,
) -> LayerPrimitive:
    """The layer `name`: `formulas` are the fields of one `Elementwise`; `forms` has one per option `form`.

    `plan` differs from "an output like the inputs" where a layer draws random numbers or changes the format.
    `takes_over` as in `trainlib.primitives.lowering.elementwise.ElementwiseLowering`. `published` is how
    PULP-TrainLib computes a layer of one form: FW by another nest, gradients by loops where the layer itself
    has none.
    """
    by_form = forms or {"": Elementwise(**formulas)}
    read_off = {} if forms else _read_off(by_form[""], options, examples)
    by_form = {form: _of_x(item) for form, item in by_form.items()}
    keys = set(options.model_fields) - set(LAYER_KEYS)
    one = next(iter(by_form.values()))
    reads = roles_of(one.y, keys)
    inputs = sum(role.startswith("x") for role in reads)

    def step(name: str, writes: tuple[str, ...], forms: Mapping[str, Elementwise], *, over: bool) -> Step:
        loops = {form: _loops(item, name, keys) for form, item in forms.items()}
        truths = {form: _truth(item, keys) for form, item in forms.items()}

        def reference(op: Op, values: Values) -> Values:
            exact, truth = wide(values), truths[op.attributes.get("form", "")]
            return {role: truth[role](op, exact) for role in op.writes}

        lowering = ElementwiseLowering(lambda op: loops[op.attributes.get("form", "")], takes_over=over)
        read = dict.fromkeys(role for loop in loops[next(iter(forms))] for role in loop.reads)
        return Step(name, tuple(read), writes, reference, lowering, formula=True)

    steps = [step("FW", ("y",), by_form, over=takes_over)]
    if one.dx is not None:
        if "mask" in read_off:
            steps[0] = replace(steps[0], others=(_with_mask(one, keys, takes_over),))
        others = [{"": replace(one, dx=dx, nests=("", nest))} for dx, nest in read_off.values()]
        more = tuple(step("IG", ("dx",), item, over=takes_over) for item in others)
        backward = step("IG", ("dx*",) if inputs > 1 else ("dx",), by_form, over=takes_over)
        steps.append(replace(backward, others=more))

    published_steps: tuple[Step, ...] = ()
    if published is not None:
        as_published = step("FW", ("y",), {"": published}, over=takes_over)
        steps[0] = replace(steps[0], variants={AS_PUBLISHED: Variant(as_published.lowering)})
        published_steps = (step("IG", tuple(published.gradients), {"": published}, over=False),)

    return LayerPrimitive(
        name=name,
        schema=options,
        plan=plan or _same_shape(name),
        steps=tuple(steps),
        examples=examples,
        inputs=(inputs, inputs),
        internal=internal,
        published=AsPublished(published_steps) if published is not None else None,
        layouts=None,
    )


def _of_x(item: Elementwise) -> Elementwise:
    """The entry with ``x`` in place of ``z``."""
    if item.z is None or item.dx is None:
        return item
    return replace(item, y=through(item.y, "z", item.z), dx=through(item.dx, "z", item.z))


_POINTS = np.array(
    [*np.linspace(-8, 8, 129), *(sign * 10.0**size for sign in (1, -1) for size in range(-45, 39, 3))]
)
"""Numbers of all sizes; none and infinity are added."""


@np.errstate(all="ignore")
def _read_off(
    item: Elementwise, options: type[LayerSchema], examples: Sequence[Example]
) -> dict[str, tuple[Formula, str]]:
    """What beside ``x`` the gradient can be computed from: role -> formula and nest.

    From ``y`` where the formula of dx has the same fp32 results if it reads y as if it were x (or z). From a
    mask where the slope is 0 or 1. Seen on numbers of all sizes, those that options are and those beside
    them, with the options of all examples. (In 16 bit a y may be rounded to where a slope changes.)
    """
    of_x, role = _of_x(item), "x" if item.z is None else "z"
    if item.dx is None or of_x.dx is None or role not in parameters(item.dx) or item.dx1 is not None:
        return {}
    of_y = through(item.dx, role, lambda y: y)
    from_y = from_mask = True
    for example in examples:
        given: dict[str, Any] = {key: field.default for key, field in options.model_fields.items()}
        given |= example.attributes
        kinks = [value for value in given.values() if isinstance(value, float)]
        x = np.array([*_POINTS, *kinks, np.inf, -np.inf, np.nan], np.float32)
        x = np.concatenate([x, *(np.nextafter(x, np.float32(bound)) for bound in (-np.inf, np.inf))])
        given |= {"x": x, "dy": np.linspace(-2, 3, x.size, dtype=np.float32)}
        given["y"] = _result(of_x.y, given)
        given["mask"] = _result(of_x.dx, {**given, "dy": np.float32(1)})
        dx, dx_of_y, dx_of_mask = (_result(formula, given) for formula in (of_x.dx, of_y, _of_mask))
        from_y &= np.array_equal(dx, dx_of_y, equal_nan=True)
        from_mask &= np.array_equal(dx, dx_of_mask) and set(given["mask"]) <= {0, 1}
    found = {"y": item.more or (of_y, item.nests[1])} if from_y or item.more else {}
    return {**found, "mask": (_of_mask, "masked_bw")} if from_mask else found


def _result(formula: Formula, given: Mapping[str, Any]) -> Array:
    """Of a formula in fp32."""
    result = formula(**{name: given[name] for name in parameters(formula) if name in given})
    return np.asarray(result, np.float32)


def _of_mask(dy: Array, mask: Array) -> Array:
    """The gradient from a mask of bytes, 1 where the slope is 1 and 0 where it is 0."""
    return np.where(mask > 0, dy, 0)


def _same_shape(name: str) -> Plan:
    def plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
        shapes = {tensor.shape: None for tensor in inputs}
        if len(shapes) > 1:
            words = " and ".join(str(shape) for shape in shapes)
            raise ShapeError(
                f"the inputs of {name} must have the same shape, but have {words}",
                where=where,
                cure="use inputs of the same shape; 'expand' enlarges dimensions of size 1",
            )
        return LayerPlan(inputs[0].shape, attributes=dict(attributes))

    return plan


def _loops(item: Elementwise, step: str, keys: set[str]) -> tuple[VectorLoop, ...]:
    """Those of FW or IG."""
    made = {"y": item.y} if step == "FW" else item.gradients
    nests = item.nests[:1] if step == "FW" else item.nests[1:]
    return tuple(_loop(nest, *one, keys) for nest, one in zip(nests, made.items(), strict=True))


def _with_mask(item: Elementwise, keys: set[str], takes_over: bool) -> Step:
    """FW that leaves a mask: the slope, which is 0 or 1."""
    assert item.dx is not None
    reads, y, mask = roles_of(item.y, keys), by_name(item.y), by_name(partial(item.dx, dy=1))

    def compute(op: Op, values: Values) -> Values:
        return {"y": y(op, values), "mask": mask(op, values)}

    loop = VectorLoop(f"{item.nests[0]}_mask", (*reads, "y", "mask"), reads, ("y", "mask"), compute)
    lowering = ElementwiseLowering(lambda op: (loop,), takes_over=takes_over)
    return Step("FW", reads, ("y", "mask"), in_float64(compute), lowering, formula=True)


def _loop(nest: str, role: str, formula: Formula, keys: set[str]) -> VectorLoop:
    reads, compute = roles_of(formula, keys), by_name(formula)
    return VectorLoop(nest, (*reads, role), reads, (role,), lambda op, values: {role: compute(op, values)})


def _truth(item: Elementwise, keys: set[str]) -> dict[str, Callable[[Op, Values], Any]]:
    """What every step writes, by role: the formulas, and dy times the derivatives of the first."""
    names = parameters(item.y)

    def derived(by: str) -> Callable[[Op, Values], Any]:
        def gradient(op: Op, values: Values) -> Any:
            # What a step does not read its derivatives do not depend on: any number will do.
            unread = {name for name in (*names, by) if name.startswith("x")} - values.keys()
            given = {**values, **dict.fromkeys(unread, np.zeros_like(values["dy"]))}
            return values["dy"] * derivative(item.y, arguments(names, op, given), by)

        return gradient

    def truth(role: str, formula: Formula) -> Callable[[Op, Values], Any]:
        reads_inputs = any(name.startswith("x") for name in roles_of(formula, keys))
        return derived(role[1:]) if reads_inputs and not item.own_slope else by_name(formula)

    gradients = {role: truth(role, formula) for role, formula in item.gradients.items()}
    return {"y": by_name(item.y), **gradients}
