# SPDX-License-Identifier: Apache-2.0
"""Jobs of the published unit (`measured/barvinn-jobs.csv.gz`), and what this model says of them.

A case is a layer and changes to the registers that `DOCUMENTED` writes; the unit obeys `RTL`. The numbers of
the cases are not known, so ours are drawn: which words are equal by chance is not predicted.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from barvinn.machine.array import BarvinnArray
from barvinn.machine.behaviour import DOCUMENTED, RTL, Behaviour
from barvinn.machine.timing import MACHINE, BarvinnTiming, timing_of
from barvinn.mapping.compiler import compile_network
from barvinn.mapping.images import map_words
from barvinn.mapping.layers import IntegerLayer, Integers, LayerShape
from barvinn.mapping.reference import quantised, scaled
from configs.errors import InputError
from configs.parameters import load_parameters
from configs.values import replace
from traces.events import COMPUTE, TRANSFER
from traces.recorder import Recorder

SWITCHES: Mapping[str, Mapping[str, Any]] = {
    "asis": {},
    "cfg": {"zigzag_bit": RTL.zigzag_bit},
    "loops": {"entry_levels": RTL.entry_levels},
    "extra": {"extra_cycles": RTL.extra_cycles},
}
"""What a change to the exported writes is in our rules."""


@dataclass(frozen=True, slots=True)
class _Layer:
    """Channels, size of the square map, bits of inputs, weights, outputs; the rest as named."""

    ci: int
    co: int
    size: int
    bits: tuple[int, int, int]
    kernel: int = 3
    stride: int = 1
    pad: int = 0
    signed: bool = False
    relu: bool = False
    scalers: str = ""


_LAYERS = {
    "conv-1-1-1": _Layer(64, 64, 6, (1, 1, 1)),
    "conv-2-2-2": _Layer(64, 64, 6, (2, 2, 2)),
    "conv-4-2-4": _Layer(64, 64, 5, (4, 2, 4)),
    "conv-8-8-8": _Layer(64, 64, 4, (8, 8, 8)),
    "conv-signed-4-3-5": _Layer(64, 64, 5, (4, 3, 5), signed=True),
    "conv-stride2": _Layer(64, 64, 7, (2, 2, 2), stride=2),
    "conv-pad1": _Layer(64, 64, 6, (2, 2, 2), pad=1),
    "conv-128-128": _Layer(128, 128, 4, (2, 2, 2)),
    "pw-1-1-4": _Layer(64, 64, 4, (1, 1, 4), kernel=1),
    "gemv-2-2-2": _Layer(128, 128, 1, (2, 2, 2), kernel=1),
    "gemv-8-8-8": _Layer(192, 64, 1, (8, 8, 8), kernel=1),
    "scale-bias-64": _Layer(64, 64, 6, (2, 2, 2), scalers="memory"),
    "scale-bias-128": _Layer(64, 128, 5, (2, 2, 2), scalers="memory"),
    "scaler-register": _Layer(64, 64, 6, (2, 2, 4), scalers="register"),
    "relu": _Layer(64, 64, 6, (2, 2, 4), relu=True),
}

Row = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Case:
    """The rows of one case: a row per job; counts of the whole case are in the first."""

    name: str
    rows: tuple[Row, ...]

    @property
    def label(self) -> str:
        """The name with the settings of the unit that are not in it."""
        first = self.rows[0]
        jumps = ", output jumps" if int(first["output_jumps"]) else ""
        return f"{self.name}{jumps}" + (f", word 0 = {first['word0']}" if first["word0"] else "")


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the model says of a case: per job as the columns of the file name it, `words_wrong` of `words`."""

    run_cycles: tuple[int, ...]
    command_to_interrupt: tuple[int, ...]
    last_product_to_last_plane_written: tuple[int, ...]
    words_written: tuple[int, ...]
    activation_reads: int
    words_wrong: int
    words: int


def load_barvinn(
    name_or_path: str | Path = "barvinn",
    overrides: Mapping[str, str | int | float] | None = None,
    behaviour: Behaviour = RTL,
) -> BarvinnTiming:
    """Load a machine by installed name or path; `overrides` maps dotted paths to values.

    Raises `ConfigError` for unknown, missing or illegal parameters, and for a file of another machine.
    """
    return timing_of(load_parameters(name_or_path, "rtl", overrides, machine=MACHINE), behaviour)


def outputs(layers: Sequence[IntegerLayer], x: Integers) -> list[Integers]:
    """The output map of every layer, one after the other."""
    maps: list[Integers] = []
    for layer in layers:
        x = quantised(layer, scaled(layer, x))
        maps.append(x)
    return maps


def read_cases(path: Path) -> list[Case]:
    """The cases of a file, in order."""
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    by = ("case", "output_jumps", "input_shift", "word0")
    return [
        Case(key[0], tuple(group))
        for key, group in groupby(rows, lambda row: tuple(row[name] for name in by))
    ]


def predict(case: Case, timing: BarvinnTiming, seed: int = 0) -> Prediction:
    """Carry out the jobs of a case on one unit. Raises `InputError` for a case that is not known."""
    stem, _, changes = case.name.partition(".")
    if stem not in _LAYERS or not set(changes.split("-")) <= SWITCHES.keys():
        raise InputError(f"unknown case '{case.name}'", cure=f"one of {', '.join(_LAYERS)}")
    first = case.rows[0]
    written: Behaviour = replace(DOCUMENTED, live=RTL.live)  # jobs stood apart from each other
    for change in changes.split("-"):
        written = replace(written, **SWITCHES[change])
    layer, x = _drawn(stem, _LAYERS[stem], np.random.default_rng(seed))
    shift = int(first["input_shift"])
    network = compile_network([layer], x, replace(timing, behaviour=replace(written, first_word=shift)))
    program = network.program
    if shift:
        before = np.zeros(shift, np.uint64)
        before[0] = int(first["word0"])
        program = replace(program, inputs=np.concatenate([before, program.inputs]), first_word=0)
    recorder = Recorder()
    unit = replace(RTL, output_jumps=bool(int(first["output_jumps"])))
    array = BarvinnArray(replace(timing, behaviour=unit), recorder)
    activations = array.units[0].memories.activations
    for memory in array.units[0].memories.all():
        memory.is_strict = False
    array.run(program)
    expected = map_words(outputs([layer], x)[0], layer.output_bits)
    base = program.layers[0].first_word
    words = [int(activations.held(base + word)) for word in range(len(expected))]
    runs = [
        event for event in recorder.slices if event.kind == COMPUTE and event.track == array.units[0].path
    ]
    results = [event for event in recorder.slices if event.kind == TRANSFER]
    launch = timing.launch
    return Prediction(
        tuple(run.duration_cycles for run in runs),
        tuple(launch.start_cycles + run.duration_cycles + launch.done_cycles for run in runs),
        tuple(result.end_cycles - run.end_cycles for run, result in zip(runs, results, strict=True)),
        tuple(result.bytes // activations.word_bytes for result in results),
        sum(run.duration_cycles for run in runs),
        sum(int(word) != other for word, other in zip(expected, words, strict=True)),
        len(expected),
    )


def _drawn(name: str, what: _Layer, rng: np.random.Generator) -> tuple[IntegerLayer, Integers]:
    bits_in, bits_weights, bits_out = what.bits
    half = 1 << (bits_weights - 1)
    kernel, pad = what.kernel, what.pad
    shape = LayerShape(
        *(name, "conv", what.ci, what.size, what.size, what.co),
        *((kernel, kernel), (what.stride, what.stride), (pad, pad, pad, pad)),
    )
    weights = rng.integers(-half, half, (what.co, what.ci, kernel, kernel))
    low = -(1 << (bits_in - 1)) if what.signed else 0
    x = rng.integers(low, low + (1 << bits_in), (what.ci, what.size, what.size))
    scaler, bias = np.ones(what.co, np.int64), np.zeros(what.co, np.int64)
    if what.scalers == "register":
        scaler[:] = 5
    elif what.scalers:
        scaler, bias = rng.integers(1, 8, what.co), rng.integers(-500, 500, what.co)
    largest = int(np.abs(weights).max() * np.abs(x).max() * np.abs(scaler).max()) * what.ci * kernel * kernel
    msb_index = max(bits_out - 1, largest.bit_length() // 2 + 3)
    layer = IntegerLayer(
        *(
            shape,
            weights,
            scaler,
            bias,
            what.relu,
            msb_index,
            bits_in,
            what.signed,
            bits_weights,
            True,
            bits_out,
        ),
        output_signed=not what.relu,
    )
    return layer, x
