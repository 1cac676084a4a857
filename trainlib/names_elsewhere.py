# SPDX-License-Identifier: Apache-2.0
"""What PyTorch, Keras and ONNX call layers, losses and optimizers that have another name here."""

from __future__ import annotations

from collections.abc import Mapping

NAMES_ELSEWHERE: Mapping[str, str] = {
    "adaptiveavgpool2d": "global_avg_pool",
    "addn": "add",
    "attention": "mhsa",
    "averagepool": "avg_pool2d",
    "batchnorm1d": "batch_norm",
    "batchnorm2d": "batch_norm",
    "batchnormalization": "batch_norm",
    "bceloss": "bce",
    "bcewithlogitsloss": "bce_with_logits",
    "binarycrossentropy": "bce",
    "conv": "conv2d",
    "convtranspose": "conv_transpose2d",
    "cosineembeddingloss": "cosine",
    "crossentropyloss": "cross_entropy",
    "dense": "linear",
    "depthwiseconv2d": "depthwise",
    "fc": "linear",
    "fullyconnected": "linear",
    "gap": "global_avg_pool",
    "gemm": "linear",
    "globalaveragepool": "global_avg_pool",
    "hardswish": "hard_swish",
    "hingeembeddingloss": "hinge_embedding",
    "huberloss": "huber",
    "innerproduct": "linear",
    "kldivergence": "kl_div",
    "kldivloss": "kl_div",
    "l1loss": "l1",
    "leakyrelu": "leaky_relu",
    "maxpool": "max_pool2d",
    "mseloss": "mse",
    "multiheadattention": "mhsa",
    "multiheadselfattention": "mhsa",
    "multilabelsoftmarginloss": "bce_with_logits",
    "multimarginloss": "multi_margin",
    "negativeloglikelihood": "nll",
    "negativeloglikelihoodloss": "nll",
    "nllloss": "nll",
    "poissonnllloss": "poisson_nll",
    "relu6": "clip, low: 0, high: 6",
    "selfattention": "mhsa",
    "smoothl1loss": "smooth_l1",
    "softmarginloss": "soft_margin",
    "swish": "silu",
    "upsample": "interpolation",
}
"""Names without case and underscores -> what stands in a model file."""


def name_here(word: str) -> str | None:
    """What a model file calls it; None for words that nobody uses, and those that are ours."""
    return NAMES_ELSEWHERE.get(word.casefold().replace("_", "").replace("-", ""))
