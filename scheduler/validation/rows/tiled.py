# SPDX-License-Identifier: Apache-2.0
"""KIND tiled: a loop over equal tiles of one kernel, operands in L2, single or double buffered."""

from __future__ import annotations

from arch.spec.program import Program
from arch.spec.timing import SocTiming
from scheduler.options import parse_buffering
from scheduler.validation.rows.bare_loop import NONE, bare_driver, bare_loop
from scheduler.validation.rows.cases import BUILD, CORES, CYCLES, KERNEL_COLUMNS, MOST_REPEATED, Case, Column
from scheduler.validation.rows.layer_steps import update_graph
from scheduler.validation.rows.machines import program_cycles
from scheduler.validation.rows.measured_code import bare_calls
from scheduler.validation.rows.mm import matmul_graph
from scheduler.validation.rows.prediction import Prediction
from scheduler.validation.rows.programs import options_of, program_of

COLUMNS = (
    *KERNEL_COLUMNS,
    Column("n", 1),
    Column("k", 0),
    Column("m", 0),
    Column("tiles", 1, most=MOST_REPEATED),
    CORES,
    Column("buffering", choices=("single", "double")),
    CYCLES,
    Column("cycles_compute_per_tile", 0, extra=True),
)


def predict(case: Case) -> Prediction:
    """The whole loop on the event model; of rows with a `build` that of the bare program."""
    loop, timing = program(case)
    actions = loop.actions
    if case.cells.get(BUILD):
        returns = case.text("kernel") == NONE
        actions = tuple(bare_loop(actions, timing, case.text("buffering"), returns=returns))
    return Prediction(program_cycles(timing, case.id, actions))


def program(case: Case) -> tuple[Program, SocTiming]:
    """SGD on parts of a tensor, or a matmul per tile on its own matrices; and the machine of the row.

    The measured SGD writes its weights in place, in two sets of weights and gradients when double buffered:
    what leaves a buffer is waited for before that is fetched into again, so at once.
    """
    tiles, buffers = case.number("tiles"), {}
    bare = bool(case.cells.get(BUILD))
    # What is moved and not computed may be planned with any kernel.
    kernels: dict[str, str] | None = {} if bare and case.text("kernel") == NONE else None
    if case.text("kernel") == "sgd":
        graph, sizes = update_graph(case, tiles * case.number("n")), {"d0": case.number("n")}
        buffers = dict.fromkeys(graph.ops[0].writes, 1)
    elif not (case.number("k") and case.number("m")):
        raise case.error("a matmul needs rows and columns", "use sizes of 1 or more")
    else:
        graph = matmul_graph(case, matrices=tiles, dtype=case.text("dtype"))
        sizes = {"leading": 1} if tiles > 1 else {}
    depth = parse_buffering(case.text("buffering"))
    options = options_of(case, graph, kernels=kernels, buffer_depth=depth, tile_sizes=sizes, buffers=buffers)
    return program_of(case, graph, options, change=bare_driver if bare else bare_calls)
