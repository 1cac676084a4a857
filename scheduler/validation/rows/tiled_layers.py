# SPDX-License-Identifier: Apache-2.0
"""KIND tiled-layers: matmul, ReLU and SGD with operands in L2, tiled over N and M or over elements."""

from __future__ import annotations

from math import prod

from arch.spec.program import Program
from arch.spec.timing import SocTiming
from scheduler.options import WHOLE_OPS, parse_buffering
from scheduler.validation.rows.cases import CORES, CYCLES, MACHINE_COLUMNS, MOST_REPEATED, Case, Column
from scheduler.validation.rows.layer_steps import layer_graph, update_graph
from scheduler.validation.rows.machines import program_cycles
from scheduler.validation.rows.measured_code import all_as_boxes
from scheduler.validation.rows.mm import matmul_graph
from scheduler.validation.rows.prediction import Prediction
from scheduler.validation.rows.programs import as_it_is, kernels_of, options_of, program_of, transfers_of
from trainlib.ir.graph import TrainingGraph

ALL_IN_L1 = "none_all_in_L1"
NO_COMPUTE = "_no_compute"

COLUMNS = (
    *MACHINE_COLUMNS,
    Column("codegen"),
    Column("workload", choices=("matmul", "relu_fw", "sgd")),
    *(
        Column(name, 1, optional=True)
        for name in ("n", "k", "m", "elements", "tile_n", "tile_m", "tile_elements")
    ),
    Column("buffering", choices=("single", "double", "single_no_compute", "double_no_compute", ALL_IN_L1)),
    Column("kernel"),
    CORES,
    CYCLES,
)


def predict(case: Case) -> Prediction:
    """The tile loop on the event model, without its kernels where the row says so, or one fork."""
    buffering = case.text("buffering")
    loop, timing = program(case)
    if buffering == ALL_IN_L1:
        return Prediction(program_cycles(timing, case.id, kernels_of(loop)))
    moved = transfers_of(loop) if buffering.endswith(NO_COMPUTE) else loop.actions
    return Prediction(program_cycles(timing, case.id, moved))


def program(case: Case) -> tuple[Program, SocTiming]:
    """The tile loop of a row, kernels included, and its machine."""
    graph, sizes, order = _workload(case)
    buffering = case.text("buffering")
    if buffering == ALL_IN_L1:
        return program_of(case, graph, options_of(case, graph, buffer_depth=WHOLE_OPS))
    depth = parse_buffering(buffering.removesuffix(NO_COMPUTE))
    options = options_of(case, graph, buffer_depth=depth, tile_sizes=sizes, loop_order=order)
    change = all_as_boxes if case.text("workload") == "matmul" else as_it_is
    return program_of(case, graph, options, change=change)


def _workload(case: Case) -> tuple[TrainingGraph, dict[str, int], tuple[str, ...]]:
    """The op of a row, its tiles and its loops: K is not cut, the columns run inside.

    The measured loop fetches B for every tile. Ours does not fetch what lies in L1 already, so where all rows
    of tiles want the whole of B, every tile is given one of its own.
    """
    if case.text("workload") == "matmul":
        _check_tiles(case, ("n", "tile_n"), ("m", "tile_m"))
        tile_n = case.number("tile_n")
        if case.number("tile_m") >= case.number("m") and case.number("n") % tile_n == 0:
            return matmul_graph(case, rows=tile_n, matrices=case.number("n") // tile_n), {"leading": 1}, ()
        tiles = {"rows": ("n", "tile_n"), "columns": ("m", "tile_m")}
        sizes = {name: min(case.number(whole), case.number(part)) for name, (whole, part) in tiles.items()}
        return matmul_graph(case), sizes, tuple(tiles)
    _check_tiles(case, ("elements", "tile_elements"))
    elements = case.number("elements")
    if case.text("workload") == "sgd":
        graph = update_graph(case, elements)
    else:
        graph = layer_graph("relu", "FW", {}, [(elements,)], where=case.where)
    return graph, {"d0": min(elements, case.number("tile_elements"))}, ()


def _check_tiles(case: Case, *cuts: tuple[str, str]) -> None:
    """Raise `InputError` if the row, cut by (extent, tile) columns, has more tiles than `MOST_REPEATED`."""
    tiled = case.text("buffering") != ALL_IN_L1
    if tiled and prod(-(-case.number(whole) // case.number(part)) for whole, part in cuts) > MOST_REPEATED:
        raise case.error(f"more than {MOST_REPEATED} tiles", "use larger tiles")
