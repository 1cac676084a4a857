"""Array layouts of the nests with a sliding window, and of instance norm.

Same conventions as `trainlib.kernels.catalogue`: fp32, C-contiguous, L1 byte addresses, sizes in elements.
Tensors are CHW. Cores take chunks of ceil(X / cores) of the dimension named in each kernel file, except where
the published code makes every core do everything. Every function raises InputError for an unknown name or
codegen, a wrong number of addresses, or a size below 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from arch.isa import TeamWork
from configs.errors import InputError
from trainlib.kernels.catalogue import inside, positive
from trainlib.kernels.library import suggestion
from trainlib.kernels.team import Array, team_work

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


def pooling_work(codegen: str, name: str, window: Window, cores: int, addresses: tuple[int, ...]) -> TeamWork:
    """avgpool_fw (x, y), avgpool_bw (dx, dy), maxpool_fw (x, y), maxpool_bw (x, dx, dy).

    Channels over the cores; the order of the addresses is in parentheses.
    """
    _known(name, _POOLING)
    _check(name, window, cores)
    names = _POOLING[name]
    if len(addresses) != len(names):
        raise InputError(f"{name} needs {len(names)} addresses, not {len(addresses)}", where=name)
    arrays = {
        array: Array(address, _image(window.ho, window.wo) if array == "Y" else _image(window.hi, window.wi))
        for array, address in zip(names, addresses, strict=True)
    }
    return team_work(codegen, name, _sizes(window), arrays, cores)


def unroll_work(codegen: str, name: str, window: Window, cores: int, addresses: tuple[int, int]) -> TeamWork:
    """Patches of an unpadded input (first address) to columns or rows: im2col, im2col_hwc, im2row_hwc.

    im2col takes input[ci,hi,wi] to [ci,hk,wk,ho,wo], channels over the cores; the others take input[hi,wi,ci]
    to [hk,wk,ci,ho,wo] or [ho,wo,hk,wk,ci], output rows over the cores. For im2row in CHW see `catalogue`.
    """
    _known(name, _UNROLLED)
    _check(name, window, cores)
    if window.pad != 0:
        raise InputError(f"{name} is described without pad", where=name, cure="use pad 0")
    ci, hk, wk = window.ci, window.hk, window.wk
    outputs = window.ho * window.wo
    if name == "im2col":
        source = _image(window.hi, window.wi)
        target = (hk * wk * outputs, wk * outputs, outputs, window.wo, 1)
    else:
        source = (window.wi * ci, ci, 1)
        if name == "im2col_hwc":
            target = (wk * ci * outputs, ci * outputs, outputs, window.wo, 1)
        else:
            patch = hk * wk * ci
            target = (window.wo * patch, patch, wk * ci, ci, 1)
    arrays = {
        "X": Array(addresses[0], source),
        "R": Array(addresses[1], target),
    }
    return team_work(codegen, name, _sizes(window), arrays, cores)


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
    return team_work(codegen, name, sizes, arrays, cores, macs=macs)


def naive_conv_work(
    codegen: str, name: str, window: Window, co: int, cores: int, addresses: tuple[int, int, int]
) -> TeamWork:
    """Direct convolution without im2col: naive_fw, naive_wg (output channels over cores), naive_ig (input).

    Addresses of input (or its gradient), weights (or theirs), output (or its gradient). No padding, and
    stride 1 in naive_ig. No measured row has them.
    """
    _known(name, _NAIVE)
    _check(name, window, cores)
    positive(name, co=co)
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
    return team_work(codegen, name, sizes, arrays, cores, macs=macs)


def instance_norm_work(
    codegen: str, name: str, channels: int, elements: int, cores: int, addresses: tuple[int, int, int]
) -> TeamWork:
    """Instance normalisation of `elements` per channel, channels over the cores. No measured row has it.

    Addresses: instnorm_fw x, y, coefficients; instnorm_bw_input x, dy, dx; instnorm_bw_param x, dy, gradients
    of the coefficients.
    """
    _known(name, _NORMS)
    positive(name, channels=channels, elements=elements, cores=cores)
    arrays = {
        array: Array(address, (1,) if array == "W" else (elements, 1))
        for array, address in zip(_NORMS[name], addresses, strict=True)
    }
    return team_work(codegen, name, {"channels": channels, "elements": elements}, arrays, cores)


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
    return (rows * columns, columns, 1)


def _check(name: str, window: Window, cores: int) -> None:
    positive(
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
