# SPDX-License-Identifier: Apache-2.0
"""Tiles of the norms in one FW and one IG, and their weight gradient, of any family.

Forks: one per tile, but RMS has two in FW (PULP-TrainLib's sum and scale), instance and group norm have one
per sample, as the library works on one. Rows (instances, groups, channels) go over the cores; dw of a row
norm goes over its columns. Loops are the library's instance norm, and estimates of its other norms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np

from configs.values import replace
from trainlib.ir.access import Index
from trainlib.ir.graph import Op
from trainlib.ir.steps import Array, Extent, KernelCall, KernelChoice, Region, Tensors, part
from trainlib.primitives.definition import Shape, Values
from trainlib.primitives.formulas import Formula, parameters, wide
from trainlib.primitives.lowering.axes import Area, Axes, AxesLowering
from trainlib.primitives.lowering.kernel_call import Piece, kernel_call
from trainlib.primitives.lowering.pieces import TileBuilder
from trainlib.primitives.lowering.row_loop import RowLoop
from trainlib.primitives.norms import norm_formulas as formulas
from trainlib.primitives.norms.norm import BIASED, PARAMETERS, STATISTICS, Rows, geometry_of

Regions = tuple[Region, Region, Region]
"""Boxes of x, of the statistics and of the parameters."""

MARKED = ("w", "b", "dw", "db", "mean_g", "mean_gx")
"""Roles that a norm may lack, and so belong to the name of a kernel."""

Nest = tuple[str, dict[str, int], dict[str, Piece]]
"""Name, sizes and arrays of the nest of a call."""


def _size(extent: Extent) -> int:
    return extent[1] - extent[0]


class NormLowering(AxesLowering):
    """What the steps share: a call per tile or per sample, and how its nest sees the arrays.

    Extents are those of a step that has its means to itself. `formula` is the row program, of what lies in
    the arrays `streams` of the nest.
    """

    formula: Formula
    streams: Mapping[str, str]
    of_parameters = False
    """Whether a row of the program shares a parameter, not a mean."""
    across = False
    """Whether the elements of a row go over the cores."""

    def extents(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """Samples and rows or groups, or channels."""
        return geometry_of(op).result_extents()

    def axes_of(self, op: Op, tensors: Tensors, role: str) -> Axes:
        """Those of x, of the statistics or of the parameters."""
        image, statistics, parameters = geometry_of(op).axes()
        if role in STATISTICS:
            return statistics
        return parameters if role in PARAMETERS or role.startswith("running") else image

    def dimensions(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """With all of the norm."""
        return {**super().dimensions(op, tensors), **geometry_of(op).loops()}

    def maps(self, op: Op, tensors: Tensors) -> Mapping[str, Index]:
        """The channels of groups."""
        return geometry_of(op).maps()

    def read(self, op: Op, sample: int | None) -> Sequence[str]:
        """Roles a call reads."""
        return op.reads

    def written(self, op: Op) -> Sequence[str]:
        """Roles a call writes."""
        return op.writes

    def nest(self, op: Op, tensors: Tensors, image: Region, sample: int | None) -> Nest:
        """What a call is priced by."""
        raise NotImplementedError

    def results(self, op: Op, values: Values, *, whole: bool = False) -> Values:
        """What a call makes of what it reads, by role; or of `whole` tensors."""
        box = values["x" if "x" in values else "dy"]
        rows = Rows(geometry_of(op), box, self.of_parameters)
        known = parameters(self.formula)
        seen = {role: rows.seen(role, array) for role, array in values.items() if role in known}
        made = self.formula(**seen, **self._numbers(op, whole=whole))
        return {role: rows.stored(role, array) for role, array in made.items() if role in op.writes}

    def reference(self, op: Op, values: Values) -> Values:
        """The same on whole tensors, in their dtype."""
        return self.results(op, values, whole=True)

    def _numbers(self, op: Op, *, whole: bool = False, samples: int = 0) -> dict[str, Any]:
        geometry, count = geometry_of(op), geometry_of(op).elements
        known = {
            "eps": op.attributes["eps"],
            "momentum": op.attributes["momentum"],
            "count": float(count),
            "unbiased": 1.0 if BIASED in op.attributes or count < 2 else count / (count - 1),
            "averaged": float(samples),
            "one_inverse": geometry.family == "batch" or (geometry.family == "group" and not whole),
            "one_w": geometry.family == "batch" or geometry.per_channel,
            "of_batch": geometry.family == "batch",
        }
        return {name: number for name, number in known.items() if name in parameters(self.formula)}

    def _program(self, op: Op, image: Region, sample: int | None) -> RowLoop:
        """What a call computes, as C is made of it."""
        outer: tuple[str, ...]
        inner: tuple[str, ...]
        geometry, sizes, known = geometry_of(op), self.sizes(op, image), parameters(self.formula)
        letters = {role: letter for letter, role in self.arrays_of(op).items()}
        read = [role for role in self.read(op, sample) if role in known]
        written, numbers = self.written(op), self._numbers(op)
        fixed = {name: numbers.pop(name) for name in ("one_inverse", "one_w", "of_batch") if name in numbers}
        outer, inner, of_mean, of_parameter = ("rows",), ("elements",), "r", "r"
        image_place = "r*elements + i"
        if geometry.family == "row" and self.of_parameters:
            outer, inner, image_place, of_mean = ("elements",), ("rows",), "i*elements + r", "i"
        elif geometry.family == "row":
            of_parameter = "i"
        elif geometry.family == "batch":
            inner, image_place = ("segments", "elements"), "r*elements + s*rows*elements + i"
        elif not geometry.per_channel:
            image_place, of_parameter = "r*segments*elements + s*elements + i", "r*segments + s"
            outer, inner = (
                (("rows", "segments"), inner) if self.of_parameters else (outer, ("segments", *inner))
            )
        kinds = {**dict.fromkeys(STATISTICS, of_mean), **dict.fromkeys(PARAMETERS, of_parameter)}
        family = "instance" if geometry.per_channel else geometry.family
        words = [family, *(role for role in dict.fromkeys((*read, *written)) if role in MARKED)]
        words += ["adds"] * (not {*read}.isdisjoint(written)) + ["rms"] * (not geometry.centred)
        return RowLoop(
            _of_roles(partial(self.formula, **fixed), read, written),
            "".join(letters[role] for role in read),
            "".join(letters[role] for role in written),
            {letters[role]: kinds.get(role, image_place) for role in (*read, *written)},
            rows=outer,
            elements=inner,
            sizes={name: sizes[name] for name in ("rows", "segments", "elements")},
            numbers=numbers,
            mark="".join(f"_{word}" for word in words),
            across=self.across,
            wide=True,
        )

    def arrays_of(self, op: Op) -> Mapping[str, str]:
        """Roles in the arrays of the nest."""
        return self.streams

    def calls(self, op: Op, tensors: Tensors, regions: Regions, choice: KernelChoice) -> list[KernelCall]:
        """One per tile, or per sample."""
        geometry, image = geometry_of(op), regions[0]
        samples = range(_size(image[0])) if geometry.family == "group" else (None,)
        return [self._call(op, tensors, image, sample, choice) for sample in samples]

    def _call(
        self, op: Op, tensors: Tensors, image: Region, sample: int | None, choice: KernelChoice
    ) -> KernelCall:
        reads, writes = self.read(op, sample), self.written(op)

        def function(arrays: Sequence[Array]) -> tuple[Array, ...]:
            made = self.results(op, dict(zip(reads, arrays, strict=True)))
            return tuple(made[role] for role in writes)

        nest, buffers = self.nest(op, tensors, image, sample), (_named(reads, sample), _named(writes, sample))
        program = self._program(op, image, sample)
        return kernel_call(choice, *nest, *buffers, function, details={"rows": program})

    def compute(self, area: Area, build: TileBuilder) -> None:
        """Boxes of x, of the statistics and of the parameters that belong together."""
        kinds = geometry_of(area.op).axes()
        image, statistics, parameters = (tuple([area.extents[axis] for axis in axes]) for axes in kinds)
        regions = image, statistics, parameters
        build.later(lambda: self.calls(area.op, area.tensors, regions, build.choice))

    def sizes(self, op: Op, image: Region) -> dict[str, int]:
        """Rows, segments of a row that lie apart or have another parameter, elements of a segment; flags.

        Flags decide between variants of a nest.
        """
        geometry, counts = geometry_of(op), [_size(extent) for extent in image]
        flags = {
            "affine": int("w" in op or "dw" in op),
            "biased": int("db" in op),
            "per_element": int(geometry.family == "row" and "w" in op),
        }
        if geometry.family == "row":
            elements = prod(counts[1 + len(geometry.leading) :])
            return {"rows": prod(counts) // elements, "segments": 1, "elements": elements, **flags}
        space = prod(counts[2:])
        if geometry.family == "batch":
            return {"rows": counts[1], "segments": counts[0], "elements": space, **flags}
        rows = counts[1] // geometry.of_group
        return {"rows": rows, "segments": geometry.of_group, "elements": space, **flags}

    def arrays(
        self, op: Op, tensors: Tensors, image: Region, streams: Mapping[str, str], sample: int | None
    ) -> dict[str, Piece]:
        """Strides of the arrays of a nest with indices (row, segment, element)."""
        geometry, sizes = geometry_of(op), self.sizes(op, image)
        elements = sizes["elements"]
        if geometry.family == "batch":
            strides, shared = (elements, sizes["rows"] * elements, 1), (1, 0, 0)
        elif geometry.family == "row":
            strides, shared = (elements, elements, 1), (0, 0, 1)
        else:
            strides, shared = (sizes["segments"] * elements, elements, 1), (sizes["segments"], 1, 0)
        placed = {}
        for name, role in streams.items():
            kind = (1,) if role in STATISTICS else shared if role in PARAMETERS else strides
            held = role if role in op else op.writes[0]  # a stand-in the nest does not touch in this call
            placed[name] = Piece(_buffer(held, sample), strides=kind, dtype=tensors[op[held]].dtype)
        return placed


def _of_roles(formula: Formula, reads: Sequence[str], writes: Sequence[str]) -> Formula:
    """The same of arrays in this order."""

    def ordered(*arrays: Any, **numbers: Any) -> Any:
        made = formula(**dict(zip(reads, arrays, strict=True)), **numbers)
        return tuple(made[role] for role in writes) if len(writes) > 1 else made[writes[0]]

    return ordered


def _buffer(role: str, sample: int | None) -> str:
    """The buffer of a role in the call of one sample; parameters belong to all samples."""
    return role if sample is None or role in PARAMETERS else part(role, sample, sample + 1)


def _named(roles: Sequence[str], sample: int | None) -> tuple[str, ...]:
    """The buffers of these roles in the call of one sample."""
    return tuple(_buffer(role, sample) for role in roles)


def _by_rows(arrays: Mapping[str, Piece], row: int, matrices: str, vectors: str = "") -> dict[str, Piece]:
    """Arrays as matrices of rows of so many elements, and vectors."""
    strides = {**dict.fromkeys(matrices, (row, 1)), **dict.fromkeys(vectors, (1,))}
    return {name: replace(arrays[name], strides=steps) for name, steps in strides.items()}


def _instance_nest(
    nest: str, sizes: Mapping[str, int], arrays: Mapping[str, Piece], matrices: str, vectors: str = ""
) -> Nest:
    """The library's nest for groups of one channel; the other arrays are there, but not counted."""
    row = sizes["elements"]
    placed = {**arrays, **_by_rows(arrays, row, matrices, vectors)}
    return nest, {"channels": sizes["rows"], "elements": row}, placed


class NormForward(NormLowering):
    """FW: y, saved statistics, running statistics."""

    formula = staticmethod(formulas.forward)
    streams = MappingProxyType({"X": "x", "Y": "y", "M": "mean", "R": "inv_std", "W": "w", "B": "b"})

    def read(self, op: Op, sample: int | None) -> Sequence[str]:
        """All but the running statistics."""
        return tuple(role for role in ("x", "w", "b") if role in op)

    def written(self, op: Op) -> Sequence[str]:
        """All but the running statistics."""
        return "y", "mean", "inv_std"

    def calls(self, op: Op, tensors: Tensors, regions: Regions, choice: KernelChoice) -> list[KernelCall]:
        """Running statistics behind all samples."""
        geometry = geometry_of(op)
        if not geometry.centred:
            return [step._call(op, tensors, regions[0], None, choice) for step in (RMS, APPLY)]
        calls = super().calls(op, tensors, regions, choice)
        return [*calls, *_RUNNING_AVERAGE.calls(op, tensors, regions, choice)] if geometry.running else calls

    def nest(self, op: Op, tensors: Tensors, image: Region, sample: int | None) -> Nest:
        """The library's instance norm, or an estimate."""
        sizes, arrays = self.sizes(op, image), self.arrays(op, tensors, image, self.streams, sample)
        if geometry_of(op).per_channel:
            return _instance_nest("instnorm_fw", sizes, arrays, "XY", "W")
        return "norm_fw", sizes, arrays

    def reference(self, op: Op, values: Values) -> Values:
        """With the running statistics afterwards; in prediction they are the ones used."""
        if op.attributes.get("inference") and "running_mean" in values:
            known = known_statistics(op, values)
            return {**known, **APPLY.results(op, {**values, **known})}
        if not geometry_of(op).centred:
            inverse = RMS.results(op, values)
            return {**inverse, **APPLY.results(op, {**values, **inverse})}
        made = self.results(op, values)
        if "running_mean" not in values:
            return made
        return {**made, **_RUNNING_AVERAGE.results(op, {**made, **values})}


def known_statistics(op: Op, values: Values, shape: Shape = ()) -> Values:
    """The running statistics as those of every sample, in this shape; they stay as they are."""
    running = {role: values[role] for role in ("running_mean", "running_var")}
    stored, dtype = running["running_mean"].shape, running["running_mean"].dtype
    if not shape:
        of_samples = (len(values["x"]) if "x" in values else op.attributes["batch"],)
        shape = (*(() if geometry_of(op).family == "batch" else of_samples), *stored)
    made = formulas.known_statistics(**wide(running), eps=op.attributes["eps"])
    return {
        role: np.broadcast_to(array.astype(dtype), shape if role in STATISTICS else stored)
        for role, array in made.items()
    }


class StatisticsStep(NormLowering):
    """One fork on one number per mean, channels over the cores.

    The formula sees matrices [channels, samples], and the running statistics of the channels. `arrays` are
    those of the nest, of which `matrices` have two indices, and what lies in them.
    """

    def __init__(self, nest: str, arrays: str, matrices: str, formula: Formula, source: str = "") -> None:
        self.loop, self.matrices, self.formula, self.source = nest, matrices, formula, source or nest
        self.streams = dict(item.split(":") for item in arrays.split())

    def results(self, op: Op, values: Values, *, whole: bool = False, shape: Shape = ()) -> Values:
        """In float64; statistics in this shape."""
        shape = shape or next(values[role].shape for role in values if role in STATISTICS)
        channels = len(values["running_mean"]) if "running_mean" in values else prod(shape)
        seen = {
            role: array.reshape(-1, channels).T if role in STATISTICS else array
            for role, array in wide({role: values[role] for role in self._read(op)}).items()
        }
        made = self.formula(**seen, **self._numbers(op, samples=prod(shape) // channels))
        return {
            role: np.broadcast_to(array.T, (prod(shape) // channels, channels)).reshape(shape)
            if role in STATISTICS
            else array
            for role, array in made.items()
        }

    def _read(self, op: Op) -> Sequence[str]:
        return [role for role in parameters(self.formula) if role in op.roles]

    def calls(self, op: Op, tensors: Tensors, regions: Regions, choice: KernelChoice) -> list[KernelCall]:
        """On some statistics."""
        shape, running = tuple(map(_size, regions[1])), "running_mean" in op
        channels = _size(regions[2][0]) if running else prod(shape)
        arrays, letters = {}, dict[str, str]()
        for name, role in self.streams.items():
            steps = (channels, 1) if role in STATISTICS else (1, 0)
            held = role if role in op else "var"  # a stand-in the nest does not touch in this call
            arrays[name] = Piece(held, strides=steps if name in self.matrices else (1,))
            letters[role] = name
        reads = self._read(op)
        writes = [role for role in op.writes if role not in (*reads, "y")]

        def function(given: Sequence[Array]) -> tuple[Array, ...]:
            made = self.results(op, dict(zip(reads, given, strict=True)), shape=shape)
            return tuple(made[role].astype(np.float32) for role in writes)

        used = reads if running else ["var"]

        sizes = {"elements": channels, "samples": prod(shape) // channels}
        made = [letters.get(role, "Z") for role in (*used, *writes)]
        places = ["i*elements + r" if role in STATISTICS else "r" for role in (*used, *writes)]
        loop = RowLoop(
            _of_roles(self.formula, used, writes),
            "".join(made[: len(used)]),
            "".join(made[len(used) :]),
            dict(zip(made, places, strict=True)),
            rows=("elements",),
            elements=("samples",),
            sizes=sizes,
            numbers=self._numbers(op, samples=sizes["samples"]),
            mark="_running" * (running and self.source == "norm_inv"),
            wide=True,
        )
        details = {"rows": loop, "source": self.source}
        of_nest = {**sizes, "running": int(running)} if self.matrices else {"elements": channels}
        return [kernel_call(choice, self.loop, of_nest, arrays, reads, writes, function, details=details)]


_RUNNING_AVERAGE = StatisticsStep(
    "running_average",
    "A:running_mean B:running_var M:mean R:inv_std X:running_mean_updated Y:running_var_updated",
    "",
    formulas.running_average,
)


class _InverseOfSquares(NormLowering):
    """The first call of an RMS norm."""

    formula = staticmethod(formulas.inverse_of_squares)
    streams = MappingProxyType({"X": "x", "R": "inv_std"})

    def read(self, op: Op, sample: int | None) -> Sequence[str]:
        """Nothing else."""
        return ("x",)

    def written(self, op: Op) -> Sequence[str]:
        """Nothing else."""
        return ("inv_std",)

    def nest(self, op: Op, tensors: Tensors, image: Region, sample: int | None) -> Nest:
        """Half of the library's."""
        arrays, sizes = self.arrays(op, tensors, image, self.streams, None), self.sizes(op, image)
        return "rmsnorm_sum", sizes, _by_rows(arrays, sizes["elements"], "X", "R")


class _Apply(NormLowering):
    """y from statistics, as far as its formula goes; the second call of an RMS norm."""

    formula = staticmethod(formulas.normalised)
    streams = MappingProxyType({"X": "x", "Y": "y", "W": "w", "R": "inv_std"})
    across = True

    def read(self, op: Op, sample: int | None) -> Sequence[str]:
        """With the scale, if there is one."""
        return tuple(role for role in ("x", "inv_std", "w") if role in op)

    def written(self, op: Op) -> Sequence[str]:
        """Nothing else."""
        return ("y",)

    def nest(self, op: Op, tensors: Tensors, image: Region, sample: int | None) -> Nest:
        """The other half."""
        arrays, sizes = self.arrays(op, tensors, image, self.streams, None), self.sizes(op, image)
        return "rmsnorm_scale", sizes, _by_rows(arrays, sizes["elements"], "XY", "WR")


RMS, APPLY = _InverseOfSquares(), _Apply()


class NormWeightGradient(NormLowering):
    """WG: dw and db; channels, groups of channels or columns of a row may be cut, and sums over the rest.

    In batch norm dw and db over D are the means the input gradient needs (without w); they are kept in fp32.
    """

    formula = staticmethod(formulas.weight_gradient)
    streams = MappingProxyType(
        {
            **{"X": "x", "G": "dy", "M": "mean", "R": "inv_std"},
            **{"V": "dw", "B": "db", "P": "mean_g", "Q": "mean_gx"},
        }
    )
    of_parameters = True

    def extents(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """Channels, groups or the first dimension of a row."""
        return geometry_of(op).own(geometry_of(op).axes()[2])

    def reductions(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """Samples, the first dimension that counts the rows of a sample, rows and columns of a channel."""
        return geometry_of(op).own(geometry_of(op).axes()[2], summed=True)

    def read(self, op: Op, sample: int | None) -> Sequence[str]:
        """From the second sample on also what it adds to."""
        return (*op.reads, *(op.writes if sample else ()))

    def arrays_of(self, op: Op) -> Mapping[str, str]:
        """That of the library's instance norm has dw as W."""
        return {**self.streams, "W": "dw"} if geometry_of(op).per_channel else self.streams

    def nest(self, op: Op, tensors: Tensors, image: Region, sample: int | None) -> Nest:
        """The library's instance norm, or an estimate."""
        geometry, sizes = geometry_of(op), self.sizes(op, image)
        arrays = self.arrays(op, tensors, image, self.streams, sample)
        sizes["means"] = int("mean_gx" in op)
        if geometry.family == "row":
            columns = sizes["elements"]
            arrays = _by_rows(arrays, columns, "XG", "MRVB")
            if "mean" not in op:
                arrays["M"] = arrays["R"]
            return "norm_wg_columns", {**sizes, "columns": columns}, arrays
        if geometry.per_channel:
            plain = {"W": arrays["V"], **{name: arrays[name] for name in "XGMRB"}}
            return _instance_nest("instnorm_bw_param", sizes, plain, "XG", "W")
        return "norm_wg", sizes, arrays


class NormInputGradient(NormLowering):
    """IG: dx; samples and rows, samples and groups, or channels may be cut."""

    formula = staticmethod(formulas.input_gradient)
    streams = MappingProxyType({"X": "x", "G": "dy", "Y": "dx", "M": "mean", "R": "inv_std", "W": "w"})

    def nest(self, op: Op, tensors: Tensors, image: Region, sample: int | None) -> Nest:
        """The library's instance norm, or an estimate."""
        sizes, arrays = self.sizes(op, image), self.arrays(op, tensors, image, self.streams, sample)
        if not geometry_of(op).centred:
            arrays["M"] = arrays["R"]
        if geometry_of(op).per_channel:
            return _instance_nest("instnorm_bw_input", sizes, arrays, "XGY")
        return "norm_ig", sizes, arrays
