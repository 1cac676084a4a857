# SPDX-License-Identifier: Apache-2.0
"""What a training script computes: a module, and a loss of what it returns and of labels."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, Signature
from typing import Any

from configs.values import replace
from importers.graph.draft import RESERVED


def _places(function: Callable[..., Any]) -> list[str]:
    """Names of the arguments that a function takes by their place; none if it does not say."""
    try:
        items = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [item.name for item in items if item.kind < item.VAR_POSITIONAL]


def _filled(names: Sequence[str], count: int, what: str) -> list[str]:
    """So many names."""
    return [*names, *(f"{what}_{number}" for number in range(len(names) + 1, count + 1))]


def _distinct(names: Sequence[str], taken: Sequence[str]) -> list[str]:
    """The names, with a number where one is taken."""
    named: list[str] = []
    for name in names:
        wanted, number = name, 2
        while wanted in (*taken, *named):
            wanted, number = f"{name}_{number}", number + 1
        named.append(wanted)
    return named


@dataclass(frozen=True, slots=True)
class Script:
    """`loss` is called with what a module returns and with labels.

    `examples` are the inputs, then the labels; `names` what each is called, `inputs` how many are inputs.
    """

    loss: Callable[..., Any]
    examples: tuple[Any, ...]
    names: tuple[str, ...]
    inputs: int

    @classmethod
    def of(cls, module: Any, loss: Callable[..., Any], inputs: tuple[Any, ...], labels: Any) -> Script:
        """A script with these examples."""
        given = () if labels is None else tuple(labels) if isinstance(labels, tuple | list) else (labels,)
        names = ["input"]
        if len(inputs) > 1:
            wanted = _filled(_places(module.forward)[: len(inputs)], len(inputs), "input")
            names = _distinct(wanted, RESERVED[1:])
        last = _places(getattr(loss, "forward", loss))[-len(given) :] if given else []
        wanted = _filled(last, len(given), "label")
        return cls(loss, (*inputs, *given), (*names, *_distinct(wanted, (*RESERVED, *names))), len(inputs))

    def around(self, module: Any) -> Any:
        """A module with the parameters of `module`, whose forward returns the loss."""
        whole, kind, script = copy.copy(module), type(module), self

        def forward(self: Any, *arguments: Any) -> Any:
            return script.value(kind.forward, self, arguments)

        parameters = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in ("self", *self.names)]
        forward.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        whole.__class__ = type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})
        return whole

    def value(self, forward: Callable[..., Any], module: Any, arguments: Sequence[Any]) -> Any:
        """The loss of a module for inputs and labels."""
        outputs = forward(module, *arguments[: self.inputs])
        results = outputs if isinstance(outputs, tuple | list) else (outputs,)
        return self.loss(*results, *arguments[self.inputs :])

    def computed(self, module: Any, sample: Mapping[str, Any]) -> Any:
        """The loss of a module for tensors by the names of the network's."""
        arguments = [
            sample[name].reshape(item.shape) for name, item in zip(self.names, self.examples, strict=True)
        ]
        return self.value(type(module).forward, module, arguments)

    def with_label(self, name: str | None) -> Script:
        """With the label of this name as networks call their first."""
        return replace(self, names=tuple("label" if item == name else item for item in self.names))
