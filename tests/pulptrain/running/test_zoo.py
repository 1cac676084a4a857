# SPDX-License-Identifier: Apache-2.0
"""Every zoo model trains one iteration in 64 KiB of L1 with the numbers of PyTorch, single and double."""

from itertools import product
from operator import itemgetter

import pytest

from configs.library import list_names
from pulptrain.inputs.settings import Settings
from shared.kept_plans import run_model
from shared.tiers import sweep_nine_of_ten

QUICK = ("simple-mlp", "tutorial-cnn", "digits-cnn", "tiny-transformer", "deep-autoencoder")
"""Models of the normal suite; the others run with the slow tests."""

pytestmark = pytest.mark.needs_torch


FORMS = ("single", "double"), ("fp32", "bf16")


@pytest.mark.parametrize("case", sweep_nine_of_ten(list(product(QUICK, *FORMS)), *map(itemgetter, range(3))))
def test_an_iteration_agrees_with_torch(case: tuple[str, str, str]) -> None:
    check_iteration(*case)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", FORMS[1])
@pytest.mark.parametrize("buffering", FORMS[0])
@pytest.mark.parametrize("model", [name for name in list_names("models") if name not in QUICK])
def test_an_iteration_of_a_large_model_agrees_with_torch(model: str, buffering: str, dtype: str) -> None:
    check_iteration(model, buffering, dtype)


def check_iteration(model: str, buffering: str, dtype: str) -> None:
    """Output, loss, gradients and updated tensors, in fp32 and bf16."""
    summary = run_model(model, Settings(l1="64KiB", l2="8MiB", buffering=buffering, dtype=dtype)).summary
    functional = summary["functional"]
    assert functional["passed"]
    assert functional["checked_against"] == "PyTorch"
    assert summary["peak_bytes"]["l1"] <= 64 * 1024
    error = summary["error"]
    assert (error["within_percent"] is None) == (error["note"] is not None)
    assert error["within_percent"] is not None or dtype != "fp32", "every model has an error bar in fp32"
    assert summary["peak_bytes"]["l2"] <= 8 * 1024 * 1024
