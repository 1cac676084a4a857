"""KIND mm: a matmul kernel on a team, second call, from fork to join."""

from __future__ import annotations

from arch.isa import TeamWork
from configs.dtypes import DTYPES
from scheduler.validation.cases import CORES, CYCLES, MACHINE_COLUMNS, Case, Column
from scheduler.validation.placement import placed
from scheduler.validation.prediction import Prediction
from scheduler.validation.team import forked
from trainlib.kernels.catalogue import matmul_work

ELEMENT_BYTES = {dtype.word: dtype.bytes for dtype in DTYPES}

COLUMNS = (
    *MACHINE_COLUMNS,
    Column("codegen"),
    Column("kernel"),
    Column("dtype", choices=tuple(ELEMENT_BYTES)),
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
    n, k, m = case.number("n"), case.number("k"), case.number("m")
    team = matmul_team(
        case, n, k, m, trans_b=bool(case.number("trans_b")), element_bytes=ELEMENT_BYTES[case.text("dtype")]
    )
    return Prediction(*forked(case, team))


def matmul_team(
    case: Case, n: int, k: int, m: int, *, trans_b: bool, kernel: str | None = None, element_bytes: int = 4
) -> TeamWork:
    """The matmul of a row, A, B and C one after another from L1 address 0."""
    a, b, c, _ = placed(element_bytes * n * k, element_bytes * k * m, element_bytes * n * m)
    return matmul_work(
        kernel or case.text("kernel"),
        case.text("codegen"),
        n=n,
        k=k,
        m=m,
        trans_b=trans_b,
        cores=case.number("cores"),
        a_address=a,
        b_address=b,
        c_address=c,
        element_bytes=element_bytes,
    )
