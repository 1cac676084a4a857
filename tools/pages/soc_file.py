# SPDX-License-Identifier: Apache-2.0
"""docs/soc-file.md: the template, the keys, the units and all parameters."""

from __future__ import annotations

from functools import partial

from configs.parameters import UNITS, ParameterSchema, SocSchema, load_parameters
from tools.pages.model_file import template
from tools.pages.page import Page, table
from tools.pages.reference import keys_table

_KINDS = {
    "integer": "integer",
    "bytes": "size: `64 KiB`, `1 MiB`, `512 B`",
    "hertz": "frequency: `50 MHz`, `1 GHz`",
    "number": "number",
    "flag": "`on` or `off`",
    "text": "string",
}


def units() -> str:
    """What a value looks like in each unit."""
    return table(("unit", "value"), ((f"`{unit}`", _KINDS[kind]) for unit, kind in UNITS.items()))


def parameters() -> str:
    """Every parameter with its value in pulp-open."""
    rtl, gvsoc = (load_parameters("pulp-open", profile) for profile in ("rtl", "gvsoc"))
    rows = []
    for path, each in rtl.items():
        values = dict.fromkeys(_shown(profile[path].value) for profile in (rtl, gvsoc))
        rows.append((f"`{path}`", " / ".join(values), each.unit, each.description))
    return table(("parameter", "pulp-open (rtl / gvsoc)", "unit", "meaning"), rows)


def _shown(value: object) -> str:
    return str(value) if not isinstance(value, bool) else "on" if value else "off"


PAGE = Page(
    "docs/soc-file.md",
    {
        "template": partial(template, "soc"),
        "soc": partial(keys_table, SocSchema),
        "parameter": partial(keys_table, ParameterSchema),
        "units": units,
        "parameters": parameters,
    },
)
