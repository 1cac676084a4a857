# SPDX-License-Identifier: Apache-2.0
"""KIND mm: a matmul kernel on a team, second call, from fork to join."""

from __future__ import annotations

from arch.spec.isa import TeamWork
from scheduler.validation.rows.cases import CORES, CYCLES, KERNEL_COLUMNS, Case, Column
from scheduler.validation.rows.layer_steps import layer_graph
from scheduler.validation.rows.measured_code import measured_on_rtl, without_wrapper
from scheduler.validation.rows.prediction import Prediction
from scheduler.validation.rows.programs import as_it_is, kernels_of, options_of, predicted, program_of
from trainlib.ir.graph import TrainingGraph

COLUMNS = (
    *KERNEL_COLUMNS,
    Column("n", 1),
    Column("k", 1),
    Column("m", 1),
    Column("trans_b", 0, (0, 1)),
    CORES,
    CYCLES,
    Column("cycles_kernel", 0, optional=True),
    Column("instructions", 0, optional=True),
)


def predict(case: Case) -> Prediction:
    """`instructions` are summed over the cores, without the code of fork and join."""
    graph = matmul_graph(case, trans_b=bool(case.number("trans_b")), dtype=case.text("dtype"))
    change = without_wrapper if measured_on_rtl(case) else as_it_is
    program, timing = program_of(case, graph, options_of(case, graph), change=change)
    return predicted(case, timing, kernels_of(program))


def matmul_team(case: Case) -> TeamWork:
    """The matmul of a row with columns dtype, n, k and m, as the team executes it."""
    graph = matmul_graph(case, dtype=case.text("dtype"))
    program, _ = program_of(case, graph, options_of(case, graph))
    return kernels_of(program)[0].team


def matmul_graph(
    case: Case, *, rows: int = 0, matrices: int = 0, trans_b: bool = False, dtype: str = "fp32"
) -> TrainingGraph:
    """C[n,m] = A[n,k] · B[k,m], or several such products of their own `matrices`; n of the row, or `rows`."""
    n, k, m = rows or case.number("n"), case.number("k"), case.number("m")
    leading = (matrices,) if matrices else ()
    shapes = ((*leading, n, k), (*leading, m, k) if trans_b else (*leading, k, m))
    return layer_graph("matmul", "FW", {"transpose_b": trans_b}, shapes, dtype=dtype, where=case.where)
