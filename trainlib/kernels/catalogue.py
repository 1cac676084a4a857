"""Kernels as the work of a team of cores: shapes, L1 addresses and cores in, `arch.isa.TeamWork` out.

All matrices and tensors are C-contiguous. Addresses are L1 byte addresses. Sizes are numbers of elements.
The loop nests come from `configs/kernels/<codegen>/*.yaml`; cores run the published split (chunks of
ceil(X / cores), fallback kernels, tile rows rounded up). The language of the nests
is described in `trainlib.kernels.nest`.
"""

from __future__ import annotations

from collections.abc import Mapping

from arch.isa import CoreWork, Loop, Node, Stream, TeamWork
from configs.dtypes import DTYPES
from configs.errors import InputError
from trainlib.kernels.expand import Array
from trainlib.kernels.library import Fallback, Kernel, KernelLibrary, suggestion

ELEMENT_BYTES = 4
"""Bytes of an fp32 element."""

DTYPE_BYTES = {dtype.word: dtype.bytes for dtype in DTYPES}
"""Bytes of an element; formats of one size cost the same."""

LIBRARY = KernelLibrary()
"""The shipped kernels."""

_ELEMENTWISE = {"relu_fw": ("X", "Y"), "relu_bw": ("X", "G", "Y"), "sgd": ("W", "G")}
_LOSSES = {
    "mse_fw": ("X", "T", "Y"),
    "mse_bw": ("X", "T", "Y"),
    "cross_entropy_fw": ("X", "T", "Y"),
    "cross_entropy_bw": ("X", "T", "Y"),
}


def codegen_names() -> tuple[str, ...]:
    """Names of all codegen profiles."""
    return LIBRARY.codegen_names()


def kernel_names(codegen: str, dtype: str | None = "fp32") -> tuple[str, ...]:
    """Names of the matmul kernels of a codegen profile for a dtype (None: all).

    Raises InputError for an unknown codegen or dtype.
    """
    names = LIBRARY.kernel_names(codegen)
    wanted = None if dtype is None else element_bytes_of(dtype)
    headers = ((name, LIBRARY.header(codegen, name)) for name in names)
    return tuple(name for name, head in headers if head.is_matmul and wanted in (None, head.element_bytes))


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


def estimated_names(codegen: str) -> tuple[str, ...]:
    """Names of the kernels of a codegen profile, loops of layers included, that were never measured.

    They are nests written without a listing, and kernels the profile has no file of, which come from its base
    (see `trainlib.kernels.library`). Raises InputError for an unknown codegen.
    """
    names = LIBRARY.kernel_names(codegen)
    return tuple(name for name in names if not LIBRARY.header(codegen, name).validated)


def element_bytes_of(dtype: str) -> int:
    """Bytes of an element. Raises InputError for an unknown dtype."""
    if dtype not in DTYPE_BYTES:
        raise InputError(f"unknown dtype '{dtype}'", where="dtype", cure=suggestion(dtype, DTYPE_BYTES))
    return DTYPE_BYTES[dtype]


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

    With `accumulate` the product is added to C (see `trainlib.kernels.accumulate`). `element_bytes`, if
    given, must be that of the kernel file. Raises InputError for an unknown kernel or codegen, sizes below 1,
    another element size and a transposition the kernel does not do.
    """
    _positive("matmul", n=n, k=k, m=m, cores=cores)
    found = _matmul(library, codegen, kernel, accumulate)
    if found.trans_b not in (None, trans_b):
        raise InputError(
            f"'{kernel}' only multiplies with B {'' if found.trans_b else 'not '}transposed", where="kernel"
        )
    size = found.element_bytes
    if element_bytes not in (None, size):
        raise InputError(
            f"'{kernel}' is for elements of {size} bytes, not {element_bytes}",
            where="kernel",
            cure="choose a kernel of this dtype (`pulptrain list kernels`)",
        )
    arrays = {
        "A": Array(a_address, (size * k, size)),
        "B": Array(b_address, (size, size * k) if trans_b else (size * m, size)),
        "C": Array(c_address, (size * m, size)),
    }
    sizes = {"N": n, "K": k, "M": m, "trans_b": int(trans_b), "cores": cores}
    return _team(library, found, sizes, arrays, cores, macs=n * k * m)


def depthwise_work(
    kernel: str,
    codegen: str,
    n: int,
    k: int,
    m: int,
    cores: int,
    a_address: int,
    b_address: int,
    c_address: int,
    *,
    library: KernelLibrary = LIBRARY,
    accumulate: bool = False,
) -> TeamWork:
    """Depthwise matmul C[n,m] = sum over k of A[n,k] B[m,n,k]: n channels, k taps, m positions, fp32.

    `kernel` is one of `depthwise_names`. Raises InputError for unknown kernel or codegen and sizes below 1.
    """
    _positive("depthwise", n=n, k=k, m=m, cores=cores)
    found = library.kernel(codegen, kernel, accumulate=accumulate)
    if not found.header.is_depthwise:
        names = depthwise_names(codegen)
        raise InputError(
            f"'{kernel}' is not a depthwise kernel", where="kernel", cure=suggestion(kernel, names)
        )
    size = found.element_bytes
    arrays = {
        "A": Array(a_address, (size * k, size)),
        "B": Array(b_address, (size, size * k, size * n * k)),
        "C": Array(c_address, (size * m, size)),
    }
    sizes = {"N": n, "K": k, "M": m, "cores": cores}
    return _team(library, found, sizes, arrays, cores, macs=n * k * m)


def elementwise_work(
    codegen: str, name: str, elements: int, cores: int, addresses: tuple[int, ...]
) -> TeamWork:
    """An elementwise fp32 loop split over the cores.

    `addresses` are those of relu_fw: x, y; relu_bw: x, dy, dx; sgd: weights, gradients. Raises InputError.
    """
    _known(name, _ELEMENTWISE)
    _positive(name, elements=elements, cores=cores)
    arrays = _vectors(name, _ELEMENTWISE[name], addresses)
    kernel = LIBRARY.kernel(codegen, name)
    return _team(LIBRARY, kernel, {"elements": elements, "cores": cores}, arrays, cores)


def loss_work(codegen: str, name: str, elements: int, addresses: tuple[int, ...]) -> TeamWork:
    """A loss over `elements` fp32 outputs, on the master core alone.

    `addresses`: prediction, target, result (scalar loss of a _fw, gradient of a _bw). Raises InputError.
    """
    _known(name, _LOSSES)
    _positive(name, elements=elements)
    arrays = _vectors(name, _LOSSES[name], addresses)
    kernel = LIBRARY.kernel(codegen, name)
    return _team(LIBRARY, kernel, {"elements": elements, "cores": 1}, arrays, 1)


def im2row_work(
    codegen: str,
    *,
    mode: str,
    ci: int,
    hi: int,
    wi: int,
    hk: int,
    wk: int,
    ho: int,
    wo: int,
    stride: int,
    pads: tuple[int, int, int, int],
    cores: int,
    source_address: int,
    target_address: int,
) -> TeamWork:
    """Unroll patches of a CHW tensor into rows, split over its channels.

    mode "FW": input[ci,hi,wi] -> rows[ho*wo, ci*hk*wk], padded by `pads` (up, down, left, right). mode "IG":
    output gradient[ci,ho,wo] (ci is its number of channels) -> rows[hi*wi, ci*hk*wk]. Raises InputError.
    """
    if mode not in ("FW", "IG"):
        raise InputError(f"unknown im2row mode '{mode}'", where="im2row", cure="use FW or IG")
    _positive("im2row", ci=ci, hi=hi, wi=wi, hk=hk, wk=wk, ho=ho, wo=wo, stride=stride, cores=cores)
    size = ELEMENT_BYTES
    patch = ci * hk * wk
    rows_wide, source = (wo, (hi, wi)) if mode == "FW" else (wi, (ho, wo))
    arrays = {
        "X": Array(source_address, (size * source[0] * source[1], size * source[1], size)),
        "R": Array(target_address, (size * patch * rows_wide, size * patch, size * hk * wk, size * wk, size)),
    }
    sizes = {
        "ci": ci,
        "hi": hi,
        "wi": wi,
        "hk": hk,
        "wk": wk,
        "ho": ho,
        "wo": wo,
        "stride": stride,
        "cores": cores,
        "padded": int(any(pads)),
    }
    # In IG every element of the output gradient is read once per kernel position that reaches the input.
    rows_in, cols_in = _inside(ho, hk, hi, stride, pads[0]), _inside(wo, wk, wi, stride, pads[2])
    if mode == "FW":
        rows, cols = ho * hk, wo * wk
    else:
        rows, cols = hi * hk, wi * wk
    sizes |= {"rows_in": rows_in, "rows_out": max(rows - rows_in, 0)}
    sizes |= {"cols_in": cols_in, "cols_out": max(cols - cols_in, 0)}
    kernel = LIBRARY.kernel(codegen, "im2row_fw" if mode == "FW" else "im2row_ig")
    return _team(LIBRARY, kernel, sizes, arrays, cores)


def blocktransp_work(
    codegen: str,
    *,
    co: int,
    ci: int,
    hk: int,
    wk: int,
    cores: int,
    source_address: int,
    target_address: int,
) -> TeamWork:
    """Weights[co,ci,hk,wk] -> [ci,co,hk,wk] with every kernel window reversed, split over co."""
    _positive("blocktransp", co=co, ci=ci, hk=hk, wk=wk, cores=cores)
    size = ELEMENT_BYTES
    window = hk * wk * size
    arrays = {
        "X": Array(source_address, (ci * window, window, size)),
        "Y": Array(target_address, (co * window, window, size)),
    }
    sizes = {"co": co, "ci": ci, "hk": hk, "wk": wk, "cores": cores}
    return _team(LIBRARY, LIBRARY.kernel(codegen, "blocktransp"), sizes, arrays, cores)


def _inside(outputs: int, taps: int, inputs: int, stride: int, pad: int) -> int:
    """Pairs (output position, kernel position) along one axis that read inside the input."""
    count = 0
    for tap in range(taps):
        first = max(0, -(-(pad - tap) // stride))
        last = min(outputs - 1, (inputs - 1 + pad - tap) // stride)
        count += max(0, last - first + 1)
    return count


def _team(
    library: KernelLibrary,
    kernel: Kernel,
    sizes: Mapping[str, int],
    arrays: Mapping[str, Array],
    cores: int,
    macs: int = 0,
) -> TeamWork:
    shared: dict[Kernel, dict[str, int]] = {}
    works = tuple(_core_work(library, kernel, sizes, core, arrays, shared) for core in range(cores))
    return TeamWork(kernel.name, works, macs)


def _core_work(
    library: KernelLibrary,
    kernel: Kernel,
    sizes: Mapping[str, int],
    core: int,
    arrays: Mapping[str, Array],
    shared: dict[Kernel, dict[str, int]],
) -> CoreWork:
    """The work of one core; `shared` keeps the names that are the same on all cores of the team."""
    names, fallback = _evaluated(kernel, sizes, core, shared)
    if fallback is None:
        return kernel.expander.core_work(names, arrays, kernel.code_bytes)
    before = fallback.cost.core_work(names, arrays, kernel.code_bytes)
    used = library.kernel(kernel.codegen, fallback.use, accumulate=kernel.accumulates)
    return _chain(before, _core_work(library, used, sizes, core, arrays, shared))


def _evaluated(
    kernel: Kernel, sizes: Mapping[str, int], core: int, shared: dict[Kernel, dict[str, int]]
) -> tuple[dict[str, int], Fallback | None]:
    """The names of one core, and the other kernel it executes, if any."""
    common = shared.get(kernel)
    names = dict(sizes) if common is None else common
    try:
        if common is None:
            for name, expression in kernel.team_names:
                names[name] = expression.evaluate(names)
            common = shared[kernel] = names
        names = {**common, "core": core}
        for name, expression in kernel.core_names:
            names[name] = expression.evaluate(names)
        for fallback in kernel.fallbacks:
            if fallback.when.evaluate(names):
                return names, fallback
    except (KeyError, ArithmeticError, RecursionError) as error:
        raise kernel.failure(error, names) from None
    return names, None


def _chain(first: CoreWork, second: CoreWork) -> CoreWork:
    """`first`, straight-line code without addressed accesses, and then `second`."""
    streams: tuple[Stream, ...] = second.streams
    body: tuple[Node | Loop, ...] = first.body + second.body
    return CoreWork(body, streams, second.code_bytes)


def _matmul(library: KernelLibrary, codegen: str, name: str, accumulate: bool) -> Kernel:
    found = library.kernel(codegen, name, accumulate=accumulate)
    if not found.header.is_matmul:
        matmuls = [item for item in library.kernel_names(codegen) if library.header(codegen, item).is_matmul]
        raise InputError(f"'{name}' is not a matmul kernel", where="kernel", cure=suggestion(name, matmuls))
    return found


def _vectors(name: str, arrays: tuple[str, ...], addresses: tuple[int, ...]) -> dict[str, Array]:
    if len(addresses) != len(arrays):
        raise InputError(f"{name} needs {len(arrays)} addresses, not {len(addresses)}", where=name)
    return {array: Array(address, (ELEMENT_BYTES,)) for array, address in zip(arrays, addresses, strict=True)}


def _known(name: str, names: Mapping[str, object]) -> None:
    if name not in names:
        raise InputError(f"unknown kernel '{name}'", where="kernel", cure=suggestion(name, names))


def _positive(where: str, **sizes: int) -> None:
    for name, value in sizes.items():
        if type(value) is not int or value < 1:
            raise InputError(f"{name} must be a positive integer, not {value!r}", where=where)
