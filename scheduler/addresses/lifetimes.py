# SPDX-License-Identifier: Apache-2.0
"""When the bytes of each tensor are needed: first and last op, the ops that use it, and what it is for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from scheduler.addresses.allocation import Interval
from trainlib.ir.graph import GIVEN_KINDS, KEPT_KINDS, ByteRuns, Op, Tensor, TrainingGraph
from trainlib.primitives.definition import is_forward
from trainlib.primitives.lowering.elementwise import ElementwiseLowering
from trainlib.registry import lowering_of

Runs = tuple[tuple[int, int], ...]
"""Bytes of a storage: (first, how many) of each run, in order, apart from each other."""


class Life(Interval, frozen=True, kw_only=True):
    """One storage all its life, and the numbers of the ops that read and write it, in order.

    `given` storages have a value before the first op, `kept` ones are read after the last.
    """

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    given: bool
    kept: bool
    streamed: tuple[int, ...] = ()
    """Ops that use it in parts, straight from L3 (`tiles.l2_slots`); not among `reads` and `writes`."""

    parts: Mapping[int, ByteRuns] = {}
    """Op that sees a part only (`Op.windows`) -> the bytes it reads or writes."""

    @property
    def uses(self) -> tuple[int, ...]:
        """Ops that read or write it as a whole, in order."""
        return tuple(sorted({*self.reads, *self.writes}))

    def __hash__(self) -> int:
        return hash(self.name)


def storage_lives(graph: TrainingGraph, owners: Mapping[str, str] | None = None) -> dict[str, Life]:
    """The life of each storage of the graph, by the name of the tensor that owns it, in graph order.

    Op numbers run from 0; the number of ops stands for "after the iteration". Given tensors (inputs, labels,
    random numbers, weights, buffers, optimizer states) live from 0 until after it, the graph's results (loss,
    output, weight gradients) from their first use until after it, so that they can be read; the rest from
    first write to last read. An alias has no storage of its own: its uses lengthen the life of its target.
    `owners` maps every tensor to the owner of its bytes (default: `TrainingGraph.storage_of`).
    """
    if owners is None:
        owners = {name: graph.storage_of(name) for name in graph.tensors}
    after = len(graph.ops)
    reads: dict[str, list[int]] = {}
    writes: dict[str, list[int]] = {}
    for number, op in enumerate(graph.ops):
        for name in op.inputs:
            reads.setdefault(owners[name], []).append(number)
        for name in op.outputs:
            writes.setdefault(owners[name], []).append(number)
    kept_after = {owners[name] for name in graph.results}
    backward = backward_begins(graph)
    parts = _parts(graph, owners)
    lives: dict[str, Life] = {}
    for name, tensor in graph.tensors.items():
        if owners[name] != name:
            continue
        used = [*reads.get(name, ()), *writes.get(name, ())]
        given = tensor.kind in GIVEN_KINDS
        if not used and not given:
            continue
        kept = given or name in kept_after
        lives[name] = Life(
            name,
            tensor.size_bytes,
            0 if given else min(used),
            after if kept else max(used),
            kind_of(tensor, used, backward),
            name,
            reads=tuple(sorted(set(reads.get(name, ())))),
            writes=tuple(sorted(set(writes.get(name, ())))),
            given=given,
            kept=kept,
            parts=parts.get(name, {}),
        )
    return lives


def _parts(graph: TrainingGraph, owners: Mapping[str, str]) -> dict[str, dict[int, ByteRuns]]:
    """Storage -> op -> the part it sees, where all roles of the op see the same one."""
    parts: dict[str, dict[int, ByteRuns]] = {}
    for number, op in enumerate(graph.ops):
        seen: dict[str, set[ByteRuns]] = {}
        for role, name in op.roles.items() if op.windows else ():
            tensor, window = graph.tensors[name], op.windows.get(role)
            whole = ByteRuns(0, tensor.size_bytes, tensor.size_bytes, 1)
            seen.setdefault(owners[name], set()).add(window.runs(tensor) if window is not None else whole)
        for owner, alike in seen.items():
            (runs, *others) = alike
            if not others and runs.size_bytes < graph.tensors[owner].size_bytes:
                parts.setdefault(owner, {})[number] = runs
    return parts


def backward_begins(graph: TrainingGraph) -> int:
    """Number of the first op of the backward pass: the one after the loss, or else the first not forward."""
    losses = [number for number, op in enumerate(graph.ops) if op.step == "LOSS"]
    if losses:
        return losses[-1] + 1
    others = (number for number, op in enumerate(graph.ops) if not is_forward(op.step))
    return next(others, len(graph.ops))


def kind_of(tensor: Tensor, used: Sequence[int], backward: int) -> str:
    """What the bytes of a tensor used by these ops are for; `backward` is the first op of the backward pass.

    ``kept`` are activations (and what else a forward step saves) that a backward step reads again.
    """
    if tensor.kind in ("weight", "buffer"):
        return "weight"
    if tensor.kind in ("optimizer_state", "gradient", "loss"):
        return tensor.kind
    if tensor.kind not in ("activation", "saved"):
        return "input"
    return "kept" if min(used) < backward <= max(used) else "activation"


def in_place_owners(
    graph: TrainingGraph,
    lives: Mapping[str, Life],
    alike: Callable[[str, str, str], bool] = lambda op, result, source: True,
) -> dict[str, str]:
    """Tensor written -> tensor whose bytes it takes over because that one ends at the op that writes it.

    Only for steps whose tiles read and write the same box of each (`ElementwiseLowering.takes_over`): a
    tile's result then covers exactly the bytes that tile has read, whatever other tiles are under way. Shape
    and dtype must be equal, no window may shift the boxes, and nothing may need the input afterwards. Both
    have to be `alike` for the op.
    """
    taken: dict[str, str] = {}
    for number, op in enumerate(graph.ops):
        target = op.outputs[0] if op.outputs else ""
        sources = overwritable(graph, lives, op)
        if not sources or lives[target].first_op != number:
            continue
        # The youngest: the longer a tensor waits unused, the more it is worth to keep its bytes movable.
        ending = [
            (lives[name].first_op, name)
            for name in sources
            if lives[name].last_op == number and alike(op.name, target, name)
        ]
        source = max(ending)[1] if ending else None
        if source is not None:
            taken[target] = source
    return taken


def _same_boxes(op: Op) -> bool:
    lowering = lowering_of(op)
    takes_over = isinstance(lowering, ElementwiseLowering) and lowering.takes_over
    return takes_over and bool(op.outputs) and not op.windows


def overwritable(graph: TrainingGraph, lives: Mapping[str, Life], op: Op) -> list[str]:
    """Storages the result of an op may be written over, if they end there."""
    if not _same_boxes(op) or not _own(graph, lives, op.outputs[0]):
        return []
    target = graph.tensors[op.outputs[0]]
    storages = [graph.storage_of(name) for name in op.inputs]
    alike = [
        (graph.tensors[name].shape, graph.tensors[name].dtype) == (target.shape, target.dtype)
        for name in op.inputs
    ]
    return [
        storage
        for storage, same in zip(storages, alike, strict=True)
        if same and not lives[storage].kept and storages.count(storage) == 1
    ]


def _own(graph: TrainingGraph, lives: Mapping[str, Life], name: str) -> bool:
    tensor = graph.tensors[name]
    return tensor.alias_of is None and tensor.kind not in KEPT_KINDS and name in lives


def owners_of(graph: TrainingGraph, taken: Mapping[str, str]) -> dict[str, str]:
    """Tensor -> tensor that owns its bytes, the graph's aliases and those of `in_place_owners` followed."""
    owners: dict[str, str] = {}
    for name in graph.tensors:
        owner = graph.storage_of(name)
        while owner in taken:
            owner = taken[owner]
        owners[name] = owner
    return owners
