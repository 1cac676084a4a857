# SPDX-License-Identifier: Apache-2.0
"""Inner loops of the window: what one core asks for, and who of all cores gets it when.

Two functions over flat tables of integers and nothing else, so that one source runs as plain Python (tables
are lists) and compiled by Numba (tables are int64 arrays), with equal results. `arch.pricing.window` chooses.

A trace is what a core asks for in its window, item after item. It depends on nothing but the core's own work,
so it is laid out once (`lay_out`) and then run against the other cores (`advance`), from any start. An item
is `cycles since the item before << CODE_BITS | code`. A code below the number of banks asks for that bank,
the next two for the FPU and the div/sqrt unit; all others are the entries of `Program.specials`.
"""

from __future__ import annotations

from typing import Any

CODE_BITS = 16
"""Bits of an item's code."""

CODES = 1 << CODE_BITS

LOOP, NEXT, EMIT, BRANCH, ACCESS = range(5)
"""Operations of a window program, see `arch.pricing.window_program`."""

OPERATION_FIELDS = 5

END, MISALIGNED, MARK, MULTIPLY, SET, WAIT = range(6)
"""Special items, (kind, x, y): the core has done its share; x cycles are lost at a word border; loop x begins
its measured iterations, or has ended and its counters are multiplied; the value of register x comes in y
cycles; wait for the value of register x, as counter y."""

COUNTERS = 6
"""Of every core: waiting for banks, for FPUs, misaligned accesses, and stalls whose length depends on the
waiting before them (load_use, multicycle, fpu)."""

WAIT_BANKS, WAIT_FPUS, WAIT_MISALIGNED, WAIT_LOAD_USE, WAIT_MULTICYCLE, WAIT_FPU_LATENCY = range(COUNTERS)

NEVER = 1 << 62

DAYS = 64
"""Cycles in the calendar of `advance`."""

CORE_OF = 37
"""The powers of two up to 2^35 leave different remainders."""

MAX_LEAVES = CORE_OF - 1
"""Requesters a bank can tell apart under round robin."""

PORT_FIELDS = 5
"""Of every DMA direction, see `advance`."""

Ints = Any
"""A list of int, or an int64 array."""


def lay_out(  # noqa: PLR0912, PLR0915 - one loop, compiled as a whole
    machine: Ints,
    operations: Ints,
    slots: Ints,
    moves: Ints,
    moves_from: Ints,
    numbers: Ints,
    loops: Ints,
    scratch: Ints,
    trace: Ints,
    filled: int,
) -> int:
    """Write the trace of one core to `trace` from index `filled` on; returns the index behind it.

    `machine` is (word bytes, banks, whether banks are shared, cycles of a taken branch, cycles of a
    misaligned access, code of the MISALIGNED item; those of MARK and MULTIPLY of every loop follow). `slots`:
    per slot (place of its base in `numbers`, place behind its last stride, divisor, modulus), the last two
    turn bytes into what the banks repeat in. `moves`: (slot, place of its stride), those of loop i from
    `moves_from[i]` on. `loops`: per loop (iterations before the measured ones or -1, iterations). `scratch`
    holds a counter per loop, an address per slot and a phase per branch.
    """
    word, banks, shared = machine[0], machine[1], machine[2]
    branch_stall, misaligned_stall, misaligned = machine[3], machine[4], machine[5]
    mark = misaligned + 1
    address_at = len(moves_from) - 1
    phase_at = address_at + len(slots) // 4
    for index in range(len(scratch)):
        scratch[index] = 0
    for slot in range(len(slots) // 4):
        divisor, modulus = slots[4 * slot + 2], slots[4 * slot + 3]
        first = slots[4 * slot]
        for place in range(first, slots[4 * slot + 1]):
            numbers[place] = numbers[place] // divisor % modulus
        scratch[address_at + slot] = numbers[first]
    gap = 0
    pc = 0
    while pc < len(operations):
        kind = operations[pc]
        gap += operations[pc + 1]
        first = operations[pc + 2]
        second = operations[pc + 3]
        third = operations[pc + 4]
        pc += OPERATION_FIELDS
        if kind == ACCESS:
            address = scratch[address_at + first]
            if second == 0:
                trace[filled] = gap << CODE_BITS | address
                filled += 1
                gap = 0
                continue
            if shared:
                trace[filled] = gap << CODE_BITS | address // word
                filled += 1
                gap = 0
            if second == 2 and address % word + third > word:
                trace[filled] = gap << CODE_BITS | misaligned
                filled += 1
                gap = misaligned_stall
                if shared:
                    trace[filled] = gap << CODE_BITS | (address // word + 1) % banks
                    filled += 1
                    gap = 0
        elif kind == EMIT:
            trace[filled] = gap << CODE_BITS | first
            filled += 1
            gap = 0
        elif kind == NEXT:
            done = scratch[first] + 1
            scratch[first] = done
            trips = loops[2 * first + 1]
            if done < trips:
                for move in range(moves_from[first], moves_from[first + 1]):
                    slot = moves[2 * move]
                    address = scratch[address_at + slot] + numbers[moves[2 * move + 1]]
                    if address >= slots[4 * slot + 3]:
                        address -= slots[4 * slot + 3]
                    scratch[address_at + slot] = address
                gap += third
                pc = second
                if done == loops[2 * first]:
                    trace[filled] = gap << CODE_BITS | (mark + 2 * first)
                    filled += 1
                    gap = 0
            else:
                for move in range(moves_from[first], moves_from[first + 1]):
                    slot = moves[2 * move]
                    address = scratch[address_at + slot] - (done - 1) * numbers[moves[2 * move + 1]]
                    scratch[address_at + slot] = address % slots[4 * slot + 3]
                if loops[2 * first] >= 0:
                    trace[filled] = gap << CODE_BITS | (mark + 2 * first + 1)
                    filled += 1
                    gap = 0
        elif kind == LOOP:
            scratch[first] = 0
            if loops[2 * first + 1] == 0:
                pc = second
            elif loops[2 * first] == 0:
                trace[filled] = gap << CODE_BITS | (mark + 2 * first)
                filled += 1
                gap = 0
        else:
            phase = scratch[phase_at + first] + second
            if phase >= third:
                phase -= third
                gap += branch_stall
            scratch[phase_at + first] = phase
    return filled


def advance(  # noqa: PLR0912, PLR0915 - one loop, compiled as a whole
    units: Ints,
    trace: Ints,
    at: Ints,
    when: Ints,
    fpu_of: Ints,
    specials: Ints,
    special_at: Ints,
    registers: Ints,
    register_at: Ints,
    loops: Ints,
    loop_at: Ints,
    marks: Ints,
    waited: Ints,
    bank_free: Ints,
    fpu_free: Ints,
    div_free: Ints,
    calendar: Ints,
    core_of: Ints,
    ports: Ints,
    served: Ints,
    asked: Ints,
) -> None:
    """Run the traces of all cores together, cycle by cycle, until every core has ended.

    `units` is (cores among which the priority at the banks goes round or 0, the same at the FPUs, cycles an
    FPU is taken, whether FPUs are a pool, cycles a div/sqrt unit is taken). By number of the core: `at` is
    the place of its next item in `trace`, `when` the cycle of that item (NEVER: the core takes no part; at
    the end: the cycle in which the core ended), `fpu_of` its FPU, then where its part of `specials`,
    `registers` and `loops` (per loop: measured iterations, iterations not executed) begins. `calendar` has
    `DAYS` zeros; `core_of` says which core the bit `b` stands for, at `b % CORE_OF`. `served` has (words,
    cycles they took) of both directions of the DMA.

    `asked` is empty if a bank serves the oldest request first; then a request knows its turn at once, and
    `ports` has `PORT_FIELDS` numbers for every DMA port: (cycle of its next request, direction, 0, 0, 0).

    Otherwise the banks are round robin: a request waits until the arbiter of its bank, a tree of
    2^`units[8]` leaves, picks it, which is settled cycle by cycle. `asked` are zeros: per bank the leaves
    that ask, as bits, and its pointer. Core c is leaf c; word i of a beat of a direction is leaf
    `units[5]` + direction x `units[6]` + i modulo `units[6]`. A beat has `units[7]` words, which all must
    be through before the next. `ports` then has for every direction (cycle of its next beat, direction,
    words under way, beats in a burst, idle cycles behind it).
    """
    banks = len(bank_free)
    fpu_cycles, fpu_pool, div_cycles = units[2], units[3], units[4]
    first_leaf, direction_leaves, beat_words, levels = units[5], units[6], units[7], units[8]
    passes = 1 if units[0] == units[1] else 2
    # Units of a pool take turns: grants never go back in time, so the next in turn is the one free first.
    next_fpu = next_div = 0
    # Cores whose item is less than a calendar away are bits of its day; the others are parked.
    running = parked = 0
    for core in range(len(when)):
        if when[core] < DAYS:
            calendar[when[core]] |= 1 << core
            running += 1
        elif when[core] < NEVER:
            parked |= 1 << core
            running += 1
    in_calendar = running
    fair = len(asked) > 0
    # Cores that wait for a bank, as bits; only under round robin.
    waiting = 0
    cycle = 0
    while running:
        day = cycle & (DAYS - 1)
        if parked and day == 0:
            in_calendar = running
            for core in range(len(when)):
                if parked >> core & 1:
                    if when[core] < cycle + DAYS:
                        calendar[when[core] % DAYS] |= 1 << core
                        parked ^= 1 << core
                    else:
                        in_calendar -= 1
        asking = calendar[day]
        if asking:
            calendar[day] = 0
            for serve in range(passes):
                turn = units[serve]
                first = cycle % turn if turn else 0
                left = asking
                if first:
                    left = (asking >> first | asking << (turn - first)) & ((1 << turn) - 1)
                while left:
                    lowest = left & -left
                    left ^= lowest
                    core = core_of[lowest % CORE_OF] + first
                    if turn and core >= turn:
                        core -= turn
                    following = cycle
                    while following == cycle:
                        code = trace[at[core]] & (CODES - 1)
                        time = cycle
                        if code < banks:
                            if fair:
                                asked[2 * code] |= 1 << core
                                waiting |= 1 << core
                                when[core] = cycle
                                asking ^= 1 << core
                                break
                            free = bank_free[code]
                            if free > cycle:
                                waited[COUNTERS * core] += free - cycle
                                time = free
                            bank_free[code] = time + 1
                        elif code == banks:
                            if serve + 1 < passes:
                                break
                            unit = fpu_of[core]
                            if fpu_pool:
                                unit = next_fpu
                                next_fpu += 1
                                if next_fpu == len(fpu_free):
                                    next_fpu = 0
                            free = fpu_free[unit]
                            if free > cycle:
                                waited[COUNTERS * core + WAIT_FPUS] += free - cycle
                                time = free
                            fpu_free[unit] = time + fpu_cycles
                        elif code == banks + 1:
                            if serve + 1 < passes:
                                break
                            free = div_free[next_div]
                            if free > cycle:
                                waited[COUNTERS * core + WAIT_FPUS] += free - cycle
                                time = free
                            div_free[next_div] = time + div_cycles
                            next_div += 1
                            if next_div == len(div_free):
                                next_div = 0
                        else:
                            special = 3 * (special_at[core] + code - banks - 2)
                            kind = specials[special]
                            x = specials[special + 1]
                            y = specials[special + 2]
                            if kind == WAIT:
                                ready = registers[register_at[core] + x]
                                if ready > cycle:
                                    waited[COUNTERS * core + y] += ready - cycle
                                    time = ready
                            elif kind == SET:
                                registers[register_at[core] + x] = cycle + y
                            elif kind == MISALIGNED:
                                waited[COUNTERS * core + WAIT_MISALIGNED] += x
                            elif kind == MARK:
                                for counter in range(COUNTERS):
                                    before = COUNTERS * (loop_at[core] + x) + counter
                                    marks[before] = waited[COUNTERS * core + counter]
                            elif kind == MULTIPLY:
                                measured = loops[2 * (loop_at[core] + x)]
                                rest = loops[2 * (loop_at[core] + x) + 1]
                                for counter in range(COUNTERS):
                                    now = waited[COUNTERS * core + counter]
                                    before = now - marks[COUNTERS * (loop_at[core] + x) + counter]
                                    more = (2 * before * rest + measured) // (2 * measured)
                                    waited[COUNTERS * core + counter] = now + more
                            else:
                                running -= 1
                                in_calendar -= 1
                                when[core] = cycle
                                asking ^= 1 << core
                                break
                        at[core] += 1
                        following = time + (trace[at[core]] >> CODE_BITS)
                    if following > cycle:
                        asking ^= 1 << core
                        if following < cycle + DAYS:
                            calendar[following & (DAYS - 1)] |= 1 << core
                        else:
                            when[core] = following
                            parked |= 1 << core
                            in_calendar -= 1
        if fair:
            for port in range(0, len(ports), PORT_FIELDS):
                if ports[port] == cycle and ports[port + 2] == 0:
                    ports[port + 2] = beat_words
                    word = served[2 * ports[port + 1]]
                    for place in range(beat_words):
                        leaf = first_leaf + ports[port + 1] * direction_leaves + place % direction_leaves
                        asked[2 * ((word + place) % banks)] |= 1 << leaf
            left = waiting
            port = 0
            place = 0
            while left or port < len(ports):
                if left:
                    lowest = left & -left
                    left ^= lowest
                    if waiting & lowest == 0:
                        continue
                    leaf = core_of[lowest % CORE_OF]
                    bank = trace[at[leaf]] & (CODES - 1)
                    if asked[2 * bank] == lowest:
                        # Nobody else asks this bank, as mostly: the tree below would say the same.
                        if bank_free[bank] > cycle:
                            continue
                        bank_free[bank] = cycle + 1
                        asked[2 * bank] = 0
                        asked[2 * bank + 1] = leaf
                        waiting ^= lowest
                        waited[COUNTERS * leaf] += cycle - when[leaf]
                        at[leaf] += 1
                        following = cycle + (trace[at[leaf]] >> CODE_BITS)
                        if following < cycle + DAYS:
                            calendar[following & (DAYS - 1)] |= 1 << leaf
                        else:
                            when[leaf] = following
                            parked |= 1 << leaf
                            in_calendar -= 1
                        continue
                else:
                    if place == beat_words or ports[port + 2] == 0:
                        port += PORT_FIELDS
                        place = 0
                        continue
                    bank = (served[2 * ports[port + 1]] + place) % banks
                    place += 1
                asks = asked[2 * bank]
                if asks == 0 or bank_free[bank] > cycle:
                    continue
                bank_free[bank] = cycle + 1
                pointer = asked[2 * bank + 1]
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
                behind = asks >> (pointer + 1) << (pointer + 1)
                if behind == 0:
                    behind = asks
                asked[2 * bank + 1] = core_of[(behind & -behind) % CORE_OF]
                asked[2 * bank] = asks ^ winner
                leaf = core_of[winner % CORE_OF]
                if leaf < first_leaf:
                    waiting ^= winner
                    waited[COUNTERS * leaf] += cycle - when[leaf]
                    at[leaf] += 1
                    following = cycle + (trace[at[leaf]] >> CODE_BITS)
                    if following < cycle + DAYS:
                        calendar[following & (DAYS - 1)] |= 1 << leaf
                    else:
                        when[leaf] = following
                        parked |= 1 << leaf
                        in_calendar -= 1
                else:
                    direction = (leaf - first_leaf) // direction_leaves
                    moved = 0
                    while ports[moved + 1] != direction:
                        moved += PORT_FIELDS
                    ports[moved + 2] -= 1
            for port in range(0, len(ports), PORT_FIELDS):
                if ports[port + 2] == 0 and ports[port] <= cycle:
                    direction = 2 * ports[port + 1]
                    served[direction] += beat_words
                    served[direction + 1] += cycle + 1 - ports[port]
                    ports[port] = cycle + 1
                    if served[direction] // beat_words % ports[port + 3] == 0:
                        ports[port] += ports[port + 4]
            if calendar[day]:
                # What follows a grant without a cycle between, such as the note when its value comes.
                continue
        else:
            for port in range(0, len(ports), PORT_FIELDS):
                if ports[port] == cycle:
                    direction = 2 * ports[port + 1]
                    bank = served[direction] % banks
                    time = max(cycle, bank_free[bank]) + 1
                    bank_free[bank] = time
                    ports[port] = time
                    served[direction] += 1
                    served[direction + 1] = max(served[direction + 1], time)
        cycle += 1
        if in_calendar == 0 and len(ports) == 0 and running:
            soonest = NEVER
            for core in range(len(when)):
                if parked >> core & 1:
                    soonest = min(soonest, when[core])
            cycle = max(cycle, soonest // DAYS * DAYS)
