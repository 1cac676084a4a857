# SPDX-License-Identifier: Apache-2.0
"""What there is to choose from: what `pulptrain list` prints."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from arch.spec.soc_config import soc_from_parameters
from configs.dtypes import DTYPES
from configs.library import list_names
from configs.model_file import load_model
from configs.parameters import load_parameters
from configs.suggest import check_known
from configs.values import Struct
from traces.text_table import table_lines
from trainlib.about import about
from trainlib.kernels.catalogue import kind_of
from trainlib.kernels.evidence import nest_evidence
from trainlib.kernels.library import LIBRARY
from trainlib.registry import PRIMITIVES, is_internal
from trainlib.training.options import check_options
from trainlib.training.variants import variants_text

Row = Mapping[str, Any]

WORD_BYTES = 4
"""A SoC file must give every memory a size; one below a word stands for a memory that is not there."""

PIPED_WIDTH = 240
"""Columns of a table that goes to a file or a pipe: wide enough that no cell is folded."""

DESCRIPTION = "description"
"""Title of the column of sentences, the last."""

DESCRIPTION_WIDTH = 40
"""A description is not squeezed into a narrower column than this."""


class Listing(Struct, frozen=True):
    """`rows` for machines (keys with units), and `cells`: what a person sees of a row, by column title."""

    rows: Sequence[Row]
    cells: Callable[[Row], Row] = lambda row: {key.replace("_", " "): value for key, value in row.items()}


def listing_of(kind: str, timing: str = "rtl") -> Listing:
    """The listing of a kind of thing. Raises `InputError` for an unknown one."""
    listings: Mapping[str, Callable[[], Listing]] = {
        "socs": lambda: _socs(timing),
        "models": _models,
        "kernels": _kernels,
        "primitives": _primitives,
    }
    check_known(kind, listings, f"unknown list {kind!r}", "list")
    return listings[kind]()


def rows_lines(rows: Sequence[Row], width: int) -> list[str]:
    """A table as lines; where it has no room for the descriptions, these follow in a table of their own."""
    titles = list(rows[0]) if rows else []
    figures = [title for title in titles if title != DESCRIPTION]
    cells = [[str(row[title]) for title in titles] for row in rows]
    lines = table_lines(figures, [each[: len(figures)] for each in cells], width, left=figures)
    if figures == titles:
        return lines
    if max(map(len, lines)) + DESCRIPTION_WIDTH <= width:
        return [*columns([titles, *cells], width)]
    return [*lines, "", *columns([(each[0], each[-1]) for each in (titles, *cells)], width)]


def columns(rows: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    """A table; what is too wide for its last column goes on below."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    start = sum(widths) + 2 * len(widths)
    for row in rows:
        cells = "".join(f"{cell:<{size}}  " for cell, size in zip(row, widths, strict=False))
        first, *more = textwrap.wrap(row[-1], max(width - start, 20)) or [""]
        yield f"{cells}{first}".rstrip()
        yield from (" " * start + rest for rest in more)


def _socs(timing: str) -> Listing:
    rows = []
    for name in list_names("soc"):
        tree = load_parameters(name, timing)
        soc = soc_from_parameters(tree)
        rows.append(
            {
                "name": name,
                "timing": timing,
                "cores": soc.cores,
                "fpu_count": soc.fpu.count,
                "fpu_mapping": soc.fpu.mapping,
                "divsqrt_count": soc.fpu.divsqrt_count,
                "l1_size_bytes": soc.l1.size_bytes,
                "l1_banks": soc.l1.banks,
                "l1_bank_conflicts": soc.l1.bank_conflicts,
                "l2_size_bytes": soc.l2.size_bytes,
                "l3_size_bytes": soc.l3.size_bytes,
                "cluster_hz": soc.clock.cluster_hz,
                "soc_hz": soc.clock.soc_hz,
                "peripheral_hz": soc.clock.peripheral_hz,
                "codegen": tree.codegen,
                "parameters": len(tree),
                "assumed": [parameter.path for parameter in tree.assumed],
                "description": tree.description,
            }
        )
    return Listing(rows, _soc_cells)


def _soc_cells(row: Row) -> Row:
    return {
        "name": row["name"],
        "cores": row["cores"],
        "FPUs": f"{row['fpu_count']} {row['fpu_mapping']}",
        "div": row["divsqrt_count"],
        "L1": f"{size_text(row['l1_size_bytes'])} x{row['l1_banks']}",
        "L2": size_text(row["l2_size_bytes"]),
        "L3": size_text(row["l3_size_bytes"]),
        "MHz": "/".join(f"{row[clock] / 1e6:g}" for clock in ("cluster_hz", "soc_hz", "peripheral_hz")),
        "codegen": row["codegen"],
        "assumed": f"{len(row['assumed'])}/{row['parameters']}",
        "description": row["description"],
    }


def size_text(size_bytes: int) -> str:
    """A size in MiB, KiB or B, whichever needs at most one decimal; "none" for a memory without a word."""
    if size_bytes < WORD_BYTES:
        return "none"
    for unit_bytes, unit in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size_bytes >= unit_bytes and size_bytes * 10 % unit_bytes == 0:
            return f"{size_bytes / unit_bytes:g} {unit}"
    return f"{size_bytes} B"


def _models() -> Listing:
    rows = []
    for name in list_names("models"):
        spec = load_model(name, check_options)
        rows.append(
            {
                "name": name,
                "input": "x".join(map(str, spec.input_shape)),
                "layers": len(spec.layers),
                "loss": spec.loss.name,
                "description": spec.description,
            }
        )
    return Listing(rows)


def _kernels() -> Listing:
    rows = []
    for codegen in LIBRARY.codegen_names():
        kernels = [(kind_of(codegen, name), name) for name in LIBRARY.kernel_names(codegen)]
        # What `--kernel` can choose comes first, the loops of layers last.
        rows += [
            {
                "codegen": codegen,
                "kernel": name,
                "kind": kind,
                "dtypes": _dtypes(LIBRARY.header(codegen, name).element_bytes),
                "evidence": nest_evidence(codegen, name).label,
            }
            for kind, name in sorted(kernels, key=lambda item: (_KINDS.index(item[0]), item[1]))
        ]
    return Listing(rows)


_KINDS = ("matmul", "depthwise", "loop")


def _dtypes(element_bytes: int) -> str:
    """Element types of a kernel, by their size."""
    return " ".join(dtype.word for dtype in DTYPES if dtype.bytes == element_bytes)


def _primitives() -> Listing:
    return Listing(
        [
            {
                "name": primitive.name,
                DESCRIPTION: "Internal op, added by the graph builder."
                if is_internal(primitive)
                else about(primitive.name),
                "steps": " ".join(step.name for step in primitive.steps) or "view",
                "variants": variants_text(primitive),
            }
            for primitive in PRIMITIVES.values()
        ],
        # Steps and variants are in `pulptrain show NAME`: beside them no sentence would fit a terminal.
        lambda row: {"name": row["name"], DESCRIPTION: row[DESCRIPTION]},
    )
