# SPDX-License-Identifier: Apache-2.0
"""What a primitive declares about itself.

Elementwise layers, losses and optimizers are entries of tables (`elementwise/table.py`, `losses/table.py`,
`optimizers/table.py`; docs/adding-a-primitive.md), of which the following is made. Any other primitive is one
file that ends in `PRIMITIVE = ...`:

1. A schema: a subclass of `LayerSchema` (`LossSchema`, `OptimizerSchema`) with the options, their ranges and
   defaults. Unknown or wrong options of a model file are then refused with file:line.
2. `plan(attributes, inputs, where)`: input tensors (batch first) to a `LayerPlan`: shape of the output,
   parameters, what is saved for the backward pass, numbers the steps need. Raises ShapeError.
3. Steps. Roles are the names a step knows tensors by: ``x``, ``x1`` ... inputs, ``y``, ``y1`` ... outputs,
   parameters as named in the plan, and a ``d`` before any of these for its gradient. In ``x w b? -> y`` a
   role ending in ``?`` is dropped where the layer lacks it (``b?``: no bias) or nobody needs it (``db?`` of
   a frozen layer), ``x*`` and ``dx*`` stand for all inputs and all needed input gradients. A backward step
   appears in the graph if one of its results is needed; what no step writes is no step's business.
4. Each step has an untiled NumPy `reference` and a lowering (`trainlib.ir.steps.StepLowering`). One that is a
   formula has it in both (`trainlib.primitives.formulas`), the others share no code.
   `lowering.pieces.TileBuilder` collects the kernel calls of a tile; where every tensor is a box of named
   dimensions `lowering.axes.AxesLowering` has the rest. Both see float32 for narrower tensors (see
   `KernelCall`); results are rounded when stored. A reference takes the batch size from its arrays, not from
   the attributes: prediction runs other batches.
5. `examples`: small cases that together touch every option. tests/trainlib/primitives/test_primitives.py
   runs them in every step, dtype, batch and random tile sizes, and against the layer's entry in
   truth/layers.py, whose backward pass autograd has. Options it must refuse are a line of
   tests/shared/refused_layers.py, a strategy that draws any shape and option an entry of
   tests/shared/primitive_strategies.py.
6. One line in trainlib/registry.py.

A gradient ``dx`` that no step writes is a view of ``dy`` (flatten, residual add). A layer without FW is a
view.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Annotated, Any, Self

import numpy as np
from pydantic import Field

from configs.dtypes import BY_WORD, FP32, DType
from configs.model_file import LayerSchema, LossSchema, OptimizerSchema
from configs.values import Struct, replace
from trainlib.ir.graph import Initial, Op, Tensor, TensorWindow
from trainlib.ir.steps import Array, StepLowering

Shape = tuple[int, ...]

Values = Mapping[str, Array]
"""Arrays by role."""

Reference = Callable[[Op, Values], Values]
"""Untiled NumPy evaluation of one op: arrays of all roles read in, arrays of all roles written out.

Extra results are ignored, so a reference may return a gradient nobody asked for.
"""

Positive = Annotated[int, Field(ge=1)]
"""An option that is an integer of at least 1."""

NotNegative = Annotated[int, Field(ge=0)]
"""An option that is an integer of at least 0."""

Share = Annotated[float, Field(ge=0, lt=1)]
"""An option in [0, 1)."""


VARIANT = "variant"
"""Attribute of an op that is lowered in another way than the default; ops without it are in that."""

DEFAULT = "default"
"""The lowering of a step if nobody asks for another."""

AS_PUBLISHED = "as-published"
"""The one that PULP-TrainLib has."""


def is_forward(step: str) -> bool:
    """Whether a step of this name belongs to the forward pass: FW, or one of several (FW_Q)."""
    return step.partition("_")[0] == "FW"


class Variant(Struct, frozen=True):
    """Another lowering of a step: the same results from the same tensors, by other loops.

    `offered(attributes)` says whether it can do an op with these attributes (published code often knows
    neither stride nor padding), `needs` the same in words, for messages.
    """

    lowering: StepLowering
    offered: Callable[[Mapping[str, Any]], bool] = lambda attributes: True
    needs: str = ""


class Step(Struct, frozen=True):
    """One step of a primitive: `name` is FW, WG, IG, LOSS, UPD or any other word for a backward step.

    The order of a layer's steps is their order in the graph. A forward pass of several steps calls them FW_
    and a word, and the last of them writes the outputs. A step may write a saved role of the plan for a later
    one (the gradient before an activation, say). `reference` shares no code with `lowering`, unless it is the
    `formula` of its tiles on whole tensors: then only `truth` can say whether it is right. `variants` are
    further lowerings by name, which a user or the tuner may choose (`trainlib.training.variants`). `others`
    have the same results from other tensors, or leave a mask for them beside the results:
    `trainlib.training.backward_reads` decides between them.
    """

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    reference: Reference
    lowering: StepLowering
    variants: Mapping[str, Variant] = {}
    others: tuple[Step, ...] = ()
    formula: bool = False

    @classmethod
    def of(
        cls,
        name: str,
        moves: str,
        reference: Reference,
        lowering: StepLowering,
        variants: Mapping[str, Variant] = MappingProxyType({}),
        formula: bool = False,
    ) -> Self:
        """The step that reads and writes what `moves` says: ``x w b? -> y``."""
        reads, writes = (tuple(side.split()) for side in moves.split("->"))
        return cls(name, reads, writes, reference, lowering, variants, (), formula)

    def op(
        self,
        layer: str,
        primitive: str,
        roles: Mapping[str, str],
        attributes: Mapping[str, Any],
        *,
        reads: Sequence[str] = (),
        writes: Sequence[str] = (),
        windows: Mapping[str, TensorWindow] = MappingProxyType({}),
    ) -> Op:
        """The op of a layer on the tensors of `roles`; `reads` and `writes` default to those of the step."""
        reads, writes = tuple(reads or self.reads), tuple(writes or self.writes)
        return Op(
            name=f"{layer}.{self.name}",
            layer=layer,
            primitive=primitive,
            step=self.name,
            inputs=tuple(roles[role] for role in reads),
            outputs=tuple(roles[role] for role in writes),
            attributes=dict(attributes),
            reads=reads,
            writes=writes,
            windows=dict(windows),
        )

    def offered(self, attributes: Mapping[str, Any]) -> tuple[str, ...]:
        """The variants that can do an op with these attributes."""
        return tuple(name for name, variant in self.variants.items() if variant.offered(attributes))

    def like(self, op: Op) -> Step:
        """The one of `others` that reads and writes the roles of an op; itself, if none does."""
        roles = op.reads, op.writes
        return next((other for other in self.others if (other.reads, other.writes) == roles), self)

    def lowered_as(self, name: str) -> Step:
        """The step with the lowering of a variant; itself for a name that is none of its variants."""
        return replace(self, lowering=self.variants[name].lowering) if name in self.variants else self

    @property
    def forward(self) -> bool:
        """Whether it belongs to the forward pass."""
        return is_forward(self.name)


class Parameter(Struct, frozen=True):
    """A tensor that training changes: shape and start; `trainable` False for a constant of the layer."""

    shape: Shape
    initial: Initial
    trainable: bool = True
    dtype: DType | None = None
    """None: the dtype of the layer."""


class Saved(Struct, frozen=True):
    """What one step writes and a later one of the same iteration reads: mask, statistics, hidden state."""

    shape: Shape
    dtype: DType | None = None
    """None: the dtype of the layer."""


class Buffer(Struct, frozen=True):
    """A kept tensor that is no parameter (running statistics).

    A step that changes role ``r`` reads it and writes ``r_updated``, which takes over its storage.
    """

    shape: Shape
    initial: Initial
    dtype: DType = FP32


class Random(Struct, frozen=True):
    """An input drawn anew in every iteration from the seed of the run (a dropout mask).

    `draw(generator, shape)` gives the values; in prediction all elements are `inference`. `only` are all the
    values it may have, where these are few.
    """

    shape: Shape
    draw: Callable[[Any, Shape], Array]
    inference: float = 1.0
    dtype: DType | None = None
    only: tuple[float, ...] = ()


class Output(Struct, frozen=True):
    """An output whose dtype or layout differs from those of the layer."""

    shape: Shape
    dtype: DType | None = None
    layout: str | None = None


class LayerPlan(Struct, frozen=True):
    """Shapes of one layer. `output` is role ``y``; `outputs` adds ``y1``, ``y2`` ... of a layer with several.

    All shapes of activations begin with the batch size. `attributes` are what the ops carry: plain numbers
    that references and lowerings need, the options included if they are needed. `layout` is that of y.
    """

    output: Shape | Output
    parameters: Mapping[str, Parameter] = {}
    saved: Mapping[str, Saved] = {}
    buffers: Mapping[str, Buffer] = {}
    randoms: Mapping[str, Random] = {}
    attributes: Mapping[str, Any] = {}
    outputs: Mapping[str, Shape | Output] = {}
    steps: tuple[str, ...] = ()
    """Names of the steps of this layer, if they are not simply those of the primitive."""

    @property
    def results(self) -> dict[str, Output]:
        """All outputs by role."""
        given = {"y": self.output, **self.outputs}
        return {role: item if isinstance(item, Output) else Output(item) for role, item in given.items()}

    @property
    def stored(self) -> dict[str, Parameter | Buffer]:
        """Parameters and buffers by role."""
        return {**self.parameters, **self.buffers}


class DrawnInput(Struct, frozen=True):
    """An input of an example, without the batch: uniform in [low, high), integers for an integer dtype.

    `dtype` None means the dtype under test. `distinct` makes all values differ (no ties for max-pooling).
    `away_from` keeps values at least 0.05 away from these points (kinks, where finite precision decides).
    """

    shape: Shape
    dtype: DType | None = None
    low: float = -1.0
    high: float = 1.0
    distinct: bool = False
    away_from: tuple[float, ...] = ()


class Example(Struct, frozen=True):
    """A small case of a primitive: options as in a model file, and the shapes of its inputs without batch.

    `roundings` is the number of roundings to a narrow format that lie between the inputs and the worst
    result, for the tolerance against PyTorch. `kernels` are matmul kernels to be tried besides the default.
    """

    attributes: Mapping[str, Any] = {}
    inputs: tuple[Shape | DrawnInput, ...] = ((6,),)
    dtypes: tuple[str, ...] = tuple(BY_WORD)
    batches: tuple[int, ...] = (1, 3)
    roundings: int = 3
    kernels: tuple[str, ...] = ()

    @property
    def cases(self) -> tuple[DrawnInput, ...]:
        """The inputs, all as `DrawnInput`."""
        return tuple(case if isinstance(case, DrawnInput) else DrawnInput(case) for case in self.inputs)


class AsPublished(Struct, frozen=True):
    """How PULP-TrainLib computes a layer where that is another graph, or other numbers, than ours.

    `steps` replace those of the same name or are added to them: they read or write other tensors (the input
    again in place of a saved mask, a copy in place of a view). `options` are set where the layer does not say
    them (an approximation). `offered(attributes)` says whether it can do a layer with these attributes,
    `needs` the same in words, for messages. What differs in cost only is a `Variant` of a step.
    """

    steps: tuple[Step, ...] = ()
    options: Mapping[str, Any] = {}
    offered: Callable[[Mapping[str, Any]], bool] = lambda attributes: True
    needs: str = ""


class LayerPrimitive(Struct, frozen=True):
    """A layer type of the model file; see the module docstring for how to write one.

    `inputs` is the smallest and largest number of inputs. `internal` layers are put into the graph by the
    builder only (casts).
    """

    name: str
    schema: type[LayerSchema]
    plan: Callable[[Mapping[str, Any], Sequence[Tensor], str], LayerPlan]
    steps: tuple[Step, ...]
    examples: tuple[Example, ...]
    inputs: tuple[int, int] = (1, 1)
    internal: bool = False
    layouts: tuple[str, ...] | None = ("CHW",)
    """Layouts of image inputs it can work on; None: any, the output has that of x."""
    repeated: Callable[[str], Step | None] = lambda name: None
    """Steps beyond `steps` that a plan may name: one per time step, say."""
    published: AsPublished | None = None
    """What a layer in the variant `AS_PUBLISHED` does otherwise."""
    overwrites: str = ""
    """Role of a parameter that FW writes anew before it is used; its input has no gradient then."""

    def steps_of(self, plan: LayerPlan) -> tuple[Step, ...]:
        """The steps of a layer, in the order of the graph."""
        by_name = self.steps_in(str(plan.attributes.get(VARIANT, DEFAULT)), plan.attributes)
        steps = [by_name.get(name) or self.repeated(name) for name in plan.steps or by_name]
        return tuple(step for step in steps if step is not None)

    def steps_in(self, variant: str, attributes: Mapping[str, Any]) -> dict[str, Step]:
        """Its steps by name, as they are in a variant of a layer with these attributes."""
        by_name = {step.name: step for step in self.steps}
        if variant == AS_PUBLISHED and self.published is not None and self.published.offered(attributes):
            by_name |= {step.name: step for step in self.published.steps}
        return by_name

    @property
    def variant_names(self) -> tuple[str, ...]:
        """Names of the variants a layer may ask for, besides the default."""
        steps = (*self.steps, *(self.published.steps if self.published is not None else ()))
        of_layer = (AS_PUBLISHED,) if self.published is not None else ()
        return tuple(dict.fromkeys((*of_layer, *(name for step in steps for name in step.variants))))

    def in_variant(self, name: str, attributes: Mapping[str, Any]) -> bool:
        """Whether a layer with these attributes differs in a variant from its default."""
        published = self.published
        if name == AS_PUBLISHED and published is not None and published.offered(attributes):
            return True
        return any(name in step.offered(attributes) for step in self.steps)

    def needs_of(self, name: str) -> str:
        """What a layer needs for a variant, in words."""
        of_layer = self.published.needs if name == AS_PUBLISHED and self.published is not None else ""
        of_steps = [step.variants[name].needs for step in self.steps if name in step.variants]
        return next(filter(None, [of_layer, *of_steps]), "other options")

    @property
    def is_view(self) -> bool:
        """Whether the output is only the input in another shape."""
        return not any(step.name == "FW" for step in self.steps)

    @property
    def counts_only(self) -> bool:
        """Whether no step reads the input: it only says how many samples there are, and has no gradient."""
        return not self.is_view and not any(role[0] == "x" for step in self.steps for role in step.reads)


class LabelValues(Struct, frozen=True):
    """What a target may hold: `fits`, element by element; `draw(generator, shape)` makes up one sample's."""

    about: str
    draw: Callable[[Any, Shape], Array]
    fits: Callable[[Array], Any]


ANY_LABEL = LabelValues(
    "numbers",
    lambda generator, shape: generator.uniform(-1, 1, shape),
    lambda label: np.full(label.shape, True),
)
"""A target without bounds."""


class LabelPlan(Struct, frozen=True):
    """Shape and dtype of the labels of a loss, batch first; `classes` > 0 for class labels.

    A class label is an integer in [0, classes) per sample or per place of an image (`hard`), or `ignored`;
    or a distribution over the classes, the axis behind the batch. Others hold such `values`.
    """

    shape: Shape
    dtype: DType = FP32
    classes: int = 0
    hard: bool = False
    values: LabelValues = ANY_LABEL
    ignored: int | None = None

    @property
    def places(self) -> Shape:
        """Shape of the class numbers of one sample."""
        return self.shape[1:] if self.hard else self.shape[2:]


class _OfOneStep:
    """What has one step."""

    __slots__ = ()
    name: str
    step: Step

    def op(self, layer: str, roles: Mapping[str, str], attributes: Mapping[str, Any], **more: Any) -> Op:
        """The op of the step on the tensors of `roles`; `more` as in `Step.op`."""
        return self.step.op(layer, self.name, roles, attributes, **more)

    @property
    def steps(self) -> tuple[Step, ...]:
        """The one step."""
        return (self.step,)

    @property
    def variant_names(self) -> tuple[str, ...]:
        """Names of the variants of the step, besides the default."""
        return tuple(self.step.variants)


@dataclass(frozen=True, slots=True)
class LossPrimitive(_OfOneStep):
    """A loss: roles ``y`` and ``label`` in, ``loss`` (shape (1,)) and ``dy`` out.

    `plan(attributes, output, where)` says what labels it wants, None for none, or raises ShapeError. Examples
    have one input: the output of the network.
    """

    name: str
    schema: type[LossSchema]
    step: Step
    plan: Callable[[Mapping[str, Any], Tensor, str], LabelPlan | None]
    examples: tuple[Example, ...]


@dataclass(frozen=True, slots=True)
class OptimizerPrimitive(_OfOneStep):
    """An optimizer: one update step per weight, roles ``w``, ``dw`` in, ``w_updated`` out.

    `states(attributes, weight)` are its own kept tensors by role (momentum, step count); the step reads role
    ``r`` and writes ``r_updated``, which takes over the storage (``r?`` where it may be missing).
    The examples' one input is the shape of the weight, without batch.
    """

    name: str
    schema: type[OptimizerSchema]
    step: Step
    examples: tuple[Example, ...]
    states: Callable[[Mapping[str, Any], Tensor], Mapping[str, Buffer]] = lambda attributes, weight: {}


@dataclass(frozen=True, slots=True)
class InternalPrimitive(_OfOneStep):
    """An op the graph builder inserts by itself (summing the gradients of a tensor used twice)."""

    name: str
    step: Step


Primitive = LayerPrimitive | LossPrimitive | OptimizerPrimitive | InternalPrimitive


def he_uniform(shape: Shape) -> Initial:
    """Uniform in ±sqrt(6 / fan_in) (He et al. 2015), fan_in the product of all dimensions but the first."""
    return Initial("uniform", float((6 / prod(shape[1:])) ** 0.5))


ZEROS = Initial("constant", 0.0)
"""Starts as zeros (biases)."""

ONES = Initial("constant", 1.0)
"""Starts as ones (scales of a norm)."""


def weight_and_bias(
    shape: Shape, channels: int, bias: bool, start: Initial | None = None
) -> dict[str, Parameter]:
    """Weights ``w``, which begin by `start` or else `he_uniform`, and if wanted a ``bias`` of zeros."""
    parameters = {"w": Parameter(shape, start or he_uniform(shape))}
    return parameters | ({"b": Parameter((channels,), ZEROS)} if bias else {})
