"""Untiled NumPy evaluation of Conv2D, by sliding windows and by scattering: no im2row, no tiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from trainlib.graph import Op
from trainlib.primitives.conv_geometry import ConvGeometry
from trainlib.steps import Array


def _windows(images: Array, geometry: ConvGeometry) -> Array:
    """[..., c, h, w] -> view [..., c, ho, wo, hk, wk]."""
    up, down, left, right = geometry.pads
    margins = [(0, 0)] * (images.ndim - 2) + [(up, down), (left, right)]
    windows = sliding_window_view(np.pad(images, margins), (geometry.hk, geometry.wk), axis=(-2, -1))
    return windows[..., :: geometry.stride, :: geometry.stride, :, :]


def batched(attributes: Mapping[str, Any], arrays: Sequence[Array]) -> Array:
    """Forward of images [batch, ci, hi, wi] with weight [co, ci, hk, wk] -> [batch, co, ho, wo]."""
    images, weight = arrays
    windows = _windows(images, ConvGeometry.of(attributes))
    result: Array = np.einsum("bcyxhw,ochw->boyx", windows, weight, optimize=True)
    return result


def forward(op: Op, arrays: Sequence[Array]) -> tuple[Array, ...]:
    """(x, w) -> y."""
    x, weight = arrays
    return (batched(op.attributes, (x[np.newaxis], weight))[0],)


def weight_gradient(op: Op, arrays: Sequence[Array]) -> tuple[Array, ...]:
    """(x, dy) -> dw."""
    x, gradient = arrays
    windows = _windows(x, ConvGeometry.of(op.attributes))
    return (np.einsum("oyx,cyxhw->ochw", gradient, windows, optimize=True),)


def input_gradient(op: Op, arrays: Sequence[Array]) -> tuple[Array, ...]:
    """(dy, w) -> dx: each output pixel scatters its gradient through the kernel."""
    gradient, weight = arrays
    geometry = ConvGeometry.of(op.attributes)
    up, down, left, right = geometry.pads
    stride = geometry.stride
    padded = np.zeros(
        (geometry.ci, geometry.hi + up + down, geometry.wi + left + right), dtype=gradient.dtype
    )
    taps = np.einsum("oyx,ochw->hwcyx", gradient, weight, optimize=True)
    for h in range(geometry.hk):
        for w in range(geometry.wk):
            rows = slice(h, h + (geometry.ho - 1) * stride + 1, stride)
            columns = slice(w, w + (geometry.wo - 1) * stride + 1, stride)
            padded[:, rows, columns] += taps[h, w]
    return (np.ascontiguousarray(padded[:, up : up + geometry.hi, left : left + geometry.wi]),)
