# SPDX-License-Identifier: Apache-2.0
"""The critical path: by hand for two tiles, and over the models that its length is the makespan."""

from __future__ import annotations

from typing import Any

import networkx
import pytest

import pulptrain as pt
from configs.library import list_names
from configs.values import replace
from pulptrain.running.critical import lags_of, path_of
from traces.critical.activities import Graph, Lags, WaitLags, durations, graph_of, retimed
from traces.critical.path import column_of, critical_path, path_json, slacks
from traces.events import COMPUTE, TRANSFER, Slice, Work

CORE0, CORE1, IN, OUT = "soc.cluster.core0", "soc.cluster.core1", "soc.cluster.dma.in", "soc.cluster.dma.out"
LOADS = tuple(Work("a", "FW", tile, "x") for tile in range(2))
KERNELS = tuple(Work("a", "FW", tile, "relu") for tile in range(2))
STORE = Work("a", "FW", 1, "y")
LAGS = Lags(4, 5, 60, 2, WaitLags(2, 6, 15, 10), WaitLags(0, 1, 0, 7))
SMALL = ("simple-mlp", "tutorial-cnn")
"""Models that are quick to plan."""


def two_tiles() -> list[Slice]:
    """Two loads programmed at once, a kernel on two cores for each, the result of the second stored.

    A transfer starts up in 5 cycles, core 0 wakes 10 after it, core 1 is forked 10 after the call, and both
    wake 5 after the last has come to the barrier.
    """
    core0 = [
        (0, 10, "offload", Work()),
        (10, 20, "dma_program", LOADS[0]),
        (20, 30, "dma_program", LOADS[1]),
        (30, 75, "dma_wait", LOADS[0]),
        *((75, 80, "fork", KERNELS[0]), (80, 100, COMPUTE, KERNELS[0])),
        *((100, 130, "barrier", KERNELS[0]), (130, 134, "fork", KERNELS[0])),
        (134, 140, "dma_wait", LOADS[1]),
        *((140, 145, "fork", KERNELS[1]), (145, 165, COMPUTE, KERNELS[1])),
        *((165, 195, "barrier", KERNELS[1]), (195, 199, "fork", KERNELS[1])),
        (199, 209, "dma_program", STORE),
        (209, 254, "dma_wait", STORE),
        (254, 260, "offload", Work()),
    ]
    others = [
        (IN, 25, 65, TRANSFER, LOADS[0]),
        (IN, 65, 105, TRANSFER, LOADS[1]),
        (OUT, 214, 244, TRANSFER, STORE),
        (CORE1, 85, 125, COMPUTE, KERNELS[0]),
        (CORE1, 150, 190, COMPUTE, KERNELS[1]),
    ]
    return [*(Slice(CORE0, *item) for item in core0), *(Slice(*item) for item in others)]


def test_the_path_of_two_tiles_follows_the_first_load_and_the_slower_core() -> None:
    path = critical_path(graph_of(two_tiles(), LAGS))
    assert [(activity.resource, activity.kind, activity.cycles) for activity in path.activities] == [
        ("fabric controller", "offload", 10),
        ("core 0", "dma_program", 10),
        *(("DMA in", "start_up", 5), ("DMA in", TRANSFER, 40), ("core 0", "dma_wait", 10)),
        *(("core 1", "fork", 10), ("core 1", COMPUTE, 40), ("core 0", "barrier", 5), ("core 0", "fork", 4)),
        ("core 0", "dma_wait", 6),  # finds the second load over
        *(("core 1", "fork", 10), ("core 1", COMPUTE, 40), ("core 0", "barrier", 5), ("core 0", "fork", 4)),
        *(("core 0", "dma_program", 10), ("DMA out", "start_up", 5)),
        *(("DMA out", TRANSFER, 30), ("core 0", "dma_wait", 10)),
        ("fabric controller", "offload", 6),
    ]
    assert path.cycles == 260


def test_slack_of_two_tiles_is_what_one_thing_may_take_longer() -> None:
    graph = graph_of(two_tiles(), LAGS)
    slack = {
        (activity.resource, activity.kind, activity.work.tile): cycles
        for activity, cycles in zip(graph.activities, slacks(graph), strict=True)
    }
    assert slack["DMA in", TRANSFER, 0] == 0
    assert slack["DMA in", TRANSFER, 1] == 134 + 2 - 105, "the wait sees at its check that it is over"
    assert slack["core 0", COMPUTE, 0] == 125 - 100
    assert slack["core 1", COMPUTE, 0] == 0


def test_two_tiles_with_core_1_twice_as_fast_are_timed_anew() -> None:
    graph = graph_of(two_tiles(), LAGS)
    cycles = [
        activity.cycles // 2
        if activity.resource == "core 1" and activity.kind == COMPUTE
        else activity.cycles
        for activity in graph.activities
    ]
    assert retimed(graph, durations(graph))[-1] == 260
    assert retimed(graph, cycles)[-1] == 260 - 2 * 20


def longest(graph: Graph, longer: dict[int, int] | None = None) -> int:
    """The longest way through the activities, by networkx; some take `longer`."""
    net = networkx.DiGraph()
    for number, activity in enumerate(graph.activities):
        takes = activity.cycles + (longer or {}).get(number, 0)
        net.add_edge(("begin", number), ("end", number), weight=takes)
        net.add_edges_from((("end", other), ("begin", number)) for other in activity.after)
    return int(networkx.dag_longest_path_length(net, default_weight=0))


def graph_and_result(model: str, **options: Any) -> tuple[Graph, pt.Result]:
    result = pt.run(model, functional=False, **options)
    return graph_of(result.slices, lags_of(pt.soc("pulp-open").timing)), result


@pytest.mark.parametrize("buffering", ["single", "double"])
@pytest.mark.parametrize(
    "model",
    [pytest.param(name, marks=() if name in SMALL else pytest.mark.slow) for name in list_names("models")],
)
def test_the_length_of_the_path_is_the_makespan_and_that_of_the_longest_way(
    model: str, buffering: str
) -> None:
    graph, result = graph_and_result(model, buffering=buffering)
    path = critical_path(graph)
    assert path.cycles == result.cycles == longest(graph)
    at_cycles = 0
    for activity in path.activities:
        assert activity.start_cycles == at_cycles, activity
        at_cycles = activity.end_cycles
    assert retimed(graph, durations(graph)) == [activity.end_cycles for activity in graph.activities]
    found = path_json(path, result.summary)
    assert sum(item["cycles"] for item in found["critical_path"]) == result.cycles
    assert sum(sum(op["on_path_cycles"].values()) for op in found["ops"]) == result.cycles
    assert {op["name"] for op in found["ops"]} <= {"", *(op.name for op in result.ops)}


def test_an_activity_may_take_its_slack_longer_and_no_cycle_more() -> None:
    graph, result = graph_and_result("simple-mlp")
    beside = [number for number, slack in enumerate(slacks(graph)) if slack]
    for number in (*beside[:: len(beside) // 6], 0):
        slack = slacks(graph)[number]
        assert longest(graph, {number: slack}) == result.cycles
        assert longest(graph, {number: slack + 1}) == result.cycles + 1


@pytest.mark.parametrize("l2", ["2KiB", "3KiB"])
def test_a_network_in_l3_has_the_bus_to_it_on_its_path(l2: str) -> None:
    """Streamed box by box, and copied tensor by tensor."""
    graph, result = graph_and_result("simple-mlp", l2=l2, icache="warm")
    path = critical_path(graph)
    assert path.cycles == result.cycles == retimed(graph, durations(graph))[-1]
    assert "L3" in {column_of(activity) for activity in path.activities}


def test_two_programs_one_after_the_other_have_one_path() -> None:
    result = pt.run("simple-mlp", functional=False, accumulate=2)
    assert result.critical_path().cycles == result.summary["trace_cycles"]


def test_a_trace_that_leaves_cycles_out_is_refused() -> None:
    result = pt.run("simple-mlp", functional=False)
    cut = [item for item in result.slices if item.start_cycles < result.cycles // 2]
    with pytest.raises(pt.InputError, match="but must equal the makespan, 10660"):
        path_of(cut, result.summary)
    with pytest.raises(pt.InputError, match="the trace has 7 cores, but the summary of the run has 8"):
        path_of([item for item in result.slices if not item.track.endswith("core7")], result.summary)


def test_with_lags_of_another_machine_the_length_is_the_makespan_still() -> None:
    result = pt.run("simple-mlp", functional=False)
    wait = WaitLags(50, 200, 300, 1)
    other = replace(LAGS, start_up_cycles=500, dma_wait=wait, next_command_cycles=100)
    assert critical_path(graph_of(result.slices, other)).cycles == result.cycles
