# SPDX-License-Identifier: Apache-2.0
"""The library's own single-layer tests of these primitives, with their shapes, on the simulated SoC."""

from __future__ import annotations

import numpy as np
import pytest

from pulptrain.running.primitive_run import run_primitive
from trainlib.primitives.definition import DrawnInput

ACTIVATIONS = [
    ("leaky_relu", {}),
    ("sigmoid", {}),
    ("softmax", {"exponential": "schraudolph"}),
    ("softmax", {}),
    ("tanh", {"form": "pulp_fastexp"}),
    ("gelu", {"form": "pulp_rational"}),
]
ROWS = [
    *(
        (name, step, [(8, 4, 4)], options, dtype)
        for name, options in ACTIVATIONS
        for step in ("fw", "ig")
        for dtype in ("fp32", "bf16")
    ),
    ("gelu", "fw", [(160, 7, 7)], {"form": "pulp_rational"}, "bf16"),
    ("dropout", "fw", [(100,)], {"p": 0.23}, "fp32"),
    ("interpolation", "fw", [(1, 8, 8)], {"size": [48, 48]}, "fp32"),
    ("interpolation", "fw", [(1, 8, 8)], {"size": [48, 48], "mode": "bilinear"}, "fp32"),
    ("reduce_mean", "fw", [(7, 800, 2)], {"axes": [1]}, "fp32"),
    ("transpose", "fw", [(13, 15, 17)], {"axes": [2, 0, 1]}, "fp32"),
    ("pad", "fw", [(2, 3, 3)], {"pads": [[0, 0], [1, 1], [1, 1]]}, "fp32"),
    ("concat", "ig", [(6, 5, 5), (3, 5, 5)], {}, "fp16"),
    ("split", "ig", [(6, 5, 5)], {"sizes": [2, 4]}, "fp32"),
    ("slice", "ig", [(6, 5, 5)], {"stop": 4}, "fp32"),
    ("swiglu", "ig", [(32, 10), (32, 10)], {}, "bf16"),
    ("pad", "fw", [(100,)], {"pads": [[60000, 2]]}, "fp32"),
]


@pytest.mark.parametrize(
    ("name", "step", "shapes", "options", "dtype"),
    ROWS,
    ids=[f"{row[0]}-{row[1]}-{row[4]}-{number}" for number, row in enumerate(ROWS)],
)
def test_runs_checked_on_the_soc(name, step, shapes, options, dtype) -> None:
    outcome = run_primitive(name, step, [DrawnInput(shape) for shape in shapes], options, dtype=dtype)
    # Numbers were checked by the run itself, which raises where they differ.
    assert outcome.summary["cycles"] > 0


@pytest.mark.parametrize("form", ["erf", "tanh", "pulp_rational"])
def test_gelu_has_a_slope_wherever_fp32_has_numbers(form: str) -> None:
    values = np.array([[-3e38, -1e19, -60.0, 0.0, 60.0, 1e19, 3e38]], np.float32)
    outcome = run_primitive("gelu", "ig", [DrawnInput((7,))], {"form": form}, values={"x": values})
    assert outcome.summary["functional"]["passed"]


@pytest.mark.parametrize("step", ["fw", "ig"])
def test_gelu_keeps_its_digits_where_it_is_nearly_zero(step: str) -> None:
    """At -13 it is -7e-38, which 1 + erf of float64 does not know."""
    values = {"x": np.array([[-13.0, -12.5, -9.0]], np.float32)}
    outcome = run_primitive("gelu", step, [DrawnInput((3,))], {}, values=values)
    assert outcome.summary["functional"]["passed"]


def test_swiglu_of_a_large_gradient_is_finite_where_the_truth_is() -> None:
    """dy · x is beyond fp32 at -1.5, the gradient dy · x · sigmoid(x) is not."""
    values = {"x": np.full((1, 4), -1.5, np.float32), "swiglu.out.grad": np.full((1, 4), 3e38, np.float32)}
    outcome = run_primitive("swiglu", "ig", [DrawnInput((4,))] * 2, {}, values=values)
    assert outcome.summary["functional"]["passed"]


@pytest.mark.parametrize("step", ["fw", "ig"])
def test_softmax_of_large_equal_numbers_is_even(step: str) -> None:
    """Beside 9e18 the logarithm of the sum of five ones is less than a step of float64."""
    values = {"x": np.full((1, 5), 9e18, np.float32)}
    outcome = run_primitive("softmax", step, [DrawnInput((5,))], {}, values=values)
    assert outcome.summary["functional"]["passed"]


@pytest.mark.parametrize("step", ["fw", "ig"])
def test_the_rational_gelu_is_right_where_it_is_nearly_zero(step: str) -> None:
    """1 + tanh is 1e-3 and less there: in fp32 nothing of it would be left to compare."""
    values = {"x": np.linspace(-6, -2, 60, dtype=np.float32)[None]}
    outcome = run_primitive("gelu", step, [DrawnInput((60,))], {"form": "pulp_rational"}, values=values)
    assert outcome.summary["functional"]["passed"]
