# SPDX-License-Identifier: Apache-2.0
"""docs/getting-started.md: all that `pulptrain run tutorial-cnn` prints."""

from __future__ import annotations

from tools.pages.page import Page
from tools.pages.readme import report


def run() -> str:
    """The lines and the tables."""
    return "\n".join(["```", *report(), "```"])


PAGE = Page("docs/getting-started.md", {"run": run})
