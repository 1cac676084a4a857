# SPDX-License-Identifier: Apache-2.0
"""Which kernels have C sources, a block of docs/deploy.md."""

from __future__ import annotations

from collections import defaultdict

from tools.kernel_sources import GENERATED, NONE_NEEDED, covered
from tools.pages.page import table


def kernels() -> str:
    """Kernels by C file, those made from tables, and those refused."""
    found = covered()
    by_file: dict[str, list[str]] = defaultdict(list)
    for kernel, file in found.sources.items():
        by_file[file].append(f"`{kernel}`")
    words = {GENERATED: "made from the tables", NONE_NEEDED: "none needed"}
    rows = [
        (words.get(file, f"`{file}`"), len(names), " ".join(names)) for file, names in sorted(by_file.items())
    ]
    refused = [(f"`{kernel}`", why) for kernel, why in found.refused.items()]
    counted = f"{len(found.sources)} kernels have C sources in fp32; {len(refused)} calls are refused."
    tables = table(("source", "kernels", "names"), rows), table(("refused", "why"), refused)
    return "\n\n".join((counted, *tables))
