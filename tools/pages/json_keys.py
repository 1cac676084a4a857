# SPDX-License-Identifier: Apache-2.0
"""docs/json-keys.md: every key of the JSON that pulptrain writes."""

from __future__ import annotations

from configs.old_names import KEYS as FORMER
from configs.old_names import OBJECTIVES, OPTIONS
from tools.pages.page import Page, table
from traces.files.json_keys import KEYS, NAMED_BY_DATA
from traces.files.json_text import FORMAT


def json_keys() -> str:
    """All keys, sorted."""
    return table(
        ("key", "unit", "meaning"),
        ((f"`{name}`", key.unit, key.meaning) for name, key in sorted(KEYS.items())),
    )


def named_by_data() -> str:
    """Keys whose entries the data names."""
    return table(("inside", "entries are"), ((f"`{name}`", what) for name, what in NAMED_BY_DATA.items()))


def former() -> str:
    """Former names of options, objectives and keys."""
    options = [(f"`{name} {old}`", f"`{new}`") for name, all_ in OPTIONS.items() for old, new in all_.items()]
    objectives = [(f"objective `{old}` of `explore`", f"`{new}`") for old, new in OBJECTIVES.items()]
    keys = [(f"key `{old}`", f"`{new}`") for old, new in FORMER.items()]
    return table(("before", "now"), [*options, *objectives, *keys])


def number() -> str:
    """The format number."""
    return f"The format number of all JSON is **{FORMAT}** today.\n"


PAGE = Page(
    "docs/json-keys.md",
    {"number": number, "keys": json_keys, "named": named_by_data, "former": former},
)
