# SPDX-License-Identifier: Apache-2.0
"""What `import pulptrain as pt` offers."""

from __future__ import annotations

import csv
import importlib
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import pulptrain as pt
from pulptrain.inputs.layers import CLASSES, class_name
from pulptrain.inputs.option import ALL
from pulptrain.inputs.settings import Settings
from pulptrain.python.op_result import Stalls
from shared.paths import ROOT
from shared.user_script import SCRIPT
from tools.layer_stubs import STUB, stub_text
from traces.events import STALLS
from trainlib.registry import PRIMITIVES, is_internal


def test_optimizers_keep_the_order_of_their_arguments() -> None:
    """A script that gives them by their place trains as it did when it was written."""
    assert pt.SGD(0.1, 0.9, True, 0.01).options == {
        "learning_rate": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01,
    }  # fmt: skip
    for kind in (pt.Adam, pt.AdamW, pt.Adamax, pt.RAdam):
        assert kind(0.01, 0.8, 0.99, 1e-7, 0.1).options == {
            "learning_rate": 0.01, "beta1": 0.8, "beta2": 0.99, "eps": 1e-7, "weight_decay": 0.1,
        }  # fmt: skip


def small_model(**changes: object) -> pt.Model:
    options: dict[str, object] = {
        "input": (1, 8, 8),
        "loss": pt.CrossEntropy(),
        "optimizer": pt.SGD(0.01),
        **changes,
    }
    return pt.Sequential(pt.Conv2d(4, 3), pt.ReLU(), pt.Flatten(), pt.Linear(10), **options)  # type: ignore[arg-type]


@pytest.mark.needs_pandas
@pytest.mark.parametrize(
    "script",
    [
        pytest.param(SCRIPT, id="as-written", marks=pytest.mark.slow),
        pytest.param(
            SCRIPT.replace(
                "tune(model, soc)",
                "tune(model, soc, tilings=1, step_variants='keep', resident='off', workers=1)",
            ).replace("})\nerrors", "}, workers=1)\nerrors"),
            id="with-a-short-search",
        ),
    ],
)
def test_the_script_of_the_front_page_runs(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PULPTRAIN_CACHE", str(tmp_path / "cache.sqlite"))
    (tmp_path / "measured").symlink_to(ROOT / "measured")
    found: dict[str, object] = {}
    exec(compile(script, "script.py", "exec"), found)
    result, again, tuned = found["result"], found["again"], found["tuned"]
    assert isinstance(result, pt.Result)
    assert isinstance(again, pt.Result)
    assert isinstance(tuned, pt.Tuned)
    printed = capsys.readouterr().out
    assert printed.startswith(f"network on pulp-open: {result.cycles:,} cycles = ")
    assert result["conv1.FW"] is result["conv2d1.FW"]
    assert result["conv1.FW"].stalls.load_use == result.summary["ops"][0]["stalls"]["load_use"] > 0
    assert result.peak.l1 == result.summary["peak_bytes"]["l1"]
    assert sum(row.cycles for row in result.by("layer")) + result.summary["offload_cycles"] == result.cycles
    frame = result.to_pandas()
    assert list(frame["cycles"]) == [op.cycles for op in result]
    assert again.cycles == tuned.cycles
    assert tuned.untuned_cycles == result.cycles
    points = found["points"]
    assert isinstance(points, pt.Explored)
    by_values = {tuple(point["values"].values()): point for point in points}
    assert by_values["none", "double"]["cycles"] == result.cycles
    assert by_values["tuned", "double"]["cycles"] == tuned.cycles
    assert by_values["none", "single"]["speedup"] == 1.0
    assert points.best is not None
    assert len(points.to_pandas()) == 4
    errors = found["errors"]
    assert isinstance(errors, pt.Validated)
    assert errors.mape_percent is not None
    assert 0 < errors.mape_percent < 5
    assert (tmp_path / "g.png").read_bytes().startswith(b"\x89PNG")
    loaded = found["loaded"]
    assert isinstance(loaded, pt.Result)
    assert str(loaded) == str(result)
    assert loaded.losses == result.losses
    assert len(loaded.slices) == len(result.slices)


def test_a_script_of_the_user_passes_mypy_strict(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + "\ncores: int = soc.cores\ncycles: int = result.cycles\n")
    wrong = tmp_path / "wrong.py"
    wrong.write_text('import pulptrain as pt\npt.run("resnet8", cores="8")\npt.Conv2d("a", 3)\npt.nothing\n')
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(ROOT / ".mypy_cache")]
    done = subprocess.run([*command, str(script)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    refused = subprocess.run([*command, str(wrong)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert [f"wrong.py:{line}: error" in refused.stdout for line in (2, 3, 4)] == [True] * 3, refused.stdout


def test_importing_pulptrain_imports_nothing_slow() -> None:
    code = "import sys, pulptrain as pt; print('numpy' in sys.modules, pt.__version__)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", pt.__version__]


def test_help_and_completion_import_nothing_slow() -> None:
    """All commands are there before one begins: what simulates is imported by the one that does."""
    slow = {"numpy", "arch", "barvinn", "importers", "scheduler", "traces.events", "trainlib", "truth"}
    code = f"import sys, pulptrain.cli; print({slow} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


NOT_FOR_A_RUN_THAT_WAS_BEFORE = {
    *("numba", "torch", "matplotlib", "ruamel.yaml", "perfetto", "multiprocessing", "importers.onnx"),
    *("arch.pricing.team_cost_model", "scheduler.tuner", "scheduler.explore", "truth.network"),
    *("trainlib.primitives.elementwise.arithmetic", "trainlib.primitives.recurrent"),
}
"""What a timing-only run of tutorial-cnn has no use for where its tilings and prices are kept."""


def test_a_second_run_imports_nothing_slow_that_it_does_not_need(tmp_path: Path) -> None:
    arguments = ["run", "tutorial-cnn", "--no-functional", "--quiet", "--cache", str(tmp_path / "sqlite")]
    code = f"import sys; from pulptrain.__main__ import run; run({arguments}); print(*sys.modules)"
    environment = dict(os.environ)
    if environment.pop("PYTHONDONTWRITEBYTECODE", ""):  # what shipped files say is kept as compiled code is
        environment["PYTHONPYCACHEPREFIX"] = str(tmp_path)

    def imported() -> set[str]:
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, env=environment)
        return set(done.stdout.split())

    assert "arch.pricing.team_cost_model" in imported()
    assert not NOT_FOR_A_RUN_THAT_WAS_BEFORE & imported()


def test_every_name_that_is_offered_is_there() -> None:
    for name in pt.NAMES:
        assert getattr(pt, name) is not None, name
    assert {"run", "Conv2d", "SGD", "CrossEntropy"} <= set(dir(pt))
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        pt.Nothing  # type: ignore[attr-defined]  # noqa: B018


def test_every_primitive_of_a_model_file_has_a_class() -> None:
    assert set(CLASSES) == {class_name(item.name) for item in PRIMITIVES.values() if not is_internal(item)}
    assert {"Conv2d", "ConvTranspose2d", "ReLU", "LeakyReLU", "GRU", "MHSA", "LayerNorm", "MSE"} <= set(
        CLASSES
    )


def test_the_stub_of_the_layers_is_what_the_registry_says() -> None:
    assert STUB.read_text() == stub_text(), "write it again: python -m tools.layer_stubs"


def test_stalls_have_the_words_of_the_trace() -> None:
    assert tuple(field.name for field in fields(Stalls)) == STALLS


def test_every_option_is_a_setting_with_the_same_default() -> None:
    own = {field.name: field.default for field in fields(Settings)}
    assert {key: own[key] for key in ALL} == {key: option.default for key, option in ALL.items()}


def test_layers_without_a_name_are_named_by_type_and_number() -> None:
    model = pt.Sequential(
        pt.Conv2d(4, 3, padding=1),
        pt.ReLU(),
        pt.Conv2d(4, 3, padding=1, name="conv2d2"),
        pt.Conv2d(4, 3, padding=1),
        pt.ReLU(),
        pt.Flatten(),
        pt.Linear(10),
        input=(1, 8, 8),
        loss=pt.MSE(),
        optimizer=pt.SGD(0.01),
    )
    assert model.layer_names == (*("conv2d1", "relu1", "conv2d2", "conv2d3", "relu2", "flatten1", "linear1"),)


def test_a_layer_may_read_other_layers() -> None:
    first = pt.Conv2d(4, 3, padding=1)
    second = pt.ReLU()
    model = pt.Sequential(
        first,
        second,
        pt.Add(inputs=[first, second]),
        pt.Flatten(),
        pt.Linear(10),
        input=(1, 8, 8),
        loss=pt.MSE(),
        optimizer=pt.SGD(0.01),
    )
    assert model.spec.layers[2].inputs == ("conv2d1", "relu1")
    assert "add1" in str(model)


def test_a_model_in_python_is_the_model_of_a_file() -> None:
    file = pt.model("tutorial-cnn")
    own = pt.Sequential(
        pt.Conv2d(16, 3, name="conv1"),
        pt.ReLU(name="relu1"),
        pt.Flatten(name="flatten"),
        pt.Linear(32, name="fc"),
        input=(8, 8, 8),
        loss=pt.MSE(),
        optimizer=pt.SGD(file.spec.optimizer.options["learning_rate"]),
    )
    assert pt.run(own, functional=False).cycles == pt.run(file, functional=False).cycles


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pt.Conv2d(16), "Conv2d: missing a required argument: 'kernel'"),
        (lambda: pt.Conv1d(16, 3, padding=-1), "of Conv1d is -1"),
        (lambda: pt.Linear(10, colour="red"), "unexpected keyword argument 'colour'"),
        (lambda: pt.SGD("fast"), "'learning_rate' of SGD is 'fast'"),
        (lambda: pt.SGD(0.1, accumulate=0), "'accumulate' of SGD is 0"),
        (lambda: small_model(input=(1, 2, 2)), "kernel 3x3 is larger than the padded input 2x2"),
        (lambda: small_model(loss=pt.ReLU()), "loss must be a loss object, not ReLU()"),
        (lambda: small_model(dataset="cats"), "cats"),
        (lambda: small_model().replace(batch=0), "batch"),
    ],
)
def test_wrong_parts_of_a_network_are_refused_at_the_line_of_the_script(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(pt.PulptrainError) as caught:
        make()
    assert message in str(caught.value)
    assert caught.value.where is not None
    assert "pulptrain/python/test_api.py:" in caught.value.where


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cores": 99}, "cores = 99 must be between 1 and 16"),
        ({"cores": "8"}, "cores: the value must be of type int, but is '8' of type str"),
        ({"l1": "64KB"}, "the unit 'KB' is ambiguous"),
        ({"bank_conflicts": "maybe"}, "maybe"),
        ({"overrides": {"dma.nothing": 1}}, "unknown parameter 'dma.nothing'"),
        ({"colour": 1}, "unknown option 'colour'"),
    ],
)
def test_values_of_a_soc_are_checked_where_they_are_made(change: dict[str, object], message: str) -> None:
    with pytest.raises(pt.InputError, match="(?s).*" + message):
        pt.soc("pulp-open").replace(**change)  # type: ignore[arg-type]


def test_real_values_say_what_texts_say() -> None:
    model = small_model()
    texts = pt.run(
        model,
        "pulp-open",
        functional=False,
        l1="64KiB",
        bank_conflicts="off",
        prefetch="off",
        kernels=["conv2d1.FW=mm_unroll_2x2"],
        tiles=["linear1.FW=co:5"],
        overrides=["dma.burst_bytes=64"],
    )
    values = pt.run(
        model,
        pt.soc(l1=65536, bank_conflicts=False, overrides={"dma.burst_bytes": np.int64(64)}),
        functional=False,
        prefetch=False,
        kernels={"conv2d1.FW": "mm_unroll_2x2"},
        tiles={"linear1.FW": {"co": 5}},
    )
    assert texts.cycles == values.cycles
    assert texts["conv2d1.FW"].kernel == "mm_unroll_2x2"
    assert values["linear1.FW"].tile["co"] == 5


def test_an_op_that_is_not_there_is_named_with_those_that_are() -> None:
    result = pt.run(small_model(), functional=False)
    with pytest.raises(pt.InputError, match=r"the run has no 'conv.FW'(?s:.*)conv2d1.FW"):
        result["conv.FW"]
    with pytest.raises(pt.InputError, match="unknown group 'colour'"):
        result.by("colour")  # type: ignore[arg-type]


def test_nothing_foreign_is_overwritten(tmp_path: Path) -> None:
    result = pt.run(small_model(), functional=False)
    (tmp_path / "g.png").write_text("mine")
    (tmp_path / "summary.json").write_text("mine")
    (tmp_path / "s.yaml").write_text("mine")
    with pytest.raises(pt.InputError):
        result.gantt(tmp_path / "g.png")
    with pytest.raises(pt.InputError):
        result.save(tmp_path)
    assert (tmp_path / "g.png").read_text() == (tmp_path / "summary.json").read_text() == "mine"


def test_a_notebook_shows_the_same_tables() -> None:
    result = pt.run(small_model(), functional=False)
    for shown in (result, result.by("step"), pt.soc()):
        html = shown._repr_html_()
        tables = re.findall("<table>.*?</table>", html, re.DOTALL)
        assert tables
        assert html.endswith("</table>")
        for table in tables:
            ElementTree.fromstring(table)  # what opens is closed
    steps = ElementTree.fromstring(result.by("step")._repr_html_())
    cells = [[cell.text or "" for cell in row] for row in steps.iter("tr")]
    assert cells[0][:2] == ["step", "cycles"]
    assert cells[-1][:2] == ["total", f"{result.cycles:,}"]
    assert "largest ops" in result._repr_html_()


def test_what_a_prompt_shows_is_one_line_that_says_what_it_is() -> None:
    result = pt.run(small_model(), functional=False)
    by_step = result.by("step")
    cycles = sum(row.cycles for row in by_step)
    assert repr(by_step) == f"Totals({result.model} by step: {len(by_step)} rows, {cycles:,} cycles)"
    chip = pt.soc("pulp-open", cores=4).replace(l1="32KiB")
    assert repr(chip) == "Soc('pulp-open', cores=4, l1='32KiB')"
    assert repr(pt.soc()) == "Soc('pulp-open')"


def test_completion_offers_what_is_ours_only() -> None:
    pt.soc()  # modules that have been imported by now are not what a user calls
    ours = {name for name in dir(pt) if not name.startswith("__")}
    assert ours == {*pt.NAMES, *importlib.import_module(pt.LAYERS_MODULE).__all__}
    assert ours.isdisjoint({"sys", "annotations", "TYPE_CHECKING", "interrupts", "option", "settings"})
    assert all(getattr(pt, name) is not None for name in ours)


@pytest.mark.needs_pandas
def test_sizes_sort_as_numbers(tmp_path: Path) -> None:
    found = pt.explore(small_model(), sweep={"l1": ["128KiB", "64KiB", "1MiB"]}, workers=1, cache=False)
    frame = found.to_pandas()
    assert list(frame.sort_values("l1")["l1"]) == [64 << 10, 128 << 10, 1 << 20]
    found.save(tmp_path)
    rows = list(csv.DictReader((tmp_path / "points.csv").open()))
    assert [int(row["l1"]) for row in rows] == [128 << 10, 64 << 10, 1 << 20]
    assert [point["values"]["l1"] for point in found] == ["128KiB", "64KiB", "1MiB"]
    assert "Pareto front" in found._repr_html_()
