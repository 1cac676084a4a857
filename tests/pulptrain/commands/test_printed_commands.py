# SPDX-License-Identifier: Apache-2.0
"""Every command line that is printed can be typed as it stands, and gives the figure told with it."""

from __future__ import annotations

import gzip
import json
import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from configs.library import list_names
from pulptrain.__main__ import run
from shared.paths import ROOT
from shared.printed_commands import commands_in, commands_of_the_source, printing_files
from shared.tiers import sweep_nine_of_ten
from trainlib.kernels.library import LIBRARY
from trainlib.registry import PRIMITIVES, is_internal

MODEL = "simple-mlp"

NO_COMMANDS = {
    ("pulptrain/deploying/deployed.py", "scheduled by pulptrain {}: {} cycles simulated"),
    ("pulptrain/cli.py", "pulptrain {}"),  # the version
    ("pulptrain/fitting/fit_files.py", "pulptrain fit"),  # the mark of a file
    ("pulptrain/fitting/fit_model.py", "pulptrain fit"),  # where OR-tools are missing
    ("pulptrain/foreign/conversion.py", "converted by pulptrain from"),  # the mark of a file
}
"""Texts that look like one."""

PLACEHOLDERS = {
    "MODEL.onnx": "quantised.onnx",
    "MODEL": MODEL,
    "RUN1": "out/run",
    "RUN2": "out/other",
    "A": "out/run",
    "B": "out/other",
    "LOG": "log.csv",
    "SPEC": "spec.yaml",
    "KIND": "mm",
    "SOC": "gap9",
    "NAME.yaml": "name.yaml",
    "NAME": "gap9",
}
"""What a user puts in place of a word in capitals; DIR, RUN and FILE depend on the command."""


def prepare(words: list[str]) -> None:
    """Write the files that words name into the folder this is."""
    for name in {word.removeprefix("out/") for word in words} & {"run", "other"}:
        cores = {"run": "8", "other": "4"}[name]
        more = ["--cores", cores, "--soc", "gap9", "--no-functional", "--out", f"out/{name}", "-q"]
        assert run(["run", MODEL, *more]) == 0
    Path("log.csv").write_text("op,cycles\nfc1.FW,900\n", encoding="utf-8")
    Path("spec.yaml").write_text(f"name: s\nmodel: {MODEL}\nsweep: {{cores: [2, 4]}}\n", encoding="utf-8")
    kinds = {"name.yaml": "model", "soc.yaml": "soc", "sweep.yaml": "explore"}
    for name in kinds.keys() & {*words}:
        assert run(["new", name, "--kind", kinds[name], "-q"]) == 0
    if "tuned.yaml" in words:
        assert run(["tune", MODEL, "--tilings", "1", "--save-schedule", "tuned.yaml", "-q"]) == 0
    with gzip.open(ROOT / "measured" / "mm.csv.gz", "rt") as measured:
        rows = [next(measured) for _ in range(9)]
    Path("measured").mkdir()
    with gzip.open("measured/mm.csv.gz", "wt") as some:
        some.writelines(rows)


def filled(file: str, line: str) -> list[str]:
    """The words of a command line, those in capitals replaced."""
    words = [PLACEHOLDERS.get(word, word) for word in shlex.split(line)[1:]]
    words = [word.replace("/NAME", "/name") for word in words]
    after = {
        "DIR": "out/new",
        "RUN": "out/new" if "--out" in words else "out/run",
        "FILE": "tuned.yaml" if "--schedule" in words else "measured/mm.csv.gz",
    }
    words = [after.get(word, word) for word in words]
    if file == "configs/templates/soc.yaml":
        words = [word.replace("name.yaml", "soc.yaml") for word in words]
    if file == "configs/templates/explore.yaml":
        words = [word.replace("name.yaml", "sweep.yaml") for word in words]
    return words


WHOLE = sorted({(file, line) for file, line in commands_of_the_source() if "{" not in line} - NO_COMMANDS)
"""Those that nothing is put into but by the user."""


@pytest.mark.parametrize("line", sweep_nine_of_ten(sorted({line for _, line in WHOLE})))
def test_a_command_with_words_of_the_user_runs(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    file = next(file for file, other in WHOLE if other == line)
    words = filled(file, line)
    if words[0] == "barvinn":
        pytest.skip("tests/docs/test_barvinn.py runs it")
    if words[0] != "new":
        prepare(words)
    assert run(words) == 0, capsys.readouterr().err
    assert not re.search(r"[A-Z]{3}", " ".join(words)), "a word in capitals that nothing stands for"


@dataclass(frozen=True)
class Said:
    """A command that prints others; `code` is its exit code."""

    words: str
    files: tuple[str, ...]
    """Files of the product whose texts it prints."""
    code: int = 0
    cycles: bool = False
    """Whether it tells the cycles that what it prints is to take."""


TYPED = "pulptrain/commands/typed.py"
OPTIONS = (
    "--soc gap9 --timing gvsoc --freq 100MHz --icache cold --bank-conflicts off --set dma.burst_bytes=64"
)
NET = "net.py:Net --input 2,8 --optimizer 'adam lr=0.01'"

FITTED = (
    f"fit {NET} {OPTIONS} --prefetch off --l2 2KiB --time-limit 9",
    "fit 'a b.yaml' --codegen pulp-gcc7 --buffering single --home label=l2 --l2 3KiB --batch 2",
)

SAID = (
    Said(f"run {NET} {OPTIONS} --prefetch off --fpus private", (TYPED,), cycles=True),
    Said(f"tune {NET} --soc vega --cores 4 --tilings 1", (TYPED,), cycles=True),
    Said("tune 'a b.yaml' --variant as-published --tilings 1", (TYPED,), cycles=True),
    *(Said(words, (TYPED,), cycles=True) for words in FITTED),
    Said("fit simple-mlp --l2 1KiB --l3 0 --cores 4 --time-limit 9", (TYPED,), code=2),
    Said("simple-mlp --cores 4", ("pulptrain/cli.py",), code=2),
    Said("run simple-mlp vega --cores 4", ("pulptrain/commands/help_text.py",), code=2),
    Said("run vega", ("configs/library.py",), code=2),
    Said("why 'a b.yaml'", ("pulptrain/inputs/source_kind.py",), code=2),
    Said("run 'out/a run'", ("pulptrain/inputs/source_kind.py",), code=2),
    Said("run sweep.yaml", ("pulptrain/inputs/source_kind.py",), code=2),
    Said("convert 'a b.yaml' 'c d.yaml' --batch 2", ("pulptrain/commands/convert.py",)),
    *(
        Said(f"new 'my {name}' {kind}", ("pulptrain/commands/new.py",))
        for name, kind in (
            ("model.yaml", ""),
            ("soc.yaml", "--kind soc"),
            ("sweep.yaml", "--kind explore"),
            ("energy.yaml", "--kind energy"),
            ("table.csv", "--run 'out/a run'"),
        )
    ),
    Said("plot 'out/a run' 'out/a run' --out x.png", ("pulptrain/commands/plot.py",), code=2),
    Said("show models", ("pulptrain/show/descriptions.py",), code=2),
    Said("show simple-mlp", ("pulptrain/show/show_text.py",)),
    *(Said(f"show {name}", ("pulptrain/show/show_text.py",)) for name in list_names("soc")),
    *(
        Said(f"show {name} --kind kernel --codegen {codegen}", ("pulptrain/show/show_text.py",))
        for codegen in LIBRARY.codegen_names()
        for name in LIBRARY.kernel_names(codegen)
    ),
    *(
        Said(f"primitive {name}", (TYPED,), code=2)
        for name, primitive in sorted(PRIMITIVES.items())
        if not is_internal(primitive) and primitive.steps
    ),
)
"""Commands that print command lines of what they were given."""

ELSEWHERE = {
    "pulptrain/commands/plot.py": "several runs as strips: tests/pulptrain/commands/test_out.py",
    "importers/graph/draft.py": "a layer that cannot be taken: tests/importers",
}
"""Files whose texts hold a command line that is run elsewhere."""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with models of ours and of PyTorch, whose names have spaces."""
    monkeypatch.chdir(tmp_path)
    lines = ["import torch.nn as nn", "class Net(nn.Sequential):", "    def __init__(self):"]
    lines += ["        super().__init__(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))", ""]
    Path("net.py").write_text("\n".join(lines), encoding="utf-8")
    shutil.copy(ROOT / "configs" / "models" / f"{MODEL}.yaml", "a b.yaml")
    return tmp_path


def run_of(line: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What a printed command line prints with --json, if it has that."""
    words = shlex.split(line)
    assert words[0] == "pulptrain"
    has_json = words[1] in ("run", "tune", "what-if", "fit", "kernel", "primitive", "explore")
    more = ["--json"] if has_json else []
    more += (
        ["--tilings", "1", "--save-schedule", f"t{len(list(Path.cwd().iterdir()))}.yaml"]
        if words[1] == "tune"
        else []
    )
    code = run([*words[1:], *more])
    out, err = capsys.readouterr()
    assert code == 0, (line, err)
    printed: dict[str, Any] = json.loads(out) if has_json else {}
    return printed


def cycles_of(name: str, printed: dict[str, Any]) -> Any:
    """The cycles a command tells of the same run."""
    return printed["untuned_cycles"] if name == "tune" else printed["cycles"]


def texts_of(value: object) -> Iterator[str]:
    """All texts of an object of JSON."""
    if isinstance(value, str):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from texts_of(item)


@pytest.mark.parametrize("said", sweep_nine_of_ten(SAID))
def test_what_a_command_prints_can_be_typed_and_takes_the_cycles_that_were_told(
    said: Said, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if "out/" in said.words:
        assert run(["run", MODEL, "--no-functional", "--out", "out/a run", "-q"]) == 0
    if "sweep.yaml" in said.words and "new" not in said.words:
        assert run(["new", "sweep.yaml", "--kind", "explore", "-q"]) == 0
    words = [*shlex.split(said.words), *(["--json"] if said.cycles else [])]
    words += {"fit": ["--save-model", "my fit.yaml"], "tune": ["--save-schedule", "my tuned.yaml"]}.get(
        words[0], []
    )
    capsys.readouterr()
    assert run(words) == said.code
    printed = capsys.readouterr()
    told = json.loads(printed.out) if said.cycles else {}
    lines = commands_in("\n".join([*texts_of(told), *printed] if told == {} else texts_of(told)))
    assert lines or words[0] == "show", printed
    for file in here.glob("my *.yaml"):
        written = [line.strip("# \n") for line in file.open(encoding="utf-8") if line.startswith("#     ")]
        assert words[0] != "fit" or written == lines
    if "my table.csv" in words:
        Path("my table.csv").write_text("op,cycles\nfc1.FW,900\n", encoding="utf-8")
    for line in lines:
        name = shlex.split(line)[1]
        if name in ("list", "plot", "new") or re.search(r"[A-Z]{3}| -h$", line):
            continue  # of the other test
        came_of_it = run_of(line, capsys)
        assert not said.cycles or cycles_of(name, came_of_it) == told["cycles"], line


def test_every_text_of_the_product_that_has_a_command_line_is_printed_by_a_test() -> None:
    whole = {file for file, _ in WHOLE}
    with_more = {file for file, line in commands_of_the_source() if "{" in line}
    with_more |= printing_files() - {file for file, _ in commands_of_the_source()}
    printed = {file for said in SAID for file in said.files} | ELSEWHERE.keys()
    with_more -= {file for file, _ in NO_COMMANDS} - printed
    assert with_more <= printed
    assert printed <= whole | with_more | {TYPED}
