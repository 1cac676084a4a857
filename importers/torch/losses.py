# SPDX-License-Identifier: Apache-2.0
"""Losses of PyTorch as ours, with their options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from configs.errors import UnsupportedLayerError
from configs.model_file import LossSpec
from configs.values import replace
from importers.place.losses import default_loss
from importers.training_text import parse_loss
from trainlib.registry import is_over_alignments, loss_primitive

NEGATIVE_LOG = "nll"
"""Of log-probabilities: their cross-entropy."""

_NAMES = {
    "bce": "BCELoss binary_cross_entropy",
    "bce_with_logits": "BCEWithLogitsLoss binary_cross_entropy_with_logits "
    "MultiLabelSoftMarginLoss multilabel_soft_margin_loss",
    "cross_entropy": "CrossEntropyLoss cross_entropy cross_entropy_loss",
    "hinge_embedding": "HingeEmbeddingLoss hinge_embedding_loss",
    "huber": "HuberLoss huber_loss",
    "kl_div": "KLDivLoss kl_div",
    "l1": "L1Loss l1_loss",
    "mse": "MSELoss mse_loss",
    "multi_margin": "MultiMarginLoss multi_margin_loss",
    NEGATIVE_LOG: "NLLLoss nll_loss nll_loss_nd",
    "poisson_nll": "PoissonNLLLoss poisson_nll_loss",
    "smooth_l1": "SmoothL1Loss smooth_l1_loss",
    "soft_margin": "SoftMarginLoss soft_margin_loss",
}
"""Our loss -> its classes in torch.nn, functions in torch.nn.functional, and ops of ATen."""

LOSSES = {name: ours for ours, names in _NAMES.items() for name in names.split()}

_THEIRS = {"class_weights": "weight", "element_weights": "weight"}
"""Our option -> theirs, where it has another name."""

_NOT_THEIRS = ("name", "weight", "labels")
"""Keys of our losses that no loss of PyTorch has: its weight is another."""

_MEANS_NONE = -100
"""Their ignore_index, unless it is said."""


def loss_of(torch: Any, given: Any, shape: Sequence[int]) -> LossSpec:
    """Our loss for text, a loss of torch.nn (module or class) or a function of torch.nn.functional.

    The function may be a `functools.partial` that has its options. `shape` is that of the output: None is
    cross_entropy of class numbers for [batch, classes], else mse. Raises UnsupportedLayerError.
    """
    if given is None:
        return replace(default_loss(shape), where="loss")
    if isinstance(given, LossSpec):
        return given
    if isinstance(given, str):
        return parse_loss(given, "loss")
    return spec_of(torch, *_name_and_options(torch, given), shape)


def is_ours(torch: Any, given: Any) -> bool:
    """Whether `loss_of` knows what is given; else it is a loss that a script has written."""
    if not callable(given):
        return True
    name, _ = _name_and_options(torch, given)
    return name in LOSSES or is_over_alignments(name)


def spec_of(torch: Any, name: str, said: Mapping[str, Any], shape: Sequence[int]) -> LossSpec:
    """Our loss for the name of one of PyTorch and its options, of an output of this `shape`."""
    if is_over_alignments(name):
        loss_primitive(name, "loss")
    if name not in LOSSES:
        raise _unknown(name)
    kind = LOSSES[name]
    schema = loss_primitive(kind).schema.model_fields
    options: dict[str, Any] = {"labels": "hard"} if kind == "cross_entropy" else {}
    for key, item in schema.items():
        theirs = _THEIRS.get(key, key)
        if key not in _NOT_THEIRS and said.get(theirs) is not None:
            value = _option(torch, name, key, said[theirs], shape)
            if value != item.default:
                options[key] = value
    if options.get("beta") == 0:  # PyTorch's own limit
        kind = "l1"
        del options["beta"]
    if kind == "bce_with_logits" and name[:5].lower() == "multi" and options.get("reduction") == "sum":
        options["weight"] = 1 / shape[-1]  # of each sample the mean over the classes
    return LossSpec(kind, options, "loss")


def _name_and_options(torch: Any, given: Any) -> tuple[str, Mapping[str, Any]]:
    """Name of a loss of PyTorch and its options."""
    if isinstance(given, torch.nn.Module):
        return type(given).__name__, {**vars(given), **dict(given.named_buffers())}
    if isinstance(given, partial):
        return getattr(given.func, "__name__", str(given.func)), given.keywords
    return getattr(given, "__name__", str(given)), {}


def _unknown(name: str) -> UnsupportedLayerError:
    return UnsupportedLayerError(
        f"unknown loss {name}",
        where="loss",
        cure=f"use {', '.join(sorted(item for item in LOSSES if item[0] < 'a'))}, or a loss of pulptrain "
        "(`pulptrain list primitives`)",
    )


def _option(torch: Any, name: str, key: str, value: Any, shape: Sequence[int]) -> Any:
    """The value of our option."""
    if key == "reduction" and value == "none":
        raise UnsupportedLayerError(
            f"{name} with reduction='none' returns a loss per sample, not one number",
            where="loss",
            cure="use reduction='mean' or 'sum', or .mean() at the end of a loss written in torch",
        )
    if key == "ignore_index":
        return None if value == _MEANS_NONE else value
    if not isinstance(value, torch.Tensor):
        return value
    return (
        value.tolist() if key == "class_weights" else _per_channel(name, _THEIRS.get(key, key), value, shape)
    )


def _per_channel(name: str, option: str, value: Any, shape: Sequence[int]) -> float | list[float]:
    """A tensor that PyTorch broadcasts against the output: a number, or one for each channel."""
    if value.numel() == 1:
        return float(value)
    aligned = (1,) * (len(shape) - value.ndim) + tuple(value.shape)
    if aligned != tuple(size if axis == 1 else 1 for axis, size in enumerate(shape)):
        raise UnsupportedLayerError(
            f"{name} has {option} of shape {list(value.shape)}, but the network's output has shape "
            f"{list(shape)}",
            where="loss",
            cure="use one number, or one for each channel (dimension 1 of the output)",
        )
    numbers: list[float] = value.flatten().tolist()
    return numbers
