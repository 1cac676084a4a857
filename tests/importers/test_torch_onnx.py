# SPDX-License-Identifier: Apache-2.0
"""Modules and their ONNX exports: the same cycles, or the reason why not."""

from __future__ import annotations

import warnings

import pytest

from configs.errors import UnsupportedLayerError
from importers.graph.onnx_file import load_onnx
from importers.onnx.forward import import_forward
from importers.torch.module import from_torch
from pulptrain.inputs.settings import Settings
from pulptrain.running.session import run_model

pytestmark = [
    pytest.mark.needs_torch,
    pytest.mark.needs_onnx,
    pytest.mark.needs_onnxscript,
    pytest.mark.slow,
]

FOLDED = "the exporter folds batch norm into the convolution before it"
SCALED = "the exporter scales queries and keys by the root each, PyTorch the scores or the queries"
REFUSED = "refused"

DIFFERENT = {
    "plain_cnn": FOLDED,
    "residual_cnn": FOLDED,
    "separable_cnn": FOLDED,
    "encoder": SCALED,
    "vision_transformer": SCALED,
    "hand_attention": "the exporter writes masked_fill as Where, here a mask is added",
    "dot_attention": "the exporter takes RMSNorm apart, and scales queries and keys by the root each",
    "norms": "the exporter writes group norm as instance norm, Mul and Add",
    "functional": "the exporter gives the convolution the padding, and the product its bias",
    "norm_by_hand": "the exporter computes x - mean once, the module says it twice",
    "einsum": f"{REFUSED}: Einsum stays one node, which the reader of ONNX does not have",
    "embedded": f"{REFUSED}: the exporter unrolls nn.RNN over time",
    "autoencoder": "the exporter writes the slope of a PReLU as a constant, which is not trained",
    "pixel_shuffle": "the exporter's names sort otherwise: equal tensors are placed by name",
    "frozen_backbone": f"{REFUSED}: a trained bias beside a frozen weight",
}
"""Module -> why its export takes other cycles; all others take the same."""


def names():
    """Of the modules; none without PyTorch."""
    try:
        from shared.torch_modules import MODULES
    except ImportError:
        return []
    return list(MODULES)


@pytest.mark.parametrize("name", names())
def test_an_export_takes_the_cycles_of_its_module_or_there_is_a_reason(name, tmp_path):
    import torch

    from shared.torch_modules import made

    module, example = made(name)
    module.eval()
    file = tmp_path / f"{name}.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (example,), str(file), dynamo=True, verbose=False, external_data=False)
    own = from_torch(module, example)
    graph = load_onnx(file)
    parameters = dict(module.named_parameters())
    # Names the exporter has made up are weights it has turned round; single numbers are constants.
    trained = [
        weight
        for weight in graph.trainable
        if (parameters[weight].requires_grad if weight in parameters else graph.initializers[weight].size > 1)
    ]
    reason = DIFFERENT.get(name, "")
    if reason.startswith(REFUSED):
        with pytest.raises(UnsupportedLayerError):
            import_forward(graph, trained=trained)
        return
    exported = import_forward(graph, trained=trained)
    cycles = [
        run_model(model.spec, Settings(), functional=False).summary["cycles"] for model in (own, exported)
    ]
    assert (cycles[0] == cycles[1]) == (not reason), (cycles, reason)
    assert abs(cycles[0] - cycles[1]) <= 0.25 * cycles[0]
