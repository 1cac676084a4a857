# SPDX-License-Identifier: Apache-2.0
"""Tiles of the norms in one FW and one IG, and their weight gradient, of any family.

Forks: one per tile, but RMS has two in FW (PULP-TrainLib's sum and scale), instance and group norm have one
per sample, as the library works on one. Rows (instances, groups, channels) go over the cores; dw of a row
norm goes over its columns. Loops are the library's instance norm, and estimates of its other norms.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from configs.dtypes import FP32
from trainlib.graph import Op
from trainlib.primitives.lowering.calls import NoMatmul, box
from trainlib.primitives.lowering.kernel_call import Piece, kernel_call
from trainlib.primitives.norms.norm import NormGeometry, Rows, geometry_of
from trainlib.steps import (
    Array,
    CutsReductions,
    Extent,
    Function,
    KernelCall,
    KernelChoice,
    Operand,
    Ranges,
    Region,
    Tensors,
    TileTask,
    part,
)

_STATISTICS = ("mean", "inv_std", "var", "mean_g", "mean_gx")
_PARAMETERS = ("w", "b", "dw", "db")


def _region_of(role: str, regions: tuple[Region, Region, Region]) -> Region:
    image, statistics, parameters = regions
    if role in _STATISTICS:
        return statistics
    return parameters if role in _PARAMETERS or role.startswith("running") else image


def operands_of(op: Op, roles: Sequence[str], regions: tuple[Region, Region, Region]) -> tuple[Operand, ...]:
    """The boxes of these roles; `regions` are those of x, of the statistics and of the parameters."""
    return tuple(box(op, role, *_region_of(role, regions)) for role in roles)


def _size(extent: Extent) -> int:
    return extent[1] - extent[0]


class NormLowering(NoMatmul):
    """What the steps share: how a nest sees the arrays of one call. Its extents are those of a step alone."""

    def extents(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """Samples and rows or groups, or channels."""
        return geometry_of(op).result_extents()

    def alike(self, op: Op, tensors: Tensors) -> Collection[str]:
        """All dimensions: a tile takes its part of every axis."""
        reductions = self.reductions(op, tensors) if isinstance(self, CutsReductions) else {}
        return {**self.extents(op, tensors), **reductions}

    def sizes(self, geometry: NormGeometry, image: Region) -> dict[str, int]:
        """Rows, segments of a row that lie apart or have another parameter, elements of a segment."""
        counts = [_size(extent) for extent in image]
        if geometry.family == "row":
            elements = prod(counts[1 + len(geometry.leading) :])
            return {"rows": prod(counts) // elements, "segments": 1, "elements": elements}
        space = prod(counts[2:])
        if geometry.family == "batch":
            return {"rows": counts[1], "segments": counts[0], "elements": space}
        return {"rows": counts[1] // geometry.of_group, "segments": geometry.of_group, "elements": space}

    def arrays(
        self,
        op: Op,
        tensors: Tensors,
        image: Region,
        streams: Mapping[str, str],
        sample: int | None,
    ) -> dict[str, Piece]:
        """Strides of the arrays of a nest with indices (row, segment, element)."""
        geometry = geometry_of(op)
        sizes = self.sizes(geometry, image)
        elements = sizes["elements"]
        if geometry.family == "batch":
            strides, shared = (elements, sizes["rows"] * elements, 1), (1, 0, 0)
        elif geometry.family == "row":
            strides, shared = (elements, elements, 1), (0, 0, 1)
        else:
            strides, shared = (sizes["segments"] * elements, elements, 1), (sizes["segments"], 1, 0)
        placed = {}
        for name, role in streams.items():
            kind = (1,) if role in _STATISTICS else shared if role in _PARAMETERS else strides
            held = role if role in op else op.writes[0]  # a stand-in the nest does not touch in this call
            placed[name] = Piece(_buffer(held, sample), strides=kind, dtype=tensors[op[held]].dtype)
        return placed

    def flags(self, op: Op) -> dict[str, int]:
        """What decides between variants of a nest."""
        return {
            "affine": int("w" in op or "dw" in op),
            "biased": int("db" in op),
            "per_element": int(geometry_of(op).family == "row" and "w" in op),
        }


def samples_of(geometry: NormGeometry, image: Region) -> list[int | None]:
    """The samples that have a call of their own; [None] is one call for the whole tile."""
    return list(range(_size(image[0]))) if geometry.family == "group" else [None]


def _buffer(role: str, sample: int | None) -> str:
    """The buffer of a role in the call of one sample; parameters belong to all samples."""
    return role if sample is None or role in _PARAMETERS else part(role, sample, sample + 1)


def named(roles: Sequence[str], sample: int | None) -> tuple[str, ...]:
    """The buffers of these roles in the call of one sample."""
    return tuple(_buffer(role, sample) for role in roles)


class NormForward(NormLowering):
    """FW: y, saved statistics, running statistics."""

    def tile(self, op: Op, tensors: Tensors, ranges: Ranges, choice: KernelChoice) -> TileTask:
        """Whole rows of x; running statistics behind all samples."""
        geometry = geometry_of(op)
        regions = geometry.regions(ranges)
        calls: list[KernelCall] = []
        for sample in samples_of(geometry, regions[0]):
            calls.extend(self._calls(op, tensors, regions[0], sample, choice))
        if geometry.running:
            calls.append(self._running_call(op, tensors, regions, choice))
        return TileTask(
            operands_of(op, op.reads, regions), operands_of(op, op.writes, regions), (), tuple(calls)
        )

    def _calls(
        self,
        op: Op,
        tensors: Tensors,
        image: Region,
        sample: int | None,
        choice: KernelChoice,
    ) -> list[KernelCall]:
        geometry = geometry_of(op)
        sizes = {**self.sizes(geometry, image), **self.flags(op)}
        known = [role for role in ("w", "b") if role in op]
        streams = {"X": "x", "Y": "y", "M": "mean", "R": "inv_std", "W": "w", "B": "b"}
        if not geometry.centred:
            return self._rms_calls(op, tensors, image, choice)
        if geometry.family == "group" and geometry.of_group == 1:
            nest = "instnorm_fw"
            row = sizes["elements"]
            arrays = self.arrays(op, tensors, image, {"X": "x", "Y": "y", "W": "w"}, sample)
            arrays = {
                name: replace(piece, strides=(1,) if name == "W" else (row, 1))
                for name, piece in arrays.items()
            }
            sizes = {"channels": sizes["rows"], "elements": row}
        else:
            nest = "norm_fw"
            arrays = self.arrays(op, tensors, image, streams, sample)
        reads = ("x", *known)
        writes = named(("y", "mean", "inv_std"), sample)
        function = _forward_function(op, reads)
        return [kernel_call(choice, nest, sizes, arrays, named(reads, sample), writes, function)]

    def _rms_calls(self, op: Op, tensors: Tensors, image: Region, choice: KernelChoice) -> list[KernelCall]:
        geometry = geometry_of(op)
        sizes = {**self.sizes(geometry, image), **self.flags(op)}
        row = (sizes["elements"], 1)
        kinds = {role: tensors[op[role]].dtype for role in (*op.reads, *op.writes)}
        x, y = (Piece(role, strides=row, dtype=kinds[role]) for role in "xy")
        inverse = Piece("inv_std", dtype=FP32)
        scale_role = "w" if "w" in op else "y"
        weights = Piece(scale_role, strides=(1,), dtype=kinds[scale_role])
        eps, rows = op.attributes["eps"], Rows(geometry)

        def mean_square(arrays: Sequence[Array]) -> tuple[Array, ...]:
            matrix = rows.of(arrays[0])
            inverse_root = 1 / np.sqrt((matrix * matrix).sum(axis=1) / matrix.shape[1] + eps)
            shape = arrays[0].shape[: 1 + len(geometry.leading)]
            return (inverse_root.reshape(shape).astype(np.float32),)

        def scale(arrays: Sequence[Array]) -> tuple[Array, ...]:
            parameters = rows.parameters(arrays[2] if len(arrays) > 2 else None, arrays[0])
            scaled = rows.of(arrays[0]) * arrays[1].reshape(-1, 1) * parameters
            return (rows.back(scaled, arrays[0].shape),)

        known = ("w",) if "w" in op else ()
        return [
            kernel_call(
                choice, "rmsnorm_sum", sizes, {"X": x, "R": inverse}, ("x",), ("inv_std",), mean_square
            ),
            kernel_call(
                choice,
                "rmsnorm_scale",
                sizes,
                {"X": x, "R": inverse, "W": weights, "Y": y},
                ("x", "inv_std", *known),
                ("y",),
                scale,
            ),
        ]

    def _running_call(
        self,
        op: Op,
        tensors: Tensors,
        regions: tuple[Region, Region, Region],
        choice: KernelChoice,
    ) -> KernelCall:
        """running += momentum · (new - running), the variance unbiased."""
        eps, momentum = op.attributes["eps"], op.attributes["momentum"]
        count = prod(_size(extent) for extent in regions[0]) // prod(_size(extent) for extent in regions[1])

        def function(arrays: Sequence[Array]) -> tuple[Array, ...]:
            old_mean, old_variance, mean, inverse = arrays
            variance = (1 / np.square(inverse.astype(np.float64)) - eps) * (count / (count - 1))
            new = [values.reshape(-1, len(old_mean)).mean(axis=0) for values in (mean, variance)]
            return tuple(
                (old + momentum * (fresh - old)).astype(np.float32)
                for old, fresh in zip((old_mean, old_variance), new, strict=True)
            )

        reads = ("running_mean", "running_var", "mean", "inv_std")
        writes = ("running_mean_updated", "running_var_updated")
        arrays = {name: Piece(role) for name, role in zip("ABMRXY", (*reads, *writes), strict=True)}
        sizes = {"elements": _size(regions[2][0])}
        return kernel_call(choice, "running_average", sizes, arrays, reads, writes, function)


def _forward_function(op: Op, reads: Sequence[str]) -> Function:
    geometry = geometry_of(op)
    eps, rows = op.attributes["eps"], Rows(geometry)

    def function(arrays: Sequence[Array]) -> tuple[Array, ...]:
        given = dict(zip(reads, arrays, strict=True))
        x = given["x"]
        matrix = rows.of(x)
        mean = matrix.sum(axis=1) / matrix.shape[1]
        offset = matrix - mean[:, None]
        variance = np.einsum("re,re->r", offset, offset) / matrix.shape[1]
        deviation = np.sqrt(variance + eps)
        result = (matrix - mean[:, None]) / deviation[:, None] * rows.parameters(given.get("w"), x)
        if "b" in given:
            result = result + rows.parameters(given["b"], x)
        if geometry.family == "batch":
            shape: tuple[int, ...] = (len(mean),)
        else:
            shape = x.shape[: 1 + len(geometry.leading)] if geometry.family == "row" else (len(x), -1)
        statistics = (mean.reshape(shape), (1 / deviation).reshape(shape))
        return (rows.back(result, x.shape), *(values.astype(np.float32) for values in statistics))

    return function


def given_xhat(op: Op, reads: Sequence[str], arrays: Sequence[Array]) -> tuple[dict[str, Array], Array]:
    """Arrays by role, and xhat as a matrix."""
    rows = Rows(geometry_of(op))
    values = dict(zip(reads, arrays, strict=True))
    offset = rows.of(values["x"])
    if "mean" in values:
        offset = offset - values["mean"].astype(np.float64).reshape(-1, 1)
    return values, offset * values["inv_std"].astype(np.float64).reshape(-1, 1)


class NormWeightGradient(NormLowering):
    """WG: dw and db; channels, groups of channels or columns of a row may be cut, and sums over the rest.

    In batch norm dw and db over D are the means the input gradient needs (without w); they are kept in fp32.
    """

    def extents(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """Channels, groups or the first dimension of a row."""
        return geometry_of(op).parameter_extents()

    def reductions(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """Samples, the first dimension that counts the rows of a sample, rows and columns of a channel."""
        return geometry_of(op).parameter_reductions()

    def tile(self, op: Op, tensors: Tensors, ranges: Ranges, choice: KernelChoice) -> TileTask:
        """Some parameters, what some samples and rows give to them."""
        geometry = geometry_of(op)
        regions = geometry.regions(ranges)
        calls = []
        for sample in samples_of(geometry, regions[0]):
            added = op.writes if sample else ()
            names = (*named(op.reads, sample), *added)
            nest, sizes, arrays = self._nest(op, tensors, regions[0], sample)
            function = self._function(op, added)
            calls.append(kernel_call(choice, nest, sizes, arrays, names, op.writes, function))
        return TileTask(
            operands_of(op, op.reads, regions), operands_of(op, op.writes, regions), (), tuple(calls)
        )

    def _nest(
        self, op: Op, tensors: Tensors, image: Region, sample: int | None
    ) -> tuple[str, dict[str, int], dict[str, Piece]]:
        geometry = geometry_of(op)
        sizes = {**self.sizes(geometry, image), **self.flags(op), "means": int("mean_gx" in op)}
        streams = {"X": "x", "G": "dy", "M": "mean", "R": "inv_std", "V": "dw", "B": "db"}
        streams |= {"P": "mean_g", "Q": "mean_gx"}
        arrays = self.arrays(op, tensors, image, streams, sample)
        if geometry.family == "row":
            arrays = {name: array for name, array in arrays.items() if name not in "PQ"}
            columns = sizes["elements"]
            flat = {"X": (columns, 1), "G": (columns, 1)}
            arrays = {name: replace(piece, strides=flat.get(name, (1,))) for name, piece in arrays.items()}
            if "mean" not in op:
                arrays["M"] = arrays["R"]
            return "norm_wg_columns", {**sizes, "columns": columns}, arrays
        if geometry.family == "group" and geometry.of_group == 1:
            row = sizes["elements"]
            plain = {
                "X": replace(arrays["X"], strides=(row, 1)),
                "G": replace(arrays["G"], strides=(row, 1)),
                "W": replace(arrays["V"], strides=(1,)),
            }
            return "instnorm_bw_param", {"channels": sizes["rows"], "elements": row}, plain
        return "norm_wg", sizes, arrays

    def _function(self, op: Op, added: Sequence[str]) -> Function:
        geometry = geometry_of(op)
        rows = Rows(geometry)

        def function(arrays: Sequence[Array]) -> tuple[Array, ...]:
            count = len(op.reads)
            values, xhat = given_xhat(op, op.reads, arrays[:count])
            dy, x = rows.of(values["dy"]), values["x"]
            shape = self._parameter_box(op, x)
            sums = {"dw": dy * xhat, "db": dy}
            sums |= {"mean_gx": sums["dw"] / geometry.elements, "mean_g": dy / geometry.elements}
            before = dict(zip(added, arrays[count:], strict=True))
            return tuple(
                before.get(role, np.float32(0)) + rows.parameter_sums(sums[role], shape, x)
                for role in op.writes
            )

        return function

    def _parameter_box(self, op: Op, x: Array) -> tuple[int, ...]:
        geometry = geometry_of(op)
        return x.shape[1 + len(geometry.leading) :] if geometry.family == "row" else x.shape[1:2]


class NormInputGradient(NormLowering):
    """IG: dx; samples and rows, samples and groups, or channels may be cut."""

    def tile(self, op: Op, tensors: Tensors, ranges: Ranges, choice: KernelChoice) -> TileTask:
        """Whole rows of x and dy."""
        geometry = geometry_of(op)
        regions = geometry.regions(ranges)
        calls = []
        for sample in samples_of(geometry, regions[0]):
            nest, sizes, arrays = self._nest(op, tensors, regions[0], sample)
            names, writes = named(op.reads, sample), named(op.writes, sample)
            calls.append(kernel_call(choice, nest, sizes, arrays, names, writes, self._function(op)))
        return TileTask(
            operands_of(op, op.reads, regions), operands_of(op, op.writes, regions), (), tuple(calls)
        )

    def _nest(
        self, op: Op, tensors: Tensors, image: Region, sample: int | None
    ) -> tuple[str, dict[str, int], dict[str, Piece]]:
        geometry = geometry_of(op)
        sizes = {**self.sizes(geometry, image), **self.flags(op)}
        streams = {"X": "x", "G": "dy", "Y": "dx", "M": "mean", "R": "inv_std", "W": "w"}
        arrays = self.arrays(op, tensors, image, streams, sample)
        if not geometry.centred:
            arrays["M"] = arrays["R"]
        if geometry.family == "group" and geometry.of_group == 1:
            row = sizes["elements"]
            plain = {name: replace(arrays[name], strides=(row, 1)) for name in ("X", "G", "Y")}
            return "instnorm_bw_input", {"channels": sizes["rows"], "elements": row}, plain
        return "norm_ig", sizes, arrays

    def _function(self, op: Op) -> Function:
        geometry = geometry_of(op)
        rows = Rows(geometry)

        def function(arrays: Sequence[Array]) -> tuple[Array, ...]:
            values, xhat = given_xhat(op, op.reads, arrays)
            x = values["x"]
            g = rows.of(values["dy"]) * rows.parameters(values.get("w"), x)
            along = np.einsum("re,re->r", g, xhat) / g.shape[1]
            if geometry.centred:
                g = g - g.mean(axis=1, keepdims=True)
            g = g - xhat * along[:, None]
            inverse = values["inv_std"].astype(np.float64).reshape(-1, 1)
            return (rows.back(g * inverse, x.shape),)

        return function
