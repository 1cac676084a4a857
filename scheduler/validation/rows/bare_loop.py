# SPDX-License-Identifier: Apache-2.0
"""Tile loops and waits that drive the DMA by bare stores, as the rows measured on RTL did.

The order of pushes, waits and forks is that of the product's own tile loop (`scheduler.programs`); what the
measured program executes between them is the listing `configs/listings/tile-loop.S`, priced by the cost model
of the machine part by part. No cycle count is written here.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import pairwise

from arch.pricing.code_fetch import code_lines as lines_of_work
from arch.pricing.code_fetch import private_miss_share
from arch.pricing.team_cost_model import TeamCostModel
from arch.spec.isa import CoreWork, Node, TeamWork
from arch.spec.program import Action, Compute, DmaStart, DmaWait
from arch.spec.timing import SocTiming
from configs.errors import ConfigError
from configs.suggest import check_known
from configs.values import replace
from scheduler.validation.rows.machines import with_part
from scheduler.validation.rows.measured_code import (
    BARE_PUSH_CYCLES,
    BARE_PUSH_NEXT_CYCLES,
    code_at_hand,
    master_code,
)
from trainlib.kernels.assembly import listing_to_nest
from trainlib.kernels.expand import Expander
from trainlib.kernels.nest import parse_nest

LISTING = "tile-loop.S"
"""The file in configs/listings."""

NONE = "none"
"""The kernel of rows that only returns from every core."""

INPUTS = 2
"""Operands of a tile that come from L2, A and B."""

PORT_BUSY_CYCLES = BARE_PUSH_NEXT_CYCLES - BARE_PUSH_CYCLES
"""After the last word of a command the control port of the DMA grants nothing before the command has reached
its queue: states BUSY and BUSY2 of pulp-platform/mchan 3f2ae92, ctrl_fsm.sv. The next identifier is read so
much later.
"""

WIDE_TARGET_CYCLES = 0.5
"""What a jump or taken branch to a 32 bit instruction costs more, in the mean: where in a word the measured
program began is not known, so half of these targets lie across two words and cost a cycle (rtl-micro
beq_taken_next_unaligned and j_next_unaligned).
"""

LATE_RETURN_CYCLES = 1
"""A return by a register whose load is one stage ahead (jr_stall of riscv_controller.sv of the RI5CY; between
neighbours rtl-micro auipc_jalr has it).
"""

_PART = re.compile(r"#@ part ([^;]+?)(?:; wide targets (\d+))?(?:; late returns (\d+))?")


@dataclasses.dataclass(frozen=True, slots=True)
class ListingPart:
    """A part of a listing: its instructions, and what its jumps cost beside them, in the mean."""

    body: tuple[Node, ...]
    jumps_cycles: float


@cache
def parts(file: str = LISTING) -> Mapping[str, ListingPart]:
    """The parts of a listing by name. Raises ConfigError with ``file:line``."""
    path = files("configs").joinpath("listings", file)
    by_name: dict[str, ListingPart] = {}
    name, first_line, lines, jumps_cycles = "", 1, [], 0.0
    for number, line in enumerate([*path.read_text(encoding="utf-8").split("\n"), "#@ part end"], start=1):
        match = _PART.fullmatch(line.strip())
        if match is None:
            lines.append(line)
            continue
        if match[1] in by_name:
            message = f"there are two lines '#@ part {match[1]}'"
            raise ConfigError(message, where=f"{path}:{number}", cure="rename one of the two parts")
        nest = parse_nest(listing_to_nest("\n".join(lines), str(path), first_line), str(path), first_line)
        body = Expander(nest, f"{path}:{first_line}", 4).core_work({}, {}, 0).body
        if name:
            by_name[name] = ListingPart(body, jumps_cycles)
        elif body:
            raise ConfigError(
                "the instruction belongs to no part",
                where=f"{path}:{number}",
                cure="add '#@ part NAME' before",
            )
        name, first_line, lines = match[1], number + 1, []
        jumps_cycles = int(match[2] or 0) * WIDE_TARGET_CYCLES + int(match[3] or 0) * LATE_RETURN_CYCLES
    return by_name


def code(*names: str) -> CoreWork:
    """Parts one after the other. Raises ConfigError for a part the listing does not have."""
    by_name = parts()
    for name in names:
        check_known(name, by_name, f"unknown part '{name}'", f"configs/listings/{LISTING}", error=ConfigError)
    return CoreWork(tuple(node for name in names for node in by_name[name].body))


def code_cycles(timing: SocTiming, *names: str) -> int:
    """Cycles the master spends on parts one after the other; its code is where it was."""
    (cost,) = _cost_model(timing).price(TeamWork("tile loop", (code(*names),))).cores
    return cost.cycles


@cache
def _cost_model(timing: SocTiming) -> TeamCostModel:
    """With a private cache that holds all code: what a turn waits for code is added by `bare_loop`."""
    return TeamCostModel(code_at_hand(timing))


@cache
def code_lines(name: str, line_bytes: int) -> float:
    """Lines of the instruction cache a part takes: its share of the code of the listing."""
    by_name = parts()
    instructions = sum(len(part.body) for part in by_name.values())
    return _code_bytes(LISTING) * len(by_name[name].body) / instructions / line_bytes


@cache
def _code_bytes(file: str) -> int:
    text = files("configs").joinpath("listings", file).read_text(encoding="utf-8")
    match = re.search(r"^# code_bytes (\d+)$", text, re.MULTILINE)
    if match is None:
        where = f"configs/listings/{file}"
        raise ConfigError("the line '# code_bytes N' is missing", where=where, cure="add the line")
    return int(match[1])


def bare_driver(timing: SocTiming) -> SocTiming:
    """The machine whose master programs the DMA and waits for it with the code of the listing."""
    unit = timing.event_unit
    command_cycles = code_cycles(timing, "command")
    woken_cycles = code_cycles(timing, "woken") + int(parts()["woken"].jumps_cycles)
    return with_part(
        timing,
        "dma",
        program_1d_cycles=command_cycles,
        program_next_cycles=command_cycles,
        transfer_code_1d_cycles=0,
        transfer_code_2d_cycles=0,
        wait_check_cycles=code_cycles(timing, "look"),
        wait_done_cycles=code_cycles(timing, "look", "over"),
        wait_sleep_min_cycles=code_cycles(timing, "look", "sleep") + unit.event_load_cycles + woken_cycles,
        wait_wake_cycles=unit.event_wake_cycles + woken_cycles,
    )


def bare_loop(
    actions: Sequence[Action], timing: SocTiming, buffering: str, *, returns: bool = False
) -> list[Action]:
    """The tile loop `actions` of our own scheduler as the measured program carries it out.

    Between the actions the master executes the code of the listing. With `returns` the kernel returns from
    every core at once. Raises ConfigError for a listing that lacks a part.
    """
    return _BareLoop(timing, buffering).carried_out(_outputs_in_turn(actions), returns=returns)


class _BareLoop:
    """Walks through the actions of a schedule and collects what the master executes before each of them."""

    def __init__(self, timing: SocTiming, buffering: str) -> None:
        self._timing = timing
        self._name = buffering
        self._double = buffering == "double"
        self._done: list[Action] = []
        self._numbers: dict[int, int] = {}
        """Action of the schedule -> ours."""
        self._parts: list[str] = []
        """What was executed since the last action."""
        self._pushed = self._awaited = 0
        """Inputs of all tiles so far."""
        self._tiles_called = 0
        self._fetched: set[str] = set()
        """Parts whose code was executed since the last kernel."""
        self._missing = 0.0
        """Share of their lines that the kernel has pushed out of the private cache of the master."""
        self._owed_cycles = 0.0
        """Fraction of a cycle of waits for code and of jumps, not spent yet."""
        self._ahead = False
        """The inputs of the next tile are on their way."""

    def carried_out(self, actions: Sequence[Action], *, returns: bool) -> list[Action]:
        """All actions, numbered anew."""
        left = sum(isinstance(action, Compute) for action in actions)
        outputs: set[int] = set()
        awaited = 0
        self._missing = self._missing_share(actions)
        self._parts = [f"{self._name}: begin"]
        for action in actions:
            match action:
                case DmaStart() if action.commands[0].to_l1:
                    self._push_input(action)
                case DmaWait() if action.transfer not in outputs:
                    self._wait_for_input(action)
                case Compute():
                    left -= 1
                    self._call(action, returns=returns)
                case DmaStart():
                    if self._double and len(outputs) == awaited:
                        self._parts.append("double: no output is under way")
                    outputs.add(action.id)
                    self._push(action, "output")
                    self._parts.append("output pushed")
                    if self._double:
                        self._parts.append("double: turn" if left else "double: last turn")
                case DmaWait():
                    awaited += 1
                    if self._double and len(outputs) < self._tiles_called:
                        self._parts.append("double: an output is under way")
                    self._wait(action, "wait for one")
                    if not self._double:
                        self._parts.append("single: turn" if left else "single: last turn")
        self._execute()
        return self._done

    def _missing_share(self, actions: Sequence[Action]) -> float:
        """The master walks through loop and kernel in turn, as through one loop."""
        icache = self._timing.icache
        other = "single: " if self._double else "double: "
        lines = sum(code_lines(name, icache.line_bytes) for name in parts() if not name.startswith(other))
        teams = [action.team for action in actions if isinstance(action, Compute)]
        kernel = max((lines_of_work(team.cores[0], icache) for team in teams if team.cores[0]), default=0)
        return private_miss_share(math.ceil(lines) + kernel, icache)

    def _push_input(self, action: DmaStart) -> None:
        first = self._pushed % INPUTS == 0
        if first and not self._double:
            self._parts.append("single: before the inputs")
        elif first and self._pushed:
            self._parts.append("double: before the next inputs")
            self._ahead = True
        self._pushed += 1
        self._push(action, "first input" if first else "next input")
        if self._pushed % INPUTS == 0:
            self._parts.append("inputs pushed")
            if self._ahead:
                self._parts.append("double: next inputs pushed")

    def _wait_for_input(self, action: DmaWait) -> None:
        if self._awaited % INPUTS == 0:
            self._parts.append("wait for the inputs")
        self._awaited += 1
        self._wait(action, "wait for one")
        if self._awaited % INPUTS == 0:
            self._parts.append("inputs are there")

    def _call(self, action: Compute, *, returns: bool) -> None:
        if self._double and not self._ahead:
            self._parts.append("double: no next inputs")
        self._ahead = False
        self._parts.append("arguments")
        self._execute()
        self._tiles_called += 1
        self._fetched = set()
        team = action.team
        if returns:
            team = TeamWork(NONE, (code("return at once"),) * len(team.cores))
        self._add(replace(action, team=team))

    def _push(self, action: DmaStart, part: str) -> None:
        self._parts.append(part)
        cycles = self._spent_cycles("command")
        if self._done and isinstance(self._done[-1], DmaStart):
            cycles = max(cycles, PORT_BUSY_CYCLES)
        self._add(replace(action, code_cycles=cycles))

    def _wait(self, action: DmaWait, part: str) -> None:
        self._parts.append(part)
        self._execute("look", "over", "sleep", "woken")
        self._add(replace(action, transfer=self._numbers[action.transfer]))

    def _execute(self, *driver: str) -> None:
        """The master executes what has been collected, and comes to parts of the driver."""
        cycles = self._spent_cycles(*driver)
        self._done += master_code(len(self._done), cycles)

    def _spent_cycles(self, *driver: str) -> int:
        """Cycles of what has been collected, of its jumps, and of waits for its and the `driver`'s code."""
        names, self._parts = tuple(self._parts), []
        fresh = {*names, *driver} - self._fetched
        self._fetched |= fresh
        icache = self._timing.icache
        lines = sum(code_lines(name, icache.line_bytes) for name in sorted(fresh))
        self._owed_cycles += lines * self._missing * icache.private_refill_stall_cycles
        self._owed_cycles += sum(parts()[name].jumps_cycles for name in names)
        whole = int(self._owed_cycles)
        self._owed_cycles -= whole
        return code_cycles(self._timing, *names) + whole

    def _add(self, action: Action) -> None:
        """The actions are in the order in which the master carries them out, so none depends on another."""
        self._numbers[action.id] = len(self._done)
        self._done.append(replace(action, id=len(self._done), deps=()))


def _outputs_in_turn(actions: Sequence[Action]) -> list[Action]:
    """The actions, each output pushed after the wait for the one before.

    The measured program keeps the identifier of one output; our schedule waits right after the next push.
    """
    turned = list(actions)
    for index, (action, following) in enumerate(pairwise(actions)):
        if (
            isinstance(action, DmaStart)
            and isinstance(following, DmaWait)
            and not action.commands[0].to_l1
            and following.transfer != action.id
        ):
            turned[index : index + 2] = following, action
    return turned
