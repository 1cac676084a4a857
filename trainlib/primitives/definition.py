"""What a primitive declares about itself: shapes, the steps it has, what each reads and writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainlib.graph import Op
from trainlib.steps import Array, StepLowering

Shape = tuple[int, ...]

Reference = Callable[[Op, Sequence[Array]], tuple[Array, ...]]
"""Untiled NumPy evaluation of one op: arrays of `op.inputs` in, arrays of `op.outputs` out."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a primitive.

    `reads` and `writes` are roles the graph builder turns into tensor names: ``x`` and ``y`` are the layer's
    input and output, ``w`` its weight, ``dx``, ``dy`` and ``dw`` their gradients, ``label``, ``loss`` and
    ``w_updated`` what they say. `reference` shares no code with `lowering`.
    """

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    reference: Reference
    lowering: StepLowering


@dataclass(frozen=True, slots=True)
class LayerShapes:
    """Result of shape inference of one layer: attributes are what its ops carry (plain numbers)."""

    output: Shape
    weight: Shape | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LayerPrimitive:
    """A layer type of the model file.

    `shapes(attributes, input_shape, where)` infers shapes or raises ShapeError. A layer without `forward` is
    a view: its output is its input in another shape. `batched(attributes, arrays)` maps images [batch, *x],
    and the weight if there is one, to [batch, *y]. `torch_forward(torch, attributes, x, w)` is the same layer
    in PyTorch, x with a batch of 1.
    """

    name: str
    shapes: Callable[[Mapping[str, Any], Shape, str], LayerShapes]
    batched: Callable[[Mapping[str, Any], Sequence[Array]], Array]
    torch_forward: Callable[[Any, Mapping[str, Any], Any, Any], Any]
    forward: Step | None = None
    weight_gradient: Step | None = None
    input_gradient: Step | None = None

    @property
    def steps(self) -> Mapping[str, Step]:
        """The steps this layer has, by their name in `Op.step`."""
        named = {"FW": self.forward, "WG": self.weight_gradient, "IG": self.input_gradient}
        return {name: step for name, step in named.items() if step is not None}


@dataclass(frozen=True, slots=True)
class LossPrimitive:
    """A loss: value and gradient of the output in one step.

    `check(output_shape, where)` raises ShapeError if the output does not suit. `torch_loss(torch, y, label)`
    is the same loss in PyTorch, y without batch dimension.
    """

    name: str
    step: Step
    check: Callable[[Shape, str], None]
    torch_loss: Callable[[Any, Any, Any], Any]
    label_is_class: bool

    @property
    def steps(self) -> Mapping[str, Step]:
        """The one step, by its name in `Op.step`."""
        return {"LOSS": self.step}


@dataclass(frozen=True, slots=True)
class OptimizerPrimitive:
    """An optimizer: one update step per weight; `torch_optimizer(torch, parameters, attributes)`."""

    name: str
    step: Step
    torch_optimizer: Callable[[Any, Sequence[Any], Mapping[str, Any]], Any]

    @property
    def steps(self) -> Mapping[str, Step]:
        """The one step, by its name in `Op.step`."""
        return {"UPD": self.step}


Primitive = LayerPrimitive | LossPrimitive | OptimizerPrimitive
