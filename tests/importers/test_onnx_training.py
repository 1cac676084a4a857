# SPDX-License-Identifier: Apache-2.0
"""Training graphs of both dialects run as they are: one update, against autograd of the same network."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.errors import InputError, UnsupportedLayerError
from importers.graph.onnx_file import load_onnx
from importers.training.graph import import_training
from shared.onnx_models import NodeText, model, node, saved, value
from shared.onnx_training_models import (
    MICROSOFT,
    mlp_nodes,
    mlp_weights,
    one_update,
    softmax_loss,
    updated,
    with_accumulation,
)

pytestmark = [pytest.mark.needs_onnx, pytest.mark.needs_torch]

RATE = 0.05


@dataclass(frozen=True)
class Trained:
    """A network by its nodes, gradients included, and by PyTorch: `forward(torch, x, weights)`."""

    name: str
    shape: Sequence[int]
    weights: Mapping[str, Sequence[int]]
    nodes: Sequence[NodeText]
    forward: Callable[[Any, Any, Mapping[str, Any]], Any]
    constants: Mapping[str, Any] | None = None
    shapes: Mapping[str, Sequence[int]] | None = None
    """Of what stands in value_info only."""

    def __str__(self) -> str:
        return self.name


ACCURATE = {"dilations": [1, 1], "strides": [1, 1], "pads": [1, 1, 1, 1]}


def conv(torch: Any, x: Any, w: Any, b: Any = None, **options: Any) -> Any:
    return torch.nn.functional.conv2d(x, w, b, **options)


def logits(torch: Any, x: Any, w: Mapping[str, Any]) -> Any:
    return x.flatten(1) @ w["fc"].T


def attention(torch: Any, x: Any, w: Mapping[str, Any]) -> Any:
    n = torch.nn.functional.layer_norm(x, (4,), w["g"], w["s"])
    p = torch.softmax(0.5 * (n @ w["q"].T) @ n.mT, dim=-1)
    return logits(torch, torch.nn.functional.gelu(p @ n), w)


HEAD = [
    node("Flatten", ["last"], ["flat"]),
    node("Gemm", ["flat", "fc"], ["output"], transB=1),
    *softmax_loss("output", "output_grad"),
    node("Gemm", ["output_grad", "flat"], ["fc_grad"], transA=1),
    node("Gemm", ["output_grad", "fc"], ["flat_grad"]),
    node("Shape", ["last"], ["last_shape"]),
    node("Reshape", ["flat_grad", "last_shape"], ["last_grad"]),
]
"""Behind the tensor ``last``, whose gradient it makes."""

SCALE = np.array([0.5, -1, 2, 0.25, 1.5], np.float32)


def unrolled(torch: Any, kind: str, x: Any, w: Mapping[str, Any]) -> Any:
    """A recurrence by its documented equations, gates as ONNX has them: all states, the batch second."""
    hidden, given = w["r"].shape[2], w["b"][0].chunk(2)
    h = c = torch.zeros(x.shape[1], hidden)
    found = []
    for now in x:
        a, b = now @ w["w"][0].T + given[0], h @ w["r"][0].T + given[1]
        if kind == "LSTM":
            i, o, f, g = (a + b).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        else:
            (az, ar, an), (bz, br, bn) = a.chunk(3, 1), b.chunk(3, 1)
            z = torch.sigmoid(az + bz)
            h = (1 - z) * torch.tanh(an + torch.sigmoid(ar + br) * bn) + z * h
        found.append(h)
    return torch.stack(found)


def with_last(states: Any) -> Any:
    return states + states[-1:]


def recurrent(kind: str, gates: int, states: Sequence[str], **options: Any) -> Trained:
    """A linear layer, a recurrence over its rows; all states are classified, with the last one added."""
    left = ["y", "last_h", *(["last_c", "all_c"] if kind == "LSTM" else []), "gates"]
    return Trained(
        f"a recurrence and its gradient: {kind}",
        (1, 4, 3),
        {"q": (3, 3), "w": (1, gates * 2, 3), "r": (1, gates * 2, 2), "b": (1, gates * 4), "fc": (3, 8)},
        [
            node("MatMul", ["input", "q"], ["k"]),
            node("Transpose", ["k"], ["t"], perm=[1, 0, 2]),
            node(
                f"{MICROSOFT}{kind}Training",
                ["t", "w", "r", "b", "", *states],
                left,
                hidden_size=2,
                **options,
            ),
            node("Reshape", ["y", "row"], ["states"]),
            node("Concat", ["last_h"] * 4, ["repeated"], axis=0),
            node("Reshape", ["repeated", "row"], ["again"]),
            node("Add", ["states", "again"], ["last"]),
            *HEAD,
            node("Reshape", ["last_grad", "all"], ["y_grad"]),
            node("ReduceSum", ["y_grad"], ["last_h_grad"], axes=[0], keepdims=0),
            node(
                f"{MICROSOFT}{kind}Grad",
                [
                    "t",
                    "w",
                    "r",
                    *([] if kind == "LSTM" else ["b"]),
                    "",
                    *states,
                    "y",
                    *left[-2 if kind == "LSTM" else -1 :],
                    "y_grad",
                    "last_h_grad",
                ],
                ["t_grad", "w_grad", "r_grad", "b_grad"],
                hidden_size=2,
                **options,
            ),
            node("Transpose", ["t_grad"], ["k_grad"], perm=[1, 0, 2]),
            node(f"{MICROSOFT}FusedMatMul", ["input", "k_grad"], ["q_stack"], transA=1),
            node("Squeeze", ["q_stack"], ["q_grad"], axes=[0]),
        ],
        lambda torch, x, w: logits(
            torch, with_last(unrolled(torch, kind, (x @ w["q"]).transpose(0, 1), w)).reshape(1, 8), w
        ),
        {"row": np.array([1, 8]), "all": np.array([4, 1, 1, 2])}
        | {name: np.zeros((1, 1, 2), np.float32) for name in states},
        shapes={"y": (4, 1, 1, 2)},
    )


NORM = {"epsilon": 1e-5, "momentum": 0.9}

NETWORKS = [
    Trained(
        "convolution, batch norm, ReLU, max-pooling: ONNX Runtime's ops",
        (2, 3, 8, 8),
        {"w": (4, 3, 3, 3), "b": (4,), "g": (4,), "s": (4,), "fc": (5, 64)},
        [
            node("Conv", ["input", "w", "b"], ["c"], kernel_shape=[3, 3], **ACCURATE),
            node(
                f"{MICROSOFT}BatchNormInternal",
                ["c", "g", "s", "rm", "rv"],
                ["n", "rm1", "rv1", "m", "i"],
                **NORM,
            ),
            node("Relu", ["n"], ["r"]),
            node("MaxPool", ["r"], ["last", "places"], kernel_shape=[2, 2], strides=[2, 2]),
            *HEAD,
            node(f"{MICROSOFT}MaxPoolGrad", ["last_grad", "places"], ["r_grad"]),
            node(f"{MICROSOFT}ReluGrad", ["r_grad", "r"], ["n_grad"]),
            node(
                f"{MICROSOFT}BatchNormalizationGrad",
                ["n_grad", "c", "g", "m", "i"],
                ["c_grad", "g_grad", "s_grad"],
            ),
            node(
                f"{MICROSOFT}ConvGrad",
                ["c_grad", "input", "w"],
                ["", "w_grad", "b_grad"],
                kernel_shape=[3, 3],
                **ACCURATE,
            ),
        ],
        lambda torch, x, w: logits(
            torch,
            torch.nn.functional.max_pool2d(
                torch.relu(
                    torch.nn.functional.batch_norm(
                        conv(torch, x, w["w"], w["b"], padding=1), None, None, w["g"], w["s"], training=True
                    )
                ),
                2,
            ),
            w,
        ),
        {"rm": np.zeros(4, np.float32), "rv": np.ones(4, np.float32)},
    ),
    Trained(
        "depthwise and pointwise convolution, pools: Deeploy's split gradients",
        (1, 4, 6, 6),
        {"d": (4, 1, 3, 3), "p": (6, 4, 1, 1), "fc": (3, 6)},
        [
            node("Conv", ["input", "d"], ["c"], kernel_shape=[3, 3], group=4, **ACCURATE),
            node("MaxPool", ["c"], ["q"], kernel_shape=[2, 2], strides=[2, 2]),
            node("Conv", ["q", "p"], ["k"], kernel_shape=[1, 1]),
            node("GlobalAveragePool", ["k"], ["last"]),
            *HEAD,
            node("GlobalAveragePoolGrad", ["last_grad"], ["k_grad"], kernel_shape=[3, 3]),
            node("ConvGradW", ["k_grad", "q"], ["p_grad"], kernel_shape=[1, 1]),
            node("ConvGradX", ["k_grad", "p"], ["q_grad"], kernel_shape=[1, 1]),
            node("MaxPoolGrad", ["q_grad", "c"], ["c_grad"], kernel_shape=[2, 2], strides=[2, 2]),
            node("ConvGradW", ["c_grad", "input"], ["d_grad"], kernel_shape=[3, 3], group=4, **ACCURATE),
        ],
        lambda torch, x, w: logits(
            torch,
            conv(
                torch, torch.nn.functional.max_pool2d(conv(torch, x, w["d"], padding=1, groups=4), 2), w["p"]
            ).mean(dim=(2, 3), keepdim=True),
            w,
        ),
        shapes={"q_grad": (1, 4, 3, 3)},
    ),
    Trained(
        "convolutions of sequences, in groups",
        (2, 4, 8),
        {"w": (6, 2, 3), "b": (6,), "fc": (3, 36)},
        [
            node("Conv", ["input", "w", "b"], ["last"], kernel_shape=[3], group=2),
            *HEAD,
            node(
                f"{MICROSOFT}ConvGrad",
                ["last_grad", "input", "w"],
                ["", "w_grad", "b_grad"],
                kernel_shape=[3],
                group=2,
            ),
        ],
        lambda torch, x, w: logits(torch, torch.nn.functional.conv1d(x, w["w"], w["b"], groups=2), w),
    ),
    Trained(
        "attention without heads, layer norm, GELU",
        (1, 5, 4),
        {"g": (4,), "s": (4,), "q": (4, 4), "fc": (3, 20)},
        [
            node("LayerNormalization", ["input", "g", "s"], ["n", "m", "i"], axis=-1, epsilon=1e-5),
            node("Transpose", ["q"], ["qt"], perm=[1, 0]),
            node("MatMul", ["n", "qt"], ["k"]),
            node(f"{MICROSOFT}FusedMatMul", ["k", "n"], ["scores"], transB=1, alpha=0.5),
            node("Softmax", ["scores"], ["p"], axis=-1),
            node("MatMul", ["p", "n"], ["v"]),
            node(f"{MICROSOFT}Gelu", ["v"], ["last"]),
            *HEAD,
            node(f"{MICROSOFT}GeluGrad", ["last_grad", "v"], ["v_grad"]),
            node(f"{MICROSOFT}FusedMatMul", ["v_grad", "n"], ["p_grad"], transB=1),
            node(f"{MICROSOFT}FusedMatMul", ["p", "v_grad"], ["n_grad_1"], transA=1),
            node(f"{MICROSOFT}SoftmaxGrad_13", ["p_grad", "p"], ["scores_grad"], axis=-1),
            node("Mul", ["scores_grad", "half"], ["scaled_grad"]),
            node("MatMul", ["scaled_grad", "n"], ["k_grad"]),
            node(f"{MICROSOFT}FusedMatMul", ["scaled_grad", "k"], ["n_grad_2"], transA=1),
            node("MatMul", ["k_grad", "q"], ["n_grad_3"]),
            node(f"{MICROSOFT}FusedMatMul", ["k_grad", "n"], ["q_stack"], transA=1),
            node("Squeeze", ["q_stack"], ["q_grad"], axes=[0]),
            node("Sum", ["n_grad_1", "n_grad_2", "n_grad_3"], ["n_grad"]),
            node(
                f"{MICROSOFT}LayerNormalizationGrad",
                ["n_grad", "input", "g", "m", "i"],
                ["", "g_grad", "s_grad"],
                axis=-1,
            ),
        ],
        attention,
        {"half": np.float32(0.5)},
    ),
    Trained(
        "layer norm whose gradient is given weight and bias, no statistics",
        (1, 3, 4),
        {"q": (4, 5), "fc": (3, 15)},
        [
            node("MatMul", ["input", "q"], ["k"]),
            node("LayerNormalization", ["k", "g", "s"], ["last"], axis=-1, epsilon=1e-3),
            *HEAD,
            node(
                f"{MICROSOFT}LayerNormalizationGrad",
                ["last_grad", "k", "g", "s"],
                ["k_grad"],
                axis=-1,
                epsilon=1e-3,
            ),
            node(f"{MICROSOFT}FusedMatMul", ["input", "k_grad"], ["q_stack"], transA=1),
            node("Squeeze", ["q_stack"], ["q_grad"], axes=[0]),
        ],
        lambda torch, x, w: logits(
            torch,
            torch.nn.functional.layer_norm(
                x @ w["q"], (5,), torch.tensor(SCALE), torch.tensor(SCALE[::-1].copy()), 1e-3
            ),
            w,
        ),
        {"g": SCALE, "s": SCALE[::-1].copy()},
    ),
    Trained(
        "a transposition of stacks",
        (1, 6, 4),
        {"q": (3, 3), "fc": (3, 24)},
        [
            node("Reshape", ["input", "stacks"], ["r"]),
            node("Transpose", ["r"], ["t"], perm=[0, 2, 3, 1]),
            node("MatMul", ["t", "q"], ["last"]),
            *HEAD,
            node(f"{MICROSOFT}FusedMatMul", ["t", "last_grad"], ["q_stack"], transA=1),
            node("ReduceSum", ["q_stack"], ["q_grad"], axes=[0, 1], keepdims=0),
        ],
        lambda torch, x, w: logits(torch, x.reshape(1, 3, 2, 4).permute(0, 2, 3, 1) @ w["q"], w),
        {"stacks": np.array([1, 3, 2, 4])},
    ),
    Trained(
        "softplus, and a log-softmax with its gradient",
        (2, 4),
        {"q": (6, 4), "fc": (3, 6)},
        [
            node("Gemm", ["input", "q"], ["h"], transB=1),
            node("LogSoftmax", ["h"], ["logs"], axis=-1),
            node("Softplus", ["logs"], ["last"]),
            *HEAD,
            node("Sigmoid", ["logs"], ["slope"]),
            node("Mul", ["last_grad", "slope"], ["logs_grad"]),
            node(f"{MICROSOFT}LogSoftmaxGrad_13", ["logs_grad", "logs"], ["h_grad"], axis=-1),
            node("Gemm", ["h_grad", "input"], ["q_grad"], transA=1),
        ],
        lambda torch, x, w: logits(
            torch, torch.nn.functional.softplus(torch.log_softmax(x @ w["q"].T, dim=-1)), w
        ),
    ),
    Trained(
        "ReLU6 and a mean whose gradients are decomposed",
        (1, 4, 3, 3),
        {"p": (4, 4, 1, 1), "fc": (3, 4)},
        [
            node("Conv", ["input", "p"], ["c"], kernel_shape=[1, 1]),
            node("Clip", ["c", "low", "high"], ["r"]),
            node("ReduceMean", ["r"], ["last"], axes=[2, 3], keepdims=0),
            *HEAD,
            node("Size", ["r"], ["all"]),
            node("Size", ["last"], ["left"]),
            node("Div", ["all", "left"], ["share"]),
            node("Unsqueeze", ["last_grad", "axes"], ["wide"]),
            node(f"{MICROSOFT}Scale", ["wide", "share"], ["scaled"], scale_down=1),
            node("Shape", ["r"], ["r_shape"]),
            node("Expand", ["scaled", "r_shape"], ["r_grad"]),
            node("LessOrEqual", ["c", "high"], ["below"]),
            node("GreaterOrEqual", ["c", "low"], ["above"]),
            node("And", ["below", "above"], ["inside"]),
            node("Cast", ["inside"], ["mask"], to=1),
            node("Mul", ["r_grad", "mask"], ["c_grad"]),
            node(f"{MICROSOFT}ConvGrad", ["c_grad", "input", "p"], ["", "p_grad"], kernel_shape=[1, 1]),
        ],
        lambda torch, x, w: logits(torch, torch.clamp(conv(torch, x, w["p"]), 0, 0.3).mean(dim=(2, 3)), w),
        {"low": np.float32(0), "high": np.float32(0.3), "axes": np.array([2, 3])},
    ),
    Trained(
        "trained slopes whose gradients are decomposed",
        (2, 4),
        {"q": (6, 4), "p": (6,), "fc": (3, 6)},
        [
            node("Gemm", ["input", "q"], ["h"], transB=1),
            node("PRelu", ["h", "p"], ["last"]),
            *HEAD,
            node("Greater", ["h", "zero"], ["right"]),
            node("Not", ["right"], ["left"]),
            node("Cast", ["left"], ["mask"], to=1),
            node("Mul", ["last_grad", "p"], ["sloped"]),
            node("Where", ["right", "last_grad", "sloped"], ["h_grad"]),
            node("Mul", ["h", "mask"], ["below"]),
            node("Mul", ["below", "last_grad"], ["p_rows"]),
            node("ReduceSum", ["p_rows"], ["p_grad"], axes=[0], keepdims=0),
            node("Gemm", ["h_grad", "input"], ["q_grad"], transA=1),
        ],
        lambda torch, x, w: logits(torch, torch.nn.functional.prelu(x @ w["q"].T, w["p"]), w),
        {"zero": np.float32(0)},
    ),
    *(
        Trained(
            f"{op}, its gradient shared among equal elements, behind a leaky ReLU",
            (2, 4),
            {"q": (12, 4), "fc": (3, 4)},
            [
                node("Gemm", ["input", "q"], ["h"], transB=1),
                node("LeakyRelu", ["h"], ["k"], alpha=0.2),
                node("Reshape", ["k", "rows"], ["r"]),
                node(op, ["r"], ["top"], axes=[2], keepdims=1),
                node("Reshape", ["top", "flat_rows"], ["last"]),
                *HEAD,
                node("Reshape", ["last_grad", "wide_rows"], ["top_grad"]),
                node("Equal", ["r", "top"], ["there"]),
                node("Cast", ["there"], ["mask"], to=1),
                node("ReduceSum", ["mask"], ["count"], axes=[2], keepdims=1),
                node("Div", ["top_grad", "count"], ["share"]),
                node("Mul", ["share", "mask"], ["r_grad"]),
                node("Reshape", ["r_grad", "row"], ["k_grad"]),
                node(f"{MICROSOFT}LeakyReluGrad", ["k_grad", "k"], ["h_grad"], alpha=0.2),
                node("Gemm", ["h_grad", "input"], ["q_grad"], transA=1),
            ],
            lambda torch, x, w, function=function: logits(
                torch,
                function(torch.nn.functional.leaky_relu(x @ w["q"].T, 0.2).reshape(2, 4, 3)),
                w,
            ),
            {
                "rows": np.array([2, 4, 3]),
                "flat_rows": np.array([2, 4]),
                "wide_rows": np.array([2, 4, 1]),
                "row": np.array([2, 12]),
            },
        )
        for op, function in (("ReduceMax", lambda y: y.amax(2)), ("ReduceMin", lambda y: y.amin(2)))
    ),
    Trained(
        "the larger of two, and a size",
        (2, 4),
        {"q": (5, 4), "p": (5, 4), "fc": (3, 5)},
        [
            node("Gemm", ["input", "q"], ["a"], transB=1),
            node("Gemm", ["input", "p"], ["b"], transB=1),
            node("Abs", ["b"], ["size"]),
            node("Max", ["a", "size"], ["last"]),
            *HEAD,
            node("Equal", ["a", "last"], ["is_a"]),
            node("Cast", ["is_a"], ["mask_a"], to=1),
            node("Equal", ["size", "last"], ["is_b"]),
            node("Cast", ["is_b"], ["mask_b"], to=1),
            node("Mul", ["last_grad", "mask_a"], ["a_grad"]),
            node("Mul", ["last_grad", "mask_b"], ["size_grad"]),
            node("Sign", ["b"], ["way"]),
            node("Mul", ["size_grad", "way"], ["b_grad"]),
            node("Gemm", ["a_grad", "input"], ["q_grad"], transA=1),
            node("Gemm", ["b_grad", "input"], ["p_grad"], transA=1),
        ],
        lambda torch, x, w: logits(torch, torch.maximum(x @ w["q"].T, (x @ w["p"].T).abs()), w),
    ),
    recurrent("GRU", 3, ["h0"], linear_before_reset=1),
    recurrent("LSTM", 4, ["h0", "c0"]),
]


@pytest.mark.parametrize("inside", [True, False], ids=["SGD nodes", "accumulated"])
@pytest.mark.parametrize("network", NETWORKS, ids=str)
def test_an_update_is_that_of_autograd(network: Trained, inside: bool, tmp_path: Path) -> None:
    import torch

    generator = np.random.default_rng(11)
    start = {
        name: generator.uniform(-0.5, 0.5, shape).astype(np.float32)
        for name, shape in network.weights.items()
    }
    x = generator.uniform(-1, 1, network.shape).astype(np.float32)
    label = generator.integers(3, size=network.shape[0])
    constants = dict(network.constants or {})
    if inside:
        inputs = [value("input", network.shape), value("labels", network.shape[:1], "int64")]
        nodes = [*network.nodes, *updated(list(start), RATE)]
        outputs = [value(f"{name}_updated", array.shape) for name, array in start.items()]
        made = model(nodes, inputs, outputs, {**start, **constants})
    else:
        made = with_accumulation(network.nodes, network.shape, start, constants)
    for name, shape in (network.shapes or {}).items():
        from onnx import TensorProto, helper

        made.graph.value_info.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
    imported = import_training(load_onnx(saved(tmp_path, made)), learning_rate=RATE)
    found = one_update(imported, start, {"input": x, "labels": label})
    parameters = {name: torch.tensor(array, requires_grad=True) for name, array in start.items()}
    loss = torch.nn.functional.cross_entropy(
        network.forward(torch, torch.tensor(x), parameters), torch.tensor(label)
    )
    loss.backward()
    for name, parameter in parameters.items():
        wanted = (parameter.detach() - RATE * parameter.grad).numpy()
        np.testing.assert_allclose(found[name], wanted, rtol=1e-5, atol=2e-7, err_msg=name)
        # A bias before a batch norm has no gradient.
        assert np.abs(found[name] - start[name]).max() > 1e-6 or name == "b", name


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_loss_has_the_options_of_its_node(reduction: str, tmp_path: Path) -> None:
    """Weights of classes, a label that does not count, and a class for every pixel."""
    import torch

    generator = np.random.default_rng(5)
    x = generator.uniform(-1, 1, (2, 3, 2, 4)).astype(np.float32)
    w = generator.uniform(-1, 1, (3, 3, 1, 1)).astype(np.float32)
    label, weights = generator.integers(3, size=(2, 2, 4)), np.array([0.5, 2, 1], np.float32)
    said = {"reduction": reduction, "ignore_index": 2}
    where = {"kernel_shape": [1, 1], "strides": [1, 1], "dilations": [1, 1], "pads": [0, 0, 0, 0]}
    loss = node("SoftmaxCrossEntropyLoss", ["y", "labels", "weights"], ["the_loss", "log_prob"], **said)
    seeded = ["one", "log_prob", "labels", "weights"]
    nodes = [
        node("Conv", ["input", "w"], ["y"], **where),
        loss,
        node(f"{MICROSOFT}SoftmaxCrossEntropyLossGrad", seeded, ["y_grad"], **said),
        node(f"{MICROSOFT}ConvGrad", ["y_grad", "input", "w"], ["", "w_grad"], **where),
        *updated(["w"], RATE),
    ]
    inputs = [value("input", x.shape), value("labels", label.shape, "int64")]
    constants = {"w": w, "weights": weights, "one": np.float32(1)}
    made = model(nodes, inputs, [value("w_updated", w.shape)], constants)
    found = one_update(
        import_training(load_onnx(saved(tmp_path, made))), {"w": w}, {"input": x, "labels": label}
    )
    parameter = torch.tensor(w, requires_grad=True)
    truth = torch.nn.functional.cross_entropy(
        conv(torch, torch.tensor(x), parameter), torch.tensor(label), torch.tensor(weights), **said
    )
    truth.backward()
    assert found["loss"] == pytest.approx(truth.item(), rel=1e-6)
    np.testing.assert_allclose(found["w"], w - RATE * parameter.grad.numpy(), rtol=1e-5, atol=1e-7)
    nodes[2] = node(f"{MICROSOFT}SoftmaxCrossEntropyLossGrad", seeded, ["y_grad"], reduction=reduction)
    other = model(nodes, inputs, [value("w_updated", w.shape)], constants)
    with pytest.raises(UnsupportedLayerError, match="the options of loss and gradient differ"):
        import_training(load_onnx(saved(tmp_path, other)))


@pytest.mark.parametrize("seed", [[], ["one"]], ids=["Deeploy", "ONNX Runtime"])
def test_a_loss_of_log_probabilities_is_that_of_its_node(seed: list[str], tmp_path: Path) -> None:
    import torch

    generator = np.random.default_rng(6)
    x, w = (generator.uniform(-1, 1, shape).astype(np.float32) for shape in ((4, 5), (3, 5)))
    label, weights = generator.integers(3, size=4), np.array([0.5, 2, 1], np.float32)
    said = {"ignore_index": int(label[0])}
    reads = [*seed, "logs", "labels", *(["weights"] if seed else [])]
    nodes = [
        node("Gemm", ["input", "w"], ["y"], transB=1),
        node("LogSoftmax", ["y"], ["logs"], axis=1),
        node("NegativeLogLikelihoodLoss", ["logs", "labels", *reads[3:]], ["the_loss"], **said),
        node(f"{MICROSOFT}NegativeLogLikelihoodLossGrad", reads, ["logs_grad"], **said),
        node(f"{MICROSOFT}LogSoftmaxGrad_13", ["logs_grad", "logs"], ["y_grad"], axis=1),
        node("Gemm", ["y_grad", "input"], ["w_grad"], transA=1),
        *updated(["w"], RATE),
    ]
    inputs = [value("input", x.shape), value("labels", label.shape, "int64")]
    constants = {"w": w, "one": np.float32(1), "weights": weights}
    made = model(nodes, inputs, [value("w_updated", w.shape)], constants)
    imported = import_training(load_onnx(saved(tmp_path, made)))
    found = one_update(imported, {"w": w}, {"input": x, "labels": label})
    parameter = torch.tensor(w, requires_grad=True)
    own = torch.tensor(weights) if seed else None
    truth = torch.nn.functional.cross_entropy(torch.tensor(x) @ parameter.T, torch.tensor(label), own, **said)
    truth.backward()
    assert found["loss"] == pytest.approx(truth.item(), rel=1e-6)
    np.testing.assert_allclose(found["w"], w - RATE * parameter.grad.numpy(), rtol=1e-5, atol=1e-7)


def test_running_statistics_go_on_as_onnx_runtime_has_them(tmp_path: Path) -> None:
    network = NETWORKS[0]
    generator = np.random.default_rng(1)
    start = {
        name: generator.uniform(-1, 1, shape).astype(np.float32) for name, shape in network.weights.items()
    }
    made = with_accumulation(network.nodes, network.shape, start, network.constants or {})
    imported = import_training(load_onnx(saved(tmp_path, made)))
    x = generator.uniform(-1, 1, network.shape).astype(np.float32)
    found = one_update(imported, start, {"input": x, "labels": np.zeros(2, np.int64)})
    import torch

    c = conv(torch, torch.tensor(x), torch.tensor(start["w"]), torch.tensor(start["b"]), padding=1)
    np.testing.assert_allclose(found["rm"], 0.1 * c.mean(dim=(0, 2, 3)).numpy(), rtol=1e-5, atol=1e-6)
    biased = c.var(dim=(0, 2, 3), unbiased=False).numpy()
    np.testing.assert_allclose(found["rv"], 0.9 + 0.1 * biased, rtol=1e-5)


def test_the_learning_rate_of_the_graph_goes_first(tmp_path: Path) -> None:
    weights = mlp_weights()
    inputs = [value("input", [1, 10]), value("labels", [1], "int64")]
    nodes = [*mlp_nodes(), *updated(list(weights), 0.5)]
    outputs = [value("w1_updated", [6, 10])]
    path = saved(tmp_path, model(nodes, inputs, outputs, weights))
    said = import_training(load_onnx(path), learning_rate=0.25)
    assert said.learning_rate == 0.5
    assert "0.25 is ignored" in said.notes[0]
    graph = load_onnx(saved(tmp_path, with_accumulation(mlp_nodes(), [1, 10], weights, {})))
    assert import_training(graph, learning_rate=0.25).learning_rate == 0.25
    assert import_training(graph).learning_rate == 0.001


def test_what_a_training_graph_cannot_be_is_refused(tmp_path: Path) -> None:
    weights = mlp_weights()
    odd = [*mlp_nodes(), node("my.domain:Odd", ["z_grad"], ["odd"], name="odd one")]
    odd.append(node("TopK", ["z", "one"], ["v", "i"], name="the largest"))
    made = with_accumulation(odd, [1, 10], weights, {"one": np.array([1])})
    with pytest.raises(
        UnsupportedLayerError, match=r"(?s)2 of \d+ operations.*odd one.*the largest.*try: use MaxPool"
    ):
        import_training(load_onnx(saved(tmp_path, made)))
    graph = load_onnx(saved(tmp_path, with_accumulation(mlp_nodes(), [1, 10], weights, {})))
    inputs = [value("input", [1, 10]), value("labels", [1], "int64")]
    inside = model([*mlp_nodes(), *updated(["w1"], 1.0)], inputs, [value("w1_updated", [6, 10])], weights)
    single = import_training(load_onnx(saved(tmp_path, inside, "inside.onnx")))
    with pytest.raises(
        InputError, match="2 mini-batches per update, but the graph does not accumulate gradients"
    ):
        single.over(2)
    labels = [value("input", [1, 10]), value("labels", [3], "int64")]
    three = model([*mlp_nodes(), *updated(["w1"], 1.0)], labels, [value("w1_updated", [6, 10])], weights)
    with pytest.raises(UnsupportedLayerError, match=r"labels have shape \[3\], not"):
        import_training(load_onnx(saved(tmp_path, three, "three.onnx")))
    other = model([node("SGD", ["q", "q_grad"], ["q_updated"])], [value("q", [2]), value("q_grad", [2])], [])
    with pytest.raises(InputError, match="updates 'q'"):
        import_training(graph, load_onnx(saved(tmp_path, other, "optimizer.onnx")))


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"clip": 1.0}, "clip, input_forget, peepholes and activations other than"),
        ({"activations": ["Sigmoid", "Relu"]}, "activations other than Sigmoid, Tanh are"),
        ({"direction": "reverse"}, "only direction forward"),
    ],
    ids=("clip", "activations", "direction"),
)
def test_a_recurrence_that_is_not_pytorchs_is_refused(
    tmp_path: Path, attributes: Mapping[str, Any], message: str
) -> None:
    network = recurrent("GRU", 3, ["h0"], linear_before_reset=1, **attributes)
    start = {name: np.ones(shape, np.float32) for name, shape in network.weights.items()}
    made = with_accumulation(network.nodes, network.shape, start, network.constants or {})
    with pytest.raises(UnsupportedLayerError, match=message):
        import_training(load_onnx(saved(tmp_path, made)))


def test_a_transposition_is_cut_along_dimensions_that_are_not_1(tmp_path: Path) -> None:
    network = next(item for item in NETWORKS if item.name == "a transposition of stacks")
    start = {name: np.ones(shape, np.float32) for name, shape in network.weights.items()}
    made = with_accumulation(network.nodes, network.shape, start, network.constants or {})
    graph = import_training(load_onnx(saved(tmp_path, made))).phases.mini_batch
    (op,) = (op for op in graph.ops if op.primitive == "transpose")
    assert graph.tensors[op["y"]].shape == (1, 2, 4, 3)
