# SPDX-License-Identifier: Apache-2.0
"""What Python can do is what the command line can do: options, names on the page, and short reprs."""

from __future__ import annotations

import gzip
import inspect
import re
from pathlib import Path

import pytest
import typer

import pulptrain as pt
from pulptrain.cli import application
from pulptrain.inputs import layers, option
from shared.paths import ROOT

OF_PRINTING = {
    *(
        "--json",
        "--quiet",
        "--top",
        "--full",
        "--group-by",
        "--why",
        "--evidence",
        "--no-cache",
        "--dump-program",
    ),
    *("--out", "--save-model", "--save-values", "--save-schedule", "--width", "--font", "--dpi", "--title"),
}
"""How a command shows and keeps what came out, an object of Python; `--no-cache` is ``cache=False``."""

DIFFERENT = {
    "run": ({"--no-functional"}, {"functional", "progress", "data"}),
    "deploy": ({"--kernel-library"}, {"trainlib", "data", "out"}),
    "explore": (set(), {"sweep", "points", "objectives", "baseline", "spec", "name"}),
    "compare": ({"--fail-above"}, {"path", "width_inches", "font_points", "dpi", "title"}),
    "barvinn": ({"--input", "--set"}, {"input_shape", "overrides", "progress", "x"}),
}
"""By call: flags that are called otherwise, and keywords for what a command has in files or on the screen."""

CALLS = ("run", "tune", "fit", "explore", "validate", "what_if", "deploy", "compare", "barvinn")
ARGUMENTS = ("model", "kind", "cases", "runs")


def flags_of(command: str) -> set[str]:
    click = typer.main.get_command(application([""])).commands[command]  # type: ignore[attr-defined]
    return {item.opts[0] for item in click.params if item.opts[0].startswith("--")}


def keywords_of(call: str) -> tuple[set[str], set[str]]:
    """Keywords a call names, and the flags of its options."""
    named, flags = set(), set()
    for item in inspect.signature(getattr(pt, call)).parameters.values():
        if item.kind is item.VAR_KEYWORD:
            kind = re.fullmatch(r"Unpack\[(\w+)\]", str(item.annotation))
            assert kind is not None
            flags = {each.flag for each in option.options_of(getattr(option, kind[1])).values()}
        elif item.name not in ARGUMENTS:
            named.add(item.name)
    return named, flags


@pytest.mark.parametrize("call", CALLS)
def test_a_call_has_the_options_of_its_command_and_no_others(call: str) -> None:
    other_flags, other_keywords = DIFFERENT.get(call, (set(), set()))
    named, flags = keywords_of(call)
    in_python = flags | {f"--{name.replace('_', '-')}" for name in named - other_keywords}
    own = flags_of(call.replace("_", "-")) - other_flags
    assert own - in_python <= OF_PRINTING
    assert in_python - own <= {"--soc"} & (set() if "--soc" in own else {"--soc"})


def test_every_public_name_is_on_the_page() -> None:
    page = (ROOT / "docs" / "python-api.md").read_text()
    classes = {name for name in layers.__all__ if f"`{name}(" in page}
    missing = {name for name in dir(pt) if not name.startswith("__")} - classes
    described = set(re.findall(r"auto(?:function|class|exception):: pulptrain\.(\w+)", page))
    of_layers = {name for name in missing - described if name in layers.__all__}
    assert missing - described - of_layers == set()
    assert all(not hasattr(getattr(pt, name), "primitive") for name in of_layers)


def results(folder: Path) -> dict[str, object]:
    """One of each thing that a user may have in hand."""
    run = pt.run("simple-mlp")
    other = pt.run("simple-mlp", cores=4)
    (folder / "log.csv").write_text("op,cycles\n" + "".join(f"{op.name},{op.cycles}\n" for op in run.ops))
    with gzip.open(ROOT / "measured" / "mm.csv.gz", "rt") as rows:
        (folder / "cases.csv").write_text(next(rows) + next(rows))
    return {
        "Result": run,
        "OpResult": run.ops[0],
        "Stalls": run.ops[0].stalls,
        "Totals": run.by("layer"),
        "Peak": run.peak,
        "CriticalPath": run.critical_path(),
        "Tuned": pt.tune("simple-mlp", tilings=1, steps="fw", workers=1),
        "Fitted": pt.fit("simple-mlp", points=0),
        "Explored": pt.explore("simple-mlp", sweep={"cores": [1]}, workers=1),
        "Gains": pt.what_if("simple-mlp"),
        "Deployed": pt.deploy("simple-mlp", folder / "project"),
        "Comparison": pt.compare(run, other),
        "Residuals": pt.compare(run, folder / "log.csv"),
        "SpeedUp": pt.speed_up(run, other),
        "Validated": pt.validate("mm", folder / "cases.csv", workers=1),
        "Model": pt.model("resnet8"),
        "Soc": pt.soc("gap9"),
        "Layer": pt.Conv2d(8, 3),
        "Loss": pt.CrossEntropy(),
        "Optimizer": pt.Adam(0.01),
    }


def test_every_result_has_a_short_repr_that_says_what_it_is(tmp_path: Path) -> None:
    found = results(tmp_path)
    classes = {name for name in pt.NAMES if inspect.isclass(getattr(pt, name))}
    assert classes - {*found} == {name for name in classes if issubclass(getattr(pt, name), Exception)}
    for name, value in found.items():
        shown = repr(value)
        assert len(shown) < 300, name
        assert "object at 0x" not in shown, name
        assert "\n" not in shown, name
        assert name in shown or name in ("Layer", "Loss", "Optimizer"), name
