# SPDX-License-Identifier: Apache-2.0
"""Mistakes of a first day: every answer says what is wrong, where, and what to write instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulptrain.__main__ import run
from shared.printed import refused

MODEL = """\
name: mine
input: {shape: [32, 32, 3]}
loss: cross_entropy
optimizer: {name: sgd, learning_rate: 0.01}
layers:
  - {name: c, type: conv2d, out_channels: 2, kernel: PIXELS}
  - {name: f, type: flatten}
  - {name: fc, type: linear, out_features: 2}
"""
FIRST = (
    "write an image of 3 channels as [3, 32, 32], channels first (with layout HWC, too): "
    "[32, 32, 3] has 32 channels of 32 by 3"
)
FILES = {
    "chip.yaml": "name: x\n",
    "whole.yaml": "name: x\nparameters: {cores: {value: 4}}\n",
    "last.yaml": MODEL.replace("PIXELS", "5"),
    "tab.yaml": "name: m\n\tbatch: 3\n",
    "open.yaml": "name: m\ninput: {shape: [3, 8, 8]\nbatch: 3\n",
    "quote.yaml": "name: 'm\nbatch: 3\n",
    "indented.yaml": "layers:\n  - name: a\n    type: relu\n   kernel: 3\n",
    "colon.yaml": "name: a: b\n",
    "sign.yaml": "name: %a\n",
    "empty.yaml": "layers:\n  - {name: a, type: relu}\n",
}
SMALL = """\
name: mine
input: {shape: [4]}
loss: mse
optimizer: {name: sgd, learning_rate: 0.1}
layers:
  - {name: fc, type: linear, out_features: 3}
"""
FILES |= {
    "small.yaml": SMALL,
    "ctc.yaml": SMALL.replace("mse", "ctc"),
    "both.yaml": SMALL.replace("loss: mse", "loss: mse\nlosses: [mse]"),
    "labels.yaml": SMALL.replace(
        "loss: mse",
        "losses: [{name: mse, label: a}, {name: cross_entropy, labels: hard, label: a}]",
    ),
    "group.yaml": SMALL.replace("0.1}", "0.1, groups: [{layers: [fcc]}]}"),
    "groups.yaml": SMALL.replace("0.1}", "0.1, groups: [fc]}"),
    "pair.yaml": """\
name: pair
inputs: {left: {shape: [4]}, right: {shape: [5]}}
loss: mse
optimizer: {name: sgd, learning_rate: 0.1}
layers:
  - {name: one, type: linear, out_features: 3, inputs: [left]}
  - {name: other, type: linear, out_features: 2, inputs: [right]}
  - {name: apart, type: subtract, inputs: [one, other]}
""",
}
STALLS = (
    "load_use, multicycle, misaligned, fpu, divider, branch, icache, bank_conflict, l2_access, dma_wait, "
    "dma_program, barrier, fork, offload, idle, busy"
)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files, as the current one."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "soc.yaml").write_text("name: mine\nbase: gap9\ncores: 4\n")
    (tmp_path / "in-parameters.yaml").write_text("name: mine\nbase: gap9\nparameters: {cores: 4}\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("command", "message", "cure"),
    [
        (
            "run pulp-open tutorial-cnn",
            "pulptrain run: 'pulp-open' is a SoC, not a model, and needs --soc",
            "pulptrain run tutorial-cnn --soc pulp-open",
        ),
        (
            "run simple-mlp tutorial-cnn",
            "pulptrain run: unexpected argument 'tutorial-cnn'",
            "remove it, or put a value with spaces in quotes; see `pulptrain run -h`",
        ),
        (
            "run pulp-open",
            "'pulp-open' is a SoC, not a model",
            "use a model (`pulptrain list models`), e.g. `pulptrain run tutorial-cnn --soc pulp-open`",
        ),
        (
            "run simple-mlp --soc simple-mlp",
            "'simple-mlp' is a model, not a SoC",
            "use --soc with a SoC (`pulptrain list socs`), and write the model after the command",
        ),
        (
            "zebra a b",
            "unknown command 'zebra'",
            "use one of run, tune, explore, fit, kernel, primitive, validate, convert, replay, plot, why, "
            "what-if, deploy, compare, barvinn, list, show, new, example",
        ),
        ("simple-mlp --l1 64KiB", "unknown command 'simple-mlp'", "pulptrain run simple-mlp --l1 64KiB"),
        (
            "run simple-mlp --l1 64",
            "--l1: 64 is too small for the size of a memory; a unit seems to be missing",
            "add the unit, e.g. 64 KiB: --l1 64KiB",
        ),
        (
            "run simple-mlp --freq 370",
            "--freq: 370 is too small for the frequency of a clock; a unit seems to be missing",
            "add the unit, e.g. 370 MHz: --freq 370MHz",
        ),
        (
            "what-if simple-mlp --more-l1 64",
            "--more-l1: 64 is too small for the size of a memory; a unit seems to be missing",
            "add the unit, e.g. 64 KiB: --more-l1 64KiB",
        ),
        (
            "deploy simple-mlp --out never --arena 100",
            "--arena: 100 is too small for the size of a memory; a unit seems to be missing",
            "add the unit, e.g. 100 KiB: --arena 100KiB",
        ),
        (
            "run simple-mlp --fpus 3",
            "--fpus: unknown FPU arrangement '3'",
            "use 3-static (by core number), 3-dynamic (per cycle), or private",
        ),
        (
            "primitive conv2d --shape 3,8,8",
            "--shape: '3,8,8' is not a shape",
            "3x8x8",
        ),
        (
            "run simple-mlp --soc soc.yaml",
            "soc.yaml:3: unknown key 'cores' in the SoC file",
            "write the key in parameters: {cores: {value: 4}}",
        ),
        (
            "run simple-mlp --soc in-parameters.yaml",
            "in-parameters.yaml:3: parameter 'cores' must be a mapping, not 4",
            "write cores: {value: 4}",
        ),
        (
            "run simple-mlp --cores eight",
            "--cores: 'eight' is not a whole number",
            "use digits, e.g. --cores 4",
        ),
        (
            "run simple-mlp --learning-rate=fast",
            "--learning-rate: 'fast' is not a number",
            "use digits, e.g. --learning-rate 0.01",
        ),
        (
            "run simple-mlp --kernel mm=fc1.FW",
            "simple-mlp: --kernel mm=fc1.FW: no op or step that can choose its kernel has this name",
            "write the op first: --kernel fc1.FW=mm",
        ),
        (
            "run simple-mlp --kernel fc1.UPD=mm",
            "simple-mlp: fc1.UPD does not use a matmul kernel",
            "use one of FW, IG, WG, fc1.FW, fc1.WG, fc2.FW, fc2.IG, fc2.WG",
        ),
        ("run simple-mlp --soc chip", "unknown SoC 'chip'", "use 'chip.yaml'"),
        (
            "primitive relu --shape 4 --kernel mm",
            "relu: relu.FW does not use a matmul kernel",
            "remove --kernel",
        ),
        (
            "run simple-mlp --set dma.burst_bytes=-1",
            "--set dma.burst_bytes=-1: a size cannot be negative: '-1'",
            "use a size without '-', like '64 KiB'; pulp-open has 256 B",
        ),
        (
            "run simple-mlp --set cores=many",
            "--set cores=many: 'cores' is 'many', but must be a whole number",
            "use a whole number; pulp-open has 8",
        ),
        (
            "run simple-mlp --resident all",
            "--resident: simple-mlp has no tensor 'all'",
            "use auto (tensors that save cycles), or names of tensors: fc.weight, or "
            "fc.weight@fc.FW..fc.IG for the ops from fc.FW to fc.IG only",
        ),
        (
            "show stall",
            "show: 'stall' is a group of names, but one name is needed",
            f"use one of {STALLS}",
        ),
        (
            "show kernels",
            "show: 'kernels' is a group of names, but one name is needed",
            "use a name that `pulptrain list kernels` prints",
        ),
        (
            "primitive conv2d",
            "primitive conv2d: conv2d needs --option kernel=... and --option out_channels=... and --shape",
            "pulptrain primitive conv2d --shape 2x6x5 --option out_channels=3 --option kernel=3",
        ),
        (
            "primitive conv2d --shape 3x8x8 --option out_channels=2",
            "primitive conv2d: conv2d needs --option kernel=...",
            "pulptrain primitive conv2d --shape 2x6x5 --option out_channels=3 --option kernel=3",
        ),
        (
            "primitive sgd --step upd --shape 3",
            "primitive sgd: sgd needs --option learning_rate=...",
            "pulptrain primitive sgd --step upd --shape 4x3 --option learning_rate=0.1",
        ),
        (
            "run simple-mlp --soc chip.yaml",
            "chip.yaml:1: the SoC file has no 'parameters'",
            "add 'parameters: {cores: {value: 4}}'",
        ),
        (
            "run simple-mlp --soc whole.yaml",
            "whole.yaml:1: the SoC file changes values of a base, but lacks the key 'base'",
            "add 'base: pulp-open', or another SoC; its values apply where this file has none",
        ),
        (
            "run last.yaml",
            "last.yaml:6: layer c: kernel 5x5 is larger than the padded input 32x3",
            f"{FIRST}; or use a smaller kernel, more padding, or less stride in the layers before it",
        ),
        (
            "primitive conv2d --shape 32x32x3 --option kernel=5 --option out_channels=1",
            "primitive conv2d: layer conv2d: kernel 5x5 is larger than the padded input 32x3",
            f"{FIRST}; or use a smaller kernel, more padding, or less stride in the layers before it",
        ),
        (
            "run tab.yaml",
            "tab.yaml:2: YAML syntax error: a tab instead of spaces; the line is: batch: 3",
            "indent with spaces",
        ),
        (
            "run open.yaml",
            "open.yaml:3: YAML syntax error: a '}' is missing for the bracket in line 2; "
            "the line is: batch: 3",
            "add a '}', or a ',' between two items",
        ),
        (
            "run quote.yaml",
            "quote.yaml:1: YAML syntax error: the quote that begins in this line is not closed; "
            "the line is: name: 'm",
            "add a quote at the end of the text",
        ),
        (
            "run indented.yaml",
            "indented.yaml:4: YAML syntax error: indented differently from line 2; the line is: kernel: 3",
            "use as many spaces as the neighbouring lines; write one item '- ...' or one "
            "'key: value' per line",
        ),
        (
            "run colon.yaml",
            "colon.yaml:1: YAML syntax error: unexpected ': '; the line is: name: a: b",
            "write one 'key: value' per line, indented like its neighbours; put a text with ': ' in quotes",
        ),
        (
            "run sign.yaml",
            "sign.yaml:1: YAML syntax error: a value cannot begin with %; the line is: name: %a",
            "put the text in quotes",
        ),
        (
            "run ctc.yaml",
            "ctc.yaml:3: ctc sums over all alignments in time, which is not supported",
            "use cross_entropy with the option labels: hard, and one aligned label per time step",
        ),
        ("run both.yaml", "both.yaml:4: the model has both 'loss' and 'losses'", "use one of the two"),
        (
            "run labels.yaml",
            "labels.yaml:3: two losses share the labels 'a', but one needs [3] float32 (numbers) and "
            "one [] int32 (3 classes)",
            "use a separate 'label' for each loss",
        ),
        (
            "run small.yaml --loss mse",
            "--loss: small.yaml already specifies 'loss', so --loss cannot be used",
            "remove --loss; in a YAML file set 'loss:'",
        ),
        ("run group.yaml", "group.yaml:4: unknown layer 'fcc'", "use 'fc'"),
        (
            "run groups.yaml",
            "groups.yaml:4: item 1 of 'groups' of optimizer 'sgd' is the text 'fc', but must be a mapping: "
            "{key: value}",
            "use a mapping: {key: value}",
        ),
        (
            "run pair.yaml",
            "pair.yaml:8: layer apart: the inputs of subtract must have the same shape, but have "
            "(1, 3) and (1, 2)",
            "use inputs of the same shape; 'expand' enlarges dimensions of size 1",
        ),
        (
            "run small.yaml --iterations 3 --lr-schedule listed_rates=0.1,0.2",
            "small.yaml:4: the learning-rate schedule has 2 steps, but the run has 3 iterations",
            "use a longer schedule, or --iterations 2",
        ),
    ],
)
def test_the_answer_to_a_mistake(
    command: str, message: str, cure: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([word.replace("listed_", "listed ") for word in command.split()]) == 2
    assert capsys.readouterr().err == f"pulptrain: error: {message}\n  try: {cure}\n"


def test_missing_keys_of_a_model_come_with_what_they_may_hold(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(capsys, "run", "empty.yaml", "-q")
    for text in ("input: {shape: [3, 32, 32]}", "loss: cross_entropy", "{name: sgd, learning_rate: 0.01}"):
        assert text in said


def test_an_image_with_its_channels_last_that_fits_all_the_same_is_noted(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "fits.yaml").write_text(MODEL.replace("PIXELS", "3").replace("32, 32", "4, 4"))
    assert run(["run", "fits.yaml", "--no-cache"]) == 0
    note = FIRST.replace("32", "4")
    assert note in " ".join(capsys.readouterr().out.split())
    assert (
        run(["primitive", "conv2d", "--shape", "3x4x4", "--option", "kernel=3", "--option", "out_channels=1"])
        == 0
    )
    assert "channels come first" not in capsys.readouterr().out
