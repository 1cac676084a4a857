# SPDX-License-Identifier: Apache-2.0
"""The losses of a network in its training graph: each of a layer's output, with labels or a target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from configs.dtypes import FP32
from configs.errors import ConfigError, ShapeError
from configs.model_file import LossSpec, ModelSpec
from configs.suggest import check_known
from configs.values import Struct, replace
from trainlib.ir.graph import Tensor
from trainlib.primitives.definition import LabelPlan, LossPrimitive
from trainlib.registry import loss_primitive
from trainlib.training.builder import GraphBuilder
from trainlib.training.built_layer import gradient_name, where_of
from trainlib.training.options import loss_options

LOSS = "loss"
"""Tensor of the first loss; those of others have their number behind it."""

Made = Mapping[str, Sequence[str]]
"""Input or layer -> the tensors it gives."""


@dataclass(slots=True)
class Terms:
    """The losses as they stand in a graph: names of tensors; `outputs` is what each is of."""

    outputs: list[str] = field(default_factory=list)
    labels: dict[str, LabelPlan] = field(default_factory=dict)
    losses: list[str] = field(default_factory=list)
    seeds: dict[str, str] = field(default_factory=dict)
    """Gradient that a loss makes -> the output it is of."""


class Term(Struct, frozen=True):
    """A loss before it stands in the graph: tensors it is of and reads as labels, if it has any."""

    primitive: LossPrimitive
    options: Mapping[str, Any]
    output: str
    label: str | None


def add_losses(builder: GraphBuilder, spec: ModelSpec, made: Made) -> Terms:
    """All losses of a model behind its layers, each computed in fp32; their gradients are still to be summed.

    Raises ShapeError and ConfigError with the place of the loss: of a layer that is not there, labels that
    two losses want in two shapes, a target of another shape than the labels it stands for.
    """
    terms = Terms()
    read = [_read(builder, spec, loss, made, terms) for loss in spec.losses]
    expected = builder.contributions([term.output for term in read])
    for number, term in enumerate(read, start=1):
        name = LOSS if number == 1 else f"{LOSS}_{number}"
        ending = f"@{name}" if expected[term.output] > 1 else ""
        emit_loss(builder, terms, term, name, name, ending)
    return terms


def emit_loss(builder: GraphBuilder, terms: Terms, term: Term, layer: str, name: str, end: str = "") -> None:
    """The op of a loss into tensor `name`; its gradient has `end` behind its name if there are others."""
    builder.add(Tensor(name, (1,), "loss"))
    shape = builder.tensors[term.output].shape
    seed = builder.add(Tensor(gradient_name(term.output) + end, shape, "gradient"))
    roles = {"y": term.output, "dy": seed, "loss": name} | ({"label": term.label} if term.label else {})
    reads = [role for role in term.primitive.step.reads if role in roles]
    builder.emit(term.primitive.op(layer, roles, term.options, reads=reads))
    terms.outputs.append(term.output)
    terms.losses.append(name)
    terms.seeds[seed] = term.output


def add_label(builder: GraphBuilder, name: str, plan: LabelPlan, where: str, terms: Terms) -> str:
    """The label tensor of that name; ConfigError where another loss wants it otherwise."""
    if name not in terms.labels:
        builder.add(Tensor(name, plan.shape, "label", plan.dtype))
    elif terms.labels[name] != plan:
        raise ConfigError(
            f"two losses share the labels '{name}', but one needs {_text(terms.labels[name])} and one "
            f"{_text(plan)}",
            where=where,
            cure="use a separate 'label' for each loss",
        )
    terms.labels[name] = plan
    return name


def _text(plan: LabelPlan) -> str:
    kind = f"{plan.classes} classes" if plan.classes else "numbers"
    return f"{list(plan.shape[1:])} {plan.dtype} ({kind})"


def _read(builder: GraphBuilder, spec: ModelSpec, loss: LossSpec, made: Made, terms: Terms) -> Term:
    where = loss.where or spec.where
    primitive = loss_primitive(loss.name, where)
    options = loss_options(loss, primitive)
    last = spec.layers[-1].name
    if loss.of is None and len(made[last]) != 1:
        raise ShapeError(
            "the last layer has several outputs, so the loss must name one of them in 'of'",
            where=where_of(spec.layers[-1]),
            cure=f"add 'of: {last}.1' (or another output) to the loss",
        )
    output = _in_fp32(builder, spec, loss.of or last, made, where, "the loss, of:")
    plan = primitive.plan(options, builder.tensors[output], where)
    if plan is None:
        if loss.target is not None:
            raise ConfigError(f"the loss {loss.name} uses no labels", where=where, cure="remove 'target'")
        return Term(primitive, options, output, None)
    if loss.target is None:
        if builder.tensors[output].shape[0] != spec.batch:
            raise ShapeError(
                f"the loss compares labels of {spec.batch} samples with one sample ({output})",
                where=where,
                cure="remove 'once' from the `parameter`, or use the loss output",
            )
        return Term(primitive, options, output, add_label(builder, str(loss.label), plan, where, terms))
    target = builder.tensors[_in_fp32(builder, spec, loss.target, made, where, "target:")]
    if (target.shape, target.dtype) != (plan.shape, plan.dtype):
        raise ShapeError(
            f"the target {loss.target} has shape {list(target.shape[1:])} and dtype {target.dtype}, "
            f"but the loss needs {_text(plan)}",
            where=where,
            cure=f"use a target of {_text(plan)}, or 'label' instead of 'target'",
        )
    return Term(primitive, options, output, target.name)


def _in_fp32(builder: GraphBuilder, spec: ModelSpec, word: str, made: Made, where: str, what: str) -> str:
    """The tensor of ``layer`` or ``layer.number``, cast if its format is another."""
    tensor = tensor_named(word, made, where, what)
    name = word.partition(".")[0]
    layer = next((layer for layer in spec.layers if layer.name == name), spec.layers[-1])
    return builder.cast(replace(layer, name=f"{layer.name}.loss"), tensor, FP32)


def tensor_named(word: str, made: Made, where: str, what: str) -> str:
    """The tensor of ``layer``, or of ``layer.number`` of one with several; ShapeError where there is none."""
    name, _, number = word.partition(".")
    check_known(name, made, f"{what} '{word}' is not an earlier layer", where, error=ShapeError)
    tensors = made[name]
    if number and not (number.isascii() and number.isdigit() and int(number) < len(tensors)):
        message = f"'{word}' is not an output: layer {name} has {len(tensors)} outputs"
        raise ShapeError(message, where=where, cure=f"use {name}.0 to {name}.{len(tensors) - 1}")
    return tensors[int(number or 0)]
