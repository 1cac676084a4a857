# SPDX-License-Identifier: Apache-2.0
"""Predicted against measured: strict reading, closed-form forks, tile loops, DMA series, workers."""

from __future__ import annotations

import csv
import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from arch.spec.isa import CoreWork, Instruction, Loop, Op, TeamWork
from arch.spec.program import Compute, DmaStart, DmaWait
from configs.errors import ConfigError, InputError
from configs.values import replace
from pulptrain.__main__ import run
from pulptrain.inputs.settings import Settings
from pulptrain.running.primitive_run import run_primitive
from scheduler.validation.rows import (
    dma,
    layer,
    layer_steps,
    loop,
    machines,
    mm,
    programs,
    tiled,
    tiled_layers,
)
from scheduler.validation.rows.cases import Case, Column, parse_selection, read_cases
from scheduler.validation.rows.kinds import KINDS
from scheduler.validation.runner import predict_rows, validate
from shared.closed_forms import fork_to_join_cycles
from shared.paths import MEASURED
from tools.validation.sets import SETS
from traces.events import COMPUTE
from trainlib.primitives.definition import DrawnInput

MM_HEADER = (
    "id,soc,timing,bank_conflicts,fpus,codegen,kernel,dtype,n,k,m,trans_b,cores,cycles,cycles_kernel,"
    "instructions,remark"
)
MM_ROW = "r1,pulp-open,gvsoc,0,private,clang-xpulp,mm,fp32,8,8,8,0,2,2000,1980,3000,hand-made"


def mm_file(folder: Path, *rows: str, header: str = MM_HEADER) -> Path:
    path = folder / "mm.csv"
    path.write_text("\n".join((header, *rows)) + "\n")
    return path


def case(columns: tuple[Column, ...], **cells: str | int) -> Case:
    """A row as `read_cases` would give it, on the machine of the measurements."""
    machine = {"soc": "pulp-open", "timing": "gvsoc", "bank_conflicts": 0, "fpus": "private", "cycles": 1}
    texts = {column.name: "" for column in columns} | machine | cells
    values = {
        column.name: texts[column.name]
        if column.least is None
        else (int(texts[column.name]) if texts[column.name] != "" else None)
        for column in columns
    }
    return Case("row", "file:2", values, {name: str(cell) for name, cell in texts.items()})


# Reading


def test_a_compressed_file_reads_like_the_plain_one(tmp_path: Path) -> None:
    plain = mm_file(tmp_path, MM_ROW)
    packed = tmp_path / "mm.csv.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes(), mtime=0))
    (a,), (b,) = read_cases(plain, mm.COLUMNS), read_cases(packed, mm.COLUMNS)
    assert a.values == b.values
    assert a.number("n") == 8
    assert a.cells["remark"] == "hand-made"
    assert (a.where, b.where) == (f"{plain}:2", f"{packed}:2")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (",8,8,8,", ",8,eight,8,", "column 'k': 'eight' is not a whole number"),
        (",8,8,8,", ",8,8.5,8,", "'8.5' is not a whole number"),
        (",8,8,8,", ",0,8,8,", "0 is not between 1"),
        (",8,8,8,", ",8,,8,", "'' is not a whole number"),
        (",8,8,8,", ",99999999999999999999999,8,8,", "is not between"),
        ("fp32", "fp64", "unknown value 'fp64'"),
        (",gvsoc,0,", ",gvsoc,2,", "unknown value '2'"),
        (",2000,", ",0,", "column 'cycles': 0 is not between 1"),
        (",hand-made", "", "16 cells, but the header has 17"),
    ],
)
def test_a_bad_cell_names_its_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = mm_file(tmp_path, MM_ROW, MM_ROW.replace(old, new, 1))
    with pytest.raises(ConfigError, match=r"row|cells") as caught:
        read_cases(path, mm.COLUMNS)
    assert caught.value.where == f"{path}:3"
    assert message in caught.value.message


FILES = {item.kind: item.file for item in reversed(SETS.values())}
"""A measured file of every KIND."""

NO_NUMBERS = ("", "eight", "8.5", "-1", "1e3", "9" * 30, "\u00b2", "\u0663", "nan", "0x8")
"""Cells that hold no whole number, or none that a measurement comes to; two are digits of other alphabets."""

NO_ROW = [
    *(("layer", name, column, "0") for name in ("conv_pw", "sgd", "loss_ce") for column in ("ci", "hi")),
    ("dma-contention-rtl", "seq_1of2", "core1_loads", "64"),
    ("sequence", "double", "dma_line", "65536"),
    ("refill", "in1K", "dma", "in2D 4K line 0"),
    ("refill", "in1K", "dma", "99999x in4K"),
    ("sequence", "double", "kernel_straight_lines", "none"),
]
"""KIND, a text of its row, and a cell that lets nothing be measured: no element, no load, no line."""


def measured_rows(kind: str) -> tuple[list[str], list[list[str]]]:
    """The header and all rows of the measured file of a KIND."""
    text = gzip.decompress((MEASURED / FILES[kind]).read_bytes()).decode()
    header, *rows = csv.reader(text.splitlines())
    # Models that lie beside the measured file are not found beside another.
    return header, [row for row in rows if row[0] not in ("attn", "gru")]


def with_cell(folder: Path, header: list[str], row: list[str], column: str, cell: str) -> Path:
    """A file of one row, one cell of which is another."""
    path = folder / "rows.csv"
    cells = [cell if name == column else old for name, old in zip(header, row, strict=True)]
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([header, cells])
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_a_number_that_is_none_is_refused_with_its_line_and_column_in_every_kind(
    kind: str, tmp_path: Path
) -> None:
    header, rows = measured_rows(kind)
    row = rows[0 if kind == "steps" else -1]  # the last one is of a model beside the file
    numbers = [column for column in KINDS[kind].columns if column.least is not None and column.name in header]
    assert len(numbers) >= 3
    for column in numbers:
        for cell in NO_NUMBERS:
            if not cell and (column.optional or column.extra):
                continue
            path = with_cell(tmp_path, header, row, column.name, cell)
            with pytest.raises(ConfigError, match=f"column '{column.name}'") as caught:
                KINDS[kind].read(path)
            assert caught.value.where == f"{path}:2"
            assert caught.value.exit_code == 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_that_a_kind_does_not_name_may_hold_anything(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header, rows = measured_rows(kind)
    usual = (with_cell(tmp_path, header, row, "", "") for row in rows)
    row = next(
        row for row, path in zip(rows, usual, strict=False) if run(["validate", kind, str(path), "-q"]) == 0
    )
    named = {column.name for column in KINDS[kind].columns} | {*KINDS[kind].named_by, "build"}
    cells = ["eight" if name not in named else old for name, old in zip(header, row, strict=True)]
    path = with_cell(tmp_path, header, cells, "", "")
    capsys.readouterr()
    assert run(["validate", kind, str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == kind


@pytest.mark.parametrize(("kind", "text", "column", "cell"), NO_ROW)
def test_a_row_that_no_machine_can_measure_is_refused_with_its_line(
    kind: str, text: str, column: str, cell: str, tmp_path: Path
) -> None:
    header, rows = measured_rows(kind)
    path = with_cell(tmp_path, header, next(row for row in rows if text in row), column, cell)
    message = (
        r"row '.*(no (element|lines of)|but n_traffic_cores is 0|are not 1 to 64|lines of 65536 B"
        r"|must be a number per kernel)"
    )
    with pytest.raises(InputError, match=message) as caught:
        validate(kind, path, workers=1)
    assert caught.value.where == f"{path}:2"


def test_fewer_bytes_than_a_turn_of_loads_are_predicted(tmp_path: Path) -> None:
    header, rows = measured_rows("dma-contention-rtl")
    path = with_cell(tmp_path, header, rows[-1], "bytes", "8")
    assert len(validate("dma-contention-rtl", path, workers=1).results) == 2


@pytest.mark.parametrize("name", ["id", "soc", "kernel", "k", "cycles", "cycles_kernel", "instructions"])
def test_a_missing_column_is_named(tmp_path: Path, name: str) -> None:
    path = mm_file(tmp_path, MM_ROW, header=MM_HEADER.replace(f"{name},", f"no_{name},", 1))
    with pytest.raises(ConfigError, match=f"column '{name}' is missing") as caught:
        read_cases(path, mm.COLUMNS)
    assert caught.value.where == f"{path}:1"


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        read_cases(tmp_path / "absent.csv", mm.COLUMNS)
    with pytest.raises(InputError, match="no row"):
        read_cases(mm_file(tmp_path), mm.COLUMNS)
    with pytest.raises(ConfigError, match="appears twice"):
        read_cases(mm_file(tmp_path, MM_ROW, header=MM_HEADER.replace("remark", "id")), mm.COLUMNS)
    for content in (b"not gzip", gzip.compress(MM_ROW.encode() * 50)[:-20], gzip.compress(b"\xff\xfe\xff")):
        path = tmp_path / "bad.csv.gz"
        path.write_bytes(content)
        with pytest.raises(InputError, match="cannot be read"):
            read_cases(path, mm.COLUMNS)


def test_rows_are_chosen_by_column_but_all_are_checked(tmp_path: Path) -> None:
    other = MM_ROW.replace("r1,", "r2,").replace(",mm,", ",mm_u2,")
    path = mm_file(tmp_path, MM_ROW, other)
    assert [row.id for row in read_cases(path, mm.COLUMNS, [parse_selection("kernel=mm_u2,mm_4x4")])] == [
        "r2"
    ]
    with pytest.raises(InputError, match="no column 'kernal'"):
        read_cases(path, mm.COLUMNS, [parse_selection("kernal=mm")])
    with pytest.raises(InputError, match="no row of the file matches") as caught:
        read_cases(path, mm.COLUMNS, [parse_selection("kernel=mn"), parse_selection("id=r1")])
    assert caught.value.cure == "use another --where: kernel is one of 'mm', 'mm_u2'; id is one of 'r1', 'r2'"
    bad = mm_file(tmp_path, MM_ROW.replace(",8,8,8,", ",8,x,8,"), other)
    with pytest.raises(ConfigError):
        read_cases(bad, mm.COLUMNS, [parse_selection("kernel=mm_u2")])
    with pytest.raises(InputError, match="is not COLUMN=VALUE"):
        parse_selection("kernel")


@pytest.mark.parametrize(
    ("kind", "file"),
    [
        ("mm", "mm"),
        ("loop", "loops"),
        ("layer", "layer"),
        ("layer", "tutorial-anchors"),
        ("tiled", "tiled"),
        ("tiled-layers", "tiled-layers"),
        ("dma", "dma"),
        ("overlap", "overlap"),
        ("dma-contention", "dma-contention"),
        ("icache", "icache"),
        ("micro", "micro"),
    ],
)
def test_every_measured_file_reads(kind: str, file: str) -> None:
    assert len(KINDS[kind].read(MEASURED / f"{file}.csv.gz")) > 20


def test_a_row_with_two_measured_times_is_two_cases() -> None:
    kind, path = KINDS["icache"], MEASURED / "icache.csv.gz"
    cases = kind.read(path)
    assert [case.id for case in cases[:4]] == ["8-16:cold", "8-16:warm", "8-64:cold", "8-64:warm"]
    assert [kind.measure_of(case).column for case in cases[:2]] == ["cold_iter0_max", "iter3_max"]
    warm = kind.read(path, [parse_selection("measure=warm"), parse_selection("cores=8")])
    assert {(case.cells["measure"], case.text("cores")) for case in warm} == {("warm", "8")}
    with pytest.raises(InputError, match="no measure 'warmer'") as caught:
        kind.read(path, [parse_selection("measure=warmer")])
    assert "warm" in str(caught.value.cure)
    with pytest.raises(InputError, match="no column 'measure'"):
        KINDS["micro"].read(MEASURED / "micro.csv.gz", [parse_selection("measure=warm")])


@pytest.mark.parametrize(
    ("kind", "cells", "hint"),
    [
        ("icache", {"cores": 1, "n_nops": 1 << 40, "code_bytes": 64}, "which is too large"),
        ("dma-contention", {"bytes": 64, "n_traffic_cores": 8}, "8 cores of traffic are too many"),
        ("dma-contention", {"bytes": 1 << 20, "n_traffic_cores": 0}, "but its length field holds"),
        ("overlap", {"transfers": 17}, "17 transfers start before"),
        ("micro", {"group": "cluster_pe0", "name": "nop", "n": 1 << 30}, "operations"),
        ("micro", {"group": "cluster_pe0", "name": "nopp", "n": 1}, "no operation 'nopp'"),
        ("micro", {"group": "cluster", "name": "nop", "n": 1}, "group 'cluster' has no operation"),
        ("micro", {"group": "sync", "name": "mutex", "n": 1, "cores": 2}, "no entry 'mutex'"),
        (
            "micro",
            {"group": "sync", "name": "mutex_lock_unlock_min", "n": 1, "cores": 1},
            "cold instruction caches",
        ),
        (
            "dma",
            {"test": "1d_queued", "bytes": 4, "queued": 1 << 30},
            "transfers start before the first wait",
        ),
    ],
)
def test_what_a_row_may_not_ask_for_is_said_at_once(
    kind: str, cells: dict[str, str | int], hint: str
) -> None:
    """Rows come from files: a huge number is an error that names the row, not hours of work."""
    columns = KINDS[kind].columns
    usual: dict[str, str | int] = {
        "cores": 1,
        "kernel": "mm",
        "codegen": "clang-xpulp",
        "dtype": "fp32",
        "bytes": 64,
        "queued": 1,
    }
    usual |= {"direction": "l2_to_l1", "dir": "L2toL1", "traffic": "seq_1of2"}
    usual |= dict.fromkeys(("line_bytes", "l1_offset", "l2_offset"), 0) | dict.fromkeys("nkm", 8) | cells
    numbers = {
        column.name: 1 for column in columns if column.least is not None and column.name != "bank_conflicts"
    }
    row = case(
        columns, **numbers | {column.name: usual[column.name] for column in columns if column.name in usual}
    )
    measure = KINDS[kind].measures[0]
    if measure.name:
        row = replace(row, cells={**row.cells, "measure": measure.name})
    (answer,) = predict_rows(kind, [row])
    assert isinstance(answer, InputError)
    assert hint in answer.message
    assert answer.where == "file:2"


# Rows that cannot be predicted


@pytest.mark.parametrize(
    ("old", "new", "hint"),
    [
        ("pulp-open", "pulp-opn", "pulp-open"),
        ("gvsoc", "gvsok", "gvsoc"),
        ("clang-xpulp", "clang-xpul", "clang-xpulp"),
        (",mm,", ",mm_3x3,", "mm_3x3"),
        ("private", "3-way", "3-way"),
    ],
)
def test_a_row_without_a_model_is_an_error_that_names_it(
    tmp_path: Path, old: str, new: str, hint: str
) -> None:
    path = mm_file(tmp_path, MM_ROW, MM_ROW.replace("r1", "r2").replace(old, new, 1))
    with pytest.raises(InputError, match="row 'r2'") as caught:
        validate("mm", path, workers=1)
    assert caught.value.where == f"{path}:3"
    assert hint in str(caught.value)
    kept = validate("mm", path, workers=1, keep_going=True)
    assert [result.case.id for result in kept.results] == ["r1"]
    assert [row.error.where for row in kept.refused] == [f"{path}:3"]
    assert not kept.interrupted


def test_an_unknown_kind_and_a_wrong_number_of_workers_are_refused(tmp_path: Path) -> None:
    path = mm_file(tmp_path, MM_ROW)
    with pytest.raises(InputError, match="unknown kind"):
        validate("mmm", path)
    with pytest.raises(InputError, match="the number of workers is 0, but"):
        validate("mm", path, workers=0)
    with pytest.raises(InputError, match="no column 'coers'"):
        validate("mm", path, group_by=("coers",))


def test_rows_that_cannot_be_read_are_kept_like_those_that_cannot_be_predicted(tmp_path: Path) -> None:
    path = mm_file(tmp_path, MM_ROW.replace(",8,8,8,", ",8,x,8,"), MM_ROW, MM_ROW.replace(",mm,", ",mm9,"))
    kept = validate("mm", path, workers=1, keep_going=True)
    assert [(row.error.where, row.case is None) for row in kept.refused] == [
        (f"{path}:2", True),
        (f"{path}:4", False),
    ]
    assert (len(kept.results), kept.asked, kept.interrupted) == (1, 3, False)


# Machine


def test_the_machine_follows_the_columns_of_the_row() -> None:
    row = case(mm.COLUMNS, fpus="4-static", bank_conflicts=1, cores=2)
    timing = machines.machine_of(row, l1_bytes=200_000, l2_bytes=3_000_000)
    assert (timing.fpu.mapping, timing.fpu.count) == ("static", 4)
    assert timing.l1.bank_conflicts
    assert timing.profile == "gvsoc"
    assert timing.cores == 8, "a small team works in the cluster of the preset"
    assert timing.l1.size_bytes >= 200_000
    assert timing.l2.size_bytes >= 3_000_000
    assert machines.machine_of(case(mm.COLUMNS, cores=12)).fpu.count == 12


# Fork and join


def uneven_team(cores: int, *, master: bool = True) -> TeamWork:
    """Core i executes 10 + 7 i instructions."""
    works = [CoreWork((Instruction(Op.ALU),) * (10 + 7 * core)) for core in range(cores)]
    return TeamWork("uneven", tuple(works) if master else (None, *works[1:]))


@pytest.mark.parametrize("timing_profile", ["rtl", "gvsoc"])
@pytest.mark.parametrize("cores", [1, 2, 3, 8])
def test_the_closed_form_of_a_fork_is_what_the_event_model_gives(timing_profile: str, cores: int) -> None:
    timing = machines.machine_of(case(mm.COLUMNS, timing=timing_profile, cores=cores))
    for work in (
        uneven_team(cores),
        TeamWork("empty", (CoreWork(()),) * cores),
        TeamWork("master", (CoreWork((Loop(99, (Instruction(Op.ALU),), hardware=True),)),)),
        *([uneven_team(cores, master=False)] if cores > 1 else []),
    ):
        cost = machines.cost_model_of(timing).price(work)
        expected = machines.program_cycles(timing, "fork", [Compute(0, team=work)])
        assert fork_to_join_cycles(work, cost, timing.event_unit) == expected


def test_an_empty_fork_costs_what_was_measured() -> None:
    for cores, measured_cycles in ((1, 31), (2, 40), (4, 40), (8, 40)):
        row = case(layer.COLUMNS, primitive="empty_fork", step="-", layout="CHW", dtype="fp32", cores=cores)
        values = {**row.values} | dict.fromkeys(("ci", "hi", "wi", "co", "hk", "wk", "stride", "pad"), 0)
        assert layer.predict(Case("row", "f:2", values, row.cells)).cycles == measured_cycles


# Tile loops


def order_of(row: Case) -> list[str]:
    """What the master of a tile loop does, transfers by their number in the program."""
    program, _ = tiled.program(row)
    starts = [action.id for action in program.actions if isinstance(action, DmaStart)]
    texts = []
    for action in program.actions:
        if isinstance(action, DmaStart):
            (command,) = action.commands
            texts.append(f"{'in' if command.to_l1 else 'out'}{starts.index(action.id)}")
        elif isinstance(action, DmaWait):
            texts.append(f"wait{starts.index(action.transfer)}")
        elif isinstance(action, Compute):
            texts.append("fork")
    return texts


def test_single_buffering_waits_for_everything_in_turn() -> None:
    assert order_of(tiled_row(kernel="mm", n=8, tiles=2, buffering="single")) == [
        *("in0", "in1", "wait0", "wait1", "fork", "out2", "wait2"),
        *("in3", "in4", "wait3", "wait4", "fork", "out5", "wait5"),
    ]


def test_double_buffering_pushes_inputs_before_the_fork_and_waits_for_outputs_a_tile_later() -> None:
    assert order_of(tiled_row(kernel="mm", n=8, tiles=2, buffering="double")) == [
        *("in0", "in1", "wait0", "wait1", "in2", "in3", "fork", "out4"),
        *("wait2", "wait3", "fork", "out5", "wait4", "wait5"),
    ]


def test_in_place_an_output_is_waited_for_before_its_buffer_is_fetched_into() -> None:
    assert order_of(tiled_row(kernel="sgd", n=8, tiles=2, buffering="double")) == [
        *("in0", "in1", "wait0", "wait1", "in2", "in3", "fork", "out4", "wait4"),
        *("wait2", "wait3", "fork", "out5", "wait5"),
    ]


def tiled_row(**cells: str | int) -> Case:
    return case(
        tiled.COLUMNS,
        **{"codegen": "clang-xpulp", "dtype": "fp32", "tiles": 4, "cores": 8, "k": 16, "m": 16} | cells,
    )


def test_double_buffering_pays_where_data_moves() -> None:
    single, double = (
        tiled.predict(tiled_row(kernel="mm_unroll_2x4", n=16, buffering=buffering)).cycles
        for buffering in ("single", "double")
    )
    assert double < single
    in_place = [
        tiled.predict(tiled_row(kernel="sgd", n=256, k=0, m=0, buffering=buffering)).cycles
        for buffering in ("single", "double")
    ]
    assert in_place[1] < in_place[0]


def test_a_tile_far_larger_than_l1_is_still_predicted() -> None:
    row = tiled_row(kernel="mm", n=120, k=120, m=120, tiles=2, buffering="double")
    assert tiled.predict(row).cycles > 120**3 / 8


def tiled_layers_row(**cells: str | int) -> Case:
    sizes: dict[str, str | int] = {"codegen": "clang-xpulp", "cores": 8, "kernel": "mm_unroll_2x4"}
    return case(tiled_layers.COLUMNS, **sizes | cells)


def test_bytes_moved_are_those_of_the_measured_file() -> None:
    """A is fetched once per row of tiles, B for every tile; the last tiles may be smaller.

    The programs are those of `scheduler.schedule`: what it moves is what was measured.
    """
    for row in read_cases(MEASURED / "tiled-layers.csv.gz", tiled_layers.COLUMNS):
        if row.text("buffering") == tiled_layers.ALL_IN_L1 or row.number("cores") != 8:
            continue
        program, _ = tiled_layers.program(row)
        commands = [
            command
            for action in program.actions
            if isinstance(action, DmaStart)
            for command in action.commands
        ]
        moved = {
            to_l1: sum(item.size_bytes for item in commands if item.to_l1 == to_l1) for to_l1 in (True, False)
        }
        assert sum(isinstance(action, Compute) for action in program.actions) == int(row.cells["tiles"])
        assert moved == {True: int(row.cells["bytes_in"]), False: int(row.cells["bytes_out"])}


def test_the_rows_of_a_tiled_layer_that_are_empty_are_asked_for_by_name() -> None:
    with pytest.raises(InputError, match="column 'elements' is empty"):
        tiled_layers.predict(tiled_layers_row(workload="relu_fw", buffering="single"))


# DMA


def dma_row(test: str = "1d", **cells: str | int) -> Case:
    shape: dict[str, str | int] = {
        "test": test,
        "direction": "l2_to_l1",
        "queued": 1,
        "line_bytes": 0,
        "cores": 1,
    }
    return case(dma.COLUMNS, **shape | {"l1_offset": 0, "l2_offset": 0} | cells)


@pytest.mark.parametrize(("size_bytes", "measured_cycles"), [(8, 34), (128, 48), (1000, 157), (16384, 2080)])
def test_a_single_read_costs_what_was_measured(size_bytes: int, measured_cycles: int) -> None:
    assert dma.predict(dma_row(bytes=size_bytes)).cycles == measured_cycles


def test_a_row_that_checks_a_transfer_says_whether_the_modelled_one_arrives() -> None:
    """Its cycles are no time: 1 where the bytes at the odd addresses were those sent."""
    for direction in ("l2_to_l1", "l1_to_l2"):
        row = dma_row("check_1d_1000_misaligned", bytes=1000, l1_offset=3, l2_offset=1, direction=direction)
        assert dma.predict(row).cycles == 1


def test_a_series_pays_its_preparation_once() -> None:
    """Past the first, each long transfer of a series adds only the cycles its bytes take."""
    one, two, eight = (
        dma.predict(dma_row("1d_queued" if queued > 1 else "1d", bytes=4096, queued=queued)).cycles
        for queued in (1, 2, 8)
    )
    assert two - one == 512
    assert eight - one == 7 * 512


@pytest.mark.parametrize(("size_bytes", "measured_cycles"), [(256, 56), (16384, 2072)])
def test_of_two_directions_at_once_the_inward_wait_is_timed(size_bytes: int, measured_cycles: int) -> None:
    """16 KiB outwards alone take 2143 cycles, more than both together, so that end was not waited for."""
    assert dma.predict(dma_row("bidir_simultaneous", bytes=size_bytes, queued=2)).cycles == measured_cycles
    assert dma.predict(dma_row(bytes=16384, direction="l1_to_l2")).cycles == 2143


@pytest.mark.parametrize(
    ("size_bytes", "cores", "measured_cycles"), [(128, 2, 64), (256, 8, 288), (512, 8, 544)]
)
def test_every_core_pushes_and_waits_for_a_transfer_of_its_own(
    size_bytes: int, cores: int, measured_cycles: int
) -> None:
    assert dma.predict(dma_row("multi_core_1_each", bytes=size_bytes, cores=cores)).cycles == measured_cycles


def test_a_2d_row_is_pushed_as_2d_even_with_one_line() -> None:
    one_line = dma.predict(dma_row("2d_stride1024", bytes=1024, line_bytes=1024)).cycles
    two_lines = dma.predict(dma_row("2d_stride1024", bytes=1024, line_bytes=512)).cycles
    assert one_line == two_lines
    with pytest.raises(InputError, match="into whole lines"):
        dma.predict(dma_row("2d_stride1024", bytes=1000, line_bytes=64))


# Loops and layers


def test_unmodelled_loops_and_layers_say_so() -> None:
    row = {"codegen": "clang-xpulp", "elements": 10, "cores": 1}
    with pytest.raises(InputError, match="does not model the loop 'col2im'"):
        loop.predict(case(loop.COLUMNS, kernel="col2im", parameters="1x8x3x1x0x0", **row))
    for parameters in ("1x8x3", "1x2x3x1x0x0", "1x8x3x0x0x0", "1x8x3x1x0x1"):  # the last: no nest for HWC
        with pytest.raises(InputError):
            loop.predict(case(loop.COLUMNS, kernel="im2row", parameters=parameters, **row))
    sizes = dict.fromkeys(("ci", "hi", "wi", "co", "hk", "wk", "stride"), 1) | {
        "pad": 0,
        "codegen": "clang-xpulp",
    }
    for cells, message in (
        ({"primitive": "gelu", "step": "FW"}, "does not model the step 'gelu FW'"),
        ({"primitive": "relu", "step": "FW", "layout": "HWC"}, "relu FW HWC"),
        ({"primitive": "relu", "step": "FW", "dtype": "bf17"}, "bf17"),
        ({"primitive": "linear", "step": "FW", "variant": "vector_matrix", "dtype": "bf16"}, "vector_matrix"),
        ({"primitive": "linear", "step": "WG+IG+FW", "kernel": "mm+mm_M"}, "3 steps, but 2 kernels"),
        ({"primitive": "conv2d", "step": "FW", "hk": 5}, "the kernel is larger than the padded image"),
    ):
        defaults = {"layout": "CHW", "dtype": "fp32", "kernel": "mm", "cores": 1}
        with pytest.raises(InputError, match=message.replace("+", r"\+")):
            layer.predict(case(layer.COLUMNS, **sizes | defaults | cells))


def test_steps_named_together_are_the_sum_of_the_steps() -> None:
    shape = {"ci": 32, "hi": 1, "wi": 1, "co": 8, "hk": 1, "wk": 1, "stride": 1, "pad": 0, "cores": 4}
    names = {"primitive": "linear", "layout": "-", "dtype": "fp32", "codegen": "clang-xpulp"}

    def cycles(step: str, kernel: str) -> int:
        return layer.predict(case(layer.COLUMNS, step=step, kernel=kernel, **shape, **names)).cycles

    assert cycles("WG+IG", "mm+mm_M") == cycles("WG", "mm") + cycles("IG", "mm_M")


def test_a_16_bit_vector_times_matrix_is_one_product_of_its_kernel() -> None:
    """Transposed SIMD does two products in four cycles, packing in five, scalar code one in four."""
    shape = {"ci": 128, "hi": 1, "wi": 1, "co": 128, "hk": 1, "wk": 1, "stride": 1, "pad": 0, "cores": 1}
    names = {
        "primitive": "linear",
        "step": "IG",
        "variant": "vector_matrix",
        "dtype": "bf16",
        "layout": "CHW",
    }

    def cycles(kernel: str) -> int:
        row = case(layer.COLUMNS, kernel=kernel, codegen="pulp-gcc7", **shape, **names)
        return layer.predict(row).cycles

    products = 128 * 128
    for kernel, cycles_per_product in (("vm_naive", 4), ("vm_SIMD_pack", 2.5), ("vm_SIMD_transposed", 2)):
        assert cycles_per_product < cycles(kernel) / products < 1.1 * cycles_per_product


# What is validated is what runs


def test_validation_describes_no_layer_tile_loop_or_fork_of_its_own() -> None:
    """Programs come from `scheduler.schedule`, time from `arch.blocks.soc`; only `programs` takes them apart.

    The modules of these KINDs make no kernel, no tile and no transfer, but for one kernel that no layer runs.
    """
    folder = Path(layer.__file__).parent
    made = re.compile(
        r"\b(team_work|matmul_work|vector_work|im2row|DmaStart|DmaWait|Command|fork_\w+_cycles)\("
    )
    found = {
        name: sorted(set(made.findall((folder / f"{name}.py").read_text(encoding="utf-8"))))
        for name in (
            "layer",
            "layer_steps",
            "loop",
            "mm",
            "tiled",
            "tiled_layers",
            "programs",
            "measured_code",
        )
    }
    assert {name: calls for name, calls in found.items() if calls} == {
        "loop": ["im2row"],
        "measured_code": ["team_work"],
    }


@pytest.mark.parametrize(
    ("name", "step", "options", "shapes"),
    [
        ("relu", "FW", {}, [(16, 8, 8)]),
        ("linear", "WG", {"out_features": 16}, [(128,)]),
        ("conv2d", "IG", {"out_channels": 16, "kernel": 3, "bias": False}, [(16, 8, 8)]),
        ("add", "FW", {}, [(16, 8, 8)] * 2),
    ],
)
def test_a_row_takes_what_primitive_charges_for_its_kernels(
    name: str, step: str, options: dict[str, Any], shapes: list[tuple[int, ...]]
) -> None:
    """Core 0 of `pulptrain primitive`, whole in L1, from fork to join, is what the KIND layer simulates."""
    graph = layer_steps.layer_graph(name, step, options, shapes, where="test")
    row = case(layer.COLUMNS, codegen="clang-xpulp", kernel="mm", cores=8, fpus="4-static")
    program, timing = programs.program_of(row, graph, programs.options_of(row, graph))
    settings = Settings(timing="gvsoc", buffering="none", l1="512KiB", fpus="4-static", bank_conflicts="off")
    outcome = run_primitive(name, step, [DrawnInput(shape) for shape in shapes], options, settings=settings)
    charged = sum(
        item.end_cycles - item.start_cycles
        for item in outcome.slices
        if item.track.endswith("core0") and item.kind in (COMPUTE, "fork", "barrier")
    )
    assert charged == programs.predicted(row, timing, programs.kernels_of(program)).cycles


# Accuracy and workers


def test_some_measured_rows_of_every_kind_are_met() -> None:
    """A floor under the accuracy, on rows where nothing is chaotic: one core, or cores that cannot meet."""
    for kind, file, choices, limit_percent in (
        (
            "mm",
            "mm",
            ["codegen=clang-xpulp", "kernel=mm,mm_unroll_2x4", "fpus=private", "bank_conflicts=0"],
            2.5,
        ),
        ("mm", "mm", ["codegen=clang-xpulp", "kernel=mm,mm_M,mm_unroll_2x4", "cores=1"], 1.5),
        ("layer", "layer", ["primitive=linear", "kernel=mm", "step=FW,WG", "cores=1"], 2),
        ("tiled-layers", "tiled-layers", ["workload=relu_fw", "buffering=single"], 6),
        ("dma", "dma", ["test=1d,1d_misaligned"], 1),
    ):
        done = validate(
            kind,
            MEASURED / f"{file}.csv.gz",
            workers=1,
            selections=[parse_selection(text) for text in choices],
        )
        errors = [abs(result.error_percent) for result in done.results]
        assert len(errors) > 3
        assert sum(errors) / len(errors) < limit_percent, (kind, choices)


def test_the_answer_does_not_depend_on_the_number_of_workers() -> None:
    choice = [parse_selection("test=1d,1d_queued")]
    one = validate("dma", MEASURED / "dma.csv.gz", workers=1, selections=choice)
    three = validate("dma", MEASURED / "dma.csv.gz", workers=3, selections=choice)
    assert len(one.results) == 200
    assert json.dumps([result.prediction.cycles for result in one.results]) == json.dumps(
        [result.prediction.cycles for result in three.results]
    )
    assert [result.case.id for result in one.results] == [result.case.id for result in three.results]


def test_an_error_in_a_worker_reaches_the_caller_whole(tmp_path: Path) -> None:
    path = mm_file(
        tmp_path, *[MM_ROW.replace("r1", f"r{i}") for i in range(300)], MM_ROW.replace("mm,fp32", "mm9,fp32")
    )
    with pytest.raises(InputError, match="row 'r1'") as caught:
        validate("mm", path, workers=2)
    assert caught.value.where == f"{path}:302"


def test_ctrl_c_keeps_the_rows_that_are_done() -> None:
    def stop(done: int, total: int) -> None:
        assert done < total
        raise KeyboardInterrupt

    done = validate("dma", MEASURED / "dma.csv.gz", workers=1, progress=stop)
    assert done.interrupted
    assert 0 < len(done.results) < done.asked == 474


def test_rows_are_predicted_one_by_one_in_order(tmp_path: Path) -> None:
    cases = read_cases(mm_file(tmp_path, MM_ROW, MM_ROW.replace(",8,8,8,", ",8,16,8,")), mm.COLUMNS)
    first, second = predict_rows("mm", cases)
    assert not isinstance(first, InputError)
    assert not isinstance(second, InputError)
    assert first.cycles < second.cycles


@pytest.mark.parametrize(
    ("kind", "column", "value"),
    [
        *((kind, "cores", "17") for kind in ("mm", "loop", "layer", "tiled", "tiled-layers", "dma")),
        ("tiled", "tiles", "1000000"),
        ("dma", "queued", "1000000"),
        ("tiled-layers", "elements", "100000000"),
        ("overlap", "bytes", "3000000000"),
        ("layer", "hi", "4294967296"),
    ],
)
def test_more_than_a_cluster_or_a_measurement_has_is_refused_at_once(
    kind: str, column: str, value: str, tmp_path: Path
) -> None:
    name = {"loop": "loops"}.get(kind, kind)
    with gzip.open(f"measured/{name}.csv.gz", "rt") as stream:
        rows = list(csv.DictReader(stream))
    row = next(row for row in rows if row[column] and row.get("buffering") != "all_in_l1")
    path = tmp_path / "c.csv"
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(row))
        writer.writeheader()
        writer.writerow({**row, column: value})
    assert run(["validate", kind, str(path), "--workers", "1"]) == 2
