# SPDX-License-Identifier: Apache-2.0
"""Commands `primitive` that are right: the examples of the primitives, to make mistakes in."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from random import Random
from typing import Any

from trainlib.primitives.definition import DrawnInput, Example, InternalPrimitive
from trainlib.registry import PRIMITIVES, is_internal
from trainlib.training.single import Single, single


@dataclass(frozen=True)
class Case:
    """One example of a primitive."""

    primitive: str
    options: Mapping[str, Any]
    inputs: tuple[DrawnInput, ...]
    batch: int

    @cached_property
    def single(self) -> Single:
        """Its graph, and what is given to it."""
        return single(self.primitive, dict(self.options), self.inputs, batch=self.batch)

    def words(self, generator: Random) -> list[str]:
        """The command line of one of its steps."""
        steps: Sequence[str] = [op.step.lower() for op in self.single.graph.ops] or ["fw"]
        result = ["primitive", self.primitive, "--step", generator.choice(steps)]
        result += ["--batch", str(self.batch)] if self.batch > 1 else []
        for case in self.inputs:
            size = "x".join(map(str, case.shape))
            result += ["--shape", f"{size}:{case.dtype}:{int(case.high)}" if case.dtype else size]
        for key, value in self.options.items():
            result += ["--option", f"{key}={json.dumps(value)}"]
        return result


@cache
def cases() -> Sequence[Case]:
    """All examples."""
    return [
        Case(name, example.attributes, example.cases, example.batches[0])
        for name, primitive in PRIMITIVES.items()
        if not isinstance(primitive, InternalPrimitive) and not is_internal(primitive)
        for example in _taken(primitive.examples)
    ]


def _taken(examples: Sequence[Example]) -> Sequence[Example]:
    return [
        example
        for example in examples
        if all(case.dtype in (None, "int32", "uint8") for case in example.cases)
    ]
