# SPDX-License-Identifier: Apache-2.0
"""Untiled NumPy evaluation of convolutions, by sliding windows and by scattering: no im2row, no tiles."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from trainlib.ir.graph import Op
from trainlib.ir.steps import Array
from trainlib.primitives.contractions.conv_geometry import ConvGeometry
from trainlib.primitives.definition import Reference, Values


def _images(images: Array, geometry: ConvGeometry) -> Array:
    """[b, c, h, w], whatever the layout."""
    return images.transpose(0, 3, 1, 2) if geometry.layout == "HWC" else images


def _back(images: Array, geometry: ConvGeometry) -> Array:
    return np.ascontiguousarray(images.transpose(0, 2, 3, 1) if geometry.layout == "HWC" else images)


def _kernels(weights: Array, geometry: ConvGeometry) -> Array:
    """[g, co, ci, hk, wk] with the channels of each group."""
    if geometry.layout == "HWC":
        weights = weights.transpose(0, 3, 1, 2)
    return weights.reshape(geometry.groups, -1, *weights.shape[1:])


def _grouped(images: Array, geometry: ConvGeometry) -> Array:
    """[b, g, c, h, w] of images in the layout."""
    chw = _images(images, geometry)
    return chw.reshape(len(chw), geometry.groups, -1, *chw.shape[2:])


def _windows(images: Array, geometry: ConvGeometry) -> Array:
    """[..., h, w] -> view [..., ho, wo, hk, wk]."""
    up, down, left, right = geometry.pads
    (dh, dw), (sh, sw) = geometry.dilations, geometry.strides
    margins = [(0, 0)] * (images.ndim - 2) + [(up, down), (left, right)]
    reach = (dh * (geometry.hk - 1) + 1, dw * (geometry.wk - 1) + 1)
    windows = sliding_window_view(np.pad(images, margins), reach, axis=(-2, -1))
    return windows[..., ::sh, ::sw, ::dh, ::dw][..., : geometry.ho, : geometry.wo, :, :]


def correlate(geometry: ConvGeometry, images: Array, weights: Array) -> Array:
    """The convolution of images with weights, all in the layout."""
    windows = _windows(_grouped(images, geometry), geometry)
    result = np.einsum("bgcyxhw,gochw->bgoyx", windows, _kernels(weights, geometry), optimize=True)
    return _back(result.reshape(len(images), geometry.co, geometry.ho, geometry.wo), geometry)


def correlate_with_gradient(geometry: ConvGeometry, images: Array, gradient: Array) -> Array:
    """The gradient of the weights, summed over the batch."""
    windows = _windows(_grouped(images, geometry), geometry)
    result = np.einsum("bgoyx,bgcyxhw->gochw", _grouped(gradient, geometry), windows, optimize=True)
    result = result.reshape(geometry.co, geometry.ci_of_group, geometry.hk, geometry.wk)
    ordered: Array = result.transpose(0, 2, 3, 1) if geometry.layout == "HWC" else result
    return np.ascontiguousarray(ordered)


def scatter(geometry: ConvGeometry, gradient: Array, weights: Array) -> Array:
    """The adjoint of `correlate`: each output pixel scatters its gradient through the kernel."""
    up, down, left, right = geometry.pads
    (dh, dw), (sh, sw) = geometry.dilations, geometry.strides
    height, width = geometry.hi + up + down, geometry.wi + left + right
    padded = np.zeros((len(gradient), geometry.groups, geometry.ci_of_group, height, width), gradient.dtype)
    taps = np.einsum(
        "bgoyx,gochw->hwbgcyx", _grouped(gradient, geometry), _kernels(weights, geometry), optimize=True
    )
    for h in range(geometry.hk):
        for w in range(geometry.wk):
            rows = slice(h * dh, h * dh + (geometry.ho - 1) * sh + 1, sh)
            columns = slice(w * dw, w * dw + (geometry.wo - 1) * sw + 1, sw)
            padded[..., rows, columns] += taps[h, w]
    inner = padded[..., up : up + geometry.hi, left : left + geometry.wi]
    return _back(inner.reshape(len(gradient), geometry.ci, geometry.hi, geometry.wi), geometry)


_Map = Callable[[ConvGeometry, Array, Array], Array]


def references(
    forth: _Map, back: _Map, *, transposed: bool = False
) -> tuple[Reference, Reference, Reference]:
    """Of FW, WG (summed over the batch) and IG of a layer whose values go `forth` and gradients `back`."""

    def forward(op: Op, values: Values) -> Values:
        geometry = ConvGeometry.of(op.attributes)
        result = forth(geometry, values["x"], values["w"])
        if "b" in values:
            result = result + (values["b"] if geometry.layout == "HWC" else values["b"][:, None, None])
        return {"y": result}

    def weight_gradient(op: Op, values: Values) -> Values:
        geometry, x, dy = ConvGeometry.of(op.attributes), values["x"], values["dy"]
        images = (dy, x) if transposed else (x, dy)
        sums = np.sum(_images(dy, geometry), axis=(0, 2, 3))
        return {"dw": correlate_with_gradient(geometry, *images), "db": sums}

    def input_gradient(op: Op, values: Values) -> Values:
        return {"dx": back(ConvGeometry.of(op.attributes), values["dy"], values["w"])}

    return forward, weight_gradient, input_gradient


forward, weight_gradient, input_gradient = references(correlate, scatter)
