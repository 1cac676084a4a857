# SPDX-License-Identifier: Apache-2.0
"""The truth side of the number check: it shares nothing with what it judges, and it knows everything."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from functools import partial
from math import erf, exp, pi
from pathlib import Path

import numpy as np
import pytest

from configs.model_file import LayerSchema, LossSchema, LossSpec, load_model
from configs.values import replace
from pulptrain.inputs.settings import Settings
from pulptrain.running.session import run_prepared
from shared.kept_plans import prepare, run_model
from shared.paths import ROOT
from tools.rooms import ALLOWED, imported_names
from trainlib.primitives.definition import InternalPrimitive, LayerPrimitive, LossPrimitive
from trainlib.references.reference import evaluate
from trainlib.registry import PRIMITIVES, is_internal
from trainlib.training.phases import build_training_phases
from trainlib.training.single import single
from trainlib.training.training_data import sample_stream
from truth.source import LAYER, LOSS, OPTIMIZER, alone, as_source_model

pytestmark = pytest.mark.needs_torch

OTHERS = set(ALLOWED) - {"truth", "configs"}
"""Rooms that the truth must know nothing of."""


def test_the_truth_imports_nothing_of_what_it_judges() -> None:
    """By the text of its modules and of all that they import, one by the other."""
    seen: set[str] = set()
    files = sorted((ROOT / "truth").glob("*.py"))
    while files:
        for name in imported_names(files.pop().read_text()) - seen:
            seen.add(name)
            parts = name.split(".")
            assert parts[0] not in OTHERS, name
            found = [ROOT.joinpath(*parts[:end]).with_suffix(".py") for end in range(1, len(parts) + 1)]
            files += [path for path in found if path.is_file()]
    assert {name for name in seen if name.startswith("configs.")} == {
        "configs.dtypes.BY_WORD",
        "configs.dtypes.is_float",
        "configs.dtypes.is_narrow",
        "configs.values.Struct",
        "configs.values.replace",
    }


def test_nor_does_a_process_that_has_loaded_all_of_it_and_made_an_update() -> None:
    """And PyTorch's compiler, which takes as long to import as the rest of PyTorch, stays where it is."""
    modules = ", ".join(f"truth.{path.stem}" for path in (ROOT / "truth").glob("[a-z]*.py"))
    code = f"""
import {modules}, sys, torch
weight = torch.zeros(1, requires_grad=True)
weight.grad = torch.ones(1)
truth.steps.updated(truth.steps.OPTIMIZERS["sgd"]([weight], learning_rate=0.5))
assert weight.item() == -0.5
print(*sys.modules)
"""
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout.split()
    assert "truth" in found
    assert not OTHERS & {name.split(".")[0] for name in found}
    assert "torch._dynamo" not in found


def kinds() -> dict[str, dict]:
    from truth.layers import LAYERS
    from truth.steps import LOSSES, OPTIMIZERS

    forwards = {name: entry.forward for name, entry in LAYERS.items()}
    return {"layers": forwards, "losses": dict(LOSSES), "optimizers": dict(OPTIMIZERS)}


def test_it_has_an_entry_of_every_primitive_and_of_nothing_else() -> None:
    known = {name for entries in kinds().values() for name in entries}
    assert known == {name for name, item in PRIMITIVES.items() if not isinstance(item, InternalPrimitive)}


@pytest.mark.parametrize("kind", ["layers", "losses", "optimizers"])
def test_options_and_defaults_are_those_of_the_documentation(kind: str) -> None:
    """The page is made from the schemas of the primitives: a default that changes there is told here."""
    page = (ROOT / "docs" / "primitives.md").read_text()
    block = page.partition(f"<!-- block: {kind} -->")[2].partition("<!-- end -->")[0]
    rows = re.findall(r"(?m)^\| `(\w+)` \|[^|]*\|[^|]*\|([^|]*)\|", block)
    entries = kinds()[kind]
    assert len(rows) == sum(not is_internal(PRIMITIVES[name]) for name in entries)
    for name, told in rows:
        parameters = inspect.signature(entries[name]).parameters.values()
        own = {item.name: item for item in parameters if item.kind is item.KEYWORD_ONLY}
        if kind == "losses":  # what all have stands before the table
            common = {key: field.default for key, field in LossSchema.model_fields.items() if key != "name"}
            assert {key: own.pop(key).default for key in common} == common, name
        if kind == "layers":  # what all may have, as an adapter, is no option of its own
            common = own.keys() & LayerSchema.model_fields.keys()
            assert all(own.pop(key).default == LayerSchema.model_fields[key].default for key in common), name
        documented = dict(option.strip().partition("=")[::2] for option in told.split(",") if option.strip())
        assert {f"**{key}**" if item.default is item.empty else key for key, item in own.items()} == set(
            documented
        ), name
        for key, text in documented.items():
            if not key.startswith("**"):
                default = own[key].default
                assert text == ("none" if default is None else str(default).lower()), (name, key)


@pytest.mark.parametrize("name", [name for name in PRIMITIVES if not is_internal(PRIMITIVES[name])])
def test_alone_a_primitive_is_to_it_what_it_is_to_the_references(name: str) -> None:
    """Every example of every primitive: nothing is missing and nothing beside it."""
    from truth.iteration import Iteration, Updates

    primitive = PRIMITIVES[name]
    kind = LAYER if isinstance(primitive, LayerPrimitive) else OPTIMIZER
    kind = LOSS if isinstance(primitive, LossPrimitive) else kind
    for example in primitive.examples:
        batch = max(example.batches) if example.batches else 2
        drawn = single(name, example.attributes, example.cases, batch=batch)
        known = evaluate(drawn.graph, drawn.values)
        shapes = [(case.dtype, (batch, *case.shape)) for case in example.cases]
        made = Iteration(alone(kind, name, example.attributes, "fp32", shapes), drawn.values, known)
        assert made.differences() == {}
        updated = {f"{weight}_updated": made.step(weight, Updates()) for weight in made.updated}
        for tensor, truth in {**made.made, **updated}.items():
            scale = max(1.0, float(np.abs(truth).max(initial=0)))
            if tensor in known:
                assert np.allclose(known[tensor], truth, rtol=1e-4, atol=1e-5 * scale), (example, tensor)


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("digits-cnn", {"batch": 3}),
        ("simple-mlp", {"dtype": "bf16"}),
        ("ds-cnn", {}),
    ],
)
def test_it_finds_the_samples_by_itself(model: str, options: dict) -> None:
    from truth.samples import Fed

    spec = replace(load_model(model), **options)
    graph = build_training_phases(spec).mini_batch
    stream, output = sample_stream(graph, spec, 5), graph.tensors[graph.output].shape
    fed, other = Fed(as_source_model(model, **options), 5), Fed(as_source_model(model, **options), 6)
    batches = [next(stream) for _ in range(4)]
    for number in (0, 1, 3):
        assert fed.differences(number, batches[number], [output]) == {}
    wrong = other.differences(0, batches[0], [output])
    assert {"input"} <= wrong.keys()
    late = fed.differences(4, batches[3], [output])
    assert "row 0 of mini-batch 4" in late["input"]


@pytest.mark.parametrize("words", [0, 7])
def test_it_makes_up_the_same_sequences(words: int) -> None:
    from truth.samples import Fed

    spec = replace(
        load_model("simple-mlp"),
        dataset="sequences",
        input_shape=(6,) if words else (6, 3),
        input_classes=words,
        loss=LossSpec("cross_entropy"),
        layers=(),
    )
    from trainlib.training.samples import sequences

    made = sequences(spec.input_shape, 4, words)
    first = next(Fed(as_source_model(spec), 0)._samples)
    index = int(re.findall(r"\d+", first[0])[0])
    assert np.array_equal(first[1]["input"], made.train_inputs[index])
    assert first[1]["label"] == made.train_labels[index]


def test_samples_from_an_iterator_are_not_compared_and_that_is_said() -> None:
    pairs = ((np.zeros(64, np.float32), 3) for _ in range(4))
    summary = run_model("simple-mlp", data=pairs).summary
    assert summary["functional"]["passed"]
    assert any("not compared" in note for note in summary["notes"])


def test_a_layer_without_an_entry_is_told_and_not_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    from truth import layers

    monkeypatch.delitem(layers.LAYERS, "relu")
    functional = run_model("digits-cnn").summary["functional"]
    assert functional["passed"]
    assert functional["checked_against"] == (
        "untiled NumPy (the PyTorch reference has no relu: tiling checked, formulas not)"
    )


@pytest.mark.parametrize("steps", ["fw", "fw,loss", "fw,ig", "fw,ig,wg"])
def test_it_knows_the_steps_that_are_left_out(steps: str) -> None:
    functional = run_model("digits-cnn", Settings(steps=steps)).summary["functional"]
    assert functional["checked_against"] == "PyTorch"
    assert functional["passed"]


def test_an_iteration_that_trains_too_little_or_too_much_is_told_by_name() -> None:
    prepared = prepare("simple-mlp", Settings())
    original = prepared.given()
    tree = dict(original.tree)
    for train, name, why in (("last", "fc1.weight", "does not change it"), ("all", "fc1.weight", "no op")):
        given = replace(original, tree={**tree, "train": train})
        machine = prepared
        if train == "all":
            frozen = replace(load_model("simple-mlp"), train="last")
            machine = prepare(frozen, Settings())
        outcome = run_prepared(replace(machine, given=partial(replace, given)), Settings())
        found = {item["name"]: item for item in outcome.summary["functional"]["tensors"]}
        assert found[f"{name}_updated"]["verdict"] == "failed"
        assert why in found[f"{name}_updated"]["reason"]


TWICE = """
name: twice
input: {shape: [8]}
layers:
  - {name: fc, type: linear, out_features: 8, recompute: true}
  - {name: act, type: gelu, recompute: true}
  - {name: out, type: linear, out_features: 4}
loss: mse
optimizer: {name: sgd, learning_rate: 0.1}
"""


def test_what_is_computed_again_is_made_of_what_was_computed_again(tmp_path: Path) -> None:
    """Other tiles may change the last bits of a second version, and so what is made of it."""
    from truth.iteration import Iteration

    (tmp_path / "twice.yaml").write_text(TWICE)
    prepared = prepare(str(tmp_path / "twice.yaml"), Settings())
    graph, rng = prepared.schedule.graph, np.random.default_rng(0)
    values = {
        name: rng.normal(size=graph.tensors[name].shape).astype(np.float32) for name in graph.needed_values
    }
    seen = evaluate(graph, values)
    seen["fc.out.again"] = np.nextafter(seen["fc.out"], np.float32(9))
    made = Iteration(prepared.given(), values, seen).made
    first, second = made["act.out"], made["act.out.again"]
    slope = (second - first) / (seen["fc.out.again"].astype(np.float64) - seen["fc.out"])
    x = seen["fc.out"].astype(np.float64)
    exact = [0.5 * (1 + erf(one / 2**0.5)) + one * exp(-one * one / 2) / (2 * pi) ** 0.5 for one in x.flat]
    assert np.allclose(slope.flat, exact, atol=1e-4)
