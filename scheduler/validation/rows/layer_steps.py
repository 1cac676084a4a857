# SPDX-License-Identifier: Apache-2.0
"""Which op of our library each measured layer step is: the graph that `primitive` would build for it.

A step of PULP-TrainLib that is not our default is the variant as-published of ours. `step_named` answers by
(primitive, step, variant, layout) as the rows spell them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from configs.dtypes import INT32
from configs.model_file import LayerSpec, LossSpec, ModelSpec, OptimizerSpec
from configs.values import Struct
from scheduler.validation.rows.cases import Case
from trainlib.ir.graph import TrainingGraph
from trainlib.primitives.definition import AS_PUBLISHED, DEFAULT, DrawnInput
from trainlib.training.phases import (
    build_layer_graph,
    build_loss_graph,
    build_training_graph,
    build_update_graph,
    only,
)

LEARNING_RATE = 0.01
"""Of the updates; their time does not depend on it."""

WEIGHT_DECAY = 0.1
"""Of the updates with decay; their time does not depend on it."""

DMA_IM2COL = "dma_im2col"
"""Variant of the rows whose cores fetch the patches of a convolution by DMA."""

TUTORIAL_OUTPUTS = 32
"""Outputs of the linear layer of the PULP-TrainLib tutorial network; the row gives its convolution only."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Extents of a layer as the row gives them, and those that follow."""

    ci: int
    hi: int
    wi: int
    co: int
    hk: int
    wk: int
    stride: int
    pad: int

    @property
    def elements(self) -> int:
        """Elements of the input."""
        return self.ci * self.hi * self.wi

    @property
    def slides(self) -> bool:
        """Whether the extents describe a window that slides over an input."""
        fits = self.hk <= self.hi + 2 * self.pad and self.wk <= self.wi + 2 * self.pad
        return fits and 0 not in (self.ci, self.hi, self.wi, self.co, self.hk, self.wk, self.stride)


Graph = Callable[[Case, Layer], TrainingGraph]
"""(row, its extents) -> the ops that were measured."""


class LayerStep(Struct, frozen=True):
    """A measured step as ours: its graph, and what the measured program did of it.

    `kernels` are the nests that were measured, all if empty. `called`: layer functions of PULP-TrainLib were
    called, not kernels (`measured_code.with_layer_calls`). Without `wrapped` a fork is bare.
    """

    graph: Graph
    kernels: tuple[str, ...] = ()
    called: bool = False
    wrapped: bool = True


def step_named(primitive: str, step: str, variant: str, layout: str) -> LayerStep | None:
    """What a row measured, or None for what no op of ours is."""
    return STEPS.get((primitive, step, variant, layout))


def known() -> tuple[str, ...]:
    """What `step_named` knows, as texts for messages."""
    return tuple(sorted({" ".join(part for part in key if part not in ("", "-")) for key in STEPS}))


def _of_step(graph: TrainingGraph, step: str) -> TrainingGraph:
    """The ops of a step alone."""
    return only(graph, [op for op in graph.ops if op.step == step])


def layer_graph(
    name: str,
    step: str,
    options: Mapping[str, Any],
    shapes: Sequence[tuple[int, ...]],
    *,
    dtype: str = "fp32",
    layout: str = "CHW",
    variant: str | None = None,
    where: str,
) -> TrainingGraph:
    """One step of a layer of ours on inputs of these shapes. Raises as `build_layer_graph`."""
    cases = [DrawnInput(shape) for shape in shapes]
    graph = build_layer_graph(name, options, cases, dtype=dtype, layout=layout, variant=variant, where=where)
    return _of_step(graph, step)


Options = Callable[[Layer], Mapping[str, Any]]


def _none(layer: Layer) -> Mapping[str, Any]:
    return {}


def _image(case: Case, layer: Layer) -> Sequence[tuple[int, ...]]:
    channels_last = case.text("layout") == "HWC"
    return [(layer.hi, layer.wi, layer.ci) if channels_last else (layer.ci, layer.hi, layer.wi)]


def _layer(
    name: str,
    step: str,
    options: Options = _none,
    shapes: Callable[[Case, Layer], Sequence[tuple[int, ...]]] = _image,
    *,
    variant: str | None = None,
) -> Graph:
    """A step of a layer of ours on inputs of these shapes."""

    def build(case: Case, layer: Layer) -> TrainingGraph:
        return layer_graph(
            name,
            step,
            options(layer),
            shapes(case, layer),
            dtype=case.text("dtype"),
            layout="HWC" if case.text("layout") == "HWC" else "CHW",
            variant=variant,
            where=case.where,
        )

    return build


def _window(layer: Layer) -> Mapping[str, Any]:
    return {"kernel": [layer.hk, layer.wk], "stride": layer.stride, "padding": layer.pad}


def _conv(layer: Layer) -> Mapping[str, Any]:
    return {**_window(layer), "out_channels": layer.co, "bias": False}


def sliding(name: str, step: str, options: Options = _window, *, variant: str | None = None) -> Graph:
    """A step of a layer with a window. Raises InputError for a row whose extents describe none."""
    plain = _layer(name, step, options, variant=variant)

    def build(case: Case, layer: Layer) -> TrainingGraph:
        if not layer.slides:
            raise case.error("the kernel is larger than the padded image", "use a smaller kernel")
        return plain(case, layer)

    return build


def depthwise_options(layer: Layer) -> Mapping[str, Any]:
    """Options of a depthwise convolution of a row."""
    return {**_window(layer), "bias": False}


def _pointwise(layer: Layer) -> Mapping[str, Any]:
    return {"out_channels": layer.co, "bias": False}


def _linear(step: str) -> Graph:
    return _layer(
        "linear",
        step,
        lambda layer: {"out_features": layer.co, "bias": False},
        lambda case, layer: [(layer.ci,)],
    )


def _vector_matrix(case: Case, layer: Layer) -> TrainingGraph:
    """A 16-bit input gradient of a linear layer as a bare product; its kernel may want B transposed."""
    turned = case.text("kernel").endswith("transposed")
    matrix = (layer.ci, layer.co) if turned else (layer.co, layer.ci)
    build = _layer(
        "matmul", "FW", lambda layer: {"transpose_b": turned}, lambda case, layer: [(1, layer.co), matrix]
    )
    return build(case, layer)


def pair(name: str, step: str, variant: str | None = None) -> Graph:
    """A step on two images of one shape."""
    return _layer(name, step, shapes=lambda case, layer: [*_image(case, layer)] * 2, variant=variant)


def matrix(name: str, step: str, options: Options = _none, *, variant: str | None = None) -> Graph:
    """A step on a matrix [hi, wi]."""
    return _layer(name, step, options, lambda case, layer: [(layer.hi, layer.wi)], variant=variant)


def _loss(name: str, kernel: str) -> LayerStep:
    """A loss and its gradient are one step of ours; the rows have them one by one."""

    def build(case: Case, layer: Layer) -> TrainingGraph:
        return build_loss_graph(name, {}, (layer.elements,), where=case.where)[0]

    return LayerStep(build, (kernel,))


def update_graph(case: Case, elements: int, **options: float) -> TrainingGraph:
    """SGD on a weight of so many elements."""
    return build_update_graph(
        "sgd", {"learning_rate": LEARNING_RATE, **options}, (elements,), where=case.where
    )


def _trained(layers: Sequence[LayerSpec], shape: tuple[int, ...], variant: str = DEFAULT) -> TrainingGraph:
    """One iteration of a network with MSE and SGD."""
    where = layers[0].where
    sgd = OptimizerSpec("sgd", {"learning_rate": LEARNING_RATE}, where)
    loss = LossSpec("mse", where=where)
    return build_training_graph(
        ModelSpec("measured", "", "", shape, "random", loss, sgd, 1, tuple(layers), where, variant=variant)
    )


def _sum_of_gradients(variant: str = DEFAULT) -> Graph:
    """The sum node of a tensor that two layers read."""

    def build(case: Case, layer: Layer) -> TrainingGraph:
        layers = [
            LayerSpec("read", "pointwise", {"out_channels": layer.ci}, case.where),
            *(LayerSpec(name, "relu", {}, case.where, ("read",)) for name in ("one", "other")),
            LayerSpec("both", "add", {}, case.where, ("one", "other")),
        ]
        return _of_step(_trained(layers, (layer.ci, layer.hi, layer.wi), variant), "ACC")

    return build


def _zeros(case: Case, layer: Layer) -> TrainingGraph:
    """The gradient of a table begins as zeros."""
    table = {"vocabulary": layer.elements, "features": 1}
    ids = DrawnInput((1,), INT32, 0, layer.elements)
    return _of_step(build_layer_graph("embedding", table, [ids], where=case.where), "WG")


def _tutorial(case: Case, layer: Layer) -> TrainingGraph:
    """One step of the tutorial network: conv2d, ReLU, linear, MSE, SGD; the first layer has no IG."""
    if not layer.slides:
        raise case.error("the kernel is larger than the padded image", "use a smaller kernel")
    where = case.where
    layers = (
        LayerSpec("conv", "conv2d", _conv(layer), where),
        LayerSpec("relu", "relu", {}, where),
        LayerSpec("flatten", "flatten", {}, where),
        LayerSpec("linear", "linear", {"out_features": TUTORIAL_OUTPUTS, "bias": False}, where),
    )
    return _trained(layers, (layer.ci, layer.hi, layer.wi))


def _calls(graph: Graph) -> LayerStep:
    return LayerStep(graph, called=True)


def _activation(name: str, step: str) -> LayerStep:
    """An activation function of the library forks by itself."""
    return LayerStep(_layer(name, step), wrapped=False)


BACKWARD = {"FW": "FW", "BW": "IG"}
"""How rows of layers without parameters name their steps, and how we do."""

STEPS: dict[tuple[str, str, str, str], LayerStep] = {
    **{
        ("conv2d", step, "", layout): _calls(sliding("conv2d", step, _conv))
        for step in ("FW", "WG", "IG")
        for layout in ("CHW", "HWC")
    },
    ("conv2d", "FW", DMA_IM2COL, "CHW"): _calls(
        sliding("conv2d", "FW", lambda layer: {**_conv(layer), "im2col": "dma"})
    ),
    **{
        ("conv_pw", step, "", layout): _calls(_layer("pointwise", step, _pointwise))
        for step in ("FW", "WG", "IG")
        for layout in ("CHW", "HWC")
    },
    **{
        ("linear", step, variant, layout): _calls(_linear(step))
        for step in ("FW", "WG", "IG")
        for variant in ("", "linear_ig_mm_M")
        for layout in ("-", "CHW")
    },
    ("linear", "IG", "vector_matrix", "CHW"): LayerStep(_vector_matrix),
    ("conv_dw", "FW", "", "CHW"): LayerStep(sliding("depthwise", "FW", depthwise_options)),
    **{
        ("conv_dw", step, "", "CHW"): LayerStep(
            sliding("depthwise", step, depthwise_options, variant=AS_PUBLISHED)
        )
        for step in ("WG", "IG")
    },
    ("im2row", "FW", "im2row_mode0", "CHW"): LayerStep(sliding("conv2d", "FW", _conv), ("im2row_fw",)),
    ("im2row", "IG", "im2row_mode1", "CHW"): LayerStep(sliding("conv2d", "IG", _conv), ("im2row_ig",)),
    ("blocktransp", "IG", "", "CHW"): LayerStep(sliding("conv2d", "IG", _conv), ("blocktransp",)),
    **{
        ("instnorm", step, "", "CHW"): LayerStep(_layer("instance_norm", step)) for step in ("FW", "IG", "WG")
    },
    **{
        (row, word, "", "CHW"): LayerStep(sliding(name, step, variant=variant))
        for row, name, variant in (("avgpool", "avg_pool2d", None), ("maxpool", "max_pool2d", AS_PUBLISHED))
        for word, step in BACKWARD.items()
    },
    **{
        (row, word, "", "CHW"): _activation(name, step)
        for row, name in (("relu", "relu"), ("leakyrelu", "leaky_relu"), ("sigmoid", "sigmoid"))
        for word, step in BACKWARD.items()
    },
    ("softmax", "FW", "schraudolph", "-"): LayerStep(matrix("softmax", "FW", variant=AS_PUBLISHED)),
    ("softmax", "BW", "", "-"): LayerStep(matrix("softmax", "IG", variant=AS_PUBLISHED)),
    ("transpose_matrix", "-", "", "-"): LayerStep(matrix("transpose", "FW", lambda layer: {"axes": [1, 0]})),
    ("transpose_nd", "-", "", "-"): LayerStep(
        matrix("transpose", "FW", lambda layer: {"axes": [1, 0]}, variant=AS_PUBLISHED)
    ),
    ("residual", "FW", "", "-"): LayerStep(pair("add", "FW", AS_PUBLISHED)),
    ("residual", "BW", "", "-"): LayerStep(pair("add", "IG", AS_PUBLISHED)),
    ("copy", "-", "", "-"): LayerStep(pair("add", "IG", AS_PUBLISHED)),
    ("sumnode", "BW", "", "-"): LayerStep(_sum_of_gradients(AS_PUBLISHED)),
    ("vect_sum", "-", "", "-"): LayerStep(_sum_of_gradients()),
    ("set_to_value", "-", "", "-"): LayerStep(_zeros, ("set_to_value",)),
    **{
        (f"loss_{row}", word, "one_core", "-"): _loss(name, f"{name}_{word.lower()}")
        for row, name in (("mse", "mse"), ("ce", "cross_entropy"), ("l1", "l1"))
        for word in BACKWARD
    },
    ("sgd", "UPD", "", "-"): LayerStep(lambda case, layer: update_graph(case, layer.elements)),
    ("sgd_wd", "UPD", "", "-"): LayerStep(
        lambda case, layer: update_graph(case, layer.elements, weight_decay=WEIGHT_DECAY)
    ),
    ("tutorial_step", "TOTAL", "", "CHW"): _calls(_tutorial),
    ("tutorial_step", "TOTAL", "linear_ig_mm_M", "CHW"): _calls(_tutorial),
}
"""(primitive, step, variant, layout) of the rows -> what that is here."""
