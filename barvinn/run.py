# SPDX-License-Identifier: Apache-2.0
"""A network on BARVINN: job table, images, simulation of the units, numbers checked; in one call."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from barvinn.machine.address_generator import WALK_BYTES_PER_CYCLE
from barvinn.machine.array import ArrayResult, BarvinnArray
from barvinn.machine.behaviour import behaviour_of
from barvinn.machine.timing import LANES, MACHINE, BarvinnTiming, timing_of
from barvinn.mapping.compiler import CompiledNetwork, compile_network
from barvinn.mapping.images import map_values
from barvinn.mapping.layers import Integers
from barvinn.mapping.network import IntegerNetwork, Precision, RealLayer, draw_input, integer_network
from barvinn.mapping.published import published_rows
from barvinn.mapping.table import Row, corrected_table, published_table, useful_share
from barvinn.onnx_chain import input_map, read_network
from configs.errors import InputError, UnsupportedLayerError, WrongNumbersError
from configs.limits import PROCESS_BYTES, check_seed, require_host_memory
from configs.parameters import ParameterTree, load_parameters
from configs.values import Struct, replace
from configs.version import VERSION
from importers.graph.onnx_file import load_onnx
from importers.graph.onnx_graph import OnnxGraph
from traces.events import Slice
from traces.recorder import Recorder


class BarvinnOutcome(Struct, frozen=True):
    """What came out: `summary` as ``--json`` prints it; the rest is None or empty for the published table."""

    summary: Mapping[str, Any]
    rows: Sequence[Row]
    real_layers: Sequence[RealLayer]
    precision: Precision
    timing: BarvinnTiming
    numbers: IntegerNetwork | None = None
    network: CompiledNetwork | None = None
    slices: Sequence[Slice] = ()

    def __repr__(self) -> str:
        cycles = self.summary["total_countdown"]
        return f"BarvinnOutcome({len(self.real_layers)} layers: {cycles:,} cycles of jobs)"

    @property
    def output(self) -> Integers:
        """The output map [c, h, w], integers. Raises `InputError` for the published table, which has none."""
        if self.numbers is None:
            raise InputError("as_published=True computes no output values", cure="use as_published=False")
        return self.numbers.outputs[-1]


def barvinn(
    model: str | Path | Sequence[RealLayer],
    *,
    aprec: int = 8,
    wprec: int = 8,
    oprec: int = 8,
    input_shape: Sequence[int] | None = None,
    behaviour: str = "rtl",
    host_ops: bool = True,
    as_published: bool = False,
    units: int = 1,
    soc: str | Path = "barvinn",
    overrides: Mapping[str, str | int | float] | None = None,
    x: Integers | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, jobs: None,
) -> BarvinnOutcome:
    """Make the jobs of a quantised network, an ONNX file or layers, and let `units` units execute them.

    `aprec`, `wprec`, `oprec` are bits of activations, weights and the last output; `input_shape` is without
    batch, or with one of 1. The units are as their RTL is (`behaviour` "rtl") or as "documented"; what they
    cannot compute the host does, or is refused without `host_ops`. `x` [c, h, w] holds unsigned integers of
    `aprec` bits (default: drawn by `seed`). With `as_published` only the table of the public tool is made.
    `progress` is told of how many jobs how many are done. Raises `InputError` for what is not supported,
    naming the node, `DoesNotFitError` for maps or weights that do not fit, `WrongNumbersError` if the
    units did not compute what the integer reference says.
    """
    check_seed(seed)
    precision = Precision(aprec, wprec, oprec)
    precision.check()
    tree = load_parameters(soc, "rtl", overrides, machine=MACHINE)
    timing = timing_of(tree, behaviour_of(behaviour))
    layers, shape, name = _network(model, input_shape)
    published, total = published_rows([layer.shape for layer in layers], aprec, wprec)
    summary = _head(name, tree, precision, shape, as_published=as_published, units=units, seed=seed)
    summary["behaviour"] = None if as_published else behaviour
    if as_published:
        rows = published_table(published)
        summary |= {"rows": rows, "total_countdown": total, "cycles": None, "frames_per_second": None}
        summary |= {"simulator": {}, "version": VERSION}
        return BarvinnOutcome(summary, rows, layers, precision, timing)
    given = draw_input(shape, aprec, seed) if x is None else _checked(x, shape, aprec)
    numbers = integer_network(layers, precision, given, timing.width)
    network = compile_network(numbers.layers, given, timing, units)
    if not host_ops:
        _refuse_host(network, layers)
    rows = corrected_table(network.layers, published, timing)
    longest = max(row["countdown"] for row in rows)
    require_host_memory(
        PROCESS_BYTES + WALK_BYTES_PER_CYCLE * longest,
        "the longest job needs",
        where=name,
        parts=f"{longest:,} cycles",
        cure="use fewer bits or a narrower input",
    )
    begun = time.perf_counter()
    recorder = Recorder()
    array = BarvinnArray(timing, recorder)
    jobs = sum(len(layer.jobs) for layer in network.layers)
    progress(0, jobs)
    result = array.run(network.program, lambda done: progress(done, jobs))
    wall_seconds = time.perf_counter() - begun
    _check_numbers(array, network, numbers)
    summary |= {
        "rows": rows,
        "total_countdown": sum(row["total"] for row in rows),
        "cycles": result.cycles,
        "frames_per_second": timing.clock.hz / result.cycles,
        "seconds": array.clock.seconds(result.cycles),
        **_figures(network, numbers, result),
        "host_bytes": result.host_bytes,
        "host_ops": [
            {"layer": layer.program.name, "op": host.op, "values": host.values}
            for layer in network.layers
            if (host := layer.program.host) is not None
        ],
        "frame_rates": _frame_rates(network, given, timing, result.cycles),
        "simulator": {
            "events": result.events,
            "wall_seconds": wall_seconds,
            "cycles_per_second": result.cycles / wall_seconds,
        },
        "version": VERSION,
    }
    return BarvinnOutcome(summary, rows, layers, precision, timing, numbers, network, recorder.slices)


def _network(
    model: str | Path | Sequence[RealLayer], input_shape: Sequence[int] | None
) -> tuple[Sequence[RealLayer], tuple[int, int, int], str]:
    """(layers, shape of the input map, name) of a file, or of layers as they are given."""
    if isinstance(model, str | Path):
        graph = _read(model)
        return read_network(graph, input_shape), input_map(graph, input_shape), str(model)
    if not model:
        raise InputError("the network has no layers", cure="use at least one layer")
    first = model[0].shape
    return tuple(model), (first.ci, first.hi, first.wi), "layers"


def _read(path: str | Path) -> OnnxGraph:
    """The graph of a file; sizes that it leaves open stay an error, whatever ``--input`` says."""
    try:
        return load_onnx(path)
    except InputError as error:
        if error.cure is None or "--input" not in error.cure:
            raise
        raise InputError(
            f"{error.message}; its shape must be fixed",
            where=error.where,
            cure="export the model with fixed sizes",
        ) from None


def _head(
    name: str,
    tree: ParameterTree,
    precision: Precision,
    shape: tuple[int, int, int],
    *,
    as_published: bool,
    units: int,
    seed: int,
) -> dict[str, Any]:
    return {
        "model": Path(name).name,
        "soc": tree.name,
        "as_published": as_published,
        "input_shape": list(shape),
        "activation_bits": precision.activation_bits,
        "weight_bits": precision.weight_bits,
        "output_bits": precision.output_bits,
        "units": units,
        "seed": seed,
        "cluster_hz": tree["clock.hz"].value,
        "assumed": [parameter.path for parameter in tree.assumed],
    }


def _checked(x: Integers, shape: tuple[int, int, int], bits: int) -> Integers:
    given = np.asarray(x)
    if given.shape == (1, *shape):
        given = given[0]
    is_integer = given.dtype.kind in "iu"
    if given.shape != shape or not is_integer or given.min() < 0 or given.max() >> bits:
        has = f"values from {given.min()} to {given.max()}" if is_integer else f"{given.dtype} numbers"
        has, needs = f"holds {has}", f"integers from 0 to {(1 << bits) - 1}"
        if given.shape != shape:
            has, needs = f"has shape {list(given.shape)}", f"shape {list(shape)}"
        wrong = f"the array {has}, but must have {needs}"
        raise InputError(wrong, where="x", cure=f"use an array with {needs}")
    return given.astype(np.int64)


def _refuse_host(network: CompiledNetwork, layers: Sequence[RealLayer]) -> None:
    for compiled, real in zip(network.layers, layers, strict=True):
        host = compiled.program.host
        if host is not None:
            raise UnsupportedLayerError(
                f"{host.op} cannot run on the units: the published RTL disables their comparator",
                where=real.where or real.shape.name,
                cure="remove --no-host-ops, so that the host computes it, or use --behaviour documented",
            )


def _frame_rates(
    network: CompiledNetwork, x: Integers, timing: BarvinnTiming, known_cycles: int
) -> list[dict[str, Any]]:
    """Frame rates of one and of all units, with the control program as given and with one that only polls.

    Time alone is simulated; `known_cycles` are those of the run that was.
    """
    rates = []
    layers = [compiled.layer for compiled in network.layers]
    for units in sorted({1, network.program.units, timing.units}):
        same = units == network.program.units
        program = (network if same else compile_network(layers, x, timing, units)).program
        for handler in sorted({timing.hart.handler_instructions, 0}, reverse=True):
            hart = replace(timing.hart, handler_instructions=handler)
            cycles = (
                known_cycles
                if same and hart == timing.hart
                else BarvinnArray(replace(timing, hart=hart), computes=False).run(program).cycles
            )
            rate = timing.clock.hz / cycles
            rates.append(
                {"units": units, "handler_instructions": handler, "cycles": cycles, "frames_per_second": rate}
            )
    return rates


def _check_numbers(array: BarvinnArray, network: CompiledNetwork, numbers: IntegerNetwork) -> None:
    """Compare what lies in the units' memories with the reference, bit for bit."""
    last, expected = numbers.layers[-1], numbers.outputs[-1]
    words = array.output(network.program.layers[-1])
    computed = map_values(words, expected.shape, last.output_bits, is_signed=last.output_signed)
    wrong = int((computed != expected).sum())
    if wrong:
        raise WrongNumbersError(
            f"{wrong} of {expected.size} simulated outputs differ from the integer reference in NumPy",
            where=last.shape.name,
        )


def _figures(network: CompiledNetwork, numbers: IntegerNetwork, result: ArrayResult) -> dict[str, Any]:
    """Per layer and per unit: where the cycles went, and what was cut."""
    layers, begin = [], 0
    units = network.program.units
    for compiled, end, step in zip(network.layers, result.layer_ends_cycles, numbers.steps, strict=True):
        layer, shape, cycles = compiled.layer, compiled.layer.shape, end - begin
        products = shape.macs * layer.input_bits * layer.weight_bits
        layers.append(
            {
                "layer": shape.name,
                "kind": shape.kind,
                "cycles": cycles,
                "countdown": compiled.countdown,
                "jobs": len(compiled.jobs),
                "macs": shape.macs,
                "useful_lanes_percent": round(100 * useful_share(shape), 2),
                "useful_percent": round(100 * products / (cycles * units * LANES * LANES), 2)
                if cycles
                else 0.0,
                "msb_index": layer.msb_index,
                "output_bits": layer.output_bits,
                "output_signed": layer.output_signed,
                "output_step": step,
            }
        )
        begin = end
    tallies = result.tallies
    return {
        "macs": sum(compiled.layer.shape.macs for compiled in network.layers),
        "jobs": sum(tally.jobs for tally in tallies),
        "layers": layers,
        "utilisation": {
            f"mvu{index}": round(tally.run_cycles / result.cycles, 4) for index, tally in enumerate(tallies)
        },
        "functional": {"checked_against": "integer reference", "passed": True},
        "overflows": {
            "accumulator": sum(tally.accumulator_overflows for tally in tallies),
            "scaled": sum(tally.scaled_overflows for tally in tallies),
            "quantiser": sum(tally.quantiser_wraps for tally in tallies),
            "layers": sorted({name for tally in tallies for name in tally.overflowing_layers}),
        },
    }
