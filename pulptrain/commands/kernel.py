# SPDX-License-Identifier: Apache-2.0
"""`pulptrain kernel NAME`: one matmul kernel on one cluster, in cycles."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from pulptrain.commands import options as common
from pulptrain.commands.completion import completes
from pulptrain.commands.parameters import takes
from pulptrain.inputs.option import ChipOptions
from pulptrain.process.progress import telling


@takes(ChipOptions)
def command(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME|FILE",
            help="Name of a kernel (`pulptrain list kernels`), or your own kernel file (.yaml or .S).",
            autocompletion=completes("kernels"),
        ),
    ],
    n: Annotated[int, common.option("--n", "N", "Rows of matrices A and C, in C = A · B.", common.RUN)] = 16,
    k: Annotated[
        int, common.option("--k", "K", "Columns of matrix A = rows of matrix B, in C = A · B.", common.RUN)
    ] = 16,
    m: Annotated[
        int, common.option("--m", "M", "Columns of matrices B and C, in C = A · B.", common.RUN)
    ] = 16,
    trans_b: Annotated[
        bool,
        common.option(
            "--trans-b", "", "Matrix B is stored transposed, [M, K] instead of [K, M].", common.RUN
        ),
    ] = False,
    dtype: Annotated[
        str | None,
        common.option(
            "--dtype",
            "fp32|fp16|bf16|...",
            "Number format of the matrices, e.g. fp16 (default: that of the kernel).",
            common.RUN,
            autocompletion=completes("dtypes"),
        ),
    ] = None,
    add_to_c: Annotated[
        bool, common.option("--add-to-c", "", "Compute C = C + A · B instead of C = A · B.", common.RUN)
    ] = False,
    as_json: common.Json = False,
    quiet: common.Quiet = False,
    **options: Any,
) -> None:
    """Print the cycles of C[N,M] = A[N,K] · B[K,M] on all cores, operands in L1, without fork and join."""
    with telling(f"pricing {name}", show=not (quiet or as_json)):
        from pulptrain.commands.printing import print_result
        from pulptrain.inputs.settings import Settings
        from pulptrain.inputs.source_kind import refuse_others
        from pulptrain.running.kernel_cost import kernel_cost, kernel_lines

        refuse_others(name, "kernel", "kernel")
        result = kernel_cost(
            name, n, k, m, trans_b=trans_b, dtype=dtype, accumulate=add_to_c, settings=Settings(**options)
        )
    print_result(result, lambda width: kernel_lines(result, width), as_json=as_json, quiet=quiet)
