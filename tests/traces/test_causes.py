# SPDX-License-Identifier: Apache-2.0
"""Why cores stand still: what a wait is for, and what a core without work waits for."""

from __future__ import annotations

import pytest

from pulptrain.inputs.settings import Settings
from shared.kept_plans import run_model
from traces.causes import CAUSES, GROUPS, bound_by
from traces.events import COMPUTE, STALLS, TRANSFER, Slice, Work
from traces.metrics import Metrics, measure

X, Y, K, ALONE = (Work("fc", "FW", 0, what) for what in ("x", "y", "mm", "softmax"))


def core(index: int, *parts: tuple[int, str, Work]) -> list[Slice]:
    """Slices of a core from cycle 0 on, each with the cycle it ends at."""
    starts = [0, *(end for end, _, _ in parts)]
    return [
        Slice(f"soc.cluster.core{index}", start, end, kind, work)
        for start, (end, kind, work) in zip(starts, parts, strict=False)
    ]


def moved(track: str, start: int, end: int, work: Work) -> Slice:
    return Slice(f"soc.{track}", start, end, TRANSFER, work, bytes=8)


def lost(metrics: Metrics, index: int) -> dict[str, int]:
    """Causes of a core, without those of no cycles."""
    return {cause: cycles for cause, cycles in metrics.cores[index].causes.items() if cycles}


def test_what_cores_wait_for_in_one_tile_by_hand() -> None:
    """Core 0 loads through L3 and L2, forks to core 1, computes alone, stores; core 2 has no rows."""
    master = core(
        0,
        (4, "offload", Work()),
        (6, "dma_program", X),  # of the uDMA
        (20, "dma_wait", X),  # L3: the DMA cannot begin before
        (23, "dma_program", X),
        (30, "dma_wait", X),
        (31, "fork", K),
        (41, COMPUTE, K),
        (45, "barrier", K),
        (46, "fork", K),
        (52, COMPUTE, ALONE),
        (54, "dma_program", Y),
        (60, "dma_wait", Y),
    )
    worker = core(
        1,
        (4, "offload", Work()),
        (30, "idle", Work()),
        (32, "fork", K),
        (45, COMPUTE, K),
        (60, "idle", Work()),
    )
    without = core(2, (4, "offload", Work()), (60, "idle", Work()))
    transfers = [
        moved("udma", 6, 20, X),
        moved("cluster.dma.in", 24, 29, X),
        moved("cluster.dma.out", 54, 59, Y),
    ]
    metrics = measure([*master, *worker, *without, *transfers])
    assert lost(metrics, 0) == {
        **{"busy": 16, "offload": 4, "dma_program": 7, "fork": 2, "barrier": 4},
        **{"l3": 14, "dma_in": 7, "dma_out": 6},
    }
    assert lost(metrics, 1) == {
        **{"busy": 13, "offload": 4, "dma_program": 7, "fork": 2 + 1, "serial": 6},
        **{"l3": 14, "dma_in": 7, "dma_out": 6},
    }
    assert lost(metrics, 2) == {
        **{"offload": 4, "dma_program": 7, "fork": 2, "serial": 6, "no_rows": 14},
        **{"l3": 14, "dma_in": 7, "dma_out": 6},
    }
    (op,) = metrics.ops
    assert {cause: op.causes[cause] for cause in ("l3", "no_rows", "offload")} == {
        "l3": 3 * 14,
        "no_rows": 14,
        "offload": 0,
    }


def test_a_wait_for_room_in_the_queue_is_for_the_dma_and_not_for_l3() -> None:
    """What waits behind other commands has not begun; that is no sign of L3 unless the uDMA is at it."""
    master = core(0, (5, "dma_program", X), (40, "dma_wait", X), (60, COMPUTE, K))
    late = moved("cluster.dma.in", 45, 50, X)
    assert lost(measure([*master, late]), 0)["dma_in"] == 35
    assert lost(measure([*master, late, moved("udma", 0, 4, X)]), 0)["dma_in"] == 35
    assert lost(measure([*master, late, moved("udma", 0, 40, X)]), 0)["l3"] == 35


def test_every_stall_word_but_two_is_a_cause_and_every_cause_is_of_one_group() -> None:
    assert set(STALLS) - set(CAUSES) == {"dma_wait", "idle"}
    assert len(CAUSES) == len(set(CAUSES)) == sum(map(len, GROUPS.values()))


OF_THE_MASTER = ("fork", "dma_program", "icache", "offload")
"""Stall words that workers wait for too."""


@pytest.mark.parametrize("buffering", ["single", "double"])
@pytest.mark.parametrize(
    "model",
    [
        *("simple-mlp", "tutorial-cnn", "digits-cnn"),
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in (
                *("deep-autoencoder", "ds-cnn", "resnet8", "cct", "gru-keywords", "mobilenet-v1"),
                *("speechnet", "tiny-transformer", "tiny-vit", "trainlib-resnet-cifar10"),
            )
        ),
    ],
)
def test_causes_add_up_to_the_makespan_on_every_core_and_in_every_op(model: str, buffering: str) -> None:
    outcome = run_model(model, Settings(buffering=buffering), functional=False)
    cycles = outcome.summary["cycles"]
    metrics = measure(outcome.slices, cycles)
    assert [sum(each.causes.values()) for each in metrics.cores] == [cycles] * len(metrics.cores)
    for op in metrics.ops:
        assert sum(op.causes.values()) == op.core_cycles
        stalls = {word: dict(op.stalls).get(word, 0) for word in STALLS}
        own = [word for word in CAUSES[1:] if word in stalls and word not in OF_THE_MASTER]
        assert [op.causes[word] for word in own] == [stalls[word] for word in own]
    assert sum(bound_by(metrics.total.causes).values()) == cycles * len(metrics.cores)
