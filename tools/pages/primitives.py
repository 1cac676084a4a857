# SPDX-License-Identifier: Apache-2.0
"""docs/primitives.md, the tables of all training primitives, from what they declare about themselves."""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from configs.dtypes import BY_WORD
from configs.model_file import LayerSchema, LossSchema, OptimizerSchema
from tools.pages.page import ROOT, Page, table
from trainlib.ir.steps import KernelChoice
from trainlib.kernels import catalogue
from trainlib.primitives.definition import (
    Example,
    InternalPrimitive,
    LayerPrimitive,
    LossPrimitive,
    OptimizerPrimitive,
    Primitive,
)
from trainlib.registry import PRIMITIVES, is_internal, lowering_of
from trainlib.training.single import single
from trainlib.training.variants import variants_text

TESTS = ROOT / "tests"
HARNESS = "test_primitives.py"
CODEGEN = "clang-xpulp"

TITLES = ("primitive", "steps", "dtypes", "options", "variants", "kernels", "tested by")


def declared(kind: type[Primitive], base: type[Any]) -> str:
    """The primitives of a kind that a model file may use; `base` is the schema all of them have."""
    found = (item for item in PRIMITIVES.values() if isinstance(item, kind) and not is_internal(item))
    return _primitives(found, base)


def inserted() -> str:
    """Those a builder puts into a graph."""
    return _primitives((item for item in PRIMITIVES.values() if is_internal(item)), LayerSchema)


def _primitives(found: Iterable[Primitive], base: type[Any]) -> str:
    return table(TITLES, (_row(item, base) for item in sorted(found, key=lambda item: item.name)))


def _row(primitive: Primitive, base: type[Any]) -> tuple[str, ...]:
    examples: Sequence[Example] = getattr(primitive, "examples", ())
    return (
        f"`{primitive.name}`",
        " ".join(step.name for step in primitive.steps) or "none: a view",
        _dtypes(primitive, examples),
        _options(primitive, base),
        variants_text(primitive),
        kernels_of(primitive, examples),
        _tests(primitive, len(examples)),
    )


def _dtypes(primitive: Primitive, examples: Sequence[Example]) -> str:
    if isinstance(primitive, InternalPrimitive):
        return "those of the gradients"
    found = tuple(dict.fromkeys(dtype for example in examples for dtype in example.dtypes))
    return "all" if found == tuple(BY_WORD) else " ".join(found)


def _options(primitive: Primitive, base: type[Any]) -> str:
    if isinstance(primitive, InternalPrimitive):
        return ""
    words = []
    for name, field in primitive.schema.model_fields.items():
        if name == "learning_rate":
            words.append(f"**{name}**")
        elif name not in base.model_fields:
            words.append(f"**{name}**" if field.is_required() else f"{name}={_value(field.default)}")
    return ", ".join(words)


def _value(default: object) -> str:
    if default is None:
        return "none"
    return str(default).lower() if isinstance(default, bool) else str(default)


def kernels_of(primitive: Primitive, examples: Sequence[Example]) -> str:
    """Kernels of the whole step of every example; matmuls by their defaults."""
    matmuls: dict[str, None] = {}
    loops: dict[str, None] = {}
    known = set(catalogue.kernel_names(CODEGEN))
    for example in examples:
        for batch in example.batches[:2] if isinstance(primitive, LayerPrimitive) else (1,):
            graph = single(
                primitive.name, example.attributes, example.cases, batch=batch, dtype=example.dtypes[0]
            ).graph
            for op in graph.ops:
                lowering = lowering_of(op)
                default = lowering.default_kernel(op)
                ranges = {name: (0, size) for name, size in lowering.extents(op, graph.tensors).items()}
                task = lowering.tile(op, graph.tensors, ranges, KernelChoice(default, CODEGEN))
                for call in task.calls:
                    (matmuls if default and call.kernel in known else loops)[call.kernel] = None
    words = [f"*matmul* ({', '.join(sorted(matmuls))})"] if matmuls else []
    return ", ".join([*words, *sorted(loops)])


def _tests(primitive: Primitive, examples: int) -> str:
    words = [f"[\"']{primitive.name}[\"']"]
    if isinstance(primitive, InternalPrimitive):
        words += [rf"\b{step.name}\b" for step in primitive.steps]
    own = [
        path.relative_to(TESTS).with_suffix("").as_posix()
        for folder, files in (("trainlib", "test_*.py"), ("pulptrain/commands", "test_primitive*.py"))
        for path in sorted((TESTS / folder).rglob(files))
        if path.name != HARNESS and re.search("|".join(words), _text(path))
    ]
    count = f"{examples} example{'s' if examples != 1 else ''}" if examples else ""
    return "; ".join(word for word in (count, ", ".join(own)) if word)


def _text(path: Path) -> str:
    """A test file with the table of cases it may have (test_x.py and shared/trainlib_x.py)."""
    beside = TESTS / "shared" / f"trainlib_{path.name.removeprefix('test_')}"
    texts = [item.read_text(encoding="utf-8") for item in (path, beside) if item.exists()]
    return "\n".join(texts)


def defects() -> str:
    """tests/shared/known_defects.py as a table; cases of one test side by side."""
    rows = []
    for defect, names in runpy.run_path(str(ROOT / "tests" / "shared" / "known_defects.py"))["DEFECTS"]:
        cases: dict[str, list[str]] = {}
        for name in names:
            test, _, case = name.removesuffix("]").partition("[")
            cases.setdefault(test, []).append(case)
        words = [
            f"{test.partition('::')[0]}: {test.partition('::')[2]}"
            + (f" ({', '.join(own)})" if any(own) else "")
            for test, own in cases.items()
        ]
        rows.append((defect, "; ".join(words)))
    return table(("defect of PULP-TrainLib", "test"), rows)


PAGE = Page(
    "docs/primitives.md",
    {
        "layers": partial(declared, LayerPrimitive, LayerSchema),
        "losses": partial(declared, LossPrimitive, LossSchema),
        "optimizers": partial(declared, OptimizerPrimitive, OptimizerSchema),
        "inserted": inserted,
        "defects": defects,
    },
)
