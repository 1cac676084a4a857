# SPDX-License-Identifier: Apache-2.0
"""One reader of a model behind every command and every call: a name, a model file, an ONNX file, a module."""

from __future__ import annotations

import re
import shlex
from itertools import product
from operator import itemgetter

import numpy as np
import pytest

import pulptrain as pt
from pulptrain.__main__ import run
from shared.printed import printed, refused
from shared.tiers import sweep_nine_of_ten

NET = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
"""
FILE = """
name: Net
input: {shape: [6]}
loss: cross_entropy
optimizer: {name: sgd, learning_rate: 0.01}
train: TRAIN
layers:
- {name: linear_0, type: linear, out_features: 5, bias: true}
- {name: relu_1, type: relu}
- {name: linear_2, type: linear, out_features: 3, bias: true}
"""
PARAMETERS = 6 * 5 + 5 + 5 * 3 + 3
MODELS = {
    "name": ("simple-mlp",),
    "file": ("net.yaml",),
    "onnx": ("net.onnx", "--input", "1,6"),
    "module": ("net.py:Net", "--input", "1,6"),
}
COMMANDS = {
    "run": (("--no-functional",), lambda told: told["cycles"]),
    "tune": (
        ("--tilings", "1", "--step-variants", "keep", "--resident", "off", "--workers", "1", "--no-cache"),
        lambda told: told["untuned_cycles"],
    ),
    "fit": (("--points", "0", "--no-cache"), lambda told: told["before"]["cycles"]),
    "what-if": ((), lambda told: told["cycles"]),
    "deploy": (("--out", "project"), lambda told: told["cycles"]),
    "explore": (("--workers", "1"), lambda told: told["points"][0]["cycles"]),
}
TRAINED = ("all", "last")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The same network in all forms, and what a run of its own model file takes."""
    folder = tmp_path_factory.mktemp("doors")
    (folder / "net.py").write_text(NET)
    (folder / "net.yaml").write_text(FILE.replace("TRAIN", "all"))
    assert run(["convert", str(folder / "net.yaml"), str(folder / "net.onnx"), "--quiet"]) == 0
    return folder


@pytest.fixture(scope="module")
def cycles(folder):
    """Of an iteration by what is trained, which a model file says itself here; and of the one that ships.

    Warm: code lies behind the tensors, whose bytes differ by 8 as forms order them, which moves its lines.
    """
    found = {}
    for train in TRAINED:
        path = folder / f"{train}.yaml"
        path.write_text(FILE.replace("TRAIN", train))
        found[train] = pt.run(path, functional=False, icache="warm").cycles
    assert found["last"] < found["all"]
    return found


def is_rightly(form, cycles, train, found):
    """`simple-mlp` is another network: of it only that less is trained for less."""
    return found == cycles[train] if form != "name" else found > 0


@pytest.mark.needs_torch
@pytest.mark.needs_onnx
@pytest.mark.parametrize(
    "row", sweep_nine_of_ten(list(product(COMMANDS, MODELS, TRAINED)), *map(itemgetter, range(3)))
)
def test_every_command_takes_every_form_of_a_model_with_its_options(row, folder, cycles, capsys, monkeypatch):
    command, form, train = row
    monkeypatch.chdir(folder)
    options, figure = COMMANDS[command]
    typed = MODELS[form]
    if command == "explore":
        (folder / "spec.yaml").write_text(f"name: e\nmodel: {typed[0]}\nsweep: {{cores: [8]}}\n")
        typed = ("spec.yaml", *typed[1:])
    found = figure(printed(capsys, command, *typed, *options, "--train", train, "--icache", "warm"))
    assert is_rightly(form, cycles, train, found)


CALLS = {
    "run": lambda model, **given: pt.run(model, functional=False, **given).cycles,
    "tune": lambda model, **given: pt.tune(model, tilings=1, workers=1, **given).untuned_cycles,
    "fit": lambda model, **given: pt.fit(model, points=0, **given).summary["before"]["cycles"],
    "what_if": lambda model, **given: pt.what_if(model, **given).cycles,
    "deploy": lambda model, **given: pt.deploy(model, "from-python", **given).as_dict()["cycles"],
    "explore": lambda model, **given: pt.explore(model, sweep={"cores": [8]}, workers=1, **given)[0][
        "cycles"
    ],
    "model": lambda model, train, icache, **given: (
        pt.run(
            (model if isinstance(model, pt.Model) else pt.model(model, **given)).replace(train=train),
            functional=False,
            icache=icache,
        ).cycles
    ),
}


@pytest.mark.needs_torch
@pytest.mark.needs_onnx
@pytest.mark.parametrize(
    "row", sweep_nine_of_ten(list(product(CALLS, [*MODELS, "nn"], TRAINED)), *map(itemgetter, range(3)))
)
def test_every_call_takes_every_form_of_a_model_with_its_options(row, folder, cycles, monkeypatch):
    call, form, train = row
    monkeypatch.chdir(folder)
    given = {"inputs": "1,6"} if form in ("onnx", "module") else {}
    if form == "nn":
        import torch

        space: dict = {}
        exec(NET, space)
        model, given = space["Net"](), {"inputs": torch.zeros(1, 6)}
        if call == "model":  # it takes names and files
            model, given = pt.from_torch(model, given["inputs"]), {}
    else:
        model = MODELS[form][0]
    assert is_rightly(form, cycles, train, CALLS[call](model, train=train, icache="warm", **given))


@pytest.mark.needs_torch
@pytest.mark.needs_onnx
@pytest.mark.parametrize("form", ["file", "onnx", "module"])
def test_show_and_convert_take_what_run_takes(form, folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    (shown,) = printed(capsys, "show", *MODELS[form])["found"]
    assert (shown["name"], shown["parameters"], shown["typed"]) == ("Net", PARAMETERS, " ".join(MODELS[form]))
    capsys.readouterr()
    assert run(["show", *MODELS[form], "--file"]) == 0
    assert "type: linear" in capsys.readouterr().out
    assert run(["convert", *MODELS[form], "written.yaml", "--train", "last", "--quiet"]) == 0
    assert "train: last" in (folder / "written.yaml").read_text()
    with np.load(folder / "written.npz") as arrays:
        assert sum(array.size for array in arrays.values()) == PARAMETERS


@pytest.mark.needs_torch
@pytest.mark.needs_onnx
@pytest.mark.needs_ortools
@pytest.mark.parametrize("form", ["onnx", "module"])
def test_fit_leaves_the_weights_beside_the_model_and_what_it_prints_gives_its_loss(
    form, folder, capsys, monkeypatch, tmp_path
):
    typed, small = MODELS[form], ("--l2", "1KiB", "--icache", "warm")
    monkeypatch.chdir(folder)
    loss = printed(capsys, "run", *typed)["loss"]
    told = printed(capsys, "fit", *typed, *small, "--time-limit", "0.1", "--save-model", f"{form}-small.yaml")
    again = printed(capsys, *shlex.split(told["command"])[1:])
    assert (again["cycles"], again["loss"]) == (told["cycles"], loss)
    if form == "module":
        path = pt.fit(typed[0], inputs="1,6", time_limit=0.1).save(tmp_path / "small.yaml")
        assert pt.run(path, values=path.with_suffix(".npz")).loss == loss
        assert pt.run(path).loss != loss, "of weights that are drawn"


@pytest.mark.needs_torch
@pytest.mark.needs_ortools
def test_weights_that_were_trained_are_not_written_over_by_those_a_model_begins_with(
    folder, capsys, monkeypatch
):
    monkeypatch.chdir(folder)
    net = MODELS["module"]
    assert run(["run", *net, "--save-values", "trained.npz", "-q"]) == 0
    assert "trained.npz' exists already" in refused(capsys, "fit", *net, "--save-model", "trained.yaml")
    assert "trained.npz' exists already" in refused(capsys, "convert", *net, "trained.yaml")


@pytest.mark.needs_torch
@pytest.mark.parametrize(("outputs", "name"), [(1, "mse"), (2, "cross_entropy")])
def test_a_loss_that_nobody_has_said_is_named_and_is_none_of_one_class(
    outputs, name, capsys, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.py").write_text(f"from torch import nn\ndef Net(): return nn.Linear(4, {outputs})\n")
    summary = printed(capsys, "run", "one.py:Net", "--input", "2,4")
    assert summary["notes"][0] == f"the loss is {name}: choose one with --loss"
    assert summary["loss"] > 0
    assert not any(
        "the loss is" in note
        for note in printed(capsys, "run", "one.py:Net", "--input", "2,4", "--loss", "mse")["notes"]
    )


@pytest.mark.needs_torch
def test_an_exploration_says_the_shape_of_its_module_as_the_refusal_tells(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    lines = ["name: e", "model: net.py:Net", "sweep: {cores: [8]}"]
    (folder / "told.yaml").write_text("\n".join(lines))
    told = refused(capsys, "explore", "told.yaml")
    assert "told.yaml:2: net.py:Net: the shape of the model's input is missing" in told
    said = re.search(r"e\.g\. (settings: .*})\n", told)
    assert said
    (folder / "told.yaml").write_text("\n".join([*lines, said[1].replace("1,3,32,32", "1,6")]))
    assert printed(capsys, "explore", "told.yaml", "--workers", "1")["points"]


def test_values_are_looked_at_where_no_number_is_computed_too(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    np.savez("wrong.npz", **{"linear_0.weigth": np.zeros((5, 6))})
    for command in ("tune", "fit", "what-if"):
        assert "'linear_0.weight'" in refused(capsys, command, "net.yaml", "--values", "wrong.npz")


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (
            "what-if out",
            "out is a folder of results, not a model\n  try: use the model of that run, simple-mlp; or to "
            "look at the results, run `pulptrain why",
        ),
        ("run .", ". is a folder, not a model"),
        ("tune spec.yaml", "spec.yaml is an exploration, not a model\n"),
        ("fit soc.yaml", "soc.yaml is a SoC, not a model"),
        ("run x.csv", "x.csv is a table of measured rows, not a model"),
        ("explore simple-mlp", "add 'model: simple-mlp', and use spec.yaml"),
        ("explore out", "out is a folder of results, not an exploration file"),
        ("why simple-mlp", "try: run `pulptrain run simple-mlp --out DIR`, and use DIR"),
        ("plot net.onnx", "try: run `pulptrain run net.onnx --out DIR`, and use DIR"),
        ("compare net.py:Net out", "try: run `pulptrain run net.py:Net --out DIR`, and use DIR"),
        ("kernel simple-mlp", "simple-mlp is a model, not a kernel"),
        ("primitive simple-mlp", "simple-mlp is a model, not a layer, loss or optimizer"),
        ("validate simple-mlp x.csv", "simple-mlp is a model, not a kind of measured rows"),
        ("replay net.onnx", "net.onnx is a model, not a folder that contains cases"),
        ("run nothing", "or a file: model.yaml, model.onnx, net.py:Net"),
    ],
)
def test_a_word_in_the_wrong_place_is_told_with_what_to_type(typed, told, folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "spec.yaml").write_text("name: e\nmodel: net.yaml\nsweep: {cores: [8]}\n")
    (folder / "soc.yaml").write_text("name: mine\nbase: gap9\n")
    (folder / "out").mkdir(exist_ok=True)
    (folder / "out" / "summary.json").write_text('{"model": "simple-mlp"}')
    assert told in refused(capsys, *typed.split())
