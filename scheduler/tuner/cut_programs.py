# SPDX-License-Identifier: Apache-2.0
"""The programs of one cut under different matmul kernels: built once, the kernels exchanged in it.

Kernels change neither the boxes of a tile nor the order of transfers, so of a program of many tiles only the
loop nests of matmuls differ. Calls with one nest under one kernel have one nest under another
(`trainlib.kernels.team`), so of the calls that share a nest one is lowered anew, with its tile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import count, pairwise

import numpy as np

from arch.pricing.cost_model import CostModel
from arch.spec.isa import Origin, TeamWork
from arch.spec.program import Action, Compute, Program
from configs.values import Struct, replace
from scheduler.options import ScheduleOptions
from scheduler.planned import Schedule
from scheduler.schedule import build_schedule
from scheduler.tiles.partial_sums import Additions, Sums
from scheduler.tiles.tiling import Tiler, tile_ranges
from scheduler.tuner.search_space import Cut, Question
from trainlib.ir.steps import Extent, KernelCall, Ranges, TileTask, find_part

TILES_KEPT = 4096
"""Tiles of an op that are kept."""

_NUMBERS = count()


def options_for(question: Question, cut: Cut) -> ScheduleOptions:
    """The schedule options that fix the only op of a question to a candidate."""
    op = question.task.op.name
    return ScheduleOptions(
        buffer_depth=cut.depth,
        codegen=question.codegen,
        kernels={op: cut.kernel} if cut.kernel else {},
        tile_sizes={op: dict(cut.sizes)},
        loop_orders={op: cut.order},
    )


class Form(Struct, frozen=True):
    """What a kernel of a program is under the op's default kernel, but where in the banks its arrays lie.

    `addresses` are within a word of L1. `exchanged` says whether it is another one under another kernel.
    """

    text: str
    addresses: tuple[int, ...]
    fork: bool
    exchanged: bool


class Tiles:
    """Tiles of an op under its kernels, before sums are put together: cuts that differ in their loops have
    them in common, and all that are alike their calls."""

    def __init__(self, question: Question) -> None:
        self._question = question
        self._tilers: dict[str, Tiler] = {}
        self._kept: dict[tuple[str, tuple[Extent, ...]], TileTask] = {}

    def tiler(self, kernel: str) -> Tiler:
        """What cuts the op, whatever the number of buffers."""
        tiler = self._tilers.get(kernel)
        if tiler is None:
            tiler = self._tilers[kernel] = self._question.tiler(kernel, 1)
        return tiler

    def task(self, kernel: str, ranges: Ranges) -> TileTask:
        """A tile."""
        key = kernel, tuple(ranges.values())
        task = self._kept.get(key)
        if task is None:
            if len(self._kept) >= TILES_KEPT:
                self._kept.clear()
            task = self._kept[key] = self.tiler(kernel).task(ranges)
        return task


class CutPrograms:
    """One cut of an op, scheduled with the op's default kernel; other kernels take its place on demand.

    `tiles` are those of the question. Raises what `build_schedule` raises.
    """

    def __init__(self, question: Question, cut: Cut, cost_model: CostModel, tiles: Tiles) -> None:
        self._question = question
        self._tiles = tiles
        self._cut = cut
        self._cost_model = cost_model
        self._kernel = question.default_kernel
        usual = replace(cut, kernel=self._kernel)
        self.schedule = build_schedule(
            question.task.graph, question.timing, cost_model, options_for(question, usual)
        )
        usual_tiler = tiles.tiler(self._kernel)
        dims, sizes = usual_tiler.dims, dict(cut.sizes)
        whole = {name: sizes.get(name, extent) for name, extent in dims.items()}
        self._ranges = list(tile_ranges(dims, whole, usual_tiler.loop_order(cut.order)))
        computes = [action for action in self.schedule.program.actions if isinstance(action, Compute)]
        bounds = [0]
        for task in self.schedule.ops[0].tiling.tiles:
            bounds.append(bounds[-1] + len(task.calls))
        self._computes = [computes[first:last] for first, last in pairwise(bounds)]

    @cached_property
    def _firsts(self) -> list[int]:
        """Tiles in which a nest that depends on the kernel occurs first."""
        return list(dict.fromkeys(self._find_firsts()))

    @cached_property
    def _sums(self) -> Sums:
        return Sums([self._tiles.task(self._kernel, each) for each in self._ranges])

    @cached_property
    def forms(self) -> list[Form]:
        """Of the kernels of the program in order."""
        word_bytes = self._question.timing.l1.word_bytes
        made: dict[int, Form] = {}
        forms = []
        for task, computes in zip(self.schedule.ops[0].tiling.tiles, self._computes, strict=True):
            for call, compute in zip(task.calls, computes, strict=True):
                team = compute.team
                form = made.get(id(team))
                if form is None:
                    # A work that cannot be told is like no other one.
                    origin = team.origin or Origin(f"unknown {next(_NUMBERS)}", ())
                    within = tuple(address % word_bytes for address in origin.addresses)
                    form = made[id(team)] = Form(origin.text, within, compute.fork, self._depends(call))
                forms.append(form)
        return forms

    def under(self, kernel: str) -> tuple[Schedule, Program]:
        """The schedule and the program with another matmul kernel. Raises what the kernel raises."""
        teams = self.teams(kernel)
        if teams is not None:
            return self.schedule, self._program(teams)
        options = options_for(self._question, replace(self._cut, kernel=kernel))
        question = self._question
        schedule = build_schedule(question.task.graph, question.timing, self._cost_model, options)
        return schedule, schedule.program

    def teams(self, kernel: str) -> list[TeamWork] | None:
        """Loop nests of the program's kernels in order, with another matmul kernel.

        None if that kernel needs other buffers or calls, or a nest looks at a buffer that no call of its tile
        names: all is scheduled anew then (`under`). Raises what the kernel raises.
        """
        if kernel == self._kernel:
            return [item.team for items in self._computes for item in items]
        cores, tiler = self._question.timing.cores, self._tiles.tiler(kernel)
        additions = Additions(tiler.choice, tiler.tensors)
        exchanged: dict[int, TeamWork] = {}
        for tile in self._firsts:
            usual, computes = self.schedule.ops[0].tiling.tiles[tile], self._computes[tile]
            task = self._sums.of_tile(tile, self._tiles.task(kernel, self._ranges[tile]), additions)
            if _frame(usual) != _frame(task):
                return None
            places = _places(usual, computes)
            for before, call, compute in zip(usual.calls, task.calls, computes, strict=True):
                if self._depends(before) and id(compute.team) not in exchanged:
                    try:
                        team = call.work(cores if call.fork else 1, places)
                    except KeyError:
                        return None
                    exchanged[id(compute.team)] = team
        return [exchanged.get(id(item.team), item.team) for items in self._computes for item in items]

    def _program(self, teams: Sequence[TeamWork]) -> Program:
        """The program with other loop nests, as `teams` gives them."""
        rest = iter(teams)
        actions: list[Action] = [
            Compute(action.id, action.deps, action.work, next(rest), action.fork, action.effect)
            if isinstance(action, Compute)
            else action
            for action in self.schedule.program.actions
        ]
        return Program(self.schedule.program.name, tuple(actions))

    def _find_firsts(self) -> Iterator[int]:
        seen: set[int] = set()
        for tile, task in enumerate(self.schedule.ops[0].tiling.tiles):
            for call, compute in zip(task.calls, self._computes[tile], strict=True):
                if self._depends(call) and id(compute.team) not in seen:
                    seen.add(id(compute.team))
                    yield tile

    def _depends(self, call: KernelCall) -> bool:
        """Whether the nest is another one under another kernel: only calls named after theirs run it."""
        return call.kernel == self._kernel


def _frame(task: TileTask) -> object:
    calls = tuple((call.reads, call.writes, call.fork) for call in task.calls)
    return task.inputs, task.outputs, task.scratch, calls


def _places(task: TileTask, computes: Sequence[Compute]) -> dict[str, int]:
    """L1 address of every buffer, and part of one, that the calls of a tile name."""
    shapes = {box.name: box.shape for box in (*task.inputs, *task.written)}
    shapes |= {scratch.name: scratch.shape for scratch in task.scratch}
    addresses: dict[str, int] = {}
    for call, compute in zip(task.calls, computes, strict=True):
        assert compute.effect is not None
        places = (*compute.effect.reads, *compute.effect.writes)
        for name, place in zip((*call.reads, *call.writes), places, strict=True):
            buffer, first, _ = find_part(name, lambda known: shapes[known])
            addresses[buffer] = place.address - first * np.dtype(place.dtype).itemsize
            addresses[name] = place.address
    return addresses
