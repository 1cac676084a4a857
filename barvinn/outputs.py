# SPDX-License-Identifier: Apache-2.0
"""The files of a run on BARVINN: job table, register writes, memory images, vectors, trace and picture."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from barvinn.mapping.export import (
    channel_image,
    input_vector,
    output_vector,
    published_weight_image,
    register_writes,
    weight_image,
)
from barvinn.mapping.images import map_words
from barvinn.mapping.network import RealLayer
from barvinn.mapping.table import table_csv, table_text
from barvinn.run import BarvinnOutcome
from configs.files import replacing, together, write_text
from traces.files.perfetto_trace import write_perfetto
from traces.files.result_folder import (
    INFORMATION_NAME,
    PERFETTO_NAME,
    SUMMARY_NAME,
    prepare_folder,
    write_information,
    write_summary,
)
from traces.files.tables import CSV_NAME, PARQUET_NAME, write_table
from traces.pictures.unit_gantt import draw_unit_gantt

TABLE_TEXT, TABLE_CSV, REGISTERS = "jobs.txt", "jobs.csv", "csr.txt"
INPUT, OUTPUT = "input.txt", "output.txt"
GANTT = ("gantt.png", "gantt.svg")

SCALER_DIGITS_BITS, BIAS_DIGITS_BITS = 16, 32
"""Bits of a scaler and of a bias in their images: those of the memories."""


def prepare_barvinn_folder(name: str) -> Path:
    """Make the folder of ``--out``. Raises `InputError` where a file that is not ours would be lost."""
    fixed = (SUMMARY_NAME, INFORMATION_NAME, TABLE_TEXT, TABLE_CSV, REGISTERS, INPUT, OUTPUT)
    return prepare_folder(name, (*fixed, PARQUET_NAME, CSV_NAME, PERFETTO_NAME, *GANTT))


@together()
def write_barvinn_outputs(outcome: BarvinnOutcome, folder: Path) -> list[Path]:
    """Write all files and return their paths; for equal runs all but run-info.json are equal.

    Raises `InputError` if one cannot be written, or if a file of others has the name of an image.
    """
    images = [
        path for number, layer in enumerate(outcome.real_layers) for path in _image_names(number, layer)
    ]
    prepare_folder(str(folder), images)
    paths = [
        write_summary(folder / SUMMARY_NAME, outcome.summary),
        write_information(folder, outcome.summary["simulator"]),
        write_text(folder / TABLE_TEXT, table_text(outcome.rows)),
        write_text(folder / TABLE_CSV, table_csv(outcome.rows)),
    ]
    if outcome.network is None or outcome.numbers is None:
        return paths + _published_images(outcome, folder)
    with replacing(folder / REGISTERS) as temporary, temporary.open("w", encoding="utf-8") as stream:
        stream.writelines(register_writes(outcome.network))
    paths.append(folder / REGISTERS)
    numbers = outcome.numbers
    last = numbers.layers[-1]
    paths.append(write_text(folder / INPUT, input_vector(numbers.x, numbers.layers[0].input_bits)))
    paths.append(write_text(folder / OUTPUT, output_vector(map_words(numbers.outputs[-1], last.output_bits))))
    for number, (compiled, real) in enumerate(zip(outcome.network.layers, outcome.real_layers, strict=True)):
        layer, (weights, scalers, biases) = compiled.layer, _image_names(number, real)
        paths += [
            write_text(folder / weights, weight_image(layer)),
            write_text(folder / scalers, channel_image(layer.scaler, SCALER_DIGITS_BITS)),
            write_text(folder / biases, channel_image(layer.bias, BIAS_DIGITS_BITS)),
        ]
    paths.append(write_table(outcome.slices, folder))
    write_perfetto(outcome.slices, (), outcome.timing.clock.hz, folder / PERFETTO_NAME)
    paths.append(folder / PERFETTO_NAME)
    return paths + draw_barvinn(outcome, folder)


def draw_barvinn(outcome: BarvinnOutcome, folder: Path) -> list[Path]:
    """The Gantt chart of the units as PNG and SVG."""
    summary = outcome.summary
    ends, end = [], 0
    for layer in summary["layers"]:
        end += layer["cycles"]
        ends.append((layer["layer"], end))
    png, svg = (folder / name for name in GANTT)
    title = f"{summary['model']} on {summary['soc']}: {summary['cycles']:,} cycles"
    draw_unit_gantt(outcome.slices, ends, summary["cycles"], outcome.timing.clock.hz, png, svg, title=title)
    return [png, svg]


def _image_names(number: int, layer: RealLayer) -> tuple[str, str, str]:
    plain = re.sub(r"[^\w.-]", "_", layer.shape.name)[:80]
    return (
        f"{number:02d}-{plain}-weights.txt",
        f"{number:02d}-{plain}-scalers.txt",
        f"{number:02d}-{plain}-biases.txt",
    )


def _published_images(outcome: BarvinnOutcome, folder: Path) -> list[Path]:
    """Weight images as the public tool writes them, of the layers whose weights are integers."""
    paths = []
    for number, layer in enumerate(outcome.real_layers):
        whole = np.rint(layer.weights)
        if layer.shape.kind != "pool" and (whole == layer.weights).all():
            text = published_weight_image(whole.astype(np.int64), outcome.precision.weight_bits)
            paths.append(write_text(folder / _image_names(number, layer)[0], text))
    return paths
