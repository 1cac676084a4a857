# SPDX-License-Identifier: Apache-2.0
"""One primitive alone: its graph and seeded values, for ``pulptrain primitive`` and for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from configs.errors import InputError, UnsupportedLayerError
from configs.limits import PROCESS_BYTES, TENSOR_COPIES, require_host_memory
from configs.suggest import suggestion
from configs.values import Struct
from trainlib.ir.graph import Tensor, TrainingGraph
from trainlib.ir.numerics import rounded
from trainlib.ir.steps import Array
from trainlib.primitives.definition import (
    VARIANT,
    DrawnInput,
    LabelPlan,
    LayerPrimitive,
    LossPrimitive,
    OptimizerPrimitive,
)
from trainlib.registry import PRIMITIVES, is_internal
from trainlib.training.phases import build_layer_graph, build_loss_graph, build_update_graph, initial_value
from trainlib.training.training_data import random_tensors

KINK_DISTANCE = 0.05
"""How far values stay from the points of `DrawnInput.away_from`."""


class Single(Struct, frozen=True):
    """A primitive alone: `graph` has one op per step; `values` are those of all its given tensors."""

    graph: TrainingGraph
    values: Mapping[str, Array]


def single(
    name: str,
    attributes: Mapping[str, Any],
    inputs: Sequence[DrawnInput],
    *,
    batch: int = 1,
    dtype: str = "fp32",
    seed: int = 0,
    where: str = "primitive",
) -> Single:
    """The primitive `name` on inputs of these shapes (without batch), all given tensors drawn from `seed`.

    Weights start by their own rule, as in training, so that numbers stay of a size that training sees; those
    that start as a constant are drawn as well, lest a bias of zeros hide that it is never added.

    A loss has one input, the network's output (cast to fp32 before it); an optimizer one, the weight. The
    options ``layout`` and ``variant`` of a layer are those of its inputs and of its lowering.
    Raises UnsupportedLayerError for an unknown name, InputError for what does not fit.
    """
    primitive = PRIMITIVES.get(name)
    if primitive is None:
        public = [key for key, item in PRIMITIVES.items() if not is_internal(item)]
        raise UnsupportedLayerError(f"unknown primitive '{name}'", where=where, cure=suggestion(name, public))
    labels, cases = None, {f"x{number or ''}": case for number, case in enumerate(inputs)}
    if isinstance(primitive, LayerPrimitive):
        options = {key: value for key, value in attributes.items() if key not in ("layout", VARIANT)}
        layout = str(attributes.get("layout", (primitive.layouts or ("CHW",))[0]))
        variant = str(attributes[VARIANT]) if VARIANT in attributes else None
        graph = build_layer_graph(
            name,
            options,
            inputs,
            batch=batch,
            dtype=dtype,
            layout=layout,
            variant=variant,
            where=where,
        )
    elif VARIANT in attributes:
        raise InputError(f"{name} has no variants", where=where, cure=f"remove '{VARIANT}'")
    elif len(inputs) != 1:
        message = f"{name} has one input, but {len(inputs)} are specified"
        raise InputError(message, where=where, cure="specify one input")
    elif isinstance(primitive, LossPrimitive):
        graph, labels = build_loss_graph(
            name, attributes, inputs[0].shape, batch=batch, dtype=dtype, where=where
        )
        cases = {"y": inputs[0]}
    elif isinstance(primitive, OptimizerPrimitive):
        graph = build_update_graph(name, attributes, inputs[0].shape, dtype=dtype, where=where)
    else:
        raise UnsupportedLayerError(
            f"{name} is an internal op: pulptrain adds it, models cannot name it",
            where=where,
            cure="use a layer of `pulptrain list primitives`",
        )
    values_bytes = sum(tensor.size_bytes for tensor in graph.tensors.values() if tensor.alias_of is None)
    require_host_memory(PROCESS_BYTES + TENSOR_COPIES * values_bytes, "its tensors need", where=where)
    return Single(graph, _values(graph, cases, labels, seed))


def _values(
    graph: TrainingGraph, cases: Mapping[str, DrawnInput], labels: LabelPlan | None, seed: int
) -> dict[str, Array]:
    generator = np.random.default_rng(seed)
    values = random_tensors(graph, seed, 0)
    for name in graph.needed_values:
        tensor = graph.tensors[name]
        if name in values:
            continue
        drawn = tensor.kind == "weight" and tensor.initial.rule != "constant"
        if drawn or tensor.kind in ("buffer", "optimizer_state"):
            values[name] = initial_value(tensor, seed)
        elif tensor.kind == "label" and labels is not None:
            values[name] = _labels(generator, tensor, labels)
        else:
            values[name] = _draw(cases.get(name, DrawnInput(())), tensor, generator)
    return values


def _draw(case: DrawnInput, tensor: Tensor, generator: np.random.Generator) -> Array:
    if not tensor.dtype.is_float:
        integers: Array = generator.integers(int(case.low), int(case.high), size=tensor.shape)
        return integers.astype(tensor.dtype)
    if case.distinct:
        count = prod(tensor.shape)
        values = np.linspace(case.low, case.high, count)[generator.permutation(count)].reshape(tensor.shape)
    else:
        values = generator.uniform(case.low, case.high, tensor.shape)
    for point in case.away_from:
        near = np.abs(values - point) < KINK_DISTANCE
        values = np.where(near, point + np.where(values >= point, KINK_DISTANCE, -KINK_DISTANCE), values)
    return rounded(values.astype(np.float32), tensor.dtype)


def _labels(generator: np.random.Generator, tensor: Tensor, plan: LabelPlan) -> Array:
    """Class numbers, or distributions that do not quite sum to one, as soft labels may; or what else fits."""
    if plan.hard:
        return generator.integers(plan.classes, size=tensor.shape).astype(tensor.dtype)
    if plan.classes:
        return generator.uniform(0, 2 / plan.classes, tensor.shape).astype(np.float32)
    drawn = [plan.values.draw(generator, tensor.shape[1:]) for _ in range(tensor.shape[0])]
    return np.stack(drawn).astype(np.float32)
