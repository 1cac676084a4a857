# SPDX-License-Identifier: Apache-2.0
"""docs/barvinn-machine.md: rules, checks, registers, a job's time and parameters of BARVINN's units."""

from __future__ import annotations

from tools.pages.barvinn import behaviour, job, measured, parameters, registers
from tools.pages.page import Page

PAGE = Page(
    "docs/barvinn-machine.md",
    {
        **{"behaviour": behaviour, "measured": measured, "registers": registers},
        **{"job": job, "parameters": parameters},
    },
)
