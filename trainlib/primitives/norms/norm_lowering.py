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
from trainlib.ir.steps import Tensors
from trainlib.primitives.definition import Shape, Values
from trainlib.primitives.formulas import Formula, parameters, wide
from trainlib.primitives.lowering.axes import LAST, ONE, Axes, Form, Kernel
from trainlib.primitives.lowering.calls import BATCH
from trainlib.primitives.lowering.forks import EVERY, FIRST, LATER, Fork, ForkLowering
from trainlib.primitives.norms import norm_formulas as formulas
from trainlib.primitives.norms.norm import (
    BIASED,
    OF_PARAMETERS,
    OF_STATISTICS,
    PARAMETERS,
    STATISTICS,
    geometry_of,
)

MARKED = ("w", "b", "dw", "db", "mean_g", "mean_gx")
"""Roles that a norm may lack, and so belong to the name of a kernel."""

Nest = tuple[str, Mapping[str, str], Mapping[str, str], Mapping[str, int]]
"""Name, roles in the arrays, names of its sizes (if others than of the program) and flags of a nest."""

_INSTANCE = MappingProxyType({"channels": "rows", "elements": "elements"})
"""Sizes of the library's nests for groups of one channel."""


class NormLowering(ForkLowering):
    """What the steps share: a call per tile or per sample, and how its nest sees the arrays.

    `formula` is the row program, of what lies in the arrays `streams` of the nest.
    """

    formula: Formula
    streams: Mapping[str, str]
    cut = OF_STATISTICS
    """Dimensions that may be cut: those of its result, or of the means that a tile computes to itself."""
    is_sum = False
    """Whether the result is a sum over the others, which may be cut as well."""
    across = False
    """Whether the elements of a row go over the cores."""

    def extents(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """A tile of running statistics, means over the batch, has all samples of its groups."""
        geometry = geometry_of(op)
        whole = {BATCH} if geometry.running and self.cut == OF_STATISTICS and not self.is_sum else set()
        extents = geometry.own(geometry.axes()[self.cut])
        return {name: size for name, size in extents.items() if name not in whole}

    def reductions(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """What else there is of x."""
        geometry = geometry_of(op)
        return geometry.own(geometry.axes()[self.cut], summed=True) if self.is_sum else {}

    def axes_of(self, op: Op, tensors: Tensors, role: str) -> Axes:
        """Those of x, of the statistics or of the parameters."""
        image, statistics, parameters = geometry_of(op).axes()
        if role in STATISTICS:
            return statistics
        return parameters if role in PARAMETERS or role.startswith("running") else image

    def shapes(self, op: Op, values: Values) -> Mapping[str, Shape]:
        """Those of x, of the statistics or of the parameters."""
        geometry = geometry_of(op)
        kinds = {**dict.fromkeys(STATISTICS, geometry.statistics_shape)}
        kinds |= dict.fromkeys(PARAMETERS, geometry.parameter_shape)
        image = next((values[role].shape for role in ("x", "dy") if role in values), ())
        kinds |= dict.fromkeys(("running_mean_updated", "running_var_updated"), geometry.shape[:1])
        return {role: kinds.get(role, image) for role in op.writes}

    def dimensions(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """With all of the norm."""
        return {**super().dimensions(op, tensors), **geometry_of(op).loops()}

    def maps(self, op: Op, tensors: Tensors) -> Mapping[str, Index]:
        """The channels of groups."""
        return geometry_of(op).maps()

    def read(self, op: Op, *, later: bool = False) -> Sequence[str]:
        """Roles a call reads, or one behind that of the first sample."""
        return op.reads

    def written(self, op: Op) -> Sequence[str]:
        """Roles a call writes."""
        return op.writes

    def nest(self, op: Op) -> Nest:
        """What a call is priced by."""
        raise NotImplementedError

    def _numbers(self, op: Op, *, samples: int = 0) -> dict[str, Any]:
        geometry, count = geometry_of(op), geometry_of(op).elements
        known = {
            "eps": op.attributes["eps"],
            "momentum": op.attributes["momentum"],
            "count": float(count),
            "unbiased": 1.0 if BIASED in op.attributes or count < 2 else count / (count - 1),
            "averaged": float(samples),
            "one_inverse": geometry.family in ("batch", "group"),
            "one_w": geometry.family == "batch" or geometry.per_channel,
            "of_batch": geometry.family == "batch",
        }
        return {name: number for name, number in known.items() if name in parameters(self.formula)}

    def kernels(self, form: Form) -> Sequence[Kernel]:
        """One call per tile, or per sample; what the further ones add up is read by them."""
        op = form.op
        if geometry_of(op).family != "group":
            return (self.fork(form),)
        if self.read(op) == self.read(op, later=True):
            return (self.fork(form, EVERY),)
        return self.fork(form, FIRST), self.fork(form, LATER)

    def reference(self, op: Op, values: Values) -> Values:
        """Of the batch of its arrays."""
        image = next((role for role in ("x", "dy") if role in values), op.reads[0])
        of_samples = image in ("x", "dy") or geometry_of(op).family != "batch"
        batch = len(values[image]) if of_samples else op.attributes["batch"]
        return super().reference(replace(op, attributes={**op.attributes, "batch": batch}), values)

    def fork(self, form: Form, each: slice | None = None) -> Fork:
        """A call. Rows, segments of a row that lie apart or have another parameter, elements of a segment."""
        op, geometry, numbers = form.op, geometry_of(form.op), self._numbers(form.op)
        image, statistics, columns = geometry.axes()
        rows: Axes = ("rows",)
        elements: Axes = ("elements",)
        sizes: dict[str, Axes] = {"rows": statistics, "segments": (ONE,), "elements": image[2:] or (LAST,)}
        if geometry.family == "row":
            sizes["elements"] = columns
            if self.cut == OF_PARAMETERS:
                rows, elements = elements, rows
        elif geometry.family == "batch":
            sizes["segments"], elements = (BATCH,), ("segments", "elements")
        else:
            sizes["rows"] = ("g",)
            if not geometry.per_channel:
                sizes["segments"] = ("of group",)
                if self.cut == OF_PARAMETERS:
                    rows = ("rows", "segments")
                else:
                    elements = ("segments", "elements")
        read, written = self.read(op, later=each is LATER), self.written(op)
        fixed = {name: numbers.pop(name) for name in ("one_inverse", "one_w", "of_batch") if name in numbers}
        family = "instance" if geometry.per_channel else geometry.family
        words = [family, *(role for role in dict.fromkeys((*read, *written)) if role in MARKED)]
        words += ["adds"] * (not {*read}.isdisjoint(written)) + ["rms"] * (not geometry.centred)
        nest, streams, named, flags = self.nest(op)
        return Fork(
            nest,
            _with_stand_in(streams, op, op.writes[0]),
            f"{' '.join(read)} -> {' '.join(written)}",
            _of_roles(partial(self.formula, **fixed), read, written),
            sizes,
            rows,
            elements,
            numbers,
            "".join(f"_{word}" for word in words),
            self.across,
            each=each,
            flags=flags,
            named=named,
            matrix=True,
        )

    def flags(self, op: Op, **more: int) -> dict[str, int]:
        """Those that decide between variants of a nest."""
        per_element = int(geometry_of(op).family == "row" and "w" in op)
        affine, biased = int("w" in op or "dw" in op), int("db" in op)
        return {"affine": affine, "biased": biased, "per_element": per_element, **more}


def _with_stand_in(streams: Mapping[str, str], op: Op, other: str) -> str:
    """Arrays and their roles; of a role that there is not another buffer."""
    return " ".join(f"{name}:{role}" + f"={other}" * (role not in op) for name, role in streams.items())


def _of_roles(formula: Formula, reads: Sequence[str], writes: Sequence[str]) -> Formula:
    """The same of arrays in this order."""

    def ordered(*arrays: Any, **numbers: Any) -> Any:
        made = formula(**dict(zip(reads, arrays, strict=True)), **numbers)
        return tuple(made[role] for role in writes) if len(writes) > 1 else made[writes[0]]

    return ordered


def _centred(op: Op, streams: Mapping[str, str]) -> Mapping[str, str]:
    """The deviation in place of a mean that there is not."""
    others = {name: role for name, role in streams.items() if name != "M"}
    return streams if "mean" in op else {**others, "M": "inv_std"}


class NormForward(NormLowering):
    """FW: y, saved statistics, running statistics."""

    formula = staticmethod(formulas.forward)
    streams = MappingProxyType({"X": "x", "Y": "y", "M": "mean", "R": "inv_std", "W": "w", "B": "b"})

    def read(self, op: Op, *, later: bool = False) -> Sequence[str]:
        """All but the running statistics."""
        return tuple(role for role in ("x", "w", "b") if role in op)

    def written(self, op: Op) -> Sequence[str]:
        """All but the running statistics."""
        return "y", "mean", "inv_std"

    def kernels(self, form: Form) -> Sequence[Kernel]:
        """Running statistics behind all samples."""
        geometry = geometry_of(form.op)
        if not geometry.centred:
            return RMS.fork(form), APPLY.fork(form)
        return (*super().kernels(form), *(_RUNNING_AVERAGE.kernels(form) if geometry.running else ()))

    def nest(self, op: Op) -> Nest:
        """The library's instance norm, or an estimate."""
        if geometry_of(op).per_channel:
            return "instnorm_fw", self.streams, _INSTANCE, {}
        return "norm_fw", self.streams, {}, self.flags(op)

    def reference(self, op: Op, values: Values) -> Values:
        """With the running statistics afterwards; in prediction they are the ones used."""
        if op.attributes.get("inference") and "running_mean" in values:
            known = known_statistics(op, values)
            return {**APPLY.reference(op, {**values, **known}), **known}
        return super().reference(op, values)


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
    those of the nest, and what lies in them; `flags` whether it knows samples and running statistics.
    """

    def __init__(
        self, nest: str, arrays: str, formula: Formula, source: str = "", *, flags: bool = True
    ) -> None:
        self.loop, self.formula, self.source, self.flagged = nest, formula, source or nest, flags
        self.streams = dict(item.split(":") for item in arrays.split())

    def kernels(self, form: Form) -> Sequence[Kernel]:
        """Itself."""
        return (self.fork(form),)

    def fork(self, form: Form, each: slice | None = None) -> Fork:
        """On some statistics."""
        op, (_, statistics, _) = form.op, geometry_of(form.op).axes()
        running, known = "running_mean" in op, [role for role in parameters(self.formula) if role in op.roles]
        samples = statistics[:1] if running and statistics[0] == BATCH else ()
        sizes = {"samples": samples, "elements": statistics[len(samples) :]}
        reads = known if running else ["var"]
        writes = [role for role in op.writes if role not in (*known, "y")]
        unnamed = {role for role in (*reads, *writes) if role not in self.streams.values()}
        streams = {**self.streams, **dict.fromkeys("Z" * len(unnamed), *unnamed)}
        moved = [role for role in op.roles if role.startswith("running")]
        return Fork(
            self.loop,
            _with_stand_in(streams, op, "var"),
            f"{' '.join(reads)} -> {' '.join(writes)}",
            _of_roles(self.formula, reads, writes),
            sizes,
            ("elements",),
            ("samples",),
            self._numbers(op, samples=prod(form.sizes[axis] for axis in samples)),
            "_running" * (running and self.source == "norm_inv"),
            flags={"running": int(running)} if self.flagged else {},
            named={name: name for name in (sizes if self.flagged else ("elements",))},
            holds=dict.fromkeys(moved, ("elements",)),
            matrix=True,
            source=self.source,
        )


_RUNNING_AVERAGE = StatisticsStep(
    "running_average",
    "A:running_mean B:running_var M:mean R:inv_std X:running_mean_updated Y:running_var_updated",
    formulas.running_average,
    flags=False,
)


class _Half(NormLowering):
    """A call of an RMS norm, half of the library's; `moves` are the roles there may be."""

    def __init__(self, nest: str, arrays: str, formula: Formula, moves: str, *, across: bool = False) -> None:
        self.loop, self.formula, self.across = nest, formula, across
        self.streams = dict(item.split(":") for item in arrays.split())
        self.reads, self.writes = (side.split() for side in moves.split("->"))

    def read(self, op: Op, *, later: bool = False) -> Sequence[str]:
        return [role for role in self.reads if role in op]

    def written(self, op: Op) -> Sequence[str]:
        return self.writes

    def nest(self, op: Op) -> Nest:
        return self.loop, self.streams, {}, self.flags(op)


RMS = _Half("rmsnorm_sum", "X:x R:inv_std", formulas.inverse_of_squares, "x -> inv_std")
APPLY = _Half(
    "rmsnorm_scale",
    "X:x Y:y W:w R:inv_std",
    formulas.normalised,
    "x inv_std mean w b -> y",
    across=True,
)


class NormWeightGradient(NormLowering):
    """WG: dw and db; channels, groups of channels or columns of a row may be cut, and sums over the rest.

    In batch norm dw and db over D are the means the input gradient needs (without w); they are kept in fp32.
    """

    formula = staticmethod(formulas.weight_gradient)
    streams = MappingProxyType({"X": "x", "G": "dy", "M": "mean", "R": "inv_std", "V": "dw", "B": "db"})
    cut, is_sum = OF_PARAMETERS, True

    def read(self, op: Op, *, later: bool = False) -> Sequence[str]:
        """From the second sample on also what it adds to."""
        return (*op.reads, *(op.writes if later else ()))

    def nest(self, op: Op) -> Nest:
        """The library's instance norm, or an estimate."""
        geometry, flags = geometry_of(op), self.flags(op, means=int("mean_gx" in op))
        if geometry.family == "row":
            named = {name: name for name in ("rows", "segments", "elements")} | {"columns": "elements"}
            return "norm_wg_columns", _centred(op, self.streams), named, flags
        if geometry.per_channel:
            return (
                "instnorm_bw_param",
                {**{n: r for n, r in self.streams.items() if n != "V"}, "W": "dw"},
                _INSTANCE,
                {},
            )
        return "norm_wg", {**self.streams, "P": "mean_g", "Q": "mean_gx"}, {}, flags


class NormInputGradient(NormLowering):
    """IG: dx; samples and rows, samples and groups, or channels may be cut."""

    formula = staticmethod(formulas.input_gradient)
    streams = MappingProxyType({"X": "x", "G": "dy", "Y": "dx", "M": "mean", "R": "inv_std", "W": "w"})

    def nest(self, op: Op) -> Nest:
        """The library's instance norm, or an estimate."""
        if geometry_of(op).per_channel:
            return "instnorm_bw_input", self.streams, _INSTANCE, {}
        return "norm_ig", _centred(op, self.streams), {}, self.flags(op)
