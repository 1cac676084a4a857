# SPDX-License-Identifier: Apache-2.0
"""The evidence of loop nests is what the measured rows say: which nests a row is made of, and no others."""

from __future__ import annotations

import csv
import gzip
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from arch.blocks.master import Master
from arch.spec.program import Compute
from arch.systemc.module import Body, Thread
from configs.errors import ConfigError
from configs.grades import DESCRIBED, ESTIMATED, LABELS, MEASURED
from scheduler.validation.rows import machines
from scheduler.validation.rows.cases import Case
from scheduler.validation.rows.kinds import kind_named
from shared import paths
from trainlib.kernels.evidence import NestEvidence, nest_evidence, on_machine
from trainlib.kernels.library import LIBRARY, sibling
from trainlib.kernels.nodes import Choice, Counted, NestNode

_ROWS = re.compile(r"[\w-]+\.csv( \w+=[^\s;]+)+(; [\w-]+\.csv( \w+=[^\s;]+)+)*")


def parse_rows(text: str) -> tuple[tuple[str, Mapping[str, tuple[str, ...]]], ...]:
    """``layer.csv primitive=relu step=FW|IG; mm.csv kernel=mm`` as (file, column -> values).

    Raises `ValueError` for any other text.
    """
    if _ROWS.fullmatch(text) is None:
        raise ValueError(f"rows are named as 'mm.csv kernel=mm', not {text!r}")
    found = []
    for part in text.split("; "):
        file, *cells = part.split(" ")
        pairs = (cell.partition("=") for cell in cells)
        found.append((file, {column: tuple(values.split("|")) for column, _, values in pairs}))
    return tuple(found)


FOLDER = paths.MEASURED
KINDS = {
    "mm.csv": "mm",
    "loops.csv": "loop",
    "layer.csv": "layer",
    "tutorial-anchors.csv": "layer",
    "tiled.csv": "tiled",
    "tiled-layers.csv": "tiled-layers",
}
"""Files whose rows hold kernels, and the KIND that predicts them."""

WHAT = (("codegen", "kernel"), ("codegen", "primitive", "step", "variant", "layout", "workload"))
"""Columns that say which nests a row is made of: its kernel, and the loops around it."""

Nest = tuple[str, str]
ALL: list[Nest] = [
    (codegen, name) for codegen in LIBRARY.codegen_names() for name in LIBRARY.kernel_names(codegen)
]


@cache
def cells(file: str) -> list[dict[str, str]]:
    with gzip.open(FOLDER / f"{file}.gz", "rt", encoding="utf-8") as rows:
        return list(csv.DictReader(rows))


def representatives(file: str) -> list[Case]:
    """Rows that compute, the fastest first, with a kernel or a step (an unrolling: a form) not seen yet."""
    seen: set[tuple[str, ...]] = set()
    found = []
    cases = kind_named(KINDS[file]).read(FOLDER / f"{file}.gz")
    for case in sorted(cases, key=lambda case: case.number("cycles")):
        form = case.cells["parameters"][-2:] if file == "loops.csv" else ""
        keys = {(*(case.cells.get(column, "") for column in columns), form) for columns in WHAT}
        if not keys <= seen and "no_compute" not in case.cells.get("buffering", ""):
            seen |= keys
            found.append(case)
    return found


@cache
def rows_by_nest() -> Mapping[Nest, list[tuple[str, Mapping[str, str]]]]:
    """Of every nest that is simulated to predict rows: the file and the cells of these rows."""
    found: dict[Nest, list[tuple[str, Mapping[str, str]]]] = defaultdict(list)
    used: set[str] = set()
    compute = Master._compute

    def watched(master: Master, action: Compute, thread: Thread) -> Body:
        used.add(action.team.kernel)
        return compute(master, action, thread)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Master, "_compute", watched)
        # Machines that other tests have asked already have the method that was there then.
        patch.setattr(machines, "_soc", cache(machines._soc.__wrapped__))
        for file, kind in KINDS.items():
            for case in representatives(file):
                used.clear()
                kind_named(kind).measure_of(case).predict(case)
                for nest in {(case.text("codegen"), name) for name in used} & set(ALL):
                    found[nest].append((file, case.cells))
    return found


def matching(nest: Nest, text: str) -> Iterator[tuple[str, bool]]:
    """For every selection of rows: its file, and whether a row of it is made of the nest."""
    for file, wanted in parse_rows(text):
        yield (
            file,
            any(
                found == file and all(cells[column] in values for column, values in wanted.items())
                for found, cells in rows_by_nest().get(nest, ())
            ),
        )


def test_a_nest_that_says_measured_has_the_rows_it_names() -> None:
    for codegen, name in ALL:
        found = nest_evidence(codegen, name)
        if found.label == MEASURED:
            origin = LIBRARY.origin(codegen, name)
            selected = list(matching((found.rows_of, name), found.rows))
            # Rows of the file of the base that this codegen does not have are none of its own.
            assert any(has for _, has in selected), (codegen, name)
            assert origin.listed or all(has for _, has in selected), (codegen, name, selected)


def test_a_nest_with_rows_says_measured() -> None:
    stand_in = {("pulp-gcc7", "layer_call")}
    """The code around a matmul is that of clang-xpulp there: part of rows, but not what was measured."""
    for nest in rows_by_nest().keys() - stand_in:
        assert nest_evidence(*nest).label == MEASURED, nest
    assert all(nest_evidence(*nest).label == DESCRIBED for nest in stand_in)


def test_counts_read_off_rows_name_them() -> None:
    for codegen, name in ALL:
        found = nest_evidence(codegen, name)
        for file, wanted in parse_rows(found.fitted) if found.fitted else ():
            assert any(
                row["codegen"] == codegen and all(row[key] in values for key, values in wanted.items())
                for row in cells(file)
            )


def test_files_that_say_fitted_or_solved_have_the_rows_too() -> None:
    root = paths.ROOT / "configs" / "kernels"
    for file in root.glob("*/*.yaml"):
        text = file.read_text(encoding="utf-8")
        said = any(f"# {word}" in text for word in ("fitted", "Counts per level solved", "Levels solved"))
        assert said == ("\nfitted: " in text), file


def test_a_measured_nest_falls_back_to_no_estimate() -> None:
    """For small shapes another nest runs under its name."""
    for codegen, name in ALL:
        if nest_evidence(codegen, name).label == MEASURED:
            for fallback in LIBRARY.kernel(codegen, name).fallbacks:
                assert nest_evidence(codegen, fallback.use).label != ESTIMATED, (codegen, name, fallback.use)


@pytest.mark.parametrize(
    ("nest", "label"),
    [
        (("clang-xpulp", "relu_fw"), MEASURED),
        (("asm-xpulp", "relu_fw"), MEASURED),  # the same compiled code
        (("clang-xpulp-sched", "mm"), MEASURED),  # transformed, with rows of its own
        (("clang-xpulp-sched", "relu_fw"), DESCRIBED),
        (("clang-rv32", "relu_fw"), DESCRIBED),
        (("clang-rv32", "gelu_fw"), ESTIMATED),  # of an estimate
        (("pulp-gcc7", "mm_unroll_4x4"), DESCRIBED),
        (("cortex-m4f", "mm"), ESTIMATED),  # nothing of that codegen was measured
        (("clang-xpulp", "relu_fw_fp16"), DESCRIBED),
        (("clang-xpulp", "mm_fp16"), DESCRIBED),  # a file, with the nest a rule would make
        (("clang-xpulp", "mm_fp16_SIMD_2x4"), ESTIMATED),
        (("clang-xpulp", "adam_fp16"), ESTIMATED),
        (("clang-xpulp", "copy_fp8"), DESCRIBED),  # bytes are only moved
        (("clang-xpulp", "relu_fw_fp8"), ESTIMATED),  # and here converted
        (("asm-xpulp", "asm16_2x4"), MEASURED),
    ],
)
def test_labels_follow_from_the_rules(nest: Nest, label: str) -> None:
    assert nest_evidence(*nest).label == label


def codes(nodes: tuple[NestNode, ...]) -> Iterator[object]:
    """All but the trip counts, which are functions."""
    for node in nodes:
        if isinstance(node, Counted):
            yield node.hardware
            yield from codes(node.body)
        elif isinstance(node, Choice):
            yield from codes(node.then)
            yield from codes(node.otherwise)
        else:
            yield node.instruction, node.increments


def test_a_16_bit_file_that_counts_as_described_is_what_the_rule_makes_of_the_wide_one() -> None:
    for wide in ("mm", "mm_M", "mm_unroll_2x1", "mm_unroll_4x1", "mm_unroll_8x1"):
        narrow = sibling(wide, 2)
        assert LIBRARY.origin("clang-xpulp", narrow).name == wide
        made = LIBRARY._described("clang-xpulp", narrow)
        assert made is not None
        nest = made.transform(LIBRARY.kernel("clang-xpulp", wide).expander.nest)
        assert list(codes(LIBRARY.kernel("clang-xpulp", narrow).expander.nest.body)) == list(codes(nest.body))


def test_no_nest_is_better_than_described_off_the_machine_of_the_rows() -> None:
    there = [on_machine(label, measured_machine=True) for label in LABELS]
    elsewhere = [on_machine(label, measured_machine=False) for label in LABELS]
    assert (there, elsewhere) == ([MEASURED, DESCRIBED, ESTIMATED], [DESCRIBED, DESCRIBED, ESTIMATED])


def test_a_kernel_of_the_user_is_an_estimate_unless_it_names_rows(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    text = "kernel: mine\ncode_bytes: 8\narrays: {X: 1}\n{}nest: |\n  L:X(0) A\n"
    file.write_text(text.replace("{}", ""))
    assert nest_evidence("clang-xpulp", "mine", LIBRARY.with_file("clang-xpulp", file)[0]) == NestEvidence(
        ESTIMATED
    )
    file.write_text(text.replace("{}", "measured: own.csv kernel=mine\n"))
    library, _ = LIBRARY.with_file("clang-xpulp", file)
    assert nest_evidence("clang-xpulp", "mine", library).label == MEASURED
    file.write_text(text.replace("{}", "measured: true\n"))
    with pytest.raises(ConfigError, match="'measured' must select rows of a CSV file of measurements"):
        LIBRARY.with_file("clang-xpulp", file)


def test_rows_are_named_in_one_way() -> None:
    assert parse_rows("layer.csv primitive=relu step=FW|BW; mm.csv kernel=mm") == (
        ("layer.csv", {"primitive": ("relu",), "step": ("FW", "BW")}),
        ("mm.csv", {"kernel": ("mm",)}),
    )
    for text in ("", "mm.csv", "kernel=mm", "mm.csv kernel=mm;layer.csv step=FW"):
        with pytest.raises(ValueError, match="rows are named as"):
            parse_rows(text)
