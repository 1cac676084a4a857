# SPDX-License-Identifier: Apache-2.0
"""What backward keeps: a step reads the input or the output, whichever another keeps anyway, or a mask."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from configs.errors import ConfigError
from configs.model_file import ModelSpec, load_model
from configs.values import replace
from pulptrain.inputs.settings import Settings
from pulptrain.running.session import run_model
from scheduler.addresses.lifetimes import storage_lives
from shared.primitive_harness import CODEGEN, run_op
from trainlib.ir.graph import TrainingGraph
from trainlib.ir.steps import KernelChoice
from trainlib.primitives.definition import Example, Step
from trainlib.primitives.elementwise.entry import elementwise
from trainlib.references.reference import evaluate
from trainlib.registry import PRIMITIVES
from trainlib.training import phases
from trainlib.training.backward_reads import in_other_forms

MODEL = """\
name: branches
input: {shape: [2, 6, 6]}
dataset: random
loss: mse
optimizer: {name: sgd, learning_rate: 0.01}
batch: 2
layers:
  - {name: conv1, type: conv2d, out_channels: 4, kernel: 3, padding: 1}
  - {name: between, type: KIND}
  - {name: conv2, type: conv2d, out_channels: 4, kernel: 3, padding: 1}
  - {name: beside, type: KIND}
  - {name: conv3, type: conv2d, out_channels: 4, kernel: 3, padding: 1, inputs: [conv2]}
  - {name: sum, type: add, inputs: [beside, conv3]}
  - {name: last, type: KIND}
  - {name: pool, type: global_avg_pool}
  - {name: flat, type: flatten}
  - {name: fc, type: linear, out_features: 3}
"""
"""conv2 reads what `between` makes; conv3 reads what `beside` reads; nobody reads what is around `last`."""

KINDS = {
    "relu": "mask",
    "leaky_relu": "y",
    "clip, low: 0.0, high: 0.5": "mask",
    "elu": "y",
    "hard_sigmoid": "y",
}
"""Layer -> what is read where nobody else reads anything; of clip never the output."""


def model(folder: Path, kind: str) -> ModelSpec:
    path = folder / "model.yaml"
    path.write_text(MODEL.replace("KIND", kind))
    return load_model(str(path))


def reads(graph: TrainingGraph) -> dict[str, str]:
    """Layer -> what its backward step reads beside dy."""
    return {
        op.layer: next(role for role in op.reads if role != "dy")
        for op in graph.ops
        if op.step == "IG" and op.primitive in ("relu", "leaky_relu", "clip", "elu", "hard_sigmoid")
    }


FORMS = {
    "relu": ["dy y", "dy mask"],
    "leaky_relu": ["dy y"],
    "clip": ["dy mask"],
    "elu": ["dy y"],
    "hard_sigmoid": ["dy y"],
}
"""What else than the input a backward step can read, of all layers."""


def backward_forms() -> dict[str, tuple[Step, ...]]:
    """Layer -> its backward step as it is first, and in its other forms."""
    steps = ((name, step) for name, one in PRIMITIVES.items() for step in one.steps if step.name == "IG")
    return {name: (step, *step.others) for name, step in steps}


def test_what_backward_can_read_is_read_off_the_formulas() -> None:
    found = {
        name: [" ".join(sorted(form.reads)) for form in forms] for name, forms in backward_forms().items()
    }
    assert {name: others for name, (_, *others) in found.items() if others} == FORMS


@pytest.mark.parametrize(
    ("y", "dx", "reads"),
    [
        (lambda x: np.where(x > 0.5, x, 0), lambda x, dy: np.where(x > 0.5, dy, 0), {"y", "mask"}),
        (lambda x: np.where(x > -1, x + 1, 0), lambda x, dy: np.where(x > -1, dy, 0), {"mask"}),
        (lambda x: np.where(x > 0, x, -x / 2), lambda x, dy: np.where(x > 0, dy, -dy / 2), set()),
        (lambda x: np.where(x > 0, 2 * x, 0), lambda x, dy: np.where(x > 0, 2 * dy, 0), {"y"}),
        (lambda x: np.where(x < 0, -x, x), lambda x, dy: np.sign(x) * dy, set()),
    ],
)
def test_what_cannot_be_computed_from_an_output_or_a_mask_is_refused(y, dx, reads) -> None:
    made = elementwise("new", y=y, dx=dx, nests=("relu_fw", "relu_bw"), examples=(Example(),))
    assert {role for form in made.steps[1].others for role in form.reads} - {"dy"} == reads


def determined(name: str) -> bool:
    """Whether inputs with the same output have the same slope."""
    x = np.linspace(-6, 6, 4001, dtype=np.float32)[None]
    values = evaluate(
        phases.build_layer_graph(name, OPTIONS.get(name, {}), [phases.DrawnInput(x.shape[1:])]),
        {"x": x, f"{name}.out.grad": np.ones_like(x)},
    )
    y, slope = values[f"{name}.out"][0], values["x.grad"][0]
    order = np.lexsort((slope, y))
    near = np.diff(y[order]) < 1e-4
    return bool(np.all(np.abs(np.diff(slope[order]))[near] < 0.02))


OPTIONS = {"clip": {"low": 0.0, "high": 3.0}}


@pytest.mark.parametrize(
    "name",
    [
        *("relu", "leaky_relu", "elu", "hard_sigmoid", "sigmoid", "tanh"),
        *("clip", "silu", "gelu", "mish", "hard_swish", "square", "absolute", "sine"),
    ],
)
def test_a_step_reads_the_output_only_if_that_determines_the_slope(name: str) -> None:
    of_y = any("y" in form.reads for form in backward_forms()[name])
    assert of_y == determined(name)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_reads_what_another_one_keeps(tmp_path: Path, kind: str) -> None:
    graph = phases.build_training_graph(model(tmp_path, kind))
    between = "mask" if kind.startswith("clip") else "y"
    assert reads(graph) == {"between": between, "beside": "x", "last": KINDS[kind]}
    lives = storage_lives(graph)
    (forward,) = (number for number, op in enumerate(graph.ops) if op.name == "between.FW")
    assert lives["conv1.out"].last_op == forward
    assert lives["beside.out"].kind == "activation"
    if "last.mask" in graph.tensors:
        assert graph.tensors["last.mask"].size_bytes * 4 == graph.tensors["last.out"].size_bytes


def test_as_published_is_as_published(tmp_path: Path) -> None:
    graph = phases.build_training_graph(replace(model(tmp_path, "relu"), variant="as-published"))
    assert set(reads(graph).values()) == {"x"}
    said = replace(model(tmp_path, "relu, backward_reads: input"), variant="as-published")
    with pytest.raises(ConfigError, match="remove 'backward_reads'"):
        phases.build_training_graph(said)


@pytest.mark.parametrize(
    ("kind", "dtype"), [("relu", "fp32"), ("leaky_relu", "fp16"), ("clip, low: 0.0, high: 0.5", "fp32")]
)
def test_either_way_makes_the_same_bits_in_the_same_time(tmp_path: Path, kind: str, dtype: str) -> None:
    chosen, usual = (
        run_model(model(tmp_path, one), Settings(dtype=dtype, form="readable"), iterations=1)
        for one in (kind, f"{kind}, backward_reads: input")
    )
    assert usual.summary["functional"]["passed"]
    assert chosen.summary["functional"]["passed"]
    # A mask costs a comparison and a store of each element.
    assert chosen.summary["cycles"] == pytest.approx(usual.summary["cycles"], rel=2e-3)
    assert chosen.summary["peak_bytes"]["l2"] < usual.summary["peak_bytes"]["l2"]
    same = [name for name in usual.values if name.endswith((".weight", ".grad")) or name == "loss"]
    assert len(same) > 10
    for name in same:
        np.testing.assert_array_equal(chosen.values[name], usual.values[name], err_msg=name)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("relu", {}),
        ("leaky_relu", {"slope": 0.5}),
        ("clip", {"low": 0.0, "high": 2.0}),
        ("hard_sigmoid", {"alpha": 0.2}),
    ],
)
def test_at_a_kink_all_forms_agree_whole_and_in_tiles(kind: str, options: dict[str, float]) -> None:
    """The output of a leaky ReLU may be rounded to 0, which is on the left as well."""
    usual = phases.build_layer_graph(kind, options, [phases.DrawnInput((7,))])
    x, dy = np.float32([[-3, -1e-45, -0.0, 0, 1e-45, 2, 3e38]]), np.float32([range(2, 9)])
    results = []
    for graph in (usual, *in_other_forms(usual)):
        values = evaluate(graph, {"x": x, f"{kind}.out.grad": dy})
        for op in graph.ops:
            tiled, _ = run_op(op, graph.tensors, values, {"d0": 3}, KernelChoice("", CODEGEN))
            for name, array in tiled.items():
                np.testing.assert_array_equal(array, values[name], f"{op.reads} {name}")
        results.append(values["x.grad"])
    assert len(results) > 1
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


@pytest.mark.parametrize("word", ["input", "output", "mask"])
def test_a_layer_reads_what_its_file_says(tmp_path: Path, word: str) -> None:
    graph = phases.build_training_graph(model(tmp_path, f"relu, backward_reads: {word}"))
    assert set(reads(graph).values()) == {{"input": "x", "output": "y"}.get(word, word)}


@pytest.mark.parametrize(
    ("kind", "cure"),
    [
        ("sigmoid, backward_reads: input", "try: use backward_reads: output"),
        ("clip, low: 0.0, backward_reads: output", "try: use backward_reads: input or mask"),
        ("batch_norm, backward_reads: output", "try: use backward_reads: input"),
        ("shift, offset: 1.0, backward_reads: mask", "remove .backward_reads."),
        ("relu, backward_reads: middle", "middle"),
    ],
)
def test_what_it_cannot_read_is_refused(tmp_path: Path, kind: str, cure: str) -> None:
    with pytest.raises(ConfigError, match=cure):
        phases.build_training_graph(model(tmp_path, kind))
