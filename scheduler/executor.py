"""Carries out a schedule on a simulated SoC: values in, one timed iteration, any number of replayed ones."""

from __future__ import annotations

from collections.abc import Mapping

from arch.pricing import Pricer
from arch.program import Array, Place
from arch.soc import RunResult, Soc
from arch.timing import SocTiming
from configs.errors import InputError
from scheduler.schedule import HOME_LEVEL, Schedule
from traces.events import NullTracer, Tracer
from trainlib.reference import check_given


class Executor:
    """Runs the program of a schedule on a `Soc` of its own.

    The first iteration is simulated event by event; later ones replay the recorded order of its DMA copies
    and kernels on new inputs, which gives the numbers of an iteration without its timing. Memory contents
    persist, so updated weights carry over.
    """

    def __init__(
        self,
        schedule: Schedule,
        timing: SocTiming,
        pricer: Pricer,
        tracer: Tracer | None = None,
        *,
        functional: bool = True,
    ) -> None:
        self.schedule = schedule
        self.functional = functional
        self.soc = Soc(timing, pricer, tracer or NullTracer())
        self._result: RunResult | None = None

    def place(self, name: str) -> Place:
        """Where the tensor `name` lives in its home memory (an alias: where its target lives)."""
        graph = self.schedule.graph
        tensor = graph.tensors[name]
        storage = self.schedule.home[graph.storage_of(name)]
        return Place(HOME_LEVEL, storage.address, tensor.shape, tensor.dtype, name)

    def load(self, values: Mapping[str, Array]) -> None:
        """Put tensors into the home memory. Raises `InputError` for an unknown name and for values that
        `trainlib.reference.check_given` refuses: another shape, or NaN.
        """
        for name in values:
            if name not in self.schedule.graph.tensors:
                raise InputError(f"no tensor {name!r} in {self.schedule.graph.name}")
        check_given(self.schedule.graph, values)
        for name, array in values.items():
            self.soc.load(self.place(name), array)

    def fetch(self, name: str) -> Array:
        """A copy of a tensor as it lies in its home memory now."""
        return self.soc.fetch(self.place(name))

    def simulate(self) -> RunResult:
        """Simulate one iteration in time, numbers included unless the executor was made non-functional."""
        self._result = self.soc.run(self.schedule.program, effects=self.functional)
        return self._result

    def replay(self) -> None:
        """Compute one more iteration in the recorded order of effects, without simulating time."""
        if self._result is None:
            self.simulate()
        else:
            self.soc.replay(self._result.effect_log)
