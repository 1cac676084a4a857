# SPDX-License-Identifier: Apache-2.0
"""The best fp32 matmul of the pulp-gcc7 kernels in L1: MAC per cycle, kernel and shape.

    PYTHONPATH=. python tools/gcc7_peak.py [CANDIDATES]

Eight cores, private FPUs, bank conflicts (pulp-open-private, gvsoc timing), operands in the 64 KiB of L1
beside the stacks. Every kernel is priced on every shape of the sweep without conflicts; the CANDIDATES best
(200) are priced again with them. The published peak is 4.39 MAC per cycle; nothing is set from it.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from arch.pricing.team_cost_model import TeamCostModel
from arch.spec.soc_config import load_soc, with_values
from arch.spec.timing import SocTiming
from trainlib.kernels.catalogue import kernel_names, matmul_work

CODEGEN = "pulp-gcc7"
SIZES = (8, 16, 24, 32, 48, 64, 96, 128)
DEPTHS = (16, 32, 64, 96, 128, 192, 256)
FORK_AND_JOIN_CYCLES = 40
"""About what the event unit adds around a kernel; the first fetch of its code is in the kernel."""


@dataclass(frozen=True, order=True)
class Case:
    """A kernel on a shape."""

    kernel: str
    n: int
    k: int
    m: int
    trans_b: bool

    @property
    def size_bytes(self) -> int:
        """A, B and C."""
        return 4 * (self.n * self.k + self.k * self.m + self.n * self.m)

    def mac_per_cycle(self, cost_model: TeamCostModel, cores: int = 8) -> float:
        """From fork to join, A, B and C one after another."""
        a, b = 0, 4 * self.n * self.k
        work = matmul_work(
            self.kernel,
            CODEGEN,
            self.n,
            self.k,
            self.m,
            self.trans_b,
            cores,
            a_address=a,
            b_address=b,
            c_address=b + 4 * self.k * self.m,
        )
        return self.n * self.k * self.m / (cost_model.price(work).cycles + FORK_AND_JOIN_CYCLES)


def machine(*, fpus: str = "private", bank_conflicts: bool = True) -> SocTiming:
    """The platform of the published numbers, or a variant of it."""
    timing = load_soc("pulp-open-private", "gvsoc")
    return with_values(timing, {"l1.bank_conflicts": bank_conflicts, "fpu": fpus})


def sweep(l1_bytes: int) -> Iterator[Case]:
    """All kernels on all shapes whose operands fit."""
    names = [name for name in kernel_names(CODEGEN) if name.startswith("mm")]
    for kernel, n, k, m, trans_b in itertools.product(names, SIZES, DEPTHS, SIZES, (False, True)):
        case = Case(kernel, n, k, m, trans_b)
        if case.size_bytes <= l1_bytes:
            yield case


def best(candidates: int) -> list[tuple[float, float, Case]]:
    """(MAC per cycle with conflicts, without, case), best first."""
    alone, together = TeamCostModel(machine(bank_conflicts=False)), TeamCostModel(machine())
    cases = sweep(machine().l1_usable_bytes)
    ranked = sorted(((case.mac_per_cycle(alone), case) for case in cases), reverse=True)[:candidates]
    found = [(case.mac_per_cycle(together), bound, case) for bound, case in ranked]
    return sorted(found, reverse=True)


def main(arguments: list[str]) -> None:
    """Entry point; see the top of the file."""
    found = best(int(arguments[0]) if arguments else 200)
    shared = TeamCostModel(machine(fpus="4-static"))
    print("kernel             N    K    M  B^T   MAC/cycle  without conflicts  four shared FPUs")
    for with_conflicts, without, case in found[:10]:
        four = case.mac_per_cycle(shared)
        print(
            f"{case.kernel:16} {case.n:4} {case.k:4} {case.m:4}  {int(case.trans_b)}   "
            f"{with_conflicts:10.2f}  {without:17.2f}  {four:16.2f}"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
