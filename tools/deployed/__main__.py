# SPDX-License-Identifier: Apache-2.0
"""`python -m tools.deployed MODEL ...`: exports a covering set, builds each with its sanitizers, compares.

A line a build into `--out`/builds.jsonl; cases that stand there are not done again. Ends with 1 if one is
not green.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from configs.model_file import load_model
from tools.deployed.cases import Case, covering

PROGRAM = [sys.executable, "-m", "pulptrain"]


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tools.deployed", description=__doc__)
    parser.add_argument("models", nargs="+", help="models by name, training graphs by file")
    parser.add_argument("--out", default="out/deployed", help="folder of exports and results")
    parser.add_argument("--workers", type=int, default=2, help="cases at a time")
    parser.add_argument("--only", default="", help="cases that have this in their names")
    arguments = parser.parse_args()
    out = Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    results = out / "builds.jsonl"
    done = (
        {json.loads(line)["case"] for line in results.read_text().splitlines()}
        if results.is_file()
        else set()
    )
    cases = [
        case for case in covering(arguments.models) if case.name not in done and arguments.only in case.name
    ]
    failed = 0
    with ThreadPoolExecutor(arguments.workers) as workers, results.open("a") as stream:
        for ended in as_completed(workers.submit(carried_out, case, out / case.name) for case in cases):
            row = ended.result()
            failed += not row["green"]
            stream.write(json.dumps(row) + "\n")
            stream.flush()
            print(f"{row['case']}: {row['verdict']} ({row['seconds']:.0f} s)", flush=True)
    return failed > 0


def carried_out(case: Case, folder: Path) -> dict[str, Any]:
    """Export, build and check of one case."""
    started = time.perf_counter()
    row: dict[str, Any] = {
        "case": case.name,
        "model": case.model,
        "sanitizers": case.sanitizers,
        "green": False,
    }
    shutil.rmtree(folder, ignore_errors=True)
    model = _model_file(case, folder.with_suffix(".yaml")) if not case.is_graph else case.model
    options = list(case.options)
    if case.tuned:
        tuned = folder.with_name(folder.name + "-tuned")
        schedule = tuned / "schedule.yaml"
        if not schedule.is_file():
            found = _run(
                [*PROGRAM, "tune", model, *options, "--tilings", "1", "--out", str(tuned), "--quiet"]
            )
            if found.returncode:
                return row | _verdict("tune", found, started)
        options += ["--schedule", str(schedule)]
    exported = _run([*PROGRAM, "deploy", model, *options, "--out", str(folder), "--json"])
    if exported.returncode:
        return row | _verdict("refused" if exported.returncode == 2 else "export", exported, started)
    row["export"] = {
        key: json.loads(exported.stdout)[key] for key in ("functions", "statements", "loops", "c_kernels")
    }
    for sanitizer in ("", *case.sanitizers):
        checked = _run(["make", "-s", "-C", str(folder), "check", f"SANITIZE={sanitizer}"])
        if checked.returncode:
            return row | _verdict(sanitizer or "check", checked, started)
    shutil.rmtree(folder / "build")
    return row | {"green": True, "verdict": "green", "seconds": time.perf_counter() - started}


def _model_file(case: Case, file: Path) -> str:
    """The model with the optimizer of the case, as a file of its own."""
    spec = load_model(case.model)
    yaml = YAML()
    content = yaml.load(Path(spec.where.split(":")[0]).read_text(encoding="utf-8"))
    content["optimizer"] = {"name": "adam" if case.adam else "sgd", "learning_rate": 0.001}
    yaml.dump(content, file)
    return str(file)


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PULPTRAIN_HOST_MEMORY": "2GiB"}  # small tiles are many actions
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def _verdict(what: str, ended: subprocess.CompletedProcess[str], started: float) -> dict[str, Any]:
    text = (ended.stderr + ended.stdout).strip().splitlines()
    return {"verdict": f"{what}: {' / '.join(text[-3:])}", "seconds": time.perf_counter() - started}


if __name__ == "__main__":
    sys.exit(main())
