# SPDX-License-Identifier: Apache-2.0
"""What may be chosen for one op: variant, tile sizes, loop order, buffer depth, kernel; all that fits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from arch.pricing.code_caches import WARM
from arch.spec.timing import SocTiming
from configs.errors import InputError
from configs.suggest import suggestion
from configs.values import Struct, replace
from scheduler.search.fingerprint import fingerprint, model_version
from scheduler.tiles.short_list import overhead_cycles
from scheduler.tiles.tiling import Tiler
from scheduler.tiles.tiling_candidates import TilingCandidates, enumerate_tilings
from scheduler.tiles.transfer_cost import DmaCost
from scheduler.tuner.objective import Objective
from scheduler.tuner.task import Task
from trainlib.ir.steps import KernelChoice
from trainlib.registry import lowering_of, matmul_of, matmuls_of
from trainlib.training.variants import known_variants, own_variant, variants_of

CUTS_PER_DEPTH = 16
"""Default of `SpaceRules.cuts`."""

MOST_CUTS = 4096
"""Cuts of an op per buffer depth that are listed where all are asked for."""


class SpaceRules(Struct, frozen=True):
    """Which candidates there are.

    A tile size is a divisor of its extent, or the largest that fits beside divisors in the other dimensions;
    of the loop orders that load and store the same one is taken. Of these, the `cuts` with the least overhead
    (`tiles.short_list.overhead_cycles`: transfers and forks) are candidates, for each of `depths`, the
    numbers of buffers per operand; with `cuts` 0 all of them, but `MOST_CUTS` at most. Each of the `variants`
    is a space of its own for an op that has it; an op that has none of them is in that of its layer.
    """

    depths: tuple[int, ...] = (1, 2)
    cuts: int = CUTS_PER_DEPTH
    variants: tuple[str, ...] = msgspec.field(default_factory=known_variants)


def parse_variants(text: str) -> tuple[str, ...]:
    """`SpaceRules.variants` from ``search`` (all), ``keep`` (none) or ``cores,dma``. Raises `InputError`."""
    if text in ("search", "keep"):
        return known_variants() if text == "search" else ()
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if name not in known_variants():
            raise InputError(
                f"unknown variant {name!r}",
                where="--step-variants",
                cure=suggestion(name, ("search", "keep", *known_variants())),
            )
    return names


def space_rules(cuts: int | None, lowerings: str) -> SpaceRules:
    """The rules of ``--tilings`` and ``--step-variants``. Raises `InputError`."""
    return SpaceRules(cuts=CUTS_PER_DEPTH if cuts is None else cuts, variants=parse_variants(lowerings))


@dataclass(frozen=True, slots=True)
class Cut:
    """One way of doing an op: tile size of every dimension, all of them in loop order, buffer depth.

    `kernel` is the matmul kernel, `variant` that of the op's lowering; empty where there is none, or none is
    chosen. `cycles` are those of the op alone, without the hand-over to the cluster; 0 if unknown.
    """

    sizes: tuple[tuple[str, int], ...]
    order: tuple[str, ...]
    depth: int
    kernel: str = ""
    variant: str = ""
    tiles: int = field(compare=False, default=0)
    l1_bytes: int = field(compare=False, default=0)
    cycles: int = field(compare=False, default=0)

    @property
    def tiling(self) -> tuple[object, ...]:
        """What cuts of one tiling have in common, whatever their kernels."""
        return self.sizes, self.order, self.depth

    @property
    def written(self) -> dict[str, Any]:
        """What a schedule file says of it, without the numbers."""
        tile = {"tile": dict(self.sizes), "loop_order": list(self.order), "buffering": self.depth}
        return {"kernel": self.kernel, "variant": self.variant, **tile}

    def __str__(self) -> str:
        sizes = dict(self.sizes)
        tile = ",".join(f"{name}={sizes[name]}" for name in self.order) + f" x{self.depth}"
        return " ".join(filter(None, (tile, self.kernel, self.variant)))


class Question(Struct, frozen=True):
    """What is to be tuned: an op, on a SoC, with the kernels of a codegen profile, under rules."""

    task: Task
    timing: SocTiming
    codegen: str
    rules: SpaceRules = SpaceRules()
    objective: Objective = Objective()
    code_start: str = WARM
    """What the instruction caches hold of the op when it begins (`scheduler.schedule.code_of_op_alone`)."""

    @property
    def content(self) -> str:
        """Hash of all that the result of a candidate depends on, the version of the simulator included."""
        asked: tuple[object, ...] = (model_version(), self.task.content, self.timing, self.codegen)
        if self.code_start != WARM:
            asked = (*asked, self.code_start)
        return fingerprint((*asked, self.objective) if self.objective.counts else asked)

    def variants(self) -> dict[str, Question]:
        """The question for every variant that may be chosen; itself, under "", if there is no choice.

        It is what the question of a layer that says so is, so both share their results.
        """
        wanted = [name for name in variants_of(self.task.op) if name in self.rules.variants]
        if not wanted:
            return {"": self}
        rules = replace(self.rules, variants=())
        return {name: replace(self, task=self.task.in_variant(name), rules=rules) for name in wanted}

    def as_candidate(self, candidate: Cut) -> Cut:
        """The candidate, said as those of this question are: with the variant if it is chosen."""
        lowered = own_variant(self.task.op)
        variant = candidate.variant or lowered
        chosen = "" in self.variants() and variant == lowered
        return replace(candidate, variant="" if chosen else variant)

    @property
    def default_kernel(self) -> str:
        """The kernel the op has if nobody chooses one; empty for an op without a matmul."""
        return matmul_of(self.task.op, self.task.graph.tensors, self.codegen)

    def kernels(self) -> tuple[str, ...]:
        """Matmul kernels of the codegen for the dtype of the op, and only those."""
        if not self.default_kernel:
            return ("",)
        return matmuls_of(self.task.op, self.task.graph.tensors, self.codegen)

    def tiler(self, kernel: str, depth: int) -> Tiler:
        """Cuts the op."""
        choice = KernelChoice(kernel, self.codegen, cores=self.timing.cores)
        op = self.task.op
        return Tiler(op, self.task.graph.tensors, lowering_of(op), choice, depth)


def list_cuts(question: Question) -> list[Cut]:
    """The cuts of an op under the rules that fit L1, those of least overhead first; there may be none."""
    cuts: list[Cut] = []
    listed: set[tuple[object, ...]] = set()
    dma = DmaCost(question.timing)
    for depth in question.rules.depths:
        tiler = question.tiler(question.default_kernel, depth)
        candidates = enumerate_tilings(tiler, question.timing.l1_usable_bytes)
        if not len(candidates):
            continue
        rows = _near_divisors(candidates, tiler.dims)
        rows = rows[np.argsort(overhead_cycles(candidates, dma)[rows], kind="stable")]
        for row in rows[: question.rules.cuts or MOST_CUTS].tolist():
            order = candidates.orders[candidates.order[row]]
            sizes = tuple(candidates.sizes_at(row).items())
            l1_bytes = int(candidates.l1_bytes[row])
            # More buffers that nothing would ever lie in are no more buffers.
            if (sizes, order, l1_bytes) not in listed:
                listed.add((sizes, order, l1_bytes))
                tiles = int(candidates.tiles[row])
                cuts.append(Cut(sizes, order, depth, tiles=tiles, l1_bytes=l1_bytes))
    return cuts


def _near_divisors(candidates: TilingCandidates, dims: Mapping[str, int]) -> NDArray[np.int64]:
    """Rows whose sizes are divisors but for at most one, which is the largest that fits."""
    extents = np.array([dims[name] for name in candidates.dims], dtype=np.int64)
    divides = extents % candidates.sizes == 0
    keep = divides.all(axis=1)
    for column in range(len(candidates.dims)):
        others = np.delete(divides, column, axis=1).all(axis=1)
        rows = np.flatnonzero(others)
        groups = np.column_stack([candidates.order[rows], np.delete(candidates.sizes[rows], column, axis=1)])
        largest: dict[tuple[int, ...], int] = {}
        for row, group in zip(rows.tolist(), map(tuple, groups.tolist()), strict=True):
            best = largest.get(group)
            if best is None or candidates.sizes[row, column] > candidates.sizes[best, column]:
                largest[group] = row
        keep[list(largest.values())] = True
    return np.flatnonzero(keep)


def candidates_of(cuts: Sequence[Cut], kernels: Sequence[str], variant: str = "") -> Iterator[Cut]:
    """All candidates of one variant in their order: kernels vary fastest."""
    return (replace(cut, kernel=kernel, variant=variant) for cut in cuts for kernel in kernels)
