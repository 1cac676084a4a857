# SPDX-License-Identifier: Apache-2.0
"""Tensors that stay in L1 between ops: in which span of ops, at which address, what still moves by DMA."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod

from configs.errors import Contributor, DoesNotFitError, InputError
from configs.suggest import check_known, suggestion
from configs.values import Struct, replace
from scheduler.addresses.allocation import ALIGNMENT_BYTES, Allocation, Interval, align, peak_bytes
from scheduler.addresses.lifetimes import Life, storage_lives
from scheduler.addresses.placement import place
from scheduler.tiles.transfers import count_lines
from trainlib.ir.graph import Tensor, TrainingGraph
from trainlib.ir.steps import Operand, Region

AT, TO = "@", ".."
"""``tensor@first_op..last_op`` in the text of a residence."""

MEANING_AUTO = ("all", "on", "yes", "true", "any", "best")
"""What is written in place of tensors by those who mean ``auto``."""

SPAN = "fc.weight, or fc.weight@fc.FW..fc.IG for the ops from fc.FW to fc.IG only"
"""An example of the text of a residence."""

AUTO_CURE = f"use auto (tensors that save cycles), or names of tensors: {SPAN}"

BETWEEN = "free space between resident tensors"
"""What the report of a memory too small calls bytes that no resident tensor of the moment takes."""

Bytes = tuple[int, int]
"""First byte of a tensor and first byte after."""


class Residence(Struct, frozen=True):
    """A storage that lies in L1 from op `first_op` to `last_op`, both among the ops that use it."""

    storage: str
    first_op: int
    last_op: int
    text: str
    """As the user writes it."""


class InPlace(Struct, frozen=True):
    """How one op finds a tensor that is resident: all of `storage` at `address`.

    With `loads` its value comes from L2 during this op, box by box as the tiles ask for it, and with `rest`
    also what no tile of the op asks for. With `stores` the boxes the op writes go to L2 as well.
    """

    tensor: Tensor
    """As the op sees it."""
    storage: str
    address: int
    loads: bool
    rest: bool
    stores: bool

    def bytes_of(self, operand: Operand) -> Bytes | None:
        """The bytes of the tensor that an operand is, None if they are not one run of whole words."""
        return None if operand.pieces else box_bytes(self.tensor, operand.region)

    def run_of(self, operand: Operand) -> Bytes:
        """`bytes_of` an operand that is one run of whole words."""
        found = self.bytes_of(operand)
        assert found is not None
        return found


NOT_RESIDENT: Mapping[str, InPlace] = {}
"""For an op of which every tensor is moved by DMA."""


class Residents(Struct, frozen=True):
    """All residences of a schedule: `allocations` in the order of `residences`.

    They lie at the top of L1 (`usable_bytes`, without stacks), the buffers of the ops below them.
    """

    residences: tuple[Residence, ...]
    allocations: tuple[Allocation, ...]
    in_place: Mapping[int, Mapping[str, InPlace]]
    """Op number -> tensor, as the op calls it -> where it lies."""
    usable_bytes: int

    @property
    def texts(self) -> tuple[str, ...]:
        """The residences as the user writes them."""
        return tuple(item.text for item in self.residences)

    def of_op(self, number: int) -> Mapping[str, InPlace]:
        """The resident tensors an op uses."""
        return self.in_place.get(number, NOT_RESIDENT)

    def limit_bytes(self, number: int) -> int:
        """L1 bytes, from address 0, that op `number` has for its buffers."""
        return min([self.usable_bytes, *(item.address for item in self.live(number))])

    def live(self, number: int) -> list[Allocation]:
        """The places taken during an op."""
        return [item for item in self.allocations if item.first_op <= number <= item.last_op]

    def ending(self, number: int) -> list[Allocation]:
        """The places given up after an op."""
        return [item for item in self.allocations if item.last_op == number]

    def beside(self, error: DoesNotFitError, number: int) -> DoesNotFitError:
        """The report of an op that does not fit what residents leave of L1, with them among what it needs."""
        live = self.live(number)
        if not live:
            return error
        held_bytes = self.usable_bytes - self.limit_bytes(number)
        contributors = [
            Contributor(f"{item.name.removeprefix('resident:')} (resident)", item.size_bytes) for item in live
        ]
        return DoesNotFitError(
            error.level,
            error.required_bytes + held_bytes,
            self.usable_bytes,
            where=error.where,
            what=f"{error.what}, next to the resident tensors",
            contributors=(*error.contributors, *contributors, *_holes(held_bytes, live)),
            cure=f"use fewer --resident tensors, or {error.cure}",
        )


def residents_of(
    graph: TrainingGraph, owners: Mapping[str, str], texts: Iterable[str], usable_bytes: int
) -> Residents:
    """Spans, addresses and transfers of the residences that `texts` ask for.

    A text is a tensor name, for all its life in the iteration, or ``tensor@op``, ``tensor@op..op`` for its
    uses in these ops. `owners` maps tensors to the owner of their bytes: what is resident is the storage,
    whatever the ops call it. Raises `InputError` for unknown names, a span without a use and spans of one
    storage that overlap, `DoesNotFitError` if all of them do not fit L1.
    """
    lives = storage_lives(graph, owners)
    named: dict[Residence, None] = {}
    for text in texts:
        residence = _residence(graph, owners, lives, text)
        same = [other for other in named if other.storage == residence.storage]
        if any(_span(other) == _span(residence) for other in same):
            continue
        for other in same:
            if other.first_op <= residence.last_op and residence.first_op <= other.last_op:
                raise InputError(
                    f"{text} and {other.text} would use the same bytes of L1 at the same time",
                    where="--resident",
                    cure="remove one of the two",
                )
        named[residence] = None
    residences = tuple(named)
    allocations = _placed(graph, lives, residences, usable_bytes)
    in_place: dict[int, dict[str, InPlace]] = {}
    for residence, item in zip(residences, allocations, strict=True):
        for number, moves in _moves(graph, owners, lives[residence.storage], residence).items():
            of_op = in_place.setdefault(number, {})
            for name in (*graph.ops[number].inputs, *graph.ops[number].outputs):
                if owners[name] == residence.storage:
                    of_op[name] = InPlace(graph.tensors[name], residence.storage, item.address, *moves)
    return Residents(residences, allocations, in_place, usable_bytes)


def names_known(graph: TrainingGraph, text: str) -> bool:
    """Whether the tensor and the ops that the text of a residence names are those of a graph."""
    tensor, span = tensor_and_ops(graph, text)
    ops = {op.name for op in graph.ops}
    return tensor in graph.tensors and all(name in ops for name in span)


def tensor_and_ops(graph: TrainingGraph, text: str) -> tuple[str, list[str]]:
    """The tensor that the text of a residence names, which may have an `AT` of its own, and its ops."""
    name = text.strip()
    if name in graph.tensors or AT not in name:
        return name, []
    name, _, span = (part.strip() for part in name.rpartition(AT))
    first, separator, last = (part.strip() for part in span.partition(TO))
    return name, [first, last] if separator else [first]


def without(residents: Residents, storage: str, number: int) -> list[str]:
    """Texts of all residences but the one of a storage that op `number` cannot use in place."""
    return [
        item.text
        for item in residents.residences
        if not (item.storage == storage and item.first_op <= number <= item.last_op)
    ]


def text_of(graph: TrainingGraph, storage: str, uses: Sequence[int], first_op: int, last_op: int) -> str:
    """The text of a residence; `uses` are the ops that use the storage."""
    if (first_op, last_op) == (uses[0], uses[-1]):
        return storage
    ends = (first_op, last_op) if first_op < last_op else (first_op,)
    return storage + AT + TO.join(graph.ops[number].name for number in ends)


def box_bytes(tensor: Tensor, region: Region) -> Bytes | None:
    """The bytes of a tensor that a box is, None if they are not one run of whole words."""
    lengths = tuple(stop - start for start, stop in region)
    if count_lines(tensor.shape, lengths) != 1:
        return None
    strides = (prod(tensor.shape[axis + 1 :]) for axis in range(len(region)))
    elements = sum(start * stride for (start, _), stride in zip(region, strides, strict=True))
    first, last = (count * tensor.dtype.bytes for count in (elements, elements + prod(lengths)))
    if first % ALIGNMENT_BYTES or (last % ALIGNMENT_BYTES and last != tensor.size_bytes):
        return None
    return first, last


def missing(wanted: Bytes, there: Iterable[Bytes]) -> list[Bytes]:
    """The parts of a run of bytes that are in none of the runs `there`, in order."""
    parts = [wanted] if wanted[0] < wanted[1] else []
    for first, last in there:
        parts = [
            part
            for start, stop in parts
            for part in ((start, min(stop, first)), (max(start, last), stop))
            if part[0] < part[1]
        ]
    return parts


def _span(residence: Residence) -> tuple[int, int]:
    return residence.first_op, residence.last_op


def _residence(
    graph: TrainingGraph, owners: Mapping[str, str], lives: Mapping[str, Life], text: str
) -> Residence:
    name, ops = tensor_and_ops(graph, text)
    if name not in graph.tensors:
        cure = AUTO_CURE if name.casefold() in MEANING_AUTO else suggestion(name, graph.tensors)
        raise InputError(f"{graph.name} has no tensor {name!r}", where="--resident", cure=cure)
    storage = owners[name]
    uses = lives[storage].uses if storage in lives else ()
    if ops:
        limits = _op_number(graph, ops[0]), _op_number(graph, ops[-1])
        uses = tuple(use for use in uses if limits[0] <= use <= limits[1])
    if not uses:
        using = [graph.ops[use].name for use in lives[storage].uses] if storage in lives else []
        raise InputError(
            f"tensor {name} is not used{f' in {TO.join(ops)}' if ops else ''}",
            where="--resident",
            cure=f"name ops that use it: {', '.join(using)}" if using else f"remove {name}",
        )
    every = lives[storage].uses
    return Residence(storage, uses[0], uses[-1], text_of(graph, storage, every, uses[0], uses[-1]))


def _op_number(graph: TrainingGraph, name: str) -> int:
    names = [op.name for op in graph.ops]
    check_known(name, names, f"{graph.name} has no op {name!r}", "--resident")
    return names.index(name)


def _placed(
    graph: TrainingGraph, lives: Mapping[str, Life], residences: Sequence[Residence], usable_bytes: int
) -> tuple[Allocation, ...]:
    """Places from the top of L1 downwards. Raises `DoesNotFitError`."""
    requests = [
        Interval(item.text, align(life.size_bytes), *_span(item), life.kind, item.storage)
        for item, life in ((item, lives[item.storage]) for item in residences)
    ]
    strategies = [place(requests, "l1", strategy) for strategy in ("first-fit", "best-fit")]
    placed = min(strategies, key=lambda plan: peak_bytes(plan.values()))
    required_bytes = peak_bytes(placed.values())
    if required_bytes > usable_bytes:
        raise _too_large(graph, placed.values(), required_bytes, usable_bytes)
    top = usable_bytes - usable_bytes % ALIGNMENT_BYTES
    return tuple(
        replace(item, name=f"resident:{item.name}").at("l1", top - placed[item.name].end_address)
        for item in requests
    )


def _holes(size_bytes: int, live: Iterable[Allocation]) -> list[Contributor]:
    """What none of the live tensors takes of so many bytes."""
    holes_bytes = size_bytes - sum(item.size_bytes for item in live)
    return [Contributor(BETWEEN, holes_bytes)] if holes_bytes else []


def _too_large(
    graph: TrainingGraph, placed: Iterable[Allocation], required_bytes: int, usable_bytes: int
) -> DoesNotFitError:
    """The report for residences that alone exceed L1: those that live with the uppermost one."""
    items = list(placed)
    op = max(items, key=lambda item: (item.end_address, item.name)).first_op
    live = [item for item in items if item.first_op <= op <= item.last_op]
    names = [op.name for op in graph.ops]
    contributors = [
        Contributor(item.name, item.size_bytes, names[item.first_op], names[item.last_op]) for item in live
    ]
    return DoesNotFitError(
        "l1",
        required_bytes,
        usable_bytes,
        where="--resident",
        what=f"all resident tensors during {names[op]}",
        contributors=(*contributors, *_holes(required_bytes, live)),
        cure=f"use fewer resident tensors, or for fewer ops: {SPAN}",
    )


def _moves(
    graph: TrainingGraph, owners: Mapping[str, str], life: Life, residence: Residence
) -> dict[int, tuple[bool, bool, bool]]:
    """Per op of the span that uses the storage: `loads`, `rest` and `stores` of its `InPlace`."""
    first_op, last_op = _span(residence)
    uses = [number for number in life.uses if first_op <= number <= last_op]
    has_value = life.given or any(write < first_op for write in life.writes)
    needed_after = life.kept or any(use > last_op for use in life.uses)
    writers = [number for number in life.writes if first_op <= number <= last_op]
    # One that writes only a window of it leaves what others have written: then each stores its own.
    storing = writers[-1:] if not writers or not _windowed(graph, owners, life, writers[-1]) else writers
    return {
        number: (
            has_value and number == first_op,
            has_value and number == first_op < last_op,
            needed_after and number in storing,
        )
        for number in uses
    }


def _windowed(graph: TrainingGraph, owners: Mapping[str, str], life: Life, number: int) -> bool:
    op = graph.ops[number]
    return any(owners[op[role]] == life.name for role in op.windows if role in op.writes)
