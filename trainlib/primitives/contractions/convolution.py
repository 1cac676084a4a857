# SPDX-License-Identifier: Apache-2.0
"""What every convolution touches: strides, dilation, padding per side, groups, in CHW and HWC.

A depthwise convolution has as many groups as channels, a transposed one reads and writes the other way round:
its FW writes what the gradient of a convolution writes, from what that reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from trainlib.ir.access import Contraction
from trainlib.ir.graph import Op
from trainlib.primitives.contractions.contraction import Description, Strategy, StrategyStep

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

WINDOW = ("hk", "wk")
"""Loops no tile cuts: a tile of one channel holds the whole window at 4 B per position."""

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


def convolution_step(result: str, strategy: Strategy | Callable[[Op], Strategy]) -> StrategyStep:
    """The step of a convolution that writes ``y``, ``dw`` or ``dx``."""
    return StrategyStep(DESCRIPTION, result, strategy)


def transposed_step(result: str, strategy: Strategy) -> StrategyStep:
    """The step of a transposed convolution that writes ``y``, ``dw`` or ``dx``.

    Its ops carry the geometry of the convolution from its output to its input.
    """
    adjoint = {"y": "dx", "dw": "dw", "dx": "y"}
    return StrategyStep(DESCRIPTION, adjoint[result], strategy, TRANSPOSED_ROLES[result])
