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
from collections.abc import Mapping, Sequence
from pathlib import Path
from shutil import rmtree
from typing import Any

from arch.spec.soc_config import READABLE, load_soc
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

SOC = "pulp-open"
"""Whose core it is that walks."""

WALK = ("network_walk", "walk_other")
"""What walks tables; the second may be in line."""

Walk = dict[str, int]

OPTIONS = ("--iterations", "1", "--quiet")


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


def execute(model: str, folder: Path, *options: str, form: str = READABLE) -> dict[str, dict[str, Any]]:
    """Kernels, instructions of the nests and of C, of every op that calls kernels.

    `options` are those of `run`. Of ops that are tables also the `walk`: its instructions and cycles.
    """
    compiled(model, folder, form, *options)
    nests = {op["name"]: op["instructions"] for op in _simulated(model, form, options)["ops"]}
    text = (folder / "network.c").read_text()
    ops = dict(re.findall(r'^    \{"(\S+)", (\w+), (?:\w+_table|0,)', text, re.MULTILINE))
    tables = [op for op, _ in re.findall(r'^    \{"(\S+)", \w+, (\w+_table)', text, re.MULTILINE)]
    network = folder / "build/bare/network"
    counts, walks = _counted(
        Program(network), network, {ops[op]: op for op in ops.keys() - set(tables)}, tables
    )
    return {
        op: {
            "kernels": _kernels(text, function, op if op in walks else ""),
            "nest": nests[op],
            "c": counts[op],
        }
        | ({"walk": walks[op]} if op in walks else {})
        for op, function in ops.items()
        if counts[op]
    }


def compiled(model: str, folder: Path, form: str, *options: str) -> None:
    """An export in a form, compiled; its network is ``build/bare/network``."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    asked = [*OPTIONS, "--form", form, *options, "--out", str(folder)]
    command = [sys.executable, "-m", "pulptrain", "deploy", model, *asked]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    rmtree(folder / "build", ignore_errors=True)  # make knows nothing of flags
    compiler = f"CC={sys.executable} -m ziglang cc {TARGET}"
    platform = f"PLATFORM={ROOT / 'tools/deployed/in_turn.c'}"
    # The cache of zig mistakes network.h of one folder for that of another: each has a name in its flags.
    flags = f"CFLAGS={FLAGS} {IN_LINE} -DEXPORT_OF={zlib.crc32(str(folder).encode())}u"
    make = ["make", "-s", "-C", str(folder), "TARGET=bare", platform, compiler, flags, "all"]
    subprocess.run(make, check=True)


def _simulated(model: str, form: str, options: Sequence[str]) -> dict[str, Any]:
    asked = [*OPTIONS, "--no-functional", "--form", form, *options, "--json"]
    command = [sys.executable, "-m", "pulptrain", "run", model, *asked]
    result: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return result


def _kernels(text: str, function: str, table_of: str) -> str:
    """The kernels that an op calls, as a function or as a table."""
    if table_of:
        first = text.index(f"\n    /* {table_of}: ")
        calls = _CALL.findall(text[first : text.index("\n    0,\n", first)])
        called = [(name, "trans_b" in names and words.split(", ")[_K] == "1") for name, names, words in calls]
    else:
        first = text.index(f"\nvoid {function}(void) {{")
        body = text[first : text.index("\n}\n", first)]
        found = re.findall(r"pt_(?:fork|alone)\((\w+), ([^;]*);", body)
        called = [(name, ".K = 1," in rest) for name, rest in found]
    return "+".join(sorted({f"{name} (K=1)" if is_one else name for name, is_one in called}))


_CALL = re.compile(
    r"^    (?:CALLS|ALONE) \| [^/]*/\* (\w+) \*/\s+/\*([^/]*)\*/\s+([^/]*?),\n(?=    \w)", re.MULTILINE
)
_K = 10
"""Of the words of a product's arguments: behind three addresses and six strides it is N."""


def _counted(
    program: Program, network: Path, functions: Mapping[str, str], tables: Sequence[str]
) -> tuple[Counter[str], dict[str, Walk]]:
    """By op the instructions in kernels and what they call, and of those that are `tables`, in their order,
    what the walk took.

    `functions` are the ops that are one, by its name.
    """
    walk = [name for name in WALK if name in program.functions]
    first = min(program.functions[name][0] for name in (*functions, *walk))
    reported = [
        *MACHINE,
        "-dfilter",
        f"{first:#x}..{program.spans[-1][1]:#x}",
        "-D",
        "/dev/stderr",
        str(network),
    ]
    runs: dict[str, Counter[tuple[int, int]]] = defaultdict(Counter)
    walks: dict[str, Counter[tuple[int, int]]] = defaultdict(Counter)
    op, in_kernel, before, walked, known = "", False, 0, 0, dict[str, tuple[int, str]]()
    begin, left = program.functions[walk[0]][0] if walk else -1, iter(tables)
    with subprocess.Popen(reported, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            text = line.split("/", 2)[1]
            if text not in known:
                known[text] = int(text, 16), program.function(int(text, 16))
            at, name = known[text]
            if before:
                runs[op][before, at] += 1
            if name in walk:
                if walked:
                    walks[op][walked, at] += 1
                op, in_kernel, walked = next(left) if at == begin else op, False, at
            elif name in functions:
                op, in_kernel = functions[name], False
            elif name in ("pt_fork", "pt_alone"):
                in_kernel = True
            before = at if in_kernel and name not in ("pt_fork", "pt_alone") else 0
    if process.returncode not in (0, 1):
        raise RuntimeError(f"{network} ended with {process.returncode}")
    if walked:
        walks[op][walked, begin] += 1
    lengths = {run: len(program.straight(*run)) for run in {run for found in runs.values() for run in found}}
    counts = {op: sum(lengths[run] * times for run, times in found.items()) for op, found in runs.items()}
    return Counter(counts), {op: _walk(program, found) for op, found in walks.items()}


def _walk(program: Program, runs: Mapping[tuple[int, int], int]) -> Walk:
    steps = {run: program.straight(*run) for run in runs}
    cycles = {run: cycles_of(program, found) for run, found in steps.items()}
    return {
        "instructions": sum(len(steps[run]) * times for run, times in runs.items()),
        "cycles": sum(cycles[run] * times for run, times in runs.items()),
    }


def cycles_of(program: Program, steps: Sequence[tuple[int, int]]) -> int:
    """Of instructions, each with the one behind it: one each, and what jumps, taken branches and loads that
    the next one waits for take more. Tables lie in L1, where no other core asks for their bank."""
    core, total = load_soc(SOC).core, len(steps)
    for at, then in steps:
        code = program.code(at)
        if code.letter == "J":
            total += core.jump_stall_cycles
        elif code.letter == "B" and then != at + code.size_bytes:
            total += core.branch_taken_stall_cycles
        elif code.letter == "L" and code.written in program.code(then).read:
            total += core.load_use_stall_cycles
    return total


if __name__ == "__main__":
    sys.exit(main())
