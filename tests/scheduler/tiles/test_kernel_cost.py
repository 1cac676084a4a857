# SPDX-License-Identifier: Apache-2.0
"""The memo of kernel costs by shape: the answers of the cost model, one question per distinct shape."""

from __future__ import annotations

import pytest

from arch.pricing.cost_model import TeamCost, Traffic
from arch.pricing.team_cost_model import TeamCostModel
from arch.spec.isa import TeamWork
from arch.spec.soc_config import load_soc
from scheduler.tiles.kernel_cost import KernelCosts
from trainlib.kernels.catalogue import matmul_work


class Counting:
    """A cost model that counts what reaches it."""

    def __init__(self) -> None:
        self.asked = 0
        self.cost_model = TeamCostModel(load_soc())

    def price(self, work: TeamWork, traffic: Traffic = Traffic.NONE) -> TeamCost:
        self.asked += 1
        return self.cost_model.price(work, traffic)


@pytest.mark.smoke
def test_a_shape_is_priced_once_and_like_the_cost_model_does():
    cost_model = Counting()
    costs = KernelCosts(load_soc(), cost_model, "clang-xpulp")
    first = costs.matmul("mm", 8, 9, 10, cores=8, addresses=(0, 288, 648))
    work = matmul_work("mm", "clang-xpulp", 8, 9, 10, False, 8, 0, 288, 648)
    assert first == TeamCostModel(load_soc()).price(work)
    assert costs.matmul("mm", 8, 9, 10, cores=8, addresses=(64, 288 + 640, 648)) is first
    assert cost_model.asked == 1


def test_every_argument_is_in_the_key():
    cost_model = Counting()
    costs = KernelCosts(load_soc(), cost_model, "clang-xpulp")
    base = {"kernel": "mm", "n": 8, "k": 8, "m": 8, "cores": 8}
    changes = (
        {"kernel": "mm_M"},
        *({axis: 9} for axis in "nkm"),
        {"trans_b": True},
        {"cores": 4},
        {"addresses": (0, 4, 0)},
        {"traffic": Traffic.IN},
    )
    costs.matmul(**base)
    for change in changes:
        costs.matmul(**{**base, **change})
    assert cost_model.asked == 1 + len(changes)
