# SPDX-License-Identifier: Apache-2.0
"""Networks in Python: one that ships, one from a file, or one put together of layers."""

from __future__ import annotations

import html
import sys
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from math import prod
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Unpack

from configs.errors import InputError
from configs.library import open_config
from configs.model_file import OWN_DATA, ModelSpec, read_model
from configs.model_text import model_tree
from configs.values import replace
from configs.yaml_file import Node
from pulptrain.foreign.foreign_model import INTEGERS, ForeignModel
from pulptrain.foreign.model_source import ModelSource, open_source
from pulptrain.inputs.layers import Layer, Loss, Optimizer, caller_of, node_of
from pulptrain.inputs.npz_file import read_values
from pulptrain.inputs.option import ALL, SourceOptions
from pulptrain.inputs.real_values import as_fields
from pulptrain.inputs.settings import Settings
from traces.text_table import first_line_repr, table_lines
from trainlib.ir.graph import TrainingGraph
from trainlib.ir.steps import Array
from trainlib.training.options import check_options
from trainlib.training.phases import build_training_phases


@dataclass(frozen=True)
class Model:
    """A network with its loss and optimizer, checked: names, options and shapes.

    `spec` is what a model file says, `tree` the file itself or what it would have been.
    """

    spec: ModelSpec
    tree: Node = field(compare=False, repr=False)
    graph: TrainingGraph = field(compare=False, repr=False)
    source: ModelSource = field(default_factory=lambda: ModelSource(""), compare=False, repr=False)
    """What it was opened from."""

    @property
    def name(self) -> str:
        """What the network is called."""
        return self.spec.name

    @property
    def values(self) -> Mapping[str, Array]:
        """Starts of weights and buffers by tensor, of a network trained elsewhere; others are drawn."""
        return self.foreign.values if self.foreign is not None else {}

    @property
    def foreign(self) -> ForeignModel | None:
        """What it was read from, of one that is from elsewhere."""
        return self.source.foreign

    @property
    def layer_names(self) -> tuple[str, ...]:
        """Names of the layers in order."""
        return tuple(layer.name for layer in self.spec.layers)

    @property
    def parameters(self) -> int:
        """Number of weights, biases and the like."""
        return sum(prod(self.graph.tensors[name].shape) for name in self.graph.weights)

    def replace(
        self,
        *,
        batch: int | None = None,
        dtype: str | None = None,
        train: str | Sequence[str] | None = None,
    ) -> Model:
        """The same network with another batch, number format or choice of trained layers (or ``all``)."""
        self.source.network()
        new: dict[str, object] = {"batch": batch, "dtype": dtype, "train": train}
        file, line, _ = caller_of(__name__)
        keys = {key: node_of(value, file, line) for key, value in new.items() if value is not None}
        tree = Node({**self.tree.mapping("the model"), **keys}, self.tree.file, self.tree.line)
        model = _checked(tree)
        return replace(model, source=replace(self.source, model=model.spec))

    __repr__ = first_line_repr

    def __str__(self) -> str:
        from pulptrain.show.descriptions import described_layers

        heads = ("layer", "type", "output", "parameters")
        cells = [
            (
                layer["name"],
                layer["type"],
                "x".join(map(str, layer["output_shape"][1:])),
                f"{layer['parameters']:,}" if layer["parameters"] else "",
            )
            for layer in described_layers(self.spec, self.graph)
        ]
        inputs = ", ".join(f"{item.name} {'x'.join(map(str, item.shape))}" for item in self.spec.inputs)
        losses = " + ".join(loss.name for loss in self.spec.losses)
        return "\n".join(
            [
                f"{self.name}: {inputs}, batch {self.spec.batch}, {self.parameters:,} parameters",
                *table_lines(heads, cells, sys.maxsize, left=heads[:3]),
                f"loss {losses}, optimizer {self.spec.optimizer.name}",
            ]
        )

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def model(name_or_path: str | PathLike[str], **given: Unpack[SourceOptions]) -> Model:
    """A network that ships (see ``pulptrain list models``), or a file: a model file, .onnx, ``net.py:Net``.

    `inputs` (``"1,3,32,32"``, the sizes, or an example), `loss` and `optimizer` (texts) are for the last two,
    as on the command line; ``net.py`` is run. Raises `ConfigError` with ``file:line``, `ShapeError` where
    layers do not fit together, and what reading a file of others raises.
    """
    return _opened(fspath(name_or_path), given)


def _opened(name: str, given: Mapping[str, Any], **settings: Any) -> Model:
    own_values = given.get("values")
    said = {key: value for key, value in given.items() if key != "values" and value is not None}
    if "inputs" in said:
        said["inputs"] = _shape_text(said["inputs"])
    if isinstance(own_values, str | PathLike):
        said["values"] = own_values
    source = open_source(name, Settings(**as_fields(said), **settings))
    if own_values is not None and "values" not in said:
        source = replace(source, values=own_values)
    if source.training is not None:
        assert isinstance(source.model, ModelSpec)
        return Model(source.model, Node({}, name, 1), source.training.phases.mini_batch, source)
    if source.foreign is not None:
        return _of_spec(source.foreign.spec, source)
    network = _checked(open_config("models", name))
    return replace(network, source=replace(source, model=network.spec))


def _shape_text(inputs: Any) -> str:
    """``--input`` of the command line: the text itself, sizes, or those of an example."""
    if isinstance(inputs, str):
        return inputs
    shape = getattr(inputs, "shape", inputs)
    integers = "int" in str(getattr(inputs, "dtype", ""))
    return INTEGERS * integers + ",".join(map(str, shape))


def from_torch(
    module: Any,
    example_inputs: Any,
    loss: Any = None,
    optimizer: Any = None,
    *,
    labels: Any = None,
    lr_schedule: Any = None,
    clip_norm: float | None = None,
    clip_value: float | None = None,
    accumulate: int | None = None,
    average: Any = None,
) -> Model:
    """A torch.nn.Module as a network, its parameters as the start, in the mode (train, eval) it is in.

    `example_inputs` is a tensor of the shape of the input, batch first, or a tuple of all. `loss` is a loss
    of torch.nn or text; default cross-entropy for outputs [batch, classes], else mse; or a function of what
    forward returns and of `labels`, a tensor or a tuple of examples. `optimizer` is one of torch.optim
    with its groups of parameters, or text (``"adam lr=0.001"``); default SGD at 0.01. `lr_schedule` is
    one of torch.optim.lr_scheduler made of it, stepped after each update, or text (``"cosine
    steps=100"``); `average` is an AveragedModel with an exponential average, or its decay. Gradients may
    be clipped, and those of `accumulate` mini-batches averaged. What does not require a gradient, or is
    not given to the optimizer, stays as it is. `run` compares the gradients with those of the module as
    it is now. Raises `InputError` if PyTorch is not installed or cannot capture the module, and
    `UnsupportedLayerError` that lists all operations that have no form here.
    """
    from importers.torch.module import from_torch as read

    file, line, where = caller_of(__package__)
    given = read(
        module,
        example_inputs,
        loss,
        optimizer,
        labels=labels,
        lr_schedule=lr_schedule,
        clip_norm=clip_norm,
        clip_value=clip_value,
        accumulate=accumulate,
        average=average,
        where=where,
    )
    foreign = ForeignModel(
        given.spec,
        given.values,
        given.notes,
        deepcopy(module),
        given.sources,
        optimizer=given.optimizer,
        script=given.script,
    )
    return _of_spec(given.spec, ModelSource(given.spec, foreign=foreign), file, line)


def _of_spec(spec: ModelSpec, source: ModelSource, file: str = "", line: int = 1) -> Model:
    tree = node_of(model_tree(spec), file or spec.where, line)
    return Model(spec, tree, build_training_phases(spec).mini_batch, source)


MODULE_OPTIONS = tuple(SourceOptions.__annotations__)
"""Keywords of a call that say what a model is; all others are of what is done with it."""


def as_model(given: Any, options: Mapping[str, Any], seed: int = 0) -> tuple[Model, dict[str, Any]]:
    """(network, the other options): that of a name or path, the network itself, or `from_torch` of a module.

    Of `options` it takes those of `pulptrain.inputs.option.SourceOptions`. Raises `InputError` for those that
    a network says itself.
    """
    options = {key: item for key, item in options.items() if item is not None}
    said = {key: options.pop(key) for key in MODULE_OPTIONS if key in options}
    if isinstance(given, str | PathLike):
        for key, value in said.items():
            if key not in ALL or (key in ("loss", "optimizer") and not isinstance(value, str)):
                raise _of_module(key)
        sizes = {key: options.get(key) for key in ("batch", "accumulate")}
        return _opened(fspath(given), said, **sizes, seed=seed), options
    own_values = said.pop("values", {})
    if isinstance(own_values, str | PathLike):
        own_values = read_values(fspath(own_values))
    if isinstance(given, Model):
        network = given
        if said:
            raise _of_module(next(iter(said)))
    else:
        if "inputs" not in said:
            raise InputError(
                f"the shapes of the inputs of {type(given).__name__} are missing",
                where=caller_of(__package__)[2],
                cure="pass e.g. inputs=torch.zeros(1, 3, 32, 32), batch first",
            )
        if not isinstance(options.get("lr_schedule", ""), str):
            said["lr_schedule"] = options.pop("lr_schedule")
        said.pop("learning_rate", None)
        network = from_torch(given, said.pop("inputs"), **said)
    values = {**network.source.values, **own_values}
    return replace(network, source=replace(network.source, values=values)), options


def _of_module(key: str) -> InputError:
    return InputError(
        f"'{key}' applies to a torch.nn.Module only",
        where=key,
        cure=f"remove '{key}': the network already has one",
    )


def Sequential(  # noqa: N802 - one of the constructors of a network, written as in PyTorch
    *layers: Layer,
    input: Sequence[int] | Mapping[str, Sequence[int] | Mapping[str, object]],
    loss: Loss | Sequence[Loss],
    optimizer: Optimizer,
    batch: int = 1,
    name: str = "network",
    dataset: str = "random",
    dtype: str = "fp32",
    layout: str = "CHW",
    variant: str = "default",
    frozen_weights: str | None = None,
    train: str | Sequence[str] = "all",
    classes: int = 0,
    description: str = "built in Python",
    source: str = "the user's own",
) -> Model:
    """A network of layers, each fed by the one before unless its `inputs` name others (or are layers).

    `input` is the shape of one sample, (C, H, W), (L, C) or (C,); with `classes` > 0 its values are integers
    below. Several inputs are shapes by name, or ``{"shape": (L,), "classes": 11}``. Of several losses the sum
    is trained. `dataset` is a word of the model file or the path of an .npz file. A layer without a name is
    called by its type and a number of its own: ``conv2d1``, ``relu1``. Names, options and shapes are checked
    here: raises `ConfigError` and `ShapeError` at the line of the script that is wrong.
    """
    file, line, where = caller_of(__package__)
    for number, layer in enumerate(layers, start=1):
        if not isinstance(layer, Layer):
            raise InputError(
                f"argument {number} of the network is {layer!r}, not a layer",
                where=where,
                cure="pass e.g. pt.Linear(10)",
            )
    losses = [loss] if isinstance(loss, Loss) else loss
    if not isinstance(losses, Sequence) or not all(isinstance(item, Loss) for item in losses):
        raise InputError(
            f"loss must be a loss object, not {loss!r}", where=where, cure="pass e.g. loss=pt.CrossEntropy()"
        )
    if not isinstance(optimizer, Optimizer):
        raise InputError(
            f"optimizer must be an optimizer object, not {optimizer!r}",
            where=where,
            cure="pass e.g. optimizer=pt.SGD(0.01)",
        )
    names = _names(layers)
    name_of = {id(layer): layer_name for layer, layer_name in zip(layers, names, strict=True)}
    nodes = []
    for layer, layer_name in zip(layers, names, strict=True):
        more: dict[str, object] = {"name": layer_name, "type": layer.primitive.name}
        if layer.options.get("inputs"):
            more["inputs"] = [_input_name(item, name_of, layer) for item in layer.options["inputs"]]
        lent = layer.options.get("weights_of")
        if isinstance(lent, Mapping):
            more["weights_of"] = {key: _input_name(item, name_of, layer) for key, item in lent.items()}
        elif lent is not None:
            more["weights_of"] = _input_name(lent, name_of, layer)
        nodes.append(layer.node(**more))
    terms = [_loss_node(item, name_of) for item in losses]
    top: dict[str, object] = {
        "name": name,
        "description": description,
        "source": source,
        **_inputs(input, classes),
        "dataset": str(Path(dataset).absolute()) if dataset.endswith(OWN_DATA) else dataset,
        **({"loss": terms[0]} if len(terms) == 1 else {"losses": terms}),
        "optimizer": optimizer.node(name=optimizer.primitive.name),
        "batch": batch,
        "dtype": dtype,
        "layout": layout,
        "variant": variant,
        **({"frozen_weights": frozen_weights} if frozen_weights is not None else {}),
        "train": train if isinstance(train, str) else list(train),
        "layers": nodes,
    }
    return _checked(node_of(top, file, line))


def _inputs(given: Sequence[int] | Mapping[str, Any], classes: int) -> dict[str, object]:
    if not isinstance(given, Mapping):
        return {"input": {"shape": list(given), **({"classes": classes} if classes else {})}}
    shaped = {
        name: dict(item) if isinstance(item, Mapping) else {"shape": item} for name, item in given.items()
    }
    return {"inputs": {name: {**item, "shape": list(item.get("shape", ()))} for name, item in shaped.items()}}


def _loss_node(loss: Loss, known: Mapping[int, str]) -> Node:
    layers = {
        key: _input_name(loss.options[key], known, loss) for key in ("of", "target") if key in loss.options
    }
    return loss.node(name=loss.primitive.name, **layers)


def _input_name(item: object, known: Mapping[int, str], layer: Layer | Loss) -> object:
    if not isinstance(item, Layer):
        return item
    if id(item) not in known:
        raise InputError(
            f"{layer!r} reads {item!r}, which is not an earlier layer",
            where=layer.where,
            cure=f"put {item!r} before {layer!r} in the network",
        )
    return known[id(item)]


def _names(layers: Sequence[Layer]) -> list[str]:
    """The names given, and for layers without one the type and the next free number."""
    taken = {str(layer.options["name"]) for layer in layers if layer.options.get("name")}
    counts: dict[str, int] = {}
    names = []
    for layer in layers:
        given = layer.options.get("name")
        kind = layer.primitive.name
        while not given:
            counts[kind] = counts.get(kind, 0) + 1
            candidate = f"{kind}{counts[kind]}"
            given = candidate if candidate not in taken else None
        names.append(str(given))
    return names


def _checked(tree: Node) -> Model:
    spec = read_model(tree, check_options)
    return Model(spec, tree, build_training_phases(spec).mini_batch, ModelSource(spec))
