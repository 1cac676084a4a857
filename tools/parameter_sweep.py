# SPDX-License-Identifier: Apache-2.0
"""What every parameter of a SoC file does: values that nobody meant through programs that use it.

    python -m tools.parameter_sweep [PARAMETER ...]     the table of all, or of some

A value is refused, or the program takes other cycles. A new parameter is swept without an entry here, if a
program notices it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from arch.blocks.event_unit import EventUnit
from arch.blocks.soc import Soc
from arch.pricing.code_caches import COLD, CodeCaches
from arch.pricing.team_cost_model import TeamCostModel
from arch.spec.isa import CoreWork, Instruction, Loop, Op, Stream, TeamWork
from arch.spec.program import (
    Action,
    CodePiece,
    Command,
    Compute,
    DmaStart,
    DmaWait,
    Program,
    ProgramCode,
    TeamTransfer,
    UdmaCommand,
    UdmaStart,
    UdmaWait,
)
from arch.spec.soc_config import CHOICES, load_soc
from arch.spec.timing import SocTiming
from arch.systemc.environment import Environment
from arch.systemc.module import Body, Module, Thread
from barvinn.machine.timing import timing_of
from barvinn.mapping.layers import LayerShape
from barvinn.mapping.network import RealLayer
from barvinn.run import barvinn
from configs.errors import ConfigError, DoesNotFitError, InputError, PulptrainError
from configs.library import PULP
from configs.model_file import load_model
from configs.parameters import Parameter, load_parameters
from scheduler.options import WHOLE_OPS, ScheduleOptions
from scheduler.schedule import build_schedule
from tools.pages.page import table
from trainlib.training.phases import build_training_phases

VALUES = (0, -1, 3, 7, 1000, 10**9)
"""What every number of a SoC file is set to."""

Overrides = Mapping[str, str]

KIB = 1024

MOST = 8
"""Cores of programs of more than one."""


def code(timing: SocTiming) -> int:
    """Loops of 0.4, 3 and 6 KiB of code on one core, and what their first calls wait for."""
    cycles, caches = 0, CodeCaches(1, timing.icache)
    for lines in (24, 192, 384):
        work = TeamWork(f"loop of {lines}", (CoreWork((Loop(20, _straight(4 * lines)),)),))
        cycles += _price(timing, work) + sum(caches.call(work).values())
    return cycles


def instructions(timing: SocTiming) -> int:
    """One core, a loop of every class of instruction, alone and with its result used next."""
    body: list[Instruction] = []
    for op in Op:
        taken = 0.5 if op is Op.BRANCH else 0.0
        body += [Instruction(op, 1, taken_fraction=taken), Instruction(Op.ALU, 2, (1,)), Instruction(op, 3)]
    body += [Instruction(Op.LOAD, 4, (), 0), Instruction(Op.ALU, 5, (4,))]  # across a word
    body += [Instruction(Op.FDIV, 6), *_straight(30), Instruction(Op.ALU, 7, (6,))]
    return _price(timing, _team(1, Loop(10, tuple(body)), streams=(Stream(2, (4,)),)))


def mutex(timing: SocTiming) -> int:
    """All cores lock the mutex and free it again."""
    unit = EventUnit(Module(None, "probe"), "event_unit", timing.event_unit)
    env = Environment()
    unit.start(env)

    def visit(core: int) -> Body:
        yield from unit.mutex.lock(core, Thread("probe"))
        yield from unit.mutex.unlock(core)

    for core in range(timing.cores):
        env.process(visit(core))
    env.run()
    return env.now


def fork(timing: SocTiming) -> int:
    """A kernel of no instructions, on the master alone and on all cores."""
    return _cycles(timing, [Compute(0, team=_team(1)), Compute(1, team=_team(timing.cores))])


def transfers(timing: SocTiming) -> int:
    """The DMA in both directions: long, short, of many lines, queued; waits that sleep or find it over."""
    actions: list[Action] = []
    for to_l1 in (True, False):
        lines = Command(to_l1, 0, "l2", 6, 8, 64, 512)
        series = tuple([Command(to_l1, 8 * part, "l2", 8 * part, 8) for part in range(12)])
        for commands in ((Command(to_l1, 2, "l2", 4, 24 * KIB),), (lines,), series):
            begun = len(actions)
            actions.append(DmaStart(begun, commands=commands))
            actions.append(DmaWait(begun + 1, transfer=begun))
        for gap in (0, 4, 8, 12, 16, 20, 30, 400):
            begun = len(actions)
            actions.append(DmaStart(begun, commands=(Command(to_l1, 0, "l2", 0, 8),)))
            actions.append(Compute(begun + 1, team=_team(1, *_straight(gap)), fork=False))
            actions.append(DmaWait(begun + 2, transfer=begun))
        queued = tuple([Command(to_l1, 0, "l2", KIB * part, KIB) for part in range(6)])
        begun = len(actions)
        actions.append(DmaStart(begun, commands=queued))
        actions.append(Compute(begun + 1, team=_team(1, Loop(10, _straight(100))), fork=False))
        actions.append(DmaWait(begun + 2, transfer=begun))
    return _cycles(timing, actions)


def staging(timing: SocTiming) -> int:
    """The uDMA: transfers in a row while the core goes on, one that is over when it is waited for."""
    commands = tuple([UdmaCommand(True, 4 * KIB * part, KIB * KIB, 3000) for part in range(6)])
    actions: list[Action] = []
    for transfer, trips in ((commands, 100), (commands[:1], 100), (commands[:1], 0)):
        begun = len(actions)
        actions.append(UdmaStart(begun, commands=transfer))
        actions.append(Compute(begun + 1, team=_team(1, Loop(trips, _straight(400))), fork=False))
        actions.append(UdmaWait(begun + 2, transfer=begun))
    return _cycles(timing, actions)


def fpus(timing: SocTiming) -> int:
    """Eight cores that do nothing but multiply and add."""
    return _price(timing, _team(MOST, Loop(20, _straight(10, Op.FMA))))


def dividers(timing: SocTiming) -> int:
    """Eight cores that divide."""
    return _price(timing, _team(MOST, Loop(20, _straight(4, Op.FDIV))))


def banks(timing: SocTiming) -> int:
    """Eight cores that go through the same words of L1, beside a transfer."""
    words = Loop(400, (Instruction(Op.LOAD, 1, (), 0), Instruction(Op.ALU)))
    begun = DmaStart(0, commands=(Command(True, 0, "l2", 0, 16 * KIB),))
    kernel = Compute(1, team=_team(MOST, words, streams=(Stream(0, (4,)),)))
    return _cycles(timing, [begun, kernel, DmaWait(2, transfer=0)])


def own_transfers(timing: SocTiming) -> int:
    """Every core moves data by itself."""
    commands = tuple([(Command(True, 64 * core, "l2", 0, 64),) * 2 for core in range(MOST)])
    return _cycles(timing, [TeamTransfer(0, commands=commands)])


def whole_ops(timing: SocTiming) -> int:
    """A training iteration of simple-mlp whose ops are not cut: nothing is left to choose."""
    return _iteration("simple-mlp", timing, WHOLE_OPS)


def tiles(timing: SocTiming) -> int:
    """A training iteration of tutorial-cnn, its tiles chosen for the machine."""
    return _iteration("tutorial-cnn", timing, 2)


def own_code(timing: SocTiming) -> int:
    """Core 0 executes 3 KiB of code twice, from empty caches, while the DMA reads 8 KiB and short lines.

    The code is the program's own, so that nothing of it is in the price of a kernel.
    """
    reads = (Command(True, 0, "l2", 0, 8192), Command(True, 8192, "l2", 8192, 16, 32, 32))
    code = CodePiece(1 << 16, 3072, 4)
    actions: list[Action] = [DmaStart(number, commands=(read,)) for number, read in enumerate(reads)]
    actions += [Compute(number, team=_team(1), fork=False) for number in (2, 3)]
    program = Program("probe", tuple(actions), ProgramCode([(), (), (code,), (code,)], code.size_bytes))
    soc = Soc(timing, TeamCostModel(timing), code_start=COLD)
    soc.run(program, effects=False)
    return soc.fc.ended_cycles


def _straight(count: int, op: Op = Op.ALU) -> tuple[Instruction, ...]:
    return (Instruction(op),) * count


def _team(cores: int, *body: Instruction | Loop, streams: tuple[Stream, ...] = ()) -> TeamWork:
    return TeamWork("probe", (CoreWork(body, streams),) * cores)


def _price(timing: SocTiming, team: TeamWork) -> int:
    return TeamCostModel(timing).price(team).cycles


def _cycles(timing: SocTiming, actions: Sequence[Action]) -> int:
    return Soc(timing, TeamCostModel(timing)).run(Program("probe", tuple(actions)), effects=False).cycles


def _iteration(model: str, timing: SocTiming, depth: int) -> int:
    graph = build_training_phases(load_model(model)).graphs[0]
    cost_model = TeamCostModel(timing)
    program = build_schedule(graph, timing, cost_model, ScheduleOptions(buffer_depth=depth)).program
    return Soc(timing, cost_model).run(program, effects=False).cycles


def jobs(overrides: Overrides) -> int:
    """Two convolutions on all units of BARVINN."""
    return _barvinn(**overrides)[0]


def polling(overrides: Overrides) -> int:
    """The same under a program that only polls."""
    return _barvinn(**{"hart.handler_instructions": "0", **overrides})[0]


def seconds(overrides: Overrides) -> float:
    """The time they take."""
    return _barvinn(**overrides)[1]


def numbers(overrides: Overrides) -> int:
    """A sum over the numbers they come to."""
    return _barvinn(**overrides)[2]


@cache
def _barvinn(**overrides: str) -> tuple[int, float, int]:
    outcome = barvinn(_layers(), aprec=2, wprec=2, oprec=2, units=4, overrides=overrides)
    output = outcome.output.ravel()
    places = np.arange(1, output.size + 1)
    return outcome.summary["cycles"], outcome.summary["seconds"], int(output @ places)


@cache
def _layers() -> tuple[RealLayer, ...]:
    rng = np.random.default_rng(0)
    layers = []
    for name, ci, co, side in (("conv1", 64, 256, 3), ("conv2", 256, 64, 1)):
        shape = LayerShape(name, "conv", ci, 4, 4, co, (side, side), (1, 1), (side // 2,) * 4)
        weights = rng.integers(-2, 2, (co, ci, side, side)).astype(np.float64)
        gain, offset = rng.uniform(0.01, 0.1, co), rng.uniform(0, 3, co)
        layers.append(RealLayer(shape, weights, gain, offset, relu=True))
    return tuple(layers)


def on_soc(probe: Callable[[SocTiming], int]) -> Callable[[Overrides], int]:
    """A program of pulp-open with other values."""
    return lambda overrides: probe(_soc(**overrides))


@cache
def _soc(**overrides: str) -> SocTiming:
    return load_soc(overrides=overrides)


PROBES: Mapping[str, Mapping[str, Callable[[Overrides], float]]] = {
    "pulp-open": {
        probe.__name__.replace("_", " "): on_soc(probe)
        for probe in (
            *(code, instructions, mutex, fork, transfers, staging),
            *(fpus, dividers, banks, own_transfers, whole_ops, tiles, own_code),
        )
    },
    "barvinn": {"jobs": jobs, "polling": polling, "numbers": numbers, "seconds": seconds},
}
"""By SoC and name. The first that notices a parameter shows what it does: programs of one flow, then those
whose cores and transfers get into each other's way, those that are planned, and one that fetches its code."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a value: `figure` of the program (cycles, of some another), or the error.

    `accepted` says that the SoC file may have the value; then it is the program that was refused.
    """

    value: str
    figure: float | None = None
    error: PulptrainError | None = None
    accepted: bool = True

    @property
    def text(self) -> str:
        """For a table."""
        if self.figure is not None:
            return f"{self.figure:,}" if self.figure >= 1 else f"{self.figure:.3g}"
        what = "program " if self.accepted else ""
        return what + ("refused" if self.error is None or self.error.exit_code == 2 else "does not fit")


@dataclass(frozen=True, slots=True)
class Row:
    """A parameter, the program that notices it ("": none does), and what comes of values.

    `before` is the program with the value of the file, `values` are those of `VALUES`, `others` half and
    twice the value of the file, or its other words.
    """

    parameter: Parameter
    probe: str
    before: Outcome
    values: tuple[Outcome, ...]
    others: tuple[Outcome, ...]


def parameters(soc: str) -> Mapping[str, Parameter]:
    """Those of a SoC file."""
    return load_parameters(soc, machine="barvinn" if soc == "barvinn" else PULP)


def row(soc: str, path: str) -> Row:
    """What comes of every value of a parameter."""
    parameter = parameters(soc)[path]
    today = parameter.value
    if isinstance(today, bool | str):
        values: list[str] = []
        others = list(CHOICES.get(path, ("on", "off")))
    else:
        values = [str(value) for value in VALUES]
        others = [str(type(today)(today / 2)), str(today * 2 or 1)]
    refused = {value: error for value in (*values, *others) if (error := _refusal(soc, {path: value}))}
    best = Row(parameter, "", Outcome(""), (), ())
    for probe in PROBES[soc]:
        before = _outcome(soc, probe, {}, "")
        found = [
            tuple(
                Outcome(value, None, refused[value], accepted=False)
                if value in refused
                else _outcome(soc, probe, {path: value}, value)
                for value in each
            )
            for each in (values, others)
        ]
        # 0 often stands for none, whatever the program.
        telling = [each for each in (*found[0], *found[1]) if each.value != "0" or path.endswith("_cycles")]
        if any(each.figure not in (None, before.figure) for each in telling):
            return Row(parameter, probe, before, *found)
        if not best.values or (not best.probe and any(each.error and each.accepted for each in telling)):
            noticed = any(each.error and each.accepted for each in telling)
            best = Row(parameter, probe if noticed else "", before, *found)
    return best


def _refusal(soc: str, overrides: Overrides) -> PulptrainError | None:
    """Why the SoC cannot have these values."""
    try:
        if soc == "barvinn":
            timing_of(load_parameters(soc, overrides=overrides, machine=soc))
        else:
            _soc(**overrides)
    except (ConfigError, DoesNotFitError) as error:
        return error
    return None


@cache
def _known(soc: str, probe: str, value: str, *overrides: tuple[str, str]) -> Outcome:
    try:
        return Outcome(value, PROBES[soc][probe](dict(overrides)))
    except (InputError, DoesNotFitError) as error:
        return Outcome(value, None, error)


def _outcome(soc: str, probe: str, overrides: Overrides, value: str) -> Outcome:
    return _known(soc, probe, value, *overrides.items())


def text(soc: str, paths: Sequence[str] = ()) -> str:
    """The table of a SoC file, as Markdown."""
    rows = []
    for path in paths or parameters(soc):
        found = row(soc, path)
        cells = [outcome.text for outcome in (found.before, *found.values)]
        cells += [""] * (1 + len(VALUES) - len(cells))
        others = ", ".join(f"{outcome.value}: {outcome.text}" for outcome in found.others)
        rows.append((f"`{path}`", str(found.parameter.value), found.probe or "none", *cells, others))
    titles = ("parameter", "value", "program", "as it is", *map(str, VALUES), "others")
    return table(titles, rows)


def main(paths: Sequence[str]) -> int:
    """Print the table of each machine."""
    for soc in PROBES:
        mine = [path for path in paths if path in parameters(soc)]
        if mine or not paths:
            print(f"{soc}\n\n{text(soc, mine)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
