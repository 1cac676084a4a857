# SPDX-License-Identifier: Apache-2.0
"""From a model to its training graph: forward, loss, backward by our own rules, optimizer; start values."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from configs.dtypes import FP32, INT32
from configs.errors import ConfigError, InputError, ShapeError
from configs.model_file import LayerSpec, LossSpec, ModelSpec, OptimizerSpec
from configs.values import Struct, replace
from trainlib.ir.graph import KEPT_KINDS, Initial, Op, Tensor, TrainingGraph
from trainlib.ir.numerics import dtype_named, rounded
from trainlib.ir.steps import Array
from trainlib.primitives.definition import AS_PUBLISHED, DrawnInput, LabelPlan
from trainlib.primitives.lowering.dequantised import is_stored
from trainlib.primitives.optimizers import gradient_steps
from trainlib.registry import layer_primitive, loss_primitive, optimizer_primitive
from trainlib.training.adapters import adapter_of, add_adapted
from trainlib.training.backward_reads import read_fewest_bytes, requested_reads
from trainlib.training.builder import GraphBuilder
from trainlib.training.built_layer import gradient_name, where_of
from trainlib.training.immediate_update import ADD, UPDATE, at_once
from trainlib.training.loss_terms import (
    LOSS,
    Made,
    Term,
    Terms,
    add_label,
    add_losses,
    emit_loss,
    tensor_named,
)
from trainlib.training.options import (
    GRADIENT_KEYS,
    GradientOptions,
    gradient_options,
    loss_options,
    optimizer_options,
)
from trainlib.training.recompute import recompute
from trainlib.training.sparse_update import frozen_layers, restrict_updates
from trainlib.training.step_choice import as_in_inference, only_steps
from trainlib.training.stored_weights import with_codes
from trainlib.training.update_options import options_by_weight


def build_training_graph(spec: ModelSpec) -> TrainingGraph:
    """One training iteration of a batch as a graph of primitive steps.

    Op order: FW of every layer; LOSS; the backward steps of every layer, last layer first; UPD of every
    trained weight. A layer gets an input gradient only if something before it is trained, and no weight
    gradient where it is frozen; views get no op. The loss is computed in fp32. Raises ShapeError (layer and
    file:line) where shapes do not fit, UnsupportedLayerError for what has no primitive, ConfigError for wrong
    options. Gradients are clipped between backward pass and UPD if the optimizer section says so. An update
    that is a graph of its own (several mini-batches) is refused: it needs `build_training_phases`.
    """
    phases = build_training_phases(spec)
    if phases.update is not None:
        raise InputError(
            f"build_training_graph does not support accumulate: {phases.mini_batches}, whose update is a "
            "separate graph",
            where=spec.optimizer.where or spec.where,
            cure="use accumulate: 1 and a larger batch, or trainlib.training.phases.build_training_phases",
        )
    return phases.mini_batch


class TrainingPhases(Struct, frozen=True):
    """One update: the graph of a mini-batch, run `mini_batches` times, then that of the update, if any.

    Without accumulation the graph of the mini-batch updates the weights itself, and `update` is None.
    """

    mini_batch: TrainingGraph
    mini_batches: int = 1
    update: TrainingGraph | None = None

    @property
    def graphs(self) -> tuple[TrainingGraph, ...]:
        """The one of a mini-batch, and that of the update, if any."""
        return (self.mini_batch,) if self.update is None else (self.mini_batch, self.update)

    @property
    def programs(self) -> tuple[TrainingGraph, ...]:
        """The graphs of one update, in the order in which they are carried out."""
        return (*(self.mini_batch,) * self.mini_batches, *((self.update,) if self.update is not None else ()))

    @property
    def means(self) -> dict[str, str]:
        """Tensor the update is given -> gradient of the mini-batch that it is the mean of."""
        if self.update is None:
            return {}
        totals = {op["total"]: op["dw"] for op in self.mini_batch.ops if op.step == "ACCUMULATE"}
        return totals or {name: name for name in self.update.of_kind("input")}


def build_training_phases(spec: ModelSpec) -> TrainingPhases:
    """The graphs of one update, with clipping, accumulation and averages as the optimizer section says.

    Accumulation adds the mean of the gradients to totals in kept tensors, by explicit ops, each gradient as
    soon as it is there; the first mini-batch overwrites them (lazy reset). What is clipped then is the total.
    The graph of the mini-batch also has the optimizer's states, which it does not touch: they lie in memory
    next to its own tensors.
    Raises as `build_training_graph`.
    """
    if spec.steps:
        graph = _unclipped(as_in_inference(spec) if spec.steps == ("fw",) else spec)
        if "upd" not in spec.steps:
            return TrainingPhases(only_steps(graph, spec.steps))
    wanted = gradient_options(spec.optimizer)
    _check_immediate(spec, wanted)
    graph = _unclipped(spec)
    if wanted.accumulate > 1:
        mini_batch, update = gradient_steps.accumulate_gradients(graph, wanted.accumulate)
        mini_batch = at_once(mini_batch, ADD)
    elif wanted.separate:
        mini_batch, update = _separated(graph)
    else:
        return TrainingPhases(_averaged(_clipped(graph, wanted), wanted))
    update = _averaged(_clipped(update, wanted), wanted)
    states = {name: update.tensors[name] for name in update.of_kind(*KEPT_KINDS)}
    mini_batch = replace(mini_batch, tensors={**states, **mini_batch.tensors})
    return TrainingPhases(mini_batch, wanted.accumulate, update)


def _check_immediate(spec: ModelSpec, wanted: GradientOptions) -> None:
    """Raise `ConfigError` for an immediate update where all gradients are needed together."""
    for key in ("separate", "clip_value", "clip_norm"):
        if wanted.immediate and getattr(wanted, key) not in (None, False):
            raise ConfigError(
                f"'immediate' changes weights before all gradients are ready, but '{key}' needs all "
                "gradients",
                where=spec.optimizer.where or spec.where,
                cure=f"remove 'immediate' or '{key}'",
            )


def _separated(graph: TrainingGraph) -> tuple[TrainingGraph, TrainingGraph]:
    """(everything up to the gradients, the updates): the second is given what the first leaves."""
    ops = tuple(op for op in graph.ops if op.step != "UPD")
    update = only(graph, [op for op in graph.ops if op.step == "UPD"])
    written = {name for op in ops for name in op.outputs}
    tensors = {
        name: tensor
        for name, tensor in graph.tensors.items()
        if tensor.kind not in KEPT_KINDS or tensor.alias_of is None or name in written
    }
    return replace(graph, tensors=tensors, ops=ops), replace(update, kept=())


def _clipped(graph: TrainingGraph, wanted: GradientOptions) -> TrainingGraph:
    if wanted.clip_value is not None:
        graph = gradient_steps.clip_gradients_by_value(graph, wanted.clip_value)
    if wanted.clip_norm is not None:
        graph = gradient_steps.clip_gradients_by_norm(graph, wanted.clip_norm)
    return graph


def _averaged(graph: TrainingGraph, wanted: GradientOptions) -> TrainingGraph:
    return gradient_steps.average_weights(graph, wanted.average) if wanted.average is not None else graph


def _unclipped(spec: ModelSpec) -> TrainingGraph:
    dtype_named(spec.dtype, spec.where)
    if spec.train is not None:
        # What is frozen is not known yet, so nothing is stored in 8 bits.
        plain = tuple(replace(layer, frozen_weights=None) for layer in spec.layers)
        builder, _ = _forward_graph(replace(spec, layers=plain, frozen_weights=None))
        spec = frozen_layers(spec, builder.layers)
    builder, made = _forward_graph(spec)
    terms = add_losses(builder, spec, made)
    gradients = builder.propagate(terms.seeds)
    if not gradients:
        cure = "add a layer with weights, or set trainable: true in a layer that has weights"
        raise ShapeError("the model has no weights to train", where=spec.where, cure=cure)
    parts = restrict_updates(builder, gradients)
    optimizer = optimizer_primitive(spec.optimizer.name, spec.optimizer.where)
    of_optimizer = optimizer_options(spec.optimizer, optimizer)
    names = [layer.name for layer in spec.layers]
    options = options_by_weight(spec.optimizer, optimizer, of_optimizer, builder.of_kind("weight"), names)
    builder.update(optimizer, options, gradients, parts)
    graph = replace(_graph(spec.name, builder, terms.outputs, gradients, terms), parts=parts)
    wanted = requested_reads((layer.spec for layer in builder.layers), spec.variant)
    if spec.variant != AS_PUBLISHED:
        graph = read_fewest_bytes(graph, wanted)
    if gradient_options(spec.optimizer).immediate:
        graph = at_once(graph, UPDATE)
    again = {layer.name for layer in spec.layers if layer.recompute}
    # A layer that the builder inserted for another (cast, adapter) has its name, a dot and more.
    built = [layer.spec.name for layer in builder.layers]
    return recompute(graph, [name for name in built if name.partition(".")[0] in again])


def _graph(
    name: str,
    builder: GraphBuilder,
    outputs: Iterable[str],
    gradients: Mapping[str, str],
    terms: Terms | None = None,
) -> TrainingGraph:
    terms = terms or Terms()
    return TrainingGraph(
        name=name,
        tensors=builder.tensors,
        ops=tuple(builder.ops),
        inputs=tuple(name for name in builder.of_kind("input") if name not in builder.backward.values()),
        labels=tuple(terms.labels),
        outputs=tuple(outputs),
        losses=tuple(terms.losses),
        weights=builder.of_kind("weight"),
        gradients=gradients,
        backward=builder.backward,
        draws=builder.draws,
    )


def build_forward_graph(spec: ModelSpec) -> TrainingGraph:
    """The forward pass alone, of a network that need not have anything to train. Raises as the others."""
    builder, made = _forward_graph(spec)
    return _graph(spec.name, builder, made[spec.layers[-1].name], {})


def _forward_graph(spec: ModelSpec) -> tuple[GraphBuilder, Made]:
    """All layers, and what inputs and layers give. Each must have a user: a layer, or a loss."""
    builder = GraphBuilder(spec.dtype, spec.layout, spec.variant, spec.frozen_weights)
    for item in spec.inputs:
        kind = INT32 if item.classes else FP32
        builder.add(Tensor(item.name, (spec.batch, *item.shape), "input", kind))
    outputs: dict[str, tuple[str, ...]] = {item.name: (item.name,) for item in spec.inputs}
    last = spec.layers[-1].name
    words = [word for loss in spec.losses for word in (loss.of or last, loss.target) if word is not None]
    used = {word.partition(".")[0] for word in words}
    before = spec.input_name
    for layer in spec.layers:
        if layer.name in outputs:
            raise ShapeError(
                f"two layers have the name {layer.name}", where=where_of(layer), cure="rename one of the two"
            )
        wanted = layer.inputs if layer.inputs is not None else (before,)
        if not wanted:
            raise ShapeError(
                "the layer has an empty list of inputs",
                where=where_of(layer),
                cure="name an earlier layer in 'inputs'",
            )
        inputs = [tensor_named(word, outputs, where_of(layer), "input") for word in wanted]
        outputs[layer.name] = (
            add_adapted(builder, layer, inputs) if layer.adapter else builder.add_layer(layer, inputs)
        )
        read = {word.partition(".")[0] for word in wanted}
        if layer_primitive(layer.type, where_of(layer)).counts_only:
            read &= {item.name for item in spec.inputs}
        used |= read | layer.layers_read
        before = layer.name
    for layer in spec.layers:
        if layer.name not in used:
            raise ShapeError(
                "no layer and no loss uses the output of the layer",
                where=where_of(layer),
                cure="name the layer in 'inputs' of another, or remove it",
            )
    for item in spec.more_inputs and spec.inputs:
        if item.name not in used:
            raise ShapeError(
                f"no layer uses the input '{item.name}'",
                where=spec.where,
                cure=f"name '{item.name}' in 'inputs' of a layer, or remove it",
            )
    return builder, outputs


def build_layer_graph(
    kind: str,
    attributes: Mapping[str, Any],
    inputs: Sequence[DrawnInput],
    *,
    batch: int = 1,
    dtype: str = "fp32",
    layout: str = "CHW",
    variant: str | None = None,
    where: str = "layer",
) -> TrainingGraph:
    """One layer alone, named after its type, with every step it has: gradients of all inputs and parameters.

    Inputs are tensors ``x``, ``x1`` ...; output gradients are given (kind input), there is no loss and no
    update. Raises the errors of `build_training_graph`.
    """
    primitive = layer_primitive(kind, where)
    builder = GraphBuilder(dtype, layout)
    names = []
    for number, case in enumerate(inputs):
        name = f"x{number or ''}"
        image = len(case.shape) == 3
        form = layout if image and (primitive.layouts is None or layout in primitive.layouts) else "CHW"
        tensor = Tensor(
            name, (batch, *case.shape), "input", case.dtype or dtype_named(dtype, where), layout=form
        )
        names.append(builder.add(tensor))
        if tensor.dtype.is_float:
            builder.differentiable.add(name)
    adapter = adapter_of(attributes.get("adapter"), where)
    options = {key: value for key, value in attributes.items() if key != "adapter"}
    spec = LayerSpec(kind, kind, options, where, dtype=dtype, variant=variant, adapter=adapter)
    outputs = builder.add_layer(spec, names)
    seeds = {}
    for name in outputs:
        if name in builder.differentiable:
            output = builder.tensors[name]
            seed = replace(output, name=gradient_name(name), kind="input", alias_of=None)
            seeds[builder.add(seed)] = name
    gradients = builder.propagate(seeds)
    return _graph(kind, builder, outputs[:1], gradients)


def build_loss_graph(
    kind: str,
    attributes: Mapping[str, Any],
    shape: tuple[int, ...],
    *,
    batch: int = 1,
    dtype: str = "fp32",
    where: str = "loss",
) -> tuple[TrainingGraph, LabelPlan | None]:
    """One loss alone on an output ``y`` of this shape per sample; also the plan of its labels.

    A loss is computed in fp32: with a 16-bit `dtype`, y is cast before it and its gradient after it.
    """
    loss = loss_primitive(kind, where)
    options = loss_options(LossSpec(kind, attributes, where), loss)
    builder = GraphBuilder(dtype)
    builder.add(Tensor("y", (batch, *shape), "input", dtype_named(dtype, where)))
    builder.differentiable.add("y")
    output = builder.cast(LayerSpec(kind, kind, {}, where, dtype=dtype), "y", FP32)
    plan = loss.plan(options, builder.tensors[output], where)
    terms = Terms()
    label = add_label(builder, "label", plan, where, terms) if plan is not None else None
    emit_loss(builder, terms, Term(loss, options, output, label), kind, LOSS)
    builder.propagate(terms.seeds)
    return _graph(kind, builder, ["y"], {}, terms), plan


def build_update_graph(
    kind: str,
    attributes: Mapping[str, Any],
    shape: tuple[int, ...],
    *,
    dtype: str = "fp32",
    where: str = "optimizer",
) -> TrainingGraph:
    """One optimizer step alone on a weight ``w`` of this shape with the gradient ``w.grad`` given."""
    optimizer = optimizer_primitive(kind, where)
    for key in GRADIENT_KEYS:
        if key in attributes:
            raise InputError(
                f"'{key}' applies to all gradients of a model, not to one op",
                where=where,
                cure=f"remove '{key}'",
            )
    options = optimizer_options(OptimizerSpec(kind, attributes, where), optimizer)
    builder = GraphBuilder(dtype)
    kind_of = dtype_named(dtype, where)
    builder.add(Tensor("w", shape, "weight", kind_of, initial=Initial("uniform", 1.0)))
    builder.add(Tensor("w.grad", shape, "input", kind_of))
    builder.update(optimizer, {"w": options}, {"w": "w.grad"})
    return _graph(kind, builder, (), {})


def only(graph: TrainingGraph, ops: Sequence[Op]) -> TrainingGraph:
    """The graph of some of the ops alone: what they read and do not write is given (kind input)."""
    written = {name for op in ops for name in op.outputs}
    roots = {graph.storage_of(name) for op in ops for name in (*op.inputs, *op.outputs)}
    used = roots | {name for op in ops for name in (*op.inputs, *op.outputs)}
    tensors: dict[str, Tensor] = {}
    for name, tensor in graph.tensors.items():
        if name not in used:
            continue
        given = name not in written and tensor.kind not in KEPT_KINDS
        alias = graph.storage_of(name) if tensor.alias_of is not None else None
        tensors[name] = replace(tensor, kind="input" if given else tensor.kind, alias_of=alias)
    kept = tuple(sorted(written))
    return replace(graph.of_ops(ops), tensors=tensors, outputs=(), gradients={}, kept=kept)


def initial_value(tensor: Tensor, seed: int) -> Array:
    """The start of a kept tensor by its rule, drawn in fp32 and rounded to its dtype.

    Each tensor has a generator of its own, seeded by `seed` and its name, so a layer's start does not depend
    on the layers around it.
    """
    rule, scale = tensor.initial.rule, tensor.initial.scale
    generator = np.random.default_rng([seed, zlib.crc32(tensor.name.encode())])
    if rule == "uniform":
        values = generator.uniform(-scale, scale, tensor.shape)
    elif rule == "normal":
        values = generator.normal(0, scale, tensor.shape)
    else:
        values = np.full(tensor.shape, scale)
    return rounded(values.astype(np.float32), tensor.dtype)


def initial_weights(graph: TrainingGraph, seed: int) -> dict[str, Array]:
    """Start values of everything that lives from one iteration to the next: weights, buffers, states."""
    kept = [graph.tensors[name] for name in graph.of_kind(*KEPT_KINDS)]
    floats = {item.name: replace(item, dtype=FP32) if is_stored(item) else item for item in kept}
    return with_codes(graph.tensors, {name: initial_value(item, seed) for name, item in floats.items()})
