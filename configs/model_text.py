# SPDX-License-Identifier: Apache-2.0
"""A model as the text of a model file that `configs.model_file` reads, for models from elsewhere."""

from __future__ import annotations

import io
from typing import Any

from ruamel.yaml import YAML

from configs.model_file import TERM_KEYS, LayerSpec, LossSpec, ModelSpec


def model_tree(spec: ModelSpec) -> dict[str, Any]:
    """The mappings and lists of a model file that reads as `spec`; what has its default is left out."""
    inputs = {
        item.name: {"shape": list(item.shape), **({"classes": item.classes} if item.classes else {})}
        for item in spec.inputs
    }
    losses = [_loss(loss) for loss in (spec.loss, *spec.more_losses)]
    tree: dict[str, Any] = {
        "name": spec.name,
        "description": spec.description,
        "source": spec.source,
        **({"input": inputs["input"]} if [*inputs] == ["input"] else {"inputs": inputs}),
        "dataset": spec.dataset,
        **({"losses": losses} if spec.more_losses else {"loss": losses[0]}),
        "optimizer": {"name": spec.optimizer.name, **spec.optimizer.options},
        "batch": spec.batch,
    }
    defaults = {"dtype": "fp32", "layout": "CHW", "variant": "default", "train": None, "frozen_weights": None}
    for key, default in defaults.items():
        value = getattr(spec, key)
        if value != default:
            tree[key] = list(value) if isinstance(value, tuple) else value
    tree |= {key: dict(said) for key in ("homes", "slot_bytes") if (said := getattr(spec, key))}
    if spec.streams:
        tree["streams"] = {op: list(names) for op, names in spec.streams.items()}
    tree["layers"] = [
        _layer(layer, spec.layers[number - 1].name if number else spec.input_name)
        for number, layer in enumerate(spec.layers)
    ]
    return tree


def _loss(loss: LossSpec) -> Any:
    said = {key: getattr(loss, key) for key in TERM_KEYS if getattr(loss, key) is not None}
    return {"name": loss.name, **said, **loss.options} if said or loss.options else loss.name


def _layer(layer: LayerSpec, before: str) -> dict[str, Any]:
    tree: dict[str, Any] = {"name": layer.name, "type": layer.type}
    if layer.inputs is not None and layer.inputs != (before,):
        tree["inputs"] = list(layer.inputs)
    tree |= {key: value for key, value in layer.attributes.items() if value is not None}
    for key in ("dtype", "layout", "variant", "weights_of", "frozen_weights", "backward_reads"):
        if getattr(layer, key) is not None:
            tree[key] = getattr(layer, key)
    if layer.trainable is not True:
        tree["trainable"] = list(layer.trainable) if layer.trainable else False
    if layer.update_channels is not None:
        tree["update_channels"] = list(layer.update_channels)
    if layer.adapter is not None:
        tree["adapter"] = layer.adapter.tree
    if layer.recompute:
        tree["recompute"] = True
    return tree


def model_text(spec: ModelSpec, comment: str = "") -> str:
    """The model file, a line per layer; `comment` goes before it."""
    yaml = YAML()
    yaml.version = None
    yaml.default_flow_style = None
    yaml.width = 100_000
    yaml.indent(mapping=2, sequence=4, offset=2)
    out = io.StringIO()
    yaml.dump(model_tree(spec), out)
    lines = "".join(f"# {line}\n" for line in comment.splitlines())
    return lines + out.getvalue()
