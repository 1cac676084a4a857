# SPDX-License-Identifier: Apache-2.0
"""What the tuner chose: for every op a candidate and its cycles, and what that means as schedule options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import Field

from arch.pricing.code_caches import WARM
from arch.spec.timing import SocTiming
from configs.schema import Schema
from configs.values import replace
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

FORMAT = 1
"""Version of the file's layout."""


class Named(Schema):
    """Model of the schedule."""

    cures: ClassVar[Mapping[str, str]] = {"content": "run `pulptrain tune` again: it writes 'content'"}

    name: str
    """Its name."""
    content: str
    """Hash of its content; a schedule for other content is refused."""


class TunedSoc(Named):
    """SoC of the schedule."""

    timing: str
    """Timing profile: rtl or gvsoc."""


class ResidentTensors(Schema):
    """Tensors that stay in L1 between ops, by program."""

    iteration: list[str] = Field(default_factory=list)
    """Tensors that stay in L1 during the iteration; `TENSOR@OP..OP`: only from the first op to the second."""
    update: list[str] = Field(default_factory=list)
    """The same for an update in a separate program."""


class OpChoice(Schema):
    """Choices for one op; `op`, `kernel`, `variant`, `tile`, `loop_order` and `buffering` are read."""

    op: str
    """Layer and step, as `run` prints them: `conv1.FW`."""
    kernel: str = ""
    """Matmul kernel, if the op has one."""
    variant: str = ""
    """Variant of the step (default: that of the model)."""
    im2col: str = ""
    """Former name of `variant` for convolutions."""
    tile: dict[str, Annotated[int, Field(ge=1)]]
    """Sizes of a tile, by the names of its loops."""
    loop_order: list[str]
    """Loop order, outermost first."""
    buffering: Annotated[int, Field(ge=1)]
    """Buffers per operand: 2 loads a tile while another is computed."""
    tiles: int = 0
    """Number of tiles."""
    l1_bytes: int = 0
    """L1 used by its buffers (B)."""
    cycles: int = 0
    """Simulated cycles of the op alone."""
    candidates: int = 0
    """Number of combinations."""
    evaluated: int = 0
    """Number of simulated combinations."""
    runner_up: Any = None
    """Second best choice, with its cycles."""

    @property
    def best(self) -> Cut:
        """The choice."""
        tile = tuple(self.tile.items()), tuple(self.loop_order), self.buffering
        how = *tile, self.kernel, self.variant or self.im2col
        return Cut(*how, self.tiles, self.l1_bytes, self.cycles)


def op_choice(op: str, best: Cut, second: Cut | None, candidates: int, evaluated: int) -> OpChoice:
    """The choice of an op and its second best, of so many candidates.

    Ops of equal shape share one search; each of them says its numbers.
    """
    numbers: dict[str, Any] = {"tiles": best.tiles, "l1_bytes": best.l1_bytes, "cycles": best.cycles}
    numbers |= {"candidates": candidates, "evaluated": evaluated}
    runner_up = second and {**second.written, "cycles": second.cycles}
    return OpChoice(op=op, **best.written, **numbers, runner_up=runner_up)


class TunedSchedule(Schema):
    """A schedule file, as `pulptrain tune` writes it."""

    format: int
    """Version of the file format."""
    pulptrain: Any = None
    """Version of pulptrain that wrote the file."""
    simulator: Any = None
    """Hash of the simulator's sources."""
    model: Named
    """Model of the schedule."""
    soc: TunedSoc
    """SoC of the schedule."""
    codegen: str
    """Compiler profile of the kernels."""
    strategy: Any = None
    """Search strategy."""
    candidates: Any = None
    """Number of combinations."""
    evaluated: Any = None
    """Number of simulated combinations."""
    cycles: Any = None
    """Cycles of an iteration with this schedule."""
    icache: str = WARM
    """Initial instruction-cache state of the tuning run."""
    layout: dict[str, str] = Field(default_factory=dict)
    """CHW or HWC by layer, if it differs from the model."""
    resident: dict[str, list[str]] = Field(default_factory=dict)
    """Tensors that stay in L1 between ops."""
    choices: tuple[OpChoice, ...]
    """One entry per op; omitted ops are scheduled as without the file."""

    _node: Node | None = None
    """The file it was read from."""

    def read_from(self, node: Node) -> TunedSchedule:
        """The same, with its place."""
        self._node = node
        return self

    def where(self, key: str) -> str:
        """Place of a key of the file as ``file:line``."""
        assert self._node is not None
        return self._node.mapping("the schedule")[key].where

    def where_of(self, choice: OpChoice, *keys: str) -> str:
        """``file:line`` of the first of some keys that the entry of a choice has; its own, if it has none."""
        assert self._node is not None
        entries = self._node.mapping("the schedule")["choices"].sequence("'choices'")
        return place_of(entries[self.choices.index(choice)], *keys)

    @property
    def chosen(self) -> dict[str, Cut]:
        """Candidate by op, as a start of the next search."""
        return {choice.op: choice.best for choice in self.choices}

    def but(self, **changes: Any) -> TunedSchedule:
        """The same with other fields."""
        return self.model_copy(update=changes)


def place_of(entry: Node, *keys: str) -> str:
    """``file:line`` of the first of some keys that the entry of a choice has; its own, if it has none."""
    children = entry.mapping("a choice")
    return next((children[key].where for key in keys if key in children), entry.where)


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
