"""Which tiling an op gets: a short list by what it moves and issues, then the best estimate of the list."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from arch.pricing import Pricer
from arch.timing import SocTiming
from configs.errors import DoesNotFitError, InputError
from scheduler.options import BEST_DEPTH, WHOLE_OPS, ScheduleOptions
from scheduler.tiles.candidates import Candidates, Counts, enumerate_tilings
from scheduler.tiles.dma_cost import DmaCost
from scheduler.tiles.estimate import NOTHING_EARLY, Early, TileCost, estimate_cycles
from scheduler.tiles.in_place import NotInPlace, allowed, no_room, refusal
from scheduler.tiles.l1_report import does_not_fit
from scheduler.tiles.short_list import Moves, moves_of, short_list
from scheduler.tiles.streamed_tilings import fits_slots, with_streams
from scheduler.tiles.tiling import Tiler, Tiling

BUILT = 5
"""Tilings that are built and estimated tile by tile, the best by `scheduler.tiles.short_list`."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The tiling taken, what was considered, and the estimate it won by."""

    kernel: str
    tiling: Tiling
    counts: Counts | None = None
    """None where the user fixed the tile."""
    estimated_cycles: int = 0
    note: str = ""
    """What the user should know about it."""


@dataclass(frozen=True, slots=True)
class _Ranked:
    """Candidates of an op on all of L1, what they move, which of them use residents in place."""

    candidates: Candidates
    moves: Moves
    usable: NDArray[np.bool_] | NotInPlace
    lists: dict[int, list[int]] = field(default_factory=dict)
    """L1 bytes there are -> `short_list`."""


@dataclass(frozen=True, slots=True)
class Known:
    """What was found so far, in one schedule or in several of one graph that differ in what is resident.

    `choices` are by what makes two ops alike, `ranked` by op, names of what it finds resident, and depths.
    """

    choices: dict[object, Choice] = field(default_factory=dict)
    ranked: dict[object, _Ranked] = field(default_factory=dict)
    resident: list[tuple[str, ...]] = field(default_factory=list)
    """What `scheduler.residency` has chosen, if it has."""


def choose(
    tiler: Tiler,
    timing: SocTiming,
    pricer: Pricer,
    options: ScheduleOptions,
    dma: DmaCost,
    known: Known | None = None,
    available_bytes: int | None = None,
    early: Early = NOTHING_EARLY,
) -> Choice | NotInPlace:
    """What the options fix for this op, else the whole op if they ask for no tiles, else the best tiling.

    An op that is like one in `known` is cut like it. `available_bytes` is what resident tensors leave of L1.
    What is `early` the op may load while the op before it is at work.
    The tiling is that of `choose_tiling` on all of L1 without resident tensors where it fits beside them and
    uses them in place, unless another one has fewer estimated cycles then. Raises `DoesNotFitError`, and
    `InputError` for dimensions, sizes and operands the op has not.
    """
    if options.buffer_depth == BEST_DEPTH:
        return _of_best_depth(tiler, timing, pricer, options, dma, known or Known(), available_bytes, early)
    usable_bytes = timing.l1_usable_bytes
    limit_bytes = usable_bytes if available_bytes is None else available_bytes
    wanted = options.tile_sizes.get(tiler.op.name)
    order = options.loop_orders.get(tiler.op.name)
    choice: Choice | NotInPlace
    if wanted is not None or order is not None:
        choice = Choice(tiler.choice.kernel, tiler.fixed(wanted or {}, limit_bytes, order))
    elif options.buffer_depth == WHOLE_OPS:
        choice = Choice(tiler.choice.kernel, whole_op(tiler, limit_bytes))
    else:
        choice = _Chooser(timing, pricer, dma, known or Known(), early).choose(tiler, limit_bytes)
    if isinstance(choice, NotInPlace):
        return choice
    _check_buffer_names(tiler, choice.tiling, options)
    return refusal(choice.tiling, tiler.resident) or choice


def _of_best_depth(
    tiler: Tiler,
    timing: SocTiming,
    pricer: Pricer,
    options: ScheduleOptions,
    dma: DmaCost,
    known: Known,
    available_bytes: int | None,
    early: Early,
) -> Choice | NotInPlace:
    """The choice with double or single buffers, by estimate; double for a tile that is fixed and fits."""
    found: list[Choice | NotInPlace] = []
    for depth in (2, 1):
        own = replace(options, buffer_depth=depth)
        try:
            found.append(
                choose(tiler.with_depth(depth), timing, pricer, own, dma, known, available_bytes, early)
            )
        except DoesNotFitError:
            if depth == 1 and not found:
                raise
    choices = [item for item in found if isinstance(item, Choice)]
    return min(choices, key=lambda choice: choice.estimated_cycles) if choices else found[0]


@dataclass(frozen=True, slots=True)
class _Chooser:
    """Chooses tilings and remembers them."""

    timing: SocTiming
    pricer: Pricer
    dma: DmaCost
    known: Known
    early: Early

    def choose(self, tiler: Tiler, limit_bytes: int) -> Choice | NotInPlace:
        """The tiling of an op beside what is resident."""
        usable_bytes = self.timing.l1_usable_bytes
        if not tiler.resident and limit_bytes == usable_bytes:
            return self._best(tiler, usable_bytes, self._kind(tiler))
        period_bytes = self.timing.l1.banks * self.timing.l1.word_bytes
        like = self._kind(tiler), limit_bytes, _places(tiler, period_bytes)
        known = self._known(like, tiler, limit_bytes)
        if known is not None:
            return known
        usual = self._usual(tiler, limit_bytes)
        if usual is not None and (not tiler.resident or len(usual.tiling.tiles) == 1):
            self.known.choices[like] = usual
            return usual
        try:
            other = self._best(tiler, limit_bytes, like)
        except DoesNotFitError:
            if usual is None:
                raise
            self.known.choices[like] = usual
            return usual
        if usual is None or (isinstance(other, Choice) and other.estimated_cycles < usual.estimated_cycles):
            return other
        self.known.choices[like] = usual
        return usual

    def _kind(self, tiler: Tiler) -> object:
        """Equal for ops that differ in nothing but the names of layer and tensors."""
        names = (*tiler.op.inputs, *tiler.op.outputs)
        early = tuple(number for number, name in enumerate(names) if name in self.early.tensors)
        return _kind(tiler, (*early, self.early.within_cycles) if early else ())

    def _usual(self, tiler: Tiler, limit_bytes: int) -> Choice | None:
        """What is best with nothing resident, if it fits and uses what is resident in place."""
        plain = tiler.without_residents()
        try:
            best = self._best(plain, self.timing.l1_usable_bytes, self._kind(plain))
        except DoesNotFitError:
            return None
        assert isinstance(best, Choice)
        tiling = tiler.build(dict(best.tiling.sizes), best.tiling.order)
        if tiling.l1_bytes > limit_bytes or refusal(tiling, tiler.resident) is not None:
            return None
        cycles = best.estimated_cycles
        if tiler.resident:
            cost = TileCost(self.timing, self.pricer, tiler.tensors, self.dma)
            cycles = estimate_cycles(tiling, cost, tiler, self.early)
        return replace(best, tiling=tiling, estimated_cycles=cycles)

    def _known(self, like: object, tiler: Tiler, limit_bytes: int) -> Choice | None:
        """The choice made for an op that is alike; None for one that this op can't have been given.

        What is known may come from a file (`scheduler.kept_results`), which others may have changed.
        """
        choice = self.known.choices.get(like)
        if choice is None or not _goes_with(choice, tiler):
            return None
        again = _again(choice, tiler)
        return again if again.tiling.l1_bytes <= limit_bytes else None

    def _best(self, tiler: Tiler, limit_bytes: int, like: object) -> Choice | NotInPlace:
        known = self._known(like, tiler, limit_bytes)
        if known is not None:
            return known
        key = tiler.op.name, tuple(tiler.resident), repr(tiler.depths), tiler.stream
        if key not in self.known.ranked:
            self.known.ranked[key] = _ranked(tiler, self.timing.l1_usable_bytes, self.dma)
        ranked = self.known.ranked[key]
        found = _best_tiling(tiler, ranked, limit_bytes, self.timing, self.pricer, self.dma, self.early)
        if isinstance(found, Choice):
            self.known.choices[like] = found
        return found


def early_beside(before: Choice | None, tensors: frozenset[str], timing: SocTiming) -> Early:
    """What an op may load while the last tile of the op `before` is computed.

    More cycles than filling all of L1 takes make no difference. The rest is rounded down to a power of two,
    so that alike ops behind ones that differ little are cut alike.
    """
    if before is None:
        return NOTHING_EARLY
    fill_cycles = timing.l1_usable_bytes // timing.dma.l1_bytes_per_cycle
    within_cycles = min(fill_cycles, before.estimated_cycles // len(before.tiling.tiles))
    return Early(tensors, 1 << within_cycles.bit_length() - 1 if within_cycles else 0)


def _goes_with(choice: Choice, tiler: Tiler) -> bool:
    """Whether a choice has the kernel and the dimensions of an op."""
    sizes, dims = dict(choice.tiling.sizes), tiler.dims
    return (
        choice.kernel == tiler.choice.kernel
        and sorted(sizes) == sorted(choice.tiling.order) == sorted(dims)
        and all(1 <= size <= dims[name] for name, size in sizes.items())
    )


def _again(choice: Choice, tiler: Tiler) -> Choice:
    """A choice made for an op that is alike."""
    tiling = tiler.build(dict(choice.tiling.sizes), choice.tiling.order)
    return replace(choice, tiling=tiling, note=choice.note.replace(choice.tiling.op, tiling.op, 1))


def _places(tiler: Tiler, period_bytes: int) -> object:
    """What ops must have in common to find their resident tensors alike, bank by bank."""
    names = (*tiler.op.inputs, *tiler.op.outputs)
    return tuple(
        (names.index(name), names.index(_first(tiler, item.storage)), item.address % period_bytes,
         item.loads, item.rest, item.stores)
        for name, item in tiler.resident.items()
    )  # fmt: skip


def _first(tiler: Tiler, storage: str) -> str:
    """The first of an op's tensors that lies in a storage."""
    return next(name for name, item in tiler.resident.items() if item.storage == storage)


def _kind(tiler: Tiler, early: tuple[int, ...]) -> object:
    """What tells ops apart but the names of layer and tensors; `early` are numbers of operands and cycles."""
    op = tiler.op
    names = (*op.inputs, *op.outputs)
    tensors = tuple((t.shape, t.dtype, t.layout) for t in (tiler.tensors[name] for name in names))
    same = tuple(names.index(name) for name in names)
    described = replace(op, name="", layer="", inputs=(), outputs=())
    streamed = tuple(number for number, name in enumerate(names) if name in tiler.stream.tensors)
    far = (streamed, tiler.stream.window_bytes, tiler.stream.most_slots) if streamed else ()
    return repr((described, tensors, same, tiler.choice, tiler.depths, early, *far))


def _check_buffer_names(tiler: Tiler, tiling: Tiling, options: ScheduleOptions) -> None:
    known = {buffer.name for buffer in tiling.buffers if buffer.role != "scratch"}
    for name in options.buffers.get(tiler.op.name, {}):
        if name not in known:
            raise InputError(
                f"{tiler.op.name} has no operand {name!r} to buffer",
                where="--buffering",
                cure=f"one of {', '.join(sorted(known))}",
            )


def choose_tiling(
    tiler: Tiler, available_bytes: int, timing: SocTiming, pricer: Pricer, dma: DmaCost | None = None
) -> Choice:
    """The tiling with the fewest estimated cycles of a short list of those that fit.

    On the list are those that seem best by what they move and what their kernels issue
    (`scheduler.tiles.short_list`). Raises `DoesNotFitError` if even the smallest tile is too large.
    """
    dma = dma or DmaCost(timing)
    ranked = _ranked(tiler, available_bytes, dma)
    choice = _best_tiling(tiler, ranked, available_bytes, timing, pricer, dma)
    assert isinstance(choice, Choice), "a tiler with resident tensors"
    return choice


def _ranked(tiler: Tiler, available_bytes: int, dma: DmaCost) -> _Ranked:
    candidates = enumerate_tilings(tiler, available_bytes)
    usable = allowed(candidates) if tiler.resident else np.ones(len(candidates), np.bool_)
    moves = moves_of(candidates, dma)
    return _Ranked(candidates.without_boxes(), moves, usable)


def _best_tiling(
    tiler: Tiler,
    ranked: _Ranked,
    available_bytes: int,
    timing: SocTiming,
    pricer: Pricer,
    dma: DmaCost,
    early: Early = NOTHING_EARLY,
) -> Choice | NotInPlace:
    """`choose_tiling` of those that use resident tensors in place."""
    candidates = replace(ranked.candidates, tiler=tiler)
    fitting = (candidates.l1_bytes <= available_bytes) & (ranked.moves.far_cycles < np.inf)
    if not fitting.any():
        raise smallest_does_not_fit(tiler, available_bytes)
    if isinstance(ranked.usable, NotInPlace):
        return ranked.usable
    usable = ranked.usable & fitting
    if not usable.any():
        return NotInPlace(next(iter(tiler.resident.values())).storage, no_room(tiler.op.name))
    cost = TileCost(timing, pricer, tiler.tensors, dma)
    best: tuple[int, int, int] | None = None
    chosen: Tiling | None = None
    refused: NotInPlace | None = None
    estimates = 0
    if available_bytes not in ranked.lists:
        ranked.lists[available_bytes] = short_list(candidates, ranked.moves, usable, dma, pricer)
    for index in ranked.lists[available_bytes]:
        if estimates == BUILT:
            break
        tiling = candidates.tiling(index)
        if tiling.l1_bytes > available_bytes or not fits_slots(tiling, tiler.stream):
            continue
        why = refusal(tiling, tiler.resident)
        if why is not None:
            refused = why
            continue
        estimates += 1
        estimated = with_streams(estimate_cycles(tiling, cost, tiler, early), tiling, tiler, timing)
        key = estimated, len(tiling.tiles), index
        if best is None or key < best:
            best, chosen = key, tiling
    if best is None or chosen is None:
        if refused is not None:
            return refused
        raise smallest_does_not_fit(tiler, available_bytes)
    return Choice(tiler.choice.kernel, chosen, candidates.counts, best[0], _note(tiler, chosen, candidates))


def _note(tiler: Tiler, chosen: Tiling, candidates: Candidates) -> str:
    fewest, single = int(candidates.tiles[0]), candidates.fewest_tiles_single
    if not 0 < single < fewest:
        return candidates.note
    shrunk = (
        f"{tiler.op.name}: tiles shrank to hold {tiler.buffer_depth} buffers per operand in L1: "
        f"{len(chosen.tiles)} tiles, where {single} would fit with single buffering"
    )
    return f"{shrunk}; {candidates.note}" if candidates.note else shrunk


def smallest_does_not_fit(tiler: Tiler, available_bytes: int) -> DoesNotFitError:
    """The report for the smallest possible tile."""
    return does_not_fit(tiler, tiler.smallest(), available_bytes)


def whole_op(tiler: Tiler, available_bytes: int) -> Tiling:
    """The op in one tile, everything it needs in L1 at once. Raises `DoesNotFitError`."""
    tiling = tiler.build({})
    if tiling.l1_bytes > available_bytes:
        raise does_not_fit(tiler, tiling, available_bytes, whole=True)
    return tiling
