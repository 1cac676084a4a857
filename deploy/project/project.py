# SPDX-License-Identifier: Apache-2.0
"""An exported project: all of its files by name, and what is to be said of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from arch.spec.timing import SocTiming
from configs.values import Struct
from deploy.calls.call import shipped, sources
from deploy.calls.trainlib import with_trainlib
from deploy.program.network_text import loops_of
from deploy.project.data_files import data_files
from deploy.project.network_files import network_c, network_h, programs_of
from deploy.project.recorded import Recorded
from scheduler.code_in_l2 import without_code
from scheduler.planned import Schedule
from scheduler.programs.program_code import code_by_part
from trainlib.ir.varying import Varying

LEVELS = ("l1", "l2", "l3")


class Project(Struct, frozen=True):
    """The files of a project by path, and its figures."""

    files: Mapping[str, bytes]
    peak_bytes: Mapping[str, int]
    """What the schedule takes of every level."""
    kernels: tuple[str, ...]
    ops: int
    statements: int
    """Transfers, waits and kernel calls of an iteration."""
    loops: int
    iterations: int
    code: Mapping[str, Mapping[str, int]]
    """Bytes of functions of ops, kernels, platform and walk by the rule; of tables as they are written."""


def project_of(
    name: str,
    schedules: Sequence[Schedule],
    timing: SocTiming,
    recorded: Recorded,
    mini_batches: int,
    about: str,
    trainlib: str | None = None,
) -> Project:
    """The C project of the programs of an iteration, held against what was `recorded`.

    `about` is what its README says of the schedule, `trainlib` the folder of a PULP-TrainLib whose matmuls
    are called. Raises `InputError` naming what has no form in C.
    """
    varying: list[Varying] = []
    schedules = [without_code(schedule) for schedule in schedules]  # the linker places it
    programs = programs_of(schedules, varying)
    kernels = tuple(sorted({kernel for program in programs for kernel in program.statements.kernels}))
    statements = [item for program in programs for item in program.statements.ops]
    peaks = {level: max(schedule.peak_bytes.get(level, 0) for schedule in schedules) for level in LEVELS}
    sizes = ", ".join(f"{level.upper()} {size:,} bytes" for level, size in peaks.items() if size)
    text = {
        "network.h": network_h(name, programs, timing, peaks),
        "network.c": network_c(name, programs, len(varying), recorded),
        **{f"kernels/{file}": source for file, source in sources(kernels).items()},
        **{f"platform/{file}": shipped("platforms", file) for file in PLATFORM_FILES},
        **{file: shipped("project", file) for file in PROJECT_FILES},
        "README.md": shipped("project", "README.md").format(
            name=name, about=about, sizes=sizes, ops=len(statements), iterations=len(recorded.totals)
        ),
    }
    if trainlib is not None:
        text = with_trainlib(text, trainlib, kernels)
    made = {path: content.encode() for path, content in text.items()} | data_files(
        programs, varying, recorded, mini_batches
    )
    return Project(
        dict(sorted(made.items())),
        peaks,
        kernels,
        len(statements),
        sum(len(item.statements) for item in statements),
        sum(loops_of(item.nodes) for item in statements),
        len(recorded.totals),
        {
            **code_by_part([schedule.program.actions for schedule in schedules]),
            "tables": {
                program.statements.ops[number].op.name: op.size_bytes
                for program in programs
                for group in program.groups
                for number, op in group.ops.items()
            },
        },
    )


PLATFORM_FILES = (
    *("platform.h", "pulp_team.h", "host.c", "bare.c", "pulp_sdk.c"),
    *("pulp_cluster.c", "pulp_cluster.S", "pulp_cluster.ld"),
)
PROJECT_FILES = ("main.c", "tables.c", "network_types.h", "binaries.S", "Makefile")
