# SPDX-License-Identifier: Apache-2.0
"""How much of an iteration's cycles rests on measurements: the evidence of its kernels and of the machine.

Every cycle of the time line (`scheduler.time_line`) has one label: that of the nest that ran
(`trainlib.kernels.evidence`), or that of the part of the machine. A part of the machine is *estimated* if any
parameter its cycles come from is assumed, else *measured* if any is measured or fitted, else *described*
(`configs.grades`). Off the machine of the measured rows nothing is measured.
"""

from __future__ import annotations

from typing import Any

from configs.grades import (
    ASSUMED,
    DESCRIBED,
    ESTIMATED,
    FITTED,
    LABELS,
    MEASURED,
    assumed_count,
    grades,
)
from configs.parameters import ParameterTree, load_parameters
from pulptrain.inputs.settings import Settings, set_parameters
from scheduler.time_line import PARTS, TimeLine
from trainlib.kernels.evidence import nest_evidence, on_machine

ROWS_PROFILE = "gvsoc"
"""The timing profile of the rows of compiled kernels; on RTL hand-written ones were measured."""

ROWS_SOCS = ("pulp-open", "pulp-open-private")
"""The SoC of all measured rows, with its FPUs shared and private; of both there are rows."""

LARGEST = 3
"""Unmeasured contributors that are named."""


def evidence_of(line: TimeLine, settings: Settings) -> dict[str, Any]:
    """The object `evidence` of a summary: shares of the cycles by label (sum 1), assumed parameters of the
    SoC under the profile, and the `LARGEST` contributors that are not measured. Raises `ConfigError`.
    """
    tree = load_parameters(settings.soc, settings.timing, set_parameters(settings))
    cycles = dict.fromkeys(LABELS, 0)
    unmeasured = []
    for is_kernel, name, own_cycles in line:
        label = label_of(is_kernel, name, settings, tree)
        cycles[label] += own_cycles
        if label != MEASURED:
            unmeasured.append((own_cycles, name, label))
    whole_cycles = max(sum(cycles.values()), 1)
    shares = {label: own_cycles / whole_cycles for label, own_cycles in cycles.items()}
    return {
        **shares,
        "assumed_parameters": assumed_count(tree),
        "largest_unmeasured": [
            {"kernel": name, "share": own_cycles / whole_cycles, "evidence": label}
            for own_cycles, name, label in sorted(unmeasured, key=lambda item: (-item[0], item[1]))[:LARGEST]
        ],
    }


def label_of(is_kernel: bool, name: str, settings: Settings, tree: ParameterTree) -> str:
    """The label of a kernel, or of a part of the machine."""
    label = nest_evidence(settings.codegen, name).label if is_kernel else machine_label(name, tree)
    # Teams of any size, any L1 and L2, FPUs and conflicts count.
    measured = tree.profile == ROWS_PROFILE and tree.name in ROWS_SOCS and not settings.overrides
    return on_machine(label, measured_machine=measured)


def machine_label(part: str, tree: ParameterTree) -> str:
    """The label of a part of the machine where it was measured."""
    wanted = PARTS[part]
    grades_of_part = {
        grade
        for path, grade in grades(tree).items()
        if any(path == each or path.startswith(f"{each}.") for each in wanted)
    }
    if ASSUMED in grades_of_part:
        return ESTIMATED
    return MEASURED if grades_of_part & {MEASURED, FITTED} else DESCRIBED
