# SPDX-License-Identifier: Apache-2.0
"""Variants of a step: who has which, what they make of a graph, and that the published ones cost theirs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from arch.pricing.team_cost_model import TeamCostModel
from arch.spec.soc_config import load_soc
from configs.errors import InputError, UnsupportedLayerError
from configs.model_file import read_model
from configs.yaml_file import parse_yaml
from shared.closed_forms import fork_to_join_cycles, works_of
from shared.primitive_harness import CODEGEN
from trainlib.ir.graph import TrainingGraph
from trainlib.ir.steps import KernelChoice
from trainlib.primitives.definition import DrawnInput
from trainlib.registry import lowering_of
from trainlib.training.phases import build_layer_graph, build_training_graph
from trainlib.training.variants import known_variants, own_variant, variants_of, with_variants

CORES = 8

MODEL = """
name: small
description: a residual block behind a max-pool, and a softmax
source: made up
input: {shape: [2, 8, 8]}
dataset: random
loss: mse
optimizer: {name: sgd, learning_rate: 0.1}
layers:
  - {name: conv, type: conv2d, out_channels: 4, kernel: 3}
  - {name: pool, type: max_pool2d, kernel: 2}
  - {name: dw, type: depthwise, kernel: 1}
  - {name: sum, type: add, inputs: [dw, pool]}
  - {name: flat, type: flatten}
  - {name: fc, type: linear, out_features: 4}
  - {name: soft, type: softmax}
"""

PUBLISHED = ("dataset", "variant: as-published\ndataset")
"""What makes the model one of PULP-TrainLib's own ways."""


def model(*changes: tuple[str, str]) -> TrainingGraph:
    text = MODEL
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    return build_training_graph(read_model(parse_yaml(text, "small.yaml")))


def shape_of(graph: TrainingGraph) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    return {op.name: (op.reads, op.writes) for op in graph.ops}


def layer(kind: str, options: Mapping[str, Any], *shapes: tuple[int, ...], variant: str) -> TrainingGraph:
    return build_layer_graph(kind, options, [DrawnInput(shape) for shape in shapes], variant=variant)


def test_a_model_as_published_is_another_graph_where_the_library_s_is() -> None:
    ours, theirs = model(), model(PUBLISHED)
    changed = {name for name, shape in shape_of(theirs).items() if shape_of(ours).get(name) != shape}
    assert changed == {"pool.FW", "pool.IG", "sum.IG"}
    assert shape_of(theirs)["pool.IG"] == (("x", "dy"), ("dx",))
    assert "pool.argmax" not in theirs.tensors
    assert theirs.tensors["dw.out.grad"].alias_of is None, "a copy, where ours is a view"
    assert ours.tensors["dw.out.grad"].alias_of is not None
    attributes = {op.name: op.attributes for op in theirs.ops}
    assert attributes["soft.FW"]["exponential"] == "schraudolph"
    published = {op.name for op in theirs.ops if own_variant(op) == "as-published"}
    assert published == {"pool.FW", "pool.IG", "pool.ACC", "dw.WG", "dw.IG", "sum.FW", "sum.IG"}


def test_what_a_layer_says_goes_before_what_the_model_says() -> None:
    assert "pool.argmax" in model(PUBLISHED, ("max_pool2d", "max_pool2d, variant: default")).tensors
    assert "pool.argmax" not in model(("max_pool2d", "max_pool2d, variant: as-published")).tensors
    exact = model(PUBLISHED, ("type: softmax", "type: softmax, exponential: exact"))
    assert next(op for op in exact.ops if op.name == "soft.FW").attributes["exponential"] == "exact"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("max_pool2d", "max_pool2d, variant: fast", "max_pool2d has no variant 'fast'"),
        ("type: linear", "type: linear, variant: as-published", "linear has no variant 'as-published'"),
        (
            "kernel: 2",
            "kernel: 2, padding: 1, variant: as-published",
            "needs padding 0 and the same stride",
        ),
        (
            "kernel: 1",
            "kernel: 3, padding: 1, variant: as-published",
            "needs stride 1, padding 0, dilation 1 and CHW",
        ),
    ],
)
def test_a_variant_that_a_layer_cannot_have_is_refused_at_its_line(old: str, new: str, message: str) -> None:
    with pytest.raises(UnsupportedLayerError, match=message) as caught:
        model((old, new))
    assert "small.yaml:" in str(caught.value.where)


def test_of_a_model_as_published_a_layer_the_library_cannot_do_stays_ours() -> None:
    graph = model(PUBLISHED, ("kernel: 1", "kernel: 3, padding: 1"))
    assert {own_variant(op) for op in graph.ops if op.layer == "dw"} == {""}


def test_ops_have_the_variants_that_leave_their_neighbours_alone() -> None:
    found = {op.name: variants_of(op) for op in model().ops if variants_of(op)}
    both = ("default", "as-published")
    assert found == {
        "conv.FW": ("cores", "dma", "none"),
        "sum.FW": both,
        "dw.WG": both,
        "dw.IG": both,
        "pool.ACC": both,
        "conv.WG": ("cores", "dma", "none"),
    }
    assert {name for names in found.values() for name in names} <= set(known_variants())
    chosen = with_variants(model(), {"WG": "as-published", "conv.WG": "none"})
    assert {op.name: own_variant(op) for op in chosen.ops if op.step == "WG"} == {
        "fc.WG": "",
        "dw.WG": "as-published",
        "conv.WG": "none",
    }
    back = with_variants(chosen, {"dw.WG": "default"})
    assert next(op for op in back.ops if op.name == "dw.WG") in model().ops


@pytest.mark.parametrize(
    ("variants", "message"),
    [
        ({"pool.IG": "as-published"}, "this op has no variant that can be chosen for it alone"),
        ({"dw.WG": "dma"}, "unknown variant 'dma'"),
        ({"IG": "dma"}, "no op of the step has the variant 'dma'"),
        ({"dw.XX": "default"}, "'dw.XX' is not an op or step"),
    ],
)
def test_a_variant_that_an_op_cannot_have_is_refused(variants: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        with_variants(model(), variants)
    if "pool.IG" in variants:
        assert "--variant as-published" in str(caught.value.cure)


def test_the_published_depthwise_gradients_are_those_that_were_validated() -> None:
    """The row of layer.csv for 8 channels of 8 x 8 and a 3 x 3 kernel: 16,698 and 67,776 cycles."""
    timing = load_soc("pulp-open", "gvsoc")
    cost_model = TeamCostModel(timing)
    graph = layer("depthwise", {"kernel": 3}, (8, 8, 8), variant="as-published")
    for step, nest, cycles in (("WG", "dw_wg", 16_698), ("IG", "dw_ig", 67_776)):
        (team,) = works_of(graph, step)
        assert team.kernel == nest
        taken = fork_to_join_cycles(team, cost_model.price(team), timing.event_unit)
        assert taken == pytest.approx(cycles, rel=0.01)


@pytest.mark.parametrize(
    ("kind", "options", "shapes", "nests"),
    [
        ("add", {}, ((4, 6), (4, 6)), {"FW": ["broadcast_sum"], "IG": ["copy"]}),
        ("max_pool2d", {"kernel": 2}, ((8, 8, 8),), {"FW": ["maxpool_fw"], "IG": ["maxpool_bw"]}),
        ("transpose", {"axes": [1, 0]}, ((4, 6),), {"FW": ["transpose_nd"], "IG": ["transpose_nd"]}),
        (
            "softmax",
            {},
            ((4, 6),),
            {"FW": ["row_max", "exp_sum", "row_div"], "IG": ["softmax_bw_sum", "softmax_bw_scale"]},
        ),
    ],
)
def test_the_published_passes_run_the_published_nests(
    kind: str, options: dict[str, Any], shapes: tuple[tuple[int, ...], ...], nests: dict[str, list[str]]
) -> None:
    graph = layer(kind, options, *shapes, variant="as-published")
    assert {op.step: [team.kernel for team in works_of(graph, op.step)] for op in graph.ops} == nests


def test_a_direct_pointwise_gradient_transposes_nothing() -> None:
    case = [DrawnInput((4, 5, 6))]
    for variant, kernels in (("default", ["transpose_matrix", "mm"]), ("direct", ["mm"])):
        graph = build_layer_graph("pointwise", {"out_channels": 3}, case, layout="HWC", variant=variant)
        (op,) = (op for op in graph.ops if op.step == "IG")
        ranges = {name: (0, size) for name, size in lowering_of(op).extents(op, graph.tensors).items()}
        task = lowering_of(op).tile(op, graph.tensors, ranges, KernelChoice("mm", CODEGEN))
        assert [call.kernel for call in task.calls] == kernels
