# SPDX-License-Identifier: Apache-2.0
"""What a matmul kernel costs on a machine, by its shape: the one entry for callers that ask thousands."""

from __future__ import annotations

from arch.pricing.cost_model import CostModel, TeamCost, Traffic
from arch.spec.timing import SocTiming
from trainlib.kernels.catalogue import matmul_work

MEMO_ENTRIES = 100_000
"""Answers kept; all are dropped when there are more."""


class KernelCosts:
    """Costs of matmul kernels of one codegen on one machine, remembered by shape.

    The key is (kernel, n, k, m, trans_b, cores, traffic, and the L1 addresses modulo one turn of the banks):
    addresses a whole turn apart meet the same banks, so they cost the same.
    """

    def __init__(self, timing: SocTiming, cost_model: CostModel, codegen: str) -> None:
        self._cost_model = cost_model
        self._codegen = codegen
        self._turn = timing.l1.banks * timing.l1.word_bytes
        self._known: dict[tuple[object, ...], TeamCost] = {}

    def matmul(
        self,
        kernel: str,
        n: int,
        k: int,
        m: int,
        *,
        trans_b: bool = False,
        cores: int = 1,
        addresses: tuple[int, int, int] = (0, 0, 0),
        traffic: Traffic = Traffic.NONE,
    ) -> TeamCost:
        """Cost of C[N,M] = A[N,K] · B[K,M] (fp32) with A, B, C at `addresses` (L1 bytes).

        Raises `InputError` for sizes below 1 and unknown kernels.
        """
        a, b, c = addresses
        turn = self._turn
        key = (kernel, n, k, m, trans_b, cores, traffic, a % turn, b % turn, c % turn)
        cost = self._known.get(key)
        if cost is None:
            work = matmul_work(kernel, self._codegen, n, k, m, trans_b, cores, a, b, c)
            cost = self._cost_model.price(work, traffic)
            if len(self._known) >= MEMO_ENTRIES:
                self._known.clear()
            self._known[key] = cost
        return cost
