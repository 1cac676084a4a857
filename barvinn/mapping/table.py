# SPDX-License-Identifier: Apache-2.0
"""The job table: one row per layer, as published or as corrected, and why the two differ."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from barvinn.machine.job import Job, Loops
from barvinn.machine.timing import LANES, BarvinnTiming
from barvinn.mapping.compiler import CompiledLayer
from barvinn.mapping.layers import LayerShape
from barvinn.mapping.published import TableRow

Row = Mapping[str, Any]

COLUMNS = ("layer", "iShape", "fShape", "ilength", "ijump", "wlength", "wjump", "countdown", "total")
"""Columns of the published table, in its words."""


def published_table(rows: Sequence[TableRow]) -> list[Row]:
    """Rows as the public tool prints them; a countdown that is no whole number stays one."""
    return [
        {
            "layer": row.layer,
            "iShape": list(row.input_shape),
            "fShape": list(row.filter_shape),
            "ilength": list(row.input.lengths),
            "ijump": list(row.input.jumps),
            "wlength": list(row.weight.lengths),
            "wjump": list(row.weight.jumps),
            "countdown": _number(row.countdown),
            "total": _number(row.total),
        }
        for row in rows
    ]


def _number(value: Fraction) -> int | float:
    return int(value) if value.denominator == 1 else float(value)


def corrected_table(
    layers: Sequence[CompiledLayer], published: Sequence[TableRow], timing: BarvinnTiming
) -> list[Row]:
    """Rows of the jobs that were made: registers of the longest job of a layer, `total` of all of them.

    Beside the published columns: `jobs` (how many), `weight_words` (of the layer), `useful_percent` (share
    of the products that are of the layer, not of lanes that only fill a block), `differs` (from the published
    row, and why).
    """
    by_name = {row.layer: row for row in published}
    return [_row(layer, by_name.get(layer.layer.shape.name), timing) for layer in layers]


def _row(compiled: CompiledLayer, published: TableRow | None, timing: BarvinnTiming) -> Row:
    shape = compiled.layer.shape
    # The longest one, the first of several; none where the host computes it all.
    job = max((job for _, job in compiled.jobs), key=lambda job: job.countdown, default=None)
    inputs, weights = (job.input, job.weight) if job is not None else (Loops(), Loops())
    filters = [shape.blocks_out, *shape.kernel]
    row: dict[str, Any] = {
        "layer": shape.name,
        "iShape": [shape.blocks_in, shape.hi, shape.wi],
        "fShape": filters,
        "ilength": list(inputs.lengths),
        "ijump": list(inputs.jumps),
        "wlength": list(weights.lengths),
        "wjump": list(weights.jumps),
        "countdown": job.countdown if job is not None else 0,
        "total": compiled.countdown,
        "jobs": len(compiled.jobs),
        "weight_words": weight_words_of(compiled),
        "useful_percent": round(100 * useful_share(shape), 2),
    }
    row["differs"] = _differences(compiled, job, published, timing)
    return row


def weight_words_of(compiled: CompiledLayer) -> int:
    """Words of 4096 bits that the weights of a layer are."""
    shape = compiled.layer.shape
    if shape.kind == "pool":
        return 1
    return shape.blocks_out * shape.taps * compiled.layer.weight_bits


def useful_share(shape: LayerShape) -> float:
    """Share of the array's 64 x 64 products that are of the layer's own channels."""
    if shape.kind == "pool":
        return shape.ci / (shape.blocks_in * LANES * LANES)
    return shape.ci * shape.co / (shape.blocks_in * shape.blocks_out * LANES * LANES)


def _differences(
    compiled: CompiledLayer, job: Job | None, published: TableRow | None, timing: BarvinnTiming
) -> list[str]:
    shape, host = compiled.layer.shape, compiled.program.host
    by_host = [f"{host.op}: computed by the host"] if host is not None else []
    if published is None or job is None:
        return ["max-pool: the public tool omits it", *by_host]
    texts = [*by_host, *_behaves_otherwise(job, timing)]
    if (shape.hi, shape.wi) != published.input_shape[1:] and shape.kind == "conv":
        texts.append("input size: the public tool ignores earlier pools")
    if shape.kind == "conv":
        expected = -job.input_bits * (
            shape.blocks_in * (shape.kernel[0] - 1) * shape.wi
            + (shape.kernel[1] - shape.strides[1]) * shape.blocks_in
            - 1
        )
        if published.input.jumps[0] != expected:
            texts.append(f"window jump: published is right only for 2 channel blocks, here {shape.blocks_in}")
        if any(shape.pads):
            texts.append(
                "padding: edge jobs read the taps inside the map, published counts other rows and columns"
            )
        if shape.hi != shape.wi:
            texts.append("rows: published takes as many as there are columns")
        if published.countdown.denominator != 1:
            texts.append("countdown: the published value is not a whole number")
    elif published.input.lengths != job.input.lengths:
        texts.append("matrix: the input walks its own tiles, published those of the output")
    words, most = weight_words_of(compiled), timing.memory.weight_words
    parts = max(compiled.parts, key=len)
    if words > most:
        texts.append(
            f"weights: {words} words of {most}, so output blocks are computed "
            f"{' + '.join(map(str, parts))} at a time"
        )
    elif max(map(len, compiled.parts)) == 0 or sum(parts) < shape.blocks_out:
        texts.append("output blocks are distributed over units")
    if shape.ci % LANES or shape.co % LANES:
        texts.append(f"channels: {shape.ci} to {shape.co} padded to multiples of 64 in the weight image")
    return texts


def _behaves_otherwise(job: Job, timing: BarvinnTiming) -> list[str]:
    reasons = []
    if job.extra_cycles:
        reasons.append(f"countdown: {job.extra_cycles} more, so that the last scaler and bias are read")
    if not timing.behaviour.output_jumps:
        reasons.append("outputs: written contiguously, so edges and parts of the blocks are separate jobs")
    return reasons


def table_text(rows: Sequence[Row]) -> str:
    """The table as the public tool's columns, aligned.

    Rows of the corrected table have one more, `differs`: letters of the reasons that follow the table.
    """
    letters = _letters(rows)
    cells = [[*COLUMNS, *(["differs"] if letters else [])]]
    for row in rows:
        marks = [" ".join(letters[reason] for reason in row["differs"])] if letters else []
        cells.append([*(_cell(row[column]) for column in COLUMNS), *marks])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(
            text.rjust(width) if at in _TO_THE_RIGHT else text.ljust(width)
            for at, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    ]
    notes = [f"  {letter}  {reason}" for reason, letter in letters.items()]
    return "\n".join([*lines, *(["differs from published:", *notes] if notes else [])]) + "\n"


_TO_THE_RIGHT = (len(COLUMNS) - 2, len(COLUMNS) - 1)


def _letters(rows: Sequence[Row]) -> dict[str, str]:
    """A letter for every reason, in order: a to z, then aa, bb, ..."""
    reasons = dict.fromkeys(reason for row in rows for reason in row.get("differs", ()))
    return {reason: chr(ord("a") + number % 26) * (1 + number // 26) for number, reason in enumerate(reasons)}


def table_csv(rows: Sequence[Row]) -> str:
    """The table as CSV with all columns of the rows; numbers of a list are separated by spaces."""
    columns = list(rows[0]) if rows else list(COLUMNS)
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_plain(row[column]) for column in columns] for row in rows)
    return stream.getvalue()


def _cell(value: Any) -> str:
    return f"[{', '.join(map(str, value))}]" if isinstance(value, list) else str(value)


def _plain(value: Any) -> str:
    if isinstance(value, list):
        separator = "; " if value and isinstance(value[0], str) else " "
        return separator.join(map(str, value))
    return str(value)
