# SPDX-License-Identifier: Apache-2.0
"""How good the source of a hardware parameter is: cited, measured, fitted or assumed.

The grade follows from what the SoC file says. `assumed: true` is *assumed*. A source is parts separated by
semicolons; a part that begins with `MEASURED_ON` or `FITTED_ON` names rows of `measured/`, any other part is
a citation. Rows of GVSoC count in the profile gvsoc, rows of the RTL in rtl. There such a part makes the
value

- *measured*, if a row gives it, alone or less another measured interval (a citation may say the same);
- *fitted*, if it is what the model needs to meet rows: a rest, a mean of rows that differ, a threshold.

In the other profile these parts do not count. A value with a citation is *cited* then, any other is
*assumed*. A value the user sets is cited: the user is its source.
"""

from __future__ import annotations

import re

from configs.parameters import Parameter, ParameterTree

CITED, MEASURED, FITTED, ASSUMED = "cited", "measured", "fitted", "assumed"

GRADES = (CITED, MEASURED, FITTED, ASSUMED)
"""The grades, in the order of tables."""

DESCRIBED, ESTIMATED = "described", "estimated"

LABELS = (MEASURED, DESCRIBED, ESTIMATED)
"""What stands behind the cycles of a kernel or of a part of the machine, best first."""

MACHINES = {"gvsoc": "GVSoC", "rtl": "RTL"}
"""Timing profile -> what rows of it were taken on, as sources name it."""

MEASURED_ON = tuple(f"measured on {machine}" for machine in MACHINES.values())
FITTED_ON = tuple(f"fitted on {machine}" for machine in MACHINES.values())


def grade(parameter: Parameter, profile: str) -> str:
    """One of `GRADES`."""
    parts = parts_of(parameter.source)
    cited = any(not part.startswith((*MEASURED_ON, *FITTED_ON)) for part in parts)
    if parameter.assumed:
        return ASSUMED
    for word in (FITTED, MEASURED):
        if any(part.startswith(f"{word} on {MACHINES[profile]}") for part in parts):
            return word
    return CITED if cited else ASSUMED


def grades(tree: ParameterTree) -> dict[str, str]:
    """The grade of every parameter by its path."""
    return {path: grade(parameter, tree.profile) for path, parameter in tree.items()}


def assumed_count(tree: ParameterTree) -> int:
    """How many parameters of a SoC are assumed."""
    return sum(word == ASSUMED for word in grades(tree).values())


def parts_of(source: str) -> list[str]:
    """The parts of a source; a semicolon in parentheses separates nothing."""
    return [part.strip() for part in re.split(r";(?![^(]*\))", source)]
