# SPDX-License-Identifier: Apache-2.0
"""A network that grows layer by layer while another model is read, and what could not be read of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np

from configs.dtypes import INT32, DType, dtype_of
from configs.errors import PulptrainError, UnsupportedLayerError
from configs.model_file import InputSpec, LayerSpec, LossSpec, ModelSpec, OptimizerSpec
from configs.values import replace
from importers.graph.views import Shape, View
from importers.graph.weights import NOTHING, Constant, Given, WeightNumbers
from trainlib.ir.graph import Tensor
from trainlib.ir.parameters import PARAMETER_NAMES
from trainlib.ir.steps import Array
from trainlib.primitives.definition import LayerPlan, LayerPrimitive
from trainlib.registry import layer_primitive
from trainlib.training.options import layer_options

NO_FORM = "use other ops: `pulptrain list primitives` lists all layers"
"""The nearest form of what nothing here is near to."""

CHECKED = "correct the node so that onnx.checker.check_model(model, full_check=True) accepts the graph"
"""The cure of a node that is none of its op."""

LAYERS = "change the listed nodes; `pulptrain list primitives` lists all layers"
"""The cure of a graph with nodes that no layer is."""


RESERVED = ("input", "label", "loss")
"""Names of tensors that every network has."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What cannot be taken over: the node's name, its op, the shape of its result, why, and what can be."""

    name: str
    op: str
    shape: Shape | None
    reason: str
    nearest: str
    where: str = ""

    def __str__(self) -> str:
        shape = f" of shape {list(self.shape)}" if self.shape is not None else ""
        place = f", {self.where}" if self.where else ""
        return f"{self.name} ({self.op}{shape}{place}): {self.reason}; try: {self.nearest}"


class CannotTakeError(Exception):
    """Raised while one node is read; becomes a `Problem`. `nearest` is the form that can be taken."""

    def __init__(self, reason: str, nearest: str) -> None:
        super().__init__(reason)
        self.reason, self.nearest = reason, nearest


def refuse(problems: Sequence[Problem], what: str, where: str, cure: str) -> None:
    """Raise UnsupportedLayerError that lists all problems, if there are any."""
    if problems:
        lines = "".join(f"\n    {problem}" for problem in problems)
        raise UnsupportedLayerError(f"{len(problems)} {what}:{lines}", where=where, cure=cure)


def results_of(name: str, plan: LayerPlan, dtype: DType) -> list[Tensor]:
    """The tensors that a layer makes, by the words that name them."""
    return [
        Tensor(f"{name}.{number}" if number else name, result.shape, "activation", result.dtype or dtype)
        for number, result in enumerate(plan.results.values())
    ]


def planned(spec: LayerSpec, inputs: Sequence[Tensor]) -> tuple[LayerPrimitive, LayerPlan]:
    """The primitive of a layer, and its plan on these inputs. Raises `CannotTakeError` if it refuses."""
    try:
        primitive = layer_primitive(spec.type, spec.where)
        return primitive, primitive.plan(layer_options(spec, primitive), inputs, spec.where)
    except PulptrainError as error:
        cure = error.cure or f"use a form that `pulptrain show {spec.type}` lists"
        raise CannotTakeError(error.message, cure) from None


def model_name(text: str) -> str:
    """A name for a model: of letters, digits and dashes."""
    kept = "".join(letter if letter.isalnum() and letter.isascii() else "-" for letter in text).strip("-")
    return kept if kept and kept[0].isalnum() else "imported"


@dataclass
class Draft:
    """Layers so far, with the shapes of their outputs by the word that names them in ``inputs``."""

    where: str
    dtype: str = "float32"
    weights: WeightNumbers = NOTHING
    """Of the original."""
    inputs: list[str] = field(default_factory=list)
    """Words of what the network is fed, in the order of the original."""
    layers: list[LayerSpec] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    values: dict[str, Array] = field(default_factory=dict)
    """Start of weights and buffers by the name of our tensor."""
    sources: dict[str, Given] = field(default_factory=dict)
    """Where these are from, for those that are a rearranged part of one tensor of the original."""
    problems: list[Problem] = field(default_factory=list)
    log_probabilities: dict[str, int] = field(default_factory=dict)
    """Words of what log-softmaxes make -> elements whose exponentials have a sum of 1."""
    made: dict[tuple[Any, ...], View] = field(default_factory=dict)
    """Transposes and views that there are, by what they are of, and how."""
    _parameters: set[str] = field(default_factory=set)
    """Those of `values` that are no buffers."""
    _names: set[str] = field(default_factory=lambda: set(RESERVED))

    def free_name(self, wanted: str) -> str:
        """A name for a layer that no other has: letters, digits and underscores."""
        base = re.sub(r"[^A-Za-z0-9_]+", "_", wanted).strip("_") or "layer"
        base = base if base[0].isalpha() else f"layer{base}"
        name, number = base, 1
        while name in self._names:
            number += 1
            name = f"{base}_{number}"
        self._names.add(name)
        return name

    @property
    def first_input(self) -> str:
        """What says how many samples there are to layers that read nothing else of them."""
        return self.inputs[0] if self.inputs else "input"

    def feed(self, word: str, shape: Shape, dtype: str) -> View:
        """An input of the network."""
        self._names.add(word)
        self.tensors[word] = Tensor(word, shape, "input", dtype_of(dtype))
        return View.of(word, shape)

    def same_for_all(self, constant: Constant, name: str) -> View | None:
        """A constant [batch, ...] of samples that are all the same, as an activation; None for others."""
        first, batch = constant.value[:1], self.tensors[self.first_input].shape[0]
        if constant.trained or batch < 2 or constant.shape[:1] != (batch,) or (constant.value != first).any():
            return None
        sizes, held = list(constant.shape[1:]), {"w": constant.moved(lambda array: array[0])}
        return self.layer("parameter", name, (self.first_input,), {"shape": sizes}, held)[0]

    def one_sample(self, constant: Constant, name: str) -> View:
        """A weight or a constant as a tensor of one sample, which has no dimension for it; made once."""
        if constant.made is not None:
            return constant.made
        numbers = constant.value if constant.places is None else constant.places
        key = ("once", numbers.dtype, numbers.tobytes(), constant.shape)
        if key not in self.made:
            sizes = list(constant.shape) or [1]
            held = {"w": constant.moved(lambda array: array.reshape(sizes))}
            options = {"shape": sizes, "once": True}
            (made,) = self.layer("parameter", name, (self.first_input,), options, held)
            self.made[key] = replace(made, dims=made.dims[1 : 1 + len(constant.shape)])
        return self.made[key]

    def layer(
        self,
        kind: str,
        name: str,
        inputs: Sequence[str],
        options: Mapping[str, Any] | None = None,
        given: Mapping[str, Constant | None] | None = None,
        *,
        where: str = "",
        lent: Mapping[str, str] = MappingProxyType({}),
    ) -> tuple[View, ...]:
        """Add a layer that reads these words; `given` are start values by role of parameter or buffer.

        `lent` has the words of those parameters that layers compute.
        Options that say only the default are left out. Raises `CannotTakeError` where the layer refuses its
        options or shapes, or a start value has another shape than its parameter.
        """
        starts = {role: item for role, item in (given or {}).items() if item is not None}
        name = self.free_name(name)
        spec = LayerSpec(name, kind, options or {}, where or self.where, tuple(inputs))
        primitive, plan = planned(spec, [self.tensors[word] for word in inputs])
        for role, item in starts.items():
            tensor, stored = _tensor(name, role), plan.stored.get(role)
            if stored is None or item.shape != stored.shape:
                needed = f"has no {role}" if stored is None else f"needs {list(stored.shape)}"
                what = f"'{tensor}' has shape {list(item.shape)}, but the op {needed}"
                raise CannotTakeError(what, "store the weight in the shape that the op needs")
            if role in lent and role not in plan.parameters:
                raise CannotTakeError("running statistics depend on weights", "store statistics in a buffer")
            if role in lent:
                continue
            if role in plan.parameters:
                self._parameters.add(tensor)
            given_start = self.weights.as_start(item)
            whole = plan.stored[role].dtype == INT32
            self.values[tensor] = np.ascontiguousarray(item.value if whole else given_start.value)
            if given_start.source:
                self.sources[tensor] = given_start
        said = _without_defaults(primitive, spec.attributes)
        words = {PARAMETER_NAMES.get(role, role): _output_named(word) for role, word in lent.items()}
        trained = _trainable(primitive, plan, starts)
        self.layers.append(replace(spec, attributes=said, trainable=trained, weights_of=words or None))
        made = results_of(name, plan, dtype_of(self.dtype))
        self.tensors |= {tensor.name: tensor for tensor in made}
        return tuple(View.of(tensor.name, tensor.shape) for tensor in made)

    def model(
        self,
        name: str,
        losses: Sequence[LossSpec],
        optimizer: OptimizerSpec,
        classes: Callable[[str], int],
        description: str,
        source: str,
    ) -> ModelSpec:
        """The network so far as a model; `classes` bounds an input of integers."""
        first, *more = (
            InputSpec(word, fed.shape[1:], 0 if fed.dtype.is_float else classes(word))
            for word, fed in ((word, self.tensors[word]) for word in self.inputs)
        )
        return ModelSpec(
            name=name,
            description=description,
            source=source,
            input_shape=first.shape,
            dataset="random",
            loss=losses[0],
            optimizer=optimizer,
            batch=self.tensors[first.name].shape[0],
            layers=tuple(self.layers),
            where=self.where,
            dtype=dtype_of(self.dtype).word,
            input_classes=first.classes,
            input_name=first.name,
            more_inputs=tuple(more),
            more_losses=tuple(losses[1:]),
        )

    def smallest_table(self, word: str) -> int | None:
        """Rows of the smallest table that an input of integers is looked up in; None if there is no table."""
        tables = [layer for layer in self.layers if layer.type == "embedding"]
        read = [layer for layer in tables if layer.inputs and self.root(layer.inputs[0]) == word]
        used = tables if len(self.inputs) == 1 else read
        return min((int(layer.attributes["vocabulary"]) for layer in used), default=None)

    def start(self, layer: str, role: str) -> Array | None:
        """Where a parameter or buffer of a layer starts; None where nobody says it."""
        return self.values.get(_tensor(layer, role))

    def root(self, word: str) -> str:
        """The tensor a view is a view of: views of views are not made."""
        views = [layer for layer in self.layers if layer.type in ("flatten", "reshape")]
        source = {layer.name: layer.inputs[0] for layer in views if layer.inputs}
        while word in source:
            word = source[word]
        return word

    def refuse_problems(self, nodes: int) -> None:
        """Raise UnsupportedLayerError that lists everything that could not be taken over."""
        refuse(self.problems, f"of {nodes} operations are not supported", self.where, LAYERS)

    def share_weights(self) -> frozenset[str]:
        """A trained weight that several layers read belongs to the first; the others take it from there.

        Returns those of which they read parts, other orders, or first without training: they have to be read
        again as tensors that layers cut and turn (`Constant.made`).
        """
        taken = {
            tensor: self.weights.numbers(given)
            for tensor, given in self.sources.items()
            if given.places is not None
        }
        first: dict[tuple[bytes, Shape], str] = {}
        for tensor, numbers in list(taken.items()):
            key = (numbers.tobytes(), self.values[tensor].shape)
            owner = first.setdefault(key, tensor)
            if owner != tensor and self.sources[owner].trained and {owner, tensor} <= self._parameters:
                self.take_from(owner, tensor)
                del taken[tensor]
        most = int(self.weights.starts[-1])
        uses, trained = np.zeros(most, np.int64), np.zeros(most, bool)
        for tensor, numbers in taken.items():
            np.add.at(uses, numbers, 1)
            trained[numbers] |= self.sources[tensor].trained
        return frozenset(
            weight
            for weight, _, start, end in self.weights.ranges
            if ((uses[start:end] > 1) & trained[start:end]).any()
        )

    def take_from(self, owner: str, tensor: str) -> None:
        """The layer that has `tensor` reads `owner`, a parameter of a layer before it, instead."""
        name, _, parameter = tensor.partition(".")
        lender, _, theirs = owner.partition(".")
        index = next(index for index, layer in enumerate(self.layers) if layer.name == name)
        layer = self.layers[index]
        before = layer.weights_of if isinstance(layer.weights_of, Mapping) else {}
        lent = {**before, parameter: lender if parameter == theirs else owner}
        self.layers[index] = replace(layer, weights_of=lent)
        del self.values[tensor]
        self.sources.pop(tensor, None)

    def without_unused(self, *last: str) -> None:
        """Drop layers whose outputs lead to nothing but themselves; `last` are the words of the outputs."""
        used = {word.partition(".")[0] for word in last}
        kept: list[LayerSpec] = []
        for layer in reversed(self.layers):
            if layer.name in used:
                kept.append(layer)
                used |= layer.layers_read
        self.layers = kept[::-1]
        for tensor in [name for name in self.values if name.partition(".")[0] not in used]:
            del self.values[tensor]
            self.sources.pop(tensor, None)


def _output_named(word: str) -> str:
    """The tensor that a word names: ``split.1`` is ``split.out1``."""
    name, _, number = word.partition(".")
    return f"{name}.out{number}"


def _tensor(layer: str, role: str) -> str:
    return f"{layer}.{PARAMETER_NAMES.get(role, role)}"


def _without_defaults(primitive: LayerPrimitive, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options without those that say only the default."""
    fields = primitive.schema.model_fields
    return {key: value for key, value in options.items() if key not in fields or fields[key].default != value}


def _trainable(
    primitive: LayerPrimitive, plan: LayerPlan, starts: Mapping[str, Constant]
) -> bool | tuple[str, ...]:
    """Which parameters are trained, as a model file says it.

    Raises `CannotTakeError` where a step that trains a parameter cannot leave out one that is frozen.
    """
    roles = {role: item for role, item in starts.items() if role in plan.parameters}
    asked = {role for role, item in roles.items() if item.trained}
    for step in primitive.steps_of(plan):
        written = {role.rstrip("?").removeprefix("d") for role in step.writes}
        always = {role.removeprefix("d") for role in step.writes if not role.endswith("?")} & roles.keys()
        frozen = sorted(always - asked)
        if not step.forward and written & asked and frozen:
            names = ", ".join(PARAMETER_NAMES.get(role, role) for role in frozen)
            raise CannotTakeError(
                f"the layer freezes only some of its parameters ({names}), which is not supported",
                "train all parameters of the layer, or freeze all",
            )
    possible = {role for role, parameter in plan.parameters.items() if parameter.trainable}
    trained = tuple(PARAMETER_NAMES.get(role, role) for role in roles if role in asked & possible)
    return True if len(trained) == len(possible) else trained or False


def elements(shape: Sequence[int]) -> int:
    """Elements of a tensor."""
    return prod(shape)
