# SPDX-License-Identifier: Apache-2.0
"""What a run will need of this computer's memory: from its tensors before it is planned, then from its tiles.

The second estimate is made op by op while tiles are chosen, before any action of the program is made.
`tools/measure_host_memory.py` compares both with what runs take, and its constants with those here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from arch.spec.timing import DmaTiming, SocTiming
from configs.limits import (
    PROCESS_BYTES,
    PYTORCH_BYTES,
    TENSOR_COPIES,
    require_host_memory,
    size_text,
)
from configs.values import Struct
from scheduler.tiles.transfers import count_commands, count_lines
from trainlib.ir.graph import Tensor, TrainingGraph
from trainlib.ir.steps import Operand

if TYPE_CHECKING:
    from scheduler.tiles.tiling import Tiler, Tiling

# Fitted to the peaks of the cases of the tool without a trace, with one and with numbers, on CPython 3.11 and
# NumPy 2.
ACTION_BYTES = 500
"""An action with its tile's share and what the simulator keeps of it."""

COMMAND_BYTES = 300
"""A command of the DMA."""

OFFCHIP_COMMAND_BYTES = 100
"""A command of the uDMA: one box has many, which are traced together."""

KERNEL_BYTES = 1150
"""A kernel."""

ACTION_TRACED_BYTES = 650
"""With a trace, what is kept of an action beside that."""

COMMAND_TRACED_BYTES = 480
"""The slices of a command."""

KERNEL_TRACED_BYTES = 1450
"""What is traced of a kernel, whatever its cores."""

KERNEL_TRACED_BYTES_PER_CORE = 464
"""What is traced of a kernel on one core."""

COMMAND_NUMBERS_BYTES = 520
"""With numbers, per command of DMA or uDMA: its moves are kept for the iterations that are replayed."""

KERNEL_NUMBERS_BYTES = 1600
"""With numbers, per kernel: what it computes on which views."""


class ProgramSize(Struct, frozen=True):
    """How much there is of one or more programs."""

    actions: int = 0
    commands: int = 0
    """Of the DMA."""
    offchip_commands: int = 0
    """Of the uDMA, for what is streamed; copies of whole tensors are few."""
    kernels: int = 0

    def __add__(self, other: ProgramSize) -> ProgramSize:
        return ProgramSize(
            self.actions + other.actions,
            self.commands + other.commands,
            self.offchip_commands + other.offchip_commands,
            self.kernels + other.kernels,
        )


NO_PROGRAM = ProgramSize()


class HostUse(Struct, frozen=True):
    """What a run does beside simulating time: compute `numbers`, ask PyTorch about them (`torch`), keep
    all slices (`traced`)."""

    numbers: bool = False
    torch: bool = False
    traced: bool = True
    beside: ProgramSize = NO_PROGRAM
    """Other programs that are held at the same time."""


TIMING_ONLY = HostUse()
UNTRACED = HostUse(traced=False)


def program_size(tiler: Tiler, tiling: Tiling, dma: DmaTiming) -> ProgramSize:
    """What the tile loop of an op will consist of, from its tiles.

    Where transfer IDs are few, and of tensors resident in L1, it is less.
    """
    boxes: list[Operand] = []
    last: dict[str, Operand] = {}
    for task in tiling.tiles:
        boxes += [item for item in task.inputs if last.get(item.name) != item]
        last |= {item.name: item for item in task.inputs}
        boxes += task.outputs
    size = ProgramSize(actions=1, kernels=sum(len(task.calls) for task in tiling.tiles))
    commands = offchip_commands = actions = 0
    for box in boxes:
        if box.tensor in tiler.resident:
            continue
        actions += 2  # start and wait
        if tiler.stream.holds(box):
            actions += 2
            offchip_commands += _lines(box, tiler.tensors)
            commands += _flat_commands(tiler.operand_bytes(box), dma)
        else:
            commands += _commands(box, tiler.tensors, dma)
    return size + ProgramSize(actions + size.kernels, commands, offchip_commands)


def _extents(operand: Operand) -> list[tuple[int, ...]]:
    return [tuple(stop - start for start, stop in box) for box in operand.boxes]


def _flat_commands(size_bytes: int, dma: DmaTiming) -> int:
    """Commands of a range of bytes."""
    return count_commands((size_bytes,), 1, (size_bytes,), dma.max_command_1d_bytes, dma.max_command_2d_bytes)


def _commands(operand: Operand, tensors: Mapping[str, Tensor], dma: DmaTiming) -> int:
    tensor = tensors[operand.tensor]
    itemsize_bytes = tensor.dtype.bytes
    return sum(
        count_commands(
            tensor.shape, itemsize_bytes, extents, dma.max_command_1d_bytes, dma.max_command_2d_bytes
        )
        for extents in _extents(operand)
    )


def _lines(operand: Operand, tensors: Mapping[str, Tensor]) -> int:
    return sum(count_lines(tensors[operand.tensor].shape, extents) for extents in _extents(operand))


def tensor_bytes(graph: TrainingGraph) -> int:
    """Bytes of all tensors of a graph."""
    return sum(tensor.size_bytes for tensor in graph.tensors.values() if tensor.alias_of is None)


def host_memory_parts(
    graph: TrainingGraph, timing: SocTiming, use: HostUse, size: ProgramSize = NO_PROGRAM
) -> dict[str, int]:
    """What a run takes: part (for people) -> bytes. Without a program `size` it is that of tensors alone."""
    size += use.beside
    tensors_bytes = tensor_bytes(graph) if use.numbers else 0
    memories_bytes = timing.l1.size_bytes + timing.l2.size_bytes + timing.l3.size_bytes
    action_bytes = ACTION_BYTES + ACTION_TRACED_BYTES * use.traced
    command_bytes = COMMAND_BYTES + COMMAND_TRACED_BYTES * use.traced + COMMAND_NUMBERS_BYTES * use.numbers
    offchip_bytes = OFFCHIP_COMMAND_BYTES + COMMAND_NUMBERS_BYTES * use.numbers
    kernel_traced_bytes = KERNEL_TRACED_BYTES + KERNEL_TRACED_BYTES_PER_CORE * timing.cores
    kernel_bytes = KERNEL_BYTES + kernel_traced_bytes * use.traced + KERNEL_NUMBERS_BYTES * use.numbers
    parts = {
        "the process": PROCESS_BYTES,
        "PyTorch": PYTORCH_BYTES * use.torch,
        "simulated memories": memories_bytes,
        f"{TENSOR_COPIES} copies of the {size_text(tensors_bytes)} of tensors": TENSOR_COPIES
        * tensors_bytes
        * use.numbers,
        f"{size.actions:,} events": action_bytes * size.actions,
        f"{size.commands:,} DMA commands": command_bytes * size.commands,
        f"{size.offchip_commands:,} uDMA commands": offchip_bytes * size.offchip_commands,
        f"{size.kernels:,} kernel calls": kernel_bytes * size.kernels,
    }
    return {name: part_bytes for name, part_bytes in parts.items() if part_bytes}


def check_host_memory(
    graph: TrainingGraph, timing: SocTiming, use: HostUse = TIMING_ONLY, size: ProgramSize = NO_PROGRAM
) -> None:
    """Raise `InputError` if a run needs more than is allowed, by part, with what would need less.

    `size` is that of the program as far as it is known.
    """
    parts = host_memory_parts(graph, timing, use, size)
    cures = (
        ["use fewer and larger tiles (a larger --l1, --tile)"]
        if size.actions
        else ["use smaller memories (--l2, --l3) or tensors"]
    )
    if use.numbers:
        without = host_memory_parts(graph, timing, HostUse(traced=use.traced, beside=use.beside), size)
        cures.append(f"run --no-functional (no values of tensors: {size_text(sum(without.values()))} in all)")
    require_host_memory(
        sum(parts.values()),
        "the run needs",
        where=graph.name,
        parts=", ".join(f"{name}: {size_text(part_bytes)}" for name, part_bytes in parts.items()),
        cure=", ".join(cures),
    )
