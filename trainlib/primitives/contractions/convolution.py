# SPDX-License-Identifier: Apache-2.0
"""What every convolution touches: strides, dilation, padding per side, groups, in CHW and HWC.

A depthwise convolution has as many groups as channels, a transposed one reads and writes the other way round:
its FW writes what the gradient of a convolution writes, from what that reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from trainlib.ir.access import Contraction
from trainlib.ir.graph import Op
from trainlib.ir.steps import KernelChoice, Ranges, Tensors, TileTask
from trainlib.primitives.contractions import conv_direct, conv_im2col
from trainlib.primitives.contractions.contraction import ContractionStep, Description, LoopTile
from trainlib.primitives.contractions.conv_geometry import WINDOW

CONVOLUTION = Contraction(
    y="n co ho wo",
    x="n, ci: co//co_of_group*ci_of_group + ci, hi: ho*sh + hk*dh - up, wi: wo*sw + wk*dw - left",
    w="co ci hk wk",
)

CONVOLUTION_1D = Contraction(
    y="n co wo",
    x="n, ci: co//co_of_group*ci_of_group + ci, wi: wo*sw + wk*dw - left",
    w="co ci wk",
)
"""Along one axis: the same without rows."""

CHANNELS_LAST = (0, 2, 3, 1)
"""Order of the axes of x, y and w in HWC."""

TRANSPOSED_ROLES = MappingProxyType(
    {
        "y": {"dx": "y", "dy": "x"},
        "dw": {"x": "dy", "dy": "x"},
        "dx": {"y": "dx", "x": "dy"},
    }
)
"""Of a transposed convolution: by what it writes, its roles of the tensors of the convolution."""


def _described(op: Op) -> tuple[Contraction, Mapping[str, int], Mapping[str, int]]:
    attributes = op.attributes
    groups = attributes["groups"]
    sizes = {name: attributes[name] for name in ("co", "ho", "wo", "ci", "hi", "wi", "hk", "wk")}
    symbols = {
        "co_of_group": attributes["co"] // groups,
        "ci_of_group": attributes["ci"] // groups,
        "up": attributes["pads"][0],
        "left": attributes["pads"][2],
    }
    symbols |= dict(zip(("sh", "sw"), attributes["strides"], strict=True))
    symbols |= dict(zip(("dh", "dw"), attributes["dilations"], strict=True))
    within = {"w.ci": attributes["ci"] // groups}
    text = CONVOLUTION if attributes.get("rank", 2) == 2 else CONVOLUTION_1D
    return text, {"n": attributes["batch"], **sizes, **within}, symbols


def _orders(op: Op) -> Mapping[str, tuple[int, ...]]:
    return dict.fromkeys("xyw", CHANNELS_LAST) if op.attributes["layout"] == "HWC" else {}


DESCRIPTION = Description(_described, _orders)
"""Ops that carry the attributes of `ConvGeometry` and a batch."""


@dataclass(frozen=True)
class ConvolutionStep(ContractionStep):
    """A step of a convolution: a matmul on patches that `im2col` of its op says who unrolls, or direct loops.

    `loops` are other direct loops than the general ones (`conv_direct`).
    """

    loops: str = ""

    def uncut(self, op: Op) -> tuple[str, ...]:
        """The kernel window; in direct loops of a weight gradient of groups the channels of a group."""
        grouped = op.step == "WG" and op.attributes["groups"] > 1
        return (*WINDOW, "ci") if grouped and _unrolled_by(op) == "none" else WINDOW

    def same_calls(self, op: Op) -> bool:
        """Where the cores unroll: what the DMA has yet to complete depends on the place."""
        return _unrolled_by(op) == "cores"

    def meeting(self, op: Op, tensors: Tensors) -> Sequence[tuple[str, ...]]:
        """With rows and columns of what the DMA unrolls: whether cores complete a patch depends on both."""
        met = super().meeting(op, tensors)
        if _unrolled_by(op) != "dma":
            return met
        return [*met, ("hi", "wi") if op.step == "IG" else ("ho", "wo")]

    def tile(self, op: Op, tensors: Tensors, ranges: Ranges, choice: KernelChoice) -> TileTask:
        """By the kernels that are chosen."""
        tile = LoopTile(self.form(op, tensors), ranges, choice)
        return conv_direct.task(tile, self.loops) if _unrolled_by(op) == "none" else conv_im2col.task(tile)

    def default_kernel(self, op: Op) -> str:
        """The naive row-parallel one, PULP-TrainLib's own default; none of direct loops."""
        return "" if _unrolled_by(op) == "none" else "mm"


def _unrolled_by(op: Op) -> str:
    """What unrolls the patches of an op: ``cores``, ``dma``, or ``none``."""
    return str(op.attributes.get("im2col", "none"))


def convolution_step(result: str, loops: str = "") -> ConvolutionStep:
    """The step of a convolution that writes ``y``, ``dw`` or ``dx``."""
    return ConvolutionStep(DESCRIPTION, result, loops)


def transposed_step(result: str, loops: str = "") -> ConvolutionStep:
    """The step of a transposed convolution that writes ``y``, ``dw`` or ``dx``.

    Its ops carry the geometry of the convolution from its output to its input.
    """
    adjoint = {"y": "dx", "dw": "dw", "dx": "y"}
    return ConvolutionStep(DESCRIPTION, adjoint[result], loops, renamed=TRANSPOSED_ROLES[result])
