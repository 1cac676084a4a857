# SPDX-License-Identifier: Apache-2.0
"""Exports for tests: a model run and recorded, its project written, built and carried out."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from arch.spec.program import Program
from arch.spec.soc_config import READABLE
from deploy.project.project import Project, project_of
from deploy.project.recorded import Recorded
from pulptrain.deploying.deployed import write_files
from pulptrain.inputs.settings import Settings
from pulptrain.running.session import RunOutcome, run_model
from scheduler.planned import Schedule


@dataclass(frozen=True)
class Exported:
    """A run with what it came to."""

    outcome: RunOutcome
    recorded: Recorded

    @property
    def schedules(self) -> list[Schedule]:
        """Those of all programs."""
        update = self.outcome.update_schedule
        return [self.outcome.schedule, *([update] if update is not None else [])]

    def project(self, program: Program | None = None, trainlib: str | None = None) -> Project:
        """The project, of another program than that of the mini-batch if one is given."""
        first, *rest = self.schedules
        if program is not None:
            from configs.values import replace

            first = replace(first, program=program)
        batches = len(self.recorded.fed) // len(self.recorded.totals)
        return project_of(
            "test", [first, *rest], self.outcome.timing, self.recorded, batches, "A test.", trainlib
        )


def exported(model: str, iterations: int = 2, **options: object) -> Exported:
    """A run of a model file with these settings; ops are functions, unless they say otherwise."""
    recorded = Recorded()
    settings = Settings(**{"form": READABLE, **options})  # type: ignore[arg-type]
    outcome = run_model(model, settings, iterations=iterations, traced=False, record=recorded)
    return Exported(outcome, recorded)


def checked(
    project: Project, folder: Path, *variables: str, seed: int = 0
) -> subprocess.CompletedProcess[str]:
    """``make check`` of a project written to a folder; objects that are there already are used."""
    return made(written(project, folder), variables, seed)


def written(project: Project, folder: Path) -> Path:
    """The folder, with the files of a project."""
    folder.mkdir(exist_ok=True)
    write_files(folder, project.files)
    return folder


def made(
    folder: Path, variables: Sequence[str] = (), seed: int = 0, goal: str = "check"
) -> subprocess.CompletedProcess[str]:
    """``make`` in a folder."""
    command = ["make", "-s", "-C", str(folder), goal, "CFLAGS=-O1", *variables]
    environment = {**os.environ, "MAKEFLAGS": "", "PT_SEED": str(seed)}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=600)
