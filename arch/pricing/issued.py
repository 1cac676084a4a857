# SPDX-License-Identifier: Apache-2.0
"""How many instructions the cores of a team issue, whatever they wait for."""

from __future__ import annotations

from arch.spec.isa import Loop, Node, TeamWork

KEPT_COUNTS = 10_000
"""Bodies of kernels whose instructions are known."""


def most_issued(work: TeamWork) -> int:
    """Instructions of the core that issues the most."""
    return max([issued(core.body) for core in work.cores if core is not None], default=0)


def issued(body: tuple[Node, ...]) -> int:
    """Instructions a core issues in a loop nest. Cores and calls share bodies, so each is counted once."""
    known = _COUNTS.get(id(body))
    if known is None or known[0] is not body:
        loops = [node for node in body if isinstance(node, Loop)]
        count = len(body) - len(loops) + sum([loop.trips * issued(loop.body) for loop in loops])
        if len(_COUNTS) >= KEPT_COUNTS:
            _COUNTS.clear()
        known = _COUNTS[id(body)] = body, count
    return known[1]


_COUNTS: dict[int, tuple[tuple[Node, ...], int]] = {}
"""By identity of the body, which is kept alive."""
