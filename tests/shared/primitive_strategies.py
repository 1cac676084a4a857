# SPDX-License-Identifier: Apache-2.0
"""Hypothesis strategies of small layers, any shape and option, by primitive: what no list of examples has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from configs.dtypes import INT32
from trainlib.primitives.definition import DrawnInput, Example, Shape

SMALL = st.integers(1, 5)
LAYOUTS = st.sampled_from(["CHW", "HWC"])
EXPONENTIALS = ("exact", "schraudolph", "taylor")


# Windows


def window(draw: Any) -> dict[str, Any]:
    kernel = [draw(st.integers(1, 4)) for _ in range(2)]
    dilation = [draw(st.integers(1, 2)) for _ in range(2)]
    reach = [spread * (size - 1) + 1 for spread, size in zip(dilation, kernel, strict=True)]
    padding = [draw(st.integers(0, reach[side // 2] - 1)) for side in range(4)]
    stride = [draw(st.integers(1, 3)) for _ in range(2)]
    return {"kernel": kernel, "dilation": dilation, "padding": padding, "stride": stride}


def image(draw: Any, layout: str, channels: int, least: list[int]) -> Shape:
    height, width = (draw(st.integers(max(1, size), max(1, size) + 4)) for size in least)
    return (height, width, channels) if layout == "HWC" else (channels, height, width)


def smallest(window: dict[str, Any]) -> list[int]:
    """The least rows and columns of an image the kernel fits."""
    pads = window["padding"]
    margins = (pads[0] + pads[1], pads[2] + pads[3])
    return [
        spread * (size - 1) + 1 - margin
        for spread, size, margin in zip(window["dilation"], window["kernel"], margins, strict=True)
    ]


@st.composite
def conv2d(draw: Any) -> Example:
    own, layout = window(draw), draw(LAYOUTS)
    groups = draw(st.integers(1, 3))
    options = {
        **own,
        "out_channels": groups * draw(st.integers(1, 3)),
        "groups": groups,
        "bias": draw(st.booleans()),
        "im2col": draw(st.sampled_from(["cores", "none", *(["dma"] if groups == 1 else [])])),
        "layout": layout,
    }
    return Example(options, (image(draw, layout, groups * draw(st.integers(1, 3)), smallest(own)),))


@st.composite
def depthwise(draw: Any) -> Example:
    own, layout = window(draw), draw(LAYOUTS)
    options = {**own, "bias": draw(st.booleans()), "layout": layout}
    if draw(st.booleans()):
        options = {"kernel": own["kernel"], "bias": options["bias"], "variant": "as-published"}
        own, layout = {**own, "stride": [1, 1], "dilation": [1, 1], "padding": [0] * 4}, "CHW"
    return Example(options, (image(draw, layout, draw(SMALL), smallest(own)),))


@st.composite
def conv_transpose2d(draw: Any) -> Example:
    """Whose output is not empty."""
    own, layout = window(draw), draw(LAYOUTS)
    groups = draw(st.integers(1, 2))
    limits = [max(pair) for pair in zip(own["stride"], own["dilation"], strict=True)]
    extra = [draw(st.integers(0, limit - 1)) for limit in limits]
    options = {
        **own,
        "output_padding": extra,
        "out_channels": groups * draw(st.integers(1, 3)),
        "groups": groups,
        "bias": draw(st.booleans()),
        "layout": layout,
    }
    # (size - 1)·stride - pads + reach + extra >= 1
    least = [
        1 + max(0, -(-(1 - spare - more) // stride))
        for spare, more, stride in zip(smallest(own), extra, own["stride"], strict=True)
    ]
    return Example(options, (image(draw, layout, groups * draw(st.integers(1, 3)), least),))


@st.composite
def pointwise(draw: Any) -> Example:
    layout = draw(LAYOUTS)
    options = {"out_channels": draw(st.integers(1, 6)), "bias": draw(st.booleans()), "layout": layout}
    if layout == "HWC" and draw(st.booleans()):
        options["variant"] = "direct"
    return Example(options, (image(draw, layout, draw(st.integers(1, 6)), [1, 1]),))


@st.composite
def pooling(draw: Any, *, average: bool) -> Example:
    kernel = [draw(st.integers(1, 4)) for _ in range(2)]
    padding = [draw(st.integers(0, size // 2)) for size in kernel for _ in range(2)]
    sizes = [
        draw(st.integers(max(1, size - sum(padding[2 * axis :][:2])), 9)) for axis, size in enumerate(kernel)
    ]
    options: dict[str, Any] = {
        "kernel": kernel,
        "stride": [draw(st.integers(1, 4)) for _ in range(2)],
        "padding": padding,
    }
    if average:
        options["count_include_pad"] = draw(st.booleans())
    elif draw(st.booleans()):
        stride = options["stride"][0]
        options |= {"padding": 0, "stride": stride, "variant": "as-published"}
        sizes = [max(size, side) for size, side in zip(sizes, kernel, strict=True)]
    return Example(options, ((draw(st.integers(1, 3)), *sizes),))


@st.composite
def interpolation(draw: Any) -> Example:
    """Any size to any size, growing and shrinking."""
    mode = draw(st.sampled_from(("nearest", "bilinear")))
    shape = draw(st.tuples(st.integers(1, 3), st.integers(1, 8), st.integers(1, 8)))
    size = draw(st.lists(st.integers(1, 12), min_size=2, max_size=2))
    return Example({"mode": mode, "size": size}, (shape,))


# Axes and shapes


def sizes(draw: Any, most: int, dimensions: int) -> Shape:
    return tuple(draw(st.lists(st.integers(1, most), min_size=1, max_size=dimensions)))


@st.composite
def reduction(draw: Any) -> Example:
    """Any neighbouring axes of up to four."""
    shape = sizes(draw, 6, 4)
    first = draw(st.integers(0, len(shape) - 1))
    last = draw(st.integers(first, len(shape) - 1))
    options = {"axes": list(range(first, last + 1)), "keep_dims": draw(st.booleans())}
    # A mean near zero would have no digits to compare.
    return Example(options, (DrawnInput(shape, low=0.5, high=1.5),))


@st.composite
def flip(draw: Any) -> Example:
    shape = sizes(draw, 5, 4)
    return Example(
        {"axes": draw(st.lists(st.integers(0, len(shape) - 1), min_size=1, unique=True))}, (shape,)
    )


@st.composite
def transpose(draw: Any) -> Example:
    shape = sizes(draw, 5, 5)
    return Example({"axes": draw(st.permutations(range(len(shape))))}, (shape,))


@st.composite
def pad(draw: Any) -> Example:
    """Samples of one to three dimensions with any rims."""
    axis = st.tuples(SMALL, st.integers(0, 3), st.integers(0, 3))
    axes = draw(st.lists(axis, min_size=1, max_size=3))
    pads = [[before, after] for _, before, after in axes]
    value = draw(st.sampled_from((0.0, -1.5)))
    return Example({"pads": pads, "value": value}, (tuple(size for size, _, _ in axes),))


@st.composite
def parts(draw: Any, *, split: bool) -> Example:
    """Two to four pieces along any axis, split or joined."""
    shape = sizes(draw, 5, 3)
    axis = draw(st.integers(0, len(shape) - 1))
    pieces = draw(st.lists(st.integers(1, 4 if split else 5), min_size=2, max_size=4))
    wholes = [(*shape[:axis], size, *shape[axis + 1 :]) for size in ([sum(pieces)] if split else pieces)]
    return Example({"axis": axis, **({"sizes": pieces} if split else {})}, tuple(wholes))


@st.composite
def cut(draw: Any) -> Example:
    """Any range of any axis."""
    shape = sizes(draw, 6, 4)
    axis = draw(st.integers(0, len(shape) - 1))
    start = draw(st.integers(0, shape[axis] - 1))
    stop = draw(st.integers(start + 1, shape[axis]))
    return Example({"axis": axis, "start": start, "stop": stop}, (shape,))


def repeating(draw: Any, whole: list[int]) -> Shape:
    """A shape that can be repeated to another."""
    kept = [size if draw(st.booleans()) else 1 for size in whole]
    return tuple(kept[draw(st.integers(0, len(kept) - 1)) :])


@st.composite
def expand(draw: Any) -> Example:
    whole = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    return Example({"shape": whole}, (repeating(draw, whole),))


@st.composite
def broadcast_add(draw: Any) -> Example:
    whole = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    return Example({}, (repeating(draw, whole), repeating(draw, whole)), roundings=3)


# Sequences


@st.composite
def matmul(draw: Any) -> Example:
    n, k, m = (draw(st.integers(1, 4)) for _ in range(3))
    turned = draw(st.booleans())
    leading = draw(st.lists(st.integers(1, 3), max_size=3))
    shapes: list[Shape] = []
    for matrix in ((n, k), (m, k) if turned else (k, m)):
        if draw(st.integers(0, 4)) == 0:
            shapes.append((k,))
            continue
        kept = [size if draw(st.booleans()) else 1 for size in leading]
        shapes.append((*kept[draw(st.integers(0, len(kept))) :], *matrix))
    return Example({"transpose_b": turned}, tuple(shapes))


@st.composite
def attention(draw: Any) -> Example:
    length, width, heads, head = (draw(SMALL), draw(SMALL), draw(st.integers(1, 3)), draw(st.integers(1, 4)))
    options = {"heads": heads, "features": heads * head, "bias": draw(st.booleans())}
    return Example(options, ((length, width),), roundings=16)


@st.composite
def softmax(draw: Any) -> Example:
    """Rows of any length and number, any exponential."""
    shape = draw(st.lists(st.integers(1, 7), min_size=1, max_size=4))
    kind, high = draw(st.sampled_from(EXPONENTIALS)), draw(st.sampled_from((0.5, 2.0)))
    return Example({"exponential": kind}, (DrawnInput(tuple(shape), low=-high, high=high),))


@st.composite
def embedding(draw: Any) -> Example:
    small = st.integers(1, 6)
    vocabulary, features, shape = draw(small), draw(small), draw(st.lists(small, min_size=1, max_size=2))
    options = {"vocabulary": vocabulary, "features": features}
    options |= {"padding_id": vocabulary - 1} if draw(st.booleans()) else {}
    return Example(options, (DrawnInput(tuple(shape), INT32, 0, vocabulary),), roundings=12)


@st.composite
def recurrent(draw: Any, *, states: int) -> Example:
    """With up to `states` initial states."""
    length, features, hidden, given = draw(SMALL), draw(SMALL), draw(SMALL), draw(st.integers(0, states))
    options = {"hidden": hidden, "bias": draw(st.booleans()), "stepwise": draw(st.booleans())}
    return Example(options, ((length, features), *((hidden,) for _ in range(given))), roundings=16)


STRATEGIES: Mapping[str, SearchStrategy[Example]] = {
    "conv2d": conv2d(),
    "pointwise": pointwise(),
    "depthwise": depthwise(),
    "conv_transpose2d": conv_transpose2d(),
    "broadcast_add": broadcast_add(),
    "expand": expand(),
    "rnn": recurrent(states=1),
    "gru": recurrent(states=1),
    "lstm": recurrent(states=2),
    "embedding": embedding(),
    "matmul": matmul(),
    "mhsa": attention(),
    "softmax": softmax(),
    "concat": parts(split=False),
    "split": parts(split=True),
    "slice": cut(),
    "flip": flip(),
    "transpose": transpose(),
    "pad": pad(),
    "reduce_mean": reduction(),
    "reduce_sum": reduction(),
    "interpolation": interpolation(),
    "avg_pool2d": pooling(average=True),
    "max_pool2d": pooling(average=False),
}
"""By primitive."""
