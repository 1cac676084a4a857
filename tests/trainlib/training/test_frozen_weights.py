# SPDX-License-Identifier: Apache-2.0
"""Frozen weights in 8 bits: what is stored and moved, that numbers are right, and what is refused."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from configs.errors import InputError
from configs.model_file import load_model
from configs.model_text import model_text
from pulptrain.inputs.own_values import replaced
from pulptrain.inputs.settings import Settings
from shared.c_kernels import check_case
from shared.kept_plans import run_model
from shared.training_form_models import CNN, changed, graph_of, values_of, written
from trainlib.primitives.lowering.dequantised import quantised
from trainlib.training.phases import build_training_graph, initial_weights

CI, HIDDEN, CO = 64, 32, 4
NET = (
    f"{{name: first, type: linear, out_features: {CI}}}",
    f"{{name: frozen, type: linear, out_features: {HIDDEN}, trainable: false}}",
    "{name: act, type: tanh}",
    f"{{name: last, type: linear, out_features: {CO}}}",
)
INT8 = "frozen_weights: int8"


@pytest.mark.needs_torch
@pytest.mark.parametrize(
    ("shape", "scales"), [((5, 7), (5, 1)), ((6, 4), (1, 4)), ((3, 2, 3, 3), (3, 1, 1, 1))]
)
def test_codes_and_scales_are_those_of_torch(shape, scales) -> None:
    """Per output channel and symmetric; torch rounds as we do, given the scale max |w| / 127."""
    import torch

    weight = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    axis = next(axis for axis, size in enumerate(scales) if size > 1)
    weight[tuple(0 if at == axis else slice(None) for at in range(len(shape)))] = 0  # a channel of zeros
    codes, factors = quantised(weight, scales)
    others = tuple(at for at in range(len(shape)) if at != axis)
    largest = np.abs(weight).max(axis=others)
    np.testing.assert_allclose(factors.reshape(-1)[1:], largest[1:] / 127, rtol=1e-6)
    truth = torch.quantize_per_channel(
        torch.from_numpy(weight),
        torch.from_numpy(factors.reshape(-1)).double(),
        torch.zeros(shape[axis], dtype=torch.long),
        axis,
        torch.qint8,
    )
    np.testing.assert_array_equal(codes, truth.int_repr().numpy())
    np.testing.assert_array_equal(codes * factors, truth.dequantize().numpy())


def test_traffic_and_peak_are_those_of_the_stored_format(tmp_path: Path) -> None:
    """By hand: one byte for each weight and four for the scale of each output channel, in FW and IG."""
    settings = Settings(resident="off", form="readable")  # tables are traffic, too
    plain, stored = (
        run_model(written(tmp_path, layers, shape=f"[{CI}]"), settings, functional=False)
        for layers in (NET, changed(NET, "frozen", INT8))
    )
    weight_bytes = HIDDEN * CI + 4 * HIDDEN
    moved = {op["name"]: op["bytes_in"] for op in stored.summary["ops"]}
    assert moved["frozen.FW"] == 4 * CI + weight_bytes
    assert moved["frozen.IG"] == 4 * HIDDEN + weight_bytes
    saved = 4 * HIDDEN * CI - weight_bytes
    assert plain.summary["bytes_in"] - stored.summary["bytes_in"] == 2 * saved
    peaks = [item.summary["peak_bytes"]["l2"] - item.summary["code_bytes"] for item in (plain, stored)]
    assert peaks[0] - peaks[1] == saved


@pytest.mark.needs_torch
def test_a_network_computes_with_the_converted_weights(tmp_path: Path) -> None:
    """Tiled, in L3, adapters beside them; only frozen weights of the layers that can are stored so."""
    layers = (
        "{name: pw, type: pointwise, out_channels: 5, layout: HWC, adapter: {rank: 2}}",
        "{name: dw, type: depthwise, kernel: 3, padding: 1, trainable: false}",
    )
    path = written(tmp_path, layers, model=INT8, shape="[3, 6, 6]")
    assert f"\n{INT8}\n" in model_text(load_model(path))
    outcome = run_model(path, Settings(l1="14KiB", homes=("*=l3",)))
    assert outcome.summary["functional"]["passed"] is True
    tensors = outcome.schedule.graph.tensors
    stored = {name for name, item in tensors.items() if item.dtype == "int8"}
    assert stored == {"pw.weight", "dw.weight"}
    assert tensors["pw.weight.scale"].shape == (1, 5), "of images HWC the output channels are last"


@pytest.mark.needs_gcc
def test_the_conversion_in_c_gives_the_numbers_of_the_simulator(tmp_path: Path) -> None:
    """Of images HWC, whose scales run along the last axis of the weight."""
    layer = f"{{name: pw, type: pointwise, out_channels: 5, layout: HWC, adapter: {{rank: 2}}, {INT8}}}"
    path = written(tmp_path, (layer,), shape="[3, 4, 4]")
    graph = graph_of(path)
    case = SimpleNamespace(seed=1, example=SimpleNamespace(kernels=()))
    assert check_case(case, graph, values_of(graph, path))["dequantise"] >= 1


def test_own_values_are_stored_as_the_model_says(tmp_path: Path) -> None:
    """Floats of a trained network become codes and scales; what --save-values writes is taken as it is."""
    path = written(tmp_path, changed(NET, "frozen", INT8), shape=f"[{CI}]")
    graph = graph_of(path)
    start = initial_weights(graph, 0)
    weight = np.linspace(-2, 3, HIDDEN * CI, dtype=np.float32).reshape(HIDDEN, CI)
    begun = replaced(graph, start, {"frozen.weight": weight})
    back = begun["frozen.weight"] * begun["frozen.weight.scale"]
    assert np.all(np.abs(back - weight) <= begun["frozen.weight.scale"] * 0.5001)
    again = replaced(graph, start, {name: begun[name] for name in ("frozen.weight", "frozen.weight.scale")})
    np.testing.assert_array_equal(again["frozen.weight"], begun["frozen.weight"])
    with pytest.raises(InputError, match=r"'frozen\.weight\.scale' is missing"):
        replaced(graph, start, {"frozen.weight": begun["frozen.weight"]})


@pytest.mark.parametrize(
    ("layers", "model", "message"),
    [
        (
            changed(NET, "last", INT8),
            "",
            r"form\.yaml:14: .*int8 is only for frozen weights, but weight of this layer is trained",
        ),
        (changed(NET, "frozen", INT8), "train: [frozen]", r"but the layer has"),
        (changed(NET, "last", INT8), "train: [last]", r"weight of this layer is trained"),
        (
            changed(NET, "act", INT8),
            "",
            r"form\.yaml:13: .*weights of tanh cannot be stored in that format\n  try: .*lin",
        ),
        (changed(NET, "frozen", "frozen_weights: int4"), "", r"form\.yaml:12: 'frozen_weights' .*'int8'"),
        (NET, "frozen_weights: fp8", r"form\.yaml:9: 'frozen_weights' .*'int8'"),
        (
            changed(CNN, "norm1", f"{INT8}, trainable: false"),
            "",
            r"weights of batch_norm cannot be stored",
        ),
        (
            (
                *changed(NET, "frozen", INT8)[:2],
                "{name: last, type: linear, out_features: 32, weights_of: frozen}",
            ),
            "",
            r"needs a weight .* float32, but the shared frozen.weight has .* int8",
        ),
    ],
)
def test_wrong_uses_are_refused_with_their_place(tmp_path: Path, layers, model, message) -> None:
    path = written(tmp_path, layers, model=model, shape="[3, 5, 4]" if layers[0] == CNN[0] else f"[{CI}]")
    with pytest.raises(InputError, match=message):
        build_training_graph(load_model(path))
