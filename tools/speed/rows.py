# SPDX-License-Identifier: Apache-2.0
"""What is timed: commands, each with what is kept before it begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tools.speed.versions import ROOT

TIMING_ONLY = ("--no-functional",)


@dataclass(frozen=True)
class Row:
    """A command of `pulptrain`, timed after the commands `before` it, which share its kept plans and prices.

    `files` are written into its folder. `rounds` is how often both versions take turns.
    """

    name: str
    arguments: tuple[str, ...]
    before: tuple[tuple[str, ...], ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    rounds: int = 3


def _run(model: str, *options: str) -> tuple[str, ...]:
    return ("run", model, *options)


def _cold(model: str, rounds: int = 3) -> Row:
    return Row(f"{model}, timing only, cold", _run(model, *TIMING_ONLY), rounds=rounds)


def _warm(name: str, *arguments: str) -> Row:
    return Row(f"{name}, again", arguments, before=(arguments,))


def _edited() -> Row:
    """ResNet8 after one convolution got another kernel: the shapes around it stay."""
    text = (ROOT / "configs" / "models" / "resnet8.yaml").read_text(encoding="utf-8")
    old = "{name: s2_conv2, type: conv2d, out_channels: 32, kernel: 3, padding: 1}"
    assert old in text
    other = text.replace(old, old.replace("kernel: 3, padding: 1", "kernel: 5, padding: 2"))
    options = TIMING_ONLY
    return Row(
        "resnet8, timing only, one layer edited",
        _run("edited.yaml", *options),
        before=(_run("former.yaml", *options),),
        files={"former.yaml": text, "edited.yaml": other},
    )


def _refused() -> Row:
    """A convolution that an L1 of 12 KiB cuts into more tiles than memory may hold: hundreds of thousands."""
    text = (
        "name: large\ndescription: d\nsource: s\ninput: {shape: [16, 256, 256]}\ndataset: random\n"
        "loss: mse\noptimizer: {name: sgd, learning_rate: 0.01}\nlayers:\n"
        "  - {name: conv, type: conv2d, out_channels: 16, kernel: 3, padding: 1}\n"
    )
    arguments = _run("large.yaml", *TIMING_ONLY, "--l1", "12KiB", "--l2", "64MiB")
    return Row("a convolution of too many tiles, refused", arguments, files={"large.yaml": text}, rounds=1)


SMALLEST = Row("simple-mlp, timing only", _run("simple-mlp", *TIMING_ONLY))
WARM_UP = Row("compiled code", _run("resnet8", *TIMING_ONLY), rounds=1)

ROWS = (
    _warm("tutorial-cnn, timing only", *_run("tutorial-cnn", *TIMING_ONLY)),
    _cold("resnet8"),
    _warm("resnet8, timing only", *_run("resnet8", *TIMING_ONLY)),
    _edited(),
    _warm("resnet8 with numbers and check", *_run("resnet8")),
    _cold("mobilenet-v1", rounds=1),
    _cold("gru-keywords", rounds=1),
    _cold("cct", rounds=1),
    _refused(),
    Row("tune digits-cnn, 1 worker", ("tune", "digits-cnn", "--tilings", "1", "--workers", "1"), rounds=1),
)
