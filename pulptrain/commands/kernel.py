"""`pulptrain kernel NAME`: one matmul kernel on one cluster, in cycles."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from arch.team_pricer import TeamPricer
from rich.console import Console
from rich.table import Table

import pulptrain
from configs.errors import InputError
from pulptrain.commands import options
from pulptrain.settings import Settings, soc_timing
from scheduler.memory_plan import align
from trainlib.kernels.catalogue import matmul_work


def command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Kernel name (see `pulptrain list kernels`).")],
    n: Annotated[int, typer.Option("--n", help="Rows of A and C.")] = 16,
    k: Annotated[int, typer.Option("--k", help="Columns of A, rows of B.")] = 16,
    m: Annotated[int, typer.Option("--m", help="Columns of B and C.")] = 16,
    trans_b: Annotated[bool, typer.Option("--trans-b", help="B is stored [M, K].")] = False,
    dtype: Annotated[str, typer.Option("--dtype", metavar="fp32", help="Element type.")] = "fp32",
    soc: options.Soc = "pulp-open",
    timing: options.Timing = "rtl",
    codegen: options.Codegen = "clang-xpulp",
    cores: options.Cores = None,
    fpus: options.Fpus = None,
    bank_conflicts: options.BankConflicts = None,
    overrides: options.Overrides = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Cycles of C[N,M] = A[N,K] · B[K,M] on all cores, operands in L1, without fork and join."""
    settings = Settings(
        soc=soc,
        timing=timing,
        codegen=codegen,
        cores=cores,
        fpus=fpus,
        bank_conflicts=bank_conflicts,
        overrides=tuple(overrides or ()),
    )
    result = kernel_cost(name, n, k, m, trans_b=trans_b, dtype=dtype, settings=settings)
    if as_json:
        typer.echo(json.dumps(result, indent=2))
    elif not quiet:
        Console().print(_table(result))


def kernel_cost(
    name: str,
    n: int,
    k: int,
    m: int,
    *,
    trans_b: bool = False,
    dtype: str = "fp32",
    settings: Settings | None = None,
) -> dict[str, Any]:
    """Cost of one matmul kernel with A, B and C one after another in L1 from address 0.

    N, K, M are counted in elements. Returns cycles (slowest core), instructions and stalls (sums over the
    cores), macs, mac_per_cycle and per_core. Fork and join are not included. Raises `InputError` for sizes
    below 1 and unknown names.
    """
    settings = settings or Settings()
    for option, size in (("--n", n), ("--k", k), ("--m", m)):
        if size < 1:
            raise InputError(f"{size} is not a size", where=option, cure="1 or more")
    if dtype != "fp32":
        raise InputError(f"no kernels in {dtype!r}", where="--dtype", cure="fp32")
    timing = soc_timing(settings)
    a_bytes, b_bytes = align(4 * n * k), align(4 * k * m)
    work = matmul_work(
        name,
        settings.codegen,
        n=n,
        k=k,
        m=m,
        trans_b=trans_b,
        cores=timing.cores,
        a_address=0,
        b_address=a_bytes,
        c_address=a_bytes + b_bytes,
    )
    cost = TeamPricer(timing).price(work)
    stalls: dict[str, int] = {}
    for core in cost.cores:
        for word, cycles in core.stalls:
            stalls[word] = stalls.get(word, 0) + cycles
    macs = n * k * m
    return {
        "kernel": name,
        "n": n,
        "k": k,
        "m": m,
        "trans_b": trans_b,
        "dtype": dtype,
        "cycles": cost.cycles,
        "instructions": sum(core.instructions for core in cost.cores),
        "macs": macs,
        "mac_per_cycle": macs / cost.cycles if cost.cycles else None,
        "stalls": stalls,
        "per_core": [
            {"cycles": core.cycles, "instructions": core.instructions, "stalls": dict(core.stalls)}
            for core in cost.cores
        ],
        "soc": timing.name,
        "cores": timing.cores,
        "timing": timing.profile,
        "codegen": settings.codegen,
        "version": pulptrain.__version__,
    }


def _table(result: dict[str, Any]) -> Table:
    shape = f"N={result['n']} K={result['k']} M={result['m']}" + (
        ", B transposed" if result["trans_b"] else ""
    )
    rate = f"{result['mac_per_cycle']:.3f} MAC/cycle" if result["mac_per_cycle"] else ""
    table = Table(
        title=f"{result['kernel']} {shape}: {result['cycles']:,} cycles, {rate}",
        title_justify="left",
        box=None,
    )
    for column in ("core", "cycles", "instructions"):
        table.add_column(column, justify="right")
    words = sorted(word for word, cycles in result["stalls"].items() if cycles)
    for word in words:
        table.add_column(word, justify="right")
    for number, core in enumerate(result["per_core"]):
        lost = [f"{core['stalls'].get(word, 0):,}" for word in words]
        table.add_row(str(number), f"{core['cycles']:,}", f"{core['instructions']:,}", *lost)
    return table
