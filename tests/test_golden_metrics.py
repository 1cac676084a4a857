# SPDX-License-Identifier: Apache-2.0
"""Cycles, bytes, peaks and events of every zoo model, exactly as committed in golden-metrics.json.

A difference is no error by itself: if it is meant, ``tools/update_golden_metrics.py --workers 2`` writes the
new figures, and the diff of the file shows reviewers what a change did.
"""

import importlib.util
import json
from types import ModuleType
from typing import Any

import pytest

from configs.library import list_names
from shared.paths import ROOT

QUICK = ("simple-mlp", "tutorial-cnn", "digits-cnn", "deep-autoencoder", "ds-cnn")
"""Models of the normal suite; the others take longer and run with the slow tests."""


def update_tool() -> ModuleType:
    path = ROOT / "tools" / "update_golden_metrics.py"
    spec = importlib.util.spec_from_file_location("update_golden_metrics", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """Figures by path, e.g. ``peak_bytes.l1``."""
    if not isinstance(value, dict):
        return {path: value}
    return {key: leaf for name, part in value.items() for key, leaf in flat(part, f"{path}.{name}").items()}


def difference(golden: dict[str, Any], today: dict[str, Any]) -> list[str]:
    """One line per figure that is not as committed."""
    before, now = flat(golden), flat(today)
    lines = []
    for path in dict.fromkeys([*before, *now]):
        old, new = before.get(path), now.get(path)
        if old != new:
            change = f" ({100 * (new - old) / old:+.2f} %)" if old and new is not None else ""
            lines.append(f"{path[1:]}: {old} -> {new}{change}")
    return lines


def test_the_difference_is_readable() -> None:
    old = {"cycles": 200, "peak_bytes": {"l1": 7, "l2": 8}}
    new = {"cycles": 190, "peak_bytes": {"l1": 7, "l2": 9}, "events": 3}
    assert difference(old, old) == []
    assert difference(old, new) == [
        "cycles: 200 -> 190 (-5.00 %)",
        "peak_bytes.l2: 8 -> 9 (+12.50 %)",
        "events: None -> 3",
    ]


def test_every_model_has_golden_metrics() -> None:
    tool = update_tool()
    text = tool.GOLDEN.read_text(encoding="utf-8")
    assert sorted(json.loads(text)) == sorted(list_names("models"))
    assert tool.text_of(json.loads(text)) == text


MODELS = [
    pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in list_names("models")
]


IN_L2 = ("simple-mlp", "deep-autoencoder")
"""Of the normal suite: one that fits the L2 of its SoC, and one that does not and has other figures there."""


def test_the_two_sets_of_figures_are_one_where_all_fits_the_l2_of_the_soc() -> None:
    """So one of them is enough for the normal suite: the other plans and simulates the same programs."""
    tool = update_tool()
    golden = json.loads(tool.GOLDEN.read_text(encoding="utf-8"))
    for model in set(QUICK) - {"deep-autoencoder"}:
        assert golden[model].pop(tool.DEFAULT_L2) == golden[model], model


@pytest.mark.parametrize(
    "model",
    [pytest.param(name, marks=() if name in IN_L2 else pytest.mark.slow) for name in list_names("models")],
)
def test_golden_metrics(model: str) -> None:
    tool = update_tool()
    golden = json.loads(tool.GOLDEN.read_text(encoding="utf-8"))[model]
    del golden[tool.DEFAULT_L2]
    lines = difference(golden, tool.golden_metrics(model))
    assert not lines, "\n".join([f"{model} is not as committed:", *lines, "if meant: run the tool"])


@pytest.mark.parametrize("model", MODELS)
def test_golden_metrics_with_the_default_l2(model: str) -> None:
    """What a run takes unless it says otherwise: some models are staged or streamed from L3 then."""
    tool = update_tool()
    golden = json.loads(tool.GOLDEN.read_text(encoding="utf-8"))[model][tool.DEFAULT_L2]
    lines = difference(golden, tool.of_default_l2(model))
    assert not lines, "\n".join([f"{model} is not as committed:", *lines, "if meant: run the tool"])
