"""From a model to its training graph: shapes, forward, loss, backward by our own rules, optimizer."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from configs.errors import ShapeError, UnsupportedLayerError
from configs.model_file import LayerSpec, ModelSpec
from trainlib.graph import Op, Tensor, TrainingGraph
from trainlib.primitives.definition import LayerPrimitive, LayerShapes, Step
from trainlib.registry import layer_primitive, loss_primitive, optimizer_primitive
from trainlib.steps import Array

INPUT, LABEL, LOSS = "input", "label", "loss"
"""Tensor names that every graph has."""


def gradient_name(tensor: str) -> str:
    """Name of the gradient of a tensor."""
    return f"{tensor}.grad"


@dataclass(slots=True)
class _Layer:
    """One layer while the graph is being built."""

    spec: LayerSpec
    primitive: LayerPrimitive
    shapes: LayerShapes
    x: str
    y: str
    weight: str | None
    back_propagates: bool
    """Whether a layer before this one has a weight, so that its input gradient is needed."""


@dataclass(slots=True)
class _Builder:
    """Tensors and ops collected so far."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    ops: list[Op] = field(default_factory=list)

    def add(self, tensor: Tensor) -> None:
        self.tensors[tensor.name] = tensor

    def emit(
        self, layer: str, primitive: str, kind: str, step: Step, roles: Mapping[str, str], attributes: Any
    ) -> None:
        self.ops.append(
            Op(
                name=f"{layer}.{kind}",
                layer=layer,
                primitive=primitive,
                step=kind,
                inputs=tuple(roles[role] for role in step.reads),
                outputs=tuple(roles[role] for role in step.writes),
                attributes=dict(attributes),
            )
        )


def build_training_graph(spec: ModelSpec) -> TrainingGraph:
    """One training iteration of batch 1, fp32, as a graph of primitive steps.

    Op order: FW of every layer; LOSS; WG then IG of every layer, last layer first; UPD of every weight. A
    layer gets an IG only if a layer before it has a weight; flatten is a view and gets no op. Raises
    ShapeError (layer and file:line) where shapes do not fit, UnsupportedLayerError for what has no primitive.
    """
    if spec.batch != 1:
        raise UnsupportedLayerError(f"batch {spec.batch} is not supported", where=spec.where, cure="batch: 1")
    builder = _Builder()
    builder.add(Tensor(INPUT, tuple(spec.input_shape), "input"))
    layers = _forward(spec, builder)
    loss = loss_primitive(spec.loss, spec.where)
    output = layers[-1].y
    output_shape = builder.tensors[output].shape
    loss.check(output_shape, _place(layers[-1].spec))
    builder.add(Tensor(LABEL, output_shape, "label"))
    builder.add(Tensor(LOSS, (1,), "loss"))
    builder.add(Tensor(gradient_name(output), output_shape, "gradient"))
    roles = {"y": output, "dy": gradient_name(output), "label": LABEL, "loss": LOSS}
    builder.emit("loss", loss.name, "LOSS", loss.step, roles, {})
    _backward(layers, builder)
    weights = tuple(layer.weight for layer in layers if layer.weight is not None)
    _update(spec, layers, builder)
    return TrainingGraph(
        name=spec.name,
        tensors=builder.tensors,
        ops=tuple(builder.ops),
        input=INPUT,
        label=LABEL,
        output=output,
        loss=LOSS,
        weights=weights,
        gradients={weight: gradient_name(weight) for weight in weights},
    )


def _place(layer: LayerSpec) -> str:
    return f"{layer.where}: layer {layer.name}"


def _forward(spec: ModelSpec, builder: _Builder) -> list[_Layer]:
    layers: list[_Layer] = []
    current, trained = INPUT, False
    for layer_spec in spec.layers:
        place = _place(layer_spec)
        primitive = layer_primitive(layer_spec.type, place)
        shape = builder.tensors[current].shape
        shapes = primitive.shapes(layer_spec.attributes, shape, place)
        layer = _Layer(layer_spec, primitive, shapes, current, f"{layer_spec.name}.out", None, trained)
        if layer.y in builder.tensors:
            raise ShapeError(f"two layers are called {layer_spec.name}", where=place, cure="another name")
        if primitive.forward is None:
            if prod(shape) != prod(shapes.output):
                raise ShapeError(f"cannot view {shape} as {shapes.output}", where=place)
            kind = builder.tensors[current].kind
            builder.add(Tensor(layer.y, shapes.output, kind, alias_of=current))
        else:
            builder.add(Tensor(layer.y, shapes.output, "activation"))
            if shapes.weight is not None:
                layer.weight = f"{layer_spec.name}.weight"
                builder.add(Tensor(layer.weight, shapes.weight, "weight"))
            builder.emit(
                layer_spec.name, primitive.name, "FW", primitive.forward, _roles(layer), shapes.attributes
            )
        layers.append(layer)
        current, trained = layer.y, trained or layer.weight is not None
    if not trained:
        raise ShapeError("no layer has a weight: there is nothing to train", where=spec.where)
    return layers


def _roles(layer: _Layer) -> dict[str, str]:
    roles = {"x": layer.x, "y": layer.y, "dx": gradient_name(layer.x), "dy": gradient_name(layer.y)}
    if layer.weight is not None:
        roles |= {"w": layer.weight, "dw": gradient_name(layer.weight)}
        roles["w_updated"] = f"{layer.weight}_updated"
    return roles


def _backward(layers: Sequence[_Layer], builder: _Builder) -> None:
    for layer in reversed(layers):
        primitive, attributes, roles = layer.primitive, layer.shapes.attributes, _roles(layer)
        name = layer.spec.name
        if layer.weight is not None and primitive.weight_gradient is not None:
            builder.add(Tensor(roles["dw"], builder.tensors[layer.weight].shape, "gradient"))
            builder.emit(name, primitive.name, "WG", primitive.weight_gradient, roles, attributes)
        if not layer.back_propagates:
            continue
        input_shape = builder.tensors[layer.x].shape
        if primitive.input_gradient is None:
            builder.add(Tensor(roles["dx"], input_shape, "gradient", alias_of=roles["dy"]))
        else:
            builder.add(Tensor(roles["dx"], input_shape, "gradient"))
            builder.emit(name, primitive.name, "IG", primitive.input_gradient, roles, attributes)


def _update(spec: ModelSpec, layers: Sequence[_Layer], builder: _Builder) -> None:
    optimizer = optimizer_primitive(spec.optimizer.name, spec.optimizer.where)
    attributes = {"learning_rate": spec.optimizer.learning_rate}
    for layer in layers:
        if layer.weight is None:
            continue
        roles = _roles(layer)
        shape = builder.tensors[layer.weight].shape
        builder.add(Tensor(roles["w_updated"], shape, "weight", alias_of=layer.weight))
        builder.emit(layer.spec.name, optimizer.name, "UPD", optimizer.step, roles, attributes)


def initial_weights(graph: TrainingGraph, seed: int) -> dict[str, Array]:
    """fp32 weights, uniform in ±sqrt(6 / fan_in) (He et al. 2015, for ReLU networks).

    fan_in is the product of all dimensions but the first. Each weight has a generator of its own, seeded by
    `seed` and its name, so a layer's start does not depend on the layers around it.
    """
    weights: dict[str, Array] = {}
    for name in graph.weights:
        shape = graph.tensors[name].shape
        limit = np.sqrt(6 / prod(shape[1:]))
        generator = np.random.default_rng([seed, zlib.crc32(name.encode())])
        weights[name] = generator.uniform(-limit, limit, shape).astype(np.float32)
    return weights
