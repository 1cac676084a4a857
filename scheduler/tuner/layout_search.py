# SPDX-License-Identifier: Apache-2.0
"""Which layout every layer gets: a choice for all of them together, as neighbours share images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from configs.errors import PulptrainError
from configs.model_file import ModelSpec
from scheduler.tuner.op_tuner import OpTuner, RepeatedGraphs
from trainlib.ir.graph import LAYOUTS
from trainlib.training.layouts import layers_with_choice, with_layouts
from trainlib.training.phases import build_training_phases

KEEP, SEARCH = "keep", "search"
"""Besides the layouts themselves: as the model says, and what is fastest."""

PASSES = 4
"""Rounds over all runs of layers, at most; one that changes nothing is the last."""


def programs_of(spec: ModelSpec) -> RepeatedGraphs:
    """The graphs of one iteration of a model and how often each runs. Raises the errors of the builder."""
    phases = build_training_phases(spec)
    programs = [(phases.mini_batch, phases.mini_batches)]
    if phases.update is not None:
        programs.append((phases.update, 1))
    return programs


def search_layouts(spec: ModelSpec, tuner: OpTuner) -> dict[str, str]:
    """Layer -> layout where it is another than the model says: the assignment of the fewest cycles found.

    Counted are the cycles of all ops, transposes included, each tuned by itself: an assignment with an op
    that fits in no way is none. It begins with the model as it is and with one layout for all layers; from
    the best of these, runs of layers one after the other change while that saves cycles. The ops that differ
    are few, so they are searched before. Equal cycles leave things as they are.
    """
    tried = _Assignments(spec, tuner)
    names = list(tried.written)
    whole = [dict.fromkeys(names, layout) for layout in LAYOUTS]
    single = [{**base, **change} for base in (tried.written, *whole) for change in _changes(names, 1)]
    tried.search([tried.written, *whole, *single])
    if tuner.interrupted or tried.cycles(tried.written) is None:
        return {}
    best = min([tried.written, *whole], key=tried.rank)
    for _ in range(PASSES):
        before = best
        for length in range(1, len(names) + 1):
            for change in _changes(names, length):
                best = min([best, {**best, **change}], key=tried.rank)
        if best == before or tuner.interrupted:
            break
    return {name: layout for name, layout in best.items() if layout != tried.written[name]}


def _changes(names: list[str], length: int) -> Iterator[dict[str, str]]:
    """All runs of so many layers one after the other, in each layout."""
    for first in range(len(names) - length + 1):
        for layout in LAYOUTS:
            yield dict.fromkeys(names[first : first + length], layout)


class _Assignments:
    """Layouts for all layers with a choice, and what they come to."""

    def __init__(self, spec: ModelSpec, tuner: OpTuner) -> None:
        self._spec = spec
        self._tuner = tuner
        self.written = layers_with_choice(spec)
        self._cycles: dict[tuple[str, ...], int | None] = {}

    def _programs(self, layouts: Mapping[str, str]) -> RepeatedGraphs | None:
        try:
            return programs_of(with_layouts(self._spec, layouts))
        except PulptrainError:
            return None  # no graph of these: layers that need equal layouts and cannot be given them

    def search(self, assignments: list[dict[str, str]]) -> None:
        """Tune the ops of all of them at once, those of the first one first."""
        alternatives = (self._programs(layouts) for layouts in assignments)
        self._tuner.search([programs for programs in alternatives if programs is not None])

    def cycles(self, layouts: Mapping[str, str]) -> int | None:
        """Cycles of all ops; None if that cannot be."""
        key = tuple(layouts.values())
        if key not in self._cycles:
            programs = self._programs(layouts)
            if programs is not None:
                self._tuner.search([programs])
            self._cycles[key] = None if programs is None else self._tuner.cost(programs)
        return self._cycles[key]

    def rank(self, layouts: Mapping[str, str]) -> tuple[bool, int]:
        """What `min` takes the best of."""
        cycles = self.cycles(layouts)
        return cycles is None, cycles or 0
