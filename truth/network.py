# SPDX-License-Identifier: Apache-2.0
"""The network a given model describes: layers in order, adapters written out, and what is trained of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from configs.dtypes import BY_WORD, is_narrow
from configs.values import Struct, replace
from truth.layers import LAYERS, Layer, low_rank_names
from truth.source import Given
from truth.steps import LOSSES, OPTIMIZERS

LAYER_KEYS = (
    "name",
    "type",
    "inputs",
    "dtype",
    "layout",
    "trainable",
    "update_channels",
    "adapter",
    "frozen_weights",
    "recompute",
    "backward_reads",
    "variant",
    "weights_of",
)
"""Keys of a layer that are no options of its type."""

ADAPTED = {"linear": ("out_features", "linear"), "conv2d": ("out_channels", "pointwise")}
ADAPTED["pointwise"] = ADAPTED["conv2d"]
"""Types that can have an adapter: the option that says how many channels they make, and the second factor's
type."""

WEIGHTS: dict[str, tuple[str, ...]] = dict.fromkeys(
    ("linear", "pointwise", "conv1d", "conv2d", "depthwise"), ("weight",)
)
WEIGHTS["mhsa"] = ("wq", "wk", "wv", "wo")
"""Types whose weights may be stored as 8-bit integers while they are frozen."""

SCALE = ".scale"

AS_PUBLISHED = "as-published"

Channels = tuple[int, int]


class NetworkLayer(Struct, frozen=True):
    """A layer of the network, or one of those an adapter is made of; `inputs` are (layer, number of output).

    `trainable` is True, False or the names of parameters; `channels` are the output channels trained.
    """

    name: str
    type: str
    options: Mapping[str, Any]
    inputs: tuple[tuple[str, int], ...]
    dtype: str
    layout: str
    trainable: bool | tuple[str, ...] = True
    channels: Channels | None = None
    borrowed: Mapping[str, str] = {}
    """End of a parameter's name -> the other layer's parameter that it is."""
    computed: Mapping[str, tuple[str, int]] = {}
    """End of a parameter's name -> the layer that makes it, and the number of its output."""
    in_bytes: bool = False
    """Whether its frozen weights are stored as 8-bit integers."""

    @property
    def entry(self) -> Layer:
        """What its type is in PyTorch."""
        return LAYERS[self.type]

    def names(self, ends: Iterable[str]) -> tuple[str, ...]:
        """Tensors of this layer by the ends of their names."""
        return tuple(f"{self.name}.{end}" for end in ends)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Parameters it reads, trained or not, by tensor name."""
        return tuple(self.places.values())

    @property
    def places(self) -> Mapping[str, str]:
        """The same, by the ends of the names that they have in this layer."""
        ends = self.entry.parameters(self.options)
        return {end: self.borrowed.get(end, f"{self.name}.{end}") for end in ends if end not in self.computed}

    @property
    def stored(self) -> tuple[str, ...]:
        """The ends of the names of its weights that are 8-bit integers, with scales beside them."""
        own = [end for end in self.places if end not in self.borrowed and not self.trains(end)]
        return tuple(end for end in own if self.in_bytes and end in WEIGHTS.get(self.type, ()))

    @property
    def statistics(self) -> Mapping[str, str]:
        """The running statistics it moves, by their ends."""
        ends = self.entry.buffers(self.options)
        return {end: self.borrowed.get(end, f"{self.name}.{end}") for end in ends}

    @property
    def buffers(self) -> tuple[str, ...]:
        """Running statistics of its own."""
        return self.names(self.statistics.keys() - self.borrowed)

    @property
    def inputs_first(self) -> bool:
        """Whether its weight is stored [inputs, outputs]: of images HWC, in fp32."""
        return self.type == "pointwise" and self.layout == "HWC" and not is_narrow(self.dtype)

    def trains(self, end: str) -> bool:
        """Whether it asks that the parameter which it calls so is trained."""
        wanted = self.trainable if isinstance(self.trainable, bool) else end in self.trainable
        return wanted and end not in self.entry.constants and not self.options.get("integers")


@dataclass(slots=True)
class Network:
    """All parts in order; `last` is the name of the layer whose output the loss takes."""

    given: Given
    parts: list[NetworkLayer] = field(default_factory=list)
    output: tuple[str, int] = ("input", 0)
    last: str = ""
    _stands_for: dict[str, str] = field(default_factory=dict)
    """Layer of the model -> the part that makes its output."""

    def __post_init__(self) -> None:
        before = self.given.inputs[0].name if self.given.inputs else ""
        self.output, self.last = (before, 0), self.given.alone
        train = self.given.tree.get("train", "all")
        layers = list(self.given.tree["layers"])
        if train == "last":
            train = [[layer["name"] for layer in layers if self._has_own(layer)][-1]]
        for layer in layers:
            self._add(layer if train == "all" or layer["name"] in train else self._frozen(layer, train))
            self.last = layer["name"]

    def _has_own(self, layer: Mapping[str, Any]) -> bool:
        part = self._part(layer, ())
        return len(part.places) > len(part.borrowed)

    def _frozen(self, layer: Mapping[str, Any], train: Iterable[str]) -> Mapping[str, Any]:
        """A layer that is not among those trained; what it borrows of one of them still is."""
        part = self._part(layer, ())
        lent = [end for end, name in part.borrowed.items() if name.rpartition(".")[0] in train]
        lent += part.computed
        asked = layer.get("trainable", True)
        kept = [end for end in lent if (end in asked if isinstance(asked, list | tuple) else asked)]
        return {**layer, "trainable": kept, "adapter": None}

    def _add(self, layer: Mapping[str, Any]) -> None:
        said = layer.get("inputs")
        inputs = tuple(self.found(word) for word in said) if said is not None else (self.output,)
        if layer["type"] == "dropout" and self.given.inference:
            self._stands_for[layer["name"]] = inputs[0][0]
            self.output = inputs[0]
            return
        if layer.get("adapter") and layer["type"] == "mhsa":
            kept = layer.get("trainable", True) if self.given.alone else low_rank_names(layer["adapter"])
            options = {key: item for key, item in layer.items() if key != "adapter"}
            part = self._part({**options, "trainable": kept}, inputs)
            options = {**part.options, "adapter": layer["adapter"]}
            self.parts.append(replace(part, options=options))
        elif layer.get("adapter"):
            self._add_adapted(layer, inputs)
        else:
            self.parts.append(self._part(layer, inputs))
        self._stands_for[layer["name"]] = self.parts[-1].name
        self.output = (self.parts[-1].name, 0)

    def found(self, word: str) -> tuple[str, int]:
        """``split.1`` is the second output of a layer with several."""
        name, _, number = word.partition(".")
        return self._stands_for.get(name, name), int(number or 0)

    def _part(self, layer: Mapping[str, Any], inputs: tuple[tuple[str, int], ...]) -> NetworkLayer:
        tree = self.given.tree
        options = {key: value for key, value in layer.items() if key not in LAYER_KEYS}
        variant = layer.get("variant") or tree.get("variant", "default")
        if variant == AS_PUBLISHED and layer["type"] == "softmax":
            options.setdefault("exponential", "schraudolph")
        if self.given.inference and (layer["type"] == "batch_norm" or options.get("running")):
            options["fixed_statistics"] = True
        trainable = layer.get("trainable", True)
        channels = layer.get("update_channels")
        computed = self._computed(layer)
        return NetworkLayer(
            layer["name"],
            layer["type"],
            options,
            inputs,
            BY_WORD[layer.get("dtype") or tree.get("dtype", "fp32")].name,
            layer.get("layout") or tree.get("layout", "CHW"),
            trainable if isinstance(trainable, bool) else tuple(trainable),
            (0, channels) if isinstance(channels, int) else tuple(channels) if channels else None,
            self._borrowed(layer, options, computed),
            computed,
            (layer.get("frozen_weights") or tree.get("frozen_weights")) is not None,
        )

    def _borrowed(
        self, layer: Mapping[str, Any], options: Mapping[str, Any], computed: Mapping[str, tuple[str, int]]
    ) -> dict[str, str]:
        """What `weights_of` says but for what is computed, followed to the layer that has the parameter."""
        said = layer.get("weights_of")
        if isinstance(said, str):
            entry = LAYERS[layer["type"]]
            said = dict.fromkeys((*entry.parameters(options), *entry.buffers(options)), said)
        borrowed: dict[str, str] = {}
        for end, word in (said or {}).items():
            if end in computed:
                continue
            name, _, parameter = word.partition(".")
            owner = next((part for part in self.parts if part.name == name), None)
            whole = f"{name}.{parameter or end}"
            known = {**owner.places, **owner.statistics} if owner is not None else {}
            borrowed[end] = known.get(parameter or end, whole)
        return borrowed

    def _computed(self, layer: Mapping[str, Any]) -> dict[str, tuple[str, int]]:
        """The parameters that are what a layer makes of one sample: ``layer.out``, ``layer.out1``."""
        said = layer.get("weights_of")
        words = said.items() if isinstance(said, Mapping) else ()
        split = ((end, *word.rpartition(".")) for end, word in words)
        return {
            end: self.found(f"{name}.{kind.removeprefix('out')}")
            for end, name, _, kind in split
            if kind.startswith("out")
        }

    def _add_adapted(self, layer: Mapping[str, Any], inputs: tuple[tuple[str, int], ...]) -> None:
        """y = W x + alpha / rank · B A x: W frozen, A of the layer's own geometry, B 1x1."""
        name, adapter = layer["name"], layer["adapter"]
        count, kind = ADAPTED[layer["type"]]
        rank = adapter["rank"]
        alpha = adapter["alpha"] if adapter.get("alpha") is not None else rank
        shared = {key: layer[key] for key in ("dtype", "layout") if key in layer}
        straight = {key: value for key, value in layer.items() if key != "adapter"}
        down = {**straight, "name": f"{name}.down", count: rank}
        down |= {"bias": False} if "bias" in layer else {}
        self.parts.append(self._part({**straight, "trainable": False}, inputs))
        self.parts.append(self._part(down, inputs))
        if alpha != rank:
            factor = {"name": f"{name}.scale", "type": "scale", "factor": alpha / rank, **shared}
            self.parts.append(self._part(factor, ((f"{name}.down", 0),)))
        option = ADAPTED[kind][0]
        up = {"name": f"{name}.up", "type": kind, option: layer[count], **shared}
        self.parts.append(self._part(up, ((self.parts[-1].name, 0),)))
        total = {"name": f"{name}.sum", "type": "add", **shared}
        self.parts.append(self._part(total, ((name, 0), (f"{name}.up", 0))))

    @property
    def parameters(self) -> tuple[str, ...]:
        """All parameters, frozen ones included."""
        return tuple(dict.fromkeys(name for part in self.parts for name in part.parameters))

    @property
    def buffers(self) -> tuple[str, ...]:
        """All running statistics."""
        return tuple(name for part in self.parts for name in part.buffers)

    @property
    def masks(self) -> tuple[str, ...]:
        """All random masks."""
        return tuple(name for part in self.parts for name in part.names(part.entry.masks))

    def part_of(self, weight: str) -> tuple[slice, ...]:
        """The part of a parameter that is trained: all of it, or some output channels."""
        part = next((item for item in self.parts if weight in item.parameters), None)
        if part is None or part.channels is None:
            return (slice(None),)
        axis = 1 if part.inputs_first and weight.endswith(".weight") else 0
        return (*(slice(None),) * axis, slice(*part.channels))

    @property
    def updated(self) -> tuple[str, ...]:
        """The parameters that are trained, by the whole name of their tensor."""
        ends = ((part, end) for part in self.parts for end in part.places if end not in part.borrowed)
        trained = (part.places[end] for part, end in ends if part.trains(end))
        return (*self.given.weights, *trained)


def unknown(given: Given) -> tuple[str, ...]:
    """Types of layers, losses and optimizers of a model that have no entry here."""
    words = [layer["type"] for layer in given.tree["layers"] if layer["type"] not in LAYERS]
    words += [loss["name"] for loss in given.losses if loss["name"] not in LOSSES]
    said = given.optimizer.get("name")
    return tuple(dict.fromkeys([*words, *([said] if said and said not in OPTIMIZERS else [])]))
