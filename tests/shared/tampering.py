# SPDX-License-Identifier: Apache-2.0
"""Kernels of one op changed: a defect of the machine."""

from __future__ import annotations

from arch.spec.program import Compute, Effect
from configs.values import replace


def tampered(prepared, layer, change):
    """The prepared run with every kernel of an op's step changed: a defect of the machine."""

    def wrong(action):
        if not (
            isinstance(action, Compute) and action.effect and f"{action.work.op}.{action.work.step}" == layer
        ):
            return action
        effect = action.effect

        def function(arrays):
            return tuple(change(array) for array in effect.function(arrays))

        return replace(action, effect=Effect(effect.reads, effect.writes, function))

    program = prepared.schedule.program
    actions = tuple(wrong(action) for action in program.actions)
    return replace(prepared, schedule=replace(prepared.schedule, program=replace(program, actions=actions)))
