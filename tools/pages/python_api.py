# SPDX-License-Identifier: Apache-2.0
"""docs/python-api.md: the options of the functions, and the classes of layers, losses and optimizers.

Functions and results are put in by Sphinx, from their docstrings.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import get_type_hints

import pulptrain
from pulptrain.inputs import layers
from pulptrain.inputs.option import FitOptions, LinkedRunOptions, Option, RunOptions, TuneOptions
from tools.pages.page import Page, table
from trainlib.about import ABOUT

_ALSO: Mapping[str, type] = {
    "run": LinkedRunOptions,
    "tune": TuneOptions,
    "fit": FitOptions,
    "explore": RunOptions,
}


def options() -> str:
    """Every option of the functions that take a model; `what_if` and `deploy` have those of `run`."""
    takers: dict[str, list[str]] = {}
    found: dict[str, Option] = {}
    for function, keys in _ALSO.items():
        for name, hint in get_type_hints(keys, include_extras=True, localns={"Tuned": object}).items():
            for each in getattr(hint, "__metadata__", ()):
                if isinstance(each, Option):
                    found[name] = each
                    takers.setdefault(name, []).append(f"`{function}`")
    rows = (
        (f"`{name}`", f"`{each.flag or '--' + name.replace('_', '-')}`", ", ".join(takers[name]), each.help)
        for name, each in found.items()
    )
    return table(("option", "command line", "functions", "meaning"), rows)


def classes() -> str:
    """Every layer, loss and optimizer as a class."""
    rows = []
    for name in layers.__all__:
        primitive = getattr(getattr(pulptrain, name), "primitive", None)
        if primitive is None or primitive.name not in ABOUT:
            continue
        own = [
            str(each)
            for each in inspect.signature(getattr(pulptrain, name)).parameters.values()
            if each.kind is not inspect.Parameter.KEYWORD_ONLY
        ]
        rows.append((f"`{name}({', '.join(own)})`", ABOUT[primitive.name]))
    return table(("class", "what it computes"), rows)


PAGE = Page("docs/python-api.md", {"options": options, "classes": classes})
