# SPDX-License-Identifier: Apache-2.0
"""Small cases of convolutions that together touch every option."""

from __future__ import annotations

from trainlib.primitives.definition import Example

CONV2D_EXAMPLES = (
    Example({"out_channels": 3, "kernel": 3}, ((2, 6, 5),), kernels=("mm_M", "mm_unroll_2x4")),
    Example({"out_channels": 2, "kernel": 3, "padding": 1, "stride": 2}, ((3, 7, 6),)),
    Example({"out_channels": 2, "kernel": 5, "padding": 2}, ((1, 6, 7),)),
    Example({"out_channels": 2, "kernel": 1, "stride": 3}, ((2, 6, 6),)),
    Example(
        {
            "out_channels": 4,
            "kernel": [2, 3],
            "stride": [2, 1],
            "padding": [1, 0, 0, 2],
            "dilation": [1, 2],
            "groups": 2,
            "bias": True,
        },
        ((4, 6, 7),),
    ),
    Example({"out_channels": 3, "kernel": 3, "groups": 3, "bias": True, "padding": 1}, ((3, 4, 5),)),
    Example({"layout": "HWC", "out_channels": 3, "kernel": 3, "bias": True}, ((6, 5, 2),), kernels=("mm_M",)),
    Example(
        {"layout": "HWC", "out_channels": 4, "kernel": 3, "padding": [1, 2], "stride": 2, "groups": 2},
        ((5, 6, 4),),
    ),
    Example({"layout": "HWC", "out_channels": 2, "kernel": [3, 2], "dilation": 2}, ((7, 6, 2),)),
    Example({"out_channels": 3, "kernel": 3, "im2col": "dma", "padding": 1, "bias": True}, ((2, 4, 5),)),
    Example({"out_channels": 2, "kernel": 2, "im2col": "dma", "stride": 2}, ((2, 5, 4),)),
    Example({"layout": "HWC", "out_channels": 2, "kernel": 2, "im2col": "dma", "dilation": 2}, ((4, 5, 3),)),
    Example({"out_channels": 3, "kernel": 3, "im2col": "none", "bias": True}, ((2, 6, 5),)),
    Example(
        {
            "out_channels": 4,
            "kernel": 3,
            "im2col": "none",
            "padding": [1, 2, 0, 1],
            "stride": 2,
            "groups": 2,
            "bias": True,
        },
        ((4, 5, 6),),
    ),
    Example({"layout": "HWC", "out_channels": 2, "kernel": 3, "im2col": "none", "dilation": 2}, ((6, 5, 3),)),
)
