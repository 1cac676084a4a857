# SPDX-License-Identifier: Apache-2.0
"""L1 addresses of the buffers of the ops, and which slot of which buffer a tile uses."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from configs.values import Struct, replace
from scheduler.addresses.allocation import Allocation, Interval
from scheduler.tiles.resident_tensors import NOT_RESIDENT, InPlace, Residents
from scheduler.tiles.tiling import Tiling
from trainlib.ir.steps import Operand

Span = tuple[int, int]
"""First byte and first byte after."""

Slot = tuple[tuple[str, str], int]
"""A buffer by role and name, and the number of one of its slots."""


class L1Layout(Struct, frozen=True):
    """Base address and slot size of every buffer of an op, by (role, name), and tensors that have none.

    `resident` are the tensors the op finds in L1: boxes of them are used where they lie.
    """

    slots: Mapping[tuple[str, str], tuple[int, ...]]
    allocations: tuple[Allocation, ...]
    early: frozenset[str] = frozenset()
    """Input buffers whose first slot is free already while the op before is at work."""
    resident: Mapping[str, InPlace] = {}

    def operand_address(self, role: str, operand: Operand, use: int) -> int:
        """Address of a box: in the tensor if that is resident, else in the slot `address` says."""
        in_place = self.resident.get(operand.tensor)
        if in_place is not None:
            return in_place.address + in_place.run_of(operand)[0]
        return self.address(role, operand.name, use)

    def address(self, role: str, name: str, use: int) -> int:
        """Address of the slot that the `use`-th load (or store) of a buffer takes: slots go round."""
        slots = self.slots[role, name]
        return slots[use % len(slots)]


def lay_out(tiling: Tiling, op_number: int, resident: Mapping[str, InPlace] = NOT_RESIDENT) -> L1Layout:
    """Buffers one after another from L1 address 0, all live during the op `op_number`."""
    slots: dict[tuple[str, str], tuple[int, ...]] = {}
    allocations: list[Allocation] = []
    address = 0
    for buffer in tiling.buffers:
        if not buffer.slots:
            continue
        slots[buffer.role, buffer.name] = tuple(address + i * buffer.slot_bytes for i in range(buffer.slots))
        name = f"{tiling.op}:{buffer.name}.{buffer.role}"
        allocations.append(Interval(name, buffer.size_bytes, op_number, op_number).at("l1", address))
        address += buffer.size_bytes
    return L1Layout(slots, tuple(allocations), resident=resident)


def lay_out_ops(
    tilings: Sequence[Tiling],
    readable: Sequence[Collection[str]],
    available_bytes: int,
    period_bytes: int,
    residents: Residents | None = None,
) -> list[L1Layout]:
    """Layouts of ops that run one after another, inputs of the next op beside the buffers of this one.

    `readable[i]` are the tensors whose boxes op i may load while op i - 1 is still at work. As many of the
    first tile's boxes of them as possible get a place of their own then. Addresses are those of `lay_out`
    modulo `period_bytes` (a turn of the L1 banks), so that kernels cost what they were estimated to. The
    buffers of an op lie below the `residents` of the moment.
    """
    layouts: list[L1Layout] = []
    for number, tiling in enumerate(tilings):
        in_place = residents.of_op(number) if residents is not None else NOT_RESIDENT
        limits = [available_bytes]
        if residents is not None:
            limits += [residents.limit_bytes(number), residents.limit_bytes(max(number - 1, 0))]
        packed = lay_out(tiling, number, in_place)
        before = layouts[-1].allocations if layouts else ()
        wanted = [
            item.name
            for item in tiling.tiles[0].inputs
            if item.tensor in readable[number] and item.tensor not in in_place
        ]
        beside = _beside(tiling, number, packed, before, wanted, min(limits), period_bytes)
        layouts.append(replace(beside, resident=in_place) if beside is not None else packed)
    return layouts


def _beside(
    tiling: Tiling,
    number: int,
    packed: L1Layout,
    before: Sequence[Allocation],
    wanted: Sequence[str],
    available_bytes: int,
    period_bytes: int,
) -> L1Layout | None:
    """The layout with as many as possible of the `wanted` buffers free of those `before`; None for none."""
    sizes = {(buffer.role, buffer.name): buffer.slot_bytes for buffer in tiling.buffers if buffer.slots}
    taken = [(item.address, item.end_address) for item in before]
    places = [(key, index) for key, slots in packed.slots.items() for index in range(len(slots))]

    def placed(wanted: Iterable[Slot], spans: list[Span], *, high: bool = False) -> dict[Slot, int] | None:
        """Addresses of slots beside the spans and one another; None if they do not fit."""
        found: dict[Slot, int] = {}
        for key, index in wanted:
            remainder = packed.slots[key][index] % period_bytes
            place = _place(spans, sizes[key], remainder, period_bytes, available_bytes, high=high)
            if place is None:
                return None
            found[key, index] = place
            spans.append((place, place + sizes[key]))
        return found

    # Small ones first: if one has to be left out it is the largest.
    names = sorted(dict.fromkeys(wanted), key=lambda name: sizes["in", name])
    while names:
        for high in (True, False):
            early = placed([(("in", name), 0) for name in names], [*taken], high=high)
            if early is None:
                continue
            spans = [(place, place + sizes[key]) for (key, _), place in early.items()]
            rest = sorted((slot for slot in places if slot not in early), key=lambda slot: -sizes[slot[0]])
            others = placed(rest, spans)
            if others is not None:
                found = {**early, **others}
                slots = {
                    key: tuple(found[key, index] for index in range(len(old)))
                    for key, old in packed.slots.items()
                }
                return _layout(tiling.op, number, slots, sizes, early)
        names.pop()
    return None


def _layout(
    op: str,
    number: int,
    slots: Mapping[tuple[str, str], tuple[int, ...]],
    sizes: Mapping[tuple[str, str], int],
    early: Mapping[Slot, int],
) -> L1Layout:
    allocations = []
    for (role, name), places in slots.items():
        for index, place in enumerate(places):
            first = number - 1 if ((role, name), index) in early else number
            label = f"{op}:{name}.{role}" + (f".{index}" if len(places) > 1 else "")
            allocations.append(Interval(label, sizes[role, name], first, number).at("l1", place))
    return L1Layout(slots, tuple(allocations), frozenset(name for (_, name), _ in early))


def _place(
    spans: Sequence[Span],
    size_bytes: int,
    remainder: int,
    period_bytes: int,
    available_bytes: int,
    *,
    high: bool,
) -> int | None:
    """Lowest (or highest) free address with this remainder of the period."""
    # Spans of the op before may lie where this op has resident tensors.
    below = [span for span in spans if span[0] < available_bytes]
    edges = [(0, 0), *sorted(below), (available_bytes, available_bytes)]
    gaps: list[Span] = []
    end = 0
    for first, last in edges:
        if first > end:
            gaps.append((end, first))
        end = max(end, last)
    for first, last in reversed(gaps) if high else gaps:
        lowest = first + (remainder - first) % period_bytes
        highest = last - size_bytes - (last - size_bytes - remainder) % period_bytes
        if lowest <= highest:
            return highest if high else lowest
    return None
