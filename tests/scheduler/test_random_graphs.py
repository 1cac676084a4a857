# SPDX-License-Identifier: Apache-2.0
"""Random networks on random memories: right numbers, or a correct report of what does not fit; nothing else.

Branches that meet again in an add or a concat, norms, pools and every convolution; L1, L2 and L3 from
hopeless to ample; buffer depths for all operands and for single ones. Races, deadlocks and plans that overlap
are errors of their own and fail the test.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from configs.errors import DoesNotFitError
from configs.model_file import LayerSpec, LossSpec, ModelSpec, OptimizerSpec
from configs.values import replace
from scheduler.executor import Executor
from scheduler.options import ScheduleOptions
from scheduler.schedule import build_schedule
from shared.agreement import ROUNDING_MARGIN
from shared.initial_values import initial_values
from shared.oracle_torch import evaluate_torch
from shared.random_schedules import STACK_BYTES, TIMING, Fixed
from shared.tiers import examples
from trainlib.ir.numerics import FP32_TOLERANCE
from trainlib.training.phases import build_training_graph

pytestmark = pytest.mark.needs_torch


class Network:
    """Layers one after another, with the shape (channels, rows, columns) of the last."""

    def __init__(self, draw, shape: tuple[int, int, int]) -> None:
        self.draw = draw
        self.shape = shape
        self.layers: list[LayerSpec] = []

    @property
    def last(self) -> str:
        return self.layers[-1].name

    def add(self, kind: str, *inputs: str, **options: object) -> str:
        name = f"{kind}{len(self.layers)}"
        self.layers.append(LayerSpec(name, kind, options, "x:1", inputs or None))
        return name

    def convolve(self, channels: int | None = None, *inputs: str) -> None:
        """A convolution of any kind; with `channels` given it keeps rows and columns."""
        ci, hi, wi = self.shape
        kinds = ["conv2d", "pointwise", "depthwise"]
        kind = self.draw(st.sampled_from(kinds if channels in (None, ci) else kinds[:2]))
        co = channels or self.draw(st.integers(1, 5))
        bias = self.draw(st.booleans())
        if kind == "pointwise":
            self.add(kind, *inputs, out_channels=co, bias=bias)
            self.shape = (co, hi, wi)
            return
        kernel = 2 * self.draw(st.integers(0, 1)) + 1
        padding = kernel // 2 if channels else self.draw(st.integers(0, kernel // 2))
        if min(hi, wi) + 2 * padding < kernel:
            padding = kernel // 2
        stride = 1 if channels else self.draw(st.integers(1, 2))
        options = {"kernel": kernel, "padding": padding, "stride": stride, "bias": bias}
        if kind == "conv2d":
            options["out_channels"] = co
        self.add(kind, *inputs, **options)
        ho, wo = ((size + 2 * padding - kernel) // stride + 1 for size in (hi, wi))
        self.shape = (co if kind == "conv2d" else ci, ho, wo)

    def norm(self) -> None:
        if self.shape[1] * self.shape[2] == 1:
            return  # a mean over one element is refused
        if self.draw(st.booleans()):
            self.add("batch_norm")
        else:
            groups = [n for n in range(1, self.shape[0] + 1) if self.shape[0] % n == 0]
            self.add("group_norm", groups=self.draw(st.sampled_from(groups)))

    def pool(self) -> None:
        channels, hi, wi = self.shape
        if min(hi, wi) < 2:
            return
        self.add(self.draw(st.sampled_from(["max_pool2d", "avg_pool2d"])), kernel=2)
        self.shape = (channels, hi // 2, wi // 2)

    def branch(self) -> None:
        """Out of the last layer and together again: a residual, or two branches side by side."""
        if not self.layers:
            self.convolve()
        start, (channels, hi, wi) = self.last, self.shape
        if self.draw(st.booleans()):
            self.convolve(channels, start)
            self.add("add", start, self.last)
            return
        self.convolve(self.draw(st.integers(1, 3)), start)
        one, first = self.last, self.shape[0]
        self.shape = (channels, hi, wi)
        self.convolve(self.draw(st.integers(1, 3)), start)
        self.add("concat", one, self.last)
        self.shape = (first + self.shape[0], hi, wi)


@st.composite
def models(draw) -> ModelSpec:
    image = (draw(st.integers(1, 4)), draw(st.integers(3, 8)), draw(st.integers(3, 8)))
    net = Network(draw, image)
    net.convolve()
    for step in draw(st.lists(st.sampled_from(["convolve", "relu", "norm", "pool", "branch"]), max_size=5)):
        if step == "relu":
            net.add("relu")
        else:
            getattr(net, step)()
    net.add(draw(st.sampled_from(["flatten", "global_avg_pool"])))
    if net.layers[-1].type == "global_avg_pool":
        net.add("flatten")
    net.add("linear", out_features=draw(st.integers(1, 6)), bias=draw(st.booleans()))
    # A large epsilon: Adam without one makes a whole step of a gradient that is nothing but rounding.
    plain = OptimizerSpec("sgd", {"learning_rate": 0.05}, "x:1")
    optimizer = draw(
        st.sampled_from([plain, OptimizerSpec("adam", {"learning_rate": 0.05, "eps": 0.01}, "x:1")])
    )
    batch = draw(st.integers(1, 2))
    loss = LossSpec(draw(st.sampled_from(["mse", "cross_entropy"])))
    return ModelSpec("net", "test", "test", image, "random", loss, optimizer, batch, tuple(net.layers), "x:1")


l2_words = st.integers(200, 12000) | st.integers(300, 2500) | st.integers(20, 600)
"""From what the operands of an op are too many for, one by one or together, to ample."""


@st.composite
def cases(draw):
    """A model, the memories it is to run on, and buffer depths."""
    spec = draw(models())
    graph = build_training_graph(spec)
    timing = replace(
        TIMING,
        l1=replace(TIMING.l1, size_bytes=STACK_BYTES + 4 * draw(st.integers(16, 3000))),
        l2=replace(TIMING.l2, size_bytes=4 * draw(l2_words)),
        l3=replace(TIMING.l3, size_bytes=draw(st.sampled_from([0, 4096, 1 << 20, 1 << 20]))),
    )
    buffers = {}
    for op in graph.ops:
        if draw(st.integers(0, 7)) == 0 and op.reads:
            buffers[op.name] = {op.reads[0]: draw(st.integers(1, 3))}
    depth = draw(st.sampled_from([0, 1, 2, 2, 3]))
    return spec, timing, ScheduleOptions(buffer_depth=depth, prefetch=draw(st.booleans()), buffers=buffers)


def sized(timing, level: str, size_bytes: int):
    """The SoC with so many bytes for tensors in a memory."""
    if level == "l1":
        size_bytes += STACK_BYTES
    return replace(timing, **{level: replace(getattr(timing, level), size_bytes=size_bytes)})


def refusal(graph, timing, options) -> DoesNotFitError | None:
    """Why there is no schedule, if there is none."""
    try:
        build_schedule(graph, timing, Fixed(10), options)
    except DoesNotFitError as error:
        return error
    return None


def check_report(error: DoesNotFitError, graph, timing, options) -> None:
    """The figures add up, and the bytes it asks for are enough for what it complains of."""
    available = {"l1": timing.l1_usable_bytes, "l2": timing.l2.size_bytes, "l3": timing.l3.size_bytes}
    assert error.available_bytes == available[error.level]
    assert error.required_bytes > error.available_bytes
    assert error.contributors
    known = {op.name for op in graph.ops} | {"the end"}
    for item in error.contributors:
        assert 0 < item.size_bytes <= error.required_bytes
        assert {item.first_op, item.last_op} <= known | {""}
    if error.level == "l1" or "in L3" in error.what:
        assert sum(item.size_bytes for item in error.contributors) == error.required_bytes
    again = refusal(graph, sized(timing, error.level, error.required_bytes), options)
    assert again is None or (again.level, again.where, again.what) != (
        error.level,
        error.where,
        error.what,
    ), again


def check_case(case, kernel_cycles: int, seed: int) -> None:
    spec, timing, options = case
    graph = build_training_graph(spec)
    cost_model = Fixed(kernel_cycles)
    try:
        schedule = build_schedule(graph, timing, cost_model, options)
    except DoesNotFitError as error:
        event(f"{error.level} is too small")
        check_report(error, graph, timing, options)
        return
    how = ", staged from L3" if schedule.plan.stays else ""
    event(f"runs{how}" + (", streamed" if schedule.plan.streams else ""))
    peaks = schedule.peak_bytes
    check_uses(schedule)
    assert peaks["l1"] <= timing.l1_usable_bytes
    assert peaks["l2"] <= timing.l2.size_bytes
    assert peaks["l3"] <= timing.l3.size_bytes
    values = initial_values(graph, spec, seed)
    executor = Executor(schedule, timing, cost_model)
    executor.load(values)
    executor.simulate()
    check_numbers(graph, values, executor)


def check_uses(schedule) -> None:
    """An op that cannot find a tensor in L2 streams it, and no other one does."""
    plan = schedule.plan
    for number, op in enumerate(schedule.graph.ops):
        for name in (*op.inputs, *op.outputs):
            if name in plan.stream(number).tensors:
                assert plan.home(name).level == "l3"
                with pytest.raises(KeyError):
                    plan.place(number, name)
            elif schedule.graph.tensors[name].size_bytes:
                assert plan.place(number, name).level == "l2"


def check_numbers(graph, values, executor: Executor) -> None:
    """Results and updated tensors are those of PyTorch in float64, to 1e-5 or what it makes of float32.

    Relative to 1 where a tensor is smaller: the gradient of what a norm cancels is nothing but rounding. The
    oracle does not name the moments of Adam.
    """
    truth, single = evaluate_torch(graph, values), evaluate_torch(graph, values, "float32")
    names = (*graph.results, *graph.updates.values())
    assert set(graph.weights) <= {kept for kept, new in graph.updates.items() if new in truth}
    for name in [name for name in names if name in truth]:
        exact = truth[name].astype(np.float64)
        rounding = float(np.abs(single[name] - exact).max())
        error = float(np.abs(executor.fetch(name) - exact).max())
        allowed = max(FP32_TOLERANCE * max(1.0, float(np.abs(exact).max())), ROUNDING_MARGIN * rounding)
        assert error <= allowed, (name, error, rounding)


kernel_times, seeds = st.integers(1, 400), st.integers(0, 1000)


@examples(500)
@given(case=cases(), kernel_cycles=kernel_times, seed=seeds)
def test_numbers_are_right_or_a_memory_is_too_small(case, kernel_cycles, seed) -> None:
    check_case(case, kernel_cycles, seed)
