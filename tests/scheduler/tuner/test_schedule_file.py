# SPDX-License-Identifier: Apache-2.0
"""schedule.yaml: equal schedules are equal files, and whatever is wrong in one is told at its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from configs.errors import ConfigError, DoesNotFitError, PulptrainError
from configs.values import replace
from configs.yaml_file import load_yaml
from scheduler.tuner.schedule_file import load_schedule, options_from, schedule_text, write_schedule
from scheduler.tuner.search_space import Cut
from scheduler.tuner.tuned_schedule import (
    Named,
    TunedSchedule,
    TunedSoc,
    model_content,
    op_choice,
    soc_content,
)
from shared.tuner_case import small_case


def schedule() -> TunedSchedule:
    graph, timing, options, _ = small_case()
    whole = Cut(
        (("co", 4), ("ho", 4), ("wo", 4), ("ci", 2)), ("co", "ho", "wo", "ci"), 1, "mm", "", 1, 2272, 950
    )
    sizes = (("co", 4), ("ho", 2), ("wo", 4), ("ci", 2))
    rows = Cut(sizes, ("ho", "co", "wo", "ci"), 2, "mm_M", "dma", 2, 2500, 900)
    conv = op_choice("conv.FW", rows, whole, 24, 9)
    relu = op_choice("relu.FW", Cut((("d0", 4),), ("d0", "d1"), 1, cycles=70), None, 1, 1)
    return TunedSchedule(
        format=1,
        model=Named(name=graph.name, content=model_content(graph)),
        soc=TunedSoc(name=timing.name, timing=timing.profile, content=soc_content(timing)),
        codegen=options.codegen,
        pulptrain="0",
        simulator="abc",
        strategy="pruned",
        candidates=25,
        evaluated=10,
        cycles=None,
        choices=(conv, relu),
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_schedule(schedule(), tmp_path / "schedule.yaml")
    return tmp_path / "schedule.yaml"


def test_what_is_written_is_read_and_written_again_alike(path: Path) -> None:
    file = load_schedule(path)
    assert file.chosen == {item.op: item.best for item in schedule().choices}
    assert path.read_text() == schedule_text(schedule())
    keys = "format pulptrain simulator model soc codegen strategy candidates evaluated cycles icache choices"
    assert list(load_yaml(path).mapping("")) == keys.split()
    assert "runner_up: {kernel: mm, tile: {co: 4, ho: 4, wo: 4, ci: 2}" in path.read_text()
    assert not list(path.parent.glob("*.part"))


def test_a_file_becomes_schedule_options(path: Path) -> None:
    graph, timing, base, _ = small_case()
    [options] = options_from(load_schedule(path), [graph], timing, base)
    assert options.kernels == {"conv.FW": "mm_M"}
    assert options.variants == {"conv.FW": "dma"}
    assert options.tile_sizes["conv.FW"] == {"co": 4, "ho": 2, "wo": 4, "ci": 2}
    assert options.loop_orders["conv.FW"] == ("ho", "co", "wo", "ci")
    assert set(options.buffers["conv.FW"].values()) == {2}
    assert set(options.buffers["relu.FW"].values()) == {1}


def test_a_file_of_before_variants_says_im2col(path: Path) -> None:
    path.write_text(path.read_text().replace("    variant: dma\n", "    im2col: dma\n", 1))
    graph, timing, base, _ = small_case()
    [options] = options_from(load_schedule(path), [graph], timing, base)
    assert options.variants == {"conv.FW": "dma"}


def test_a_file_of_before_im2col_was_searched_goes_as_the_layer_says(path: Path) -> None:
    text = path.read_text()
    path.write_text(text.replace("    variant: dma\n", "", 1))
    graph, timing, base, _ = small_case()
    [options] = options_from(load_schedule(path), [graph], timing, base)
    assert options.variants == {}
    assert options.kernels == {"conv.FW": "mm_M"}


def test_what_the_command_line_says_of_im2col_goes_first(path: Path) -> None:
    graph, timing, base, _ = small_case()
    file = load_schedule(path)
    [alike] = options_from(file, [graph], timing, replace(base, variants={"FW": "dma"}))
    assert alike.kernels == {"conv.FW": "mm_M"}
    [other] = options_from(file, [graph], timing, replace(base, variants={"conv.FW": "none"}))
    assert other.variants == {"conv.FW": "none"}
    assert set(other.tile_sizes) == {"relu.FW"}


def line_of(path: Path, text: str) -> int:
    return next(number for number, line in enumerate(path.read_text().splitlines(), 1) if text in line)


@pytest.mark.parametrize(
    ("old", "new", "where", "message"),
    [
        ("name: small", "name: other", "model:", "for the model 'other', but this run has 'small'"),
        ("name: pulp-open", "name: vega", "soc:", None),
        ("codegen: clang-xpulp", "codegen: pulp-gcc7", "codegen:", "--codegen pulp-gcc7"),
        ("op: relu.FW", "op: relu.XX", "relu.XX", "no op 'relu.XX'"),
        ("op: relu.FW", "op: conv.FW", None, "twice"),
        ("kernel: mm_M\n", "kernel: mm_Q\n", "mm_Q", "unknown kernel 'mm_Q'"),
        ("variant: dma", "variant: gpu", "variant: gpu", "unknown variant 'gpu'"),
        (
            "variant: dma",
            "variant: none",
            "kernel: mm_M",
            "does not use a matmul kernel in its variant 'none'",
        ),
        ("variant: dma", "im2col: gpu", "im2col: gpu", "unknown variant 'gpu'"),
        ("variant: dma", "variant: dma\n    im2col: dma", "im2col: dma", "is the former name of 'variant'"),
        (
            "tile: {d0: 4}",
            "variant: dma\n    tile: {d0: 4}",
            None,
            "this op has no variant that can be chosen for it alone",
        ),
        ("{d0: 4}", "{d0: 5}", "{d0: 5}", "use 1 to 4"),
        ("{d0: 4}", "{zz: 4}", "{zz: 4}", "the op has no tile dimension 'zz'"),
        ("{d0: 4}", "{d0: 0}", "{d0: 0}", "must be 1 or more"),
        ("[d0, d1]", "[d0, d0]", None, "twice"),
        ("buffering: 2", "buffering: much", "buffering: much", "must be a whole number"),
        ("format: 1", "format: 9", "format: 9", "format 9"),
        ("strategy:", "strategie:", "strategie:", "unknown key"),
    ],
)
def test_mistakes_are_told_at_their_line(
    path: Path, old: str, new: str, where: str | None, message: str | None
) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    if old == "name: pulp-open":
        content = soc_content(small_case()[1])
        path.write_text(path.read_text().replace(content, "0" * 16))
    graph, timing, base, _ = small_case()
    with pytest.raises(ConfigError) as caught:
        options_from(load_schedule(path), [graph], timing, base)
    assert caught.value.exit_code == 2
    if message is not None:
        assert message in str(caught.value)
    if where is not None:
        assert f"schedule.yaml:{line_of(path, where)}" in str(caught.value)


def test_a_tile_too_large_is_told_at_its_line(path: Path) -> None:
    text = path.read_text().replace("buffering: 2", "buffering: 2000", 1)
    path.write_text(text.replace("{co: 4, ho: 2, wo: 4, ci: 2}", "{co: 1, ho: 1, wo: 1, ci: 1}", 1))
    graph, timing, base, _ = small_case()

    stacks_bytes = timing.l1.size_bytes - timing.l1_usable_bytes
    tight = replace(timing, l1=replace(timing.l1, size_bytes=stacks_bytes + 300))
    path.write_text(path.read_text().replace(soc_content(timing), soc_content(tight)))
    with pytest.raises(DoesNotFitError) as caught:
        options_from(load_schedule(path), [graph], tight, base)
    assert caught.value.exit_code == 3
    assert f"schedule.yaml:{line_of(path, 'co: 1')}" in str(caught.value)


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(PulptrainError, match="cannot be written"):
        write_schedule(schedule(), tmp_path / "no folder" / "schedule.yaml")
