# SPDX-License-Identifier: Apache-2.0
"""Every single-layer case of PULP-TrainLib's tests runs as `pulptrain primitive` does, numbers checked.

`trainlib_cases.py` says which call a row of tests/data/trainlib-cases.csv.gz becomes. `make test` runs some
of every primitive, step, dtype and kernel, `make sweep` the others and the large ones.
"""

from functools import cache

import pytest

from configs.errors import DoesNotFitError
from pulptrain.inputs.settings import Settings
from pulptrain.running.primitive_run import run_primitive
from shared.tiers import sweep_nine_of_ten
from shared.trainlib_cases import NO_PRIMITIVE, Call, calls_of, rows
from trainlib.kernels import catalogue
from trainlib.primitives.definition import DrawnInput

ROWS = [row for row in rows() if not row.composite]
CODEGENS = ("clang-xpulp", "asm-xpulp")
"""Where a kernel of the table is looked for, in this order: the first is that of all else."""

SLOW = 3_000_000
"""Multiply-accumulates from which a case is marked slow."""

SLOW_HEADS = 8
"""Heads of attention from which it is: each head has kernels of its own to be priced."""

ROOM = ({}, {"buffering": "single"}, {"l1": "1MiB"}, {"l1": "8MiB"})
"""What is tried in turn where a tile cannot be cut small enough for 64 KiB of L1."""


SMALL = 0.25
"""Largest input of attention. The softmax turns an error of a score into a relative error of a probability,
and 16-bit scores of random weights are as large as 160 inputs of size 1 make them.
"""


def is_slow(call: Call) -> bool:
    """The few large cases."""
    options = dict(call.options)
    if call.primitive == "matmul":
        *heads, n, k = call.inputs[0]
        return n * k * call.inputs[1][-1] * (heads[0] if heads else 1) > SLOW
    if call.primitive == "mhsa":
        length, width = call.inputs[0]
        return options["heads"] > SLOW_HEADS or length * (width + length) * options["features"] * 4 > SLOW
    return call.primitive == "conv2d" and max(call.inputs[0]) * call.inputs[0][1] ** 2 * 8 > SLOW / 8


def codegen_of(call: Call) -> str:
    """The first one that has the kernel."""
    return next(
        codegen
        for codegen in CODEGENS
        if call.kernel is None or call.kernel in catalogue.kernel_names(codegen, call.dtype)
    )


@cache
def summary_of(call: Call):
    codegen = codegen_of(call)
    size = SMALL if call.primitive == "mhsa" else 1.0
    inputs = [DrawnInput(shape, low=-size, high=size) for shape in call.inputs]
    options = {key: list(value) if isinstance(value, tuple) else value for key, value in call.options}
    if "pads" in options:
        options["pads"] = [list(pair) for pair in options["pads"]]
    for room in ROOM:
        try:
            return run_primitive(
                call.primitive,
                call.step,
                inputs,
                options,
                batch=call.batch,
                dtype=call.dtype,
                kernel=call.kernel,
                settings=Settings(cores=call.cores, l2="8MiB", codegen=codegen, **room),
            ).summary
        except DoesNotFitError:
            if room == ROOM[-1]:
                raise
    raise AssertionError("no room was tried")


CALLS = {call: None for row in ROWS for call in calls_of(row)}


@pytest.mark.parametrize(
    "call",
    [
        *sweep_nine_of_ten(
            [call for call in CALLS if not is_slow(call)],
            lambda call: (call.primitive, call.step, call.dtype),
            lambda call: (codegen_of(call), call.kernel),
        ),
        *(pytest.param(call, id=str(call), marks=pytest.mark.slow) for call in CALLS if is_slow(call)),
    ],
)
def test_a_case_runs_with_right_numbers(call: Call) -> None:
    summary = summary_of(call)
    assert summary["functional"]["passed"]
    assert summary["cycles"] > 0
    assert summary["cores"] == call.cores
    if call.kernel is not None:
        assert {op["kernel"] for op in summary["ops"]} == {call.kernel}


def test_the_table_is_whole_and_every_row_is_mapped() -> None:
    assert len(rows()) == 424
    assert len(ROWS) == 219
    unmapped = [row["layer"] for row in ROWS if not calls_of(row)]
    assert sorted(unmapped) == sorted(NO_PRIMITIVE)


@pytest.mark.parametrize("row", sweep_nine_of_ten([row for row in ROWS if row["layer"] in ("Linear", "PW")]))
def test_the_matmul_extents_of_a_row_are_ours(row) -> None:
    """N·K·M of the table is what the simulated step multiplies."""
    (call,) = calls_of(row)
    assert summary_of(call)["macs"] == row.size("N") * row.size("K") * row.size("M")
