# SPDX-License-Identifier: Apache-2.0
"""Jobs of a layer: registers that make the address generators of a unit visit exactly what it needs.

A job computes a run of outputs whose kernels are cut alike by the edges of the map: the inner part of a row,
or an edge (left column, top row, corner), which reads fewer taps instead of zeros. With the kernel whole, the
loops are those of the public generator, but for the jump that slides the window (docs/barvinn.md).
"""

from __future__ import annotations

from collections.abc import Iterator

from barvinn.machine.job import JUMPS, Job, Loops
from barvinn.machine.timing import BarvinnTiming
from barvinn.mapping.layers import IntegerLayer, TapRun
from configs.errors import UnsupportedLayerError
from configs.values import Struct, replace

ZIGZAG_AFTER_KERNEL = 0b00111
"""The next pair of planes is taken at weight jumps 2, 1 and 0: when the kernel has been walked through."""

SUM_AFTER_PAIRS = 0b00011
"""A sum ends at weight jumps 1 and 0: when all pairs of planes have been taken."""


class UnitShare(Struct, frozen=True):
    """Where a layer's maps lie (words), and which of its output blocks of 64 channels a unit computes."""

    input_base: int
    output_base: int
    first_block: int
    blocks: int


def layer_jobs(layer: IntegerLayer, share: UnitShare, rows: range, timing: BarvinnTiming) -> Iterator[Job]:
    """The jobs that compute `rows` of the output map for the blocks of `share`, whose weights lie at word 0.

    Jobs with equal loops follow each other, so that few registers change between them.
    """
    for row_window in _within(layer.shape.tap_runs(0), rows):
        for column_window in layer.shape.tap_runs(1):
            for run in _runs(row_window, column_window):
                yield from _run_jobs(layer, share, run, timing)


class _Run(Struct, frozen=True):
    """Outputs from (row, column) on, `count` of them, to the right or downwards, and the taps they have."""

    row: int
    column: int
    count: int
    downwards: bool
    vertical: TapRun
    horizontal: TapRun


def _within(tap_runs: list[TapRun], rows: range) -> Iterator[TapRun]:
    for window in tap_runs:
        first = max(window.start, rows.start)
        last = min(window.start + window.count, rows.stop)
        if first < last:
            yield replace(window, start=first, count=last - first)


def _runs(rows: TapRun, columns: TapRun) -> Iterator[_Run]:
    """A job per row; but a column that stands alone (an edge) is one job from top to bottom."""
    if columns.count == 1 and rows.count > 1:
        yield _Run(rows.start, columns.start, rows.count, True, rows, columns)
        return
    for row in range(rows.start, rows.start + rows.count):
        yield _Run(row, columns.start, columns.count, False, rows, columns)


def _run_jobs(layer: IntegerLayer, share: UnitShare, run: _Run, timing: BarvinnTiming) -> Iterator[Job]:
    """One job, or several where one would not do.

    One per output, where outputs do not lie in a row and the unit cannot jump; one per result, where results
    would come faster than the quantiser writes their planes, or than scalers are read.
    """
    if layer.shape.kind == "pool":
        yield _pool_job(layer, share, run)
        return
    products = layer.shape.blocks_in * run.vertical.taps * run.horizontal.taps
    products *= layer.input_bits * layer.weight_bits
    launch, hart, rules = timing.launch, timing.hart, timing.behaviour
    soon = launch.done_cycles + hart.instruction_cycles + launch.start_cycles + products
    after_drain = soon < layer.output_bits
    extra = rules.extra_cycles if layer.uses_scalers or layer.uses_biases else 0
    if extra >= 2 * products:
        raise UnsupportedLayerError(
            f"the published RTL applies scale and bias {extra} cycles too late, but the layer computes a "
            f"result every {products} cycles: scale and bias would go to a later result",
            where=layer.shape.name,
            cure="use more bits (--aprec, --wprec), or --behaviour documented",
        )
    one_by_one = products < layer.output_bits or products <= extra
    in_a_row = not run.downwards and share.blocks == layer.shape.blocks_out
    runs, parts = [run], [(0, share.blocks)]
    if run.count > 1 and (one_by_one or not (in_a_row or rules.output_jumps)):
        runs = [_single(run, step) for step in range(run.count)]
    if one_by_one:
        parts = [(block, 1) for block in range(share.blocks)]
    for each in runs:
        for first, blocks in parts:
            job = _kernel_job(layer, share, each, first, blocks, rules.entry_loop)
            if products <= extra:
                # the next sum must not end within the extra cycles: only jump 1 ends one, every other
                loops = replace(job.weight, lengths=(0, 1, *job.weight.lengths[2:]))
                job = replace(job, weight=loops, accumulate_select=0b00010, compare_select=0b00010)
            yield replace(job, countdown=job.countdown + extra, extra_cycles=extra, after_drain=after_drain)


def _single(run: _Run, step: int) -> _Run:
    row, column = (run.row + step, run.column) if run.downwards else (run.row, run.column + step)
    return replace(run, row=row, column=column, count=1, downwards=False)


def _kernel_job(
    layer: IntegerLayer, share: UnitShare, run: _Run, first: int, blocks: int, entry_loop: int
) -> Job:
    """A run of outputs for `blocks` output blocks from `first` of the place on."""
    shape, bits, planes = layer.shape, layer.input_bits, layer.weight_bits
    C = shape.blocks_in
    down, across = run.vertical, run.horizontal
    weight = _weight_loops(layer, run, blocks)
    origin_row, origin_column, slide = _origin(layer, run)
    reach = (
        ((down.taps - 1) * shape.wi * shape.dilations[0] + (across.taps - 1) * shape.dilations[1]) * C + C - 1
    )
    next_row = C * (shape.wi * shape.dilations[0] - (across.taps - 1) * shape.dilations[1] - 1) + 1
    pairs = bits * planes * blocks
    if shape.dilations[1] == 1 or across.taps == 1:
        lengths = (0, pairs - 1, down.taps - 1, C * across.taps - 1, 0)
        inner = (bits, 0)
    else:
        lengths = (0, pairs - 1, down.taps - 1, across.taps - 1, C - 1)
        inner = (bits * (C * (shape.dilations[1] - 1) + 1), bits)
    inputs = Loops((bits * (slide - reach), -bits * reach, bits * next_row, *inner), lengths)
    uses_scalers, uses_biases = layer.uses_scalers, layer.uses_biases
    return Job(
        layer=shape.name,
        what=_name(run, blocks, share.first_block + first, shape.blocks_out),
        countdown=C * down.taps * across.taps * pairs * run.count,
        input_base=share.input_base + (origin_row * shape.wi + origin_column) * C * bits,
        weight_base=first * shape.taps * planes + (down.first * shape.kernel[1] + across.first) * C * planes,
        output_base=_output_base(layer, share, run, first),
        input=inputs,
        weight=weight,
        output=_output_loops(layer, run, blocks),
        input_bits=bits,
        weight_bits=planes,
        output_bits=layer.output_bits,
        input_signed=layer.input_signed,
        weight_signed=layer.weight_signed,
        msb_index=layer.msb_index,
        zigzag_select=ZIGZAG_AFTER_KERNEL,
        accumulate_select=SUM_AFTER_PAIRS,
        compare_select=SUM_AFTER_PAIRS,
        compare=layer.relu,
        output_signed=layer.output_signed,
        scaler=1 if uses_scalers else int(layer.scaler[0]),
        scaler_base=first if uses_scalers else 0,
        bias_base=first if uses_biases else 0,
        scaler_loops=_entry_loops(blocks, entry_loop) if uses_scalers else Loops(),
        bias_loops=_entry_loops(blocks, entry_loop) if uses_biases else Loops(),
        use_scaler_memory=uses_scalers,
        use_bias_memory=uses_biases,
    )


def _entry_loops(blocks: int, level: int) -> Loops:
    """Scaler and bias generators step once per sum: through the blocks in the loop `level`, then back."""
    steps = [int(loop == level) for loop in range(JUMPS)]
    jumps = (1 - blocks, *steps[1:])
    return Loops(jumps, (*(step * (blocks - 1) for step in steps),))  # type: ignore[arg-type]  # five of each


def _weight_loops(layer: IntegerLayer, run: _Run, blocks: int) -> Loops:
    """The taps of a kernel, once per pair of planes, then the next block's; cut off columns are skipped."""
    shape, planes = layer.shape, layer.weight_bits
    C, width = shape.blocks_in, shape.kernel[1]
    down, across = run.vertical.taps, run.horizontal.taps
    pairs = layer.input_bits * planes
    if across == width or down == 1:
        reach = C * across * down - 1
        inner, lengths = (planes, 0), (C * across * down - 1, 0)
    else:
        reach = C * ((down - 1) * width + across) - 1
        inner, lengths = (planes * (C * (width - across) + 1), planes), (down - 1, C * across - 1)
    back_to_first = -planes * (shape.taps * (blocks - 1) + reach)
    next_block = planes * (shape.taps - reach)
    return Loops((back_to_first, next_block, -planes * reach, *inner), (0, blocks - 1, pairs - 1, *lengths))


def _origin(layer: IntegerLayer, run: _Run) -> tuple[int, int, int]:
    """Row and column of the first tap of the first output, and the words of a plane to that of the next."""
    shape = layer.shape
    row = run.row * shape.strides[0] - shape.pads[0] + run.vertical.first * shape.dilations[0]
    column = run.column * shape.strides[1] - shape.pads[1] + run.horizontal.first * shape.dilations[1]
    step = shape.strides[0] * shape.wi if run.downwards else shape.strides[1]
    return row, column, step * shape.blocks_in


def _output_base(layer: IntegerLayer, share: UnitShare, run: _Run, first: int) -> int:
    shape = layer.shape
    pixel = run.row * shape.wo + run.column
    return share.output_base + (pixel * shape.blocks_out + share.first_block + first) * layer.output_bits


def _output_loops(layer: IntegerLayer, run: _Run, blocks: int) -> Loops:
    """Planes and blocks of an output lie side by side; then comes the next output, to the right or below."""
    shape, bits = layer.shape, layer.output_bits
    step = shape.wo if run.downwards else 1
    jump = bits * (step * shape.blocks_out - blocks) + 1
    return Loops((jump, 0, 0, 0, 1), (0, 0, 0, 0, bits * blocks - 1))


def _pool_job(layer: IntegerLayer, share: UnitShare, run: _Run) -> Job:
    """The largest of each window: per block all its pixels, plane after plane, through one identity word.

    Every pixel is a sum of its own (jumps 3 to 0); the comparator hands over after the window (1 and 0).
    """
    shape, bits = layer.shape, layer.input_bits
    C = shape.blocks_in
    down, across = run.vertical.taps, run.horizontal.taps
    row, column, slide = _origin(layer, run)
    reach = C * ((down - 1) * shape.wi + across - 1)
    inputs = Loops(
        (
            bits * (slide - (C - 1) - reach),
            bits * (1 - reach),
            bits * C * (shape.wi - across + 1),
            bits * C,
            0,
        ),
        (0, C - 1, down - 1, across - 1, bits - 1),
    )
    return Job(
        layer=shape.name,
        what=_name(run, C, 0, C),
        countdown=C * down * across * bits * run.count,
        input_base=share.input_base + (row * shape.wi + column) * C * bits,
        weight_base=0,
        output_base=_output_base(layer, share, run, 0),
        input=inputs,
        weight=Loops(lengths=inputs.lengths),
        output=_output_loops(layer, run, C),
        input_bits=bits,
        weight_bits=1,
        output_bits=bits,
        input_signed=False,
        weight_signed=False,
        msb_index=layer.msb_index,
        zigzag_select=0b11111,
        accumulate_select=0b01111,
        compare_select=SUM_AFTER_PAIRS,
        compare=True,
    )


def _name(run: _Run, blocks: int, first: int, of: int) -> str:
    rows = f"rows {run.row}-{run.row + run.count - 1}" if run.downwards else f"row {run.row}"
    last = run.column if run.downwards else run.column + run.count - 1
    columns = f"columns {run.column}-{last}" if last > run.column else f"column {run.column}"
    part = (
        ""
        if blocks == of
        else f", block {first}"
        if blocks == 1
        else f", blocks {first}-{first + blocks - 1}"
    )
    return f"{rows}, {columns}{part}"
