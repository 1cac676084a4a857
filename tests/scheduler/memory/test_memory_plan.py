# SPDX-License-Identifier: Apache-2.0
"""Addresses: nothing that lives at the same time shares a byte, and dead bytes are used again."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arch.spec.program import DmaStart, Program
from arch.spec.soc_config import load_soc
from configs.errors import InputError
from configs.model_file import load_model
from configs.values import replace
from pulptrain.inputs.settings import Settings, with_options
from scheduler.addresses.allocation import (
    Allocation,
    Interval,
    OverlapError,
    PlanError,
    align,
    check_no_overlap,
    lower_bound_bytes,
    peak_bytes,
)
from scheduler.addresses.optimal_placement import _optimal, place_optimal, solver_installed
from scheduler.addresses.order_search import STARTS, search_orders
from scheduler.addresses.placement import ORDERS, fit, place
from scheduler.addresses.plan_options import PlanOptions
from scheduler.executor import Executor
from scheduler.memory.memory_plan import plan_memory
from shared.kept_plans import prepare
from trainlib.training.phases import build_training_graph


def test_buffers_that_never_live_together_share_an_address() -> None:
    plan = fit([Interval("a", 100, 0, 1), Interval("b", 100, 2, 3)], "l2")
    assert plan["a"].address == plan["b"].address == 0


def test_buffers_that_live_together_do_not() -> None:
    plan = fit([Interval("a", 100, 0, 2), Interval("b", 90, 2, 3), Interval("c", 8, 3, 3)], "l2")
    assert [plan[name].address for name in "abc"] == [0, 100, 0]


def test_addresses_are_whole_words() -> None:
    plan = fit([Interval("a", 10, 0, 0), Interval("b", 9, 0, 0)], "l2")
    assert plan["b"].address == 12


def test_best_fit_takes_the_tightest_gap_where_first_fit_takes_the_lowest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Placed by name, a to d lie one after the other; at op 1 there are holes of 24 B at 0 and of 16 B at 32.
    monkeypatch.setitem(ORDERS, "name", lambda item, most: (item.name,))  # type: ignore[arg-type]
    wanted = [
        Interval("a", 24, 0, 0),
        Interval("b", 8, 0, 1),
        Interval("c", 16, 0, 0),
        Interval("d", 8, 0, 1),
        Interval("e", 16, 1, 1),
    ]
    assert fit(wanted, "l2", "name")["e"].address == 0
    assert fit(wanted, "l2", "name", (), "best-fit")["e"].address == 32


def test_the_checker_sees_an_overlap_and_names_both() -> None:
    one = Interval("a", 8, 0, 1).at("l1", 0)
    with pytest.raises(OverlapError, match=r"a .*0 to 8.* and b .*4 to 12.* overlap") as raised:
        check_no_overlap([one, Interval("b", 8, 1, 1).at("l1", 4)])
    assert raised.value.exit_code == 2
    check_no_overlap([one, Interval("b", 8, 2, 2).at("l1", 4), Interval("c", 8, 0, 1).at("l2", 0)])


requests = st.lists(
    st.tuples(st.integers(1, 64), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=25
).map(lambda drawn: [Interval(f"t{i}", size, min(a, b), max(a, b)) for i, (size, a, b) in enumerate(drawn)])
allocations = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 12), st.integers(0, 9), st.integers(0, 9)), max_size=12
).map(
    lambda drawn: [
        Interval(f"t{i}", size, min(a, b), max(a, b)).at("l2", place)
        for i, (place, size, a, b) in enumerate(drawn)
    ]
)


@settings(derandomize=True)
@given(allocations)
def test_the_sweep_agrees_with_comparing_every_pair(items: list[Allocation]) -> None:
    def clash(one: Allocation, other: Allocation) -> bool:
        together = one.first_op <= other.last_op and other.first_op <= one.last_op
        return together and one.address < other.end_address and other.address < one.end_address

    pairs = [(a, b) for i, a in enumerate(items) for b in items[i + 1 :]]
    if any(clash(*pair) for pair in pairs):
        with pytest.raises(OverlapError):
            check_no_overlap(items)
    else:
        check_no_overlap(items)


@settings(derandomize=True)
@given(requests)
def test_placement_is_valid_and_lies_between_its_bounds(wanted: list[Interval]) -> None:
    """No plan is below the bytes live at the same time, none above their sum, the best order counts."""
    bound = max(
        sum(align(item.size_bytes) for item in wanted if item.first_op <= op <= item.last_op)
        for op in range(10)
    )
    assert lower_bound_bytes(wanted) == bound
    for strategy in ("first-fit", "best-fit"):
        peaks = []
        for order in ORDERS:
            tried = fit(wanted, "l2", order, (), strategy)
            check_no_overlap(tried.values())
            assert {name: item.size_bytes for name, item in tried.items()} == {
                item.name: item.size_bytes for item in wanted
            }
            peaks.append(peak_bytes(tried.values()))
        best = place(wanted, "l2", strategy)
        check_no_overlap(best.values())
        assert peak_bytes(best.values()) <= max(peaks)
        assert align(peak_bytes(best.values())) == align(min(peaks))
        assert bound <= align(min(peaks)) <= sum(align(item.size_bytes) for item in wanted)


@pytest.mark.needs_ortools
@settings(derandomize=True, deadline=None, max_examples=30)
@given(requests)
def test_the_optimal_plan_is_valid_and_never_worse(wanted: list[Interval]) -> None:
    found, notes = place_optimal(wanted, "l2")
    check_no_overlap(found.values())
    assert {item.name for item in found.values()} == {item.name for item in wanted}
    heuristic = min(
        peak_bytes(place(wanted, "l2", strategy).values()) for strategy in ("first-fit", "best-fit")
    )
    assert lower_bound_bytes(wanted) <= align(peak_bytes(found.values())) <= align(heuristic)
    again, _ = place_optimal(wanted, "l2")
    assert again == found
    assert notes == ()  # so few requests are always decided


HOLE = [
    Interval(f"t{number}", *drawn)
    for number, drawn in enumerate(
        [(24, 2, 5), (8, 4, 5), (16, 0, 3), (8, 3, 4), (20, 1, 2), (16, 5, 5), (4, 1, 5), (12, 3, 5)]
    )
]
"""Eight requests (bytes, first op, last op) of which every order of both heuristics leaves a hole."""


@pytest.mark.needs_ortools
def test_the_solver_finds_what_no_order_finds() -> None:
    for strategy in ("first-fit", "best-fit"):
        assert peak_bytes(place(HOLE, "l2", strategy).values()) == 72
    found, notes = place_optimal(HOLE, "l2")
    assert notes == ()
    assert peak_bytes(found.values()) == lower_bound_bytes(HOLE) == 64


def test_without_the_solver_the_search_over_orders_finds_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler.addresses.optimal_placement.solver_installed", lambda: False)
    found, notes = place_optimal(HOLE, "l2")
    check_no_overlap(found.values())
    assert peak_bytes(found.values()) == 64
    assert notes == ()


def test_what_is_not_proved_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the solver and without steps of the search the better heuristic plan is all there is."""
    _optimal.cache_clear()  # plans made with the solver
    monkeypatch.setattr("scheduler.addresses.optimal_placement.solver_installed", lambda: False)
    monkeypatch.setattr(
        "scheduler.addresses.optimal_placement.search_orders", partial(search_orders, steps=0)
    )
    found, notes = place_optimal(HOLE, "l2")
    check_no_overlap(found.values())
    assert peak_bytes(found.values()) == 72
    assert "pulptrain[solver]" in notes[0]
    assert "the lower bound is 64 B, this plan takes 72 B" in notes[0]
    monkeypatch.setattr("scheduler.addresses.optimal_placement.solver_installed", lambda: True)
    monkeypatch.setattr("scheduler.addresses.optimal_placement.MOST_SOLVED", 3)
    _optimal.cache_clear()
    again, notes = place_optimal(HOLE, "l2")
    _optimal.cache_clear()
    assert again == found
    assert "too many buffers for the solver" in notes[0]


@settings(derandomize=True, deadline=None, max_examples=30)
@given(requests)
def test_the_search_over_orders_makes_valid_plans_between_bound_and_fit(wanted: list[Interval]) -> None:
    bound = lower_bound_bytes(wanted)
    addresses = search_orders(wanted, bound, steps=50)
    placed = [item.at("l2", addresses[item.name]) for item in wanted]
    check_no_overlap(placed)
    heuristic = min(peak_bytes(fit(wanted, "l2", order).values()) for order in STARTS)
    assert bound <= align(peak_bytes(placed)) <= align(heuristic)
    assert addresses == search_orders(wanted, bound, steps=50)


@pytest.mark.parametrize("model", ["resnet8", "mobilenet-v1", "trainlib-resnet-cifar10"])
def test_nets_of_tensors_of_many_sizes_come_to_their_lower_bound(model: str) -> None:
    """Without a search: weight gradients grow downwards, towards activations that end."""
    plan = plan_memory(build_training_graph(load_model(model)), with_options(load_soc(), l2="8MiB"))
    assert plan.peak_bytes["l2"] == plan.lower_bound_bytes["l2"]


def test_every_tensor_has_a_level_an_address_and_its_whole_life() -> None:
    graph = build_training_graph(load_model("digits-cnn"))
    plan = plan_memory(graph, load_soc())
    after = len(graph.ops)
    for name in graph.tensors:
        home = plan.home(name)
        users = [number for number, op in enumerate(graph.ops) if name in (*op.inputs, *op.outputs)]
        assert home.level == "l2"
        assert all(home.first_op <= number <= home.last_op for number in users)
    for name in graph.weights:
        assert (plan.home(name).first_op, plan.home(name).last_op) == (0, after)
    # The updated weight is the weight: same bytes, directed alias.
    for weight, updated in graph.updates.items():
        assert plan.home(updated) == plan.home(weight)
        assert plan.owners[updated] == weight
    # An activation the backward pass reads again lives from its FW to that step, in the bytes of conv1.out.
    ops = [op.name for op in graph.ops]
    relu1 = plan.home("relu1.out")
    assert (ops[relu1.first_op], ops[relu1.last_op], relu1.kind) == ("conv1.FW", "relu1.IG", "kept")


def test_an_elementwise_step_writes_over_an_input_that_ends_there() -> None:
    """relu1.IG reads dy for the last time and makes dx of the same shape: dx takes the bytes of dy."""
    graph = build_training_graph(load_model("digits-cnn"))
    plan = plan_memory(graph, load_soc())
    op = next(op for op in graph.ops if op.name == "relu1.IG")
    assert plan.in_place[op["dx"]] == plan.owners[op["dy"]]
    assert plan.home(op["dx"]) == plan.home(op["dy"])
    # relu1.FW does so, too, as relu1.IG reads its output; where it reads the input it must not.
    forward = next(op for op in graph.ops if op.name == "relu1.FW")
    assert plan.home(forward["y"]) == plan.home(forward["x"])
    again = replace(op, reads=("x", "dy"), inputs=(forward["x"], op["dy"]))
    ops = tuple(again if item is op else item for item in graph.ops)
    plan = plan_memory(replace(graph, ops=ops), load_soc())
    assert plan.home(forward["y"]) != plan.home(forward["x"])
    apart = plan_memory(graph, load_soc(), PlanOptions(in_place=False))
    assert apart.in_place == {}
    assert apart.lower_bound_bytes["l2"] >= plan.lower_bound_bytes["l2"]


def test_a_broken_plan_is_refused_before_anything_runs() -> None:
    prepared = prepare("digits-cnn", Settings())
    schedule = prepared.schedule
    weight, grad = schedule.plan.home("fc.weight"), schedule.plan.home("fc.weight.grad")
    moved = tuple(
        replace(item, address=weight.address + 4) if item == grad else item
        for item in schedule.plan.allocations
    )
    broken = replace(schedule, plan=replace(schedule.plan, allocations=moved))
    with pytest.raises(OverlapError, match=r"fc\.weight.*fc\.weight.* overlap"):
        Executor(broken, prepared.timing, prepared.cost_model)


def test_a_program_that_leaves_its_plan_is_refused() -> None:
    prepared = prepare("digits-cnn", Settings())
    schedule = prepared.schedule
    actions = list(schedule.program.actions)
    number, start = next((n, a) for n, a in enumerate(actions) if isinstance(a, DmaStart))
    stray = replace(start.commands[0], external_address=prepared.schedule.peak_bytes["l2"])
    actions[number] = replace(start, commands=(stray, *start.commands[1:]))
    broken = replace(schedule, program=Program(schedule.program.name, tuple(actions)))
    with pytest.raises(PlanError, match=r"L2 bytes .*the memory plan has no buffer during conv1\.FW"):
        Executor(broken, prepared.timing, prepared.cost_model)
    # One buffer shortened by an op: the program reads it after its life.
    early = tuple(
        replace(item, last_op=item.last_op - 1) if item.name == "conv1.out" else item
        for item in schedule.plan.allocations
    )
    shortened = replace(schedule, plan=replace(schedule.plan, allocations=early))
    with pytest.raises(PlanError, match=r"relu1\.IG"):
        Executor(shortened, prepared.timing, prepared.cost_model)


def test_an_address_outside_the_memory_is_refused() -> None:
    plan = plan_memory(build_training_graph(load_model("digits-cnn")), load_soc())
    outside = replace(plan, capacity_bytes={**plan.capacity_bytes, "l2": plan.peak_bytes["l2"] - 1})
    with pytest.raises(PlanError, match="memory plan, l2"):
        outside.check()


def test_unknown_tensors_are_refused() -> None:
    graph = build_training_graph(load_model("digits-cnn"))
    with pytest.raises(InputError, match=r"fc\.weight"):
        plan_memory(graph, load_soc(), PlanOptions(homes={"fc.weigth": "l3"}))


def test_placement_strategies_agree_on_what_lives_when() -> None:
    graph = build_training_graph(load_model("resnet8"))
    timing = with_options(load_soc(), l2="4MiB")
    peaks = {}
    for strategy in ("first-fit", "best-fit"):
        plan = plan_memory(graph, timing, PlanOptions(strategy))
        peaks[strategy] = plan.peak_bytes["l2"]
        assert plan.lower_bound_bytes["l2"] <= plan.peak_bytes["l2"]
    if solver_installed():
        best = plan_memory(graph, timing, PlanOptions("optimal"))
        assert best.peak_bytes["l2"] <= min(peaks.values())
