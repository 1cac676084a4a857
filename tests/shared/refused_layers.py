# SPDX-License-Identifier: Apache-2.0
"""Options and inputs that primitives must refuse, and what they say of them, by primitive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainlib.primitives.definition import Shape


@dataclass(frozen=True, slots=True)
class Refused:
    """A case that must be refused with a message that matches the regular expression `message`."""

    attributes: Mapping[str, Any]
    inputs: tuple[Shape, ...]
    message: str


REFUSED: Mapping[str, tuple[Refused, ...]] = {
    "conv1d": (
        Refused({"out_channels": 2, "kernel": 3}, ((2, 4, 4),), "needs a sequence"),
        Refused({"out_channels": 2, "kernel": 9}, ((1, 8),), "larger than the padded input"),
        Refused({"out_channels": 2, "kernel": 3, "padding": [1, 1, 1]}, ((1, 8),), "one number or"),
        Refused({"out_channels": 2, "kernel": 3, "im2col": "dma"}, ((1, 8),), "im2col"),
    ),
    "conv2d": (
        Refused({"out_channels": 2, "kernel": 9}, ((1, 8, 8),), "kernel 9x9 is larger than the padded input"),
        Refused({"out_channels": 2, "kernel": 3, "padding": 3}, ((1, 8, 8),), "padding 3 must be smaller"),
        Refused({"out_channels": 0, "kernel": 3}, ((1, 8, 8),), "out_channels"),
        Refused({"out_channels": 2, "kernel": 0}, ((1, 8, 8),), "kernel is 0, but"),
        Refused({"out_channels": 2, "kernel": 3, "stride": 0}, ((1, 8, 8),), "stride is 0, but"),
        Refused({"out_channels": 2, "kernel": 3, "dilation": [1, 0]}, ((1, 8, 8),), "dilation is .*, but"),
        Refused({"out_channels": 2, "kernel": 3, "dilation": 4}, ((1, 8, 8),), "dilated to 9x9 is larger"),
        Refused(
            {"out_channels": 2, "kernel": 3, "padding": -1},
            ((1, 8, 8),),
            "padding is -1, but must be 0 or more",
        ),
        Refused({"out_channels": 2, "kernel": 3, "padding": [1, 1, 1]}, ((1, 8, 8),), "one number, "),
        Refused({"out_channels": 2, "kernel": [3, 3, 3]}, ((1, 8, 8),), "one number or"),
        Refused({"out_channels": 4, "kernel": 3, "groups": 2}, ((3, 8, 8),), "does not divide the 3 input"),
        Refused({"out_channels": 3, "kernel": 3, "groups": 2}, ((4, 8, 8),), "does not divide the 3 output"),
        Refused({"out_channels": 2, "kernel": 3, "im2col": "gpu"}, ((1, 8, 8),), "im2col"),
        Refused(
            {"out_channels": 2, "kernel": 3, "groups": 2, "im2col": "dma"},
            ((2, 8, 8),),
            "dma supports one group",
        ),
        Refused({"out_channels": 2, "kernel": 3}, ((8,),), "needs an image"),
    ),
    "pointwise": (
        Refused({"out_channels": 2}, ((8,),), "pointwise needs an image"),
        Refused({"out_channels": 0}, ((1, 8, 8),), "out_channels"),
        Refused({"out_channels": 2, "kernel": 3}, ((1, 8, 8),), "unknown key 'kernel'"),
    ),
    "depthwise": (
        Refused({"kernel": 3}, ((8,),), "depthwise needs an image"),
        Refused({"kernel": 3, "stride": 0}, ((2, 8, 8),), "stride is 0, but"),
        Refused({"kernel": 9}, ((2, 8, 8),), "larger than the padded input"),
        Refused({"kernel": 3, "padding": 3}, ((2, 8, 8),), "padding 3 must be smaller"),
        Refused(
            {"kernel": 3, "padding": 1, "variant": "as-published"},
            ((2, 8, 8),),
            "needs stride 1, padding 0, dilation 1 and CHW",
        ),
        Refused({"kernel": 3, "variant": "fast"}, ((2, 8, 8),), "no variant 'fast'"),
        Refused({"kernel": 3, "out_channels": 4}, ((2, 8, 8),), "unknown key 'out_channels'"),
    ),
    "conv_transpose2d": (
        Refused({"out_channels": 2, "kernel": 3}, ((8,),), "conv_transpose2d needs an image"),
        Refused({"out_channels": 2, "kernel": 3, "stride": 0}, ((1, 4, 4),), "stride is 0, but"),
        Refused({"out_channels": 2, "kernel": 3, "padding": 3}, ((1, 4, 4),), "padding 3 must be smaller"),
        Refused(
            {"out_channels": 2, "kernel": 3, "stride": 2, "output_padding": 2},
            ((1, 4, 4),),
            "output_padding 2 must be smaller than stride 2",
        ),
        Refused({"out_channels": 2, "kernel": 3, "padding": 2}, ((1, 1, 1),), "output would be empty: -1x-1"),
        Refused({"out_channels": 3, "kernel": 3, "groups": 2}, ((4, 4, 4),), "does not divide the 3 output"),
        Refused({"out_channels": 2, "kernel": 3, "groups": 2}, ((3, 4, 4),), "does not divide the 3 input"),
    ),
    "linear": (
        Refused({"out_features": 3}, ((2, 3, 4),), "linear needs a vector"),
        Refused({"out_features": 0}, ((3,),), "out_features"),
        Refused({"out_feature": 3}, ((3,),), "unknown key 'out_feature'"),
    ),
    "leaky_relu": (Refused({"slope": 1.5}, ((3,),), "slope"), Refused({"slope": -0.1}, ((3,),), "slope")),
    **dict.fromkeys(("tanh", "gelu"), (Refused({"form": "fast"}, ((3,),), "form"),)),
    "swiglu": (
        Refused({}, ((3,), (4,)), "inputs of swiglu must have the same shape"),
        Refused({}, ((3,),), "takes 2 inputs"),
    ),
    "scale": (Refused({}, ((3,),), "no 'factor'"), Refused({"factor": float("nan")}, ((3,),), "factor")),
    "add": (Refused({}, ((3,), (4,)), "inputs of add must have the same shape"),),
    "dropout": (Refused({"p": 1.0}, ((3,),), "p"), Refused({"p": -0.5}, ((3,),), "p")),
    "multiply": (Refused({}, ((3,), (4,)), "inputs of multiply must have the same shape"),),
    "subtract": (Refused({}, ((3,), (4,)), "inputs of subtract must have the same shape"),),
    "divide": (Refused({}, ((3,), (4,)), "inputs of divide must have the same shape"),),
    "maximum": (Refused({}, ((3,), (4,)), "inputs of maximum must have the same shape"),),
    "minimum": (Refused({}, ((3,), (4,)), "inputs of minimum must have the same shape"),),
    "where": (Refused({}, ((3,), (3,)), "takes 3 inputs"),),
    "compare": (Refused({"form": "near"}, ((3,),), "form"),),
    "clip": (Refused({}, ((3,),), "'low' or 'high'"), Refused({"low": float("nan")}, ((3,),), "low")),
    "elu": (Refused({"alpha": 0.0}, ((3,),), "alpha"),),
    "shift": (Refused({}, ((3,),), "no 'offset'"),),
    "power": (Refused({}, ((3,),), "no 'exponent'"),),
    "sine": (
        Refused({"straight_through": True}, ((3,),), "unknown key"),
        Refused({}, ((3,), (3,)), "1 input"),
    ),
    **dict.fromkeys(
        ("floor", "ceil", "round"),
        (Refused({"straight_through": 2}, ((3,),), "straight_through"), Refused({}, ((3,), (3,)), "1 input")),
    ),
    "broadcast_add": (
        Refused({}, ((2, 3), (4, 3)), "cannot (be )?broadcast"),
        Refused({}, ((3,),), "2 inputs"),
        Refused({}, ((1, 1, 1, 1, 1, 2), (2,)), "a strided copy takes"),
    ),
    "expand": (
        Refused({"shape": [4, 3]}, ((2, 3),), "cannot expand"),
        Refused({"shape": [3]}, ((2, 3),), "cannot expand"),
        Refused({"shape": []}, ((3,),), "shape"),
    ),
    "parameter": (Refused({}, ((3,),), "no 'shape'"), Refused({"shape": [0]}, ((3,),), "shape")),
    "projected": (Refused({"shape": [3]}, ((3,),), "unknown key 'shape'"),),
    "position": (Refused({"features": 3}, ((3,),), "unknown key 'features'"),),
    "class_token": (Refused({}, ((4,),), "needs a sequence"),),
    "rnn": (
        Refused({"hidden": 0}, ((4, 3),), "hidden"),
        Refused({"hidden": 4}, ((3,),), "needs a sequence"),
        Refused({"hidden": 4}, ((2, 3), (5,)), "the initial state has shape"),
        Refused({"hidden": 4}, ((2, 3), (4,), (4,)), "1 to 2 inputs"),
    ),
    "gru": (
        Refused({"hidden": 0}, ((4, 3),), "hidden"),
        Refused({"hidden": 4}, ((3,),), "needs a sequence"),
        Refused({"hidden": 4}, ((2, 3), (5,)), "the initial state has shape"),
        Refused({"hidden": 4}, ((2, 3), (4,), (4,)), "1 to 2 inputs"),
    ),
    "lstm": (
        Refused({"hidden": 0}, ((4, 3),), "hidden"),
        Refused({"hidden": 4}, ((3,),), "needs a sequence"),
        Refused({"hidden": 4}, ((2, 3), (4,), (5,)), "the initial state has shape"),
        Refused({"hidden": 4}, ((2, 3), (4,), (4,), (4,)), "1 to 3 inputs"),
    ),
    "embedding": (
        Refused({"vocabulary": 5, "features": 4}, ((6,),), "needs an integer input"),
        Refused({"vocabulary": 0, "features": 4}, ((6,),), "vocabulary"),
        Refused({"vocabulary": 5, "features": 0}, ((6,),), "features"),
    ),
    "matmul": (
        Refused({}, ((2, 3), (4, 5)), "the first has 3 columns, the second 4 rows"),
        Refused({}, ((2, 4, 3), (3, 3, 5)), "cannot (be )?broadcast"),
        Refused({"transpose_b": True}, ((2, 3), (3, 5)), "the first has 3 columns, the second 5 rows"),
        Refused({}, ((2, 3),), "2 inputs"),
    ),
    "mhsa": (
        Refused({"heads": 4}, ((5, 6),), "6 features cannot be divided among 4 heads"),
        Refused({"heads": 0}, ((5, 6),), "heads"),
        Refused({"heads": 2}, ((6,),), "needs a sequence"),
    ),
    "softmax": (Refused({"exponential": "fast"}, ((3,),), "exponential"),),
    "log_softmax": (Refused({"exponential": "taylor"}, ((3,),), "exponential"),),
    "concat": (
        Refused({}, ((2, 3), (2, 4)), "cannot join"),
        Refused({"axis": 1}, ((2, 3), (2, 3, 1)), "cannot join"),
        Refused({"axis": 2}, ((2, 3), (2, 3)), "axis 2 is outside"),
        Refused({}, ((2, 3),), "takes 2 to"),
    ),
    "split": (
        Refused({"sizes": [3, 3]}, ((7,),), "add up to 6"),
        Refused({"sizes": [7]}, ((7,),), "sizes"),
        Refused({"sizes": [7, 0]}, ((7,),), "sizes"),
        Refused({"axis": 1, "sizes": [3, 4]}, ((7,),), "axis 1 is outside"),
    ),
    "slice": (
        Refused({"stop": 9}, ((7,),), "slice of axis 0, which has 7"),
        Refused({"start": 3, "stop": 3}, ((7,),), "do not define a slice"),
        Refused({"axis": 1, "stop": 2}, ((7,),), "axis 1 is outside"),
        Refused({}, ((7,),), "stop"),
    ),
    "flip": (
        Refused({"axes": [1]}, ((7,),), "axis 1 is outside"),
        Refused({"axes": [0, 0]}, ((7,),), "name an axis twice"),
        Refused({"axes": []}, ((7,),), "axes"),
    ),
    "reshape": (
        Refused({"shape": [5, 5]}, ((2, 3, 4),), "cannot reshape"),
        Refused({"shape": [5, -1]}, ((2, 3, 4),), "cannot reshape"),
        Refused({"shape": [-1, -1]}, ((4,),), "-1 more than once"),
        Refused({"shape": [0, 4]}, ((4,),), "-1 more than once"),
        Refused({"shape": []}, ((4,),), "shape"),
    ),
    "transpose": (
        Refused({"axes": [0, 1]}, ((3, 4, 5),), "must be a permutation of the dimensions"),
        Refused({"axes": [0, 0]}, ((3, 4),), "must be a permutation of the dimensions"),
        Refused({"axes": [0, 1, 2, 3, 4, 5]}, ((1, 1, 1, 1, 1, 1),), "a strided copy takes"),
    ),
    "pad": (
        Refused({"pads": [[1, 1]]}, ((2, 3, 3),), "the number of pairs is 1"),
        Refused({"pads": [[-1, 1]]}, ((3,),), "pads"),
        Refused({"pads": [[1]]}, ((3,),), "pads"),
        Refused({}, ((3,),), "pads"),
    ),
    **dict.fromkeys(
        ("reduce_mean", "reduce_sum"),
        (
            Refused({"axes": [3]}, ((2, 3),), "axis 3 is outside"),
            Refused({"axes": [0, 2]}, ((2, 3, 4),), "must be adjacent"),
            Refused({"axes": [1, 1]}, ((2, 3, 4),), "must be adjacent"),
            Refused({"axes": []}, ((2, 3),), "axes"),
        ),
    ),
    **dict.fromkeys(
        ("reduce_max", "reduce_min"),
        (
            Refused({"axes": [3]}, ((2, 3),), "axis 3 is outside"),
            Refused({"axes": [0], "ties": "last"}, ((2, 3),), "ties"),
        ),
    ),
    "interpolation": (
        Refused({}, ((1, 4, 4),), "exactly one of 'size' and 'scale'"),
        Refused({"size": [8, 8], "scale": 2}, ((1, 4, 4),), "exactly one of 'size' and 'scale'"),
        Refused({"size": [0, 8]}, ((1, 4, 4),), "size"),
        Refused({"scale": 0.1}, ((1, 4, 4),), "no pixels"),
        Refused({"scale": 2}, ((16,),), "needs an image"),
    ),
    "avg_pool2d": (
        Refused({"kernel": 9}, ((1, 8, 8),), "window 9 is larger than the padded input"),
        Refused({"kernel": 2, "padding": 2}, ((1, 8, 8),), "padding 2 and 2 is too large for 8 elements"),
        Refused({"kernel": 2, "padding": [1, 1, 1]}, ((1, 8, 8),), "padding"),
        Refused({"kernel": 2, "stride": 0}, ((1, 8, 8),), "stride"),
        Refused({"kernel": [2, 2, 2]}, ((1, 8, 8),), "kernel"),
        Refused({"kernel": 2}, ((8,),), "pooling needs an image"),
    ),
    "max_pool2d": (
        Refused({"kernel": 9}, ((1, 8, 8),), "window 9 is larger than the padded input"),
        Refused({"kernel": 2, "padding": 2}, ((1, 8, 8),), "padding 2 and 2 is too large for 8 elements"),
        Refused(
            {"kernel": 2, "padding": [0, 3, 0, 0]},
            ((1, 8, 8),),
            "a window of 2 lies entirely in the padding",
        ),
        Refused(
            {"kernel": 2, "stride": [2, 1], "variant": "as-published"},
            ((1, 8, 8),),
            "needs padding 0 and the same stride",
        ),
        Refused({"kernel": 2, "stride": 0}, ((1, 8, 8),), "stride"),
        Refused({"kernel": 2}, ((8,),), "pooling needs an image"),
    ),
    "global_avg_pool": (Refused({}, ((8,),), "pooling needs an image"),),
    "batch_norm": (
        Refused({}, ((5,),), "computed over one element"),
        Refused({"eps": 0.0}, ((3, 4, 4),), "eps"),
        Refused({"momentum": 2.0}, ((3, 4, 4),), "momentum"),
    ),
    "instance_norm": (
        Refused({}, ((5,),), "instance_norm needs channels"),
        Refused({}, ((3, 1, 1),), "computed over one element"),
        Refused({"eps": -1.0}, ((3, 4, 4),), "eps"),
    ),
    "group_norm": (
        Refused({"groups": 3}, ((4, 2, 2),), "groups: 3 does not divide the 4 channels"),
        Refused({"groups": 0}, ((4, 2, 2),), "groups"),
        Refused({"groups": 4}, ((4,),), "computed over one element"),
    ),
    "layer_norm": (
        Refused({"axes": 3}, ((4, 5),), "cannot normalise over 3 dimensions"),
        Refused({"axes": 0}, ((4, 5),), "axes"),
        Refused({}, ((4, 1),), "computed over one element"),
    ),
    "rms_norm": (
        Refused({"axes": 3}, ((4, 5),), "cannot normalise over 3 dimensions"),
        Refused({"eps": 0.0}, ((4, 5),), "eps"),
    ),
    "cross_entropy": (
        Refused({}, ((),), "needs scores"),
        Refused({"class_weights": [1.0, 2.0]}, ((3,),), "2 class_weights, but 3 classes"),
        Refused({"ignore_index": 1}, ((3,),), "ignore_index needs hard labels"),
        Refused({"label_smoothing": 1.5}, ((3,),), "must be at most 1"),
        Refused({"weight": 0.0}, ((3,),), "must be a number above 0"),
    ),
    "bce": (Refused({"element_weights": [1.0, 2.0]}, ((3,),), "2 element_weights, but 3 channels"),),
    "bce_with_logits": (
        Refused({"pos_weight": [1.0, 2.0]}, ((3,),), "2 pos_weight, but 3 channels"),
        Refused({"pos_weight": -1.0}, ((3,),), "must be 0 or more"),
    ),
    "nll": (
        Refused({}, ((),), "needs scores"),
        Refused({"class_weights": [1.0]}, ((3,),), "1 class_weights, but 3 classes"),
    ),
    "multi_margin": (
        Refused({}, ((2, 3),), "vector of scores"),
        Refused({"class_weights": [1.0]}, ((3,),), "1 class_weights, but 3 classes"),
        Refused({"p": 3}, ((3,),), "1 or 2"),
    ),
    "cosine": (Refused({}, ((2, 3),), "a vector per sample"),),
}
