# SPDX-License-Identifier: Apache-2.0
"""The acceptance cases of PULP-TrainLib's own tests as calls of `pulptrain primitive`.

tests/data/trainlib-cases.csv.gz lists 424 layer steps of its test folder, tutorial and Deployer with shapes,
cores and default kernel (read off its sources, see the issue that asks for them). Rows of composite tests
(ResNet, ViT, MobileBERT) are models, not primitives.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from shared.paths import DATA

DATA = DATA / "trainlib-cases.csv.gz"

COMPOSITE = ("test_ResNet_CIFAR10", "test_vit_fp32", "test_tiny_vit_fp32", "test_mobilebert")

KERNELS = {
    "fp32": (
        *("mm", "mm_M", "mm_u2", "mm_unroll_1x2", "mm_unroll_1x4", "mm_unroll_1x8", "mm_unroll_2x1"),
        *("mm_unroll_4x1", "mm_unroll_8x1", "mm_unroll_2x2", "mm_unroll_2x4", "mm_unroll_4x2"),
        *("mm_unroll_4x4", "mm_M_u2", "mm_M_unroll_1x2", "mm_M_unroll_1x4", "mm_M_unroll_1x8"),
        *("mm_M_unroll_2x1", "mm_M_unroll_4x1", "mm_M_unroll_8x1", "mm_M_unroll_2x2"),
        *("mm_M_unroll_2x4", "mm_M_unroll_4x2", "mm_M_unroll_4x4"),
    ),
    "bf16": (
        *("mm_fp16", "mm_M_fp16", "mm_fp16_SIMD_2x4", "mm_fp16_SIMD_4x8", "mm_M_fp16_SIMD_2x4"),
        *("mm_M_fp16_SIMD_4x8", "mm_fp16_unroll_2x1", "mm_fp16_unroll_4x1", "mm_fp16_unroll_8x1"),
    ),
}
"""Kernels by the index PULP-TrainLib gives them."""

NO_PRIMITIVE = {
    "sin/cos 200 angles": "sine and cosine are no step of a layer",
    "Bernoulli p=0.5 seed 10": "the random numbers of dropout, drawn untimed",
    "2D DMA copy of tensor": "the DMA alone: tests/arch/blocks/test_dma.py",
}
"""Rows that are no training primitive, and why."""


@dataclass(frozen=True)
class Call:
    """One `pulptrain primitive`; `kernel` None is the default, `heads` as in the row."""

    primitive: str
    step: str
    inputs: tuple[tuple[int, ...], ...]
    options: tuple[tuple[str, Any], ...] = ()
    dtype: str = "fp32"
    batch: int = 1
    cores: int = 8
    kernel: str | None = None

    def __str__(self) -> str:
        shapes = ",".join("x".join(map(str, shape)) for shape in self.inputs)
        return f"{self.primitive}-{self.step}-{shapes}-{self.dtype}-{self.kernel or 'default'}-{self.cores}"


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    number: int
    values: Mapping[str, str] = field(hash=False)

    def __getitem__(self, key: str) -> str:
        return self.values[key]

    def size(self, key: str) -> int:
        return int(self.values[key])

    @property
    def composite(self) -> bool:
        return self["test"].startswith(COMPOSITE)

    @property
    def kernel(self) -> str | None:
        """The kernel its index names."""
        index = self["matmul_type"]
        return KERNELS[self.dtypes[0]][int(index)] if index.isdigit() else None

    @property
    def dtypes(self) -> tuple[str, ...]:
        words = self["dtype"]
        return tuple(name for name in ("fp32", "bf16") if name in words) or ("bf16",)

    @property
    def cores(self) -> int:
        return int((self["cores"] or "8").split()[-1])

    def __str__(self) -> str:
        return f"{self.number}:{self['test']}:{self['layer']}:{self['step']}".replace(" ", "_")


def rows() -> list[Row]:
    """All lines, composite tests too."""
    text = gzip.decompress(DATA.read_bytes()).decode()
    return [Row(number, line) for number, line in enumerate(csv.DictReader(text.splitlines()), start=2)]


WINDOWS = {
    "Conv2D_im2col": ("conv2d", {}),
    "Conv2D": ("conv2d", {}),
    "Conv2D_naive": ("conv2d", {"im2col": "none"}),
    "DW_naive": ("depthwise", {}),
    "ConvTranspose2D_naive": ("conv_transpose2d", {"bias": True}),
}

ACTIVATIONS = {
    "relu": {},
    "leaky_relu": {},
    "sigmoid": {},
    "softmax": {"exponential": "schraudolph"},
    "tanh": {"form": "pulp_fastexp"},
    "gelu": {"form": "tanh"},
}
FORWARD_ONLY = ("tanh", "gelu")


def calls_of(row: Row) -> list[Call]:
    """What the row runs. Empty for what is no primitive; KeyError for a row nobody has mapped."""
    return [
        Call(primitive, step, inputs, tuple(options.items()), dtype, batch, row.cores, kernel)
        for dtype in row.dtypes
        for primitive, step, inputs, options, batch, kernel in _calls(row)
    ]


_Found = tuple[str, str, tuple[tuple[int, ...], ...], dict[str, Any], int, str | None]


def _calls(row: Row) -> Iterator[_Found]:
    layer, step = row["layer"], row["step"].lower()
    if layer in NO_PRIMITIVE:
        return
    if layer in WINDOWS or layer == "PW":
        yield _window(row, step)
    elif layer == "Linear":
        yield "linear", step, ((row.size("Cin"),),), {"out_features": row.size("Cout")}, 1, row.kernel
    elif row["N"]:
        yield from _matrices(row, step)
    else:
        for primitive, own_step, inputs, options, batch in _others(row, layer, step):
            yield primitive, own_step, inputs, options, batch, None


def _window(row: Row, step: str) -> _Found:
    channels, height, width = row.size("Cin"), row.size("Hin"), row.size("Win")
    image = (channels, height, width) if row["layout"] == "CHW" else (height, width, channels)
    options: dict[str, Any] = {"layout": row["layout"]}
    if row["layer"] == "PW":
        return "pointwise", step, (image,), {**options, "out_channels": row.size("Cout")}, 1, row.kernel
    primitive, more = WINDOWS[row["layer"]]
    options |= {**more, "kernel": (row.size("Hk"), row.size("Wk"))}
    options |= {"stride": row.size("stride"), "padding": row.size("pad")}
    if primitive != "depthwise":
        options["out_channels"] = row.size("Cout")
    return primitive, step, (image,), options, 1, row.kernel


ATTENTION = {
    "test_mhsa_fp32": ((10, 10), 160, 5),
    "test_mhsa_fp16": ((196, 160), 160, 5),
    "test_mhsa_fp32_partialsoftmax_old": ((32, 32), 32, 32),
    "test_mhsa_paper_fp32": ((64, 512), 512, 4),
    "test_mhsa_paper_fp16": ((64, 512), 512, 4),
}
"""Test -> (length, token size), features, heads."""


def _matrices(row: Row, step: str) -> Iterator[_Found]:
    """A matmul of the row's extents, and the whole layer it is a part of."""
    n, k, m = row.size("N"), row.size("K"), row.size("M")
    layer = row["layer"]
    _, _, repeat = layer.rpartition("(x")
    heads = (int(repeat.split()[0].rstrip(")")),) if repeat[:1].isdigit() else ()
    yield "matmul", "fw", ((*heads, n, k), (*heads, k, m)), {}, 1, row.kernel
    if layer.startswith("RNN"):
        yield "rnn", step, ((64, 8),), {"hidden": 16, "bias": False}, 1, None
    elif layer.startswith("MHSA"):
        shape, features, count = ATTENTION[row["test"]]
        options = {"heads": count, "features": features}
        for own_step in ("fw",) if step == "fw" else ("ig", "wg"):
            yield "mhsa", own_step, (shape,), options, 1, None


def _others(  # noqa: PLR0912 - one branch per layer of the table
    row: Row, layer: str, step: str
) -> Iterator[tuple[str, str, tuple[tuple[int, ...], ...], dict[str, Any], int]]:
    def image() -> tuple[int, ...]:
        return row.size("Cin"), row.size("Hin"), row.size("Win")

    if layer == "activations":
        for name, options in ACTIVATIONS.items():
            if step == "fw" or name not in FORWARD_ONLY:
                yield name, "fw" if step == "fw" else "ig", (image(),), options, 1
    elif layer.startswith("GELU"):
        yield "gelu", step, (image(),), {"form": "pulp_rational"}, 1
    elif layer == "InstNorm":
        yield "instance_norm", step, (image(),), {}, 1
    elif layer.startswith("BatchNorm"):
        yield "batch_norm", step, (image(),), {}, 2
    elif layer.startswith("LayerNorm"):
        yield "layer_norm", step, ((16, 16),), {}, 1
    elif layer == "Max+Avg pool":
        for name in ("max_pool2d", "avg_pool2d"):
            yield name, "fw" if step == "fw" else "ig", (image(),), {"kernel": 6, "stride": 1}, 1
    elif row["test"].startswith("test_losses"):
        for name in ("l1", "mse", "berhu", "cross_entropy"):
            yield name, "loss", ((10,),), {}, 1
    elif layer.startswith("Dropout"):
        yield "dropout", step, ((100,),), {"p": 0.23}, 1
    elif layer.startswith("nearest"):
        for mode in ("nearest", "bilinear"):
            yield "interpolation", step, (image(),), {"mode": mode, "size": (48, 48)}, 1
    elif layer.startswith("Sum node"):
        yield "add", "fw", (image(), image()), {}, 1
    else:
        yield {
            "dims 1,7,800,2 axis 2": ("reduce_mean", "fw", ((7, 800, 2),), {"axes": (1,)}, 1),
            "(17,1,31)+(23,1)": ("broadcast_add", "fw", ((17, 1, 31), (23, 1)), {}, 1),
            "(2,1,3,2,5)x(5,1,5,3)": ("matmul", "fw", ((2, 1, 3, 2, 5), (5, 1, 5, 3)), {}, 1),
            "dims 13,15,17 axes 2,0,1": ("transpose", "fw", ((13, 15, 17),), {"axes": (2, 0, 1)}, 1),
            "pad 1 all sides": ("pad", "fw", ((2, 3, 3),), {"pads": ((0, 0), (1, 1), (1, 1))}, 1),
            # The transpose of the weights is the pre-pass of IG.
            "block transpose weights": (
                "conv2d",
                "ig",
                ((3, 3, 2),),
                {"layout": "HWC", "kernel": 2, "out_channels": 3},
                1,
            ),
            "CHW<->HWC": ("layout", "fw", ((2, 3, 3),), {"to": "HWC"}, 1),
        }[layer]
