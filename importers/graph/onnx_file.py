# SPDX-License-Identifier: Apache-2.0
"""Reads ONNX files with care, since anybody may have made them.

Sizes are looked at before memory is taken, external data is read from the model's own folder only, nothing
is unpickled or run. What the file leaves open is filled in by the onnx package: shapes by its inference,
constants by its reference implementation (`importers.graph.onnx_folding`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cache
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from configs.dtypes import is_float
from configs.errors import InputError
from configs.limits import MOST_ELEMENTS, check_text_size, require_host_memory
from configs.suggest import suggestion
from importers.extras import require_extra
from importers.graph.draft import CHECKED
from importers.graph.onnx_branches import has_branches, take_branches
from importers.graph.onnx_folding import fold_constants
from importers.graph.onnx_graph import Array, OnnxGraph, OnnxNode, OnnxTensor, Subgraph
from importers.graph.onnx_merged import taken_apart

if TYPE_CHECKING:
    import onnx

PROTOBUF_BYTES_PER_BYTE = 8
"""What a byte of an ONNX file takes once it is read: the message, its arrays, a copy for shape inference."""

OLDEST_OPSET = 7
"""Ops of older versions mean other things by the same name (broadcasting by attribute)."""

_SAME_BEFORE = ("BatchNormalization", "Relu", "Sigmoid", "Tanh")
"""Ops of any version: of the others those are read of which the oldest opset has no newer version."""

INFERENCE_BYTES = 1024
"""Larger initializers are left out of the copy that shapes are inferred from: no shape is that long."""

ZEROTH_ORDER = ("Perturb", "RQSPerturb")
"""How Deeploy's private ops begin that add noise to a weight."""

_IN_OLDER_OPSETS = ("Gelu", "HardSwish", "LayerNormalization")
"""Ops that ONNX Runtime and Deeploy write in opsets older than those that have them."""

_MANY = 5
"""So many types are not listed."""

_COPIES = 4
"""Bytes an array takes per byte of external data: read, kept, converted, rounded."""


def _wrong(reason: str, where: str, cure: str = "use a complete file") -> InputError:
    """What is wrong with a file."""
    return InputError(reason, where=where, cure=cure)


def load_onnx(
    path: str | Path, *, batch: int = 1, input_shapes: Mapping[str, Sequence[int]] | None = None
) -> OnnxGraph:
    """Read an ONNX file into an `OnnxGraph`, with shapes inferred and constants folded.

    A first dimension of an input that is not a number becomes `batch`; `input_shapes` replaces whole shapes,
    by name of the input, "" being the first. Raises InputError with the name of node or tensor for: no ONNX
    file; a file, an array or a shape too large for the host memory; external data outside of the model's
    folder; two nodes that write the same name; a node that its op does not allow in this opset (its
    attributes, the number and the types of its inputs); zeroth-order training; a cycle; a node that reads
    what nothing writes; strings and sparse tensors as weights; input dimensions that stay open. Nodes of any
    private op and any domain are passed on.
    """
    file = Path(path)
    require_extra("onnx", str(path))
    whole = _inlined(parsed(file), str(path))
    while has_branches(whole.graph):  # conditions may follow from shapes, for which the file is read
        read = _read(deepcopy(whole), file, batch, input_shapes or {})
        if not take_branches(whole.graph, read.constant):
            return read
    return _read(whole, file, batch, input_shapes or {})


def _read(
    model: onnx.ModelProto, file: Path, batch: int, input_shapes: Mapping[str, Sequence[int]]
) -> OnnxGraph:
    """A message as `load_onnx` reads it; the message is changed."""
    where, graph = str(file), model.graph
    opset = max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=1)
    older = next((node for node in graph.node if opset < OLDEST_OPSET and _is_older(node, opset)), None)
    if older is not None:
        raise _wrong(
            f"the model has opset {opset}, where {older.op_type} differs from opset {OLDEST_OPSET}",
            where,
            f"use opset {OLDEST_OPSET} or newer: `onnx.version_converter.convert_version(model, 17)`",
        )
    initializers = initializers_of(graph, file)
    merged = taken_apart(graph, initializers)
    nodes = _nodes(graph, where)
    noisy = next((node for node in nodes if node.op.rpartition(":")[2].startswith(ZEROTH_ORDER)), None)
    if noisy is not None:
        raise _wrong(
            "zeroth-order training (random perturbations of weights) is not supported",
            f"{where}: node '{noisy.name}' ({noisy.op})",
            "use the network without such nodes, or a training graph with gradients",
        )
    fed = [value.name for value in graph.input if value.name not in initializers]
    nodes = _sorted(nodes, {*fed, *initializers}, where)
    _check_names(nodes, fed, initializers, [value.name for value in graph.output], where)
    _set_input_shapes(graph, fed, batch, dict(input_shapes), where)
    read = OnnxGraph(
        name=_name(file),
        path=where,
        opset=opset,
        nodes=nodes,
        tensors=_tensors(model, nodes, initializers, opset, where),
        inputs=tuple(fed),
        outputs=tuple(value.name for value in graph.output),
        initializers=initializers,
        merged=merged,
    )
    _check_ops(read)
    return fold_constants(read)


def _named(outputs: Sequence[str]) -> tuple[str, ...]:
    """Those of a node up to the last with a name: ONNX counts no others."""
    count = max((number for number, name in enumerate(outputs, start=1) if name), default=0)
    return tuple(outputs[:count])


def _is_older(node: onnx.NodeProto, opset: int) -> bool:
    """Whether an op may mean something else than in the oldest opset that is read."""
    from onnx.defs import SchemaError, get_schema

    if node.domain not in ("", "ai.onnx") or node.op_type in _SAME_BEFORE:
        return False
    try:
        versions = {get_schema(node.op_type, version, "").since_version for version in (opset, OLDEST_OPSET)}
    except SchemaError:
        return True
    return len(versions) > 1


def _name(file: Path) -> str:
    """That of the file; of one that is called as all are, with its folder's before it."""
    usual = ("network", "model", "training_model", "network_infer")
    folder = file.resolve().parent.name
    return f"{folder}-{file.stem}" if file.stem in usual and folder else file.stem


def parsed(file: Path) -> onnx.ModelProto:
    """The message in a file, of a size that the host memory holds. Raises InputError for any other file."""
    import onnx
    from google.protobuf.message import DecodeError

    where = str(file)
    try:
        size_bytes = file.stat().st_size
        if not file.is_file():
            raise _wrong("the path is not a file", where, "write the path of an .onnx file")
        check_text_size(size_bytes, PROTOBUF_BYTES_PER_BYTE, where)
        data = file.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise _wrong(f"the file cannot be read: {reason}", where, "write the path of an .onnx file") from None
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except (DecodeError, ValueError, RecursionError) as error:
        raise _wrong(f"the file is not an ONNX file: {error}", where) from None
    if not model.HasField("graph") or not (model.graph.node or model.graph.output):
        raise _wrong("the file is not an ONNX file, or has no graph", where)
    if not all(isinstance(word, str) for word in _words(model.graph)):
        raise _wrong("the file has names that are not UTF-8", where)
    return model


def _words(graph: onnx.GraphProto) -> Iterator[object]:
    """Names in a graph; what is no UTF-8 is bytes."""
    for node in graph.node:
        yield from (node.op_type, node.domain, node.name, *node.input, *node.output)
        yield from (item.name for item in node.attribute)
    for value in (*graph.input, *graph.output, *graph.value_info):
        yield value.name
        yield from (dim.dim_param for dim in value.type.tensor_type.shape.dim)
    for tensor in graph.initializer:
        yield tensor.name
        yield from (text for entry in tensor.external_data for text in (entry.key, entry.value))


def _inlined(model: onnx.ModelProto, where: str) -> onnx.ModelProto:
    """Functions of the model's own are replaced by their bodies (exporters of PyTorch make them)."""
    if not model.functions:
        return model
    from onnx import inliner

    try:
        return inliner.inline_local_functions(model)
    except Exception as error:  # what the C++ part raises has no common base
        raise _wrong(
            f"the functions of the file cannot be inlined: {_short(error)}",
            where,
            "call `onnx.inliner.inline_local_functions` before saving",
        ) from None


def _short(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:200]


def initializers_of(graph: onnx.GraphProto, file: Path) -> dict[str, Array]:
    """The initializers of a graph, external data read from the folder of `file`. Raises as `load_onnx`."""
    if graph.sparse_initializer:
        raise _wrong(
            f"the file has sparse initializers ({graph.sparse_initializer[0].values.name!r})",
            str(file),
            "save the file with dense initializers",
        )
    values: dict[str, Array] = {}
    for proto in graph.initializer:
        if not proto.name:
            raise _wrong("an initializer has no name", str(file), "name each initializer")
        if proto.name in values:
            raise _wrong(f"two initializers have the name '{proto.name}'", str(file), "rename one of the two")
        values[proto.name] = _array(proto, file)
    return values


def _array(proto: onnx.TensorProto, file: Path) -> Array:
    """The values of a tensor of the file, or of the file beside it that it names."""
    import onnx
    from onnx import numpy_helper

    where = f"{file}: tensor '{proto.name}'"
    if proto.data_type in (onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING):
        raise _wrong("the tensor does not hold numbers", where, "use a tensor of numbers")
    dtype = _dtype(proto.data_type)
    if dtype is None:
        raise _wrong(f"the tensor has unknown type {proto.data_type}", where, "use float32")
    sizes = _checked_sizes(tuple(proto.dims), where)
    size_bytes = prod(sizes) * dtype.itemsize
    require_host_memory(_COPIES * size_bytes, "the tensor needs", where=where)
    if proto.data_location == onnx.TensorProto.EXTERNAL:
        proto.raw_data = _external(proto, size_bytes, file, where)
        proto.data_location = onnx.TensorProto.DEFAULT
        del proto.external_data[:]
    try:
        array = np.array(numpy_helper.to_array(proto))
    except Exception as error:  # whatever values do not fit their shape make it raise
        raise _wrong(f"the tensor cannot be read: {_short(error)}", where) from None
    if array.shape != sizes:
        raise _wrong(f"the tensor declares shape {list(sizes)}, but has {list(array.shape)}", where)
    return array


def _external(proto: onnx.TensorProto, size_bytes: int, file: Path, where: str) -> bytes:
    entries = {entry.key: entry.value for entry in proto.external_data}
    location = entries.get("location", "")
    if not location:
        raise _wrong("the external data of the tensor has no location", where)
    for key in ("offset", "length"):
        if not (entries.get(key) or "0").isdecimal():
            wrong = f"{key!r} of the external data of the tensor is {entries[key]!r}, not a whole number"
            raise _wrong(wrong, where, "save the model again, with onnx.save_model")
    try:
        offset = int(entries.get("offset") or 0)
        length = int(entries.get("length") or size_bytes)
        folder = file.resolve().parent
        target = (folder / location).resolve()
        if Path(location).is_absolute() or not target.is_relative_to(folder) or not target.is_file():
            raise _wrong(
                f"the tensor is stored in {location!r}, which is not a file in the folder of the model",
                where,
                "save the model again, with its tensors in a file of its folder",
            )
        if length != size_bytes or offset < 0 or offset + length > target.stat().st_size:
            raise _wrong(
                f"the tensor needs {size_bytes} B. The model says that it is bytes {offset} to "
                f"{offset + length} of {location!r}, a file of {target.stat().st_size} B",
                where,
                "use the complete files, or save the model again",
            )
        with target.open("rb") as stream:
            stream.seek(offset)
            data: bytes = stream.read(length)
            return data
    except (OSError, ValueError) as error:
        raise _wrong(f"the external data of the tensor cannot be read: {error}", where) from None


def _checked_sizes(sizes: Sequence[int], where: str) -> tuple[int, ...]:
    if any(size < 0 for size in sizes) or prod(sizes) > MOST_ELEMENTS:
        wrong = "a negative size" if min(sizes) < 0 else f"more than {MOST_ELEMENTS:,} elements, the limit"
        cure = "use sizes of 0 or more" if min(sizes) < 0 else "use smaller sizes"
        raise _wrong(f"shape {list(sizes)} has {wrong}", where, cure)
    return tuple(sizes)


def _dtype(number: int) -> np.dtype[Any] | None:
    """NumPy's type for the number of one of ONNX; None for an unknown one."""
    import onnx

    try:
        dtype: np.dtype[Any] = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(number))
        return dtype
    except (KeyError, TypeError, ValueError):
        return None


def _nodes(graph: onnx.GraphProto, where: str) -> tuple[OnnxNode, ...]:
    nodes: list[OnnxNode] = []
    names: set[str] = set()
    for number, proto in enumerate(graph.node):
        domain = "" if proto.domain in ("", "ai.onnx") else f"{proto.domain}:"
        name = proto.name or f"{proto.op_type}_{number}"
        while name in names:
            # Names of nodes are for people, ONNX gives them no meaning: a second one gets a number.
            name = f"{name}_{number}"
        names.add(name)
        attributes = {item.name: _attribute(item, name, where) for item in proto.attribute}
        if len(attributes) != len(proto.attribute):
            raise _wrong("the node has an attribute twice", f"{where}: node '{name}'", CHECKED)
        nodes.append(
            OnnxNode(name, f"{domain}{proto.op_type}", tuple(proto.input), _named(proto.output), attributes)
        )
    return tuple(nodes)


def _attribute(item: onnx.AttributeProto, node: str, where: str) -> Any:
    import onnx

    place = f"{where}: node '{node}': attribute '{item.name}'"
    kind = item.type
    kinds = onnx.AttributeProto
    if kind == kinds.TENSOR:
        return _array(item.t, Path(where)) if item.t.data_type != onnx.TensorProto.STRING else Subgraph("")
    if kind in (kinds.GRAPH, kinds.GRAPHS, kinds.SPARSE_TENSOR, kinds.SPARSE_TENSORS, kinds.TYPE_PROTO):
        return Subgraph(item.g.name)
    try:
        value = onnx.helper.get_attribute_value(item)
        if kind in (kinds.FLOAT, kinds.INT):
            return value
        if kind == kinds.STRING:
            return value.decode()
        if kind == kinds.STRINGS:
            return tuple(word.decode() for word in value)
        if kind in (kinds.FLOATS, kinds.INTS):
            return tuple(value)
    except (ValueError, UnicodeDecodeError) as error:
        raise _wrong(f"the attribute cannot be read: {error}", place) from None
    raise _wrong(f"the attribute has unknown type {kind}", place, "use numbers or a text")


def _sorted(nodes: Sequence[OnnxNode], given: set[str], where: str) -> tuple[OnnxNode, ...]:
    """The nodes in a topological order, as near to that of the file as can be.

    Raises InputError where two write the same name, and where a cycle is left.
    """
    writer: dict[str, OnnxNode] = {}
    for node in nodes:
        for name in filter(None, node.outputs):
            if name in writer or name in given:
                other = f"that of node '{writer[name].name}'" if name in writer else "an input or initializer"
                raise _wrong(
                    f"its output '{name}' has the same name as {other}",
                    f"{where}: node '{node.name}'",
                    "give this output another name, also where it is read",
                )
            writer[name] = node
    place = {node.name: number for number, node in enumerate(nodes)}
    waits = {node.name: {writer[name].name for name in node.inputs if name in writer} for node in nodes}
    sorter = TopologicalSorter(waits)
    try:
        sorter.prepare()
    except CycleError as error:
        cycle = error.args[1][:0:-1]
        names = f"{', '.join(cycle[:5])}{' ...' if len(cycle) > 5 else ''}"
        raise _wrong(
            f"the graph has a cycle: {names} depend on each other", where, "use a graph without cycles"
        ) from None
    ready: list[int] = []
    order: list[OnnxNode] = []
    while sorter.is_active():
        for name in sorter.get_ready():
            heappush(ready, place[name])
        order.append(nodes[heappop(ready)])
        sorter.done(order[-1].name)
    return tuple(order)


def _check_names(
    nodes: Sequence[OnnxNode],
    fed: Sequence[str],
    initializers: Mapping[str, Array],
    outputs: Sequence[str],
    where: str,
) -> None:
    for names, what in ((fed, "inputs"), (outputs, "outputs")):
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise _wrong(f"two {what} have the name '{twice}'", where, "rename one of the two")
    written = {*fed, *initializers, *(name for node in nodes for name in node.outputs)}
    for node in nodes:
        for name in filter(None, node.inputs):
            if name not in written:
                raise _wrong(
                    f"the node reads '{name}', which no node writes",
                    f"{where}: node '{node.name}' ({node.op})",
                    "use a complete graph",
                )
    for name in outputs:
        if name not in written:
            raise _wrong(f"no node writes output '{name}' of the graph", where, "use a complete graph")


def _check_ops(graph: OnnxGraph) -> None:
    """Raise InputError for a node on which readers differ, since it is none of its op in this opset."""
    from onnx.defs import SchemaError, get_schema, has

    for node in graph.nodes:
        place = f"{graph.path}: node '{node.name}' ({node.op})"
        try:
            schema = get_schema(node.op, graph.opset, "")
        except SchemaError:
            if has(node.op) and node.op not in _IN_OLDER_OPSETS:
                since = min(item.since_version for item in _versions(node.op))
                reason = f"opset {graph.opset} has no {node.op}"
                raise _wrong(reason, place, f"export with opset {since} or newer") from None
            continue
        _check_attributes(node, schema, place)
        _check_inputs(node, schema, graph, place)


@cache
def _versions(op: str) -> list[Any]:
    """What onnx says of an op of its own, in all opsets."""
    from onnx.defs import get_all_schemas_with_history

    return [item for item in get_all_schemas_with_history() if item.name == op and not item.domain]


def _check_attributes(node: OnnxNode, schema: Any, place: str) -> None:
    """Those of other opsets are read as they are meant."""
    known = {*schema.attributes, *_remarks(node.op)}
    if node.attributes.keys() <= known:
        return
    known |= {name for version in _versions(node.op) for name in version.attributes}
    for name in node.attributes:
        if name not in known:
            cure = suggestion(name, sorted(schema.attributes))
            raise _wrong(f"{node.op} has no attribute '{name}'", place, cure)


def _remarks(op: str) -> tuple[str, ...]:
    """Attributes that Deeploy leaves at nodes, and that change nothing."""
    return ("description", "Delta", "eps", "eta") if op == "Div" else ("description",)


def _check_inputs(node: OnnxNode, schema: Any, graph: OnnxGraph, place: str) -> None:
    """Their number, and that of the outputs; their types. Deeploy has floats of two formats in a node."""
    for what, names, most in (
        ("inputs", node.inputs, schema.max_input),
        ("outputs", node.outputs, schema.max_output),
    ):
        if len(names) > most:
            reason = f"the node has {len(names)} {what}, opset {graph.opset} allows at most {most}"
            raise _wrong(reason, place, CHECKED)
    for number, declared in enumerate(schema.inputs[: schema.min_input]):
        if not node.input(number) and declared.name not in node.attributes:  # as in older opsets
            raise _wrong(f"input '{declared.name}' of the node is missing", place, CHECKED)
    firsts: dict[str, tuple[str, str]] = {}
    for number, name in enumerate(node.inputs):
        declared = schema.inputs[min(number, len(schema.inputs) - 1)]
        dtype = graph.tensor(name).dtype
        if not dtype:
            continue
        allowed, cast = _dtypes(frozenset(declared.types)), f"convert '{name}' with a Cast node"
        if dtype not in allowed:
            words = f"be {' or '.join(sorted(allowed))}" if 0 < len(allowed) < _MANY else "have another type"
            raise _wrong(f"input '{declared.name}' must {words}: '{name}' is {dtype}", place, cast)
        if not declared.is_homogeneous:
            continue
        first, other = firsts.setdefault(declared.type_str, (dtype, name))
        if dtype != first and not (is_float(dtype) and is_float(first)):
            reason = f"input '{declared.name}' must have the type of '{other}', {first}: '{name}' is {dtype}"
            raise _wrong(reason, place, cast)


@cache
def _dtypes(kinds: frozenset[str]) -> frozenset[str]:
    """NumPy's names for tensors of types as a schema writes them, ``tensor(float)``."""
    import onnx

    tensors = [kind.removeprefix("tensor(") for kind in kinds if kind.startswith("tensor(")]
    words = [kind.removesuffix(")").upper() for kind in tensors]
    found = (_dtype(onnx.TensorProto.DataType.Value(word)) for word in words)
    return frozenset(item.name for item in found if item is not None)


def _set_input_shapes(
    graph: onnx.GraphProto,
    fed: Sequence[str],
    batch: int,
    shapes: dict[str, Sequence[int]],
    where: str,
) -> None:
    """Give every dimension of the inputs a number, in place."""
    if "" in shapes and fed:
        shapes[fed[0]] = shapes.pop("")
    for name in shapes:
        if name not in fed:
            raise _wrong(f"the graph has no input '{name}'", where, f"use one of {', '.join(fed) or 'none'}")
    for value in graph.input:
        if value.name not in fed or value.type.WhichOneof("value") != "tensor_type":
            continue  # a list of tensors, as the optimizer graphs of ONNX Runtime have: known without a shape
        tensor, given = value.type.tensor_type, shapes.get(value.name)
        if given is None and not tensor.HasField("shape"):
            continue
        said = [dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim]
        if given is not None and tensor.HasField("shape") and len(said) != len(given):
            raise _wrong(
                f"input '{value.name}' has {len(said)} dimensions, but --input has {len(given)}",
                where,
                f"use --input with {len(said)} sizes",
            )
        if given is None and None in said[1:]:
            raise _wrong(
                f"dimension {said.index(None, 1)} of input '{value.name}' has no size",
                where,
                "use --input SIZES, batch first, e.g. --input 1,3,32,32",
            )
        sizes = [batch if size is None else size for size in said] if given is None else given
        _checked_sizes(sizes, f"{where}: input '{value.name}'")
        del tensor.shape.dim[:]
        for size in sizes:
            tensor.shape.dim.add().dim_value = size


def _tensors(
    model: onnx.ModelProto,
    nodes: Sequence[OnnxNode],
    initializers: Mapping[str, Array],
    opset: int,
    where: str,
) -> dict[str, OnnxTensor]:
    """Shapes and types: what the file says, and what onnx infers of the rest."""
    import onnx

    light = onnx.ModelProto()
    light.CopyFrom(model)
    del light.opset_import[:]
    domains = {node.domain for node in light.graph.node} - {"", "ai.onnx"}
    light.opset_import.extend([onnx.helper.make_opsetid("", opset)])
    light.opset_import.extend(onnx.helper.make_opsetid(domain, 1) for domain in sorted(domains))
    by_output = {name: node for node in light.graph.node for name in node.output if name}
    ordered = [by_output[name] for node in nodes for name in [next(filter(None, node.outputs), "")] if name]
    del light.graph.node[:]
    light.graph.node.extend(ordered)
    for proto in light.graph.initializer:
        if initializers[proto.name].nbytes > INFERENCE_BYTES:
            for data in ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data"):
                proto.ClearField(data)
    tensors = {name: OnnxTensor(name, value.shape, value.dtype.name) for name, value in initializers.items()}
    # Later ones win: what is declared of an output is wrong in some files ([1] for every gradient of a bias).
    for value in (*light.graph.output, *light.graph.value_info, *_inferred(light), *light.graph.input):
        if value.name not in initializers and value.type.WhichOneof("value") == "tensor_type":
            tensor = _tensor(value, where)
            if tensor.is_static or value.name not in tensors or not tensors[value.name].is_static:
                tensors[value.name] = tensor
    return tensors


def _inferred(light: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """What onnx infers, given what the file says of the results of ops that onnx does not know.

    What it says of others may be wrong and is left out; if the rest contradicts itself, all of it.
    """
    import onnx
    from onnx import shape_inference

    private = {
        name
        for node in light.graph.node
        if node.domain or not onnx.defs.has(node.op_type)
        for name in node.output
    }
    for kept in (private, set[str]()):
        candidate = onnx.ModelProto()
        candidate.CopyFrom(light)
        del candidate.graph.value_info[:]
        candidate.graph.value_info.extend(value for value in light.graph.value_info if value.name in kept)
        for value in candidate.graph.output:
            if value.name not in kept:
                value.ClearField("type")
        try:
            graph = shape_inference.infer_shapes(candidate, strict_mode=False, data_prop=True).graph
        except Exception:  # what the C++ part raises has no common base; the mapping finds what is missing
            continue
        return [*graph.output, *graph.value_info]
    return []


def _tensor(value: onnx.ValueInfoProto, where: str) -> OnnxTensor:
    tensor, dtype = value.type.tensor_type, _dtype(value.type.tensor_type.elem_type)
    named = "" if dtype is None else dtype.name
    if not tensor.HasField("shape"):
        return OnnxTensor(value.name, None, named)
    shape = tuple(dim.dim_value if dim.HasField("dim_value") else dim.dim_param for dim in tensor.shape.dim)
    _checked_sizes([size for size in shape if isinstance(size, int)], f"{where}: tensor '{value.name}'")
    return OnnxTensor(value.name, shape, named)
