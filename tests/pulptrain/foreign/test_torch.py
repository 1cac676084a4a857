# SPDX-License-Identifier: Apache-2.0
"""`pulptrain run net.py:Net`: what is run, what is asked for, and what is said without PyTorch."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest

from configs.errors import WrongNumbersError
from pulptrain.__main__ import run
from pulptrain.foreign import foreign_model
from pulptrain.foreign.foreign_model import open_foreign
from pulptrain.inputs.settings import Settings
from shared.printed import printed, refused

NET = """
import pathlib
pathlib.Path("was_run").touch()
from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))

def words():
    return nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(12, 2))

number = 3

def broken():
    raise RuntimeError("no weights")
"""


@pytest.fixture
def net(tmp_path, monkeypatch):
    """A folder with net.py, to work in."""
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def without_torch(monkeypatch):
    """As if PyTorch were not installed."""
    monkeypatch.setitem(sys.modules, "torch", None)


def test_without_torch_a_module_names_the_extra_and_a_model_file_runs(net, without_torch, capsys):
    assert "pip install 'pulptrain[torch]'" in refused(capsys, "run", "net.py:Net", "--input", "1,6")
    assert run(["run", "tutorial-cnn", "--quiet", "--no-functional"]) == 0


@pytest.mark.parametrize("name", ["net.py", "net.yaml", "net"])
def test_a_file_is_not_run_unless_it_is_asked_for_in_that_form(net, name, capsys):
    assert run(["run", name]) == 2
    assert not (net / "was_run").exists()


BAD = {
    "no shape": (["net.py:Net"], "e.g. --input 1,3,32,32"),
    "a shape that is none": (["net.py:Net", "--input", "1,x"], "'1,x' is not a shape"),
    "a shape without a batch": (["net.py:Net", "--input", "6"], "batch first"),
    "a size of 0": (["net.py:Net", "--input", "0,6"], "'0,6' is not a shape"),
    "too large a shape": (["net.py:Net", "--input", "999999999,999999999,99"], "elements"),
    "a shape it does not take": (["net.py:Net", "--input", "1,7"], "torch.export cannot capture"),
    "a name that is not there": (["net.py:Nets", "--input", "1,6"], "net.py has no Nets"),
    "a name that is no module": (["net.py:number", "--input", "1,6"], "number"),
    "a function that fails": (["net.py:broken", "--input", "1,6"], "RuntimeError: no weights"),
    "no such file": (["nets.py:Net", "--input", "1,6"], "the file does not exist"),
    "no name": (["net.py", "--input", "1,6"], "net.py:broken"),
    "an unknown loss": (["net.py:Net", "--input", "1,6", "--loss", "cross_entropi"], "cross_entropy"),
    "an unknown optimizer": (["net.py:Net", "--input", "1,6", "--optimizer", "sdg lr=1"], "sgd"),
    "an option that is none": (
        ["net.py:Net", "--input", "1,6", "--optimizer", "sgd lr"],
        "'lr' in 'sgd lr' is not KEY=VALUE",
    ),
    "a shape of a model file": (["tutorial-cnn", "--input", "1,8,8,8"], "already specifies"),
}


@pytest.mark.needs_torch
@pytest.mark.parametrize("case", BAD)
def test_a_mistake_is_told_in_words_with_exit_code_2(net, case, capsys):
    words, message = BAD[case]
    error = refused(capsys, "run", *words)
    assert message in error


@pytest.mark.needs_torch
def test_a_module_runs_with_its_own_values_and_its_gradients_are_compared(net, capsys):
    summary = printed(capsys, "run", "net.py:Net", "--input", "2,6", "--seed", "3")
    assert (net / "was_run").exists()
    assert summary["functional"]["module"]["tensors"] == 5
    assert summary["functional"]["module"]["passed"]


@pytest.mark.needs_torch
def test_words_go_in_as_integers_below_the_size_of_the_table(net, capsys):
    assert printed(capsys, "run", "net.py:words", "--input", "int:2,3")["functional"]["module"]["passed"]


@pytest.mark.needs_torch
def test_a_module_is_captured_without_a_thread_that_stays(net):
    """With one, workers could not be copies of the process."""
    before = threading.active_count()
    open_foreign("net.py:Net", Settings(inputs="1,6"))
    assert threading.active_count() == before


@pytest.mark.needs_torch
def test_the_batch_option_goes_before_that_of_the_shape(net):
    read = open_foreign("net.py:Net", Settings(batch=5, inputs="1,6"))
    assert read.spec.batch == 5


@pytest.mark.needs_torch
def test_a_seed_gives_the_same_weights_and_another_seed_others(net):
    values = [
        open_foreign("net.py:Net", Settings(seed=seed, inputs="1,6")).values["linear_0.weight"]
        for seed in (1, 1, 2)
    ]
    assert (values[0] == values[1]).all()
    assert (values[0] != values[2]).any()


@pytest.mark.needs_torch
def test_a_gradient_that_is_not_the_modules_is_an_error(net, monkeypatch):
    from pulptrain.running.session import run_model

    foreign = open_foreign("net.py:Net", Settings(inputs="1,6"))
    outcome = run_model(foreign.spec, Settings(), values=foreign.values)
    outcome.values["results/linear_2.weight.grad"] = outcome.values["results/linear_2.weight.grad"] * 1.01
    foreign_model.compare_with_origin(foreign, outcome, Settings(), 1)
    with pytest.raises(
        WrongNumbersError, match=r"linear_2\.weight\.grad differs from the result of torch\.autograd"
    ):
        foreign_model.refuse_other_gradients(foreign, outcome)


@pytest.mark.needs_torch
def test_a_run_from_python_compares_gradients_with_the_module_too_or_says_why_not():
    import torch

    import pulptrain as pt

    module = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3))
    network = pt.from_torch(module, torch.zeros(2, 6))
    functional = pt.run(network, cache=False).summary["functional"]
    assert functional["module"]["passed"]
    assert functional["skipped"] == []
    for options, why in (
        ({"iterations": 2}, "several iterations"),
        ({"dtype": "bf16"}, "not fp32"),
        ({"batch": 1}, "the batch differs"),
        ({"steps": "fw"}, "no loss"),
        ({"separate_update": True}, "the update is a separate program"),
        ({"values": dict(network.values)}, "the user passed values or samples"),
    ):
        functional = pt.run(network, cache=False, **options).summary["functional"]
        assert "module" not in functional
        assert len(functional["skipped"]) == 1
        assert why in functional["skipped"][0]
    masked = pt.from_torch(torch.nn.Sequential(module, torch.nn.Dropout(0.5)), torch.zeros(2, 6))
    said = pt.run(masked, cache=False)
    assert "random masks" in said.summary["functional"]["skipped"][0]
    assert "not compared: loss and gradients" in " ".join(str(said).split())
    with torch.no_grad():
        network.foreign.module[0].weight *= 1.01
    with pytest.raises(WrongNumbersError, match=r"differs from the result of torch\.autograd"):
        pt.run(network, cache=False)


@pytest.mark.needs_torch
def test_a_converted_module_gives_the_same_cycles_and_numbers(net, capsys):
    assert run(["convert", "net.py:Net", "out.yaml", "--input", "2,6", "--optimizer", "adam lr=0.01"]) == 0
    capsys.readouterr()
    found = []
    for words in (
        ["net.py:Net", "--input", "2,6", "--optimizer", "adam lr=0.01"],
        ["out.yaml", "--values", "out.npz"],
    ):
        summary = printed(capsys, "run", *words, "--save-values", f"{len(found)}.npz")
        found.append((summary["cycles"], summary["loss"], summary["peak_bytes"]))
    assert found[0] == found[1]
    first, second = np.load("0.npz"), np.load("1.npz")
    assert set(first.files) == set(second.files)
    assert all((first[name] == second[name]).all() for name in first.files)
