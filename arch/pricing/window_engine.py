# SPDX-License-Identifier: Apache-2.0
"""Inner loops of the window: what one core asks for, and who of all cores gets it when.

Functions over flat tables of integers and nothing else, so that one source runs as plain Python (tables are
lists) and compiled by Numba (tables are int64 arrays), with equal results. `arch.pricing.window` chooses.

A trace is what a core asks for in its window, item after item. It depends on nothing but the core's own work,
so it is laid out once (`lay_out`) and then run against the other cores (`advance`), from any start. An item
is `cycles since the item before << CODE_BITS | code`. A code below the number of banks asks for that bank,
the next two for the FPU and the div/sqrt unit; all others are the entries of `Program.specials`.

Plain Python pays for calls and for names that are not local: what is done for every item stands in the loop.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from arch.pricing.scoreboard import CROSSING, WHOLE_WORDS

CODE_BITS = 16
CODE = (1 << CODE_BITS) - 1
"""Bits of an item that are its code."""

LOOP, NEXT, EMIT, BRANCH, ACCESS = range(5)
"""Operations of a window program, see `arch.pricing.window_program`."""

OPERATION_FIELDS = 5

END, MISALIGNED, MARK, MULTIPLY, SET, WAIT = range(6)
"""Special items, (kind, x, y): the core has done its share; x cycles are lost at a word border; loop x begins
its measured iterations, or has ended and its counters are multiplied; the value of register x comes in y
cycles; wait for the value of register x, as counter y."""

COUNTERS = 8
"""Of every core: waiting for banks, for FPUs and dividers, misaligned accesses, and stalls whose length
depends on the waiting before them (load_use, multicycle, fpu and divider); of both what is the divider's."""

WAIT_BANKS, WAIT_FPUS, WAIT_MISALIGNED, WAIT_LOAD_USE, WAIT_MULTICYCLE, WAIT_FPU_LATENCY = range(6)
WAIT_DIVIDERS, WAIT_DIVIDER_LATENCY = 6, 7

NEVER = 1 << 62

INDEX = (1 << 48) - 1
"""Bits of an index: compiled code need not ask whether one of these counts from the end."""


CORE = 63
"""Bits of the number of a core."""

DAYS = 64
"""Cycles in the calendar of `advance`."""

DAY = DAYS - 1
"""Bits of a cycle that are its day in the calendar."""

MAX_LEAVES = 36
"""Requesters a bank can tell apart under round robin."""

LOW_BANKS = 31
"""Bits of the number of a bank by which requests are told apart before anybody looks more closely."""

PORT_FIELDS = 6

PORT_CYCLE, PORT_DIRECTION, PORT_WORDS, PORT_BEATS, PORT_LEFT, PORT_GAP = range(PORT_FIELDS)
"""Of a DMA port: the cycle of its next request, its direction; the others under round robin only, where a
direction is one port: words of the beat under way that wait, as bits, beats in a burst and those left of it,
idle cycles behind it."""

STATES = 5

RUNNING, SOON, PARKED, NEXT_FPU, NEXT_DIV = range(STATES)
"""Of `Requests.state`: cores that have not ended; those of them that are in the calendar or wait for a bank;
bits of those whose item is a calendar away or more; whose turn it is among pooled FPUs and div/sqrt units.
Units of a pool take turns: grants never go back in time, so the next in turn is the one free first."""

Ints = Any
"""A list of int, or an int64 array."""


class Code(NamedTuple):
    """A window program on a machine, for any trip counts and addresses.

    `shared`: whether banks are. `misaligned` is the code of the MISALIGNED item; those of MARK and MULTIPLY
    of every loop follow. `slots`: per slot (place of its base in `numbers`, place behind its last stride,
    divisor, modulus), the last two turn bytes into what the banks repeat in. `moves`: (slot, place of its
    stride), those of loop i from `moves_from[i]` on.
    """

    word_bytes: int
    banks: int
    shared: int
    branch_stall_cycles: int
    misaligned_stall_cycles: int
    misaligned: int
    operations: Ints
    slots: Ints
    moves: Ints
    moves_from: Ints


class Rules(NamedTuple):
    """How the units of a machine are granted.

    `banks_turn` and `fpus_turn` are the cores among which the priority goes round, or 0. An FPU is taken for
    `fpu_cycles`, a div/sqrt unit for `div_cycles`. `pooled`: FPUs take turns. Banks (a power of two), FPUs
    and div/sqrt units are numbered through: `fpus` is the first FPU, `divs` the first div/sqrt unit, `units`
    behind the last.

    `fair` is 0 if a bank serves the oldest request first; then a request knows its turn at once. Otherwise
    the banks are round robin: a request waits until the arbiter of its bank, a tree of 2^`levels` leaves,
    picks it, which is settled cycle by cycle. Core c is leaf c; word i of a beat of a direction of the DMA is
    leaf `first_leaf` + direction x `direction_leaves` + i modulo `direction_leaves`. A beat has `beat_words`,
    which all must be through before the next. `mixed`: banks and FPUs both serve the oldest request first.
    """

    banks_turn: int
    fpus_turn: int
    fpu_cycles: int
    pooled: int
    div_cycles: int
    fpus: int
    divs: int
    units: int
    fair: int
    first_leaf: int
    direction_leaves: int
    beat_words: int
    levels: int
    mixed: int


class Requests(NamedTuple):
    """Who asks for what and when.

    By number of the core: `at` is the place of its next item in `trace`, `when` the cycle of that item
    (NEVER: the core takes no part; at the end: the cycle in which it ended). `waited` has `COUNTERS` of every
    core. `free` says from when on every unit is free. `pointers` has, under round robin, that of every
    bank. `calendar` has the bits of the cores whose next item is less than `DAYS` cycles away, by cycle
    modulo `DAYS`: first those of most items, then those that ask for a round robin bank. `state` has
    `STATES` numbers.
    """

    trace: Ints
    at: Ints
    when: Ints
    waited: Ints
    free: Ints
    pointers: Ints
    calendar: Ints
    state: Ints


class Specials(NamedTuple):
    """The (kind, x, y) of special items, the registers they speak of, and where those of every core begin."""

    items: Ints
    items_at: Ints
    registers: Ints
    registers_at: Ints


class Team(NamedTuple):
    """The traces of all cores, and what becomes of them.

    By number of the core: `fpu_of` is its FPU, `loop_at` where its part of `loops` begins (per loop: measured
    iterations, iterations not executed). `marks` has `COUNTERS` of every loop. `ports` has `PORT_FIELDS` of
    every DMA port, `served` (words, cycles they took) of both directions of the DMA.
    """

    requests: Requests
    specials: Specials
    fpu_of: Ints
    loops: Ints
    loop_at: Ints
    marks: Ints
    ports: Ints
    served: Ints


def lay_out(  # noqa: PLR0912, PLR0915 - one loop over every operation
    code: Code, numbers: Ints, loops: Ints, scratch: Ints, trace: Ints, filled: int
) -> int:
    """Write the trace of one core to `trace` from index `filled` on; returns the index behind it.

    `numbers` are bases and strides of the slots. `loops`: per loop (iterations before the measured ones or
    -1, iterations). `scratch` holds a counter per loop, an address per slot, a phase per branch, and per loop
    where its second iteration begins and how many items the first has. From the third iteration on, loops
    that may be repeated (see `arch.pricing.window_program`) are the second one with its banks moved on.
    """
    operations, slots, moves, moves_from = code.operations, code.slots, code.moves, code.moves_from
    word, shared = code.word_bytes, code.shared
    mark = code.misaligned + 1
    address_at = len(moves_from) - 1
    phase_at = address_at + len(slots) // 4
    second_at = len(scratch) - 2 * address_at
    begin(slots, numbers, scratch, address_at)
    whole = 1
    for loop in range(address_at):
        if loops[2 * loop] >= 0:
            whole = 0
    gap = 0
    pc = 0
    while pc < len(operations):
        kind = operations[pc]
        gap += operations[pc + 1]
        first = operations[pc + 2]
        second = operations[pc + 3]
        third = operations[pc + 4]
        pc += OPERATION_FIELDS
        item = -1
        if kind == ACCESS:
            address = scratch[address_at + first]
            if second == WHOLE_WORDS:
                item = address
            elif shared:
                item = address // word
            if second == CROSSING and address % word + third > word:
                if shared:
                    trace[filled] = gap << CODE_BITS | item
                    filled += 1
                    gap = 0
                    item = (item + 1) % code.banks
                trace[filled] = gap << CODE_BITS | code.misaligned
                filled += 1
                gap = code.misaligned_stall_cycles
        elif kind == EMIT:
            item = first
        elif kind == NEXT:
            done = scratch[first] + 1
            scratch[first] = done
            total = loops[2 * first + 1]
            begun = second_at + 2 * first
            if done == 1:
                scratch[begun + 1] = filled - scratch[begun]
                scratch[begun] = filled
            if done == 2 < total and whole and scratch[begun + 1] and operations[second - 1]:
                filled = repeat(trace, filled, scratch[begun + 1], total - 2, code.banks - 1)
                go_back(slots, moves, moves_from, numbers, scratch, first, 1)
            elif done < total:
                go_on(slots, moves, moves_from, numbers, scratch, first)
                gap += third
                pc = second
                if done == loops[2 * first]:
                    item = mark + 2 * first
            else:
                go_back(slots, moves, moves_from, numbers, scratch, first, done - 1)
                if loops[2 * first] >= 0:
                    item = mark + 2 * first + 1
        elif kind == LOOP:
            scratch[first] = 0
            scratch[second_at + 2 * first] = filled
            if loops[2 * first + 1] == 0:
                pc = second
            elif loops[2 * first] == 0:
                item = mark + 2 * first
        else:
            phase = scratch[phase_at + first] + second
            if phase >= third:
                phase -= third
                gap += code.branch_stall_cycles
            scratch[phase_at + first] = phase
        if item >= 0:
            trace[filled] = gap << CODE_BITS | item
            filled += 1
            gap = 0
    return filled


def repeat(trace: Ints, filled: int, items: int, times: int, low: int) -> int:
    """Write the last `items` so many `times` again; banks move on by as much as they did before.

    `low` are the bits of the number of a bank. Items for which they stay the same are no banks, or always the
    same one. Returns the index behind.
    """
    for place_of in range(filled - items, filled):
        item = trace[place_of]
        step = item - trace[place_of - items]
        place_at = place_of
        bank = item
        for _ in range(times):
            place_at += items
            bank += step
            trace[place_at] = item & ~low | bank & low
    return filled + items * times


def begin(slots: Ints, numbers: Ints, scratch: Ints, address_at: int) -> None:
    """Count addresses and strides in what the banks repeat in; every slot begins at its base."""
    for index in range(len(scratch)):
        scratch[index] = 0
    for slot in range(len(slots) // 4):
        divisor, modulus = slots[4 * slot + 2], slots[4 * slot + 3]
        first = slots[4 * slot]
        for place in range(first, slots[4 * slot + 1]):
            numbers[place] = numbers[place] // divisor % modulus
        scratch[address_at + slot] = numbers[first]


def go_on(slots: Ints, moves: Ints, moves_from: Ints, numbers: Ints, scratch: Ints, loop: int) -> None:
    """Move every address by its stride of `loop`."""
    address_at = len(moves_from) - 1
    for move in range(moves_from[loop], moves_from[loop + 1]):
        slot = moves[2 * move]
        address = scratch[address_at + slot] + numbers[moves[2 * move + 1]]
        if address >= slots[4 * slot + 3]:
            address -= slots[4 * slot + 3]
        scratch[address_at + slot] = address


def go_back(
    slots: Ints, moves: Ints, moves_from: Ints, numbers: Ints, scratch: Ints, loop: int, times: int
) -> None:
    """Undo what `go_on` did so many `times`."""
    address_at = len(moves_from) - 1
    for move in range(moves_from[loop], moves_from[loop + 1]):
        slot = moves[2 * move]
        address = scratch[address_at + slot] - times * numbers[moves[2 * move + 1]]
        scratch[address_at + slot] = address % slots[4 * slot + 3]


def advance(rules: Rules, team: Team) -> None:
    """Run the traces of all cores together, cycle by cycle, until every core has ended."""
    requests, ports = team.requests, len(team.ports)
    calendar, state = requests.calendar, requests.state
    for core in range(len(requests.when)):
        if requests.when[core] < NEVER:
            state[RUNNING] += 1
            state[PARKED] |= 1 << core
    cycle = waiting = 0
    served = -1
    while state[RUNNING]:
        day = cycle & DAY
        if day == 0 and state[PARKED]:
            unpark(team, cycle)
        if calendar[day]:
            issue(rules, team, cycle)
        if rules.fair:
            fresh = calendar[DAYS + day]
            calendar[DAYS + day] = 0
            waiting |= fresh
            again = cycle == served
            served = cycle
            asking = not_served(team, cycle, fresh) if again else waiting
            beats = 0 if again else ports
            if asking or beats:
                waiting ^= serve(rules, team, cycle, asking, beats)
            if calendar[day]:
                # What follows a grant without a cycle between, such as the note when its value comes.
                continue
        elif ports:
            queue_words(rules, team, cycle)
        cycle += 1
        if state[SOON] == 0 and ports == 0 and state[RUNNING]:
            cycle = max(cycle, soonest(team) // DAYS * DAYS)


def unpark(team: Team, cycle: int) -> None:
    """Enter the parked cores whose item is less than a calendar away."""
    when, state = team.requests.when, team.requests.state
    state[SOON] = state[RUNNING]
    for core in range(len(when)):
        if state[PARKED] >> core & 1:
            if when[core] < cycle + DAYS:
                team.requests.calendar[when[core] & DAY] |= 1 << core
                state[PARKED] ^= 1 << core
            else:
                state[SOON] -= 1


def soonest(team: Team) -> int:
    """The first cycle in which a parked core has an item."""
    cycle = NEVER
    for core in range(len(team.requests.when)):
        if team.requests.state[PARKED] >> core & 1:
            cycle = min(cycle, team.requests.when[core])
    return cycle


def issue(  # noqa: PLR0912, PLR0915 - one loop over every item
    rules: Rules, team: Team, cycle: int
) -> None:
    """Every core with items of this `cycle` executes them, up to a bank that is round robin.

    The cores with priority come first. Where banks and FPUs give priority to different cores, all ask for
    banks before any asks for an FPU.
    """
    trace, at, when, waited, free, _, calendar, state = team.requests
    specials, special_at, registers, register_at = team.specials
    banks = rules.fpus
    fair = banks if rules.fair else 0
    mixed, fpu_of, more_cycles = rules.mixed, team.fpu_of, rules.fpu_cycles - 1
    first_special = banks + 2
    asking = calendar[cycle & DAY]
    calendar[cycle & DAY] = 0
    passes = 1 if rules.banks_turn == rules.fpus_turn else 2
    for number in range(passes):
        last = number + 1 == passes
        turn = rules.fpus_turn if last else rules.banks_turn
        left = asking
        first = 0
        if turn and asking & (asking - 1):
            first = cycle % turn
            left = (asking >> first | asking << (turn - first)) & ((1 << turn) - 1)
        while left:
            core = place(left) + first
            left &= left - 1
            if first and core >= turn:
                core -= turn
            core &= CORE
            position = at[core] & INDEX
            bit = 1 << core
            following = cycle
            while following == cycle:
                code = trace[position & INDEX] & CODE
                time = cycle
                if code < first_special:
                    if code < fair or (code >= banks and not last):
                        break
                    if mixed and code <= banks:
                        # A bank or an FPU, without a branch: nobody can guess which of them comes next.
                        fpu = 1 if code == banks else 0
                        unit = fpu_of[core]
                        if rules.pooled:
                            unit = state[NEXT_FPU]
                            turned = unit + 1 if unit + 1 < rules.divs else banks
                            state[NEXT_FPU] = unit + fpu * (turned - unit)
                        unit = (code + fpu * (unit - code)) & INDEX
                        time = max(free[unit], cycle)
                        free[unit] = time + 1 + fpu * more_cycles
                        waited[COUNTERS * core + fpu] += time - cycle
                    else:
                        time = ask_unit(rules, team, core, cycle, code)
                else:
                    special = special_at[core] + 3 * (code - first_special)
                    kind = specials[special]
                    x = specials[special + 1]
                    if kind == WAIT:
                        ready = registers[register_at[core] + x]
                        if ready > cycle:
                            counter = specials[special + 2]
                            waited[COUNTERS * core + counter] += ready - cycle
                            if counter == WAIT_DIVIDER_LATENCY:
                                waited[COUNTERS * core + WAIT_FPU_LATENCY] += ready - cycle
                            time = ready
                    elif kind == SET:
                        registers[register_at[core] + x] = cycle + specials[special + 2]
                    elif kind == END:
                        state[RUNNING] -= 1
                        state[SOON] -= 1
                        when[core] = cycle
                        asking ^= bit
                        break
                    else:
                        count(team, core, kind, x)
                position += 1
                at[core] = position
                item = trace[position & INDEX]
                following = time + (item >> CODE_BITS)
            if following > cycle:
                asking ^= bit
                if following < cycle + DAYS:
                    calendar[(DAYS if item & CODE < fair else 0) + (following & DAY)] |= bit
                else:
                    when[core] = following
                    state[PARKED] |= bit
                    state[SOON] -= 1
            elif code < fair:
                asking ^= bit
                calendar[DAYS + (cycle & DAY)] |= bit


def ask_unit(rules: Rules, team: Team, core: int, cycle: int, code: int) -> int:
    """A core asks for the bank, an FPU or a div/sqrt unit: the cycle in which it gets it."""
    waited, free, state, banks = team.requests.waited, team.requests.free, team.requests.state, rules.fpus
    if code < banks:
        unit, taken, counter = code, 1, WAIT_BANKS
    elif code == banks:
        unit, taken, counter = team.fpu_of[core] & INDEX, rules.fpu_cycles, WAIT_FPUS
        if rules.pooled:
            unit = state[NEXT_FPU] & INDEX
            state[NEXT_FPU] = unit + 1 if unit + 1 < rules.divs else banks
    else:
        unit, taken, counter = state[NEXT_DIV] & INDEX, rules.div_cycles, WAIT_FPUS
        state[NEXT_DIV] = unit + 1 if unit + 1 < rules.units else rules.divs
    ready = free[unit]
    if ready > cycle:
        waited[COUNTERS * core + counter] += ready - cycle
        if code > banks:
            waited[COUNTERS * core + WAIT_DIVIDERS] += ready - cycle
        cycle = ready
    free[unit] = cycle + taken
    return cycle


def enter(team: Team, core: int, cycle: int, time: int, fair: int) -> None:
    """The next item of `core`, so many cycles behind `time`, is due."""
    requests = team.requests
    item = requests.trace[requests.at[core] & INDEX]
    following = time + (item >> CODE_BITS)
    if following < cycle + DAYS:
        half = DAYS if item & CODE < fair else 0
        requests.calendar[half + (following & DAY)] |= 1 << core
    else:
        requests.when[core] = following
        requests.state[PARKED] |= 1 << core
        requests.state[SOON] -= 1


def count(team: Team, core: int, kind: int, x: int) -> None:
    """The special items that change nothing but counters of `core`."""
    waited, marks, loop = team.requests.waited, team.marks, team.loop_at[core] + x
    if kind == MISALIGNED:
        waited[COUNTERS * core + WAIT_MISALIGNED] += x
        return
    measured, rest = team.loops[2 * loop], team.loops[2 * loop + 1]
    for counter in range(COUNTERS):
        now = waited[COUNTERS * core + counter]
        if kind == MARK:
            marks[COUNTERS * loop + counter] = now
        else:
            before = now - marks[COUNTERS * loop + counter]
            waited[COUNTERS * core + counter] = now + (2 * before * rest + measured) // (2 * measured)


def queue_words(rules: Rules, team: Team, cycle: int) -> None:
    """Free DMA ports ask for their next words, behind the cores of this `cycle`; the oldest comes first."""
    ports, served, free = team.ports, team.served, team.requests.free
    for port in range(0, len(ports), PORT_FIELDS):
        if ports[port + PORT_CYCLE] == cycle:
            direction = 2 * ports[port + PORT_DIRECTION]
            bank = served[direction] % rules.fpus
            time = max(cycle, free[bank]) + 1
            free[bank] = time
            ports[port + PORT_CYCLE] = time
            served[direction] += 1
            served[direction + 1] = max(served[direction + 1], time)


def not_served(team: Team, cycle: int, asking: int) -> int:
    """Those of some cores whose bank has granted nothing in this `cycle`; the others wait for the next."""
    requests = team.requests
    left = asking
    while left:
        core = place(left) & CORE
        left &= left - 1
        if requests.free[requests.trace[requests.at[core] & INDEX] & CODE] > cycle:
            requests.waited[COUNTERS * core + WAIT_BANKS] += 1
            asking ^= 1 << core
    return asking


def serve(rules: Rules, team: Team, cycle: int, asking: int, ports: int) -> int:
    """Every round robin bank grants one request; which of the cores `asking` got theirs, as bits."""
    requests = team.requests
    trace, at, free, pointers = requests.trace, requests.at, requests.free, requests.pointers
    occupied = contested = 0
    left = asking
    while left:
        core = place(left) & CORE
        left &= left - 1
        bank = 1 << (trace[at[core] & INDEX] & CODE & LOW_BANKS)
        contested |= occupied & bank
        occupied |= bank
    if ports:
        contested |= ask_beats(rules, team, cycle, occupied)
    granted = asking
    if contested:
        granted = settle(rules, team, cycle, asking, contested)
    if ports:
        end_beats(rules, team, cycle, contested)
    left = granted
    while left:
        core = place(left) & CORE
        left &= left - 1
        bank = trace[at[core] & INDEX] & CODE
        free[bank] = cycle + 1
        if contested >> (bank & LOW_BANKS) & 1 == 0:
            pointers[bank] = core
        at[core] += 1
        enter(team, core, cycle, cycle, rules.fpus)
    return granted


def settle(rules: Rules, team: Team, cycle: int, asking: int, contested: int) -> int:
    """The arbiters of the banks `contested` pick one requester each; who of the cores `asking` is served.

    The others wait. A bit of `contested` stands for all banks that are equal in their low bits.
    """
    requests, ports, banks = team.requests, team.ports, rules.fpus
    trace, at, pointers = requests.trace, requests.at, requests.pointers
    granted = asking
    while contested:
        bank = place(contested)
        contested &= contested - 1
        while bank < banks:
            cores = 0
            left = asking
            while left:
                core = place(left) & CORE
                left &= left - 1
                if trace[at[core] & INDEX] & CODE == bank:
                    cores |= 1 << core
            asks = cores
            for port in range(0, len(ports), PORT_FIELDS):
                if word_of(rules, team, port, bank):
                    asks |= 1 << leaf(rules, team, ports[port + PORT_DIRECTION], bank)
            if asks:
                pointer = pointers[bank]
                winner = pick(asks, pointer, rules.levels)
                behind = asks >> (pointer + 1) << (pointer + 1)
                pointers[bank] = place(behind if behind else asks)
                left = cores & ~winner
                granted ^= left
                while left:
                    requests.waited[COUNTERS * place(left) + WAIT_BANKS] += 1
                    left &= left - 1
                for port in range(0, len(ports), PORT_FIELDS):
                    if winner == 1 << leaf(rules, team, ports[port + PORT_DIRECTION], bank):
                        requests.free[bank] = cycle + 1
                        ports[port + PORT_WORDS] ^= word_of(rules, team, port, bank)
            bank += LOW_BANKS + 1
    return granted


def word_of(rules: Rules, team: Team, port: int, bank: int) -> int:
    """The word of the beat under way that waits for a bank, as a bit, or 0."""
    word = (bank - team.served[2 * team.ports[port + PORT_DIRECTION]]) & (rules.fpus - 1)
    return team.ports[port + PORT_WORDS] & 1 << word if word < rules.beat_words else 0


def leaf(rules: Rules, team: Team, direction: int, bank: int) -> int:
    """Leaf of the word that a beat of a direction of the DMA has for a bank."""
    word: int = (bank - team.served[2 * direction]) & (rules.fpus - 1)
    if word >= rules.direction_leaves:  # seldom, and a division takes long
        word %= rules.direction_leaves
    return rules.first_leaf + direction * rules.direction_leaves + word


def ask_beats(rules: Rules, team: Team, cycle: int, occupied: int) -> int:
    """Directions of the DMA that begin a beat in this `cycle` ask for all its words.

    Which banks are contested by words of beats and others, whose banks are `occupied`.
    """
    ports = team.ports
    contested = 0
    for port in range(0, len(ports), PORT_FIELDS):
        if ports[port + PORT_CYCLE] == cycle and ports[port + PORT_WORDS] == 0:
            ports[port + PORT_WORDS] = (1 << rules.beat_words) - 1
        first = team.served[2 * ports[port + PORT_DIRECTION]]
        words = ports[port + PORT_WORDS]
        while words:
            bank = 1 << ((first + place(words)) & (rules.fpus - 1) & LOW_BANKS)
            words &= words - 1
            contested |= occupied & bank
            occupied |= bank
    return contested


def end_beats(rules: Rules, team: Team, cycle: int, contested: int) -> None:
    """Words of beats whose banks are not `contested` are through; behind the last comes the next beat.

    It begins in the cycle behind, or behind the gap between bursts.
    """
    ports, served, requests = team.ports, team.served, team.requests
    for port in range(0, len(ports), PORT_FIELDS):
        if ports[port + PORT_CYCLE] > cycle:
            continue
        direction = ports[port + PORT_DIRECTION]
        words = left = ports[port + PORT_WORDS]
        while left:
            bank = (served[2 * direction] + place(left)) & (rules.fpus - 1)
            if contested >> (bank & LOW_BANKS) & 1 == 0:
                requests.free[bank] = cycle + 1
                requests.pointers[bank] = leaf(rules, team, direction, bank)
                words ^= left & -left
            left &= left - 1
        ports[port + PORT_WORDS] = words
        if words == 0:
            served[2 * direction] += rules.beat_words
            served[2 * direction + 1] += cycle + 1 - ports[port + PORT_CYCLE]
            ports[port + PORT_CYCLE] = cycle + 1
            ports[port + PORT_LEFT] -= 1
            if ports[port + PORT_LEFT] == 0:
                ports[port + PORT_LEFT] = ports[port + PORT_BEATS]
                ports[port + PORT_CYCLE] += ports[port + PORT_GAP]


def pick(asks: int, pointer: int, levels: int) -> int:
    """Which bit of `asks` a tree of arbiters grants: where both sides ask, the bit of the pointer decides."""
    winner = asks
    start = 0
    level = levels
    while winner & (winner - 1):
        level -= 1
        middle = start + (1 << level)
        below = winner & ((1 << middle) - 1)
        above = winner ^ below
        if below == 0 or (above != 0 and pointer >> level & 1):
            winner = above
            start = middle
        else:
            winner = below
    return winner


def place(bits: int) -> int:
    """Number of the lowest of some bits."""
    return (bits & -bits).bit_length() - 1


HEADER = 25
"""Numbers `price_window` finds first in its `call`."""

MEMBER_FIELDS = 6
"""Of every core in a `call`: its trace or -1, its start, its FPU, and where its specials, registers and loops
begin."""

PROGRAM_HEADER = 5
"""Of a program on the shelf: how many numbers its tables have, and its branches."""

SERVED = 4
"""Numbers of `Team.served`."""


def price_window(  # noqa: PLR0915 - names for every part of its tables
    call: Ints, shelf: Ints, trace: Ints, work: Ints, out: Ints
) -> None:
    """Lay out the traces of a team and run them from every start; `out` gets what was counted of each.

    `call` is what `arch.pricing.contention` writes: a header (how many traces, starts, cores, numbers of
    ports, registers, numbers of loops; the `Rules`; the numbers of `Code`), the traces (program and places
    on the `shelf`, trips, units, anchors), `MEMBER_FIELDS` of the cores, the starts, loops and ports. `work`
    is so many zeros that everything has room. Of a start `out` has what the cores waited and `served`.
    """
    traces, starts, width, ports_at, registers, loops = call[0], call[1], call[2], call[3], call[4], call[5]
    rules = Rules(
        *(call[6], call[7], call[8], call[9], call[10], call[11], call[12], call[13], call[14], call[15]),
        *(call[16], call[17], call[18], call[19]),
    )
    begins = work[:traces]
    used = traces
    at = lay_out_all(call, shelf, trace, work, begins)
    members = call[at : at + MEMBER_FIELDS * width]
    at += MEMBER_FIELDS * width
    offsets = call[at : at + starts * width]
    at += starts * width
    measured = call[at : at + loops]
    at += loops
    given_ports = call[at : at + ports_at]
    places = work[used : used + width]
    used += width
    when = work[used : used + width]
    used += width
    fpu_of = work[used : used + width]
    used += width
    special_at = work[used : used + width]
    used += width
    register_at = work[used : used + width]
    used += width
    loop_at = work[used : used + width]
    used += width
    waited = work[used : used + COUNTERS * width]
    used += COUNTERS * width
    free = work[used : used + rules.units]
    used += rules.units
    pointers = work[used : used + rules.fpus * rules.fair]
    used += rules.fpus * rules.fair
    calendar = work[used : used + 2 * DAYS]
    used += 2 * DAYS
    state = work[used : used + STATES]
    used += STATES
    values = work[used : used + registers]
    used += registers
    marks = work[used : used + COUNTERS * loops // 2]
    used += COUNTERS * loops // 2
    ports = work[used : used + ports_at]
    used += ports_at
    served = work[used : used + SERVED]
    requests = Requests(trace, places, when, waited, free, pointers, calendar, state)
    specials = Specials(shelf, special_at, values, register_at)
    team = Team(requests, specials, fpu_of, measured, loop_at, marks, ports, served)
    for start in range(starts):
        clear(waited)
        clear(free)
        clear(pointers)
        clear(calendar)
        clear(state)
        clear(values)
        clear(served)
        for index in range(ports_at):
            ports[index] = given_ports[index]
        state[NEXT_FPU], state[NEXT_DIV] = rules.fpus, rules.divs
        for core in range(width):
            member = MEMBER_FIELDS * core
            when[core] = NEVER
            if members[member] >= 0:
                places[core] = begins[members[member]]
                first = trace[places[core]] >> CODE_BITS
                when[core] = members[member + 1] + offsets[start * width + core] + first
            fpu_of[core] = members[member + 2]
            special_at[core] = members[member + 3]
            register_at[core] = members[member + 4]
            loop_at[core] = members[member + 5]
        advance(rules, team)
        result = start * (COUNTERS * width + SERVED)
        for index in range(COUNTERS * width):
            out[result + index] = waited[index]
        for index in range(SERVED):
            out[result + COUNTERS * width + index] = served[index]


def clear(table: Ints) -> None:
    """Make every number 0."""
    for index in range(len(table)):
        table[index] = 0


def lay_out_all(call: Ints, shelf: Ints, trace: Ints, work: Ints, begins: Ints) -> int:
    """Lay out all traces of a `call` (`price_window`), and where each begins; the place behind them."""
    word, banks, shared, branch, misaligned, first_special = (
        call[20],
        call[11],
        call[21],
        call[22],
        call[23],
        call[24],
    )
    at = HEADER
    filled = begins[0]
    for number in range(len(begins)):
        begins[number] = filled
        program, places = call[at], call[at + 1]
        at += 2
        first = program + PROGRAM_HEADER
        second = first + shelf[program]
        third = second + shelf[program + 1]
        fourth = third + shelf[program + 2]
        moves_from = shelf[fourth : fourth + shelf[program + 3]]
        code = Code(
            word,
            banks,
            shared,
            branch,
            misaligned,
            first_special,
            shelf[first:second],
            shelf[second:third],
            shelf[third:fourth],
            moves_from,
        )
        trips = call[at : at + 2 * (len(moves_from) - 1)]
        at += len(trips)
        used = len(begins)
        numbers = work[used:used]
        if places >= 0:
            count_of, anchors, units = shelf[places], shelf[places + 1], shelf[places + 2]
            numbers = work[used : used + count_of]
            used += count_of
            given = call[at : at + units + anchors]
            at += units + anchors
            row = places + 3
            for place_of in range(count_of):
                total = shelf[row + 1]
                if shelf[row] >= 0:
                    total += given[units + shelf[row]]
                for unit in range(units):
                    total += shelf[row + 2 + unit] * given[unit]
                numbers[place_of] = total
                row += 2 + units
        room = 3 * (len(moves_from) - 1) + len(code.slots) // 4 + shelf[program + 4]
        scratch = work[used : used + room]
        filled = lay_out(code, numbers, trips, scratch, trace, filled)
    return int(at)


PARTS = (
    begin,
    repeat,
    go_on,
    go_back,
    unpark,
    soonest,
    ask_unit,
    enter,
    count,
    issue,
    queue_words,
    not_served,
    word_of,
    leaf,
    pick,
    ask_beats,
    end_beats,
    settle,
    serve,
    clear,
)
"""What `WHOLE` call, every one behind what it calls itself."""

WHOLE = (lay_out, lay_out_all, advance)
"""What `price_window` calls, likewise."""
