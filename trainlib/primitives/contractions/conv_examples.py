# SPDX-License-Identifier: Apache-2.0
"""Small cases of convolutions that together touch every option, and those that must be refused."""

from __future__ import annotations

from typing import Any

from trainlib.primitives.definition import Example, Refused, Shape

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

CONV2D_REFUSED = (
    Refused({"out_channels": 2, "kernel": 9}, ((1, 8, 8),), "kernel 9x9 is larger than the padded input"),
    Refused({"out_channels": 2, "kernel": 3, "padding": 3}, ((1, 8, 8),), "padding 3 is not smaller"),
    Refused({"out_channels": 0, "kernel": 3}, ((1, 8, 8),), "out_channels"),
    Refused({"out_channels": 2, "kernel": 0}, ((1, 8, 8),), "kernel 0 is less than 1"),
    Refused({"out_channels": 2, "kernel": 3, "stride": 0}, ((1, 8, 8),), "stride 0 is less than 1"),
    Refused({"out_channels": 2, "kernel": 3, "dilation": [1, 0]}, ((1, 8, 8),), "dilation .* is less than 1"),
    Refused({"out_channels": 2, "kernel": 3, "dilation": 4}, ((1, 8, 8),), "dilated to 9x9 is larger"),
    Refused({"out_channels": 2, "kernel": 3, "padding": -1}, ((1, 8, 8),), "padding -1 is negative"),
    Refused({"out_channels": 2, "kernel": 3, "padding": [1, 1, 1]}, ((1, 8, 8),), "is not one number"),
    Refused({"out_channels": 2, "kernel": [3, 3, 3]}, ((1, 8, 8),), "neither one number nor"),
    Refused({"out_channels": 4, "kernel": 3, "groups": 2}, ((3, 8, 8),), "does not divide the 3 input"),
    Refused({"out_channels": 3, "kernel": 3, "groups": 2}, ((4, 8, 8),), "does not divide the 3 output"),
    Refused({"out_channels": 2, "kernel": 3, "im2col": "gpu"}, ((1, 8, 8),), "im2col"),
    Refused(
        {"out_channels": 2, "kernel": 3, "groups": 2, "im2col": "dma"}, ((2, 8, 8),), "DMA knows one group"
    ),
    Refused({"out_channels": 2, "kernel": 3}, ((8,),), "needs an image"),
)


def _window(draw: Any, st: Any) -> dict[str, Any]:
    kernel = [draw(st.integers(1, 4)) for _ in range(2)]
    dilation = [draw(st.integers(1, 2)) for _ in range(2)]
    reach = [spread * (size - 1) + 1 for spread, size in zip(dilation, kernel, strict=True)]
    padding = [draw(st.integers(0, reach[side // 2] - 1)) for side in range(4)]
    stride = [draw(st.integers(1, 3)) for _ in range(2)]
    return {"kernel": kernel, "dilation": dilation, "padding": padding, "stride": stride}


def _reach(window: dict[str, Any]) -> list[int]:
    return [
        spread * (size - 1) + 1 for spread, size in zip(window["dilation"], window["kernel"], strict=True)
    ]


def _image(draw: Any, st: Any, layout: str, channels: int, least: list[int]) -> Shape:
    height, width = (draw(st.integers(max(1, size), max(1, size) + 4)) for size in least)
    return (height, width, channels) if layout == "HWC" else (channels, height, width)


def _smallest(window: dict[str, Any]) -> list[int]:
    """The least rows and columns of an image the kernel fits."""
    pads = window["padding"]
    margins = (pads[0] + pads[1], pads[2] + pads[3])
    return [size - margin for size, margin in zip(_reach(window), margins, strict=True)]


def conv2d_cases() -> Any:
    """A hypothesis strategy of convolutions: kernel, stride, pads, dilation, groups, layout, im2col."""
    from hypothesis import strategies as st

    @st.composite
    def cases(draw: Any) -> Example:
        window, layout = _window(draw, st), draw(st.sampled_from(["CHW", "HWC"]))
        groups = draw(st.integers(1, 3))
        options = {
            **window,
            "out_channels": groups * draw(st.integers(1, 3)),
            "groups": groups,
            "bias": draw(st.booleans()),
            "im2col": draw(st.sampled_from(["cores", "none", *(["dma"] if groups == 1 else [])])),
            "layout": layout,
        }
        shape = _image(draw, st, layout, groups * draw(st.integers(1, 3)), _smallest(window))
        return Example(options, (shape,))

    return cases()


def depthwise_cases() -> Any:
    """A hypothesis strategy of depthwise convolutions."""
    from hypothesis import strategies as st

    @st.composite
    def cases(draw: Any) -> Example:
        window, layout = _window(draw, st), draw(st.sampled_from(["CHW", "HWC"]))
        options = {**window, "bias": draw(st.booleans()), "layout": layout}
        if draw(st.booleans()):
            options = {"kernel": window["kernel"], "bias": options["bias"], "variant": "as-published"}
            window, layout = {**window, "stride": [1, 1], "dilation": [1, 1], "padding": [0] * 4}, "CHW"
        return Example(options, (_image(draw, st, layout, draw(st.integers(1, 5)), _smallest(window)),))

    return cases()


def transpose_cases() -> Any:
    """A hypothesis strategy of transposed convolutions whose output is not empty."""
    from hypothesis import strategies as st

    @st.composite
    def cases(draw: Any) -> Example:
        window, layout = _window(draw, st), draw(st.sampled_from(["CHW", "HWC"]))
        groups = draw(st.integers(1, 2))
        limits = [max(pair) for pair in zip(window["stride"], window["dilation"], strict=True)]
        extra = [draw(st.integers(0, limit - 1)) for limit in limits]
        options = {
            **window,
            "output_padding": extra,
            "out_channels": groups * draw(st.integers(1, 3)),
            "groups": groups,
            "bias": draw(st.booleans()),
            "layout": layout,
        }
        # (size - 1)·stride - pads + reach + extra >= 1
        least = [
            1 + max(0, -(-(1 - spare - more) // stride))
            for spare, more, stride in zip(_smallest(window), extra, window["stride"], strict=True)
        ]
        return Example(options, (_image(draw, st, layout, groups * draw(st.integers(1, 3)), least),))

    return cases()


def pointwise_cases() -> Any:
    """A hypothesis strategy of pointwise convolutions."""
    from hypothesis import strategies as st

    @st.composite
    def cases(draw: Any) -> Example:
        layout = draw(st.sampled_from(["CHW", "HWC"]))
        options = {"out_channels": draw(st.integers(1, 6)), "bias": draw(st.booleans()), "layout": layout}
        if layout == "HWC" and draw(st.booleans()):
            options["variant"] = "direct"
        return Example(options, (_image(draw, st, layout, draw(st.integers(1, 6)), [1, 1]),))

    return cases()
