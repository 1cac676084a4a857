# SPDX-License-Identifier: Apache-2.0
"""Imported by the process that others are copied from: everything that takes time and knows no defect.

Imports, and the compiled window engine, which is loaded by pricing one team that no measured row has.
"""

from __future__ import annotations

from arch.pricing.team_cost_model import TeamCostModel
from arch.pricing.window import PROCESS
from arch.spec.isa import CoreWork, Instruction, Op, Stream, TeamWork
from arch.spec.soc_config import load_soc, with_values
from tools.timing_defects import trial

__all__ = ["trial"]

MANY_ITEMS = 1 << 62
"""So many that the engine is loaded at once, see `arch.pricing.window`."""

_LOADS = CoreWork((Instruction(Op.LOAD, dst=1, stream=0),), (Stream(0, ()),))

PROCESS.take(MANY_ITEMS)
TeamCostModel(with_values(load_soc("pulp-open", "gvsoc"), {"l1.bank_conflicts": True})).price(
    TeamWork("warm-up", (_LOADS,) * 2)
)
