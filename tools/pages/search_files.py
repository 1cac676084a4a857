# SPDX-License-Identifier: Apache-2.0
"""docs/explore-and-schedule-files.md: the keys of the files of `explore` and `tune`."""

from __future__ import annotations

from functools import partial

from pulptrain.exploring.explore_spec import (
    OBJECTIVES,
    OF_ONE,
    SETTINGS,
    SHORT_PATHS,
    ExploreSchema,
)
from scheduler.tuner.tuned_schedule import (
    Named,
    OpChoice,
    ResidentTensors,
    TunedSchedule,
    TunedSoc,
)
from tools.pages.model_file import template
from tools.pages.page import Page, table
from tools.pages.reference import keys_table


def axes() -> str:
    """What a sweep may vary."""
    rows = [
        ("a setting", ", ".join(f"`{name}`" for name in SETTINGS), "`cores: [1, 2, 4, 8]`"),
        ("of the model", ", ".join(f"`{name}`" for name in SHORT_PATHS), "`dtype: [fp32, fp16]`"),
        ("a path of the model file", "`model.PATH`", "`model.layers.0.out_channels: [8, 16]`"),
        ("another model", "`model`", "`model: [tutorial-cnn, digits-cnn]`"),
        ("a parameter of the SoC", "its path", "`l2.dma_read_latency_cycles: [20, 100]`"),
        (
            "an option for one op (`conv1.IG`), for a step of all layers (`IG`), or for a tensor (`home`)",
            ", ".join(f"`{name}.{'TENSOR' if name == 'home' else 'OP'}`" for name in OF_ONE),
            "`kernel.IG: [mm, mm_u2]`",
        ),
    ]
    return table(("axis", "names", "example"), rows)


def objectives() -> str:
    """What may be made small."""
    return table(("objective", "meaning"), ((f"`{name}`", about) for name, about in OBJECTIVES.items()))


PAGE = Page(
    "docs/explore-and-schedule-files.md",
    {
        "template": partial(template, "explore"),
        "explore": partial(keys_table, ExploreSchema),
        "axes": axes,
        "objectives": objectives,
        "schedule": partial(keys_table, TunedSchedule),
        "model": partial(keys_table, Named),
        "soc": partial(keys_table, TunedSoc),
        "resident": partial(keys_table, ResidentTensors),
        "choice": partial(keys_table, OpChoice),
    },
)
