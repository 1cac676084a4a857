# SPDX-License-Identifier: Apache-2.0
"""Names of kernels, and the array layouts of those that share one: matmuls, and loops.

All matrices and tensors are C-contiguous. Addresses are L1 byte addresses. Sizes are numbers of elements.
The loop nests come from `configs/kernels/<codegen>/*.yaml`, whose language is described in
`trainlib.kernels.nest`; every function here ends in `trainlib.kernels.team.team_work`.
"""

from __future__ import annotations

from collections.abc import Mapping

from arch.spec.isa import TeamWork
from configs.dtypes import BY_WORD, FP16
from configs.errors import InputError
from trainlib.kernels.kernel_file import suggestion
from trainlib.kernels.library import LIBRARY, Header, Kernel, KernelLibrary
from trainlib.kernels.team import Array, team_work


def kernel_names(codegen: str, dtype: str | None = "fp32") -> tuple[str, ...]:
    """Names of the matmul kernels of a codegen profile for a dtype, described ones included (None: files).

    Raises InputError for an unknown codegen or dtype.
    """
    names = LIBRARY.kernel_names(codegen)
    matmuls = tuple(name for name in names if LIBRARY.header(codegen, name).is_matmul)
    if dtype is None or not matmuls:
        return matmuls
    return LIBRARY.sized_like(codegen, matmuls[0], element_bytes_of(dtype))


SIMD_DEFAULTS = {"mm": "mm_fp16_SIMD_2x4", "mm_M": "mm_M_fp16_SIMD_2x4"}
"""The 16-bit matmul a layer runs if nobody chooses one, by its fp32 default: the smallest packed block."""


def default_matmul(codegen: str, name: str, element_bytes: int) -> str:
    """What a layer that runs `name` in fp32 runs by default on such elements; of 16 bit a packed kernel.

    Where the codegen has none, or `name` is no plain loop, its form for such elements. Raises InputError.
    """
    packed = SIMD_DEFAULTS.get(name, "") if element_bytes == FP16.bytes else ""
    if packed in LIBRARY.kernel_names(codegen):
        return packed
    return LIBRARY.named(codegen, name, element_bytes)


def depthwise_names(codegen: str) -> tuple[str, ...]:
    """Names of the depthwise matmul kernels of a codegen profile. Raises InputError."""
    names = LIBRARY.kernel_names(codegen)
    return tuple(name for name in names if LIBRARY.header(codegen, name).is_depthwise)


def kind_of(codegen: str, kernel: str) -> str:
    """What a kernel is: a ``matmul``, a ``depthwise`` matmul or a ``loop``. Raises InputError."""
    header = LIBRARY.header(codegen, kernel)
    if header.is_matmul:
        return "matmul"
    return "depthwise" if header.is_depthwise else "loop"


def element_bytes_of(dtype: str) -> int:
    """Bytes of an element. Raises InputError for an unknown dtype."""
    if dtype not in BY_WORD:
        raise InputError(f"unknown dtype '{dtype}'", where="dtype", cure=suggestion(dtype, BY_WORD))
    return BY_WORD[dtype].bytes


def matmul_work(
    kernel: str,
    codegen: str,
    n: int,
    k: int,
    m: int,
    trans_b: bool,
    cores: int,
    a_address: int,
    b_address: int,
    c_address: int,
    *,
    library: KernelLibrary = LIBRARY,
    element_bytes: int | None = None,
    accumulate: bool = False,
) -> TeamWork:
    """C[N,M] = A[N,K] . B[K,M], or A . B^T with B[M,K] when `trans_b`, on `cores` cores.

    A depthwise kernel: C[n,m] = sum over k of A[n,k] B[m,n,k], n channels, k taps, m positions. With
    `accumulate` the product is added to C (see `trainlib.kernels.accumulate`). `element_bytes` is the size of
    the data, if it is not that of the kernel: see `team_work`. Raises InputError for an unknown kernel or
    codegen, sizes below 1, data the kernel has no form for and a transposition it does not do.
    """
    positive("matmul", n=n, k=k, m=m, cores=cores)
    size = element_bytes or library.header(codegen, kernel).element_bytes
    nest = _matmul(library, codegen, library.named(codegen, kernel, size), accumulate)
    if nest.header.trans_b not in (None, trans_b):
        raise InputError(
            f"kernel '{nest.header.name}' {'needs B' if nest.header.trans_b else 'cannot have B'} transposed",
            where="kernel",
            cure=f"{'add' if nest.header.trans_b else 'remove'} --trans-b",
        )
    sizes = {"N": n, "K": k, "M": m}
    if nest.header.is_depthwise:
        of_b: tuple[int, ...] = (1, k, n * k)
    else:
        sizes, of_b = {**sizes, "trans_b": int(trans_b)}, (1, k) if trans_b else (m, 1)
    arrays = {
        "A": Array(a_address, (k, 1), size),
        "B": Array(b_address, of_b, size),
        "C": Array(c_address, (m, 1), size),
    }
    return team_work(
        codegen,
        nest.header.name,
        sizes,
        arrays,
        cores,
        macs=n * k * m,
        element_bytes=size,
        library=library,
        accumulate=accumulate,
    )


def is_free_loop(header: Header) -> bool:
    """Whether a kernel file is a loop over arrays with one index, which `loop_work` can call."""
    return bool(header.arrays) and all(indices == 1 for indices in header.arrays.values())


def loop_names(codegen: str) -> tuple[str, ...]:
    """Names of the kernels of a codegen that `loop_work` can call. Raises InputError."""
    names = LIBRARY.kernel_names(codegen)
    return tuple(name for name in names if is_free_loop(LIBRARY.header(codegen, name)))


def loop_work(
    codegen: str, name: str, sizes: Mapping[str, int], cores: int, *, library: KernelLibrary = LIBRARY
) -> tuple[TeamWork, int]:
    """A loop of one's own on arrays with one index, and the bytes they take, one after another from 0.

    `sizes` are N, M, K and `elements`. An array is as long as the name ``<array>_elements`` of the file says,
    which must be the same on all cores, or else `elements`. Raises InputError for another kernel, and like
    `team_work`.
    """
    kernel = library.kernel(codegen, name)
    size = kernel.header.element_bytes
    if not is_free_loop(kernel.header):
        raise InputError(
            f"kernel '{name}' accesses an array with several indices, but only one is supported here",
            where="kernel",
            cure="write one flat index per array in the kernel file",
        )
    names = {**sizes, "cores": cores}
    try:
        for word, expression in kernel.team_names:
            names[word] = expression.evaluate(names)
    except (KeyError, ArithmeticError, RecursionError) as error:
        raise kernel.failure(error, names) from None
    arrays, address = {}, 0
    for array in kernel.header.arrays:
        arrays[array] = Array(address, element_bytes=size)
        address += size * names.get(f"{array}_elements", sizes["elements"])
    return team_work(codegen, name, sizes, arrays, cores, element_bytes=size, library=library), address


def _matmul(library: KernelLibrary, codegen: str, name: str, accumulate: bool) -> Kernel:
    kernel = library.kernel(codegen, name, accumulate=accumulate)
    if not (kernel.header.is_matmul or kernel.header.is_depthwise):
        matmuls = [item for item in library.kernel_names(codegen) if library.header(codegen, item).is_matmul]
        raise InputError(f"'{name}' is not a matmul kernel", where="kernel", cure=suggestion(name, matmuls))
    return kernel


def positive(where: str, **sizes: int) -> None:
    """Raise InputError for a size that is no positive integer."""
    for name, value in sizes.items():
        if type(value) is not int or value < 1:
            what = f"{name} is {value!r}, but must be a whole number of 1 or more"
            raise InputError(what, where=where, cure=f"use {name} = 1 or more")
