# SPDX-License-Identifier: Apache-2.0
"""`python -m tools.deployed.instructions`: instructions that exports execute, for the nests of `export-rv32`.

Exports models as tables (with qemu-riscv32 and the package ziglang, as `tools.deployed.counted`) and writes
docs/deploy-instructions.json: of every op what was counted, the calls of nests that it consists of, and what
the walk of its table took. No shape of these models was read when the nests were.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from arch.spec.isa import NestCall
from arch.spec.program import Compute
from arch.spec.soc_config import TABLES
from pulptrain.deploying.deployed import EXPORTED
from pulptrain.inputs.settings import Settings
from pulptrain.running.session import prepare
from scheduler.planned import Schedule
from scheduler.programs.program_code import ops_of
from tools.deployed import walked
from tools.deployed.counted import execute
from tools.deployed.walked import records_of
from tools.pages.page import ROOT, table
from trainlib.kernels.library import LIBRARY
from trainlib.kernels.team import Array, team_work
from trainlib.primitives.lowering.kernel_call import form_of

STORED = ROOT / "docs" / "deploy-instructions.json"

MODELS = (
    *("simple-mlp", "tutorial-cnn", "digits-cnn", "measured/attn.yaml", "measured/gru.yaml"),
    *(
        "tiny-transformer",
        "tiny-vit",
        "deep-autoencoder",
        "examples/lora-block.yaml",
        "examples/gru-two.yaml",
    ),
)


PLANNED = "clang-rv32"
"""Codegen under which the schedules were chosen: not the one that is tested, so counts outlast its files."""

L2 = "8MiB"
"""Room for all of them."""


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tools.deployed.instructions", description=__doc__)
    parser.add_argument("models", nargs="*", default=MODELS, help="those to count again (all)")
    parser.add_argument("--out", default="out/instructions", help="folder of exports")
    arguments = parser.parse_args()
    kept = json.loads(STORED.read_text(encoding="utf-8")) if STORED.is_file() else {}
    for model in arguments.models:
        name = Path(model).stem
        folder = Path(arguments.out).absolute() / name
        counted = execute(model, folder, "--codegen", PLANNED, "--l2", L2, form=TABLES)
        kept[name] = rows_of(model, counted)
        sums = sum(predicted(row["calls"]) for row in kept[name]), sum(row["counted"] for row in kept[name])
        print(f"{name}: {sums[0]:,} predicted, {sums[1]:,} counted", flush=True)
        lines = (
            f"{json.dumps(key)}: [\n" + ",\n".join(map(json.dumps, rows)) + "]" for key, rows in kept.items()
        )
        STORED.write_text("{" + ",\n".join(lines) + "}\n", encoding="utf-8")
    return 0


def rows_of(model: str, counted: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What is kept of the ops of a model."""
    schedules = prepare(model, Settings(codegen=PLANNED, l2=L2, form=TABLES)).schedules
    calls = _calls(schedules)
    records = {op.name: records_of(op) for each in schedules for op in ops_of(each.program.actions)}
    return [
        {"kernels": found["kernels"], "counted": found["c"], "calls": calls[op]}
        | ({"walk": {"records": records[op], **found["walk"]}} if "walk" in found else {})
        for op, found in counted.items()
    ]


def _calls(schedules: Sequence[Schedule]) -> dict[str, list[Any]]:
    """By op how often it calls which nest on which sizes."""
    found: dict[str, Counter[NestCall]] = defaultdict(Counter)
    for schedule in schedules:
        for action in schedule.program.actions:
            if isinstance(action, Compute):
                assert action.team.origin is not None
                (call,) = action.team.origin.calls
                details = action.effect.details if action.effect is not None else {}
                nest = action.team.kernel
                call = call._replace(kernel=LIBRARY.form(EXPORTED, nest, form_of(nest, details)))
                found[f"{action.work.op}.{action.work.step}"][call] += 1
    return {op: [[times, *call[1:]] for call, times in calls.items()] for op, calls in found.items()}


def predicted(calls: list[Any], codegen: str = EXPORTED) -> int:
    """Instructions of all cores in these calls."""
    return sum(times * issued(codegen, call) for times, *call in calls)


def issued(codegen: str, call: Sequence[Any]) -> int:
    """Those of one call, which is a `NestCall` without its codegen."""
    return _issued(codegen, json.dumps(call))


@cache
def _issued(codegen: str, call: str) -> int:
    kernel, accumulates, cores, sizes, per_core, forms = json.loads(call)
    arrays = {name: Array(0, tuple(strides), size_bytes) for name, strides, size_bytes in forms}
    works = [dict(core) for core in per_core]
    team = team_work(codegen, kernel, dict(sizes), arrays, cores, per_core=works, accumulate=accumulates)
    return sum(team.issued)


def rows() -> Iterator[tuple[str, str, int, int]]:
    """Model, kernels, predicted and counted instructions of all its ops with these."""
    for model, ops in json.loads(STORED.read_text(encoding="utf-8")).items():
        sums: dict[str, Counter[str]] = defaultdict(Counter)
        for op in ops:
            sums[op["kernels"]].update(predicted=predicted(op["calls"]), counted=op["counted"])
        for kernels, found in sums.items():
            yield model, kernels, found["predicted"], found["counted"]


def page() -> str:
    """Instructions of an iteration by model; of all models those of kernels that are farthest off."""
    models: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    kernels: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for model, name, ours, counted in rows():
        for sums in (models[model], kernels[name]):
            sums[0], sums[1] = sums[0] + ours, sums[1] + counted
    far = {name: sums for name, sums in kernels.items() if abs(sums[0] / sums[1] - 1) > FAR}
    near = len(kernels) - len(far)
    text = (
        f"The ops call {len(kernels)} different sets of kernels. For {near} sets, the error is at most "
        f"{100 * FAR:.0f} %. The others:"
    )
    return "\n\n".join((_table("model", models), text, _table("kernels", far)))


def walks_by_model() -> dict[str, list[dict[str, Any]]]:
    """What was walked, of the models that were counted as tables."""
    models = json.loads(STORED.read_text(encoding="utf-8"))
    found = {name: [op["walk"] for op in ops if "walk" in op] for name, ops in models.items()}
    return {name: walks for name, walks in found.items() if walks}


def walks() -> str:
    """What the walk of tables takes."""
    return walked.page(walks_by_model())


FAR = 0.01
"""Share of its instructions by which a kernel may be off."""


def _table(head: str, sums: dict[str, list[int]]) -> str:
    return table(
        (head, "predicted", "counted", "error"),
        [
            (name, f"{ours:,}", f"{counted:,}", f"{ours / counted - 1:+.2%}")
            for name, (ours, counted) in sums.items()
        ],
    )


if __name__ == "__main__":
    sys.exit(main())
