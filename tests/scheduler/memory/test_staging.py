# SPDX-License-Identifier: Apache-2.0
"""L3: which tensors go there, when they are in L2, right numbers at every size, transfers that overlap."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arch.spec.soc_config import load_soc
from configs.errors import DoesNotFitError
from configs.model_file import load_model
from pulptrain.inputs.settings import Settings, with_options
from scheduler.addresses.allocation import align
from scheduler.addresses.lifetimes import Life
from scheduler.addresses.plan_options import PlanOptions
from scheduler.memory.l2_staging import HomeChoice, Stay, spare_slots, stays_of
from scheduler.memory.memory_plan import least_l2_bytes, plan_memory
from shared.kept_plans import prepare, run_model
from shared.tiers import sweep_nine_of_ten
from shared.touched_spans import spans
from traces.events import TRANSFER
from trainlib.training.phases import build_training_graph


def life(uses: dict[int, str], *, given: bool = False, kept: bool = False, after: int = 20) -> Life:
    """A tensor of 100 B; `uses` maps op numbers to r (read), w (written) or rw."""
    reads = tuple(op for op, how in uses.items() if "r" in how)
    writes = tuple(op for op, how in uses.items() if "w" in how)
    first = 0 if given else min(uses)
    last = after if given or kept else max(uses)
    return Life("t", 100, first, last, "weight", "t", reads=reads, writes=writes, given=given, kept=kept)


def stay(first: int, last: int, needed: int, *, loads: bool, written: int = -1) -> Stay:
    what = (f"t@{needed}", 100, first, last, "weight", "t")
    return Stay(*what, staged=True, needed_op=needed, loads=loads, written_op=written)


def all_stays(tensor: Life, ops: int = 20) -> list[Stay]:
    return stays_of(tensor, {*tensor.uses, *spare_slots(tensor, ops)})


def test_a_saved_activation_leaves_after_its_forward_step_and_comes_back_one_op_early() -> None:
    saved = life({3: "w", 4: "r", 12: "r"})
    assert all_stays(saved) == [
        # Written by op 3, sent back during op 4, which reads it as well.
        stay(3, 4, 3, loads=False, written=3),
        # Prefetched during op 11; dead after op 12, so nothing is written back.
        stay(11, 12, 12, loads=True),
    ]


def test_a_weight_is_loaded_for_every_pass_and_written_back_after_its_update() -> None:
    weight = life({2: "r", 9: "r", 15: "rw"}, given=True, kept=True)
    assert all_stays(weight) == [
        stay(1, 2, 2, loads=True),
        stay(8, 9, 9, loads=True),
        stay(14, 16, 15, loads=True, written=15),
    ]


def test_copies_needed_by_neighbouring_ops_stay() -> None:
    """Ops 5 and 7: the copy would arrive for op 7 while op 6 runs, so it never leaves."""
    assert all_stays(life({5: "r", 7: "r"}, given=True)) == [stay(4, 7, 5, loads=True)]


def test_without_room_beside_its_uses_a_copy_arrives_and_leaves_between_ops() -> None:
    weight = life({2: "r", 15: "rw"}, given=True, kept=True)
    assert stays_of(weight, weight.uses) == [
        stay(2, 2, 2, loads=True),
        stay(15, 15, 15, loads=True, written=15),
    ]


@st.composite
def random_lives(draw: st.DrawFn) -> dict[str, Life]:
    lives = {}
    for number in range(draw(st.integers(1, 12))):
        uses = dict.fromkeys(draw(st.lists(st.integers(0, 9), min_size=1, max_size=4)), "r")
        given_, kept = draw(st.booleans()), draw(st.booleans())
        first = min(uses)
        if not given_:
            uses[first] = "w"
        reads = tuple(sorted(op for op, how in uses.items() if how == "r"))
        writes = tuple(sorted(op for op, how in uses.items() if how == "w"))
        begin, end = (0 if given_ else first), (10 if given_ or kept else max(uses))
        size = draw(st.integers(1, 40)) * 4
        name = f"t{number}"
        alive = {"reads": reads, "writes": writes, "given": given_, "kept": given_ or kept}
        lives[name] = Life(name, size, begin, end, "kept", name, **alive)
    return lives


@settings(derandomize=True)
@given(random_lives(), st.integers(0, 400))
def test_the_choice_of_homes_keeps_every_op_within_l2_or_names_the_op(
    lives: dict[str, Life], capacity: int
) -> None:
    choice = HomeChoice(lives, 10, {})
    hopeless = choice.fit(capacity)
    stays = choice.stays()
    live = [0] * 11
    for item in [
        *(lives[name] for name in lives if name not in choice.in_l3),
        *stays,
    ]:
        for op in range(item.first_op, item.last_op + 1):
            live[op] += align(item.size_bytes)
    assert live == choice.live_bytes.tolist()
    for name in choice.in_l3:
        held = {op for s in stays if s.tensor == name for op in range(s.first_op, s.last_op + 1)}
        assert held >= set(lives[name].uses)
    if hopeless is None:
        assert max(live) <= capacity
    else:
        # Even alone the tensors of that op are too many.
        own = sum(align(item.size_bytes) for item in lives.values() if hopeless in item.uses)
        assert own == live[hopeless] > capacity


SIZES = ("46KiB", "47KiB", "50KiB", "56KiB", "60KiB")


@pytest.mark.parametrize(
    "case", sweep_nine_of_ten(list(product(SIZES, ["single", "double"])), lambda case: case[1])
)
def test_numbers_agree_with_pytorch_however_little_l2_there_is(case: tuple[str, str]) -> None:
    l2, buffering = case
    summary = run_model("digits-cnn", Settings(l2=l2, icache="warm", buffering=buffering)).summary
    assert summary["functional"]["passed"]
    assert summary["peak_bytes"]["l3"] > 0
    assert summary["peak_bytes"]["l2"] <= summary["capacity_bytes"]["l2"]


def test_training_goes_on_with_weights_in_l3() -> None:
    ample = run_model("digits-cnn", iterations=30).summary["training"]
    homes = ("fc.weight=l3", "conv2.weight=l3", "conv1.out=l3")
    tight = run_model("digits-cnn", Settings(l2="50KiB", icache="warm", homes=homes), iterations=30).summary[
        "training"
    ]
    # Tiles differ, and so may the order in which BLAS adds: equal bits depend on the processor.
    assert tight["last_loss"] == pytest.approx(ample["last_loss"], rel=1e-6)


def test_a_forced_home_is_where_the_tensor_is_put_and_found() -> None:
    prepared = prepare("digits-cnn", Settings(homes=("fc.weight=l3",)))
    plan = prepared.schedule.plan
    assert plan.home("fc.weight").level == plan.home("fc.weight_updated").level == "l3"
    uses = [n for n, op in enumerate(prepared.schedule.graph.ops) if "fc.weight" in op.inputs]
    assert all(plan.place(op, "fc.weight").level == "l2" for op in uses)
    with pytest.raises(KeyError, match="not in L2 during op 0"):
        plan.place(0, "fc.weight")
    # It is prefetched during the op before the first use, so it is not readable yet then.
    assert not plan.readable(uses[0] - 1, "fc.weight")
    assert plan.readable(uses[0], "fc.weight")


def test_prefetch_and_write_back_run_beside_computation() -> None:
    outcome = run_model("digits-cnn", Settings(homes=("conv2.weight=l3",)), functional=False)
    transfers = [item for item in outcome.slices if item.track == "soc.udma" and item.kind == TRANSFER]
    assert [item.work.what for item in transfers] == ["conv2.weight"] * 4
    assert sum(item.bytes for item in transfers) == 4 * 4608
    assert outcome.summary["staged_bytes"] == {"in": 3 * 4608, "out": 4608}
    computing = [
        item for item in outcome.slices if item.track == "soc.cluster.core0" and item.kind == "compute"
    ]
    for item in transfers:
        assert any(
            other.start_cycles < item.end_cycles and item.start_cycles < other.end_cycles
            for other in computing
        )
    ample = run_model("digits-cnn", functional=False).summary
    exposed = outcome.summary["cycles"] - ample["cycles"]
    assert 0 < exposed < sum(item.duration_cycles for item in transfers)


@pytest.mark.parametrize("l2", ["1536KiB", "56KiB", "46KiB", "20KiB", "4KiB"])
def test_the_peaks_of_the_plan_are_those_of_the_bytes_the_program_touches(l2: str) -> None:
    """A recount that knows nothing of the plan: the highest byte of L2 and L3 in any action."""
    prepared = prepare("digits-cnn", Settings(l2=l2, icache="warm"))
    schedule = prepared.schedule
    highest = {"l1": 0, "l2": 0, "l3": 0}
    for _, span in spans(schedule):
        highest[span.level] = max(highest[span.level], span.end)  # type: ignore[attr-defined]
    assert highest["l2"] == schedule.peak_bytes["l2"]
    assert highest["l3"] == schedule.peak_bytes["l3"]
    assert highest["l1"] <= schedule.peak_bytes["l1"] <= prepared.timing.l1_usable_bytes
    # L1 from the buffers of each op: none leaves its op's slots, and one op's slots reach the peak.
    slots = [
        max(
            place + next(b.slot_bytes for b in op.tiling.buffers if (b.role, b.name) == key)
            for key, places in op.layout.slots.items()
            for place in places
        )
        for op in schedule.ops
    ]
    assert max(slots) == schedule.peak_bytes["l1"]


@pytest.mark.parametrize("l2", ["50KiB", "20KiB"])
def test_the_peak_is_counted_again_from_the_allocations(l2: str) -> None:
    plan = prepare("digits-cnn", Settings(l2=l2, icache="warm")).schedule.plan
    for level, peak in plan.peak_bytes.items():
        bytes_used = np.zeros((len(plan.ops) + 1, peak), dtype=np.uint8)
        for item in plan.allocations:
            if item.level == level:
                bytes_used[item.first_op : item.last_op + 1, item.address : item.end_address] += 1
        assert bytes_used.max(initial=0) == 1  # no byte has two owners at any op
        assert np.flatnonzero(bytes_used.any(axis=0))[-1] + 1 == peak


def test_an_op_that_alone_exceeds_l2_is_named_with_what_it_needs() -> None:
    graph = build_training_graph(load_model("digits-cnn"))
    timing = with_options(load_soc(), l2="40KiB")
    with pytest.raises(DoesNotFitError, match=r"for op fc\.UPD") as raised:
        plan_memory(graph, timing)
    error = raised.value
    assert error.required_bytes == 2 * 23040 == least_l2_bytes(graph, timing, PlanOptions())
    assert error.available_bytes == 40 * 1024
    assert {item.name for item in error.contributors} == {"fc.weight", "fc.weight.grad"}
    assert {item.lifetime for item in error.contributors} == {"conv1.FW to the end", "fc.WG to the end"}
    assert plan_memory(graph, with_options(load_soc(), l2=2 * 23040)).peak_bytes["l2"] == 2 * 23040


def test_without_l3_everything_must_fit_l2() -> None:
    graph = build_training_graph(load_model("digits-cnn"))
    ample = plan_memory(graph, load_soc()).peak_bytes["l2"]
    fits = with_options(load_soc(), l2=ample, l3="0")
    assert plan_memory(graph, fits).stays == ()
    with pytest.raises(DoesNotFitError) as raised:
        plan_memory(graph, with_options(load_soc(), l2="48KiB", l3="0"))
    assert raised.value.level == "l2"
    assert raised.value.required_bytes == ample


def test_a_small_l3_is_reported_as_such() -> None:
    graph = build_training_graph(load_model("digits-cnn"))
    with pytest.raises(DoesNotFitError) as raised:
        plan_memory(graph, with_options(load_soc(), l2="50KiB", l3="4KiB"))
    assert raised.value.level == "l3"
    enough = with_options(load_soc(), l2="50KiB", l3=raised.value.required_bytes)
    assert plan_memory(graph, enough).peak_bytes["l3"] == raised.value.required_bytes
