# SPDX-License-Identifier: Apache-2.0
"""The whole SoC: elaboration of the module tree, runs of programs, and access to the modelled memories."""

from __future__ import annotations

from collections.abc import Mapping

from simpy.core import EmptySchedule

from arch.blocks.cluster import Cluster
from arch.blocks.fabric_controller import FabricController
from arch.blocks.l2 import hyper_ram, shared_l2
from arch.blocks.stretches import Stretches
from arch.blocks.udma import Udma
from arch.memories.effects import EffectLog, Effects, Probe
from arch.memories.memory import Storage
from arch.memories.replay import ReplayPlan
from arch.pricing.code_caches import WARM
from arch.pricing.cost_model import CostModel
from arch.spec.program import Array, Place, Program
from arch.spec.timing import SocTiming
from arch.systemc.clock import Clock
from arch.systemc.environment import Environment
from arch.systemc.module import Module
from configs.errors import DeadlockError
from configs.values import Struct
from traces.events import NullTracer, Tracer


class RunResult(Struct, frozen=True):
    """What one run gave.

    `cycles` counts cluster cycles from the start of the offload until the fabric controller knows of the end;
    `events` are the SimPy events processed (none for what is passed over); `effect_log` can be given to
    `Soc.replay`.
    """

    cycles: int
    events: int
    effect_log: EffectLog


def core_paths(timing: SocTiming) -> tuple[str, ...]:
    """The tracks of the cores of a `Soc`, core 0 first, known before there is one."""
    return tuple([f"soc.cluster.core{core}" for core in range(timing.cores)])


class Soc(Module):
    """Fabric controller, cluster, L2, and HyperRAM behind the uDMA, built once and run any number of times.

    Simulated time starts at 0 in every run; memory contents stay. With `detect_races` False overlapping
    accesses are simulated instead of refused, and show as NaN. `code_start` says what the instruction caches
    hold when a program begins: warm, steady or cold, see `arch.pricing.code_caches`.
    """

    def __init__(
        self,
        timing: SocTiming,
        cost_model: CostModel,
        tracer: Tracer | None = None,
        *,
        detect_races: bool = True,
        code_start: str = WARM,
    ) -> None:
        super().__init__(None, "soc")
        if isinstance(tracer, NullTracer):
            tracer = None  # nobody listens, so the modules need not work out what to tell
        self.timing = timing
        self.code_start = code_start
        clock = Clock("cluster", timing.clock.cluster_hz)
        soc_clock = Clock("soc", timing.clock.soc_hz)
        peripheral = Clock("peripheral", timing.clock.peripheral_hz)
        l2 = shared_l2(self, timing.l2, soc_clock, clock, timing.dma.burst_bytes)
        l3 = hyper_ram(self, timing.l3, peripheral, clock, timing.dma.burst_bytes)
        l1 = Storage("l1", timing.l1.size_bytes)
        storages = {"l1": l1, "l2": l2.storage, "l3": l3.storage}
        self._effects = Effects(storages, lambda: self.env.now, detect_races=detect_races)
        self.cluster = Cluster(
            self, timing, l1, {"l2": l2, "l3": l3}, cost_model, self._effects, tracer, code_start
        )
        self.fc = FabricController(self, "fc", timing.fc, soc_clock, clock, tracer)
        self.fc.mailbox.bind(self.cluster)
        self.cluster.master.completion.bind(self.fc)
        self.udma = Udma(self, "udma", timing.l3, peripheral, clock, self._effects, tracer)
        self.udma.memory.bind(l3)
        self.cluster.master.udma.bind(self.udma)
        self.elaborate()
        unseen = tracer is None and not detect_races and code_start == WARM
        self._stretches = Stretches(self.cluster.dma, timing) if unseen else None
        self._plans: list[tuple[EffectLog, ReplayPlan]] = []

    def load(self, place: Place, array: Array) -> None:
        """Copy an array into a memory. Raises `ShapeError` or `InputError`."""
        self._effects.storage(place.level).write(place, array)

    def fetch(self, place: Place) -> Array:
        """A copy of an array in a memory. Raises `InputError` outside the memory."""
        return self._effects.storage(place.level).read(place)

    def view(self, place: Place) -> Array:
        """The array in a memory itself, as it is whenever one looks. Raises `InputError` outside it."""
        return self._effects.storage(place.level).view(place)

    def release(self, place: Place) -> None:
        """End the life of the bytes of `place`: reading them gives NaN."""
        self._effects.storage(place.level).poison(place)

    def memories(self) -> dict[str, Array]:
        """A copy of what lies in all memories, by level, for `restore`: the bytes up to the last in use."""
        return {level: storage.content() for level, storage in self._effects.storages.items()}

    def restore(self, memories: Mapping[str, Array]) -> None:
        """Make all memories hold again what they held when `memories` was taken."""
        for level, content in memories.items():
            self._effects.storages[level].set_content(content)

    def watch(self, probe: Probe | None) -> None:
        """From now on call `probe` at the end of any work, in runs and replays; None: nobody."""
        self._effects.probe = probe

    def run(self, program: Program, effects: bool = True, *, logged: bool = True) -> RunResult:
        """Offload `program`, simulate until the fabric controller knows of its end and no DMA moves.

        With `effects` False no byte moves; time, races and log are the same. The log is empty unless
        `logged`: it grows with every command, and only a replay reads it. Raises `DeadlockError` when
        nothing can happen any more, `RaceError`, and `InputError` for actions the hardware cannot carry out.
        """
        env = Environment()
        self._effects.begin_run(enabled=effects, logged=logged)
        self.cluster.master.stretches = None if effects or logged else self._stretches
        self.start(env)
        self.fc.offload(program)
        notified = self.fc.notified
        events = 0
        step = env.step
        dma, udma = self.cluster.dma, self.udma
        try:
            while notified.callbacks is not None:  # None once SimPy has processed the event
                step()
                events += 1
            cycles = int(env.now)
            while not (dma.idle and udma.idle):
                step()
                events += 1
            dma.run_out()
        except EmptySchedule:
            raise DeadlockError(max(env.now, dma.run_out()), self.waiting()) from None
        for core in self.cluster.cores:
            core.lose("idle", self.fc.ended_cycles)
            core.lose("offload", cycles)
        return RunResult(cycles, events, self._effects.log)

    def replay(self, effect_log: EffectLog) -> None:
        """Apply the recorded effects of a run again, in order and without simulating time."""
        plan = next((plan for log, plan in self._plans if log is effect_log), None)
        if plan is None:
            plan = ReplayPlan(effect_log, self._effects.storages)
            # Two programs may take turns: a mini-batch and the update.
            self._plans = [*self._plans[-1:], (effect_log, plan)]
        plan.probe = self._effects.probe
        plan.run()
