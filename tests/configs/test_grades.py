# SPDX-License-Identifier: Apache-2.0
"""Every hardware parameter has a grade, and what says measured names rows that are there."""

from __future__ import annotations

import csv
import gzip

import pytest

from configs.grades import ASSUMED, CITED, FITTED, GRADES, MEASURED, assumed_count, grade, grades
from configs.library import list_names
from configs.parameters import PROFILES, ParameterTree, load_parameters
from configs.values import replace
from shared import paths
from tools.read_off import counts, read_off, rows_of

FOLDER = paths.MEASURED
TREES = [load_parameters(name, profile) for name in list_names("soc") for profile in PROFILES]
NAMES = {"dma.csv": "test", "micro.csv": "name", "rtl-dma.csv": "test", "rtl-micro.csv": "name"}
"""The column that holds the name of a benchmark; the rows of other files are all of one."""


def name_of(tree: ParameterTree) -> str:
    return f"{tree.name}-{tree.profile}"


@pytest.mark.parametrize("tree", TREES, ids=name_of)
def test_every_parameter_has_a_grade_and_the_file_says_itself_what_is_assumed(tree: ParameterTree) -> None:
    found = grades(tree)
    assert found.keys() == tree.keys()
    assert set(found.values()) <= set(GRADES)
    assert {path for path, word in found.items() if word == ASSUMED} == {item.path for item in tree.assumed}
    assert assumed_count(tree) == counts(tree)[ASSUMED] == len(tree.assumed)
    # A measurement on GVSoC says nothing about the hardware, one on RTL nothing about GVSoC.
    files = {file for item in read_off([tree]) for file, _ in item.rows}
    assert all(file.startswith("rtl-") == (tree.profile == "rtl") for file in files)


def test_the_rows_a_source_names_are_there() -> None:
    benchmarks: dict[str, set[str]] = {}
    for file in {file for tree in TREES for item in tree.values() for file, _ in rows_of(item)}:
        with gzip.open(FOLDER / f"{file}.gz", "rt", encoding="utf-8") as rows:
            column = NAMES.get(file)
            benchmarks[file] = {row[column] if column else file for row in csv.DictReader(rows)}
    for tree in TREES:
        for item in tree.values():
            for file, benchmark in rows_of(item):
                whole_file = file == f"{benchmark}.csv"
                known = whole_file or any(name.startswith(benchmark) for name in benchmarks[file])
                assert known, (tree.name, item.path, benchmark)
            if grade(item, tree.profile) in (MEASURED, FITTED):
                assert rows_of(item), item.path


def test_the_grade_follows_from_the_source() -> None:
    some = load_parameters("pulp-open", "gvsoc")["dma.wait_done_cycles"]

    def graded(source: str, profile: str = "gvsoc", *, assumed: bool = False) -> str:
        return grade(replace(some, source=source, assumed=assumed), profile)

    assert graded("a manual, page 3") == CITED
    assert graded("a manual, page 3", assumed=True) == ASSUMED
    row = "measured on GVSoC, micro-benchmark 1d (34; of which 16)"
    assert graded(row) == MEASURED
    assert graded(f"a manual; {row}") == MEASURED
    assert graded(row, "rtl") == ASSUMED
    assert graded(f"a manual; {row}", "rtl") == CITED
    assert graded("fitted on GVSoC, tiled-layers (mean)") == FITTED
    assert rows_of(replace(some, source=row)) == (("dma.csv", "1d"),)


def test_what_was_read_off_rows_is_listed_once_with_its_file() -> None:
    found = read_off(TREES)
    assert len({(item.path, item.profile) for item in found}) == len(found)
    by_path = {item.path: item for item in found}
    assert by_path["dma.transfer_code_1d_cycles"].grade == FITTED
    assert [file for file, _ in by_path["dma.transfer_code_1d_cycles"].rows] == ["tiled-layers.csv"]
    assert "core.load_use_stall_cycles" not in by_path, "the manual says the same"
