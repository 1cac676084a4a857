# SPDX-License-Identifier: Apache-2.0
"""The table of models in docs/training-forms.md says what the models are."""

import pytest

from configs.library import list_names
from configs.model_file import load_model
from shared.paths import ROOT
from trainlib.primitives.definition import is_forward
from trainlib.registry import lowering_of
from trainlib.training.phases import build_training_graph

PAGE = ROOT / "docs" / "training-forms.md"
ROWS = {
    cells[0].strip("` "): [cell.strip() for cell in cells[1:]]
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if line.startswith("| `") and len(cells := line.strip("|").split("|")) == 5
}


def test_every_model_has_a_row() -> None:
    assert sorted(ROWS) == sorted(list_names("models"))


@pytest.mark.parametrize("name", list_names("models"))
def test_the_row_is_what_the_model_is(name: str) -> None:
    spec = load_model(name)
    graph = build_training_graph(spec)
    macs = sum(lowering_of(op).macs(op, graph.tensors) for op in graph.ops if is_forward(op.step))
    norms = [layer for layer in spec.layers if layer.type == "batch_norm"]
    fixed = all(layer.attributes.get("fixed_statistics", False) for layer in norms)
    assert ROWS[name] == [
        "x".join(map(str, spec.input_shape)),
        f"{sum(graph.tensors[weight].size_bytes // 4 for weight in graph.weights):,}",
        f"{macs // spec.batch:,}",
        "none" if not norms else "fixed" if fixed else "statistics of the batch",
    ]
