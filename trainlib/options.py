"""The options of layers, losses and optimizers, checked against the schema of their primitive."""

from __future__ import annotations

from typing import Any

from configs.model_file import LAYER_KEYS, LayerSpec, LossSpec, OptimizerSpec
from configs.schema import SchemaT, validate, validate_values
from configs.yaml_file import Node
from trainlib.primitives.definition import LayerPrimitive, LossPrimitive, OptimizerPrimitive


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
    return _named(primitive.schema, spec.name, spec, spec.node, f"optimizer '{spec.name}'")


def _named(
    schema: type[SchemaT], name: str, spec: LossSpec | OptimizerSpec, node: Node | None, what: str
) -> dict[str, Any]:
    if node is not None and node.plain() == {"name": name, **spec.options}:
        checked = validate(schema, node, what)
    else:
        checked = validate_values(schema, {"name": name, **spec.options}, what, spec.where)
    return checked.model_dump(exclude={"name"})
