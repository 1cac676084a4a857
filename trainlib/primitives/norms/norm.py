# SPDX-License-Identifier: Apache-2.0
"""Geometry of normalisation: which elements share statistics, and which parameter belongs to which element.

Three families. ``row`` (layer, RMS): every row of the trailing dimensions; parameters per element of a row.
``group`` (group, instance): groups of channels of one sample; parameters per channel. ``batch``: every
channel over batch and space; parameters per channel. With xhat = (x - mean)·inv_std, g = dy·w and D elements:
y = w·xhat + b, dw = sum dy·xhat, db = sum dy, dx = inv_std·(g - mean(g) - xhat·mean(g·xhat)).

Statistics are fp32 whatever the dtype of the layer, the variance is the mean of squared differences (not
E[x²] - mean², which cancels for a large mean, as in PULP-TrainLib), and the saved mean and inv_std serve the
backward steps. Parameters w and b are gamma and beta.

A norm in one FW and one IG holds in L1 all elements that share a mean. In several steps (`STEPWISE`) every
sum is a step whose terms may lie in many tiles, and what is left per element a step that may be cut anywhere:
mean, mean of squared differences, inverse deviation, y; the two means of the input gradient, dx. With fixed
statistics (`FIXED`) only the latter kind is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Annotated, Any

from pydantic import Field

from configs.dtypes import FP32
from configs.errors import ShapeError
from configs.model_file import LayerSchema
from trainlib.ir.access import Index, Term
from trainlib.ir.graph import Op, Tensor
from trainlib.primitives.definition import ONES, ZEROS, Buffer, LayerPlan, Parameter, Saved, Shape
from trainlib.primitives.lowering.calls import BATCH, batch_extent

KEPT_GEOMETRIES = 256
"""Geometries of norms kept: a tile asks several times for that of its op."""

_SPACE = ("h", "w")
"""Names of the first dimensions behind the channels."""

STEPWISE = ("FW_MEAN", "FW_VAR", "FW_INV", "FW_APPLY", "WG", "IG_SUMS", "IG_APPLY")
"""Steps of a norm whose rows need not fit L1; without mean no FW_MEAN, in batch norm WG does IG_SUMS."""

BIASED = "running_biased"
"""Attribute of an op whose running variance is the biased one, as ONNX Runtime has it; ours is PyTorch's."""

FIXED = ("FW_KNOWN", "FW_APPLY", "WG", "IG_SCALE")
"""Steps of a norm with fixed statistics: there is nothing to sum but dw and db."""

Epsilon = Annotated[float, Field(gt=0, allow_inf_nan=False)]
"""What is added to a variance."""


class _NormSchema(LayerSchema):
    affine: bool = True
    """Whether a scale w and an offset b are trained."""
    eps: Epsilon = 1e-5
    """Added under the root, so that nothing is divided by 0."""


class StepwiseSchema(_NormSchema):
    """A norm whose sums may be taken tile by tile."""

    stepwise: bool = False
    """Compute the sums in separate steps, for groups (rows) larger than L1."""


class RunningSchema(_NormSchema):
    """A norm with running statistics (kept tensors, fp32)."""

    momentum: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Weight of the new statistics in the running ones."""
    fixed_statistics: bool = False
    """Normalise with the running statistics in training, too, and do not change them."""


@dataclass(frozen=True, slots=True)
class NormGeometry:
    """One norm. `shape` is that of x without the batch; `trailing` dimensions make a ``row``."""

    family: str
    batch: int
    shape: Shape
    groups: int
    trailing: int
    running: bool
    centred: bool
    fixed_statistics: bool

    @property
    def leading(self) -> Shape:
        """Dimensions of a sample that count its rows."""
        return self.shape[: len(self.shape) - self.trailing]

    @property
    def parameter_shape(self) -> Shape:
        """Shape of w and b."""
        return self.shape[len(self.leading) :] if self.family == "row" else self.shape[:1]

    @property
    def statistics_shape(self) -> Shape:
        """Shape of mean and inv_std."""
        if self.family == "batch":
            return self.shape[:1]
        return (self.batch, *(self.leading if self.family == "row" else (self.groups,)))

    @property
    def of_group(self) -> int:
        """Channels per group."""
        return self.shape[0] // self.groups

    @property
    def per_channel(self) -> bool:
        """Whether every channel of a sample has a mean of its own, as in instance norm."""
        return self.family == "group" and self.of_group == 1

    @property
    def elements(self) -> int:
        """D: elements that share one mean."""
        space = prod(self.shape[1:])
        if self.family == "row":
            return prod(self.parameter_shape)
        return space * (self.batch if self.family == "batch" else self.of_group)

    @property
    def dimensions(self) -> Mapping[str, int]:
        """What may be cut of x where no sum forbids it, with sizes; the outermost first."""
        samples = batch_extent(self.batch)
        if self.family == "row":
            rows = {"d0": self.leading[0]} if self.leading else {}
            return {**samples, **rows, "e0": self.parameter_shape[0]}
        channels = {"c": self.shape[0]} if self.family == "batch" else {"g": self.groups}
        return {**samples, **channels, **dict(zip(_SPACE, self.shape[1:], strict=False))}

    def own(self, axes: Sequence[str], *, summed: bool = False) -> Mapping[str, int]:
        """What may be cut of a result with these dimensions, or of the sums it is."""
        names = {"g" if name == "channels" else name for name in axes}
        return {name: size for name, size in self.dimensions.items() if (name in names) != summed}

    def axes(self) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        """Dimensions of x (or y, dx, dy), of the statistics and of the parameters."""
        if self.family == "row":
            rows = tuple(f"d{place}" for place in range(len(self.leading)))
            inner = tuple(f"e{place}" for place in range(self.trailing))
            return (BATCH, *rows, *inner), (BATCH, *rows), inner
        space = (*_SPACE, *(f"s{place}" for place in range(len(self.shape))))[: len(self.shape) - 1]
        if self.family == "batch":
            return (BATCH, "c", *space), ("c",), ("c",)
        return (BATCH, "channels", *space), (BATCH, "g"), ("channels",)

    def loops(self) -> Mapping[str, int]:
        """Sizes of all dimensions, and of the channels of a group."""
        image, grouped = self.axes()[0], self.family == "group"
        groups = {"g": self.groups, "of group": self.of_group} if grouped else {}
        return {**dict(zip(image, (self.batch, *self.shape), strict=True)), **groups}

    def maps(self) -> Mapping[str, Index]:
        """The channels of groups."""
        terms = Term("g", self.of_group), Term("of group")
        return {"channels": Index("channels", self.shape[0], terms)} if self.family == "group" else {}


def norm_plan(
    family: str,
    attributes: Mapping[str, Any],
    inputs: Sequence[Tensor],
    where: str,
    *,
    groups: int = 1,
    centred: bool = True,
) -> LayerPlan:
    """Parameters, statistics (running ones too), steps. ShapeError if there is nothing to normalise.

    Without a mean (not `centred`) there is no offset b either.
    """
    batch, *rest = inputs[0].shape
    shape, trailing, fixed = tuple(rest), attributes.get("axes", 0), attributes.get("fixed_statistics", False)
    groups = attributes.get("groups", groups)
    running = family == "batch" or fixed or attributes.get("running", False)
    stepwise = attributes.get("stepwise", family == "batch") and not fixed
    if family == "row" and trailing > len(shape):
        raise ShapeError(
            f"cannot normalise over {trailing} dimensions: the input has shape {shape}",
            where=where,
            cure=f"use axes: {len(shape)} or less",
        )
    if family != "row" and shape[0] % groups != 0:
        raise ShapeError(
            f"groups: {groups} does not divide the {shape[0]} channels",
            where=where,
            cure=f"use a divisor of {shape[0]}",
        )
    geometry = NormGeometry(family, batch, shape, groups, trailing, running, centred, fixed)
    if centred and geometry.elements < 2 and not fixed:
        raise ShapeError(
            "the norm is computed over one element, which sets every output to 0",
            where=where,
            cure="use a larger batch or image, fewer groups, or a norm over more dimensions",
        )
    parameters = {}
    if attributes["affine"]:
        parameters["w"] = Parameter(geometry.parameter_shape, ONES)
        if attributes.get("bias", centred):
            parameters["b"] = Parameter(geometry.parameter_shape, ZEROS)
    statistics = Saved(geometry.statistics_shape, FP32)
    roles = ["mean", "inv_std"] if centred else ["inv_std"]
    steps: tuple[str, ...] = ("FW", "WG", "IG")
    if stepwise:
        roles += ["var", "mean_g", "mean_gx"] if centred else ["var", "mean_gx"]
        missing = {*(() if centred else ("FW_MEAN",)), *(("IG_SUMS",) if family == "batch" else ())}
        steps = tuple(name for name in STEPWISE if name not in missing)
    if fixed:
        steps = FIXED
    buffers = {}
    if running:
        buffers["running_mean"] = Buffer(shape[:1], ZEROS)
        buffers["running_var"] = Buffer(shape[:1], ONES)
    return LayerPlan(
        inputs[0].shape,
        parameters,
        saved=dict.fromkeys(roles, statistics),
        buffers=buffers,
        attributes={
            **{name: getattr(geometry, name) for name in NormGeometry.__slots__},
            "eps": attributes["eps"],
            "momentum": attributes.get("momentum", 0.0),
        },
        steps=steps,
    )


OF_ELEMENTS, OF_STATISTICS, OF_PARAMETERS = range(3)
"""Which of its `NormGeometry.axes` a tensor has."""

STATISTICS = ("mean", "inv_std", "var", "mean_g", "mean_gx")
PARAMETERS = ("w", "b", "dw", "db")


_geometry = lru_cache(KEPT_GEOMETRIES)(NormGeometry)


def geometry_of(op: Op) -> NormGeometry:
    """The geometry of an op."""
    return _geometry(*[op.attributes[name] for name in NormGeometry.__slots__])
