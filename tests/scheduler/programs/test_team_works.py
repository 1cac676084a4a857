# SPDX-License-Identifier: Apache-2.0
"""Works of kernel calls are shared between equal calls, and only between those."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from arch.spec.isa import TeamWork
from arch.spec.soc_config import load_soc
from configs.model_file import load_model
from scheduler.programs.team_works import TeamWorks, content_of
from scheduler.tiles.tiling import Tiler
from trainlib.ir.steps import KernelCall, KernelChoice
from trainlib.primitives.lowering.calls import matmul_call
from trainlib.registry import lowering_of
from trainlib.training.phases import build_training_graph

PLACES = {"a": 0, "b": 4096, "c": 8192}


def matmul(n: int = 8, kernel: str = "mm") -> KernelCall:
    choice = KernelChoice(kernel, "clang-xpulp", cores=4)
    return matmul_call(choice, a="a", b="b", c="c", n=n, k=4, m=8, trans_b=False, c_shape=(n, 8))


def test_equal_calls_share_one_object() -> None:
    works = TeamWorks()
    first = works.of(matmul(), 4, PLACES)
    assert works.of(matmul(), 4, PLACES) is first
    assert first == matmul().work(4, PLACES)


@pytest.mark.parametrize(
    ("call", "cores", "places"),
    [
        (matmul(n=7), 4, PLACES),
        (matmul(kernel="mm_M"), 4, PLACES),
        (matmul(), 3, PLACES),
        (matmul(), 4, {**PLACES, "b": 4100}),
    ],
    ids=["size", "kernel", "cores", "address"],
)
def test_calls_that_differ_in_anything_do_not(
    call: KernelCall, cores: int, places: Mapping[str, int]
) -> None:
    works = TeamWorks()
    first = works.of(matmul(), 4, PLACES)
    assert works.of(call, cores, places) == call.work(cores, places) != first


def test_what_cannot_be_told_apart_is_made_anew() -> None:
    secret = object()

    def work(cores: int, addresses: Mapping[str, int]) -> TeamWork:
        return TeamWork(str(id(secret)), (None,) * cores)

    def function(arrays: Sequence[object]) -> Sequence[object]:
        return arrays

    call = KernelCall("k", (), (), work, function)  # type: ignore[arg-type]
    assert content_of(call) is None
    works = TeamWorks()
    assert works.of(call, 2, {}) == works.of(call, 2, {})
    assert works.of(call, 2, {}) is not works.of(call, 2, {})


@pytest.mark.parametrize("model", ["digits-cnn", "tutorial-cnn"])
def test_calls_of_one_content_have_one_work_whatever_the_matmul_kernel(model: str) -> None:
    graph = build_training_graph(load_model(model))
    cores = load_soc("pulp-open").cores
    seen: dict[object, TeamWork] = {}
    shared = 0
    for op in graph.ops:
        lowering = lowering_of(op)
        choice = KernelChoice(lowering.default_kernel(op), "clang-xpulp", cores=cores)
        for kernel in dict.fromkeys((choice.kernel, "mm_unroll_2x4") if choice.kernel else ("",)):
            tiler = Tiler(op, graph.tensors, lowering, replace(choice, kernel=kernel), 1)
            halves = {name: -(-extent // 2) for name, extent in tiler.dims.items()}
            tiling = tiler.build(halves)
            for call in (call for task in tiling.tiles for call in task.calls):
                names = (*(buffer.name for buffer in tiling.buffers), *call.reads, *call.writes)
                addresses = dict.fromkeys(names, 64)
                work = call.work(cores if call.fork else 1, addresses)
                key = content_of(call), tuple(addresses)
                assert key[0] is not None, call.kernel
                shared += key in seen
                assert seen.setdefault(key, work) == work
    assert shared > 10
