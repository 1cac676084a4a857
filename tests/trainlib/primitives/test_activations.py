# SPDX-License-Identifier: Apache-2.0
"""Activations: no overflow, how far PULP-TrainLib's approximations are off, and steps the library lacks."""

from __future__ import annotations

from math import erf, exp, sqrt

import numpy as np
import pytest

from configs.dtypes import is_narrow
from configs.values import replace
from shared.primitive_harness import CODEGEN, run_op
from trainlib.ir.steps import KernelChoice
from trainlib.primitives.definition import DrawnInput
from trainlib.primitives.elementwise import functions
from trainlib.references.reference import evaluate
from trainlib.registry import lowering_of, step_of
from trainlib.training.phases import build_layer_graph

CHOICE = KernelChoice("", CODEGEN)


def layer(name, shape=(4,), options=None, inputs=1, dtype="fp32"):
    return build_layer_graph(name, options or {}, [DrawnInput(shape)] * inputs, dtype=dtype)


def op_of(graph, step):
    return next(op for op in graph.ops if op.step == step)


@pytest.mark.parametrize(
    ("name", "options", "low", "high"),
    [
        ("sigmoid", {}, 0, 1),
        ("tanh", {}, -1, 1),
        ("tanh", {"form": "pulp_fastexp"}, -1, 1),
        ("silu", {}, 0, 3e4),
        ("gelu", {"form": "erf"}, 0, 3e4),
        ("gelu", {"form": "tanh"}, 0, 3e4),
        ("gelu", {"form": "pulp_rational"}, 0, 3e4),
    ],
)
def test_huge_inputs_give_the_limits_without_overflow(name, options, low, high) -> None:
    """The library's rational tanh is inf / inf in fp32 for inputs from about 350 on."""
    graph = layer(name, (2,), options)
    given = {"x": np.array([[-3e4, 3e4]], np.float32), f"{name}.out.grad": np.ones((1, 2), np.float32)}
    # exp of a large negative number may become zero: that is the limit, not a mistake.
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        values = evaluate(graph, given)
        for op in graph.ops:
            results, _ = run_op(op, graph.tensors, values, {"d0": 1}, CHOICE)
            for tensor, array in results.items():
                assert np.array_equal(array, values[tensor]), op.name
    assert values[f"{name}.out"] == pytest.approx(np.array([[low, high]]), abs=1e-30)
    assert values["x.grad"] == pytest.approx(np.array([[0, high > 1]]), abs=1e-30)


@pytest.mark.parametrize("name", ["sigmoid", "silu"])
def test_the_truth_of_a_sigmoid_has_its_digits_far_left(name) -> None:
    """By a tanh it had an error of 1e-17, thousands of roundings of what is 3e-13."""
    x = np.array([[-28.8, -40.0, -80.0]])
    exact = [exp(value) / (1 + exp(value)) * (1 if name == "sigmoid" else value) for value in x[0]]
    values = evaluate(layer(name, (3,)), {"x": x, f"{name}.out.grad": np.ones((1, 3))})
    assert values[f"{name}.out"][0] == pytest.approx(exact, rel=1e-6)


def test_schraudolph_s_exponential_is_off_by_three_percent_at_most_and_by_two_somewhere() -> None:
    x = np.linspace(-20, 0, 20_001, dtype=np.float32)
    error = np.abs(functions.schraudolph(x) / np.exp(x.astype(np.float64)) - 1)
    assert 0.0297 < error.max() < 0.0299


def test_schraudolph_s_exponential_ends_in_zero_and_in_infinity() -> None:
    ends = functions.schraudolph(np.array([-1e30, -88, 88.5, 1e30], np.float32))
    assert ends[0] == 0
    assert 0 <= ends[1] < 1e-37
    assert 1e38 < ends[2] < np.inf
    assert ends[3] == np.inf  # the library's upper clamp is the bit pattern of infinity


def test_the_taylor_exponential_loses_digits_towards_its_end_and_is_zero_beyond() -> None:
    limit = functions.TAYLOR_LIMIT / functions.LOG2_E
    x = np.linspace(-limit + 1e-4, 0, 1000, dtype=np.float32)
    error = np.abs(functions.taylor(x) - np.exp(x))
    assert error[-1] == 0  # the largest element of a row counts as 1
    assert error.argmax() == 0
    assert 0.02 < error.max() < 0.04
    assert not functions.taylor(np.array([-limit - 1e-4, -50], np.float32)).any()


def test_the_fastexp_and_tanh_of_the_rnn_are_off_by_less_than_a_ten_thousandth() -> None:
    wide = np.linspace(-80, 80, 10_001, dtype=np.float32)
    assert np.abs(functions.fastexp(wide) / np.exp(wide.astype(np.float64)) - 1).max() < 1e-4
    x = np.linspace(-10, 10, 10_001, dtype=np.float32)
    error = np.abs(functions.fastexp_tanh(x) - np.tanh(x.astype(np.float64)))
    assert 1e-6 < error.max() < 1e-4


def test_the_rational_tanh_is_clamped_where_its_quotient_passes_one() -> None:
    assert functions.rational_tanh(np.array([-40.0, 40.0])).tolist() == [-1, 1]
    u = np.linspace(-4, 4, 4001)
    assert np.abs(functions.rational_tanh(u) - np.tanh(u)).max() < 1e-3


@pytest.mark.parametrize("form", ["erf", "tanh", "pulp_rational"])
def test_gelu_has_a_gradient_in_every_form_though_the_library_has_fw_only(form) -> None:
    x = np.linspace(-3, 3, 41)
    graph = layer("gelu", (41,), {"form": form})
    given = {"x": x[None].astype(np.float32), "gelu.out.grad": np.ones((1, 41), np.float32)}
    slope = evaluate(graph, given)["x.grad"][0]

    def gelu(x):
        if form == "erf":
            return np.array([value / 2 * (1 + erf(value / sqrt(2))) for value in x])
        u = functions.GELU_SLOPE * (x + functions.GELU_CUBIC * x**3)
        return x / 2 * (1 + (np.tanh(u) if form == "tanh" else functions.rational_tanh(u)))

    step = 1e-5
    differences = (gelu(x + step) - gelu(x - step)) / (2 * step)
    assert np.abs(slope - differences).max() < 1e-6


def test_the_forms_of_gelu_are_three_functions() -> None:
    x = np.array([[-2.0, 0.5, 3.0]], np.float32)
    given = {"x": x, "gelu.out.grad": x}
    found = {
        form: evaluate(layer("gelu", (3,), {"form": form}), given)["gelu.out"]
        for form in ("erf", "tanh", "pulp_rational")
    }
    assert 1e-5 < np.abs(found["erf"] - found["tanh"]).max() < 1e-3
    assert 1e-6 < np.abs(found["pulp_rational"] - found["tanh"]).max() < 1e-3


def test_swiglu_skips_the_input_gradient_nobody_needs() -> None:
    graph = layer("swiglu", (4, 3), inputs=2)
    whole = op_of(graph, "IG")
    assert whole.writes == ("dx", "dx1")
    task = lowering_of(whole).tile(whole, graph.tensors, {"d0": (0, 4), "d1": (0, 3)}, CHOICE)
    assert [call.kernel for call in task.calls] == ["swiglu_bw_gate", "swiglu_bw_value"]
    half = replace(whole, outputs=whole.outputs[1:], writes=("dx1",))
    task = lowering_of(half).tile(half, graph.tensors, {"d0": (0, 4), "d1": (0, 3)}, CHOICE)
    assert [call.kernel for call in task.calls] == ["swiglu_bw_value"]
    assert [operand.name for operand in task.inputs] == ["x", "dy"]


@pytest.mark.parametrize("name", ["sigmoid", "tanh"])
def test_backward_reads_the_stored_output_and_not_the_input(name) -> None:
    assert op_of(layer(name), "IG").reads == ("y", "dy")


def instructions(nodes) -> int:
    return sum(node.trips * instructions(node.body) if hasattr(node, "body") else 1 for node in nodes)


def cost(name, step, options=None, dtype="fp32", elements=64) -> int:
    """Instructions of the busiest of 8 cores."""
    graph = layer(name, (elements,), options, dtype=dtype)
    op = op_of(graph, step)
    task = lowering_of(op).tile(op, graph.tensors, {"d0": (0, elements)}, CHOICE)
    (call,) = task.calls
    addresses = {role: 4096 * index for index, role in enumerate((*call.reads, *call.writes))}
    team = call.work(8, addresses)
    return max(instructions(core.body) for core in team.cores)


def test_the_library_s_approximations_cost_less_than_what_they_approximate() -> None:
    assert cost("gelu", "FW", {"form": "pulp_rational"}) < cost("gelu", "FW", {"form": "tanh"})
    assert cost("tanh", "FW", {"form": "pulp_fastexp"}) < cost("tanh", "FW")
    assert cost("leaky_relu", "FW") < cost("sigmoid", "FW") < cost("silu", "FW", elements=96)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_16_bit_functions_execute_the_same_instructions_on_half_the_bytes(dtype) -> None:
    assert cost("silu", "IG", dtype=dtype) == cost("silu", "IG")
    assert all(is_narrow(tensor.dtype) for tensor in layer("silu", dtype=dtype).tensors.values())


def test_every_option_of_an_activation_has_a_nest_of_its_own() -> None:
    kernels = set()
    for form in ("erf", "tanh", "pulp_rational"):
        graph = layer("gelu", (4,), {"form": form})
        for op in graph.ops:
            task = lowering_of(op).tile(op, graph.tensors, {"d0": (0, 4)}, CHOICE)
            kernels |= {call.kernel for call in task.calls}
            assert step_of(op).name == op.step
    assert len(kernels) == 6
