# SPDX-License-Identifier: Apache-2.0
"""The losses at the end of a graph: numbers of all samples, added and multiplied, as losses of ours."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from configs.errors import UnsupportedLayerError
from configs.model_file import LossSpec
from configs.values import replace
from importers.graph.arranging import Site
from importers.graph.draft import CannotTakeError, Draft, elements
from importers.graph.node import Handler, Node
from importers.graph.terms import Term, Terms
from importers.graph.views import BATCH, View
from importers.place.pairs import number_of, scaled, shifted


def either(special: Callable[[Node], Any], plain: Handler | None) -> Handler:
    """What `special` makes of a node, or `plain` where that is None and no operand is a loss."""

    def read(node: Node) -> Any:
        terms = special(node)
        if terms is not None:
            return terms
        if plain is None or any(isinstance(item, Terms) for item in node.arguments.values()):
            raise CannotTakeError(
                "computing with losses or sums over samples is not supported, except adding and scaling",
                "add losses, and multiply each by a constant",
            )
        return plain(node)

    return read


def met(node: Node, view: View, over: Collection[int], kind: str, *, keep: object) -> Terms | None:
    """The mean or sum (`kind`) of everything that all samples have; None for what each has of its own."""
    if not any(BATCH in view.dims[dim] for dim in over) and (view.batch > 1 or node.shape):
        return None
    if any(size != 1 for dim, size in enumerate(view.shape) if dim not in over) or keep:
        raise CannotTakeError(
            "a mean or sum over the batch is supported only if its result is a single number",
            "average or sum over all elements at the end of the loss",
        )
    return Terms((Term("output", {"reduction": kind}, view),))


def added(left: Any, right: Any, factor: float = 1.0) -> Terms | None:
    """left + factor · right of numbers of all samples; None where neither is one."""
    if isinstance(left, Terms) and isinstance(right, Terms):
        return left.plus(right.times(factor))
    if isinstance(left, Terms) and (number := number_of(right)) is not None:
        return left.plus(Terms((), factor * number))
    if isinstance(right, Terms) and (number := number_of(left)) is not None:
        return Terms((), number).plus(right.times(factor))
    return None


def multiplied(left: Any, right: Any) -> Terms | None:
    """Such a number times one that is constant; None where it is none."""
    for one, other in ((left, right), (right, left)):
        if isinstance(one, Terms) and (number := number_of(other)) is not None:
            return one.times(number)
    return None


def divided(left: Any, right: Any) -> Terms | None:
    """Such a number divided by a constant that is not 0; None where it is none."""
    number = number_of(right)
    return left.times(1 / number) if isinstance(left, Terms) and number else None


def default_loss(shape: Sequence[int]) -> LossSpec:
    """That of an output of which nobody says one: of class numbers for [batch, classes], else mse.

    Over one class the cross-entropy is 0 whatever the network does.
    """
    has_classes = len(shape) == 2 and shape[1] > 1
    return LossSpec("cross_entropy", {"labels": "hard"}) if has_classes else LossSpec("mse")


def default_note(loss: LossSpec) -> str:
    """What is said of a loss that nobody has chosen."""
    return f"the loss is {loss.name}: choose one with --loss"


def losses_of(
    draft: Draft, terms: Terms, end: Callable[[View], str], stored: Callable[[View], str]
) -> tuple[list[LossSpec], dict[str, str]]:
    """The losses whose sum is trained, and the labels: inputs that are only compared with, and their names.

    What is not needed for them leaves the draft. `end` gives the layer of an output, `stored` the word of a
    target. Raises as `_specs`.
    """
    specs = _specs(draft, terms)
    words = [end(view) for _, view, _ in specs]
    targets = [None if target is None else stored(target) for _, _, target in specs]
    draft.without_unused(*words, *(word for word in targets if word is not None))
    read = {word for layer in draft.layers for word in layer.inputs or ()}
    labels = [word for word in dict.fromkeys(targets) if word in draft.inputs and word not in read]
    names = {word: "label" if number == 0 else word for number, word in enumerate(labels)}
    last = draft.layers[-1].name
    draft.inputs = [word for word in draft.inputs if word not in names]
    losses = [
        replace(
            spec,
            of=None if word == last else word,
            target=None if target in names else target,
            label=names.get(target) if target is not None else None,
        )
        for (spec, _, _), word, target in zip(specs, words, targets, strict=True)
    ]
    return losses, {str(word): name for word, name in names.items()}


def _specs(draft: Draft, terms: Terms) -> list[tuple[LossSpec, View, View | None]]:
    """The losses, and the output and target of each as they are stored; the constant is in one of them.

    Raises UnsupportedLayerError for what cannot be a sum of losses with weights above 0.
    """
    items = [
        _positive(draft, item, number) for number, item in enumerate(terms.items, start=1) if item.weight
    ]
    if terms.constant:
        index = next((index for index, item in enumerate(items) if item.name == "output"), None)
        if index is None:
            raise UnsupportedLayerError(
                f"the loss adds the constant {terms.constant:g}, which is not supported",
                where="loss",
                cure="remove the constant, which has no gradient",
            )
        items[index] = _with(draft, items[index], terms.constant)
    if not items:
        raise UnsupportedLayerError(
            "the loss does not depend on the module",
            where="loss",
            cure="use a loss that depends on the module",
        )
    return [(_spec(item), item.view, item.target) for item in items]


def _spec(item: Term) -> LossSpec:
    weight = {} if item.weight == 1 else {"weight": item.weight}
    return LossSpec(item.name, {**item.options, **weight}, "loss")


def _positive(draft: Draft, item: Term, number: int) -> Term:
    """With a weight above 0: a sum of negatives is the negative of a sum."""
    if item.weight > 0:
        return item
    if item.name != "output":
        raise UnsupportedLayerError(
            f"the loss term {item.name} is subtracted, but such terms can only be added",
            where="loss",
            cure="use a positive weight, or write the formula in torch",
        )
    turned = scaled(Site(draft, f"loss_{number}", "loss"), item.view, -1.0, suffix="_turned")
    return replace(item, view=turned, weight=-item.weight)


def _with(draft: Draft, item: Term, constant: float) -> Term:
    """A loss that is the output itself, with a constant as part of it."""
    share = constant / item.weight
    if item.options["reduction"] == "sum":
        share /= elements(item.view.shape)
    return replace(item, view=shifted(Site(draft, "loss", "loss"), item.view, share, suffix="_constant"))
