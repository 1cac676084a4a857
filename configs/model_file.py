# SPDX-License-Identifier: Apache-2.0
"""Model files: a network, its input, loss and optimizer, as frozen dataclasses that remember their lines.

What a layer, a loss or an optimizer may say beyond the keys all of them share is the business of its
primitive, which checks the remembered YAML node against a schema of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from configs.errors import ConfigError, shortened
from configs.library import open_config
from configs.problems import Problems
from configs.schema import ALLOWED, MODEL_NAME, NAME, Schema, validate
from configs.suggest import suggestion
from configs.values import Struct, replace
from configs.yaml_file import Node

_Positive = Annotated[int, Field(ge=1)]
_Name = Annotated[str, Field(pattern=NAME)]
_ChannelRange = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=2, max_length=2)]


class LayerSchema(Schema):
    """Keys every layer may have; a primitive's schema adds its options."""

    name: _Name
    """Its name in tables and pictures: letters, digits and _."""
    type: str
    """Type of the layer (`pulptrain list primitives`)."""
    inputs: list[str] | None = None
    """Layers it reads (default: the previous layer). `input` is the network's input, `split.1` the second
    output of the layer `split`."""
    dtype: str | None = None
    """Number format (default: that of the model)."""
    layout: str | None = None
    """CHW or HWC (default: that of the model)."""
    trainable: bool | list[str] = True
    """`false` freezes its parameters, a list trains those parameters only (`[bias]`)."""
    update_channels: _Positive | _ChannelRange | None = None
    """Output channels to train: the first k, or [first, last) without last (default: all)."""
    adapter: object = None
    """`{rank, alpha}` freezes the layer and adds a trained product of two small matrices (LoRA)."""
    frozen_weights: Literal["int8"] | None = None
    """`int8` stores its frozen weights as 8-bit integers with a scale per output channel; they are converted
    to `dtype` in L1 (default: that of the model)."""
    recompute: bool = False
    """Recompute the layer for the backward pass instead of storing its output."""
    backward_reads: Literal["input", "output", "mask"] | None = None
    """Tensor from which the layer computes its input gradient: its input, its output, or a mask of one byte
    per element (default: the choice that stores the fewest bytes; docs/memory.md)."""
    variant: str | None = None
    """Implementation; `as-published` is that of PULP-TrainLib (default: that of the model)."""
    weights_of: str | dict[str, str] | None = None
    """Earlier layer whose parameters it shares: all (`weights_of: one`), or some by name. `{weight: table}`
    uses the weight of layer `table`, `{weight: cell.wh}` the parameter `wh` of layer `cell`. Gradients of all
    uses are summed; a use with `trainable: false` adds none. `{weight: product.out}` uses the output of the
    earlier layer `product` as weight, and the gradient flows back through that layer; its output must have
    one sample, whatever the batch (see `once` of `parameter`). Layers that share running statistics update
    them in the order of the layers."""


class AdapterSchema(Schema):
    """A low-rank adapter (LoRA): W x + alpha / rank · B A x."""

    rank: _Positive
    """Rank of the product B A: rows of A, columns of B."""
    alpha: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """The product is multiplied by alpha / rank (default: alpha = rank, a factor of 1)."""
    projections: Annotated[list[Literal["q", "k", "v", "o"]], Field(min_length=1)] | None = None
    """Only for `mhsa`: projections with an adapter, of queries, keys, values, output (default: all four)."""


LAYER_KEYS = tuple(LayerSchema.model_fields)
"""Keys of a layer that are not options of its primitive."""


class LossSchema(Schema):
    """Keys every loss has; a primitive's schema adds its options."""

    name: str
    """Primitive of the loss or optimizer."""
    weight: Annotated[float, Field(gt=0)] = 1.0
    """Factor of the loss and its gradient."""
    reduction: Literal["mean", "sum", "batchmean"] = "mean"
    """Reduction of the terms to one number; batchmean: their sum / the number of samples."""


class TermSchema(Schema):
    """What a loss, whichever it is, is of."""

    of: str | None = None
    """Layer whose output the loss reads (default: the last)."""
    target: str | None = None
    """Layer whose output is the label, without a gradient (distillation)."""
    label: _Name | None = None
    """Name of the labels; losses can share one (default: `label`, for the second loss `label_2` ...)."""


TERM_KEYS = tuple(TermSchema.model_fields)
"""Keys of a loss that are not options of its primitive."""


class OptimizerSchema(Schema):
    """Keys every optimizer has; a primitive's schema adds its options."""

    name: str
    """Primitive of the loss or optimizer."""
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    """Step size; with a schedule: the step size from which it starts or which it multiplies."""
    maximize: bool = False
    """Ascend the gradient instead of descending."""
    state_dtype: Literal["fp32", "fp16", "bf16"] = "fp32"
    """Number format of the optimizer states."""


class AdapterSpec(Struct, frozen=True):
    """A low-rank adapter beside a frozen layer; its product is scaled by `alpha` / `rank`."""

    rank: int
    alpha: float
    projections: tuple[str, ...] = ()
    """Of attention; () stands for all."""

    @property
    def tree(self) -> dict[str, Any]:
        """As a model file has it."""
        said = {"rank": self.rank, "alpha": self.alpha}
        return said | ({"projections": list(self.projections)} if self.projections else {})


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One layer as written: name, type and options, not yet checked against its primitive.

    `inputs` are names of layers, None for the layer before. `where` is ``file:line`` of the layer, for errors
    that show only when shapes are known; `node` is its YAML, if it comes from a file. `trainable` is True,
    False, or the names of the parameters that are trained; `variant` a name of its primitive's variants, None
    for that of the model. `update_channels` is [first, last) of the output
    channels that are trained, None for all. `weights_of` is a layer, or ``layer`` or ``layer.parameter`` by
    parameter.
    """

    name: str
    type: str
    attributes: Mapping[str, Any]
    where: str
    inputs: tuple[str, ...] | None = None
    dtype: str | None = None
    layout: str | None = None
    trainable: bool | tuple[str, ...] = True
    update_channels: tuple[int, int] | None = None
    adapter: AdapterSpec | None = None
    frozen_weights: str | None = None
    recompute: bool = False
    backward_reads: str | None = None
    variant: str | None = None
    weights_of: str | Mapping[str, str] | None = None
    node: Node | None = field(default=None, compare=False, repr=False)

    @property
    def computed(self) -> dict[str, str]:
        """Its parameters that are the output of another layer, by name: ``layer.out``."""
        words = self.weights_of if isinstance(self.weights_of, Mapping) else {}
        return {name: word for name, word in words.items() if word.rpartition(".")[2].startswith("out")}

    @property
    def layers_read(self) -> frozenset[str]:
        """The layers, or inputs, whose outputs it reads, as far as it names them."""
        return frozenset(word.partition(".")[0] for word in (*(self.inputs or ()), *self.computed.values()))


@dataclass(frozen=True, slots=True)
class LossSpec:
    """A loss as written: name and options, and what `TermSchema` says of it."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    where: str = ""
    node: Node | None = field(default=None, compare=False, repr=False)
    of: str | None = None
    target: str | None = None
    label: str | None = None


@dataclass(frozen=True, slots=True)
class OptimizerSpec:
    """Optimizer as written: name (sgd) and options, its learning rate among them."""

    name: str
    options: Mapping[str, Any]
    where: str
    node: Node | None = field(default=None, compare=False, repr=False)


class InputSpec(Struct, frozen=True):
    """An input: shape of one sample, (C, H, W), (L, C) or (C,); `classes` > 0: integers below it (words)."""

    name: str
    shape: tuple[int, ...]
    classes: int = 0


class ModelSpec(Struct, frozen=True):
    """A model file: the first input and the first loss, and those beside them; `batch` samples of each.

    `dataset` is one of `DATASETS` or the path of a file; `source` cites where the network comes from. `dtype`
    (a word of `configs.dtypes`), `layout` (CHW, HWC) and `variant` (default, as-published) hold for
    layers that do not say otherwise. `where` is ``file:line`` of the file.
    `train` names the layers that are
    trained, all others being frozen; ``last`` stands for the last layer with parameters, None for all.
    `homes` are memory levels by tensor, where the planner is not to choose; by op, `streams` are tensors that
    it streams and `slot_bytes` the most bytes of L2 it streams through.
    """

    name: str
    description: str
    source: str
    input_shape: tuple[int, ...]
    dataset: str
    loss: LossSpec
    optimizer: OptimizerSpec
    batch: int
    layers: tuple[LayerSpec, ...]
    where: str
    dtype: str = "fp32"
    layout: str = "CHW"
    input_classes: int = 0
    frozen_weights: str | None = None
    train: str | tuple[str, ...] | None = None
    variant: str = "default"
    steps: tuple[str, ...] = ()
    input_name: str = "input"
    more_inputs: tuple[InputSpec, ...] = ()
    more_losses: tuple[LossSpec, ...] = ()
    homes: Mapping[str, str] = {}
    streams: Mapping[str, tuple[str, ...]] = {}
    slot_bytes: Mapping[str, int] = {}

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """All inputs."""
        return (InputSpec(self.input_name, self.input_shape, self.input_classes), *self.more_inputs)

    @property
    def losses(self) -> tuple[LossSpec, ...]:
        """All losses, each with the name of its labels; their sum is what is trained."""
        return tuple(
            loss if loss.label or loss.target else replace(loss, label=_numbered("label", number))
            for number, loss in enumerate((self.loss, *self.more_losses), start=1)
        )


def _numbered(word: str, number: int) -> str:
    return word if number == 1 else f"{word}_{number}"


TRAIN_WORDS = ("all", "last")
"""What `train` may be besides a list of layers."""

OWN_DATA = ".npz"
"""Ending of a file of samples of the user's own."""

DATASETS: Mapping[str, tuple[int, ...] | None] = {"digits": (1, 8, 8), "sequences": None, "random": None}
"""Data sets a model may ask for, and the input shape each one brings (None: any)."""


class InputSchema(Schema):
    """The input of the network."""

    shape: Annotated[list[_Positive], Field(min_length=1, max_length=4, examples=["[3, 32, 32]"])]
    """Shape of one sample: [channels, rows, columns], [length, features] or [features]; for a `conv1d`:
    [channels, length]."""
    classes: Annotated[int, Field(ge=0)] = 0
    """Above 0: the input holds integers below this number (for an `embedding`)."""


class ModelSchema(Schema):
    """A model file: a network, its input, its loss and its optimizer."""

    either: ClassVar[Mapping[str, str]] = {"input": "inputs", "loss": "losses"}

    name: Annotated[str, Field(pattern=MODEL_NAME)]
    """Name in tables, pictures and folders."""
    description: str = ""
    """Description in one sentence."""
    source: str = ""
    """Source of the model; required for models of pulptrain."""
    input: object = Field(None, examples=["{shape: [3, 32, 32]}"])
    """`{shape: [...]}` of one sample, without the batch. Either `input` or `inputs` is required."""
    inputs: object = Field(None)
    """Several inputs by name, which layers name in their `inputs`: `{left: {shape: ...}, right: ...}`."""
    dataset: str = "random"
    """Source of samples and labels: `random` and `sequences` are synthetic, `digits` are 8x8 images; or
    the path of an .npz file with arrays x and y (and x_test, y_test). If there are several inputs or labels,
    the arrays have their names."""
    loss: object = Field(None, examples=["cross_entropy"])
    """Name of a loss, or `{name: ..., options}`. Either `loss` or `losses` is required."""
    losses: object = Field(None)
    """A list of losses, each as `loss` is; the network is trained on their sum."""
    optimizer: object = Field(examples=["{name: sgd, learning_rate: 0.01}"])
    """`{name: ..., learning_rate: ..., options}`."""
    batch: _Positive = 1
    """Samples per mini-batch."""
    dtype: str = "fp32"
    """Number format of layers without one."""
    layout: str = "CHW"
    """Order of the axes of images: CHW or HWC."""
    variant: Literal["default", "as-published"] = "default"
    """`as-published` computes all layers as PULP-TrainLib does."""
    frozen_weights: Literal["int8"] | None = None
    """`int8` stores frozen weights as 8-bit integers, in all layers that can."""
    train: str | list[str] = "all"
    """Layers to train (all others are frozen): `all`, `last` (the last with parameters), or a list."""
    # Pydantic looks at the signatures of factories: that of `list` is text, which takes a tokenizer 5 ms.
    recompute: list[str] = Field(default_factory=lambda: [])
    """Layers to recompute for the backward pass instead of storing them."""
    homes: dict[str, Literal["l2", "l3", "streamed"]] = Field(default_factory=lambda: {})
    """Memory that holds a tensor: `{conv1.out: l3}`; `"*"` are all others. ``--home`` overrides it."""
    streams: dict[str, list[str]] = Field(default_factory=lambda: {})
    """Tensors that an op streams between L3 and L1, without a copy in L2: `{fc.UPD: [fc.weight]}`."""
    slot_bytes: dict[str, _Positive] = Field(default_factory=lambda: {})
    """Limit on the L2 buffers (slots) of an op whose tensors are streamed from L3: `{fc.UPD: 8192}`."""
    layers: Annotated[list[object], Field(min_length=1)]
    """The layers, in order: `{name: ..., type: ..., options}`."""


Check = Callable[[ModelSpec], None]
"""Looks at what layers, loss and optimizer say, and raises; `trainlib.training.options.check_options` is the
one."""


def load_model(name_or_path: str | Path, check: Check | None = None) -> ModelSpec:
    """Load a model by installed name or by the path of a YAML file.

    Raises `ConfigError` with ``file:line`` for unknown, missing or duplicate keys, unknown data sets and
    values out of range, and what `check` raises for the options of layers, loss and optimizer: their schemas
    are their primitives', of which this room knows nothing.
    """
    return read_model(open_config("models", name_or_path), check)


def read_model(node: Node, check: Check | None = None) -> ModelSpec:
    """The model a YAML tree describes. Raises as `load_model`."""
    problems = Problems()
    spec = _model(node, problems)
    if check is not None:
        problems.of(check, spec)
    problems.refuse()
    return spec


_NO_HEADER = ModelSchema.model_construct(name="", optimizer=None, layers=[], dataset="random")
_NO_INPUT = InputSpec("input", (1,))
_NO_LOSS = LossSpec("mse")
_NO_OPTIMIZER = OptimizerSpec("sgd", {"learning_rate": 1.0}, "")
"""They stand for what is wrong and noted, so that the rest can be looked at; no one gets to see them."""


def _model(node: Node, problems: Problems) -> ModelSpec:
    """The model of the tree; what is wrong is noted in `problems`, and left out of it."""
    header = problems.of(validate, ModelSchema, node, "the model") or _NO_HEADER
    top = node.mapping("the model")
    if "dataset" in top:
        problems.of(_check_dataset, top["dataset"])
    first, *inputs = problems.of(_inputs, top, header.dataset) or (_NO_INPUT,)
    loss, *losses = problems.of(_losses, top) or (_NO_LOSS,)
    layers = _layers(top["layers"], problems) if "layers" in top and top["layers"].is_sequence else ()
    whole = "layers" in top and top["layers"].is_sequence and len(layers) == len(top["layers"].sequence(""))
    if "recompute" in top and top["recompute"].is_sequence and whole:
        chosen = problems.of(_layer_names, top["recompute"], layers) or ()
        layers = tuple(replace(layer, recompute=layer.recompute or layer.name in chosen) for layer in layers)
    spec = ModelSpec(
        name=header.name,
        description=header.description,
        source=header.source,
        input_shape=first.shape,
        dataset=header.dataset,
        loss=loss,
        optimizer=(problems.of(_optimizer, top["optimizer"]) if "optimizer" in top else None)
        or _NO_OPTIMIZER,
        batch=header.batch,
        layers=layers,
        where=node.where,
        dtype=header.dtype,
        layout=header.layout,
        input_classes=first.classes,
        frozen_weights=header.frozen_weights,
        train=problems.of(_train, top["train"], layers) if "train" in top and whole else None,
        variant=header.variant,
        input_name=first.name,
        more_inputs=tuple(inputs),
        more_losses=tuple(losses),
        homes=header.homes,
        streams={op: tuple(names) for op, names in header.streams.items()},
        slot_bytes=header.slot_bytes,
    )
    problems.of(_check_names, spec)
    return spec


def _check_names(spec: ModelSpec) -> None:
    """Inputs, layers and labels are told apart by their names; a data set that ships has one of each."""
    inputs = {item.name for item in spec.inputs}
    labels = {loss.label: loss.where or spec.where for loss in spec.losses if loss.label is not None}
    named = [(f"layer '{layer.name}'", layer.name, layer.where) for layer in spec.layers]
    for what, name, where in (*named, *((f"label '{name}'", name, where) for name, where in labels.items())):
        if name in inputs:
            raise ConfigError(
                f"{what} and an input of the model have the same name",
                where=where,
                cure="rename one of the two",
            )
    if spec.dataset in DATASETS and spec.dataset != "random" and max(len(inputs), len(labels)) > 1:
        raise ConfigError(
            f"the data set '{spec.dataset}' has one input and one label, but the model has "
            f"{len(inputs)} inputs and {len(labels)} labels",
            where=spec.where,
            cure=f"use dataset: random, or the path of an {OWN_DATA} file with one array for each",
        )


def _check_dataset(node: Node) -> None:
    if not str(node.value).endswith(OWN_DATA):
        _check_word(node, "dataset", (*DATASETS, f"the path of an {OWN_DATA} file"))


def _layer_names(node: Node, layers: Sequence[LayerSpec]) -> tuple[str, ...]:
    """A list of layer names; ConfigError at the line of one that is no layer."""
    names = [layer.name for layer in layers]
    for item in node.sequence("the list of layers"):
        if item.value not in names:
            raise item.error(f"unknown layer '{item.value}'", suggestion(str(item.value), names))
    return tuple(node.plain())


def _train(node: Node, layers: Sequence[LayerSpec]) -> str | tuple[str, ...] | None:
    """Which layers are trained: a word of `TRAIN_WORDS`, or a list of layers."""
    if not node.is_sequence:
        _check_word(node, "word for 'train'", TRAIN_WORDS)
        return None if node.value == "all" else str(node.value)
    names = _layer_names(node, layers)
    for layer in layers:
        if layer.name in names and layer.trainable is False:
            raise ConfigError(
                f"'train' lists layer {layer.name!r}, but the layer has 'trainable: false'",
                where=layer.where,
                cure="remove 'trainable: false', or the layer from 'train'",
            )
    return names


def _check_word(node: Node, what: str, known: tuple[str, ...]) -> None:
    if node.value not in known:
        raise node.error(f"unknown {what} '{node.value}'", suggestion(str(node.value), known))


def _inputs(top: Mapping[str, Node], dataset: str) -> tuple[InputSpec, ...]:
    if "inputs" not in top:
        return (_input("input", top["input"], "'input'", dataset),) if "input" in top else (_NO_INPUT,)
    given = top["inputs"].mapping("'inputs'")
    for name, node in given.items():
        if not re.fullmatch(NAME, name):
            raise node.error(f"'{name}' is not a valid name", f"use only {ALLOWED[NAME]}")
    if not given:
        raise top["inputs"].error("'inputs' is empty", "write e.g. inputs: {image: {shape: [3, 32, 32]}}")
    return tuple(_input(name, node, f"input '{name}'", dataset) for name, node in given.items())


def _input(name: str, node: Node, what: str, dataset: str) -> InputSpec:
    checked = validate(InputSchema, node, what)
    shape = tuple(checked.shape)
    where = node.mapping(what)["shape"].where
    needed = DATASETS.get(dataset)
    if needed is not None and shape != needed:
        raise ConfigError(
            f"the data set '{dataset}' has inputs of shape {list(needed)}, but the model has {list(shape)}",
            where=where,
            cure=f"use shape: {list(needed)}, or dataset: random",
        )
    return InputSpec(name, shape, checked.classes)


def _losses(top: Mapping[str, Node]) -> tuple[LossSpec, ...]:
    if "losses" not in top:
        return (_loss(top["loss"], "'loss'"),) if "loss" in top else (_NO_LOSS,)
    given = top["losses"].sequence("'losses'")
    if not given:
        raise top["losses"].error("'losses' is empty", "write e.g. losses: [mse]")
    return tuple(_loss(node, f"loss {number}") for number, node in enumerate(given, start=1))


def _loss(node: Node, what: str) -> LossSpec:
    """``loss: mse``, or a mapping with its name, what it is of, and options."""
    if isinstance(node.value, str):
        return LossSpec(node.value, {}, node.where)
    children = node.mapping(what)
    said = {key: child for key, child in children.items() if key in TERM_KEYS}
    term = validate(TermSchema, Node(said, node.file, node.line), what)
    if term.target is not None and term.label is not None:
        raise said["label"].error(f"{what} has both a 'target' and a 'label'", "use one of the two")
    of_loss = Node({key: child for key, child in children.items() if key not in said}, node.file, node.line)
    name, options = _name_and_options(of_loss, what)
    return LossSpec(name, options, node.where, of_loss, **term.model_dump())


def _optimizer(node: Node) -> OptimizerSpec:
    if isinstance(node.value, str):
        cure = f"write {{name: {shortened(node.value)}, learning_rate: 0.01}}"
        raise node.error("'optimizer' has no 'learning_rate'", cure)
    name, options = _name_and_options(node, "'optimizer'")
    return OptimizerSpec(name, options, node.where, node)


def _name_and_options(node: Node, what: str) -> tuple[str, dict[str, Any]]:
    children = node.mapping(what)
    name = _text(children, "name", what, node)
    return name, {key: child.plain() for key, child in children.items() if key != "name"}


def _text(children: Mapping[str, Node], key: str, what: str, parent: Node) -> str:
    if key not in children:
        raise parent.error(f"{what} has no '{key}'", f"add '{key}: ...'")
    child = children[key]
    if not isinstance(child.value, str):
        raise child.error(f"'{key}' of {what} must be a word, not {child.kind}", f"write {key}: WORD")
    return child.value


def _layers(node: Node, problems: Problems) -> tuple[LayerSpec, ...]:
    layers: list[LayerSpec] = []
    lines: dict[str, int] = {}
    for number, item in enumerate(node.sequence("'layers'"), start=1):
        layer = problems.of(_layer, item, number)
        if layer is None:
            continue
        if layer.name in lines:
            problems.note(
                ConfigError(
                    f"two layers have the name '{layer.name}', the first in line {lines[layer.name]}",
                    where=layer.where,
                    cure="rename one of the two",
                )
            )
        lines[layer.name] = item.line
        layers.append(layer)
    return tuple(layers)


def _layer(item: Node, number: int) -> LayerSpec:
    children = item.mapping(f"layer {number}")
    name = _text(children, "name", f"layer {number}", item)
    kind = _text(children, "type", f"layer {number}", item)
    options = {key: child.plain() for key, child in children.items() if key not in LAYER_KEYS}
    what = f"layer '{name}' ({kind})"
    shared = {key: child for key, child in children.items() if key in LAYER_KEYS}
    common = validate(LayerSchema, Node(shared, item.file, item.line), what)
    return LayerSpec(
        name=name,
        type=kind,
        attributes=options,
        where=item.where,
        inputs=tuple(common.inputs) if common.inputs is not None else None,
        dtype=common.dtype,
        layout=common.layout,
        trainable=common.trainable if isinstance(common.trainable, bool) else tuple(common.trainable),
        update_channels=_channels(children, common.update_channels),
        adapter=_adapter(children["adapter"], what) if "adapter" in children else None,
        frozen_weights=common.frozen_weights,
        recompute=common.recompute,
        backward_reads=common.backward_reads,
        variant=common.variant,
        weights_of=common.weights_of,
        node=item,
    )


def _channels(children: Mapping[str, Node], given: int | list[int] | None) -> tuple[int, int] | None:
    if given is None:
        return None
    first, last = (0, given) if isinstance(given, int) else given
    if first >= last:
        raise children["update_channels"].error(
            f"the range of channels [{first}, {last}) is empty",
            "use [first, last] with first < last, or the number of leading channels",
        )
    return first, last


def _adapter(node: Node, what: str) -> AdapterSpec:
    adapter = validate(AdapterSchema, node, f"adapter of {what}")
    return adapter_spec(adapter)


def adapter_spec(said: AdapterSchema) -> AdapterSpec:
    """What an adapter says, defaults filled in."""
    return AdapterSpec(said.rank, float(said.alpha or said.rank), tuple(said.projections or ()))
