# SPDX-License-Identifier: Apache-2.0
"""Where the mathematics of an operator is: what references execute, what `truth` has, what tiles call."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache, partial
from types import FrameType
from typing import Any

import numpy as np

from tools.pages.page import Page, table
from tools.pages.primitives import kernels_of
from trainlib.primitives.definition import Example, Step
from trainlib.primitives.derivative import constant
from trainlib.references.reference import evaluate
from trainlib.registry import PRIMITIVES, step_of
from trainlib.training.single import single

TWELVE = (
    *("softmax", "layer_norm", "batch_norm", "gru", "adamw", "max_pool2d", "gelu", "cross_entropy"),
    *("conv2d", "rms_norm", "lstm", "prelu"),
)

ROOM = "trainlib/primitives/"

ENGINE = (
    *("lowering/", "definition.py", "formulas.py", "derivative.py", "norms/norm.py", "losses/labels.py"),
    *("elementwise/entry.py", "losses/entry.py", "optimizers/entry.py"),
    *("recurrent/recurrent_reference.py", "recurrent/recurrent_layer.py"),
)
"""What arranges arrays and calls formulas: no mathematics of an operator."""

ELEMENTARY = ("elementwise/functions.py", "recurrent/recurrent.py")
"""Functions that several formulas call, as they call those of NumPy: the logistic one, say."""

MOVED = ("_aligned", "windows", "ordered")
"""What gives an array another shape, or arguments another order, and computes nothing."""


def computing(evaluate: Callable[[], object]) -> set[tuple[str, int]]:
    """Functions of primitives that have seen floats meanwhile: file below trainlib/primitives/, line."""
    found = set()

    def look(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        file = code.co_filename.partition(ROOM)[2]
        if event != "call" or not file or file.startswith(ENGINE) or code.co_name in MOVED:
            return
        for value in frame.f_locals.values():
            for item in value if isinstance(value, tuple | list) else (value,):
                array = constant(item)
                if isinstance(array, np.ndarray | np.floating) and array.dtype.kind == "f":
                    found.add((file, code.co_firstlineno))

    sys.setprofile(look)
    try:
        evaluate()
    finally:
        sys.setprofile(None)
    return found


def examples_of(name: str) -> tuple[Example, ...]:
    """Those of a primitive; none of one that a builder inserts."""
    return getattr(PRIMITIVES[name], "examples", ())


@cache
def formulas_of(name: str) -> tuple[str, ...]:
    """Modules of the formulas that are tile and untiled reference at once; none of a primitive without."""
    found = set()
    for example in examples_of(name):
        made = single(name, example.attributes, example.cases, batch=2, dtype="fp32", seed=1)
        known = evaluate(made.graph, dict(made.values))
        for op in (op for op in made.graph.ops if op.primitive == name and step_of(op).formula):
            read = {role: known[op[role]] for role in op.reads}
            executed = computing(partial(step_of(op).reference, op, read))
            found |= {file for file, _ in executed}
    return tuple(sorted(found.difference(ELEMENTARY)))


def written_apart(name: str) -> tuple[str, ...]:
    """Modules of the references of steps without a formula."""
    steps: tuple[Step, ...] = PRIMITIVES[name].steps
    modules = {
        step.reference.__module__.removeprefix("trainlib.primitives.") for step in steps if not step.formula
    }
    return tuple(sorted(f"{module.replace('.', '/')}.py" for module in modules))


def truth_of(name: str) -> tuple[str, ...]:
    """Tables of `truth` with an entry of this name."""
    from truth import layers, steps

    tables: dict[str, Any] = {"LAYERS": layers.LAYERS, "LOSSES": steps.LOSSES, "OPTIMIZERS": steps.OPTIMIZERS}
    return tuple(
        f"{'layers' if word == 'LAYERS' else 'steps'}.py: {word}"
        for word, entries in tables.items()
        if name in entries
    )


def mathematics() -> str:
    """A row for each of the twelve."""
    rows = []
    for name in TWELVE:
        formulas, others = formulas_of(name), written_apart(name)
        cells = (", ".join(f"`{file}`" for file in files) for files in (formulas, others, truth_of(name)))
        rows.append((f"`{name}`", *cells, kernels_of(PRIMITIVES[name], examples_of(name))))
    return table(("operator", "formula", "references written apart from tiles", "truth/", "nests"), rows)


PAGE = Page("docs/adding-a-primitive.md", {"mathematics": mathematics})
