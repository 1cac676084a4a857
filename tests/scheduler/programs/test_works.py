# SPDX-License-Identifier: Apache-2.0
"""Loop nests of kernel calls: equal ones are one object; only calls named after the matmul kernel run it."""

from __future__ import annotations

import pytest

from arch.spec.isa import TeamWork
from arch.spec.program import Compute
from arch.spec.soc_config import load_soc
from configs.model_file import load_model
from configs.values import replace
from pulptrain.inputs.settings import Settings
from scheduler.tiles.tiling import Tiler
from shared.kept_plans import prepare
from trainlib.ir.steps import KernelChoice
from trainlib.registry import lowering_of
from trainlib.training.phases import build_training_graph


def test_tiles_of_one_shape_at_the_same_addresses_share_their_nests() -> None:
    actions = prepare("digits-cnn", Settings(l1="24KiB")).schedule.program.actions
    teams = [action.team for action in actions if isinstance(action, Compute)]
    assert len({id(team) for team in teams}) == len({repr(team.origin) for team in teams}) < len(teams)


@pytest.mark.parametrize("model", ["digits-cnn", "tutorial-cnn"])
def test_calls_not_named_after_the_matmul_kernel_do_the_same_under_another(model: str) -> None:
    graph = build_training_graph(load_model(model))
    cores = load_soc("pulp-open").cores

    def works(tiler: Tiler) -> list[tuple[str, TeamWork]]:
        tiling = tiler.build({name: -(-extent // 2) for name, extent in tiler.dims.items()})
        made = []
        for call in (call for task in tiling.tiles for call in task.calls):
            names = (*(buffer.name for buffer in tiling.buffers), *call.reads, *call.writes)
            made.append((call.kernel, call.work(cores if call.fork else 1, dict.fromkeys(names, 64))))
        return made

    compared = 0
    for op in graph.ops:
        lowering = lowering_of(op)
        choice = KernelChoice(lowering.default_kernel(op), "clang-xpulp", cores=cores)
        if choice.kernel:
            tiler, other = (
                Tiler(op, graph.tensors, lowering, replace(choice, kernel=kernel), 1)
                for kernel in (choice.kernel, "mm_unroll_2x4")
            )
            for (kernel, usual), (_, another) in zip(works(tiler), works(other), strict=True):
                assert kernel == choice.kernel or usual == another
                compared += kernel != choice.kernel
    assert compared > 10
