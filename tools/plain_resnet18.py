# SPDX-License-Identifier: Apache-2.0
"""The plain ResNet-18 for CIFAR (no shortcuts) of BARVINN's documentation, built from its shapes.

    python -m tools.plain_resnet18 plain-resnet18.onnx

Weights of two bits are drawn, batch norms have the statistics of a drawn input: a load, no classifier.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from barvinn.mapping.layers import LayerShape
from barvinn.mapping.network import Precision, RealLayer, Reals, draw_input, integer_network
from barvinn.mapping.reference import accumulate
from tools.barvinn_jobs import load_barvinn

BITS = Precision(2, 2, 2)
INPUT_SHAPE = (3, 32, 32)
STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))
"""Channels of a stage of two blocks of two convolutions, and the stride of its first."""

EPSILON = 1e-5
SEED = 18


@dataclass(frozen=True, slots=True)
class NormedConvolution:
    """A convolution with weights [co, ci, 3, 3], and the batch norm behind it, per channel."""

    shape: LayerShape
    weights: Reals
    gamma: Reals
    beta: Reals
    mean: Reals
    variance: Reals

    @property
    def layer(self) -> RealLayer:
        """Both as one layer with a ReLU."""
        gain = self.gamma / np.sqrt(self.variance + EPSILON)
        return RealLayer(self.shape, self.weights, gain, self.beta - self.mean * gain, relu=True)


def shapes() -> list[LayerShape]:
    """The 17 convolutions of 3 x 3, named as in the published table."""
    made: list[LayerShape] = []
    for name, co, stride in _convolutions():
        ci, rows, columns = (made[-1].co, made[-1].ho, made[-1].wo) if made else INPUT_SHAPE
        made.append(
            LayerShape(
                *(name, "conv", ci, rows, columns, co),
                kernel=(3, 3),
                strides=(stride, stride),
                pads=(1, 1, 1, 1),
                parameter=f"{name}.weight",
            )
        )
    return made


def _convolutions() -> Iterator[tuple[str, int, int]]:
    yield "conv1.0", STAGES[0][0], 1
    for stage, (channels, stride) in enumerate(STAGES, start=2):
        for block in (0, 1):
            for position in (0, 3):
                first = block == position == 0
                yield f"conv{stage}_x.{block}.residual_function.{position}", channels, stride if first else 1


@cache
def convolutions() -> tuple[NormedConvolution, ...]:
    """The network with drawn weights; its activations use all levels of two bits."""
    rng = np.random.default_rng(SEED)
    x, step = draw_input(INPUT_SHAPE, BITS.activation_bits, SEED), 1.0
    width = load_barvinn().width
    made: list[NormedConvolution] = []
    for shape in shapes():
        levels = rng.integers(-2, 2, (shape.co, shape.ci, *shape.kernel))
        weight_step = 0.5 / np.sqrt(shape.ci)
        sums = accumulate(shape, levels, x) * (weight_step * step)
        norm = NormedConvolution(
            shape,
            levels * weight_step,
            gamma=rng.uniform(0.8, 1.2, shape.co),
            beta=rng.uniform(0.5, 1.5, shape.co),
            mean=sums.mean(axis=(1, 2)),
            variance=sums.var(axis=(1, 2)),
        )
        made.append(norm)
        scaled = norm.layer
        network = integer_network(
            [RealLayer(shape, scaled.weights, scaled.gain * step, scaled.offset, relu=True)], BITS, x, width
        )
        x, step = network.outputs[-1], network.steps[-1]
    return tuple(made)


def layers() -> list[RealLayer]:
    """The network as `barvinn` takes it."""
    return [each.layer for each in convolutions()]


def onnx_model() -> Any:
    """The network as an ONNX model: Conv, BatchNormalization, Relu, seventeen times."""
    from onnx import TensorProto, helper, numpy_helper

    nodes, weights = [], []
    name = "input"
    for number, each in enumerate(convolutions()):
        stem = each.shape.name
        arrays = {
            f"{stem}.weight": each.weights,
            f"{stem}.gamma": each.gamma,
            f"{stem}.beta": each.beta,
            f"{stem}.mean": each.mean,
            f"{stem}.variance": each.variance,
        }
        weights += [numpy_helper.from_array(array.astype(np.float32), key) for key, array in arrays.items()]
        kernel, *norm = arrays
        results = [f"{stem}.{kind}" for kind in ("convolved", "normed", "activated")]
        nodes += [
            helper.make_node(
                *("Conv", [name, kernel], results[:1], f"Conv_{number}"),
                kernel_shape=each.shape.kernel,
                pads=each.shape.pads,
                strides=each.shape.strides,
            ),
            helper.make_node(
                *("BatchNormalization", [results[0], *norm], results[1:2], f"Norm_{number}"), epsilon=EPSILON
            ),
            helper.make_node("Relu", results[1:2], results[2:], f"Relu_{number}"),
        ]
        name = results[2]
    last = convolutions()[-1].shape
    graph = helper.make_graph(
        nodes,
        "plain-resnet18",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, [1, *INPUT_SHAPE])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, last.co, last.ho, last.wo])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def main(arguments: Sequence[str]) -> int:
    """Write the model to the file that is named."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    Path(arguments[0]).write_bytes(onnx_model().SerializeToString())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
