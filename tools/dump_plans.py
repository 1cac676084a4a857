# SPDX-License-Identifier: Apache-2.0
"""Writes what planning chooses for models of the zoo, and what a run then takes, as JSON.

    .venv/bin/python tools/dump_plans.py FOLDER [MODEL...] [--buffering single ...] [--l1 64KiB ...]
        [--l2 1MiB] [--form readable]

Run it before and after a change that is to change no plan and compare the folders with ``diff -r``: every
tiling with its estimate and its buffers, the candidates counted, and as checksums all slices, counters,
copies and kernels of the run in their order, and its figures. Only values are written: classes and fields may
change their names in between.
PYTHONPATH names the revision that is asked. A file that is there already is not written again.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from msgspec import structs

from arch.pricing.team_cost_model import TeamCostModel
from configs.errors import PulptrainError
from configs.library import list_names
from configs.values import Struct
from pulptrain.inputs.settings import Settings, schedule_options, soc_timing
from pulptrain.running.session import model_of
from scheduler.executor import Executor
from scheduler.options import of_programs
from scheduler.resident_search import schedules_for
from scheduler.schedule_cache import ScheduleCache
from traces.metrics import measure
from traces.recorder import Recorder
from trainlib.training.phases import build_training_phases

NAMES = re.compile(r"\b[A-Za-z_]\w*(?=\()|\b\w+=")
"""Of classes and fields in what an object looks like: the key of a tiling is such a text."""


def plain(value: object) -> Any:
    """Numbers, words and lists in place of objects of our classes: their fields in order, without names."""
    match value:
        case None | bool() | int() | float() | str() | bytes() | Enum():
            return value.value if isinstance(value, Enum) else value
        case Mapping():
            return [[plain(key), plain(item)] for key, item in value.items()]
        case set() | frozenset():
            return sorted(map(plain, value), key=repr)
        case Struct():
            value = structs.astuple(value)
        case _ if dataclasses.is_dataclass(value):
            value = [getattr(value, field.name) for field in dataclasses.fields(value)]
    return list(map(plain, value))  # type: ignore[call-overload]


def checksum(items: Iterable[object]) -> str:
    """Of their values, in order."""
    return hashlib.sha256("\n".join(repr(plain(item)) for item in items).encode()).hexdigest()


def plans_of(model: str, settings: Settings) -> list[dict[str, Any]]:
    """What is chosen and what happens, program by program; what is wrong, if it cannot be planned."""
    spec, timing = model_of(model, settings), soc_timing(settings)
    cost_model = TeamCostModel(timing)
    phases = build_training_phases(spec)
    graphs = phases.graphs
    plans: list[dict[str, Any]] = []
    try:
        options = of_programs(schedule_options(settings), graphs)
        caches = [ScheduleCache() for _ in graphs]
        schedules = schedules_for(graphs, timing, cost_model, options, caches)
        for schedule, cache in zip(schedules, caches, strict=True):
            recorder = Recorder()
            result = Executor(schedule, timing, cost_model, recorder, functional=False).simulate()
            log = [(entry.step.value, entry.key) for entry in result.effect_log.entries]
            plans.append(
                {
                    "cycles": result.cycles,
                    "events": result.events,
                    "slices": checksum(recorder.slices),
                    "counters": checksum(recorder.counters),
                    "log": checksum(log),
                    "figures": checksum([measure(recorder.slices, result.cycles)]),
                    "counts": str(schedule.counts),
                    "peaks": dict(schedule.peak_bytes),
                    "notes": list(schedule.notes),
                    "resident": list(schedule.resident),
                    "ops": [
                        (
                            *(item.op.name, item.kernel, dict(item.tiling.sizes), item.tiling.order),
                            *(len(item.tiling.tiles), plain(item.tiling.buffers)),
                        )
                        for item in schedule.ops
                    ],
                    "estimates": sorted(
                        [NAMES.sub("", str(alike)), choice.estimated_cycles, str(choice.counts), choice.note]
                        for alike, choice in cache.tilings.items()
                    ),
                }
            )
    except PulptrainError as error:
        plans.append({"error": str(error)})
    return plans


def file_name(words: Iterable[str | None]) -> str:
    """Of the model and what is asked of it. The folders of a model's path are words, too."""
    return "_".join(word for word in words if word).replace("/", "-").lstrip("-") + ".json"


def main() -> None:
    """Write a file per model, buffering and size of L1."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("models", nargs="*", metavar="MODEL", default=list_names("models"))
    parser.add_argument("--buffering", nargs="+", default=["double", "single"])
    parser.add_argument("--l1", nargs="+", default=["64KiB", "32KiB", "128KiB"])
    parser.add_argument("--l2")
    parser.add_argument("--resident")
    parser.add_argument("--form")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    for model in asked.models:
        for buffering in asked.buffering:
            for l1 in asked.l1:
                same = {"l2": asked.l2, "resident": asked.resident, "form": asked.form}
                settings = Settings(buffering=buffering, l1=l1, **same)
                file = asked.folder / file_name((model, buffering, l1, *same.values()))
                if not file.exists():
                    text = json.dumps(plans_of(model, settings), indent=1, sort_keys=True)
                    file.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
