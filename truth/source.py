# SPDX-License-Identifier: Apache-2.0
"""What the user gave: the text of a model file, or the values of a model made in Python, and options.

PyTorch is not imported here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import configs
from configs.dtypes import BY_WORD
from configs.values import Struct

SHIPPED = Path(configs.__file__).parent / "models"

STEPS = ("fw", "loss", "ig", "wg", "upd")
"""Words for the steps of an iteration."""


def torch_available() -> bool:
    """Whether PyTorch can be imported."""
    return find_spec("torch") is not None


class DisagreementError(Exception):
    """A tensor of the machine is not of the shape or kind that the model says."""

    def __init__(self, tensor: str, why: str) -> None:
        super().__init__(tensor, why)
        self.tensor, self.why = tensor, why


class Source(Struct, frozen=True):
    """A tensor that is given to the network: number format (NumPy), order of an image's axes, shape."""

    name: str
    dtype: str
    layout: str
    """Of a layer alone: that which is asked for; other orders than its own are not."""
    shape: tuple[int, ...]
    differentiable: bool = False
    """Whether its gradient is asked for."""


class Given(Struct, frozen=True):
    """A model as plain values: the keys of a model file, in `tree`, after what the options replaced.

    `folder` is where a data set is looked for first. `inputs` are the tensors it is fed; `alone` is the name
    of the layer, loss or optimizer of ``pulptrain primitive``.
    """

    tree: Mapping[str, Any]
    folder: Path = Path()
    steps: tuple[str, ...] = STEPS
    inputs: tuple[Source, ...] = ()
    alone: str = ""
    weights: tuple[str, ...] = ()
    """Weights of no layer, for an optimizer alone."""

    @property
    def batch(self) -> int:
        """Samples of a mini-batch."""
        return int(self.tree.get("batch", 1))

    @property
    def fed(self) -> Mapping[str, Mapping[str, Any]]:
        """Shape and classes of the inputs by name; with classes above 0 they are word numbers below it."""
        return inputs_of(self.tree)

    @property
    def optimizer(self) -> Mapping[str, Any]:
        """Name and options of the optimizer."""
        return dict(self.tree.get("optimizer", {}))

    @property
    def losses(self) -> tuple[Mapping[str, Any], ...]:
        """Name and options of every loss the model has; what is trained is their sum.

        Each says the name of its labels, if it has not got a layer as its target.
        """
        said = self.tree["losses"] if "losses" in self.tree else [self.tree.get("loss")]
        named = [{"name": loss} if isinstance(loss, str) else dict(loss) for loss in said if loss is not None]
        for number, loss in enumerate(named):
            if loss.get("target") is None and loss.get("label") is None:
                loss["label"] = f"label_{number + 1}" if number else "label"
        return tuple(named)

    @property
    def mini_batches(self) -> int:
        """Mini-batches of one update."""
        return int(self.optimizer.get("accumulate", 1))

    @property
    def separate(self) -> bool:
        """Whether the update is a program of its own."""
        return "upd" in self.steps and (self.mini_batches > 1 or bool(self.optimizer.get("separate", False)))

    @property
    def inference(self) -> bool:
        """Whether the network computes as it does once trained."""
        return self.steps == ("fw",)


def as_source_model(
    model: Any,
    *,
    dtype: str | None = None,
    batch: int | None = None,
    variant: str | None = None,
    accumulate: int | None = None,
    schedule: Mapping[str, Any] | None = None,
    separate: bool = False,
    steps: str | None = None,
    train: str | None = None,
    layouts: Mapping[str, str] | None = None,
) -> Given:
    """The model of a name, a path, the tree of a file, or a `ModelSpec`, with the options said replaced.

    `schedule` is one of learning rates; `steps` (``fw,ig``) and `train` (``fc,conv1``) are as on the command
    line; `layouts` those of a schedule file, by layer.
    """
    tree, folder, own_steps = _tree(model)
    said = {"dtype": dtype, "batch": batch, "variant": variant}
    tree |= {key: value for key, value in said.items() if value is not None}
    if train is not None:
        names = [name.strip() for name in train.split(",")]
        tree["train"] = names[0] if names[0] in ("all", "last") else names
    more: dict[str, Any] = {
        "accumulate": accumulate,
        "schedule": schedule,
        "separate": True if separate else None,
    }
    tree["optimizer"] = {
        **tree["optimizer"],
        **{key: value for key, value in more.items() if value is not None},
    }
    chosen = layouts or {}
    tree["layers"] = [
        {**layer, "layout": chosen[layer["name"]]} if layer["name"] in chosen else layer
        for layer in tree["layers"]
    ]
    batch_size = int(tree.get("batch", 1))
    sources = tuple(
        Source(name, "int32" if said.get("classes", 0) else "float32", "CHW", (batch_size, *said["shape"]))
        for name, said in inputs_of(tree).items()
    )
    return Given(tree, folder, _steps(steps) if steps else own_steps, sources)


def inputs_of(tree: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """The inputs that a model file describes, by name."""
    inputs: Mapping[str, Mapping[str, Any]] = tree.get("inputs") or {"input": tree["input"]}
    return inputs


LAYER, LOSS, OPTIMIZER = "layer", "loss", "optimizer"
"""What may be alone."""

Shaped = tuple[str | None, tuple[int, ...]]
"""Number format (NumPy) of an input, None for that of the layer, and its shape, batch first."""


def alone(kind: str, name: str, options: Mapping[str, Any], dtype: str, inputs: Sequence[Shaped]) -> Given:
    """A layer, a loss or an optimizer as of ``pulptrain primitive``, with the options as typed."""
    if kind == OPTIMIZER:
        return Given({"layers": [], "optimizer": {"name": name, **options}}, alone=name, weights=("w",))
    stored, layout = BY_WORD[dtype].name, str(options.get("layout", "CHW"))
    if kind == LOSS:
        source = Source("y", stored, layout, inputs[0][1], differentiable=True)
        tree: dict[str, Any] = {"layers": [], "loss": {"name": name, **options}}
        return Given(tree, inputs=(source,), alone=name, steps=("fw", "loss", "ig"))
    sources = tuple(
        Source(f"x{number or ''}", dtype_of_input or stored, layout, shape, differentiable=True)
        for number, (dtype_of_input, shape) in enumerate(inputs)
    )
    said = {key: value for key, value in options.items() if key != "layout"}
    layer: dict[str, Any] = {
        "name": name,
        "type": name,
        "inputs": [source.name for source in sources],
        **said,
    }
    tree = {"dtype": dtype, "layout": layout, "layers": [layer]}
    return Given(tree, inputs=sources, alone=name, steps=("fw", "ig", "wg"))


def _tree(model: Any) -> tuple[dict[str, Any], Path, tuple[str, ...]]:
    if isinstance(model, str):
        path = Path(model)
        if not ("/" in model or "\\" in model or model.endswith((".yaml", ".yml"))):
            path = SHIPPED / f"{model}.yaml"
        from ruamel.yaml import YAML

        return dict(YAML(typ="safe").load(path.read_text(encoding="utf-8"))), path.parent, STEPS
    if isinstance(model, Mapping):
        return dict(model), Path(), STEPS
    return _tree_of(model), Path(str(model.where).rpartition(":")[0]).parent, tuple(model.steps) or STEPS


def _tree_of(spec: Any) -> dict[str, Any]:
    """The values of a model made in Python, or by an importer, under the keys of a model file."""
    return {
        "inputs": {item.name: {"shape": list(item.shape), "classes": item.classes} for item in spec.inputs},
        "dataset": spec.dataset,
        "losses": [
            {"name": loss.name, "of": loss.of, "target": loss.target, "label": loss.label, **loss.options}
            for loss in spec.losses
        ],
        "optimizer": {"name": spec.optimizer.name, **spec.optimizer.options},
        "batch": spec.batch,
        "dtype": spec.dtype,
        "layout": spec.layout,
        "frozen_weights": spec.frozen_weights,
        "variant": spec.variant,
        "train": spec.train if spec.train is not None else "all",
        "layers": [
            {
                "name": layer.name,
                "type": layer.type,
                **layer.attributes,
                "inputs": layer.inputs,
                "dtype": layer.dtype,
                "layout": layer.layout,
                "variant": layer.variant,
                "trainable": layer.trainable,
                "weights_of": layer.weights_of,
                "update_channels": layer.update_channels,
                "frozen_weights": layer.frozen_weights,
                "adapter": layer.adapter and layer.adapter.tree,
            }
            for layer in spec.layers
        ],
    }


def _steps(text: str) -> tuple[str, ...]:
    """Gradients need the loss, so it is taken along."""
    words = {word.strip().lower() for word in text.split(",")}
    if words & {"ig", "wg"}:
        words.add("loss")
    return tuple(word for word in STEPS if word in words)
