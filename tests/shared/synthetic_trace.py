# SPDX-License-Identifier: Apache-2.0
"""A recorder fed by hand: a run of a few tiles whose every slice is known."""

from traces.events import COMPUTE, TRANSFER, Slice, Work
from traces.recorder import Recorder

OFFLOAD_CYCLES, COMPLETION_CYCLES, PROGRAM_CYCLES, FORK_CYCLES = 800, 300, 40, 30
LATENCY_CYCLES, BYTES_PER_CYCLE = 60, 8


def _named(work: Work, what: str) -> Work:
    return Work(work.op, work.step, work.tile, what)


OPS = (
    # op, step, tiles, compute cycles per tile, bytes in per tile, bytes out per tile
    ("conv1", "FW", 16, 1700, 2400, 900),
    ("relu1", "FW", 4, 260, 2304, 2304),
    ("conv2", "FW", 36, 1500, 3100, 640),
    ("relu2", "FW", 4, 240, 2304, 2304),
    ("fc", "FW", 24, 520, 4700, 40),
    ("loss", "LOSS", 1, 900, 80, 44),
    ("fc", "WG", 24, 610, 2400, 2304),
    ("fc", "IG", 18, 760, 3300, 128),
    ("relu2", "IG", 4, 300, 4608, 2304),
    ("conv2", "WG", 30, 1450, 3300, 320),
    ("conv2", "IG", 20, 1800, 3000, 800),
    ("relu1", "IG", 4, 310, 4608, 2304),
    ("conv1", "WG", 10, 1600, 3200, 300),
    ("fc", "UPD", 6, 420, 7680, 3840),
)


class _Machine:
    """Clock of every core and of both DMA channels while the run is made up."""

    def __init__(self, cores: int) -> None:
        self.recorder = Recorder()
        self.now = [0] * cores
        self.channel = {"in": 0, "out": 0}

    def core(self, core: int, kind: str, until: int, work: Work, **extra: object) -> None:
        self.recorder.slice(Slice(f"soc.cluster.core{core}", self.now[core], until, kind, work, **extra))  # type: ignore[arg-type]
        self.now[core] = until

    def transfer(self, direction: str, work: Work, size_bytes: int) -> int:
        self.core(0, "dma_program", self.now[0] + PROGRAM_CYCLES, work)
        start = max(self.now[0], self.channel[direction])
        end = start + LATENCY_CYCLES + size_bytes // BYTES_PER_CYCLE
        self.channel[direction] = end
        self.recorder.slice(
            Slice(f"soc.cluster.dma.{direction}", start, end, TRANSFER, work, bytes=size_bytes)
        )
        return end

    def fork(self, work: Work, cycles: int) -> None:
        for core in range(1, len(self.now)):
            self.core(core, "idle", self.now[0], Work())
        for core in range(len(self.now)):
            self.core(core, "fork", self.now[core] + FORK_CYCLES, work)
            share = cycles - (core * 37 + work.tile * 11) % 90
            stalls = (
                ("load_use", share * 14 // 100),
                ("fpu", share * (6 + core % 3) // 100),
                ("branch", share * 2 // 100),
                ("bank_conflict", share * (4 + core % 4) // 100),
            )
            lost = sum(count for _, count in stalls)
            self.core(core, COMPUTE, self.now[core] + share, work, stalls=stalls, instructions=share - lost)
        meeting = max(self.now)
        for core in range(len(self.now)):
            self.core(core, "barrier", meeting, work)


def training_run(cores: int = 8, ops: tuple[tuple[str, str, int, int, int, int], ...] = OPS) -> Recorder:
    """One training iteration; data for the next tile come while this one computes."""
    machine = _Machine(cores)
    for core in range(cores):
        machine.core(core, "offload", OFFLOAD_CYCLES, Work())
    tiles = [(Work(op, step, tile), *sizes) for op, step, count, *sizes in ops for tile in range(count)]
    arrival = machine.transfer("in", _named(tiles[0][0], "x"), tiles[0][2])
    for index, (work, cycles, _, bytes_out) in enumerate(tiles):
        next_arrival = 0
        if index + 1 < len(tiles):
            next_arrival = machine.transfer("in", _named(tiles[index + 1][0], "x"), tiles[index + 1][2])
        machine.core(0, "dma_wait", max(arrival, machine.now[0]), _named(work, "x"))
        machine.fork(_named(work, "mm_2x2"), cycles)
        machine.transfer("out", _named(work, "y"), bytes_out)
        arrival = next_arrival
    machine.core(0, "dma_wait", max(machine.channel["out"], machine.now[0]), _named(tiles[-1][0], "y"))
    end = machine.now[0]
    for core in range(cores):
        machine.core(core, "idle", end, Work())
        machine.core(core, "offload", end + COMPLETION_CYCLES, Work())
    return machine.recorder
