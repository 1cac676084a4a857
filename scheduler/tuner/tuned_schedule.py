# SPDX-License-Identifier: Apache-2.0
"""What the tuner chose: for every op a candidate and its cycles, and what that means as schedule options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from arch.pricing.code_caches import WARM
from arch.spec.timing import SocTiming
from configs.values import Struct, replace
from configs.yaml_file import Node
from scheduler.options import ScheduleOptions
from scheduler.search.fingerprint import fingerprint
from scheduler.tiles.partial_sums import SUM
from scheduler.tiles.tiling import Tiler, Tiling
from scheduler.tuner.search_space import Cut
from trainlib.ir.graph import Op, TrainingGraph
from trainlib.ir.steps import KernelChoice
from trainlib.registry import lowering_of
from trainlib.training.variants import own_variant, variant_in, with_variant


class OpChoice(Struct, frozen=True):
    """What was chosen for one op, the second best, and out of how many.

    Ops of equal shape share one search; each of them says its numbers. `node` is the entry of the file that
    says it, if one does.
    """

    op: str
    best: Cut
    runner_up: Cut | None = None
    candidates: int = 0
    evaluated: int = 0
    node: Node | None = None

    def where(self, *keys: str) -> str:
        """``file:line`` of the first of some keys that the entry has; its own, if it has none."""
        assert self.node is not None
        entry = self.node.mapping("a choice")
        return next((entry[key].where for key in keys if key in entry), self.node.where)


class TunedSchedule(Struct, frozen=True):
    """All that a schedule file holds: for what it was tuned, by whom, how, and the choices in op order.

    `model_content` and `soc_content` are hashes, `simulator` that of the simulator's source. `cycles` are
    those of one whole iteration with these choices, None if the search was interrupted; `candidates` and
    `evaluated` count each search once. `resident` says by program
    (`scheduler.tuner.tuned_residents.PROGRAMS`) what stays in L1 between ops, `layouts` which layers have
    another layout than the model says; `model_content` is that of the model as it is written. `node` is the
    file it was read from: of version and search nothing is read.
    """

    model: str
    model_content: str
    soc: str
    timing: str
    soc_content: str
    codegen: str
    choices: tuple[OpChoice, ...]
    version: str = ""
    simulator: str = ""
    strategy: str = ""
    candidates: int = 0
    evaluated: int = 0
    cycles: int | None = None
    resident: Mapping[str, tuple[str, ...]] = {}
    layouts: Mapping[str, str] = {}
    icache: str = WARM
    """What the instruction caches held at the start of that iteration (`arch.pricing.code_caches`)."""
    node: Node | None = None

    def where(self, key: str) -> str:
        """Place of a key of the file as ``file:line``."""
        assert self.node is not None
        return self.node.mapping("the schedule")[key].where

    @property
    def chosen(self) -> dict[str, Cut]:
        """Candidate by op, as a start of the next search."""
        return {choice.op: choice.best for choice in self.choices}


def model_content(graph: TrainingGraph) -> str:
    """Hash of the ops and tensors of a training graph, cut to 16 digits."""
    return fingerprint((graph.tensors, graph.ops))[:16]


def soc_content(timing: SocTiming) -> str:
    """Hash of all parameters of a SoC, cut to 16 digits."""
    return fingerprint(timing)[:16]


def tiler_for(graph: TrainingGraph, op: Op, timing: SocTiming, codegen: str, candidate: Cut) -> Tiler:
    """What cuts an op of a graph as a candidate says. Raises `InputError` for a variant the op has not."""
    if candidate.variant:
        op = with_variant(op, candidate.variant)
    choice = KernelChoice(candidate.kernel, codegen, cores=timing.cores)
    return Tiler(op, graph.tensors, lowering_of(op), choice, candidate.depth)


def with_choices(
    base: ScheduleOptions,
    graph: TrainingGraph,
    timing: SocTiming,
    chosen: Sequence[tuple[str, Cut]],
) -> ScheduleOptions:
    """The options `base` with candidates for ops; what `base` says of a single op goes first.

    An op for which `base` asks another variant than its candidate takes nothing of it: cut and kernel are
    those of a variant it is not in.
    Raises what `Tiler.fixed` raises for a candidate that is illegal or does not fit.
    """
    ops = {op.name: op for op in graph.ops}
    kernels, tiles, variants = dict(base.kernels), dict(base.tile_sizes), dict(base.variants)
    orders, buffers = dict(base.loop_orders), dict(base.buffers)
    for name, candidate in chosen:
        variant = candidate.variant or own_variant(ops[name])
        asked = variant_in(ops[name], base.variants) or variant
        if name in tiles or name in orders or asked != variant:
            continue
        tiler = tiler_for(graph, ops[name], timing, base.codegen, candidate)
        tiling = tiler.fixed(dict(candidate.sizes), timing.l1_usable_bytes, candidate.order)
        tiles[name] = dict(candidate.sizes)
        orders[name] = candidate.order
        buffers.setdefault(name, dict.fromkeys(_operands(tiling), candidate.depth))
        if candidate.kernel:
            kernels.setdefault(name, candidate.kernel)
        if candidate.variant:
            variants[name] = candidate.variant
    return replace(
        base, kernels=kernels, variants=variants, tile_sizes=tiles, loop_orders=orders, buffers=buffers
    )


def _operands(tiling: Tiling) -> list[str]:
    names = [buffer.name for buffer in tiling.buffers if buffer.role != "scratch"]
    return list(dict.fromkeys(name for name in names if not name.endswith(SUM)))
