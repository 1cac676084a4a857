# SPDX-License-Identifier: Apache-2.0
"""What runs take of this computer's memory, beside what `scheduler.memory.host_memory` says they will.

`python -m tools.measure_host_memory [CASE ...]` runs every case in a process of its own, without numbers and
without or with a trace, with numbers, and with PyTorch, and prints a line for each. After a change of what is
kept of an action, a command or a kernel, its constants are to be set such that the estimates are right again.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from configs.limits import HOST_MEMORY_VARIABLE

FORMS = ("untraced", "timing", "numbers", "torch")
UNLIMITED = "1024GiB"
MIB = 1 << 20

HEAD = """\
name: m
description: d
source: s
dataset: random
"""

CONVOLUTION = (
    HEAD
    + """\
input: {shape: [16, 32, 32]}
loss: cross_entropy
optimizer: {name: sgd, learning_rate: 0.01}
batch: BATCH
layers:
  - {name: c1, type: conv2d, out_channels: 16, kernel: 3, padding: 1}
  - {name: r1, type: relu}
  - {name: c2, type: conv2d, out_channels: 16, kernel: 3, padding: 1}
  - {name: p, type: avg_pool2d, kernel: 8}
  - {name: fl, type: flatten}
  - {name: fc, type: linear, out_features: 10}
"""
)

DENSE = (
    HEAD
    + """\
input: {shape: [1024]}
loss: mse
optimizer: {name: adam, learning_rate: 0.01}
layers:
  - {name: f1, type: linear, out_features: 2048, bias: true}
  - {name: r1, type: relu}
  - {name: f2, type: linear, out_features: 1024, bias: true}
"""
)


@dataclass(frozen=True, slots=True)
class Case:
    """A model (its name, or the text of its file) and the settings it runs with."""

    model: str
    settings: dict[str, Any] = field(default_factory=dict)


CASES = {
    "simple-mlp": Case("simple-mlp"),
    "deep-autoencoder": Case("deep-autoencoder"),
    "resnet8": Case("resnet8"),
    "mobilenet-v1": Case("mobilenet-v1"),
    "cct": Case("cct"),
    "large-tensors": Case(DENSE, {"l1": "2MiB", "l2": "96MiB"}),
    "streamed": Case(DENSE, {"l2": "1MiB", "l3": "128MiB"}),
    "large-batch": Case(CONVOLUTION.replace("BATCH", "32"), {"l2": "32MiB"}),
    "many-tiles": Case("resnet8", {"l1": "12KiB"}),
    "many-transfers": Case(CONVOLUTION.replace("BATCH", "4"), {"l1": "12KiB"}),
}


@dataclass(frozen=True, slots=True)
class Measured:
    """Peak of a run, and what was estimated of it."""

    estimate_bytes: int
    peak_bytes: int

    @property
    def ratio(self) -> float:
        """Estimate over peak."""
        return self.estimate_bytes / self.peak_bytes


def measure(case: str, form: str) -> Measured:
    """Run a case in a process of its own. Raises `subprocess.CalledProcessError` if that fails."""
    done = subprocess.run(
        [sys.executable, "-m", "tools.measure_host_memory", "--one", case, form],
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
        env={**os.environ, HOST_MEMORY_VARIABLE: UNLIMITED},
    )
    return Measured(*map(int, done.stdout.split()[-2:]))


def _run(case: Case, form: str) -> Measured:
    # Imported here, so that the process that only asks for it is small.
    from pulptrain.inputs.settings import Settings
    from pulptrain.running import number_check
    from pulptrain.running.session import prepare, run_prepared
    from scheduler.memory.host_memory import HostUse, host_memory_parts

    if form != "torch":
        setattr(number_check, "torch_available", lambda: False)  # noqa: B010 - a name it has imported
    settings = Settings(**case.settings)
    numbers = form in ("numbers", "torch")
    use = HostUse(numbers, form == "torch", traced=form != "untraced")
    with tempfile.TemporaryDirectory() as folder:
        model = case.model
        if "\n" in model:
            file = Path(folder) / "m.yaml"
            file.write_text(model, encoding="utf-8")
            model = str(file)
        prepared = prepare(model, settings, None, use, traced=use.traced)
    run_prepared(prepared, settings, functional=use.numbers)
    schedule = prepared.schedule
    parts = host_memory_parts(schedule.graph, prepared.timing, use, schedule.size)
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts KiB
    return Measured(sum(parts.values()), peak_bytes)


def main(arguments: list[str]) -> None:
    """Measure the cases named, or all."""
    if arguments[:1] == ["--one"]:
        one = _run(CASES[arguments[1]], arguments[2])
        print(one.estimate_bytes, one.peak_bytes)
        return
    print(f"{'case':18}{'form':10}{'estimate MiB':>14}{'measured MiB':>14}{'ratio':>8}")
    for case in arguments or CASES:
        for form in FORMS:
            measured = measure(case, form)
            print(
                f"{case:18}{form:10}{measured.estimate_bytes / MIB:14,.0f}{measured.peak_bytes / MIB:14,.0f}"
                f"{measured.ratio:8.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main(sys.argv[1:])
