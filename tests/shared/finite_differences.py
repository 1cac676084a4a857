# SPDX-License-Identifier: Apache-2.0
"""Gradients of a layer's references against central differences, all in float64."""

from __future__ import annotations

import numpy as np

from configs.dtypes import is_float
from trainlib.primitives.definition import is_forward
from trainlib.registry import step_of
from trainlib.training.phases import build_layer_graph

STEP = 1e-6
ALLOWED = 1e-7
"""Of the largest gradient; central differences of step 1e-6 are good to about 1e-9 here."""


def run(graph, values, steps):
    """Values of all tensors after the ops whose step `steps` accepts, by their references, in float64."""
    known = dict(values)
    for op in graph.ops:
        if steps(op.step):
            arrays = {role: known[name] for role, name in zip(op.reads, op.inputs, strict=True)}
            results = step_of(op).reference(op, arrays)
            known.update({op[role]: np.asarray(results[role]) for role in op.writes})
    return known


def check_gradients(name, attributes, inputs, *, batch=2, seed=0, probes=12) -> list[str]:
    """Compare `probes` elements of every gradient of the layer; returns the names of the gradients."""
    graph = build_layer_graph(name, attributes, inputs, batch=batch)
    generator = np.random.default_rng(seed)
    values = {}
    for given in graph.needed_values:
        tensor = graph.tensors[given]
        assert is_float(tensor.dtype)
        values[given] = generator.normal(0, 0.7, tensor.shape)
    seed_gradient = values[graph.backward[graph.output]]

    def loss(changed):
        return float(np.sum(run(graph, changed, is_forward)[graph.output] * seed_gradient))

    known = run(graph, values, lambda step: True)
    pairs = {**graph.gradients, **{x: dx for x, dx in graph.backward.items() if x in graph.needed_values}}
    for tensor, gradient in pairs.items():
        ours = known[gradient]
        assert ours.dtype == np.float64, f"{gradient} lost precision"
        for flat in generator.choice(ours.size, min(probes, ours.size), replace=False):
            place = np.unravel_index(flat, ours.shape)
            shifted = []
            for step in (STEP, -STEP):
                moved = values[tensor].copy()
                moved[place] += step
                shifted.append(loss({**values, tensor: moved}))
            slope = (shifted[0] - shifted[1]) / (2 * STEP)
            assert abs(slope - ours[place]) <= ALLOWED * max(1, float(np.abs(ours).max())), (gradient, place)
    return list(pairs.values())
