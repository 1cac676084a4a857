# SPDX-License-Identifier: Apache-2.0
"""Norms: statistics, gradients by differences, running statistics, and what the published code gets wrong."""

from __future__ import annotations

from itertools import product
from operator import itemgetter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arch.spec.isa import Loop
from configs.errors import DoesNotFitError
from configs.model_file import LayerSpec, LossSpec, ModelSpec, OptimizerSpec
from pulptrain.inputs.settings import Settings
from pulptrain.running.primitive_run import run_primitive
from shared.finite_differences import check_gradients
from shared.primitive_harness import CODEGEN, Case, build, check_reference, check_tiles, run_op
from shared.tiers import sweep_nine_of_ten
from trainlib.ir.steps import KernelChoice
from trainlib.primitives.definition import DrawnInput, Example, is_forward
from trainlib.references.reference import evaluate, predict
from trainlib.registry import lowering_of
from trainlib.training.phases import build_layer_graph, build_training_graph, initial_weights

NORMS = {
    "batch_norm": ({}, (4, 3, 2)),
    "instance_norm": ({"running": True}, (3, 4, 2)),
    "group_norm": ({"groups": 2}, (4, 3, 2)),
    "layer_norm": ({"axes": 2}, (3, 4, 2)),
    "rms_norm": ({}, (5, 6)),
}
WAYS = [(name, {}) for name in NORMS] + [(name, {"stepwise": True}) for name in NORMS if name != "batch_norm"]
"""Norms in one forward step, or in several that need not hold a whole group (batch norm: always)."""


def task_of(graph, step: str, **ranges):
    op = next(op for op in graph.ops if op.step == step)
    extents = lowering_of(op).extents(op, graph.tensors)
    whole = {name: (0, size) for name, size in extents.items()}
    return lowering_of(op).tile(op, graph.tensors, {**whole, **ranges}, KernelChoice("", CODEGEN))


@pytest.mark.parametrize(("name", "way"), WAYS)
@pytest.mark.parametrize("affine", [True, False])
def test_gradients_are_the_slopes_of_the_loss(name: str, way: dict, affine: bool) -> None:
    options, shape = NORMS[name]
    found = check_gradients(name, {**options, **way, "affine": affine}, [DrawnInput(shape)], batch=3)
    assert len(found) == 1 + affine * (1 if name == "rms_norm" else 2)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_shape_agrees_with_pytorch_and_with_its_tiles(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(NORMS)))
    image = tuple(data.draw(st.integers(2, 5)) for _ in range(3))
    options: dict[str, object] = {
        "affine": data.draw(st.booleans()),
        "eps": data.draw(st.sampled_from([1e-5, 0.1])),
    }
    if name == "group_norm":
        divisors = [groups for groups in range(1, image[0] + 1) if image[0] % groups == 0]
        options["groups"] = data.draw(st.sampled_from(divisors))
    elif name in ("layer_norm", "rms_norm"):
        options["axes"] = data.draw(st.integers(1, 3))
    else:
        options["momentum"] = data.draw(st.integers(0, 100)) / 100  # fp32 holds no 1e-308
        options["fixed_statistics"] = data.draw(st.booleans())
    if name != "batch_norm":
        options["stepwise"] = data.draw(st.booleans())
    if name == "instance_norm":
        options["running"] = data.draw(st.booleans())
    dtype = data.draw(st.sampled_from(["fp32", "fp16", "bf16"]))
    # A row of two elements normalises to ±1, and its gradient is what cancellation leaves.
    inputs = (DrawnInput(image if options.get("axes") != 1 else (*image[:2], 6)),)
    case = Case(
        name, data.draw(st.integers(0, 99)), Example(options, inputs), dtype, data.draw(st.integers(1, 3))
    )
    check_reference(case)
    check_tiles(case)


@pytest.mark.parametrize("name", sorted(set(NORMS) - {"rms_norm"}))
def test_defect_the_variance_does_not_cancel_for_a_large_mean(name: str) -> None:
    """E[x²] - mean² in fp32 is off by several hundred percent at mean 3000, deviation 1."""
    options, shape = NORMS[name]
    graph = build_layer_graph(name, options, [DrawnInput(shape)], batch=2)
    generator = np.random.default_rng(1)
    values = {key: np.ones(graph.tensors[key].shape, np.float32) for key in graph.needed_values}
    values["x"] = (3000 + generator.normal(0, 1, graph.tensors["x"].shape)).astype(np.float32)
    for bias in (key for key in graph.needed_values if key.endswith(".bias")):
        values[bias][...] = 0
    results = dict(values)
    for op in graph.ops:
        if is_forward(op.step):
            whole = lowering_of(op).extents(op, graph.tensors)
            results |= run_op(op, graph.tensors, results, whole, KernelChoice("", CODEGEN))[0]
    inverse = results[f"{name}.inv_std"]
    assert (inverse > 0.3).all()
    assert (inverse < 4).all()
    known = evaluate(graph, values)
    np.testing.assert_allclose(inverse, known[f"{name}.inv_std"], rtol=1e-5)


CUTS = {
    # What may be cut of the results of a step, and of the sum behind them; batch 2.
    ("batch_norm", "FW_MEAN"): ("c", "n h w"),
    ("batch_norm", "FW_VAR"): ("c", "n h w"),
    ("batch_norm", "FW_INV"): ("c", ""),
    ("batch_norm", "FW_APPLY"): ("n c h w", ""),
    ("batch_norm", "WG"): ("c", "n h w"),
    ("batch_norm", "IG_APPLY"): ("n c h w", ""),
    ("instance_norm", "FW_MEAN"): ("n g", "h w"),
    ("instance_norm", "FW_INV"): ("g", ""),  # running statistics are a mean over the batch
    ("instance_norm", "FW_APPLY"): ("n g h w", ""),
    ("instance_norm", "WG"): ("g", "n h w"),
    ("instance_norm", "IG_SUMS"): ("n g", "h w"),
    ("instance_norm", "IG_APPLY"): ("n g h w", ""),
    ("layer_norm", "FW_VAR"): ("n d0", "e0"),
    ("layer_norm", "FW_INV"): ("n d0", ""),
    ("layer_norm", "FW_APPLY"): ("n d0 e0", ""),
    ("layer_norm", "IG_SUMS"): ("n d0", "e0"),
    ("layer_norm", "WG"): ("e0", "n d0"),
}


def stepwise(name: str, shape: tuple[int, ...], batch: int, **more: object):
    options = {**NORMS[name][0], **({} if name == "batch_norm" else {"stepwise": True}), **more}
    return build_layer_graph(name, options, [DrawnInput(shape)], batch=batch)


@pytest.mark.parametrize(("name", "step"), CUTS)
def test_what_may_be_cut_of_a_norm_in_several_steps(name: str, step: str) -> None:
    graph = stepwise(name, (4, 6, 8), 2)
    op = next(op for op in graph.ops if op.step == step)
    lowering = lowering_of(op)
    extents, sums = lowering.extents(op, graph.tensors), lowering.reductions(op, graph.tensors)
    assert (" ".join(extents), " ".join(sums)) == CUTS[name, step]


@pytest.mark.parametrize(
    ("step", "batch_cuts", "instance_cuts"),
    [
        ("FW_KNOWN", ("c", ""), ("g", "")),
        ("FW_APPLY", ("n c h w", ""), ("n g h w", "")),
        ("WG", ("c", "n h w"), ("g", "n h w")),
        ("IG_SCALE", ("n c h w", ""), ("n g h w", "")),
    ],
)
def test_a_norm_with_fixed_statistics_sums_nothing_but_its_weight_gradients(
    step: str, batch_cuts: tuple[str, str], instance_cuts: tuple[str, str]
) -> None:
    """So its rows need not fit L1, and dx needs no x."""
    for name, wanted in (("batch_norm", batch_cuts), ("instance_norm", instance_cuts)):
        graph = build_layer_graph(name, {"fixed_statistics": True}, [DrawnInput((4, 6, 8))], batch=2)
        op = next(op for op in graph.ops if op.step == step)
        lowering = lowering_of(op)
        found = (lowering.extents(op, graph.tensors), lowering.reductions(op, graph.tensors))
        assert tuple(map(" ".join, found)) == wanted
        assert step != "IG_SCALE" or "x" not in op


FIXED = ("batch_norm", "instance_norm")


@pytest.mark.parametrize(
    ("name", "options"),
    [*((name, {}) for name in NORMS), *((name, {"fixed_statistics": True}) for name in FIXED)],
)
def test_tiles_of_single_elements_and_sums_of_single_terms_give_the_same_iteration(
    name: str, options: dict[str, object]
) -> None:
    """Every step from the tiled results of the steps before it, not from the references."""
    graph = stepwise(name, (4, 3, 2), 2, **options)
    generator = np.random.default_rng(11)
    values = {
        key: generator.uniform(0.5, 2, graph.tensors[key].shape).astype(np.float32)
        for key in graph.needed_values
    }
    known, expected = dict(values), evaluate(graph, values)
    for op in graph.ops:
        lowering = lowering_of(op)
        sizes = {**lowering.extents(op, graph.tensors), **lowering.reductions(op, graph.tensors)}
        ones = dict.fromkeys(sizes, 1)
        results, tiles = run_op(op, graph.tensors, known, ones, KernelChoice("", CODEGEN))
        assert tiles == np.prod(list(sizes.values()), dtype=int)
        known |= results
    for key in (graph.output, *graph.gradients.values(), *graph.updates.values(), "x.grad"):
        scale = np.abs(expected[key]).max()
        np.testing.assert_allclose(known[key], expected[key], atol=1e-5 * scale, err_msg=key)


def test_a_batch_norm_with_nobody_to_train_before_it_computes_no_means_for_an_input_gradient() -> None:
    """And one whose parameters are frozen still has WG, for the sums the input gradient needs."""
    first = build_training_graph(model(LayerSpec("bn", "batch_norm", {}, "here")))
    (weights,) = (op for op in first.ops if op.layer == "bn" and op.step == "WG")
    assert weights.writes == ("dw", "db")
    whole = stepwise("batch_norm", (4, 3, 2), 2, affine=False)
    assert [(op.step, op.writes) for op in whole.ops][-2:] == [
        ("WG", ("mean_g", "mean_gx")),
        ("IG_APPLY", ("dx",)),
    ]


@pytest.mark.parametrize(
    "case", sweep_nine_of_ten(list(product(NORMS, ["single", "double"])), *map(itemgetter, range(2)))
)
def test_a_group_larger_than_l1_fits(case: tuple[str, str]) -> None:
    name, buffering = case
    options = {} if name == "batch_norm" else {**NORMS[name][0], "stepwise": True}
    """One mean over 80 KB runs with 32 KiB of L1; in one step it is refused."""
    options = {**options, "axes": 2} if "norm" in name and name.startswith(("layer", "rms")) else options
    shape = (1, 40, 500) if name.startswith(("layer", "rms")) else (2, 20, 500)
    settings = Settings(l1="32KiB", l2="4MiB", buffering=buffering)
    for step in ("fw", "wg", "ig"):
        found = run_primitive(name, step, [DrawnInput(shape)], options, batch=2, settings=settings).summary
        assert found["functional"]["max_rel_error"] < 1e-5
    if name == "batch_norm":
        return
    with pytest.raises(DoesNotFitError):
        run_primitive(
            name, "fw", [DrawnInput(shape)], {**options, "stepwise": False}, batch=2, settings=settings
        )


@pytest.mark.parametrize("rows", [7, 8, 9, 16])
def test_defect_layer_norm_of_rows_that_the_cores_do_not_divide_stays_inside(rows: int) -> None:
    """The published loop compares rows with elements: 7 rows on 8 cores write one row past the end."""
    graph = build_layer_graph("layer_norm", {}, [DrawnInput((rows, 16))])
    call = task_of(graph, "FW").calls[0]
    base = {name: 0x1000_0000 + 0x10_0000 * index for index, name in enumerate((*call.reads, *call.writes))}
    done = 0
    for core in call.work(8, base).cores:
        for stream in core.streams:
            assert stream.base_bytes == 0 or 0 <= stream.base_bytes % 0x10_0000 <= rows * 16 * 4
        done += sum(node.trips for node in core.body if isinstance(node, Loop))
    assert done == rows


def test_defect_parameter_gradients_of_a_batch_add_up_and_need_no_zeroed_buffer() -> None:
    """dw of two samples is the sum of theirs: the published steps overwrite, one sample at a time."""
    graph = build_layer_graph("instance_norm", {}, [DrawnInput((3, 4, 4))], batch=2)
    generator = np.random.default_rng(3)
    values = {
        name: generator.normal(size=graph.tensors[name].shape).astype(np.float32)
        for name in graph.needed_values
    }
    whole = evaluate(graph, values)["instance_norm.weight.grad"]
    alone = build_layer_graph("instance_norm", {}, [DrawnInput((3, 4, 4))])
    one_by_one = [
        evaluate(
            alone,
            {
                name: array[i : i + 1] if name[0] in "xy" or ".out" in name else array
                for name, array in values.items()
            },
        )["instance_norm.weight.grad"]
        for i in range(2)
    ]
    np.testing.assert_allclose(whole, sum(one_by_one), rtol=1e-5)
    op = next(op for op in graph.ops if op.step == "WG")
    known = evaluate(graph, values)
    tiled, _ = run_op(op, graph.tensors, known, {"g": 2}, KernelChoice("", CODEGEN))
    np.testing.assert_allclose(tiled["instance_norm.weight.grad"], whole, rtol=1e-5)


@pytest.mark.parametrize("eps", [1e-10, 1e-5])
def test_a_constant_channel_gives_the_bias_and_no_infinity(eps: float) -> None:
    graph = build_layer_graph("instance_norm", {"eps": eps}, [DrawnInput((2, 3, 3))])
    values = {name: np.full(graph.tensors[name].shape, 0.7, np.float32) for name in graph.needed_values}
    known = evaluate(graph, values)
    np.testing.assert_array_equal(known[graph.output], np.full((1, 2, 3, 3), np.float32(0.7)))
    assert all(np.isfinite(array).all() for array in known.values())


def model(layer: LayerSpec, batch: int = 4) -> ModelSpec:
    head = (LayerSpec("flat", "flatten", {}, "here"), LayerSpec("fc", "linear", {"out_features": 2}, "here"))
    return ModelSpec(
        name="normed",
        description="a norm and a linear layer",
        source="test",
        input_shape=(2, 3, 3),
        dataset="random",
        loss=LossSpec("mse"),
        optimizer=OptimizerSpec("sgd", {"learning_rate": 0.1}, "here"),
        batch=batch,
        layers=(layer, *head),
        where="here",
    )


def test_running_statistics_follow_training_and_prediction_uses_them() -> None:
    graph = build_training_graph(model(LayerSpec("bn", "batch_norm", {"momentum": 0.5}, "here")))
    kept = initial_weights(graph, 0)
    generator = np.random.default_rng(5)
    for _ in range(12):
        batch = generator.normal(3, 2, (4, 2, 3, 3)).astype(np.float32)
        values = {**kept, graph.input: batch, graph.label: np.zeros((4, 2), np.float32)}
        known = evaluate(graph, values)
        kept = {name: known[graph.updates.get(name, name)] for name in kept}
    assert set(graph.updates) >= {"bn.running_mean", "bn.running_var", "bn.weight", "bn.bias"}
    np.testing.assert_allclose(kept["bn.running_mean"], 3, atol=0.8)
    np.testing.assert_allclose(kept["bn.running_var"], 4, atol=2)
    images = generator.normal(3, 2, (5, 2, 3, 3)).astype(np.float32)
    together = predict(graph, kept, images)
    alone = np.concatenate([predict(graph, kept, image[None]) for image in images])
    np.testing.assert_allclose(alone, together, rtol=1e-4, atol=1e-5)


def test_fixed_statistics_stay_and_make_the_norm_a_scale_of_every_channel() -> None:
    graph = build_layer_graph("batch_norm", {"fixed_statistics": True}, [DrawnInput((2, 3, 3))], batch=1)
    generator = np.random.default_rng(6)
    values = {
        name: generator.uniform(0.5, 2, graph.tensors[name].shape).astype(np.float32)
        for name in graph.needed_values
    }
    known = evaluate(graph, values)
    for role in ("running_mean", "running_var"):
        np.testing.assert_array_equal(known[f"batch_norm.{role}_updated"], values[f"batch_norm.{role}"])
    slope = values["batch_norm.weight"] / np.sqrt(values["batch_norm.running_var"] + 1e-5)
    expected = values["batch_norm.out.grad"] * slope[:, None, None]
    np.testing.assert_allclose(known["x.grad"], expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "options", "shape", "batch", "dtype"),
    [
        ("instance_norm", {}, (8, 4, 4), 1, "fp32"),
        ("instance_norm", {}, (8, 4, 4), 1, "bf16"),
        ("instance_norm", {}, (8, 26, 26), 1, "fp32"),
        ("instance_norm", {}, (32, 10, 10), 1, "fp32"),
        ("batch_norm", {}, (4, 4, 4), 2, "fp32"),
        ("layer_norm", {}, (16, 16), 1, "fp32"),
    ],
)
def test_the_published_sizes(
    name: str, options: dict, shape: tuple[int, ...], batch: int, dtype: str
) -> None:
    case = Case(name, 0, Example(options, (shape,)), dtype, batch)
    check_reference(case)
    check_tiles(case)


def test_forks_are_those_of_the_library() -> None:
    """Instance norm one per sample and step (so two backward), RMS norm two forward, the others one."""
    inputs = [DrawnInput((4, 3, 3))]
    instance = build_layer_graph("instance_norm", {}, inputs, batch=2)
    assert [len(task_of(instance, step).calls) for step in ("FW", "WG", "IG")] == [2, 2, 2]
    assert {call.kernel for call in task_of(instance, "IG").calls} == {"instnorm_bw_input"}
    rms = build_layer_graph("rms_norm", {}, inputs, batch=2)
    assert [call.kernel for call in task_of(rms, "FW").calls] == ["rmsnorm_sum", "rmsnorm_scale"]
    batch = build_layer_graph("batch_norm", {}, inputs, batch=2)
    kernels = ["norm_mean", "norm_var", "norm_inv", "norm_apply", "norm_wg", "norm_ig_apply"]
    assert [call.kernel for op in batch.ops for call in task_of(batch, op.step).calls] == kernels
    layer = build_layer_graph("layer_norm", {}, inputs, batch=2)
    assert [len(task_of(layer, step).calls) for step in ("FW", "WG", "IG")] == [1, 1, 1]


def test_a_weight_nobody_trains_has_no_gradient_step() -> None:
    spec = LayerSpec("ln", "instance_norm", {}, "here", trainable=False)
    graph = build_training_graph(model(spec))
    assert [op.step for op in graph.ops if op.layer == "ln"] == ["FW"]


def test_statistics_are_fp32_in_a_16_bit_layer() -> None:
    graph, _ = build(Case("layer_norm", 0, Example({}, ((4, 6),)), "bf16", 2))
    assert {graph.tensors[f"layer_norm.{role}"].dtype for role in ("mean", "inv_std")} == {"float32"}
    assert graph.tensors["layer_norm.out"].dtype == "bfloat16"
