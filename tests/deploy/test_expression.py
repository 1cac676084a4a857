# SPDX-License-Identifier: Apache-2.0
"""C made from the formulas of the tables: what NumPy computes, also of zeros, NaN, infinities, tiny ones."""

from __future__ import annotations

import numpy as np
import pytest

from configs.dtypes import FP32, INT32, UINT8
from configs.errors import InputError
from configs.values import replace
from deploy.calls.expression import TEAM, Trace, Writer, branches
from deploy.calls.generated import generated
from shared.c_kernels import action_of, check_action, laid_out
from shared.tiers import sweep_nine_of_ten
from trainlib.ir.graph import Op, Tensor
from trainlib.ir.steps import KernelChoice
from trainlib.ir.varying import Varying
from trainlib.primitives.definition import DrawnInput, LayerPrimitive
from trainlib.primitives.lowering.elementwise import ElementwiseLowering
from trainlib.primitives.optimizers.gradient_ops import ACCUMULATION, AVERAGE, SCALE, SQUARES
from trainlib.primitives.optimizers.gradient_ops import APPLY as SCALING
from trainlib.primitives.optimizers.gradient_ops import VALUE as CLIPPING
from trainlib.registry import PRIMITIVES, lowering_of
from trainlib.training.single import Single, single

TINY = float(np.finfo(np.float32).smallest_subnormal)
MODEST = [0.0, -0.0, TINY, -3 * TINY, 1e-38, 1.0, -1.0, 0.5, -2.0, 3.0, -3.0, 6.0, 17.5, -40.0, 1 / 3]
SPECIAL = [*MODEST, np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-45, 2.0**24 + 2]

CHOICE = KernelChoice("", "clang-xpulp", cores=8)

LAYERS = [
    (name, number)
    for name, primitive in PRIMITIVES.items()
    if isinstance(primitive, LayerPrimitive)
    and any(isinstance(step.lowering, ElementwiseLowering) for step in primitive.steps)
    for number, example in enumerate(primitive.examples)
    if all(case.dtype is None for case in example.cases)
    and example.attributes.get("to", "float32") == "float32"
]


def crossed(values: list[float], arrays: int) -> list[np.ndarray]:
    """Every value beside every other, of so many arrays; the further ones in turn."""
    grid = np.array(np.meshgrid(values, values)).reshape(2, -1)
    return [np.roll(grid[index % 2], index // 2).astype(np.float32) for index in range(arrays)]


def actions_on(made: Single, values: list[float], cores: int = 8):
    """The calls of all steps of a layer on tiles of these values."""
    for op in made.graph.ops:
        extents = {name: (0, size) for name, size in lowering_of(op).extents(op, made.graph.tensors).items()}
        task = lowering_of(op).tile(op, made.graph.tensors, extents, CHOICE)
        buffers = [*task.inputs, *task.outputs]
        masks = [made.graph.tensors[item.tensor].dtype == UINT8 for item in buffers]
        arrays = [
            (array > 0).astype(np.uint8) if mask else array
            for array, mask in zip(crossed(values, len(buffers)), masks, strict=True)
        ]
        tile = laid_out({item.name: one.reshape(1, -1) for item, one in zip(buffers, arrays, strict=True)})
        for call in task.calls:
            yield action_of(call, tile, cores), op, tile


@pytest.mark.needs_gcc
@pytest.mark.parametrize("layer", sweep_nine_of_ten(LAYERS))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_formulas_of_layers_have_numpys_results_on_special_values(layer: tuple[str, int]) -> None:
    name, number = layer
    example = PRIMITIVES[name].examples[number]
    larger = single(name, example.attributes, [DrawnInput((len(SPECIAL) ** 2,))] * len(example.cases))
    smaller = single(name, example.attributes, [DrawnInput((len(MODEST) ** 2,))] * len(example.cases))
    for special, modest in zip(actions_on(larger, SPECIAL), actions_on(smaller, MODEST), strict=True):
        made = generated(*modest[:2])
        assert made is not None
        bits = "pt_float_of_bits" in made.kernel.source  # of which C leaves open what a NaN becomes
        assert check_action(*(special if made.kernel.exact and not bits else modest), f"{name} {number}")


def internal(primitive, attributes, sizes, count=0):
    """An op of the graph builder on tensors of these sizes: its action, and the tile."""
    step = primitive.step
    op = Op(
        primitive.name,
        "w",
        primitive.name,
        step.name,
        step.reads,
        step.writes,
        attributes,
        step.reads,
        step.writes,
    )
    shapes = {"count": (1,), "scale": (1,), "squares": sizes[:1]}
    tensors = {}
    for role in (*step.reads, *step.writes):
        name = role.removesuffix("_updated")
        tensors[role] = Tensor(role, shapes.get(name, sizes), "", INT32 if name == "count" else FP32)
    drawn = np.random.default_rng(3)
    arrays = {
        role: np.full(1, count, np.int32) if tensor.dtype == INT32 else drawn.uniform(0, 2, tensor.shape)
        for role, tensor in tensors.items()
    }
    tile = laid_out({role: np.asarray(array, str(tensors[role].dtype)) for role, array in arrays.items()})
    extents = {name: (0, size) for name, size in step.lowering.extents(op, tensors).items()}
    task = step.lowering.tile(op, tensors, extents, CHOICE)
    return [(action_of(call, tile, 8), op, tile) for call in task.calls]


@pytest.mark.needs_gcc
@pytest.mark.parametrize("count", [0, 1, 4])
def test_what_stands_around_updates_is_exact(count: int) -> None:
    for primitive, attributes in (
        (ACCUMULATION, {"share": 1 / 3, "steps": 4}),
        (AVERAGE, {"share": 0.9}),
        (CLIPPING, {"limit": 0.7}),
        (SCALING, {}),
    ):
        for action, op, tile in internal(primitive, attributes, (5, 7), count):
            assert check_action(action, op, tile, primitive.name)


@pytest.mark.needs_gcc
def test_square_sums_and_their_scale_are_near() -> None:
    for primitive in (SQUARES, SCALE):
        for action, op, tile in internal(primitive, {"limit": 0.7}, (9, 5)):
            assert check_action(action, op, tile, primitive.name)


def update(name: str, options: dict[str, float], steps: int = 0):
    """The action of an update, and the tile."""
    made = single(name, options, [DrawnInput((6, 3))])
    (op,) = made.graph.ops
    task = lowering_of(op).tile(op, made.graph.tensors, {"d0": (0, 6), "d1": (0, 3)}, CHOICE)
    values = {item.name: item.taken(made.values[item.tensor]) for item in task.inputs}
    values |= {
        item.name: np.zeros(item.shape, made.graph.tensors[item.tensor].dtype) for item in task.outputs
    }
    tile = laid_out(values | {"t": np.array([steps], np.int32)})
    return action_of(task.calls[0], tile, 8), op, tile


@pytest.mark.needs_gcc
@pytest.mark.parametrize("steps", [0, 1, 100, 20_000])
@pytest.mark.parametrize("name", ["adam", "adamax", "nadam", "radam", "asgd"])
def test_bias_corrections_keep_their_digits_at_any_step(name: str, steps: int) -> None:
    options = {"learning_rate": 0.01} | ({"beta2": 0.9999} if name in ("adam", "nadam") else {})
    action, op, tile = update(name, options, steps)
    assert check_action(action, op, tile, name)
    made = generated(action, op)
    assert made is not None
    assert made.kernel.source.count("for (") == (2 if name in ("radam", "asgd") else 1)


def test_what_varies_is_an_argument_that_varies_and_what_is_made_of_it_too() -> None:
    rate = Varying("a schedule", lambda number, losses: 0.1 / (number + 1))
    action, op, _ = update("adamw", {"learning_rate": 0.1, "weight_decay": 0.5})
    made = [
        generated(action, replace(op, attributes={**op.attributes, "learning_rate": rate})) for _ in range(2)
    ]
    first, second = (dict(item.fields) for item in made if item is not None)
    assert first["learning_rate"] is rate
    decay = first["one_minus_learning_rate_times_weight_decay"]
    assert isinstance(decay, Varying)
    assert decay.rule(1, ()) == 1 - 0.05 * 0.5
    assert second["one_minus_learning_rate_times_weight_decay"] is decay


def test_arithmetic_on_options_is_done_at_export_also_of_one_that_varies() -> None:
    rate = Varying("a schedule", lambda number, losses: 0.1 / (number + 1))
    trace = Trace()
    given = {name: trace.option(name, value) for name, value in (("rate", rate), ("decay", 0.5))}
    result = trace.array("w") * (1 - given["rate"] * given["decay"])
    assert Writer({"w": result}, lambda name, known: name).results == {"w": "w * one_minus_rate_times_decay"}
    assert trace.exact
    assert trace.fields["one_minus_rate_times_decay"].now == 1 - 0.1 * 0.5


def test_a_formula_that_asks_is_traced_for_every_answer() -> None:
    def formula(trace: Trace) -> dict[str, object]:
        count, x = trace.array("count", "int32", known=TEAM), trace.array("x")
        return {"y": x if count[0] == 0 else x * 2 if count[0] % 3 == 1 else -x}

    texts = [
        Writer(results, lambda name, known: name if known == TEAM else f"{name}[i]").results["y"]
        for _, results in branches(formula)
    ]
    assert texts == ["x[i]", "x[i] * 2.0f", "-x[i]"]


@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e-8, 16777217.0, 3.4e38, -0.0, 1e-45, 5e-324])
def test_a_literal_is_the_float_that_numpy_rounds_to(value: float) -> None:
    trace = Trace()
    text = Writer({"y": trace.array("x") + value}, lambda name, known: name).results["y"].removeprefix("x + ")
    assert np.float32(text.removesuffix("f")).tobytes() == np.float32(value).tobytes()


def test_what_no_c_is_known_for_is_refused_by_name() -> None:
    x = Trace().array("x")
    for what, formula in {"arctan": lambda: np.arctan(x), "add.reduce": lambda: np.add.reduce(x)}.items():
        with pytest.raises(InputError, match=f"cannot translate a formula with {what} to C"):
            formula()
