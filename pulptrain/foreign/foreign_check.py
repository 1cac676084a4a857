# SPDX-License-Identifier: Apache-2.0
"""What was read of an ONNX file against the file itself: its output at import, its gradients after a run.

The output is that of onnx's reference implementation or of `truth.onnx_graph`, the gradients are PyTorch's of
the latter; neither knows how `importers` reads a graph. What is allowed is as for a module
(`importers.torch.check`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from configs.dtypes import is_float
from configs.errors import InputError, NotFiniteError, WrongNumbersError
from configs.limits import host_memory_bytes
from configs.model_file import LossSpec, ModelSpec
from configs.values import Struct
from importers.extras import require_extra
from importers.torch.check import Loss, ModuleCheck, Own, judged
from trainlib.ir.graph import TrainingGraph
from trainlib.ir.steps import Array
from trainlib.references.reference import evaluate
from trainlib.registry import lowering_of
from trainlib.training.phases import build_forward_graph, initial_weights

if TYPE_CHECKING:
    from importers.graph.onnx_graph import OnnxGraph
    from importers.onnx.forward import ImportedModel

MOST_MACS = 2 * 10**9
"""Of a forward pass that is computed at import: here, by onnx.reference, by PyTorch some 4 s each."""

MOST_WINDOWS = 50_000
"""Windows of pooling that onnx.reference, a loop in Python with 28 us for each, is asked for."""

_WRONG_THERE = {
    "LRN": (999, "normalises as many channels as there are samples"),
    "BatchNormalization": (14, "computes part of its statistics from the batch in opsets before 14"),
    **dict.fromkeys(
        ("Softmax", "LogSoftmax"), (13, "uses one axis only, not all following axes, in opsets before 13")
    ),
}
"""Ops that onnx.reference 1.23 computes otherwise than ONNX says, in opsets before that number.

Any other disagreement is an error: our importer and `truth` may share a misreading.
"""

_COPIES = 16
"""Bytes an element of a tensor takes while it is computed: in fp64, here and there."""


class OnnxOrigin(Struct, frozen=True):
    """The ONNX file a model was read from."""

    graph: OnnxGraph
    read: ImportedModel

    def fed(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Our inputs and labels as the file wants them."""
        return {
            theirs: np.moveaxis(arrays[ours], 0, self.read.batch_dim or 0).reshape(
                self.graph.tensor(theirs).sizes
            )
            for ours, theirs in self.read.feeds.items()
        }

    @property
    def outputs(self) -> dict[str, str]:
        """Outputs of the file that are trained, by what they are called there -> our tensors."""
        losses, last = self.read.spec.losses, self.read.spec.layers[-1].name
        words = [(loss.of or last).split(".") for loss in losses]
        tensors = [f"{name}.out{number[0] if number else ''}" for name, *number in words]
        return dict(zip(self.graph.outputs, tensors, strict=True))


class _Truth(Struct, frozen=True):
    """The file's own outputs by `who`, in fp64 and in fp32."""

    who: str
    exact: dict[str, Array]
    single: dict[str, Array]


def check_output(origin: OnnxOrigin) -> str:
    """Compare our outputs with the file's own, on random numbers; a note says what came of it.

    Raises `WrongNumbersError` that names the output if they differ.
    """
    spec = origin.read.spec
    if origin.read.loss:
        return "the output is a loss: loss and gradients are compared with the file's after the run"
    graph = build_forward_graph(spec)
    reason = _not_comparable(graph)
    if reason:
        return f"the output was not compared with the file's: {reason}"
    fed = _random_inputs(graph, spec)
    try:
        evaluated = evaluate(graph, {**initial_weights(graph, 0), **origin.read.values, **fed})
    except NotFiniteError as error:
        return f"the output was not compared with the file's: {error.message}"
    ours, why, wrong = {name: evaluated[tensor] for name, tensor in origin.outputs.items()}, [], None
    for evaluator in (_by_reference, _by_torch):
        truth = evaluator(origin, fed)
        if isinstance(truth, str):
            why.append(truth)
            continue
        try:
            worst = max(_compared(origin, truth, name, array) for name, array in ours.items())
        except WrongNumbersError as error:
            wrong = wrong or error
            continue
        if wrong is not None:  # one misreading of ONNX may stand in both of ours: it decides nothing
            text = f"{wrong.message}; {truth.who} computes the same values as pulptrain"
            raise WrongNumbersError(text, where=origin.graph.path)
        besides = f"; not compared with {'; '.join(why)}" if why else ""
        return (
            f"the output equals that of the file, computed by {truth.who} ({worst:.2f} of its "
            f"tolerance{besides})"
        )
    if wrong is not None:
        raise wrong
    return f"the output was not compared with the file's: {'; '.join(why)}"


def _compared(origin: OnnxOrigin, truth: _Truth, name: str, ours: Array) -> float:
    """How far an output is off, of what is allowed. Raises `WrongNumbersError`."""
    worst, most = np.inf, np.inf
    if truth.exact[name].size == ours.size:
        exact, single = (array[name].reshape(ours.shape) for array in (truth.exact, truth.single))
        worst = judged({name: ours}, {name: exact}, {name: single}).worst
        most = float(np.abs(ours - exact).max(initial=0))
    if not worst <= 1:
        raise WrongNumbersError(
            f"output '{name}' of pulptrain differs from that of {truth.who} by up to {most:.3g}, which is "
            f"{worst:.3g} times the tolerance",
            where=origin.graph.path,
        )
    return worst


def _not_comparable(graph: TrainingGraph) -> str:
    """Why our forward pass is not computed at import, "" if it is."""
    if graph.draws:
        return "it draws random numbers (dropout)"
    size_bytes = _COPIES * sum(prod(tensor.shape) for tensor in graph.tensors.values())
    if size_bytes > host_memory_bytes():
        return f"its tensors take {size_bytes:,} B"
    macs = sum(lowering_of(op).macs(op, graph.tensors) for op in graph.ops)
    return f"{macs:,} multiplications take too long" if macs > MOST_MACS else ""


def _random_inputs(graph: TrainingGraph, spec: ModelSpec) -> dict[str, Array]:
    generator = np.random.default_rng(0)
    shapes = {item: graph.tensors[item.name].shape for item in spec.inputs}
    return {
        item.name: generator.integers(item.classes, size=shape).astype(np.int32)
        if item.classes
        else generator.uniform(-1, 1, shape).astype(np.float32)
        for item, shape in shapes.items()
    }


def _by_reference(origin: OnnxOrigin, fed: Mapping[str, Array]) -> _Truth | str:
    """The output by onnx.reference; a text says why not."""
    who, graph = "onnx.reference", origin.graph
    pools = [node for node in graph.nodes if node.op in ("MaxPool", "AveragePool")]
    windows = sum(
        prod(tensor.sizes) for tensor in (graph.tensor(node.outputs[0]) for node in pools) if tensor.is_static
    )
    if windows > MOST_WINDOWS:
        return f"{who}: {windows:,} pooling windows take too long"
    for op, (opset, what) in _WRONG_THERE.items():
        if graph.opset < opset and any(node.op == op for node in graph.nodes):
            return f"{who}: its {op} {what}"
    from onnx.reference import ReferenceEvaluator

    from truth.onnx_graph import in_double, read_graph

    feeds = {
        name: array.astype(graph.tensor(name).dtype or array.dtype) for name, array in origin.fed(fed).items()
    }
    wide = {name: array.astype(np.float64) for name, array in feeds.items() if is_float(array.dtype)}

    def compute() -> _Truth:
        model = read_graph(graph.path)
        single = ReferenceEvaluator(model).run(graph.outputs, feeds)
        exact = ReferenceEvaluator(in_double(model)).run(graph.outputs, {**feeds, **wide})
        return _Truth(
            who, *(dict(zip(graph.outputs, map(np.asarray, way), strict=True)) for way in (exact, single))
        )

    return _tried(who, compute, Exception)  # of an op it does not know it says so in many ways


def _by_torch(origin: OnnxOrigin, fed: Mapping[str, Array]) -> _Truth | str:
    """The output by `truth.onnx_graph`; a text says why not."""
    who = "PyTorch"

    def compute() -> _Truth:
        from truth.onnx_graph import Computed, read_graph

        model = read_graph(origin.graph.path, origin.graph.merged)
        both = [Computed(model, origin.fed(fed), double=double) for double in (True, False)]
        ways = ({name: way.values[name].detach().numpy() for name in origin.outputs} for way in both)
        return _Truth(who, *ways)

    if missing := missing_torch():
        return missing
    from truth.onnx_graph import CannotComputeError

    return _tried(who, compute, (CannotComputeError, RuntimeError))


def missing_torch() -> str:
    """What to install, "" if PyTorch is there."""
    try:
        require_extra("torch")
    except InputError:
        return "PyTorch, which is not installed (pip install 'pulptrain[torch]')"
    return ""


def _tried(
    who: str, compute: Callable[[], _Truth], errors: type[Exception] | tuple[type[Exception], ...]
) -> _Truth | str:
    """What `compute` gives; a text for what it does not know and for numbers that are not finite."""
    try:
        truth = compute()
    except errors as error:  # an op that is not known there, or another shape: the other one is asked
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return f"{who}: {lines[0][:150]}"
    finite = all(np.isfinite(array).all() for array in truth.exact.values())
    return truth if finite else f"{who}: infinite or NaN values"


def loss_of(loss: LossSpec) -> Loss:
    """A loss of a model, with its options."""
    from truth.steps import LOSSES

    return partial(LOSSES[loss.name], **loss.options)


class FileGradients(Struct, frozen=True):
    """Loss and gradients of a file by PyTorch: `tensors` by our names, `weights` all their elements."""

    tensors: dict[str, Array]
    weights: Array


def gradients_of_file(
    origin: OnnxOrigin, spec: ModelSpec, graph: TrainingGraph, sample: Mapping[str, Array], *, double: bool
) -> FileGradients:
    """For a `sample` with the inputs, and labels as our losses want them.

    Raises `truth.onnx_graph.CannotComputeError`.
    """
    from truth.onnx_graph import Computed, read_graph

    torch, places = require_extra("torch"), origin.read.places
    computed = Computed(read_graph(origin.graph.path, origin.graph.merged), origin.fed(sample), double=double)
    if origin.read.loss:
        value, ends = computed.values[origin.read.loss], []
    else:
        ends = [
            computed.values[name].reshape(graph.tensors[tensor].shape)
            for name, tensor in origin.outputs.items()
        ]
        value = torch.zeros((), dtype=computed.kind)
        for loss, output in zip(spec.losses, ends, strict=True):
            label = torch.tensor(sample[str(loss.label)])
            label = label.to(computed.kind) if label.is_floating_point() else label.long()
            value = value + loss_of(loss)(output, label)
    gradients = computed.gradients(value)
    flat = np.zeros(int(places.starts[-1]))
    for name, _, start, end in places.ranges:
        flat[start:end] = gradients[name].ravel() if name in gradients else 0  # running statistics have none
    tensors = {"loss": value.detach().reshape(1).numpy()}
    for tensor, given in origin.read.sources.items():
        if given.trained and given.places is not None:
            tensors[f"{tensor}.grad"] = flat[places.numbers(given)].reshape(given.places.shape)
    return FileGradients(tensors, flat)


def check_file(
    origin: OnnxOrigin,
    spec: ModelSpec,
    graph: TrainingGraph,
    sample: Mapping[str, Array],
    results: Mapping[str, Array],
    own: Own = lambda: None,
) -> ModuleCheck | str:
    """Compare `results` (loss and gradients by the names of our tensors) with those of the file.

    A weight that has a gradient in the file and is not trained here is wrong as well; a number alone may be
    one that somebody wrote into the graph. A text says why nothing can be computed from the file. What fp32
    does not decide is asked of our graph (`own`) as `judged` says.
    """
    from truth.onnx_graph import CannotComputeError

    missing = missing_torch()
    if missing:
        return f"it needs {missing}"
    try:
        exact, fp32 = (gradients_of_file(origin, spec, graph, sample, double=way) for way in (True, False))
    except CannotComputeError as error:
        return f"the independent ONNX reference of pulptrain does not support {error}"
    check = judged(results, exact.tensors, fp32.tensors, own)
    flat = exact.weights
    trained = np.zeros(flat.size, bool)
    for given in origin.read.sources.values():
        if given.trained and given.places is not None:
            trained[origin.read.places.numbers(given)] = True
    for name, _, start, end in origin.read.places.ranges:
        if end - start > 1 and (flat[start:end][~trained[start:end]] != 0).any():
            return ModuleCheck(check.compared, np.inf, f"{name}, which pulptrain cannot train,")
    return check
