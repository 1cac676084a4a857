# SPDX-License-Identifier: Apache-2.0
"""From a run to the folder of a C project: what is written, what may be written over, what is said of it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from arch.pricing.team_cost_model import TeamCostModel
from arch.spec.timing import SocTiming
from configs.errors import DoesNotFitError, InputError
from configs.files import check_folder, make_folder, replacing, together
from configs.values import Struct, replace
from deploy.project.project import Project, project_of
from deploy.project.recorded import Recorded
from pulptrain.running.session import RunOutcome
from scheduler.code_in_l2 import has_code, placed_with_code
from scheduler.executor import Executor
from scheduler.options import ScheduleOptions
from scheduler.planned import Schedule
from scheduler.schedule import build_schedule
from scheduler.tiles.partial_sums import SUM
from traces.files.json_text import json_text
from traces.files.result_folder import is_our_json
from traces.text_table import counted, first_line_repr

MARK = "deploy.json"
"""The file by which a folder is known as one of ours: what was exported, and all files."""

EXPORTED = "export-rv32"
"""The codegen whose nests are read off the kernels in C (`tools/deployed/nests.py`)."""

Run = Callable[[Recorded], RunOutcome]
"""Carries the iterations out and keeps what they come to."""


class Deployed(Struct, frozen=True):
    """A project that was written to `folder`."""

    project: Project
    outcome: RunOutcome
    folder: Path
    exported_cycles: int | None
    """Cycles of an iteration with the kernels in C; None where one of them has no nest."""

    __repr__ = first_line_repr

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def as_dict(self) -> dict[str, Any]:
        """What ``--json`` prints and `MARK` holds."""
        project, summary = self.project, self.outcome.summary
        return {
            "version": summary["version"],
            "command": "deploy",
            "model": summary["model"],
            "soc": summary["soc"],
            "cycles": summary["cycles"],
            "codegen": self._codegen,
            "exported_cycles": self.exported_cycles,
            "iterations": project.iterations,
            "functions": project.ops,
            "statements": project.statements,
            "loops": project.loops,
            "c_kernels": list(project.kernels),
            "peak_bytes": dict(project.peak_bytes),
            **{f"{part}_code_bytes": dict(sizes) for part, sizes in project.code.items()},
            "project_files": [
                {"name": path, "size_bytes": len(content)} for path, content in project.files.items()
            ],
        }

    @property
    def _codegen(self) -> str:
        return self.outcome.schedule.options.codegen

    def _priced(self) -> str:
        """Cycles under the codegen by which the schedule was chosen, and under that of the project."""
        chosen, exported = self.outcome.summary["cycles"], self.exported_cycles
        if self._codegen == EXPORTED:
            return f"{chosen:,} cycles an iteration, kernels as compiled for RV32 ({EXPORTED})"
        text = f"chosen for {chosen:,} cycles an iteration with kernels of {self._codegen}"
        if exported is None:
            return f"{text}; as compiled for RV32 ({EXPORTED}) its cycles are unknown"
        more = f"{exported / chosen - 1:+.0%}"
        return f"{text}; as compiled for RV32 ({EXPORTED}) it takes {exported:,} ({more})"

    def lines(self) -> list[str]:
        """The same for people."""
        project = self.project
        text = {path: content for path, content in project.files.items() if not path.endswith(".bin")}
        lines = sum(content.count(b"\n") for content in text.values())
        sizes = ", ".join(f"{level.upper()} {size:,} B" for level, size in project.peak_bytes.items() if size)
        folder = shlex.quote(str(self.folder))
        code = ", ".join(f"{part} {sum(sizes.values()):,} B" for part, sizes in project.code.items() if sizes)
        return [
            f"{self.outcome.summary['model']}: {project.ops} ops as {project.statements:,} statements in "
            f"{project.loops} loops, {len(project.kernels)} kernels; {sizes}",
            f"code of RV32: {code}",
            self._priced(),
            f"{len(project.files)} files in {self.folder}: {lines:,} lines, "
            f"{sum(map(len, project.files.values())):,} bytes with data of "
            + counted(project.iterations, "iteration"),
            f"make -C {folder} check    # builds it for this computer, runs it, compares",
        ]


def deploy(run: Run, folder: Path, arena_bytes: int | None = None, trainlib: str | None = None) -> Deployed:
    """Run, export, and write to `folder`, which `deploy_folder` has made.

    `arena_bytes` is what the linker of the target leaves of L1, `trainlib` the folder of a PULP-TrainLib.
    Raises `InputError` for what has no form in C, `DoesNotFitError` where the arena is too small, and what
    `run` raises; then nothing is written.
    """
    recorded = Recorded()
    outcome = run(recorded)
    done = len(recorded.totals)
    batches = len(recorded.fed) // done if done else 1
    summary = outcome.summary
    about = (
        f"One training iteration of {summary['model']} on {summary['soc']}, scheduled by pulptrain "
        f"{summary['version']}: {summary['cycles']:,} cycles simulated."
    )
    project = project_of(
        summary["model"], outcome.schedules, outcome.timing, recorded, batches, about, trainlib
    )
    needed = project.peak_bytes["l1"]
    if arena_bytes is not None and needed > arena_bytes:
        raise DoesNotFitError(
            "l1",
            needed,
            arena_bytes,
            where="--arena",
            what=f"the tiles of model {summary['model']}",
            cure=f"use --arena {needed}B or more, or --l1 {arena_bytes}B to choose smaller tiles",
        )
    exported = summary["cycles"]
    if outcome.schedule.options.codegen != EXPORTED:
        exported = cycles_as_exported(outcome.schedules, outcome.timing, batches)
    deployed = Deployed(project, outcome, folder, exported)
    write_project(deployed)
    return deployed


def cycles_as_exported(schedules: Sequence[Schedule], timing: SocTiming, batches: int) -> int | None:
    """Cycles of an iteration of these schedules with the kernels in C, None where one has no nest or no room.

    The first program runs once a mini-batch.
    """
    cost_model, cycles = TeamCostModel(timing), 0

    def plan(machine: SocTiming) -> list[Schedule]:
        return [build_schedule(it.graph, machine, cost_model, as_chosen(it, EXPORTED)) for it in schedules]

    try:
        placed = has_code(timing, schedules[0].options.code_start)
        exported = placed_with_code(plan, timing) if placed else plan(timing)
    except (InputError, DoesNotFitError):
        return None
    soc, start = None, exported[0].options.code_start
    for number, schedule in enumerate(exported):
        executor = Executor(schedule, timing, cost_model, functional=False, code_start=start, soc=soc)
        soc = executor.soc
        cycles += executor.simulate().cycles * (1 if number else batches)
    return cycles


def as_chosen(schedule: Schedule, codegen: str) -> ScheduleOptions:
    """Options that give the same tiles, loops, kernels, buffers and residents, with kernels of a codegen."""
    ops = {op.op.name: op for op in schedule.ops}
    return replace(
        schedule.options,
        codegen=codegen,
        kernels={name: op.kernel for name, op in ops.items() if op.kernel},
        tile_sizes={name: dict(op.tiling.sizes) for name, op in ops.items()},
        loop_orders={name: op.tiling.order for name, op in ops.items()},
        buffers={
            name: {
                buffer.name: buffer.depth
                for buffer in op.tiling.buffers
                if buffer.role != "scratch" and not buffer.name.endswith(SUM)
            }
            for name, op in ops.items()
        },
        resident=schedule.resident,
    )


def deploy_folder(name: str) -> Path:
    """The folder of a project, made if it is not there. Raises `InputError` where others have put files."""
    folder = check_folder(name, "--out")
    if any(folder.iterdir()) and not is_our_json(folder / MARK):
        raise InputError(
            f"{name!r} exists already and pulptrain did not export it: nothing was overwritten",
            where="--out",
            cure="choose another name or an empty folder",
        )
    return folder


def write_project(deployed: Deployed) -> None:
    """All files, those of an earlier export that are none of this one's removed."""
    folder = deployed.folder
    stale = _written_before(folder) - deployed.project.files.keys()
    write_files(folder, {MARK: (json_text(deployed.as_dict()) + "\n").encode(), **deployed.project.files})
    for path in stale:
        (folder / path).unlink(missing_ok=True)


def _written_before(folder: Path) -> set[str]:
    if not (folder / MARK).is_file():
        return set()
    content: Mapping[str, Any] = json.loads((folder / MARK).read_text(encoding="utf-8"))
    paths = [str(item["name"]) for item in content.get("project_files", ())]
    return {path for path in paths if ".." not in Path(path).parts and not Path(path).is_absolute()}


@together()
def write_files(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write those that are not there as they are: what is built from the others need not be built again."""
    for name, content in contents.items():
        path = folder / name
        if path.is_file() and path.read_bytes() == content:
            continue
        make_folder(path.parent)
        with replacing(path) as temporary:
            temporary.write_bytes(content)
