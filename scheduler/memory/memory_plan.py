# SPDX-License-Identifier: Apache-2.0
"""Where everything lives: a level, an address and a lifetime for every tensor and buffer."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from arch.spec.timing import SocTiming
from configs.errors import InputError
from configs.suggest import suggestion
from configs.values import replace
from scheduler.addresses.allocation import (
    Allocation,
    Interval,
    PlanError,
    check_no_overlap,
    live_bytes,
    lower_bound_bytes,
    peak_bytes,
)
from scheduler.addresses.lifetimes import Life, in_place_owners, owners_of, storage_lives
from scheduler.addresses.optimal_placement import place_optimal
from scheduler.addresses.placement import place
from scheduler.addresses.plan_options import ALL_OTHERS, STREAMED, PlanOptions
from scheduler.memory.host_memory import TIMING_ONLY, HostUse, check_host_memory, tensor_bytes
from scheduler.memory.l2_report import op_too_large, too_small
from scheduler.memory.l2_staging import HomeChoice, Stay
from scheduler.memory.offchip_streaming import StreamingPlan, window_name
from scheduler.tiles.l2_slots import NO_SLOTS, NOT_STREAMED, Key, OpSlots, OpStream, slots_of
from scheduler.tiles.streaming_choice import Streamer
from scheduler.tiles.tiling import Tiling
from trainlib.ir.graph import Op, TrainingGraph

LEVELS = ("l1", "l2", "l3")

CODE_KIND = "code"
"""Kind of the bytes of code in a plan, and what they are called there (`scheduler.code_in_l2`)."""

PLANNED_BYTES = 48 << 20
"""Of all tensors, up to which planning says what L2 and L3 lack; of more, which would take long, the shapes.
"""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Level, address and lifetime of every tensor and buffer of one training iteration.

    `allocations` hold all levels. `owners` maps every tensor to the one whose bytes it lies in (aliases of
    the graph, and `in_place`: tensor written -> tensor it overwrites). `homes` maps owners to where they live
    between ops (L2 or L3), `stays` are the copies in L2 of those that live in L3. `capacity_bytes` is what
    each level offers, in L1 without the stacks.
    """

    graph: str
    ops: tuple[str, ...]
    allocations: tuple[Allocation, ...]
    owners: Mapping[str, str]
    in_place: Mapping[str, str]
    homes: Mapping[str, Allocation]
    stays: tuple[Stay, ...]
    capacity_bytes: Mapping[str, int]
    placement: str
    notes: tuple[str, ...] = ()
    streams: Mapping[int, OpStream] = field(default_factory=dict)
    """What the ops stream, by number of the op."""
    streamed_bytes: Mapping[str, int] = field(default_factory=dict)
    """Bytes of streamed boxes the uDMA moves in one iteration, ``in`` and ``out``."""
    _staged: Mapping[str, tuple[Allocation, ...]] = field(default_factory=dict, repr=False)

    @property
    def code_bytes(self) -> int:
        """L2 bytes of the code of all programs; 0 where all code starts warm, and nobody counts it."""
        return sum(item.size_bytes for item in self.allocations if item.kind == CODE_KIND)

    def home(self, tensor: str) -> Allocation:
        """Where a tensor lives between ops, before and after the iteration. `KeyError` if it has no bytes."""
        return self.homes[self.owners[tensor]]

    def place(self, op_number: int, tensor: str) -> Allocation:
        """Where an op finds a tensor in L2: its home, or the copy that is there during that op.

        `KeyError` when a tensor whose home is L3 is not in L2 during the op.
        """
        owner = self.owners[tensor]
        home = self.homes[owner]
        if home.level != "l3":
            return home
        for copy in self._staged.get(owner, ()):
            if copy.first_op <= op_number <= copy.last_op:
                return copy
        raise KeyError(f"{tensor} is not in L2 during op {op_number}")

    def readable(self, op_number: int, tensor: str) -> bool:
        """Whether the value a tensor has before op `op_number` can be read from L2 all through that op.

        A load for the next op may be pushed during this one only then (and if this op does not write it).
        """
        owner = self.owners[tensor]
        return self.homes[owner].level != "l3" or any(
            stay.tensor == owner and stay.needed_op <= op_number <= stay.last_op for stay in self.stays
        )

    def ending(self, op_number: int) -> list[Allocation]:
        """Allocations in L2 and L3 whose life ends with this op."""
        return [item for item in self.allocations if item.last_op == op_number and item.level != "l1"]

    @property
    def peak_bytes(self) -> dict[str, int]:
        """Highest address used per level; L1 without the reserved stacks."""
        return {
            level: peak_bytes(item for item in self.allocations if item.level == level) for level in LEVELS
        }

    @property
    def lower_bound_bytes(self) -> dict[str, int]:
        """Most bytes live at the same time per level: no placement has a lower peak."""
        return {
            level: lower_bound_bytes(item for item in self.allocations if item.level == level)
            for level in LEVELS
        }

    @property
    def staged_bytes(self) -> dict[str, int]:
        """Bytes the uDMA moves in one iteration: from L3 to L2 (``in``) and back (``out``)."""
        return {
            "in": sum(size_bytes for stay in self.stays for _, size_bytes in stay.runs_in)
            + self.streamed_bytes.get("in", 0),
            "out": sum(size_bytes for stay in self.stays for _, size_bytes in stay.runs_out)
            + self.streamed_bytes.get("out", 0),
        }

    def stream(self, op_number: int) -> OpStream:
        """What an op streams."""
        return self.streams.get(op_number, NOT_STREAMED)

    def with_slots(self, ops: Sequence[tuple[Op, Tiling]]) -> tuple[MemoryPlan, list[OpSlots]]:
        """The plan with the slots of the ops as they are cut, and their addresses per op."""
        windows = {item.name: item for item in self.allocations if item.level == "l2"}
        kept = {item.name: item for item in self.allocations}
        items: list[Allocation] = []
        by_op: list[OpSlots] = []
        for number, (op, tiling) in enumerate(ops):
            stream = self.stream(number)
            if not stream.storages:
                by_op.append(NO_SLOTS)
                continue
            window = windows[window_name(op.name)]
            del kept[window.name]
            slots: dict[Key, tuple[int, ...]] = {}
            address = window.address
            for (role, name), (size_bytes, count) in slots_of(tiling, stream).items():
                slots[role, name] = tuple(address + index * size_bytes for index in range(count))
                for index, at in enumerate(slots[role, name]):
                    label = f"{op.name}:{name}.{role}.l2.{index}"
                    slot = Interval(label, size_bytes, number, number, staged=True).at("l2", at)
                    items.append(self._named(op, slot))
                address += count * size_bytes
            by_op.append(OpSlots(slots, {name: self.home(name).address for name in stream.tensors}))
        return replace(self, allocations=(*kept.values(), *items)), by_op

    def with_l1(self, ops: Iterable[tuple[Op, Iterable[Allocation]]]) -> MemoryPlan:
        """The plan with the L1 buffers of all ops, each with the kind of the tensor whose boxes it holds."""
        named = [self._named(op, item) for op, items in ops for item in items]
        return replace(self, allocations=(*self.allocations, *named))

    def _named(self, op: Op, item: Allocation) -> Allocation:
        """An L1 buffer, called ``op:operand.role`` with perhaps the number of its slot, with its tensor."""
        operand, *rest = item.name.partition(":")[2].split(".")
        tensor = op.roles.get(operand, operand)
        if "scratch" in rest or tensor not in self.owners:
            return replace(item, kind="scratch")
        return replace(item, kind=self.home(tensor).kind, tensor=tensor)

    def check(self) -> None:
        """Prove that live buffers never overlap and that none leaves its memory.

        Raises `OverlapError` or `PlanError`.
        """
        check_no_overlap(self.allocations)
        for item in self.allocations:
            if item.address < 0 or item.end_address > self.capacity_bytes[item.level]:
                raise PlanError(
                    f"{item.name} uses {item.level} bytes {item.address} to {item.end_address}, but the "
                    f"memory has {self.capacity_bytes[item.level]} B",
                    where=f"memory plan, {item.level}",
                    cure="use an address inside the memory",
                )


def plan_memory(
    graph: TrainingGraph,
    timing: SocTiming,
    options: PlanOptions | None = None,
    streamer: Streamer | None = None,
) -> MemoryPlan:
    """Home, address and lifetime of every tensor; buffers and slots follow when the ops have been tiled.

    Tensors stay in L2 while they fit; then the ones whose transfers cost least go to L3 and are staged. An op
    whose own tensors do not fit streams some of them, if there is a `streamer` to choose which.
    Raises `DoesNotFitError` with the largest tensors when L2 (or L3) is too small, `InputError` when
    `options` name unknown tensors.
    """
    options = options or PlanOptions()
    owners, lives, taken = _storages(graph, options)
    capacity_bytes = {"l1": timing.l1_usable_bytes, "l2": timing.l2.size_bytes, "l3": timing.l3.size_bytes}
    check_sizes(graph, timing, options)
    homes = _homes(graph, owners, options)
    choice = HomeChoice(lives, len(graph.ops), homes, _transfer_overhead_bytes(timing))
    wanted = frozenset(name for name, level in _levels(owners, options).items() if level == STREAMED)
    asked = {
        op: wanted | {owners[name] for name in names if name in owners}
        for op, names in options.streams.items()
    }
    streams = StreamingPlan(graph, lives, owners, choice, streamer, wanted, asked, options.slot_bytes)
    whole = streams.stream_requested(capacity_bytes["l2"])
    placed, notes = _placed(graph, lives, choice, capacity_bytes, options, streams)
    moved = [lives[name] for name in lives if name in choice.in_l3]
    offchip, more = _place(moved, "l3", capacity_bytes["l3"], options)
    if peak_bytes(offchip.values()) > capacity_bytes["l3"]:
        raise too_small(graph, "l3", peak_bytes(offchip.values()), capacity_bytes["l3"], offchip.values())
    stays = tuple(choice.stays())
    staged: dict[str, list[Allocation]] = {}
    for stay in stays:
        staged.setdefault(stay.tensor, []).append(placed[stay.name])
    onchip = {name: item for name, item in placed.items() if not item.staged}
    plan = MemoryPlan(
        graph.name,
        tuple(op.name for op in graph.ops),
        (*placed.values(), *offchip.values()),
        owners,
        taken,
        {**onchip, **offchip},
        stays,
        capacity_bytes,
        options.placement,
        (*notes, *more, *whole, *streams.notes()),
        choice.streams,
        _staged={name: tuple(items) for name, items in staged.items()},
    )
    plan.check()
    return plan


def check_sizes(
    graph: TrainingGraph, timing: SocTiming, options: PlanOptions, use: HostUse = TIMING_ONLY
) -> None:
    """Refuse from the shapes alone what is too large to be planned.

    Raises `DoesNotFitError` where tensors of more than `PLANNED_BYTES` have no room in L2 and L3 whatever
    lies where, else `InputError` where this computer's memory is too small.
    """
    if tensor_bytes(graph) > PLANNED_BYTES:
        _, lives, _ = _storages(graph, options)
        _check_room(graph, lives.values(), {"l2": timing.l2.size_bytes, "l3": timing.l3.size_bytes})
    check_host_memory(graph, timing, use)


def _check_room(graph: TrainingGraph, lives: Collection[Life], capacity_bytes: Mapping[str, int]) -> None:
    """Raise `DoesNotFitError` when L2 and L3 together are too small, whatever lies where.

    That follows from the shapes alone: for what is too large to be planned here no tiles are searched and no
    addresses chosen, so the bytes required are those at least.
    """
    level = "l3" if capacity_bytes["l3"] > 0 else "l2"
    live = live_bytes(lives)
    op = max(live, key=lambda number: (live[number], -number))
    near_bytes = capacity_bytes["l2"] if level == "l3" else 0
    if live[op] - near_bytes > capacity_bytes[level]:
        during = [item for item in lives if item.first_op <= op <= item.last_op]
        raise too_small(graph, level, live[op] - near_bytes, capacity_bytes[level], during)


def least_l2_bytes(
    graph: TrainingGraph, timing: SocTiming, options: PlanOptions, streamer: Streamer | None = None
) -> int:
    """The smallest L2 the tensors can do with.

    With an L3 that is what the most demanding op itself needs in L2; without, the peak of all tensors.
    """
    owners, lives, _ = _storages(graph, options)
    homes = _homes(graph, owners, options)
    if timing.l3.size_bytes == 0:
        return peak_bytes(place(lives.values(), "l2", "first-fit").values())
    choice = HomeChoice(lives, len(graph.ops), homes, _transfer_overhead_bytes(timing))
    return StreamingPlan(graph, lives, owners, choice, streamer).neediest()[1]


def _storages(
    graph: TrainingGraph, options: PlanOptions
) -> tuple[dict[str, str], dict[str, Life], dict[str, str]]:
    """Owner of the bytes of every tensor, lives of the owners, and what is written in place of what.

    Among the lives are those of the storages another program keeps and this one has no tensor for.
    """
    lives = storage_lives(graph)
    taken = in_place_owners(graph, lives, options.alike) if options.in_place else {}
    owners = owners_of(graph, taken)
    lives = storage_lives(graph, owners) if taken else lives
    after = len(graph.ops)
    for name, item in options.shared.items():
        if name not in graph.tensors:
            life = (name, item.size_bytes, 0, after, item.kind, name)
            lives[name] = Life(*life, reads=(), writes=(), given=True, kept=True)
    return owners, lives, taken


def _transfer_overhead_bytes(timing: SocTiming) -> int:
    """What the bus to L3 could move while a transfer is programmed, set up and its end is noticed."""
    l3, clock = timing.l3, timing.clock
    master_seconds = (l3.program_cycles + l3.wake_cycles) / clock.cluster_hz
    cycles = master_seconds * clock.peripheral_hz + l3.burst_setup_peripheral_cycles
    return round(cycles * l3.bytes_per_peripheral_cycle)


def _homes(graph: TrainingGraph, owners: Mapping[str, str], options: PlanOptions) -> dict[str, str]:
    """Level of the storages that have one already. Raises `InputError` for unknown names."""
    for name in options.homes:
        if name not in graph.tensors and name != ALL_OTHERS:
            layer = name.partition(".")[0]
            of_layer = [each for each in graph.tensors if each.partition(".")[0] == layer]
            cure = suggestion(name, of_layer or graph.tensors)
            raise InputError(f"this run of {graph.name} has no tensor {name!r}", where="--home", cure=cure)
    levels = _levels(owners, options)
    homes = {name: "l3" if level == STREAMED else level for name, level in levels.items()}
    return homes | {owners.get(name, name): item.level for name, item in options.shared.items()}


def _levels(owners: Mapping[str, str], options: PlanOptions) -> dict[str, str]:
    """What the options say of storages, `STREAMED` too."""
    others = options.homes.get(ALL_OTHERS)
    levels = dict.fromkeys(owners.values(), others) if others is not None else {}
    streamed = (name for names in options.streams.values() for name in names if name in owners)
    levels |= {owners[name]: "l3" for name in streamed}
    return levels | {owners[name]: level for name, level in options.homes.items() if name != ALL_OTHERS}


def _placed(
    graph: TrainingGraph,
    lives: Mapping[str, Life],
    choice: HomeChoice,
    capacity_bytes: Mapping[str, int],
    options: PlanOptions,
    streams: StreamingPlan,
) -> tuple[dict[str, Allocation], tuple[str, ...]]:
    """Addresses in L2, with as many tensors moved to L3, and streamed, as it takes."""
    available_bytes = capacity_bytes["l2"]
    while capacity_bytes["l3"] > 0:
        hopeless = choice.fit(available_bytes)
        if hopeless is None:
            break
        if not streams.relieve(hopeless, available_bytes):
            op, _ = streams.neediest()
            raise op_too_large(graph, lives, choice, op, available_bytes, streams.least(op))
    first = True
    while True:
        held = (life for life in lives.values() if life.name not in choice.in_l3)
        requests = [*held, *choice.stays(), *streams.windows()]
        placed, notes = _place(requests, "l2", available_bytes, options, search=first)
        first = False
        required_bytes = peak_bytes(placed.values())
        if required_bytes <= available_bytes:
            return placed, notes
        # Live bytes fit but holes between them do not: move something out while the top allocation lives.
        top = max(placed.values(), key=lambda item: (item.end_address, item.name))
        ops = sorted(range(top.first_op, top.last_op + 1), key=lambda op: -int(choice.live_bytes[op]))
        missing_bytes = required_bytes - available_bytes
        if capacity_bytes["l3"] == 0 or not (
            any(choice.relieve_by(op, missing_bytes) for op in ops)
            or any(streams.relieve(op, available_bytes, missing_bytes) for op in ops)
        ):
            during = [item for item in placed.values() if item.first_op <= ops[0] <= item.last_op]
            whole = [lives[item.tensor] if item.tensor else item for item in during]
            raise too_small(graph, "l2", required_bytes, available_bytes, whole)


def _place(
    wanted: Sequence[Interval], level: str, available_bytes: int, options: PlanOptions, *, search: bool = True
) -> tuple[dict[str, Allocation], tuple[str, ...]]:
    """Addresses by the heuristic asked for, by the other one if they do not fit, or optimal ones; and notes.

    What another program shares stays at its addresses, and the others are placed around it. Without `search`
    an optimum is looked for only if the heuristics find a plan that fits.
    """
    around = {
        request.name: request.at(level, options.shared[request.name].address)
        for request in wanted
        if request.name in options.shared
    }
    others = [request for request in wanted if request.name not in around]
    fixed = tuple(around.values())
    heuristics = ("best-fit", "first-fit") if options.placement == "best-fit" else ("first-fit", "best-fit")
    placed = around | place(others, level, heuristics[0], fixed)
    if peak_bytes(placed.values()) > available_bytes:
        placed = min(
            placed,
            around | place(others, level, heuristics[1], fixed),
            key=lambda plan: peak_bytes(plan.values()),
        )
    if options.placement != "optimal" or not (search or peak_bytes(placed.values()) <= available_bytes):
        return placed, ()
    if not around:
        return place_optimal(wanted, level)
    # The solver has no fixed addresses. Nothing is left to search where the fixed ones reach highest anyway.
    if peak_bytes(placed.values()) <= max(peak_bytes(fixed), lower_bound_bytes(wanted)):
        return placed, ()
    return placed, (f"{level}: placed by {heuristics[0]} around the data of the mini-batches",)
