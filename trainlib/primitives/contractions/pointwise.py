# SPDX-License-Identifier: Apache-2.0
"""Pointwise (1x1) convolution as a matmul on the image itself, without im2row; bias, CHW and HWC.

Arrangements as in PULP-TrainLib, positions = h·w:

- CHW, weights [co, ci]: FW (A=w, B=x), WG (A=dy, B=x transposed), IG (A=wᵀ by a transpose, B=dy);
- HWC in fp32, weights [ci, co]: FW (A=x, B=w), WG (A=xᵀ by a transpose, B=dy), IG (A=dy, B=wᵀ by a
  transpose);
- HWC in 16 bit, weights [co, ci]: FW (A=x, B=w transposed), WG (A=dyᵀ, B=xᵀ by two transposes, B
  transposed), IG (A=dy, B=wᵀ by a transpose, B transposed).

Where the library transposes although the matmul could read the operand as it lies (IG and 16-bit WG in HWC),
the variant `direct` does not.

The library's fp32 IG exchanges rows and columns in its transpose, right only for ci = co, and it has no bias.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from configs.model_file import LayerSchema
from configs.values import Struct
from trainlib.ir.access import Contraction
from trainlib.ir.graph import Op, Tensor
from trainlib.primitives.contractions import conv2d_reference as reference
from trainlib.primitives.contractions.contraction import (
    BIAS,
    BIAS_GRADIENT,
    ContractionStep,
    Description,
    LoopTile,
)
from trainlib.primitives.contractions.conv_calls import PARTIAL, bias_add_call, bias_sum_call
from trainlib.primitives.contractions.conv_options import image_extents, image_shape
from trainlib.primitives.definition import (
    Example,
    LayerPlan,
    LayerPrimitive,
    Positive,
    Step,
    Values,
    Variant,
    he_uniform,
    weight_and_bias,
)
from trainlib.primitives.lowering.axes import NOWHERE, Area, At, Axes, Form, Groups
from trainlib.primitives.lowering.calls import BATCH
from trainlib.primitives.lowering.pieces import TileBuilder
from trainlib.primitives.lowering.products import Each, Product, ProductLowering, turning


class _Schema(LayerSchema):
    out_channels: Positive
    """Channels of the output."""
    bias: bool = False
    """Whether each output channel has a trained bias."""


def _plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    batch, ci, height, width = image_extents("pointwise", inputs[0], where)
    co, layout = attributes["out_channels"], inputs[0].layout
    sources_first = layout == "HWC" and not inputs[0].dtype.is_narrow
    stored = (ci, co) if sources_first else (co, ci)
    carried = {
        **{"ci": ci, "hi": height, "wi": width, "co": co, "ho": height, "wo": width, "hk": 1, "wk": 1},
        **{"strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0), "groups": 1, "layout": layout},
    }
    return LayerPlan(
        image_shape(layout, batch, co, height, width),
        weight_and_bias(stored, co, attributes["bias"], he_uniform((co, ci))),
        attributes={**carried, "batch": batch, "sources_first": sources_first},
    )


POINTWISE = Contraction(y="n co ho wo", x="n ci, hi: ho, wi: wo", w="co ci")


def _described(op: Op) -> tuple[Contraction, Mapping[str, int], Mapping[str, int]]:
    sizes = {name: op.attributes[name] for name in ("co", "ho", "wo", "ci", "hi", "wi")}
    return POINTWISE, {"n": op.attributes["batch"], **sizes}, {}


def _orders(op: Op) -> Mapping[str, tuple[int, ...]]:
    images = {"x": (0, 2, 3, 1), "y": (0, 2, 3, 1)} if op.attributes["layout"] == "HWC" else {}
    return images | ({"w": (1, 0)} if op.attributes["sources_first"] else {})


def _published(op: Op) -> tuple[str, ...]:
    """What PULP-TrainLib transposes although the matmul could read it as it lies."""
    if op.attributes["layout"] != "HWC" or op.step == "FW":
        return ()
    return ("w",) if op.step == "IG" else (() if op.attributes["sources_first"] else ("x",))


class _Bias(Struct, frozen=True):
    """Added to the image `y` of a sample, or the sums of all images `dy` that are its gradient."""

    image: str

    def used(self, area: Area) -> Axes:
        """No scratch."""
        return ()

    def run(self, area: Area, build: TileBuilder, at: At = NOWHERE) -> None:
        """The call of a sample, or of a tile."""
        tile = LoopTile(area.form, area.extents, build.choice)
        image = area.lies(self.image, at)[0]
        build.call(lambda: bias_add_call(tile, image) if self.image == "y" else bias_sum_call(tile))


@dataclass(frozen=True)
class _Products(ProductLowering, ContractionStep):
    """A matmul per sample on images as they lie; a weight gradient adds samples up.

    What lies the other way round is transposed first, and what is `published` so.
    """

    published: Callable[[Op], Axes]

    def default_kernel(self, op: Op) -> str:
        """The naive row-parallel one, PULP-TrainLib's own default."""
        return "mm"

    def _matrix(self, form: Form, role: str) -> tuple[Axes, Axes]:
        """Rows and columns of a tensor as it is stored, of one sample."""
        axes = form.axes(role)[not role.endswith("w") :]
        cut = len(axes) - 1 if form.op.attributes["layout"] == "HWC" or len(axes) == 2 else 1
        return axes[:cut], axes[cut:]

    def _arranged(self, form: Form) -> tuple[str, str, Axes, list[str]]:
        """A, B, the dimension that is multiplied away, and what is transposed."""
        one, other, rows = *form.op.reads[:2], self._matrix(form, self.result)[0]
        a, b = (one, other) if rows in self._matrix(form, one) else (other, one)
        inner = next(axes for axes in self._matrix(form, a) if axes != rows)
        upright = {a: self._matrix(form, a)[0] == rows, b: b not in self.published(form.op)}
        return a, b, inner, [role for role, stays in upright.items() if not stays]

    def scratch(self, form: Form) -> Mapping[str, Groups]:
        """What is transposed, and the weight gradient of one further sample."""
        turned = {f"{role}_transposed": self._matrix(form, role)[::-1] for role in self._arranged(form)[-1]}
        return {**turned, PARTIAL: self._matrix(form, self.result)} if self.result == "dw" else turned

    def kernels(self, form: Form) -> Sequence[Each]:
        """What all samples share is transposed once."""
        a, b, inner, turned = self._arranged(form)
        rows, columns = self._matrix(form, self.result)
        stored_b = self._matrix(form, b)
        names = {role: f"{role}_transposed" if role in turned else role for role in (a, b)}
        trans_b = (stored_b[0] if b in turned else stored_b[1]) != columns
        over, term = ((BATCH,), PARTIAL) if self.result == "dw" else ((), "")
        product = Product(names[a], names[b], self.result, rows, inner, columns, trans_b, term, over)
        turns = {role: turning(role, names[role], *self._matrix(form, role)) for role in turned}
        shared = [turns.pop("w")] if "w" in turns else []
        added = [Each((), [_Bias("y")], ("ci",))] if BIAS in form.op.reads else []
        summed = [Each((), [_Bias("dy")], ("ci",))] if BIAS_GRADIENT in form.op.writes else []
        return Each((), shared), Each((BATCH,), [*turns.values(), product, *added]), *summed


def _step(result: str, *, direct: bool = False) -> ContractionStep:
    return _Products(Description(_described, _orders), result, (lambda op: ()) if direct else _published)


def _direct(result: str) -> dict[str, Variant]:
    """The step without the transposes it does not need, where there are any."""

    def offered(attributes: Mapping[str, Any]) -> bool:
        return attributes["layout"] == "HWC" and (result == "dx" or not attributes["sources_first"])

    return {"direct": Variant(_step(result, direct=True), offered, "layout: HWC")}


def _reference(op: Op, values: Values) -> dict[str, Any]:
    """The values with weights as those of a 1x1 convolution in the layout."""
    result = dict(values)
    if "w" in values:
        weights = values["w"].T if op.attributes["sources_first"] else values["w"]
        hwc = op.attributes["layout"] == "HWC"
        result["w"] = weights[:, None, None, :] if hwc else weights[:, :, None, None]
    return result


def _weight_gradient(op: Op, values: Values) -> Values:
    results = dict(reference.weight_gradient(op, values))
    gradient = results["dw"].reshape(op.attributes["co"], op.attributes["ci"])
    results["dw"] = np.ascontiguousarray(gradient.T) if op.attributes["sources_first"] else gradient
    return results


PRIMITIVE = LayerPrimitive(
    name="pointwise",
    schema=_Schema,
    plan=_plan,
    steps=(
        Step.of(
            "FW", "x w b? -> y", lambda op, values: reference.forward(op, _reference(op, values)), _step("y")
        ),
        Step.of("WG", "x dy -> dw db?", _weight_gradient, _step("dw"), _direct("dw")),
        Step.of(
            "IG",
            "dy w -> dx",
            lambda op, values: reference.input_gradient(op, _reference(op, values)),
            _step("dx"),
            _direct("dx"),
        ),
    ),
    examples=(
        Example({"out_channels": 3}, ((5, 4, 3),), kernels=("mm_M", "mm_unroll_2x4")),
        Example({"out_channels": 4, "bias": True}, ((2, 3, 5),)),
        Example({"layout": "HWC", "out_channels": 3}, ((4, 3, 5),), kernels=("mm_M",)),
        Example({"layout": "HWC", "out_channels": 5, "bias": True}, ((3, 2, 4),)),
        Example({"layout": "HWC", "out_channels": 3, "bias": True, "variant": "direct"}, ((3, 2, 4),)),
    ),
    layouts=("CHW", "HWC"),
)
