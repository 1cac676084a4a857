# SPDX-License-Identifier: Apache-2.0
"""A model of ours as an ONNX file, and the way back.

The file is a forward graph that any reader of ONNX can take, with the weights as initializers. Loss,
optimizer and whatever else ONNX has no word for lie in its metadata, as the text of the model file. On the
way back that text is believed only if it still makes the very graph that lies beside it; the weights are the
file's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from configs.dtypes import FP32, INT32
from configs.errors import InputError, UnsupportedLayerError
from configs.model_file import DATASETS, LayerSpec, ModelSpec, read_model
from configs.model_text import model_text
from configs.values import replace
from configs.yaml_file import parse_yaml
from importers.export import elements, layers
from importers.export.layer import Layer, OnnxDraft, Writer
from importers.extras import require_extra
from importers.graph.draft import CannotTakeError, Problem, refuse, results_of
from importers.graph.onnx_file import initializers_of, parsed
from importers.graph.onnx_graph import OnnxNode
from importers.graph.weights import WeightNumbers
from trainlib.ir.graph import Tensor
from trainlib.ir.parameters import PARAMETER_NAMES
from trainlib.ir.steps import Array
from trainlib.primitives.definition import AS_PUBLISHED, LayerPlan
from trainlib.registry import layer_primitive
from trainlib.training.built_layer import where_of
from trainlib.training.options import check_options, layer_options

if TYPE_CHECKING:
    import onnx

WRITERS: Mapping[str, Writer] = {**elements.WRITERS, **layers.WRITERS}
"""By layer type."""

OPSET = 21
"""Every onnx package that pulptrain takes knows it (`pyproject.toml`), and ONNX Runtime since 1.18."""

IR_VERSION = 10
"""That of opset 21."""

PRODUCER = "pulptrain"
"""Producer of what is written, at the start of the file."""

MODEL_KEY = "pulptrain.model"
"""Key of the metadata that holds the model file."""

MOST_BYTES = 2**31 - 1
"""What a protobuf message may have."""

Start = Callable[[str, tuple[int, ...]], Array]
"""(tensor, shape) -> what a weight or buffer is written with."""


@dataclass(frozen=True, slots=True)
class OwnModel:
    """What an ONNX file that pulptrain wrote says: `values` is None if its graph was changed since."""

    spec: ModelSpec
    values: Mapping[str, Array] | None


class _OtherGraphError(Exception):
    """The metadata are of a model that has more weights than the file."""


@dataclass(frozen=True, slots=True)
class _Graph:
    """The graph of a model: inputs and outputs with their shapes, and what lies between."""

    draft: OnnxDraft
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    @property
    def initializers(self) -> dict[str, Array]:
        return {**self.draft.weights, **self.draft.constants}


def onnx_bytes(spec: ModelSpec, values: Mapping[str, Array]) -> bytes:
    """The ONNX file of a model whose weights and buffers have these `values`, by tensor.

    Layers in training mode (dropout, batch norm) are written so: run elsewhere they do what they do here.
    Raises UnsupportedLayerError that lists every layer without a form in ONNX by name, type, shape and
    nearest form; InputError without the onnx package and for more than 2 GB.
    """
    require_extra("onnx", spec.where)
    import onnx
    from onnx import TensorProto, helper

    graph = _drafted(spec, lambda tensor, shape: np.asarray(values[tensor], np.float32).reshape(shape))
    kinds = {True: TensorProto.FLOAT, False: TensorProto.INT64}
    fed, given = (
        [
            helper.make_tensor_value_info(item.name, kinds[item.dtype.is_float], list(item.shape))
            for item in tensors
        ]
        for tensors in (graph.inputs, graph.outputs)
    )
    made = helper.make_graph(
        [_proto(node) for node in graph.draft.nodes],
        spec.name,
        fed,
        given,
        [
            onnx.numpy_helper.from_array(np.asarray(value, order="C"), name)
            for name, value in graph.initializers.items()
        ],
        doc_string=spec.description,
    )
    opsets = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(made, producer_name=PRODUCER, opset_imports=opsets, ir_version=IR_VERSION)
    helper.set_model_props(model, {MODEL_KEY: model_text(spec)})
    size_bytes = model.ByteSize()
    if size_bytes > MOST_BYTES:
        raise InputError(
            f"the ONNX file of the model would have {size_bytes:,} B, but the limit is {MOST_BYTES:,} B",
            where=spec.where,
            cure="use the YAML format: `pulptrain convert MODEL NAME.yaml` (weights go to NAME.npz)",
        )
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString(deterministic=True))


def read_own(path: str) -> OwnModel | None:
    """The model an ONNX file was written from; None for a file of others.

    Raises as `importers.graph.onnx_file.load_onnx`, and ConfigError for metadata that is no model file.
    """
    require_extra("onnx", path)
    model = parsed(Path(path))
    text = next((entry.value for entry in model.metadata_props if entry.key == MODEL_KEY), None)
    if text is None:
        return None
    spec = read_model(parse_yaml(text, path), check_options)
    _check_dataset(spec, path)
    given = initializers_of(model.graph, Path(path))
    most = sum(value.size for value in given.values())
    sizes: dict[str, tuple[int, ...]] = {}

    def places(tensor: str, shape: tuple[int, ...]) -> Array:
        first = sum(map(prod, sizes.values()))
        if first + prod(shape) > most:  # before memory is taken for what the metadata claims
            raise _OtherGraphError
        sizes[tensor] = shape
        return first + np.arange(prod(shape), dtype=np.int64).reshape(shape)

    try:
        graph = _drafted(spec, places)
    except (_OtherGraphError, UnsupportedLayerError):  # or a version that can write more than this one
        return OwnModel(spec, None)
    if not _is_same(graph, model.graph, given):
        return OwnModel(spec, None)
    numbers = WeightNumbers.of(sizes)
    flat = np.empty(numbers.starts[-1], np.float32)
    for name, places_of_it in graph.draft.weights.items():
        flat[places_of_it.ravel()] = given[name].ravel()
    return OwnModel(spec, {tensor: flat[numbers.places(tensor)] for tensor in sizes})


def _check_dataset(spec: ModelSpec, path: str) -> None:
    """Raise InputError for samples outside of the folder of the file: it may be anybody's."""
    folder = Path(path).resolve().parent
    if spec.dataset not in DATASETS and not (folder / spec.dataset).resolve().is_relative_to(folder):
        raise InputError(
            f"the samples of the model are in {spec.dataset!r}, outside the folder of the ONNX file",
            where=path,
            cure="convert to NAME.yaml, or move the samples to that folder and convert again",
        )


def _is_same(graph: _Graph, proto: onnx.GraphProto, given: Mapping[str, Array]) -> bool:
    """Whether a file has the nodes, constants and shapes that the model has, whatever its weights are."""
    ours, ends = graph.initializers, (*graph.inputs, *graph.outputs)
    shapes = [tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim) for value in proto.input]
    nodes = (proto.node, map(_proto, graph.draft.nodes))
    theirs, mine = ([node.SerializeToString(deterministic=True) for node in each] for each in nodes)
    return (
        given.keys() == ours.keys()
        and all(given[name].shape == ours[name].shape for name in ours)
        and all(np.array_equal(given[name], value) for name, value in graph.draft.constants.items())
        and all(given[name].dtype == np.float32 for name in graph.draft.weights)
        and theirs == mine
        and [value.name for value in (*proto.input, *proto.output)] == [tensor.name for tensor in ends]
        and shapes == [tensor.shape for tensor in graph.inputs]
    )


def _proto(node: OnnxNode) -> onnx.NodeProto:
    from onnx import helper

    return helper.make_node(node.op, list(node.inputs), list(node.outputs), name=node.name, **node.attributes)


def _drafted(spec: ModelSpec, start: Start) -> _Graph:
    """The graph of all layers. Raises UnsupportedLayerError that lists those without a form in ONNX."""
    draft, problems, owners = OnnxDraft(), [], _Owners(spec, start)
    fed = [
        Tensor(item.name, (spec.batch, *item.shape), "input", INT32 if item.classes else FP32)
        for item in spec.inputs
    ]
    tensors, before = {item.name: item for item in fed}, spec.input_name
    for layer in spec.layers:
        words = layer.inputs if layer.inputs is not None else (before,)
        primitive = layer_primitive(layer.type, where_of(layer))
        options = layer_options(layer, primitive)
        read = [tensors[_word(word)] for word in words]
        plan = primitive.plan(options, read, where_of(layer))
        results = results_of(layer.name, plan, FP32)
        tensors |= {item.name: item for item in results}
        before = layer.name
        try:
            _check_sayable(spec, layer)
            parameters = owners.of(layer, plan)
            site = Layer(
                draft,
                layer.name,
                layer.type,
                options,
                plan,
                [item.name for item in read],
                [item.shape for item in read],
                {role: owners.values[tensor] for role, tensor in parameters.items()},
                [item.name for item in results],
                results[0].shape,
                {role: owners.places[tensor] for role, tensor in parameters.items() if owners.places},
            )
            _write(site)
        except CannotTakeError as error:
            problems.append(
                Problem(layer.name, layer.type, results[0].shape, error.reason, error.nearest, layer.where)
            )
    cure = "change the listed layers, or use NAME.yaml, which can store every model"
    refuse(problems, f"of {len(spec.layers)} layers have no equivalent in ONNX", spec.where, cure)
    ends = [_word(word) for loss in spec.losses for word in (loss.of or before, loss.target) if word]
    return _Graph(draft, tuple(fed), tuple(tensors[word] for word in dict.fromkeys(ends)))


class _Owners:
    """The parameters and buffers of all layers, each once: `values`, and `places` if layers share any."""

    def __init__(self, spec: ModelSpec, start: Start) -> None:
        self.start, self.values, self.places = start, dict[str, Array](), dict[str, Array]()
        self._shares = any(layer.weights_of is not None for layer in spec.layers)
        self._tensors: dict[str, str] = {}

    def of(self, layer: LayerSpec, plan: LayerPlan) -> dict[str, str]:
        """The tensors of a layer by role; another layer's where it says so."""
        lent, tensors = layer.weights_of, {}
        for role, item in plan.stored.items():
            name = PARAMETER_NAMES.get(role, role)
            word = lent if isinstance(lent, str) else (lent or {}).get(name, layer.name)
            named = f"{layer.name}.{name}"
            tensor = self._tensors.get(word if "." in word else f"{word}.{name}", named)
            self._tensors[named] = tensors[role] = tensor
            if tensor not in self.values:
                self.values[tensor] = self.start(tensor, item.shape)
                if self._shares:
                    first = sum(array.size for array in self.places.values())
                    self.places[tensor] = first + np.arange(prod(item.shape)).reshape(item.shape)
        return tensors


def _word(word: str) -> str:
    """``name.0`` is the first output, called as its layer."""
    name, _, number = word.partition(".")
    return name if number in ("", "0") else word


def _check_sayable(spec: ModelSpec, layer: LayerSpec) -> None:
    """Raise `CannotTakeError` for what changes the numbers of any layer and has no word in ONNX."""
    if "HWC" in (layer.layout, spec.layout):
        raise CannotTakeError("ONNX export of images in HWC layout is not supported", "set layout: CHW")
    if layer.frozen_weights is not None or spec.frozen_weights is not None:
        raise CannotTakeError("ONNX export of 8-bit weights is not supported", "remove 'frozen_weights'")
    if layer.adapter is not None:
        raise CannotTakeError("ONNX has no op for adapters", "write two linear layers and an add instead")
    lent = layer.weights_of or ()
    if layer.type == "batch_norm" and (
        isinstance(lent, str) or not {"running_mean", "running_var"}.isdisjoint(lent)
    ):
        raise CannotTakeError(
            "running statistics that several layers share are not supported",
            "use separate running statistics for each layer",
        )
    if layer.computed:
        raise CannotTakeError("ONNX export of computed weights is not supported", "use stored weights")
    published = layer_primitive(layer.type, layer.where).published
    if AS_PUBLISHED in (layer.variant, spec.variant) and published is not None:
        unsaid = published.options.keys() - layer.attributes.keys()
        if unsaid:
            said = ", ".join(f"{key} {published.options[key]}" for key in sorted(unsaid))
            raise CannotTakeError(f"ONNX cannot store variant as-published: {said}", "set variant: default")


def _write(site: Layer) -> None:
    """The nodes of a layer, and the weights all of which must be in them."""
    writer = WRITERS.get(site.primitive)
    if writer is None:
        raise CannotTakeError("ONNX has no op for the layer", "convert to a model file instead: NAME.yaml")
    writer(site)
    assert site.written == sum(value.size for value in site.parameters.values()), site.name


def merged(written: OwnModel, spec: ModelSpec) -> ModelSpec:
    """A graph changed by others, read as any; name, loss, optimizer, and samples of that shape are kept."""
    same = spec.input_shape == written.spec.input_shape
    kept = spec if spec.more_losses or written.spec.more_losses else written.spec
    return replace(
        spec,
        name=written.spec.name,
        loss=kept.loss,
        optimizer=written.spec.optimizer,
        dataset=written.spec.dataset if same else spec.dataset,
    )
