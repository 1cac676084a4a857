# SPDX-License-Identifier: Apache-2.0
"""Every zoo model trains one iteration in 64 KiB of L1 with the numbers of PyTorch, single and double."""

import pytest

from configs.library import list_names
from pulptrain.given.settings import Settings
from pulptrain.running.session import run_model

QUICK = ("simple-mlp", "tutorial-cnn", "digits-cnn", "tiny-transformer", "deep-autoencoder")
"""Models of the normal suite; the others run with the slow tests."""

pytestmark = pytest.mark.needs_torch


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("buffering", ["single", "double"])
@pytest.mark.parametrize(
    "model",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in list_names("models")],
)
def test_an_iteration_agrees_with_torch(model: str, buffering: str, dtype: str) -> None:
    """Output, loss, gradients and updated tensors, in fp32 and bf16."""
    summary = run_model(model, Settings(l1="64KiB", l2="8MiB", buffering=buffering, dtype=dtype)).summary
    functional = summary["functional"]
    assert functional["passed"]
    assert functional["checked_against"] == "PyTorch"
    assert summary["peak_bytes"]["l1"] <= 64 * 1024
    assert summary["peak_bytes"]["l2"] <= 8 * 1024 * 1024
