# SPDX-License-Identifier: Apache-2.0
"""The two engines of a window: the same functions as plain Python and compiled, with equal results."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import pytest

from arch.pricing import window_engine, window_object
from arch.pricing.cost_model import Traffic
from arch.pricing.team_cost_model import TeamCostModel
from arch.pricing.window import PLAIN, EngineChoice, compiled
from arch.pricing.window_plan import PricingWindow
from configs.values import replace
from shared.arch_pricing_cases import DYNAMIC_FPU, matmul_team, soc
from shared.whole_kernel import WHOLE_KERNEL

ENGINES = (EngineChoice(1 << 60), EngineChoice(0))
"""Plain Python whatever it takes, and compiled from the first item on."""


@pytest.mark.parametrize("arbitration", ["rotating", "round_robin"])
def test_plain_and_compiled_engine_give_the_same_extrapolated_numbers(arbitration):
    """Marks and multiplied counters included, on a machine with two orders of service and pools."""
    machine = soc(conflicts=True, fpu=replace(DYNAMIC_FPU, latency_cycles=3))
    machine = replace(machine, l1=replace(machine.l1, arbitration=arbitration))
    work = matmul_team(6, 27, 30)
    plain, fast = (
        TeamCostModel(machine, PricingWindow(3000), engine).price(work, Traffic.BOTH) for engine in ENGINES
    )
    assert (plain, plain.dma) == (fast, fast.dma)
    assert plain != TeamCostModel(machine, WHOLE_KERNEL).price(work, Traffic.BOTH)


def test_a_process_loads_the_compiled_engine_once_it_has_executed_enough():
    choice = EngineChoice(100)
    engines = [choice.take(60), choice.take(60), choice.take(1)]
    assert engines == [PLAIN, compiled(), compiled()]


@pytest.mark.parametrize("missing", ["llvmlite", "llvmlite.binding"])
def test_without_numba_everything_runs_in_plain_python(monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    compiled.cache_clear()
    try:
        assert EngineChoice(0).take(1) is PLAIN
    finally:
        compiled.cache_clear()


@pytest.fixture
def kept_in(monkeypatch):
    """Machine code as it is kept, in folders of the test's; compiling again is an error."""
    compiled()
    code = {
        path.name: path.read_bytes()
        for folder in window_object._folders()
        for path in folder.glob(f"window_{window_object._checksum()}_*.o")
    }

    def keep(*folders: Path) -> None:
        monkeypatch.setattr(window_object, "_folders", lambda: iter(folders))
        for name, text in code.items():
            (folders[-1] / name).write_bytes(text)

    def no_compiler(llvm: object) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(window_object, "_compiled", no_compiler)
    return keep


def test_what_is_kept_is_loaded_without_numba(monkeypatch, kept_in, tmp_path):
    kept_in(tmp_path / "not there", tmp_path)
    monkeypatch.setitem(sys.modules, "numba", None)
    work = matmul_team(1, 4, 4)
    expected = TeamCostModel(soc(conflicts=True)).price(work)
    compiled.cache_clear()
    try:
        assert TeamCostModel(soc(conflicts=True), engine=EngineChoice(0)).price(work) == expected
        assert compiled() is not None
    finally:
        compiled.cache_clear()


@pytest.mark.parametrize("damage", [b"", b"x", bytes(100)])
def test_damaged_machine_code_is_compiled_again(kept_in, tmp_path, damage):
    kept_in(tmp_path)
    for path in tmp_path.glob("*.o"):
        path.write_bytes(damage)
    with pytest.raises(AssertionError, match="compiled again"):
        window_object.functions()


def test_machine_code_is_kept_where_there_is_room(monkeypatch, tmp_path):
    """In an install nobody may write to, and without a folder of the user's, in no place."""
    (tmp_path / "file").write_text("no folder")
    folders = [tmp_path / "file" / "below", tmp_path / "new"]
    monkeypatch.setattr(window_object, "_folders", lambda: iter(folders))
    window_object._keep("name", b"code")
    assert window_object._read("name") == b"code"
    assert [path.name for path in folders[1].iterdir()] == ["name"]
    (tmp_path / "any file").touch()
    modes = {path.stat().st_mode for path in (folders[1] / "name", tmp_path / "any file")}
    assert len(modes) == 1, "others may read what an administrator has compiled"
    folders.pop()
    window_object._keep("name", b"code")
    assert window_object._read("name") is None


def test_all_that_machine_code_depends_on_is_in_its_name(monkeypatch, tmp_path):
    machine = ["cpu", "+feature", "0.1", "0.2"]
    names = {window_object.file_name(*machine)}
    for place in range(len(machine)):
        names.add(window_object.file_name(*machine[:place], "other", *machine[place + 1 :]))
    for number, source in enumerate(window_object.SOURCES):
        changed = tmp_path / str(number)
        changed.write_text(Path(source).read_text() + "#")
        sources = [*window_object.SOURCES]
        sources[number] = str(changed)
        monkeypatch.setattr(window_object, "SOURCES", tuple(sources))
        names.add(window_object.file_name(*machine))
        monkeypatch.undo()
    assert len(names) == 1 + len(machine) + len(window_object.SOURCES)


def test_the_functions_of_the_engine_are_short():
    """One function was 285 lines; parts that Numba inlines need not be."""
    functions = [*window_engine.PARTS, *window_engine.WHOLE, window_engine.price_window]
    assert max(len(inspect.getsource(function).splitlines()) for function in functions) <= 100
