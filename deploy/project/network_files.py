# SPDX-License-Identifier: Apache-2.0
"""network.h and network.c: where buffers lie, the ops of every program, what begins and ends with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from arch.spec.program import Place
from arch.spec.timing import SocTiming
from configs.values import Struct, replace
from deploy.calls.call import source_of
from deploy.calls.expression import float_text
from deploy.program.buffers import Buffers, Names
from deploy.program.network_text import ops_text
from deploy.program.statements import Statements
from deploy.program.table_text import GroupTable, OpTable
from deploy.project.recorded import EQUAL, Recorded, Room
from scheduler.addresses.lifetimes import Runs
from scheduler.executor import parts_in_l2
from scheduler.memory.memory_plan import MemoryPlan
from scheduler.planned import Schedule
from scheduler.programs.program_code import TABLE
from scheduler.table_form import TABLE_KIND
from trainlib.ir.graph import Tensor
from trainlib.ir.varying import Varying

PROGRAMS = ("mini_batch", "update")
"""Names of the programs of an iteration."""


class NetworkProgram(Struct, frozen=True):
    """One program with everything that has a name in C; `name` is its own."""

    name: str
    schedule: Schedule
    statements: Statements
    buffers: Buffers
    functions: tuple[str, ...]

    groups: tuple[GroupTable, ...] = ()
    """Tables of the ops that are no functions."""
    kernels: Mapping[str, int] = {}
    """Numbers of the kernels that tables of any program call."""

    @property
    def tables(self) -> Mapping[int, str]:
        """Where the tables of ops are when they are walked, by number of the op."""
        return {number: group.address(number) for group in self.groups for number in group.ops}

    @property
    def results_bytes(self) -> int:
        """Of what its ops write, one result after the other."""
        return sum(place.size_bytes for statements in self.statements.ops for place in statements.results)


def place_text(place: Place) -> str:
    """A `struct place`."""
    return f"{{IN_{place.level.upper()}, {place.address}, {place.size_bytes}}}"


FORMATS = {
    **{"float32": "AS_FLOAT", "float16": "AS_FP16", "bfloat16": "AS_BF16"},
    **{"int32": "AS_INT32", "uint8": "AS_BYTE", "int8": "AS_BYTE"},
}
"""dtype -> format in C."""


def tensor_text(place: Place, tensor: Tensor, expected: int = 0, room: Room = EQUAL) -> str:
    """A `struct tensor`: byte `expected` of those expected is its first, elements may be off by `room`."""
    text = f"{expected}, {FORMATS[tensor.dtype]}, {float_text(room.size)}, {int(room.few)}"
    return f'{{"{place.name}", {place_text(place)}, {text}}}'


def network_h(
    name: str, programs: Sequence[NetworkProgram], timing: SocTiming, level_bytes: dict[str, int]
) -> str:
    """Every buffer with its address; sizes and lifetimes beside it."""
    lines = [
        f"/* {name}: every buffer, its address in its level, its size and the ops it lives through. */",
        "#ifndef NETWORK_H",
        "#define NETWORK_H",
        "",
        "#ifndef NETWORK_CORES",
        f"#define NETWORK_CORES {timing.cores}",
        "#endif",
        *[f"#define NETWORK_{level.upper()}_BYTES {size}u" for level, size in level_bytes.items()],
        f"#define NETWORK_L2_OF_TARGET_BYTES {timing.l2.size_bytes}u",
        f"#define NETWORK_L3_TRANSFER {max(each.statements.external for each in programs)} /* of main.c */",
        "",
    ]
    written: set[str] = set()
    for program in programs:
        ops = program.schedule.graph.ops
        lines.append("enum {")
        for buffer in sorted(
            program.buffers.all, key=lambda item: (item.allocation.level, item.allocation.first_op)
        ):
            item = buffer.allocation
            if buffer.name in written:
                continue
            written.add(buffer.name)
            life = f"{ops[max(item.first_op, 0)].name} to {ops[min(item.last_op, len(ops) - 1)].name}"
            about = f"{item.level.upper()}, {item.size_bytes} bytes, {life}"
            lines.append(f"    {buffer.name} = {item.address}, /* {about} */")
        lines += ["};", ""]
        lines += [
            f"void {function}(void);"
            for number, function in enumerate(program.functions)
            if number not in program.tables
        ]
        lines.append("")
    if _walks(programs):
        lines += [f"#define NETWORK_TABLES {max(program.statements.transfers for program in programs)}", ""]
    return "\n".join([*lines, "#endif", ""])


def _walks(programs: Sequence[NetworkProgram]) -> bool:
    return any(program.tables for program in programs)


def network_c(name: str, programs: Sequence[NetworkProgram], varying: int, recorded: Recorded) -> str:
    """The functions of all ops, and the tables of programs with what was `recorded` of their results."""
    about = "tables of ops, and functions of those without" if _walks(programs) else "one function per op"
    parts = [
        f"/* {name}: {about}, as the schedule says. */\n"
        '#include "network.h"\n\n#include "kernels.h"\n#include "network_types.h"\n#include "platform.h"\n\n'
        f"float network_varying[{max(1, varying)}];"
    ]
    rooms = recorded.rooms([program.schedule.graph for program in programs])
    first_number = 0
    for program in programs:
        ops, groups = program.statements.ops, program.groups
        parts.append(ops_text(ops, program.functions, program.buffers, groups, first_number))
        parts.append(_tables(program, rooms))
        first_number += len(groups)
    if _walks(programs):
        named = ", ".join(f"{{{each.name}, {len(each.ops)}}}" for p in programs for each in p.groups)
        kernels = ", ".join(programs[0].kernels)
        parts.append(
            f"const struct tables network_tables[] = {{{named}}};\n"
            f"const int network_tables_count = {first_number};\n"
            f"pt_kernel *const network_kernels[] = {{{kernels}}};"
        )
    rows = ", ".join(
        f"{{{program.name}_ops, {len(program.functions)}, {program.results_bytes}}}" for program in programs
    )
    parts.append(
        f"const struct program network_programs[] = {{{rows}}};\n"
        f"const int network_programs_count = {len(programs)};\n"
    )
    return "\n\n".join(parts)


def _tables(program: NetworkProgram, rooms: Mapping[str, Room]) -> str:
    lines, rows = [], []
    tensors, copies = program.schedule.graph.tensors, _copies(program)
    begins: dict[int, list[Place]] = {}
    for buffer in program.buffers.all:
        item = buffer.allocation
        if item.level != "l3":
            place = Place(item.level, item.address, (item.size_bytes,), "uint8", item.name)
            begins.setdefault(max(item.first_op, 0), []).append(place)
    for statements, function in zip(program.statements.ops, program.functions, strict=True):
        born = begins.get(statements.number, [])
        results = [
            tensor_text(place, tensors[place.name], expected, rooms[place.name])
            for place, expected in copies[statements.number]
        ]
        named = []
        for word, items in (
            ("begins", [place_text(place) for place in born]),
            ("ends", [place_text(place) for place in statements.dead]),
            ("results", results),
        ):
            if items:
                kind = "tensor" if word == "results" else "place"
                lines.append(f"static const struct {kind} {function}_{word}[] = {{{', '.join(items)}}};")
            named.append(f"{function}_{word}" if items else "0")
        run, table = function, "0"
        if statements.number in program.tables:
            run = "0" if statements.number else f"{function}_begin"
            table = program.tables[statements.number]
        rows.append(
            f'    {{"{statements.op.name}", {run}, {table}, {named[0]}, {named[1]}, {len(born)}, '
            f"{len(statements.dead)}, {named[2]}, {len(results)}}},"
        )
    return "\n".join([*lines, f"static const struct op {program.name}_ops[] = {{", *rows, "};"])


def _copies(program: NetworkProgram) -> list[list[tuple[Place, int]]]:
    """For each op where results lie when it ends, and where their bytes begin among those expected.

    That is every copy of them, so that all who read one later begin with what is expected: in L1 and, stored
    as well, in L2; in L3 at the end of the stay in L2 that is copied there.
    """
    schedule, ops = program.schedule, program.statements.ops
    plan, parts = schedule.plan, parts_in_l2(schedule)
    copies: list[list[tuple[Place, int]]] = [[] for _ in ops]
    begins, end = dict[str, int](), 0
    for own, statements, item in zip(copies, ops, schedule.ops, strict=True):
        for place in statements.results:
            begins[place.name] = end
            there = parts.get(statements.op.name, {}).get(place.name, ())
            own.extend(_pieces(place, plan, there, end))
            resident = item.layout.resident.get(place.name)
            if resident is not None and resident.stores:
                lies = plan.place(statements.number, place.name)
                copy = replace(place, level=lies.level, address=lies.address)
                own.extend(piece for piece in _pieces(copy, plan, there, end) if piece[0].level == lies.level)
            end += place.size_bytes
    for stay in plan.stays:
        written = ops[stay.written_op] if stay.written_op >= 0 else None
        for place in written.results if written is not None and written.copies_out(stay.tensor) else ():
            if plan.owners[place.name] == stay.tensor:
                home = plan.home(stay.tensor)
                copy = replace(place, level=home.level, address=home.address)
                copies[stay.last_op].append((copy, begins[place.name]))
    return copies


def _pieces(place: Place, plan: MemoryPlan, there: Runs, begin: int) -> Iterator[tuple[Place, int]]:
    """A result in order: where its op has left it; if only the bytes `there` are, the rest in L3.

    Beside each piece its first byte, if those expected of the result start at `begin`.
    """
    if not there:
        yield place, begin
        return
    home, done = plan.home(place.name), 0
    for first, size_bytes in (*there, (place.size_bytes, 0)):
        if first > done:
            rest = Place(home.level, home.address + done, (first - done,), "uint8", place.name)
            yield rest, begin + done
        if size_bytes:
            part = Place(place.level, place.address + first, (size_bytes,), "uint8", place.name)
            yield part, begin + first
        done = first + size_bytes


def programs_of(schedules: Sequence[Schedule], varying: list[Varying]) -> list[NetworkProgram]:
    """The programs of an iteration in C. Raises `InputError` for what has no form in it."""
    made = [Statements(schedule.program, schedule.graph, varying) for schedule in schedules]
    names = Names(name for item in made for kernel in item.kernels for name in source_of(kernel).kernels)
    result, kernels = [], dict[str, int]()
    for name, schedule, statements in zip(PROGRAMS, schedules, made, strict=False):
        functions = tuple(names.of(item.op.name) for item in statements.ops)
        buffers = Buffers(schedule.plan.allocations, names)
        groups = tuple(_groups(schedule, statements, buffers, functions, kernels))
        result.append(NetworkProgram(name, schedule, statements, buffers, functions, groups, kernels))
    return result


def _groups(
    schedule: Schedule,
    statements: Statements,
    buffers: Buffers,
    functions: Sequence[str],
    kernels: dict[str, int],
) -> Iterator[GroupTable]:
    """The tables of ops that come together, as the plan says.

    What the rule of their bytes takes for smaller than it is, so that it has no room, stays a function.
    """
    places = sorted(
        (item for item in buffers.all if item.allocation.kind == TABLE_KIND),
        key=lambda item: item.allocation.last_op,
    )
    names = [f"{op.op.name}.{TABLE}" for op in statements.ops]
    for place, following in zip(places, [*places[1:], None], strict=False):
        first, last = names.index(place.allocation.name), place.allocation.last_op
        ops: list[OpTable] = []
        for number in range(first, last + 1):
            fetches = number == first and following is not None
            ops.append(OpTable(statements.ops[number], buffers, kernels, fetches=fetches))
        while sum(op.size_bytes for op in ops) > place.allocation.size_bytes:
            ops.pop()
        yield GroupTable(functions[first], first, ops, place)
