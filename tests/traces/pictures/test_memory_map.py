# SPDX-License-Identifier: Apache-2.0
"""The memory map: its data in a file and back, and its picture."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from configs.errors import InputError
from pulptrain.__main__ import run
from shared.printed import printed, refused
from traces.memory_table import CSV_NAME, MemoryBlock, read_blocks, write_blocks
from traces.metrics import OpMetrics
from traces.pictures.memory_map import KIND_STYLES, draw_memory_map

BLOCKS = [
    MemoryBlock("conv1.FW:x.in", "l1", 0, 256, "conv1.FW", "conv1.FW", 0, 100, "input"),
    MemoryBlock("w", "l2", 0, 4096, "conv1.FW", "end", 0, 300, "weight"),
    MemoryBlock("y@0", "l2", 4096, 1024, "conv1.FW", "relu1.FW", 0, 150, "kept", staged=True),
    MemoryBlock("y", "l3", 0, 1024, "conv1.FW", "conv1.IG", 0, 300, "kept"),
]
OPS = [
    OpMetrics(name, step, start, end, end - start, 8 * (end - start), 0, (), 0, 0, 1, 0)
    for name, step, start, end in (
        ("conv1.FW", "FW", 0, 100),
        ("relu1.FW", "FW", 100, 150),
        ("conv1.IG", "IG", 150, 300),
    )
]
CAPACITY = {"l1": 512, "l2": 6000, "l3": 1 << 20}


def test_blocks_come_back_from_the_file_as_they_went_in(tmp_path: Path) -> None:
    assert write_blocks(BLOCKS, tmp_path).name == CSV_NAME
    assert read_blocks(tmp_path) == BLOCKS


def test_a_damaged_file_is_named_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"memory\.csv"):
        read_blocks(tmp_path)
    path = write_blocks(BLOCKS, tmp_path)
    text = path.read_text()
    path.write_text(text.replace("4096", "many", 1))
    with pytest.raises(InputError, match=r"memory\.csv:3: '\w+' is 'many', but must be a whole number"):
        read_blocks(tmp_path)
    path.write_text(text.replace(",l1,", ",<<,", 1))
    with pytest.raises(InputError, match=r"memory\.csv:\d+: unknown memory '<<'; known: l1, l2, l3"):
        read_blocks(tmp_path)
    path.write_text(text.replace("size_bytes", "size", 1))
    with pytest.raises(InputError, match="no column 'size_bytes'"):
        read_blocks(tmp_path)


def test_equal_maps_give_equal_pictures_and_other_maps_other_ones(tmp_path: Path) -> None:
    def picture(name: str, blocks: list[MemoryBlock], **options: object) -> tuple[bytes, bytes]:
        png, svg = tmp_path / f"{name}.png", tmp_path / f"{name}.svg"
        draw_memory_map(blocks, OPS, 300, CAPACITY, 10**8, png, svg, **options)  # type: ignore[arg-type]
        return png.read_bytes(), svg.read_bytes()

    first = picture("a", BLOCKS)
    assert picture("b", BLOCKS) == first
    assert picture("c", BLOCKS[:2])[0] != first[0]
    assert picture("d", BLOCKS, window=(50, 120))[0] != first[0]


def test_nothing_to_draw_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no memory map"):
        draw_memory_map([], OPS, 300, CAPACITY, 10**8, tmp_path / "a.png")
    with pytest.raises(InputError, match="not valid"):
        draw_memory_map(BLOCKS, OPS, 300, CAPACITY, 10**8, tmp_path / "a.png", window=(5, 5))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run")
    assert run(["run", "digits-cnn", "--l2", "50KiB", "--out", str(path), "--quiet"]) == 0
    return path


def test_a_run_leaves_its_map_with_the_peaks_of_its_summary(folder: Path) -> None:
    summary = json.loads((folder / "summary.json").read_text())
    blocks = read_blocks(folder)
    for level, peak in summary["peak_bytes"].items():
        found = [item.end_address for item in blocks if item.level == level and item.kind != "stack"]
        assert max(found) == peak > 0
    assert {item.kind for item in blocks} <= set(KIND_STYLES)
    assert max(item.end_cycle for item in blocks) == summary["cycles"]
    assert min(item.start_cycle for item in blocks) == 0
    stacks = [item for item in blocks if item.kind == "stack"]
    assert [item.end_address for item in stacks] == [64 * 1024]
    assert stacks[0].address == summary["capacity_bytes"]["l1"]
    # In time as in ops: blocks that share bytes never live in the same cycle.
    for one in blocks:
        for other in blocks:
            if one is not other and one.level == other.level:
                apart_in_time = one.end_cycle <= other.start_cycle or other.end_cycle <= one.start_cycle
                apart = one.end_address <= other.address or other.end_address <= one.address
                assert apart or apart_in_time


def test_plot_draws_the_map_alone_and_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (folder / "memory.png").read_bytes()
    names = [Path(name).name for name in printed(capsys, "plot", str(folder), "--what", "memory")["pictures"]]
    assert names == ["memory.png", "memory.svg"]
    assert (folder / "memory.png").read_bytes() == before
    assert "'memory'" in refused(capsys, "plot", str(folder), "--what", "memroy")


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["--home", "fc.weight=l1"], "fc.weight=l2, fc.weight=l3"),
        (["--home", "fc.wieght=l3"], "fc.weight"),
        (["--placement", "bestfit"], "best-fit"),
        (["--l3", "lots"], "--l3"),
    ],
)
def test_wrong_memory_options_are_refused(
    arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hint in refused(capsys, "run", "digits-cnn", *arguments)
