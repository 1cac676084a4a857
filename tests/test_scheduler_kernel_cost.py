"""The memo of kernel costs by shape: same answers as asking the pricer, one question per distinct shape."""

from __future__ import annotations

import pytest

from arch.isa import TeamWork
from arch.pricing import TeamCost, Traffic
from arch.soc_config import load_soc
from arch.team_pricer import TeamPricer
from scheduler.tiles.kernel_cost import KernelCosts
from trainlib.kernels.catalogue import matmul_work


class Counting:
    """A pricer that counts what reaches it."""

    def __init__(self) -> None:
        self.asked = 0
        self.pricer = TeamPricer(load_soc())

    def price(self, work: TeamWork, traffic: Traffic = Traffic.NONE) -> TeamCost:
        self.asked += 1
        return self.pricer.price(work, traffic)


@pytest.mark.smoke
def test_a_shape_is_priced_once_and_like_the_pricer_does():
    pricer = Counting()
    costs = KernelCosts(load_soc(), pricer, "clang-xpulp")
    first = costs.matmul("mm", 8, 9, 10, cores=8, addresses=(0, 288, 648))
    work = matmul_work("mm", "clang-xpulp", 8, 9, 10, False, 8, 0, 288, 648)
    assert first == TeamPricer(load_soc()).price(work)
    assert costs.matmul("mm", 8, 9, 10, cores=8, addresses=(64, 288 + 640, 648)) is first
    assert pricer.asked == 1


def test_every_argument_is_in_the_key():
    pricer = Counting()
    costs = KernelCosts(load_soc(), pricer, "clang-xpulp")
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
    assert pricer.asked == 1 + len(changes)
