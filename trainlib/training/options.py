# SPDX-License-Identifier: Apache-2.0
"""The options of layers, losses and optimizers, checked against the schema of their primitive."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any

from pydantic import Field

from configs.model_file import LAYER_KEYS, LayerSpec, LossSpec, ModelSpec, OptimizerSpec
from configs.problems import Problems
from configs.schema import Schema, SchemaT, validate, validate_values
from configs.values import replace
from configs.yaml_file import Node
from trainlib.primitives.definition import LayerPrimitive, LossPrimitive, OptimizerPrimitive
from trainlib.registry import layer_primitive, loss_primitive, optimizer_primitive
from trainlib.training.built_layer import where_of

MOST_MINI_BATCHES = 1_000_000
"""Mini-batches of one update: each is computed."""


class GradientOptions(Schema):
    """What a model file may say in its optimizer section, whatever the optimizer."""

    accumulate: Annotated[int, Field(ge=1, le=MOST_MINI_BATCHES)] = 1
    """Mini-batches per update; the update uses the mean of their gradients."""
    clip_value: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Limit of every element of the gradients: they are clipped to [-clip_value, clip_value]."""
    clip_norm: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Limit of the 2-norm of all gradients together, applied after `clip_value`."""
    separate: bool = False
    """Make the update a separate program, which shares weights and gradients with the program of a
    mini-batch. With `accumulate`, it always is a separate program."""
    immediate: bool = False
    """Update every weight as soon as its gradient is ready, and free the gradient. Not with `separate`,
    `clip_value` or `clip_norm`. No effect with `accumulate`: the update needs the gradients of all
    mini-batches."""
    average: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Decay of an average (EMA) of every trained weight: decay * average + (1 - decay) * weight after
    each update."""
    schedule: dict[str, Any] | None = None
    """`{name: ..., options}`: how the learning rate changes from iteration to iteration."""
    groups: list[dict[str, Any]] | None = None
    """Other options for some parameters, by layer or by name: `{layers: [...], options}`,
    `{parameters: ["*.bias"], options}`."""


GRADIENT_KEYS = tuple(GradientOptions.model_fields)
"""Keys of the optimizer section that are not options of the optimizer."""


def check_options(spec: ModelSpec) -> None:
    """Every layer, the loss and the optimizer against their schemas, before any shape is known.

    Raises UnsupportedLayerError for an unknown type or name, ConfigError with the line of a wrong option.
    """
    problems = Problems()
    for layer in spec.layers:
        problems.of(_check_layer, layer)
    problems.of(_check_loss, spec)
    problems.of(_check_optimizer, spec.optimizer)
    problems.of(gradient_options, spec.optimizer)
    problems.refuse()


def _check_layer(layer: LayerSpec) -> None:
    layer_options(layer, layer_primitive(layer.type, where_of(layer)))


def _check_loss(spec: ModelSpec) -> None:
    for loss in spec.losses:
        loss_options(loss, loss_primitive(loss.name, loss.where or spec.where))


def _check_optimizer(spec: OptimizerSpec) -> None:
    from trainlib.training.update_options import check_groups

    check_groups(spec, optimizer_primitive(spec.name, spec.where))


def layer_options(spec: LayerSpec, primitive: LayerPrimitive) -> dict[str, Any]:
    """Options of a layer with defaults filled in. Raises ConfigError with the line of the mistake."""
    what = f"layer '{spec.name}' ({spec.type})"
    if spec.node is not None and _options_of(spec.node) == dict(spec.attributes):
        checked = validate(primitive.schema, spec.node, what)
    else:  # built, or changed, in Python; layers the builder inserts have a dot in their name
        values = {"name": spec.name.partition(".")[0], "type": spec.type, **spec.attributes}
        checked = validate_values(primitive.schema, values, what, spec.where)
    return checked.model_dump(exclude=set(LAYER_KEYS))


def _options_of(node: Node) -> dict[str, Any]:
    return {key: child.plain() for key, child in node.mapping("").items() if key not in LAYER_KEYS}


def loss_options(spec: LossSpec, primitive: LossPrimitive) -> dict[str, Any]:
    """Options of a loss with defaults filled in. Raises ConfigError with the line of the mistake."""
    return _named(primitive.schema, spec.name, spec, spec.node, f"loss '{spec.name}'")


def optimizer_options(spec: OptimizerSpec, primitive: OptimizerPrimitive) -> dict[str, Any]:
    """Options of an optimizer with defaults filled in. Raises ConfigError with the line of the mistake."""
    options = {key: value for key, value in spec.options.items() if key not in GRADIENT_KEYS}
    node = _without(spec.node, GRADIENT_KEYS) if spec.node is not None else None
    return _named(
        primitive.schema, spec.name, replace(spec, options=options), node, f"optimizer '{spec.name}'"
    )


def gradient_options(spec: OptimizerSpec) -> GradientOptions:
    """Clipping and accumulation of gradients. Raises ConfigError with the line of the mistake."""
    given = {key: value for key, value in spec.options.items() if key in GRADIENT_KEYS}
    what = f"optimizer '{spec.name}'"
    if spec.node is not None:
        others = [key for key in spec.node.mapping(what) if key not in GRADIENT_KEYS]
        node = _without(spec.node, others)
        if node.plain() == given:
            return validate(GradientOptions, node, what)
    return validate_values(GradientOptions, given, what, spec.where)


def _without(node: Node, keys: Collection[str]) -> Node:
    children = {key: child for key, child in node.mapping("").items() if key not in keys}
    return Node(children, node.file, node.line)


def _named(
    schema: type[SchemaT], name: str, spec: LossSpec | OptimizerSpec, node: Node | None, what: str
) -> dict[str, Any]:
    if node is not None and node.plain() == {"name": name, **spec.options}:
        checked = validate(schema, node, what)
    else:
        checked = validate_values(schema, {"name": name, **spec.options}, what, spec.where)
    return checked.model_dump(exclude={"name"})
