"""Untiled NumPy evaluation of Conv2D, by sliding windows and by scattering: no im2row, no tiles."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from trainlib.graph import Op
from trainlib.primitives.conv_geometry import ConvGeometry
from trainlib.primitives.definition import Values
from trainlib.steps import Array


def _windows(images: Array, geometry: ConvGeometry) -> Array:
    """[..., c, h, w] -> view [..., c, ho, wo, hk, wk]."""
    up, down, left, right = geometry.pads
    margins = [(0, 0)] * (images.ndim - 2) + [(up, down), (left, right)]
    windows = sliding_window_view(np.pad(images, margins), (geometry.hk, geometry.wk), axis=(-2, -1))
    return windows[..., :: geometry.stride, :: geometry.stride, :, :]


def forward(op: Op, values: Values) -> Values:
    """Images x [n, ci, hi, wi], w [co, ci, hk, wk] -> y [n, co, ho, wo]."""
    windows = _windows(values["x"], ConvGeometry.of(op.attributes))
    return {"y": np.einsum("bcyxhw,ochw->boyx", windows, values["w"], optimize=True)}


def weight_gradient(op: Op, values: Values) -> Values:
    """(x, dy) -> dw, summed over the batch."""
    windows = _windows(values["x"], ConvGeometry.of(op.attributes))
    return {"dw": np.einsum("boyx,bcyxhw->ochw", values["dy"], windows, optimize=True)}


def input_gradient(op: Op, values: Values) -> Values:
    """(dy, w) -> dx: each output pixel scatters its gradient through the kernel."""
    gradient, weight = values["dy"], values["w"]
    geometry = ConvGeometry.of(op.attributes)
    up, down, left, right = geometry.pads
    stride = geometry.stride
    shape = (len(gradient), geometry.ci, geometry.hi + up + down, geometry.wi + left + right)
    padded = np.zeros(shape, dtype=gradient.dtype)
    taps = np.einsum("boyx,ochw->hwbcyx", gradient, weight, optimize=True)
    for h in range(geometry.hk):
        for w in range(geometry.wk):
            rows = slice(h, h + (geometry.ho - 1) * stride + 1, stride)
            columns = slice(w, w + (geometry.wo - 1) * stride + 1, stride)
            padded[:, :, rows, columns] += taps[h, w]
    return {"dx": np.ascontiguousarray(padded[:, :, up : up + geometry.hi, left : left + geometry.wi])}
