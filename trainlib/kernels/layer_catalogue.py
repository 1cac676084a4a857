"""Loops of whole layers as the work of a team of cores: elementwise, pooling, depthwise, matrices, softmax.

Same conventions as `trainlib.kernels.catalogue`: fp32, C-contiguous, L1 byte addresses, sizes in elements.
Tensors are CHW. Cores take chunks of ceil(X / cores) of the dimension named in each kernel file, except where
the published code makes every core do everything. Every function raises InputError for an unknown name or
codegen, a wrong number of addresses, or a size below 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from arch.isa import CoreWork, TeamWork
from configs.errors import InputError
from trainlib.kernels.catalogue import LIBRARY
from trainlib.kernels.expand import Array
from trainlib.kernels.library import suggestion

ELEMENT_BYTES = 4
"""Bytes of an fp32 element."""

VECTOR_LOOPS: Mapping[str, tuple[str, ...]] = {
    "copy": ("X", "Y"),
    "set_to_value": ("Y",),
    "vect_sum": ("X", "G", "Y"),
    "broadcast_sum": ("X", "G", "Y"),
    "relu_fw": ("X", "Y"),
    "relu_bw": ("X", "G", "Y"),
    "leakyrelu_fw": ("X", "Y"),
    "leakyrelu_bw": ("X", "G", "Y"),
    "sigmoid_fw": ("X", "Y"),
    "sigmoid_bw": ("X", "G", "Y"),
    "sgd": ("W", "G"),
    "sgd_wd": ("W", "G"),
}
"""Loops over the elements of vectors, split over the cores; their arrays in the order of the addresses."""

LOSSES: Mapping[str, tuple[str, ...]] = dict.fromkeys(
    ("mse_fw", "mse_bw", "l1_fw", "l1_bw", "cross_entropy_fw", "cross_entropy_bw"), ("X", "T", "Y")
)
"""Losses, on the master core alone: prediction, target, result (scalar of a _fw, gradient of a _bw)."""

ROW_LOOPS: Mapping[str, Mapping[str, int]] = {
    "row_max": {"X": 2, "R": 1},
    "exp_sum": {"X": 2, "Y": 2, "R": 1, "Z": 1},
    "row_div": {"X": 2, "Z": 1},
    "softmax_bw_sum": {"X": 2, "G": 2, "Z": 1},
    "softmax_bw_scale": {"X": 2, "G": 2, "Z": 1, "Y": 2},
}
"""Passes of softmax over the rows of matrices [n,m] (2 indices) and vectors [n] (1), rows over the cores."""

_POOLING: Mapping[str, tuple[str, ...]] = {
    "avgpool_fw": ("X", "Y"),
    "avgpool_bw": ("X", "Y"),
    "maxpool_fw": ("X", "Y"),
    "maxpool_bw": ("X", "G", "Y"),
}
_UNROLLED = ("im2col", "im2row_hwc", "im2col_hwc")
_DEPTHWISE = ("dw_fw", "dw_wg", "dw_ig")
_NORMS: Mapping[str, tuple[str, str, str]] = {
    "instnorm_fw": ("X", "Y", "W"),
    "instnorm_bw_input": ("X", "G", "Y"),
    "instnorm_bw_param": ("X", "G", "W"),
}
_NAIVE = ("naive_fw", "naive_wg", "naive_ig")
_CALLS = ("layer_call",)
_TRANSPOSITIONS = ("transpose_matrix", "transpose_nd")


@dataclass(frozen=True, slots=True)
class Window:
    """Extents of a layer with a sliding window: CHW input and kernel, one stride, one pad on every side."""

    ci: int
    hi: int
    wi: int
    hk: int
    wk: int
    stride: int = 1
    pad: int = 0

    @property
    def ho(self) -> int:
        """Output rows."""
        return (self.hi + 2 * self.pad - self.hk) // self.stride + 1

    @property
    def wo(self) -> int:
        """Output columns."""
        return (self.wi + 2 * self.pad - self.wk) // self.stride + 1


def vector_work(codegen: str, name: str, elements: int, cores: int, addresses: tuple[int, ...]) -> TeamWork:
    """A loop of `VECTOR_LOOPS` over `elements`, split over the cores; one address per array."""
    _known(name, VECTOR_LOOPS)
    _positive(name, elements=elements, cores=cores)
    arrays = _vectors(name, VECTOR_LOOPS[name], addresses)
    return _team(codegen, name, {"elements": elements}, arrays, cores)


def loss_work(codegen: str, name: str, elements: int, addresses: tuple[int, ...]) -> TeamWork:
    """A loss of `LOSSES` over `elements` outputs, on the master core alone."""
    _known(name, LOSSES)
    _positive(name, elements=elements)
    return _team(codegen, name, {"elements": elements}, _vectors(name, LOSSES[name], addresses), 1)


def call_work(codegen: str, name: str) -> TeamWork:
    """Straight code of the master core around a kernel, such as ``layer_call``."""
    _known(name, _CALLS)
    return _team(codegen, name, {}, {}, 1)


def transpose_work(
    codegen: str, name: str, n: int, m: int, cores: int, addresses: tuple[int, int]
) -> TeamWork:
    """Y[m,n] = X[n,m] by ``transpose_matrix`` (larger dimension over cores) or ``transpose_nd`` (rows)."""
    _known(name, _TRANSPOSITIONS)
    _positive(name, n=n, m=m, cores=cores)
    size = ELEMENT_BYTES
    arrays = {"X": Array(addresses[0], (size * m, size)), "Y": Array(addresses[1], (size * n, size))}
    return _team(codegen, name, {"N": n, "M": m}, arrays, cores)


def rows_work(codegen: str, name: str, n: int, m: int, cores: int, addresses: Mapping[str, int]) -> TeamWork:
    """A pass of `ROW_LOOPS` over matrices [n,m]; `addresses` by name of the array."""
    _known(name, ROW_LOOPS)
    _positive(name, n=n, m=m, cores=cores)
    if addresses.keys() != ROW_LOOPS[name].keys():
        raise InputError(f"{name} needs the addresses of {', '.join(ROW_LOOPS[name])}", where=name)
    size = ELEMENT_BYTES
    arrays = {
        array: Array(addresses[array], (size * m, size) if indices == 2 else (size,))
        for array, indices in ROW_LOOPS[name].items()
    }
    return _team(codegen, name, {"N": n, "M": m}, arrays, cores)


def pooling_work(codegen: str, name: str, window: Window, cores: int, addresses: tuple[int, ...]) -> TeamWork:
    """avgpool_fw (x, y), avgpool_bw (dx, dy), maxpool_fw (x, y), maxpool_bw (x, dx, dy).

    Channels over the cores; the order of the addresses is in parentheses.
    """
    _known(name, _POOLING)
    _check(name, window, cores)
    names = _POOLING[name]
    _count(name, names, addresses)
    arrays = {
        array: Array(address, _image(window.ho, window.wo) if array == "Y" else _image(window.hi, window.wi))
        for array, address in zip(names, addresses, strict=True)
    }
    return _team(codegen, name, _sizes(window), arrays, cores)


def unroll_work(codegen: str, name: str, window: Window, cores: int, addresses: tuple[int, int]) -> TeamWork:
    """Patches of an unpadded input (first address) to columns or rows: im2col, im2col_hwc, im2row_hwc.

    im2col takes input[ci,hi,wi] to [ci,hk,wk,ho,wo], channels over the cores; the others take input[hi,wi,ci]
    to [hk,wk,ci,ho,wo] or [ho,wo,hk,wk,ci], output rows over the cores. For im2row in CHW see `catalogue`.
    """
    _known(name, _UNROLLED)
    _check(name, window, cores)
    if window.pad != 0:
        raise InputError(f"{name} is described without pad", where=name, cure="use pad 0")
    size, ci, hk, wk = ELEMENT_BYTES, window.ci, window.hk, window.wk
    outputs = window.ho * window.wo
    if name == "im2col":
        source = _image(window.hi, window.wi)
        target = (hk * wk * outputs, wk * outputs, outputs, window.wo, 1)
    else:
        source = (size * window.wi * ci, size * ci, size)
        if name == "im2col_hwc":
            target = (wk * ci * outputs, ci * outputs, outputs, window.wo, 1)
        else:
            patch = hk * wk * ci
            target = (window.wo * patch, patch, wk * ci, ci, 1)
    arrays = {
        "X": Array(addresses[0], source),
        "R": Array(addresses[1], tuple(size * stride for stride in target)),
    }
    return _team(codegen, name, _sizes(window), arrays, cores)


def depthwise_work(
    codegen: str, name: str, window: Window, cores: int, addresses: tuple[int, int, int]
) -> TeamWork:
    """dw_fw, dw_wg, dw_ig on input (or its gradient), kernels, output (or its gradient), in this order.

    Channels over the cores in dw_fw; as published, every core does all of them in dw_wg and dw_ig, which know
    neither stride nor pad.
    """
    _known(name, _DEPTHWISE)
    _check(name, window, cores)
    if name != "dw_fw" and (window.stride != 1 or window.pad != 0):
        raise InputError(f"{name} has neither stride nor pad", where=name, cure="use stride 1, pad 0")
    arrays = {
        "X": Array(addresses[0], _image(window.hi, window.wi)),
        "W": Array(addresses[1], _image(window.hk, window.wk)),
        "Y": Array(addresses[2], _image(window.ho, window.wo)),
    }
    sizes = _sizes(window) | (_full_reach(window) if name == "dw_ig" else _reach(window))
    macs = window.ci * window.hk * window.wk * window.ho * window.wo
    return _team(codegen, name, sizes, arrays, cores, macs)


def naive_conv_work(
    codegen: str, name: str, window: Window, co: int, cores: int, addresses: tuple[int, int, int]
) -> TeamWork:
    """Direct convolution without im2col: naive_fw, naive_wg (output channels over cores), naive_ig (input).

    Addresses of input (or its gradient), weights (or theirs), output (or its gradient). No padding, and
    stride 1 in naive_ig. No measured row has them.
    """
    _known(name, _NAIVE)
    _check(name, window, cores)
    _positive(name, co=co)
    if window.pad != 0 or (name == "naive_ig" and window.stride != 1):
        raise InputError(f"{name} is described without pad, and naive_ig with stride 1", where=name)
    kernel = _image(window.hk, window.wk)
    arrays = {
        "X": Array(addresses[0], _image(window.hi, window.wi)),
        "W": Array(addresses[1], (window.ci * kernel[0], *kernel)),
        "Y": Array(addresses[2], _image(window.ho, window.wo)),
    }
    sizes = _sizes(window) | {"co": co} | (_full_reach(window) if name == "naive_ig" else _reach(window))
    macs = co * window.ci * window.hk * window.wk * window.ho * window.wo
    return _team(codegen, name, sizes, arrays, cores, macs)


def instance_norm_work(
    codegen: str, name: str, channels: int, elements: int, cores: int, addresses: tuple[int, int, int]
) -> TeamWork:
    """Instance normalisation of `elements` per channel, channels over the cores. No measured row has it.

    Addresses: instnorm_fw x, y, coefficients; instnorm_bw_input x, dy, dx; instnorm_bw_param x, dy, gradients
    of the coefficients.
    """
    _known(name, _NORMS)
    _positive(name, channels=channels, elements=elements, cores=cores)
    size = ELEMENT_BYTES
    arrays = {
        array: Array(address, (size,) if array == "W" else (size * elements, size))
        for array, address in zip(_NORMS[name], addresses, strict=True)
    }
    return _team(codegen, name, {"channels": channels, "elements": elements}, arrays, cores)


def inside(outputs: int, taps: int, inputs: int, stride: int, pad: int) -> int:
    """Pairs (output position, kernel position) along one axis that read inside the input."""
    count = 0
    for tap in range(taps):
        first = max(0, -(-(pad - tap) // stride))
        last = min(outputs - 1, (inputs - 1 + pad - tap) // stride)
        count += max(0, last - first + 1)
    return count


def _reach(window: Window) -> dict[str, int]:
    rows = inside(window.ho, window.hk, window.hi, window.stride, window.pad)
    cols = inside(window.wo, window.wk, window.wi, window.stride, window.pad)
    return {
        "rows_in": rows,
        "rows_out": window.ho * window.hk - rows,
        "cols_in": cols,
        "cols_out": window.wo * window.wk - cols,
    }


def _full_reach(window: Window) -> dict[str, int]:
    """Of all (input position, kernel position) pairs, those that fall on an output."""
    rows, cols = window.ho * window.hk, window.wo * window.wk
    return {
        "rows_in": rows,
        "rows_out": window.hi * window.hk - rows,
        "cols_in": cols,
        "cols_out": window.wi * window.wk - cols,
    }


def _sizes(window: Window) -> dict[str, int]:
    return {
        "ci": window.ci,
        "hi": window.hi,
        "wi": window.wi,
        "hk": window.hk,
        "wk": window.wk,
        "ho": window.ho,
        "wo": window.wo,
        "stride": window.stride,
        "padded": int(window.pad > 0),
    }


def _image(rows: int, columns: int) -> tuple[int, int, int]:
    return (ELEMENT_BYTES * rows * columns, ELEMENT_BYTES * columns, ELEMENT_BYTES)


def _team(
    codegen: str,
    name: str,
    sizes: Mapping[str, int],
    arrays: Mapping[str, Array],
    cores: int,
    macs: int = 0,
) -> TeamWork:
    kernel = LIBRARY.kernel(codegen, name)

    def work(core: int) -> CoreWork:
        names = {**sizes, "cores": cores, "core": core}
        for key, expression in kernel.names:
            names[key] = expression.evaluate(names)
        return kernel.expander.core_work(names, arrays, kernel.code_bytes)

    return TeamWork(kernel.name, tuple(work(core) for core in range(cores)), macs)


def _vectors(name: str, arrays: tuple[str, ...], addresses: tuple[int, ...]) -> dict[str, Array]:
    _count(name, arrays, addresses)
    return {array: Array(address, (ELEMENT_BYTES,)) for array, address in zip(arrays, addresses, strict=True)}


def _count(name: str, arrays: tuple[str, ...], addresses: tuple[int, ...]) -> None:
    if len(addresses) != len(arrays):
        raise InputError(f"{name} needs {len(arrays)} addresses, not {len(addresses)}", where=name)


def _check(name: str, window: Window, cores: int) -> None:
    _positive(
        name,
        ci=window.ci,
        hi=window.hi,
        wi=window.wi,
        hk=window.hk,
        wk=window.wk,
        stride=window.stride,
        cores=cores,
    )
    if window.pad < 0 or window.ho < 1 or window.wo < 1:
        raise InputError("the window does not fit its input", where=name, cure="use a smaller kernel")


def _known(name: str, names: Mapping[str, object] | tuple[str, ...]) -> None:
    if name not in names:
        raise InputError(f"unknown kernel '{name}'", where="kernel", cure=suggestion(name, names))


def _positive(where: str, **sizes: int) -> None:
    for name, value in sizes.items():
        if type(value) is not int or value < 1:
            raise InputError(f"{name} must be a positive integer, not {value!r}", where=where)
