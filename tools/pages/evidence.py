# SPDX-License-Identifier: Apache-2.0
"""docs/evidence.md: what of the cycles rests on measurements, from kernel files, SoC files and runs."""

from __future__ import annotations

import re
from collections import defaultdict

from configs.errors import InputError
from configs.grades import ASSUMED, GRADES, grades
from configs.library import list_names
from configs.parameters import PROFILES, Parameter, load_parameters
from pulptrain.inputs.settings import Settings
from pulptrain.running.session import run_model
from tools.pages.page import Page, accuracy, golden, table
from tools.read_off import counts, read_off
from traces.report import evidence_line
from trainlib.kernels.evidence import NestEvidence, nest_evidence
from trainlib.kernels.library import FP32_BYTES, LIBRARY, WORDS, sibling

DTYPES = {"fp32": "fp32", "fp16": "fp16, bf16"}
"""Format that is run -> those it stands for: fp16 and bf16 run the same instructions."""
BASE = "pulp-open"
NO_UNITS = ("count", "choice", "flag")
"""Of a parameter that is a number of something, a word, or yes or no."""


def nests() -> str:
    """All nests of all codegens; nests with the same to say stand in one row."""
    parts = []
    for codegen in LIBRARY.codegen_names():
        groups: dict[tuple[str, ...], list[str]] = defaultdict(list)
        for name in LIBRARY.kernel_names(codegen):
            found = nest_evidence(codegen, name)
            narrow = (_form(codegen, name, size) for size in sorted(WORDS, reverse=True))
            groups[found.label, *narrow, _rows(found, codegen, name), _of(found.fitted, name)].append(name)
        rows = [
            (*key[:3], *key[3:], " ".join(f"`{name}`" for name in names))
            for key, names in sorted(groups.items(), key=lambda item: (_rank(item[0]), item[1]))
        ]
        titles = ("evidence", "16-bit form", "8-bit form", "measured rows", "rows that set counts", "nests")
        parts.append(f"### {codegen}\n\n{table(titles, rows)}")
    return "\n".join(parts)


def _rank(key: tuple[str, ...]) -> tuple[int, tuple[str, ...]]:
    return ("measured", "described", "estimated").index(key[0]), key[1:]


def _form(codegen: str, name: str, element_bytes: int) -> str:
    """The label of the form of an fp32 nest for narrow elements."""
    if LIBRARY.header(codegen, name).element_bytes != FP32_BYTES:
        return "-"
    try:
        return nest_evidence(codegen, sibling(name, element_bytes)).label
    except InputError:
        return "none"


def _rows(found: NestEvidence, codegen: str, name: str) -> str:
    text = _of(found.rows, name)
    return f"{text} (of {found.rows_of})" if text and found.rows_of != codegen else text


def _of(rows: str, name: str) -> str:
    """Selections of rows, with NAME for the nest itself, so that nests can share a row of the table."""
    return re.sub(rf"kernel={re.escape(name)}(?=[; ]|$)", "kernel=NAME", rows)


def parameters() -> str:
    """How many parameters of every SoC have each grade."""
    trees = [load_parameters(name, profile) for name in _socs() for profile in PROFILES]
    rows = [(tree.name, tree.profile, *counts(tree).values()) for tree in trees]
    return table(("SoC", "timing", *GRADES), rows)


def assumed() -> str:
    """The assumed parameters of every SoC."""
    rows = []
    for name in _socs():
        for profile in PROFILES:
            found = grades(load_parameters(name, profile))
            paths = (f"`{path}`" for path, grade in found.items() if grade == ASSUMED)
            rows.append((name, profile, " ".join(paths)))
    return table(("SoC", "timing", "assumed"), rows)


def constants() -> str:
    """The parameters that were read off measured rows."""
    rows = []
    for item in read_off([load_parameters(name, profile) for name in _socs() for profile in PROFILES]):
        parameter = load_parameters(item.soc, item.profile)[item.path]
        files: dict[str, list[str]] = defaultdict(list)
        for file, benchmark in item.rows:
            benchmarks = files[file]
            if file != f"{benchmark}.csv":
                benchmarks.append(benchmark)
        named = "; ".join(f"{file}: {', '.join(names)}" if names else file for file, names in files.items())
        where = f"{item.soc}, {item.profile}"
        rows.append((f"`{item.path}`", _shown(parameter), where, item.grade, named))
    return table(("parameter", "value", "SoC and timing", "grade", "rows"), rows)


def _shown(parameter: Parameter) -> str:
    """The value with its unit, if that is one."""
    value = "yes" if parameter.value is True else "no" if parameter.value is False else parameter.value
    return f"{value} {parameter.unit}" if parameter.unit not in NO_UNITS else str(value)


def models() -> str:
    """The evidence of an iteration of every model of the zoo in three formats."""
    rows = []
    for name in list_names("models"):
        for dtype, formats in DTYPES.items():
            for timing in PROFILES:
                settings = Settings(dtype=dtype, timing=timing)
                summary = run_model(name, settings, functional=False, traced=False).summary
                rows.append((name, formats, timing, evidence_line(summary["evidence"])))
    return table(("model", "format", "timing", "evidence"), rows)


def _socs() -> list[str]:
    """The base first."""
    return sorted(list_names("soc"), key=lambda name: (name != BASE, name))


PAGE = Page(
    "docs/evidence.md",
    {
        "models": models,
        "nests": nests,
        "parameters": parameters,
        "assumed": assumed,
        "constants": constants,
    },
    {"models": lambda: (golden(), accuracy("layer", "loop", "tiled-layers"), nests(), parameters())},
)
