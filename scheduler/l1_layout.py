"""L1 addresses of the buffers of one op, and which slot of which buffer a tile uses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scheduler.memory_plan import Allocation
from scheduler.tiling import Tiling


@dataclass(frozen=True, slots=True)
class L1Layout:
    """Base address and slot size of every buffer of an op, by (role, name)."""

    slots: Mapping[tuple[str, str], tuple[int, ...]]
    allocations: tuple[Allocation, ...]

    def address(self, role: str, name: str, use: int) -> int:
        """Address of the slot that the `use`-th load (or store) of a buffer takes: slots go round."""
        slots = self.slots[role, name]
        return slots[use % len(slots)]


def lay_out(tiling: Tiling, op_number: int) -> L1Layout:
    """Buffers one after another from L1 address 0, all live during the op `op_number`."""
    slots: dict[tuple[str, str], tuple[int, ...]] = {}
    allocations: list[Allocation] = []
    address = 0
    for buffer in tiling.buffers:
        slots[buffer.role, buffer.name] = tuple(address + i * buffer.slot_bytes for i in range(buffer.slots))
        name = f"{tiling.op}:{buffer.name}.{buffer.role}"
        allocations.append(Allocation(name, "l1", address, buffer.size_bytes, op_number, op_number))
        address += buffer.size_bytes
    return L1Layout(slots, tuple(allocations))
