# SPDX-License-Identifier: Apache-2.0
"""`python -m tools.deployed.generated`: instructions of generated kernels, beside those written by hand.

Needs `qemu-riscv32` and the package ziglang. Calls every kernel that `deploy` generates on the shapes of the
zoo, or where it calls none on those of the examples of primitives: today's C, and the C files of a revision
on the same arguments and bytes of L1. Writes docs/deploy-generated.json, which docs/deploy-kernels.md shows.
Counted are the instructions of all eight cores; those of functions that a kernel calls (`expf`) stand apart,
nests have them in line. A generated kernel that was never written by hand has the nest only.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from arch.spec.program import Compute, Place
from arch.spec.soc_config import READABLE
from configs.errors import ConfigError, PulptrainError
from configs.library import list_names
from configs.values import replace
from deploy.calls import call as calls
from deploy.calls.call import Source, c_calls
from pulptrain.inputs.settings import Settings
from pulptrain.running.session import prepare
from tools.deployed.executed import DEVIATION, Called, Execution, alone, build, called, traced
from tools.deployed.instructions import L2, issued
from tools.deployed.rv32 import Program
from tools.pages.page import ROOT, table
from trainlib.ir.graph import Op
from trainlib.kernels.library import FP32_BYTES, LIBRARY

STORED = ROOT / "docs" / "deploy-generated.json"

BY_HAND = "4023bdef"
"""The last revision before row programs."""

CODEGEN, COMPILED, MEASURED_AS = "clang-rv32", "export-rv32", "clang-xpulp"
"""Whose nests the C is compared with, whose of them are read off C, and which name their rows."""

CORES = 8

MODELS = (*list_names("models"), "examples/lora-block.yaml", "examples/gru-two.yaml", "measured/gru.yaml")
L3 = "16MiB"

SHAPES = 6
"""Of a kernel, those with most instructions and with least in turn."""

MOST = 1.05
"""Most instructions over those of the kernel written by hand, and over the nest's."""


# --------------------------------------------------------------------------- what is called


def cases() -> tuple[dict[str, list[Called]], set[str]]:
    """By generated kernel its calls, those of the zoo or else of the examples; which are of the zoo."""
    generator = np.random.default_rng(1)
    of_zoo: dict[str, dict[Any, Called]] = defaultdict(dict)
    for model in MODELS:
        print(model, flush=True)
        for schedule in prepare(model, Settings(codegen=CODEGEN, l2=L2, l3=L3, form=READABLE)).schedules:
            ops = {(op.layer, op.step): op for op in schedule.graph.ops}
            seen = set[Any]()
            for action in schedule.program.actions:
                if isinstance(action, Compute):
                    op = ops[action.work.op, action.work.step]
                    key = op.name, action.team.origin and action.team.origin.calls
                    if key not in seen:
                        seen.add(key)
                        for one in _as_called(action, op, generator):
                            of_zoo[one.calls[0].kernel].setdefault(one.nest, one)
    of_examples: dict[str, dict[Any, Called]] = defaultdict(dict)
    for one in called():
        name = one.calls[0].kernel
        wide = LIBRARY.header(CODEGEN, one.nest.kernel).element_bytes == FP32_BYTES
        if wide and name not in of_zoo and name not in calls.kernel_sources():
            of_examples[name].setdefault(one.nest, one)
    every = sorted({**of_zoo, **of_examples}.items())
    return {name: _some([*found.values()]) for name, found in every}, {*of_zoo}


def _as_called(action: Compute, op: Op, generator: np.random.Generator) -> Iterator[Called]:
    with suppress(PulptrainError):  # no C
        made, origin, effect = c_calls(action, op), action.team.origin, action.effect
        if len(made) == 1 and made[0].kernel not in calls.kernel_sources() and origin and effect:
            image = _image((*effect.reads, *effect.writes), generator)
            yield Called(origin.calls[0], made, image, "", action, op)


OPTIONS = {"factor": 0.5, "mean_of": 100, "biased_kept": 0}
"""Numbers that the C by hand was given beside the sizes and whose value decides nothing."""
FLAGS = {"adds": "adds", "of_batch": "batch", "largest": "largest", "first_only": "first_only"}
"""Those that do, and the word in the name of a generated kernel."""


def by_hand(one: Called, old: Mapping[str, Source]) -> Called | None:
    """The same call of the C by hand."""
    assert one.action is not None
    assert one.op is not None
    origin, effect, made = one.action.team.origin, one.action.effect, one.calls[0].kernel
    assert origin is not None
    assert effect is not None
    name = str(effect.details.get("source", one.action.team.kernel))
    if name not in old or "loop" in effect.details:
        return None
    flags = {
        "adds": int("_adds" in made),
        "of_batch": int("_batch" in made),
        "largest": int("_largest" in made),
    }
    effect = replace(effect, details={**OPTIONS, **flags, **effect.details})
    try:
        before = calls._call(one.nest._replace(kernel=name), origin.addresses, effect, one.op)
    except ConfigError as error:
        print(f"{made}: {error}", flush=True)
        return None
    return replace(one, calls=(before,))


def _image(places: Sequence[Place], generator: np.random.Generator) -> bytes:
    image = np.zeros(max(place.address + place.size_bytes for place in places) + 64, np.uint8)
    for place in places:
        if place.dtype == "float32":
            drawn = generator.normal(0, DEVIATION, place.size_bytes // 4).astype(np.float32)
            there = image[place.address : place.address + place.size_bytes]
            there.view(np.float32)[...] = abs(drawn) if place.name in POSITIVE else drawn
    return image.tobytes()


POSITIVE = {"var", "inv_std", "running_var"}
"""Buffers whose numbers have roots."""


def _priced(one: Called) -> str:
    """The nest that prices a call."""
    return LIBRARY.form(CODEGEN, one.nest.kernel, one.form)


def _issued(one: Called) -> int:
    return issued(CODEGEN, one.nest._replace(kernel=_priced(one))[1:])


def _of_library(nest: str) -> bool:
    """Whether a nest is PULP-TrainLib's own kernel: one that rows have, not read off the C of ours."""
    compiled = COMPILED in Path(LIBRARY.header(CODEGEN, nest).section.file).parts
    return not compiled and bool(LIBRARY.rows(MEASURED_AS, nest))


def _some(found: list[Called]) -> list[Called]:
    ordered = sorted(found, key=_issued)
    ordered = [one for one in ordered if one.nest.cores == CORES] or ordered
    return ordered if len(ordered) <= SHAPES else [*ordered[: SHAPES // 2], *ordered[-(SHAPES // 2) :]]


# --------------------------------------------------------------------------- the C of a revision


def sources_of(revision: str) -> dict[str, Source]:
    """Kernel -> C file of a revision."""
    names = _git("ls-tree", "--name-only", revision, "deploy/kernels/").split()
    files = [Path(name).name for name in names if name.endswith(".c") and not name.endswith(calls.FUNCTIONS)]
    read = [calls.in_format(_text(name), name) for name in files]
    return {kernel: source for source in read for kernel in source.kernels}


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def _text(file: str) -> str:
    known = _git("ls-tree", "--name-only", BY_HAND, f"deploy/kernels/{file}")
    return _git("show", f"{BY_HAND}:deploy/kernels/{file}") if known else ""


@contextmanager
def as_of(old: dict[str, Source]) -> Iterator[None]:
    """C files are those of the revision."""
    with patch.object(calls, "kernel_sources", lambda: old), patch.object(calls, "_text", _text):
        yield


# --------------------------------------------------------------------------- what is executed


def counted(of_calls: Sequence[Called], folder: Path) -> list[tuple[int, int]]:
    """Of each call the instructions of all cores in the kernel, and in functions that it calls."""
    program = Program(build(of_calls, folder))
    own = {name: {*calls._bodies(alone(name))} for name in _kernels(of_calls)}
    runs = traced(folder / "bench", of_calls)
    return [_sums(program, own, [next(runs) for _ in range(one.nest.cores)]) for one in of_calls]


def _kernels(of_calls: Sequence[Called]) -> set[str]:
    return {call.kernel for one in of_calls for call in one.calls}


def _sums(program: Program, own: dict[str, set[str]], runs: Sequence[Execution]) -> tuple[int, int]:
    sums = Counter[bool]()
    for run in runs:
        for (at, _), times in run.steps.items():
            sums[program.function(at).partition(".")[0] in own[run.kernels[0]]] += times
    return sums[True], sums[False]


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tools.deployed.generated", description=__doc__)
    parser.add_argument("--out", default="out/generated", help="folder of the programs")
    out = Path(parser.parse_args().out).absolute()
    found, of_zoo = cases()
    flat = [one for some in found.values() for one in some]
    today = counted(flat, out / "today")
    with as_of(old := sources_of(BY_HAND)):
        before = [by_hand(one, old) for one in flat]
        numbers = iter(counted([one for one in before if one is not None], out / "by-hand"))
        hand = [next(numbers) if one is not None else None for one in before]
    rows = []
    for name, some in found.items():
        places = [number for number, one in enumerate(flat) if one.calls[0].kernel == name]
        row: dict[str, Any] = {
            "kernel": name,
            "shapes": len(places),
            "zoo": name in of_zoo,
            "c": sum(today[number][0] for number in places),
            "called": sum(today[number][1] for number in places),
            "nest": sum(map(_issued, some)),
            "library": all(_of_library(_priced(one)) for one in some),
        }
        known = [of_hand for number in places if (of_hand := hand[number]) is not None]
        if len(known) == len(places):
            row["by_hand"], row["by_hand_called"] = map(sum, zip(*known, strict=True))
        rows.append(row)
    STORED.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n", encoding="utf-8")
    print(page())
    return 0


def page() -> str:
    """Every generated kernel; what is above `MOST` of the kernel by hand or of the nest."""
    rows = json.loads(STORED.read_text(encoding="utf-8"))
    over_hand = {row["kernel"]: row["c"] / row["by_hand"] for row in rows if "by_hand" in row}
    over_nest = {row["kernel"]: (row["c"] + row["called"]) / row["nest"] for row in rows if row["nest"]}
    above = [f"`{name}`" for name, ratio in over_hand.items() if ratio > MOST]
    alone = [row["kernel"] for row in rows if not row["called"] and row["kernel"] in over_nest]
    beyond = {name for name in alone if over_nest[name] > MOST}
    library = [f"`{row['kernel']}`" for row in rows if row["kernel"] in beyond and row["library"]]
    ours = [f"`{row['kernel']}`" for row in rows if row["kernel"] in beyond and not row["library"]]
    but = f"all but {len(above)} ({', '.join(above)})" if above else "all"
    text = (
        f"{len(rows)} C kernels are generated, several for a name above that has several forms. "
        f"{len(over_hand)} of them replaced hand-written kernels; {but} execute at most {MOST:.2f} times the "
        f"instructions of the kernel that they replaced. {len(alone)} generated kernels call no function; "
        f"{len(alone) - len(beyond)} of these execute at most {MOST:.2f} times the instructions of their "
        f"nest of `{CODEGEN}`. Of the other {len(beyond)}, {len(library)} use the nest of PULP-TrainLib's "
        f"kernel, whose code differs ({', '.join(library)}), and {len(ours)} use an estimate or the nest of "
        f"another C kernel ({', '.join(ours)})."
    )
    shown = [
        (
            f"`{row['kernel']}`",
            "zoo" if row["zoo"] else "examples",
            f"{row['c']:,}",
            f"{row['called']:,}" if row["called"] else "",
            f"{row['by_hand']:,}" if "by_hand" in row else "",
            f"{over_hand[row['kernel']]:.2f}" if "by_hand" in row else "",
            f"{row['nest']:,}",
            f"{over_nest[row['kernel']]:.2f}" if row["nest"] else "",
        )
        for row in rows
    ]
    heads = ("kernel", "shapes of", "C", "called", "by hand", "C / by hand", "nest", "C and called / nest")
    return f"{text}\n\n{table(heads, shown)}"


if __name__ == "__main__":
    sys.exit(main())
