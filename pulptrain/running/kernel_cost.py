# SPDX-License-Identifier: Apache-2.0
"""Cost of one matmul or depthwise kernel on one cluster: what `pulptrain kernel` prints."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from arch.pricing.team_cost_model import TeamCostModel
from arch.spec.isa import TeamWork
from configs.dtypes import DTYPES
from configs.errors import InputError, shortened
from configs.grades import MEASURED
from configs.limits import check_at_least_one
from configs.version import VERSION
from pulptrain.inputs.settings import Settings, soc_timing
from scheduler.addresses.allocation import align
from traces.stall_words import every_stall
from traces.text_table import table_lines
from trainlib.kernels.catalogue import (
    element_bytes_of,
    is_free_loop,
    kernel_names,
    loop_work,
    matmul_work,
)
from trainlib.kernels.evidence import nest_evidence
from trainlib.kernels.library import LIBRARY, KernelLibrary

FILES = (".yaml", ".yml", ".S", ".s")
"""Endings of kernel files."""


def kernel_cost(
    name: str,
    n: int,
    k: int,
    m: int,
    *,
    trans_b: bool = False,
    dtype: str | None = None,
    accumulate: bool = False,
    settings: Settings | None = None,
) -> dict[str, Any]:
    """Cost of one matmul, depthwise kernel or loop, its arrays one after another in L1 from address 0.

    `name` is a kernel of the codegen, or the path of a kernel file (.yaml, .yml) or annotated listing (.S,
    .s), which is added to the codegen. N, K, M are counted in elements; for depthwise kernels they are
    channels, taps and positions; of a loop over arrays with one index they are what its file makes of them,
    and its `elements` are N x M. Returns cycles (slowest core), instructions and stalls (sums over cores),
    macs, mac_per_cycle and per_core. Fork and join are not included. Raises `InputError` for sizes below 1,
    unknown names, and a dtype the kernel is not for; `ConfigError` with ``file:line`` for a wrong file.
    """
    settings = settings or Settings()
    for option, size in (("--n", n), ("--k", k), ("--m", m)):
        check_at_least_one(size, "size", option)
    timing = soc_timing(settings)
    library, name = _library(name, settings.codegen)
    header = library.header(settings.codegen, name)
    label = nest_evidence(settings.codegen, name, library).label
    if dtype is None:
        dtype = next(item.word for item in DTYPES if item.bytes == header.element_bytes)
    elif element_bytes_of(dtype) != header.element_bytes:
        names = ", ".join(kernel_names(settings.codegen, dtype))
        own = " or ".join(item.word for item in DTYPES if item.bytes == header.element_bytes)
        raise InputError(
            f"kernel '{name}' needs elements of {header.element_bytes} bytes, not {dtype}",
            where="--dtype",
            cure=f"use --dtype {own}" + (f", or one of the kernels for {dtype}: {names}" if names else ""),
        )
    how = {"trans_b": trans_b, "accumulate": accumulate}
    work = _work(library, settings.codegen, name, timing.cores, n, k, m, **how)
    cost = TeamCostModel(timing).price(work)
    stalls: Counter[str] = Counter()
    for core in cost.cores:
        for word, cycles in core.stalls:
            stalls[word] += cycles
    return {
        "kernel": name,
        "n": n,
        "k": k,
        "m": m,
        "trans_b": trans_b,
        "dtype": dtype,
        "add_to_c": accumulate,
        "validated": label == MEASURED and not accumulate,
        "cycles": cost.cycles,
        "instructions": sum(core.instructions for core in cost.cores),
        "macs": work.macs,
        "mac_per_cycle": work.macs / cost.cycles if cost.cycles else None,
        "stalls": every_stall(stalls.items()),
        "per_core": [
            {"cycles": core.cycles, "instructions": core.instructions, "stalls": every_stall(core.stalls)}
            for core in cost.cores
        ],
        "soc": timing.name,
        "cores": timing.cores,
        "timing": timing.profile,
        "codegen": settings.codegen,
        "version": VERSION,
    }


def _work(
    library: KernelLibrary,
    codegen: str,
    name: str,
    cores: int,
    n: int,
    k: int,
    m: int,
    *,
    trans_b: bool,
    accumulate: bool,
) -> TeamWork:
    """What a team does on arrays one after another. Raises `InputError` for a form the kernel has not."""
    header = library.header(codegen, name)
    if is_free_loop(header):
        for option, given in (("--trans-b", trans_b), ("--add-to-c", accumulate)):
            if given:
                raise InputError(
                    f"kernel '{name}' is not a matrix product, so the option does not apply",
                    where=option,
                    cure="remove the option",
                )
        sizes = {"N": n, "K": k, "M": m, "elements": n * m}
        return loop_work(codegen, name, sizes, cores, library=library)[0]
    if trans_b and header.is_depthwise:
        raise InputError(f"kernel '{name}' cannot transpose B", where="--trans-b", cure="remove the option")
    b_elements = k * m * (n if header.is_depthwise else 1)
    a_bytes, b_bytes = align(header.element_bytes * n * k), align(header.element_bytes * b_elements)
    last = (trans_b, cores, 0, a_bytes, a_bytes + b_bytes)
    return matmul_work(name, codegen, n, k, m, *last, library=library, accumulate=accumulate)


def _library(name: str, codegen: str) -> tuple[KernelLibrary, str]:
    """The library to ask and the name in it: the shipped one, or one with the user's file."""
    if not name.endswith(FILES) and "/" not in name:
        return LIBRARY, name
    file = Path(name)
    if not name.endswith(FILES):
        raise InputError(
            f"unknown kernel '{shortened(name)}'",
            where="kernel",
            cure="use a name that `pulptrain list kernels` prints, or a file that ends in "
            f"{' or '.join(FILES)}",
        )
    if not file.is_file():
        raise InputError("the kernel file does not exist", where=name, cure="check the path")
    return LIBRARY.with_file(codegen, file)


def kernel_lines(result: dict[str, Any], width: int) -> list[str]:
    """A headline, and what every core does."""
    shape = f"N={result['n']} K={result['k']} M={result['m']}" + (
        ", B transposed" if result["trans_b"] else ""
    )
    shape += ", added to C" if result["add_to_c"] else ""
    note = "" if result["validated"] else " (never compared with a measurement)"
    rate = f", {result['mac_per_cycle']:.3f} MAC/cycle" if result["mac_per_cycle"] else ""
    words = sorted(word for word, cycles in result["stalls"].items() if cycles)
    rows = [
        [
            str(number),
            f"{core['cycles']:,}",
            f"{core['instructions']:,}",
            *(f"{core['stalls'].get(word, 0):,}" for word in words),
        ]
        for number, core in enumerate(result["per_core"])
    ]
    head = f"{result['kernel']} {shape}: {result['cycles']:,} cycles{rate}{note}"
    return [head, *table_lines(["core", "cycles", "instructions", *words], rows, width)]
