"""Write docs/primitives.md, the table of all training primitives, from what they declare about themselves.

Run it after a change of a primitive or its tests: ``python tools/update_primitives_page.py``. A test compares
the committed page with what this program would write.
"""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from configs.dtypes import BY_WORD
from configs.model_file import LayerSchema, LossSchema, OptimizerSchema
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
from trainlib.single import single
from trainlib.steps import KernelChoice

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "primitives.md"
HARNESS = "test_trainlib_primitives.py"
TESTS = ("test_trainlib_", "test_pulptrain_primitive")
CODEGEN = "clang-xpulp"

INTRODUCTION = """\
# Training primitives

<!-- Written by tools/update_primitives_page.py from trainlib/primitives and tests; do not edit. -->

What a model file may use. `pulptrain primitive NAME --step fw|wg|ig|loss|upd ...` runs one step of any of
them alone. Every layer takes a mini-batch; a step whose result nobody needs is left out of a graph. **Steps**
are those with kernels of their own; an input gradient that is only a view (`flatten`, `add`) needs none.
**Options** in bold must be given, the others have the default shown. **Kernels** are the calls that the
examples of the primitive make, by the names traces show; *matmul* stands for any matmul kernel (`--kernel`),
the defaults behind it. **Tested by**: the number of examples, each run in every step, dtype and batch,
untiled against PyTorch and in tiles of random sizes by `tests/{harness}`; then further files that name it.
A loss is computed in fp32: a narrower output is cast before it, and its gradient after it.

How near is right: max|a - b| / max|b| of every tensor at most 1e-5 in fp32. In narrower formats, with u
their unit roundoff ([dtypes.md](dtypes.md)), 2u for each rounding one behind the other, and in `kernel`
accumulation u·min(n, 6·sqrt(n)) more for sums of n terms that are rounded after every term: the worst case,
or six standard deviations of a random walk (`trainlib.numerics.tolerance`). Only where terms ten times as
large as their sum have cancelled, which the tests measure, the error is one relative to the terms.

How to add one: [adding-a-primitive.md](adding-a-primitive.md).
"""

DEFECTS_INTRODUCTION = """\
## Known defects of PULP-TrainLib

Found by reading and by running the library; the tests show what is right here.
"""

TITLES = ("primitive", "steps", "dtypes", "options", "kernels", "tested by")

SECTIONS = (
    ("Layers", LayerPrimitive, LayerSchema),
    ("Losses", LossPrimitive, LossSchema),
    ("Optimizers", OptimizerPrimitive, OptimizerSchema),
)


def primitives_page() -> str:
    """The whole page, in Markdown."""
    parts = [INTRODUCTION.replace("{harness}", HARNESS)]
    for title, kind, base in SECTIONS:
        found = sorted(
            (item for item in PRIMITIVES.values() if isinstance(item, kind) and not is_internal(item)),
            key=lambda item: item.name,
        )
        parts += [f"## {title}\n", _table(_row(item, base) for item in found)]
    inserted = sorted((item for item in PRIMITIVES.values() if is_internal(item)), key=lambda item: item.name)
    parts += ["## Put into a graph by its builder\n", "No layer of a model file; they show in its ops.\n"]
    parts += [_table(_row(item, LayerSchema) for item in inserted)]
    parts += [DEFECTS_INTRODUCTION, _defects()]
    return "\n".join(parts)


def _row(primitive: Primitive, base: type[Any]) -> tuple[str, ...]:
    examples: Sequence[Example] = getattr(primitive, "examples", ())
    return (
        f"`{primitive.name}`",
        " ".join(step.name for step in primitive.steps) or "none: a view",
        _dtypes(primitive, examples),
        _options(primitive, base),
        _kernels(primitive, examples),
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


def _kernels(primitive: Primitive, examples: Sequence[Example]) -> str:
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
        path.stem
        for path in sorted((ROOT / "tests").glob("test_*.py"))
        if path.name.startswith(TESTS) and path.name != HARNESS and re.search("|".join(words), _text(path))
    ]
    count = f"{examples} example{'s' if examples != 1 else ''}" if examples else ""
    return "; ".join(word for word in (count, ", ".join(own)) if word)


def _text(path: Path) -> str:
    """A test file with the table of cases it may have beside it (test_x.py and x.py)."""
    beside = path.with_name(path.name.removeprefix("test_"))
    texts = [item.read_text(encoding="utf-8") for item in (path, beside) if item.exists()]
    return "\n".join(texts)


def _defects() -> str:
    """tests/known_defects.py as a table; cases of one test side by side."""
    rows = []
    for defect, names in runpy.run_path(str(ROOT / "tests" / "known_defects.py"))["DEFECTS"]:
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
    return _table(rows, ("there", "tested here by"))


def _table(rows: Iterable[Sequence[str]], titles: Sequence[str] = TITLES) -> str:
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write the page."""
    PAGE.write_text(primitives_page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
