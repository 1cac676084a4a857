# SPDX-License-Identifier: Apache-2.0
"""`python -m tools.deployed.counted MODEL...`: instructions of kernels by execution, beside nests.

Every model is exported, compiled for RV32 without Xpulp (package ziglang) and run in `qemu-riscv32`, an
instruction at a time. Counted are those of an iteration, of all cores, in an op's kernels and what they call;
the nests' are those of the simulated run. A row is the kernels of an op, summed over the ops with the same.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import zlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from shutil import rmtree
from typing import Any

from tools.deployed.rv32 import Program
from tools.pages.page import ROOT, table

FLAGS = (
    "-O3 -ffp-contract=off -fno-vectorize -fno-slp-vectorize -mllvm -unroll-runtime=false "
    "-fomit-frame-pointer -fno-pic -fno-stack-protector"
)
TARGET = "-target riscv32-linux-musl -mcpu=generic_rv32+m+a+c+zfinx -mabi=ilp32 -static"
MACHINE = ("qemu-riscv32", "-cpu", "rv32,f=false,d=false,zfinx=true", "-d", "exec,nochain")

IN_LINE = f"-I{ROOT / 'tools/deployed'} -DPT_TEAM_IN_LINE"
"""As the platforms of PULP clusters have it."""

OPTIONS = ("--iterations", "1", "--form", "readable", "--quiet")


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tools.deployed.counted", description=__doc__)
    parser.add_argument("models", nargs="+", help="models by name or file")
    parser.add_argument("--out", default="out/counted", help="folder of exports and counts")
    parser.add_argument("--against", help="the --out of an earlier call, for a column of its counts")
    arguments = parser.parse_args()
    out = Path(arguments.out).absolute()
    rows: dict[str, Counter[str]] = {}
    for model in arguments.models:
        folder = out / Path(model).stem
        counted = execute(model, folder, "--codegen", "clang-rv32")
        (folder / "counted.json").write_text(json.dumps(counted))
        before = {}
        if arguments.against:
            before = json.loads((Path(arguments.against) / folder.name / "counted.json").read_text())
        for op, found in counted.items():
            row = rows.setdefault(found["kernels"], Counter())
            row.update(ops=1, nest=found["nest"], c=found["c"], before=before.get(op, {}).get("c", 0))
    shown = [
        (name, row["ops"], row["nest"], *([row["before"]] if arguments.against else []), row["c"], _over(row))
        for name, row in sorted(rows.items())
    ]
    heads = ("kernels", "ops", "nest", *(["before"] if arguments.against else []), "C", "C / nest")
    print(
        table(heads, [tuple(f"{cell:,}" if isinstance(cell, int) else cell for cell in row) for row in shown])
    )
    return 0


def _over(row: Counter[str]) -> str:
    return f"{row['c'] / row['nest']:.2f}" if row["nest"] else "-"


def execute(model: str, folder: Path, *options: str) -> dict[str, dict[str, Any]]:
    """Kernels, instructions of the nests and of C, of every op that calls kernels.

    `options` are those of `run`.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pulptrain", "deploy", model, *OPTIONS, *options, "--out", str(folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    rmtree(folder / "build", ignore_errors=True)  # make knows nothing of flags
    compiler = f"CC={sys.executable} -m ziglang cc {TARGET}"
    platform = f"PLATFORM={ROOT / 'tools/deployed/in_turn.c'}"
    # The cache of zig mistakes network.h of one folder for that of another: each has a name in its flags.
    flags = f"CFLAGS={FLAGS} {IN_LINE} -DEXPORT_OF={zlib.crc32(str(folder).encode())}u"
    make = ["make", "-s", "-C", str(folder), "TARGET=bare", platform, compiler, flags, "all"]
    subprocess.run(make, check=True)
    nests = {op["name"]: op["instructions"] for op in _simulated(model, options)["ops"]}
    text = (folder / "network.c").read_text()
    functions = dict(re.findall(r'^    \{"(\S+)", (\w+), ', text, re.MULTILINE))
    counts = _counted(folder / "build/bare/network", set(functions.values()))
    return {
        op: {"kernels": _kernels(text, function), "nest": nests[op], "c": counts[function]}
        for op, function in functions.items()
        if counts[function]
    }


def _simulated(model: str, options: Sequence[str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "pulptrain", "run", model, *OPTIONS, *options, "--json"]
    result: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return result


def _kernels(text: str, function: str) -> str:
    first = text.index(f"\nvoid {function}(void) {{")
    body = text[first : text.index("\n}\n", first)]
    called = re.findall(r"pt_(?:fork|alone)\((\w+), ([^;]*);", body)
    return "+".join(sorted({f"{name} (K=1)" if ".K = 1," in rest else name for name, rest in called}))


def _counted(network: Path, ops: set[str]) -> Counter[str]:
    """Instructions in kernels and what they call, by the op function that has called them."""
    program = Program(network)
    first, last = min(program.functions[name][0] for name in ops), program.spans[-1][1]
    reported = [*MACHINE, "-dfilter", f"{first:#x}..{last:#x}", "-D", "/dev/stderr", str(network)]
    runs: dict[str, Counter[tuple[int, int]]] = defaultdict(Counter)
    op, in_kernel, before, known = "", False, 0, dict[str, tuple[int, str]]()
    with subprocess.Popen(reported, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            text = line.split("/", 2)[1]
            if text not in known:
                known[text] = int(text, 16), program.function(int(text, 16))
            at, name = known[text]
            if before:
                runs[op][before, at] += 1
            if name in ops:
                op, in_kernel = name, False
            elif name in ("pt_fork", "pt_alone"):
                in_kernel = True
            before = at if in_kernel and name not in ("pt_fork", "pt_alone") else 0
    if process.returncode not in (0, 1):
        raise RuntimeError(f"{network} ended with {process.returncode}")
    lengths = {run: len(program.straight(*run)) for run in {run for found in runs.values() for run in found}}
    return Counter(
        {op: sum(lengths[run] * times for run, times in found.items()) for op, found in runs.items()}
    )


if __name__ == "__main__":
    sys.exit(main())
