# SPDX-License-Identifier: Apache-2.0
"""Layouts chosen after a model was read: which layers have a choice, and that the numbers stay right."""

from __future__ import annotations

from pathlib import Path

import pytest

from configs.errors import InputError
from configs.model_file import ModelSpec, read_model
from configs.yaml_file import parse_yaml
from pulptrain.inputs.settings import Settings
from pulptrain.running.session import run_model
from trainlib.training.layouts import layers_with_choice, with_layouts
from trainlib.training.phases import build_training_graph

RESIDUAL = """
name: residual
description: Two convolutions of one image, added
source: made for tests
input: {shape: [3, 5, 4]}
dataset: random
loss: mse
optimizer: {name: sgd, learning_rate: 0.1}
layers:
  - {name: one, type: conv2d, out_channels: 4, kernel: 3, padding: 1}
  - {name: two, type: pointwise, out_channels: 4, inputs: [input]}
  - {name: sum, type: add, inputs: [one, two]}
  - {name: relu, type: relu}
  - {name: flatten, type: flatten}
  - {name: fc, type: linear, out_features: 2}
"""


def spec() -> ModelSpec:
    return read_model(parse_yaml(RESIDUAL, "residual.yaml"))


def layout_ops(changed: ModelSpec) -> list[str]:
    return [op.name for op in build_training_graph(changed).ops if op.primitive == "layout"]


def test_layers_that_know_both_layouts_have_a_choice() -> None:
    assert layers_with_choice(spec()) == {"one": "CHW", "two": "CHW"}


@pytest.mark.parametrize(
    ("layouts", "transposes"),
    [
        ({}, []),
        # A transpose of the input, one of the output for `flatten`, and the latter back again in IG.
        (
            {"one": "HWC", "two": "HWC"},
            ["one.layout.FW", "flatten.layout.FW", "flatten.layout.IG"],
        ),
        # `add` takes images as they come, but both alike: like the first of them.
        ({"two": "HWC"}, ["two.layout.FW", "sum.layout.FW", "sum.layout.IG"]),
    ],
)
def test_other_layouts_cost_transposes(layouts: dict[str, str], transposes: list[str]) -> None:
    assert layout_ops(with_layouts(spec(), layouts)) == transposes


@pytest.mark.parametrize("layouts", [{"one": "HWC"}, {"two": "HWC"}, {"one": "HWC", "two": "HWC"}])
def test_numbers_stay_right_in_other_layouts(layouts: dict[str, str], tmp_path: Path) -> None:
    text = RESIDUAL
    for layer, layout in layouts.items():
        text = text.replace(f"name: {layer},", f"name: {layer}, layout: {layout},")
    (tmp_path / "residual.yaml").write_text(text)
    checked = run_model(str(tmp_path / "residual.yaml"), Settings(cores=2)).summary["functional"]
    assert checked["passed"]
    assert checked["max_rel_error"] < 1e-5


@pytest.mark.parametrize(
    ("layouts", "message"),
    [({"relu": "HWC"}, "layer 'relu' cannot be chosen"), ({"one": "HCW"}, "unknown layout 'HCW'")],
)
def test_what_cannot_be_is_refused(layouts: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        with_layouts(spec(), layouts)
