# SPDX-License-Identifier: Apache-2.0
"""The table of PULP-TrainLib's defects names tests that exist; those that had no other place are here."""

import re
from collections import Counter

import numpy as np
import pytest

from arch.spec.soc_config import load_soc
from configs.errors import DoesNotFitError
from configs.model_file import load_model
from configs.values import replace
from pulptrain.inputs.settings import Settings
from pulptrain.running.primitive_run import run_primitive
from scheduler.memory.memory_plan import plan_memory
from shared.known_defects import DEFECTS
from shared.paths import TESTS
from shared.primitive_harness import Case, assert_close, build, check_tiles, run_op
from trainlib.ir.steps import KernelChoice
from trainlib.kernels import catalogue
from trainlib.primitives.definition import DrawnInput, Example
from trainlib.references.reference import evaluate
from trainlib.registry import lowering_of
from trainlib.training.phases import build_training_graph


@pytest.mark.parametrize("name", [name for _, names in DEFECTS for name in names])
def test_a_test_of_the_table_exists(name: str) -> None:
    file, _, rest = name.partition("::")
    function, _, case = rest.removesuffix("]").partition("[")
    text = (TESTS / f"{file}.py").read_text(encoding="utf-8")
    assert re.search(rf"^def {function}\(", text, re.MULTILINE)
    assert not case or f'"{case}"' in text


# Where published kernels go wrong with 8 cores: N-split blocks from N = 17, M-split ones from M = 18.
AWKWARD = [(17, 3, 9), (18, 7, 18), (36, 2, 36), (5, 1, 2)]
MATMULS = [
    (dtype, codegen, kernel)
    for dtype, codegen in (("fp32", "clang-xpulp"), ("bf16", "asm-xpulp"))
    for kernel in catalogue.kernel_names(codegen, dtype)
    if kernel.startswith("mm")
]


@pytest.mark.parametrize("trans_b", [False, True])
@pytest.mark.parametrize(("dtype", "codegen", "kernel"), MATMULS)
def test_every_matmul_is_right_where_its_blocks_do_not_fit(dtype, codegen, kernel, trans_b) -> None:
    """In the order of the kernel's own sums, into a buffer of NaN, for a team of 8."""
    for n, k, m in AWKWARD:
        shapes = ((n, k), (m, k) if trans_b else (k, m))
        graph, values = build(Case("matmul", 0, Example({"transpose_b": trans_b}, shapes), dtype, 1))
        op = graph.ops[0]
        known = evaluate(graph, values)
        choice = KernelChoice(kernel, codegen, "kernel", cores=8)
        sizes = dict(lowering_of(op).extents(op, graph.tensors))
        results, _ = run_op(op, graph.tensors, known, sizes, choice)
        allowed = 1e-5 if dtype == "fp32" else 2.0**-8 * (2 + k)
        assert_close(results[op["y"]], known[op["y"]], allowed, f"{kernel} {n}x{k}x{m}")


def test_the_bias_of_a_linear_layer_counts_once_and_stays_out_of_dw() -> None:
    options = {"out_features": 5, "bias": True}
    case = Case("linear", 0, Example(options, ((7,),)), "fp32", 3)
    graph, values = build(case)
    known = evaluate(graph, values)
    check_tiles(case)
    x, w, b = (known[name].astype(np.float64) for name in ("x", "linear.weight", "linear.bias"))
    assert np.abs(b).min() > 0
    np.testing.assert_allclose(known[graph.output], x @ w.T + b, rtol=0, atol=1e-6)
    dy = known[graph.backward[graph.output]].astype(np.float64)
    np.testing.assert_allclose(known["linear.weight.grad"], dy.T @ x, rtol=0, atol=1e-6)
    np.testing.assert_allclose(known["linear.bias.grad"], dy.sum(axis=0), rtol=0, atol=1e-6)


def test_frozen_weights_biases_and_depthwise_weights_have_their_bytes() -> None:
    """A frozen weight takes memory for the whole iteration, a bias 4 B an element, depthwise C x k x k."""
    options = {"kernel": 3, "bias": True}
    graph, _ = build(Case("depthwise", 0, Example(options, ((6, 8, 8),)), "fp32", 1))
    assert graph.tensors["depthwise.weight"].size_bytes == 6 * 3 * 3 * 4
    assert graph.tensors["depthwise.bias"].size_bytes == 6 * 4
    spec = load_model("digits-cnn")
    frozen = replace(
        spec, layers=tuple(replace(layer, trainable=layer.name == "fc") for layer in spec.layers)
    )
    graph = build_training_graph(frozen)
    assert "conv1.weight" not in graph.gradients
    home = plan_memory(graph, load_soc()).home("conv1.weight")
    assert (home.size_bytes, home.first_op, home.last_op) == (
        graph.tensors["conv1.weight"].size_bytes,
        0,
        len(graph.ops),
    )


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(DoesNotFitError):
        run_primitive("relu", "fw", [DrawnInput((64, 64, 64))], {}, settings=Settings(l2="64KiB", l3="0"))


def test_every_layer_of_the_resnet_goes_backward_once() -> None:
    graph = build_training_graph(load_model("trainlib-resnet-cifar10"))
    assert max(Counter(op.name for op in graph.ops).values()) == 1
    backward = Counter(op.layer for op in graph.ops if op.step == "WG")
    assert set(backward.values()) == {1}
    assert set(backward) == {name.rpartition(".")[0] for name in graph.weights}
