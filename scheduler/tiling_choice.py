# SPDX-License-Identifier: Apache-2.0
"""Which tiling an op gets: a short list by what it moves and issues, then the best estimate of the list."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf

import numpy as np
from numpy.typing import NDArray

from arch.pricing.code_caches import WARM
from arch.pricing.cost_model import CostModel
from arch.spec.timing import SocTiming
from configs.errors import DoesNotFitError, InputError
from configs.values import Struct, replace
from scheduler.memory.host_memory import NO_PROGRAM, ProgramSize
from scheduler.options import BEST_DEPTH, WHOLE_OPS, ScheduleOptions
from scheduler.schedule_cache import ScheduleCache
from scheduler.tiles.code_cost import CodeCost
from scheduler.tiles.estimate import NOTHING_EARLY, Early, TileCost, TileLoop
from scheduler.tiles.l1_report import does_not_fit
from scheduler.tiles.resident_rules import NotInPlace, allowed, no_room, refusal
from scheduler.tiles.short_list import Moves, inner_tile, moves_of, short_list
from scheduler.tiles.streaming_cost import fits_slots, with_streams
from scheduler.tiles.tiling import Tiler, Tiling
from scheduler.tiles.tiling_candidates import Counts, TilingCandidates, enumerate_tilings
from scheduler.tiles.transfer_cost import DmaCost
from trainlib.ir.graph import Op

BUILT = 5
"""Tilings that are built and estimated tile by tile, the best by `scheduler.tiles.short_list`."""

KEPT_TILES = 4096
"""Tiles of all of them that are held at a time; a tiling beyond is built once more if it may be the best."""


class TilingChoice(Struct, frozen=True):
    """The tiling taken, what was considered, and the estimate it won by."""

    kernel: str
    tiling: Tiling
    counts: Counts | None = None
    """None where the user fixed the tile."""
    estimated_cycles: int = 0
    note: str = ""
    """What the user should know about it."""


class RankedTilings(Struct, frozen=True):
    """Candidates of an op on all of L1, what they move, which of them use residents in place."""

    candidates: TilingCandidates
    moves: Moves
    usable: NDArray[np.bool_] | NotInPlace


class ShortList(Struct, frozen=True):
    """Cuts of an op that are worth building, and what is to be known of all candidates.

    A cut is (number of the candidate, size per dimension, loop order), what seems best first.
    """

    cuts: tuple[tuple[int, Mapping[str, int], tuple[str, ...]], ...]
    counts: Counts
    fewest_tiles: int
    fewest_tiles_single: int
    note: str
    least: ProgramSize
    """About what the program consists of at least, if that is much."""


class TilingChooser:
    """Chooses kernel and tiling of the ops of one schedule, one after another; `cache` remembers them.

    An op that is like one in the `cache` is cut like it. `code` says what ops wait for code that is fetched.
    """

    def __init__(
        self,
        timing: SocTiming,
        cost_model: CostModel,
        options: ScheduleOptions,
        cache: ScheduleCache,
        *,
        code: Callable[[], CodeCost | None] = lambda: None,
    ) -> None:
        self.timing = timing
        self.check: Callable[[ProgramSize], None] = lambda least: None
        """Raises for a program that is too large, before any tile of an op that has very many is built."""
        self.options = options
        self._cost_model = cost_model
        self._dma = DmaCost(timing)
        self._cache = cache
        self._code = code
        self._period_bytes = timing.l1.banks * timing.l1.word_bytes

    def choose(
        self, tiler: Tiler, available_bytes: int | None = None, early: Early = NOTHING_EARLY
    ) -> TilingChoice | NotInPlace:
        """What the options fix for this op, else the whole op if they ask for no tiles, else the best tiling.

        `available_bytes` is what resident tensors leave of L1. What is `early` the op may load while the op
        before it is at work. The tiling is the best one on all of L1 without resident tensors where it fits
        beside them and uses them in place, unless another one has fewer estimated cycles then. Raises
        `DoesNotFitError`, and `InputError` for dimensions, sizes and operands the op has not.
        """
        limit_bytes = self.timing.l1_usable_bytes if available_bytes is None else available_bytes
        try:
            if self.options.buffer_depth == BEST_DEPTH:
                return self._of_best_depth(tiler, limit_bytes, early)
            return self._of_depth(tiler, limit_bytes, early)
        finally:
            if not self._cache.keep_rankings:
                self._cache.rankings.clear()

    def least(self, tiler: Tiler, available_bytes: int) -> ProgramSize:
        """About what the program of an op consists of at least, if that is much and not fixed by options."""
        name = tiler.op.name
        fixed = name in self.options.tile_sizes or name in self.options.loop_orders
        if fixed or self.options.buffer_depth == WHOLE_OPS:
            return NO_PROGRAM
        try:
            single = self.options.buffer_depth == BEST_DEPTH
            listed = self._listed(tiler.with_depth(1) if single else tiler, available_bytes)
        except DoesNotFitError:
            return NO_PROGRAM
        return listed.least if isinstance(listed, ShortList) else NO_PROGRAM

    def _of_best_depth(self, tiler: Tiler, limit_bytes: int, early: Early) -> TilingChoice | NotInPlace:
        """The choice with double or single buffers, by estimate; double for a tile that is fixed and fits.

        One tile is the same with either.
        """
        by_depth: list[TilingChoice | NotInPlace] = []
        for depth in (2, 1):
            if by_depth and isinstance(by_depth[0], TilingChoice) and len(by_depth[0].tiling.tiles) == 1:
                break
            try:
                by_depth.append(self._of_depth(tiler.with_depth(depth), limit_bytes, early))
            except DoesNotFitError:
                if depth == 1 and not by_depth:
                    raise
        choices = [item for item in by_depth if isinstance(item, TilingChoice)]
        return min(choices, key=lambda choice: choice.estimated_cycles) if choices else by_depth[0]

    def _of_depth(self, tiler: Tiler, limit_bytes: int, early: Early) -> TilingChoice | NotInPlace:
        """The choice for the buffers the tiler has."""
        sizes = self.options.tile_sizes.get(tiler.op.name)
        order = self.options.loop_orders.get(tiler.op.name)
        choice: TilingChoice | NotInPlace
        if sizes is not None or order is not None:
            choice = TilingChoice(tiler.choice.kernel, tiler.fixed(sizes or {}, limit_bytes, order))
        elif self.options.buffer_depth == WHOLE_OPS:
            choice = TilingChoice(tiler.choice.kernel, whole_op(tiler, limit_bytes))
        else:
            choice = self._searched(tiler, limit_bytes, early)
        if isinstance(choice, NotInPlace):
            return choice
        _check_buffer_names(tiler, choice.tiling, self.options)
        return refusal(choice.tiling, tiler.resident) or choice

    def _searched(self, tiler: Tiler, limit_bytes: int, early: Early) -> TilingChoice | NotInPlace:
        """The tiling of an op beside what is resident."""
        usable_bytes = self.timing.l1_usable_bytes
        if not tiler.resident and limit_bytes == usable_bytes:
            return self._best(tiler, usable_bytes, early)
        alike = self._kind(tiler, early), limit_bytes, _places(tiler, self._period_bytes)
        cached = self._cached(alike, tiler, limit_bytes)
        if cached is not None:
            return cached
        choice = self._beside(tiler, limit_bytes, early, self._usual(tiler, limit_bytes, early))
        if isinstance(choice, TilingChoice):
            self._cache.tilings[alike] = choice
        return choice

    def _beside(
        self, tiler: Tiler, limit_bytes: int, early: Early, usual: TilingChoice | None
    ) -> TilingChoice | NotInPlace:
        """The usual tiling, or the best one in what is left of L1 if that takes fewer cycles."""
        if usual is not None and (not tiler.resident or len(usual.tiling.tiles) == 1):
            return usual
        try:
            other = self._best_of_listed(tiler, limit_bytes, early)
        except DoesNotFitError:
            if usual is None:
                raise
            return usual
        if usual is None or (
            isinstance(other, TilingChoice) and other.estimated_cycles < usual.estimated_cycles
        ):
            return other
        return usual

    def _usual(self, tiler: Tiler, limit_bytes: int, early: Early) -> TilingChoice | None:
        """What is best with nothing resident, if it fits and uses what is resident in place."""
        plain = tiler.without_residents()
        try:
            best = self._best(plain, self.timing.l1_usable_bytes, early)
        except DoesNotFitError:
            return None
        assert isinstance(best, TilingChoice)
        tiling = tiler.build(dict(best.tiling.sizes), best.tiling.order)
        if tiling.l1_bytes > limit_bytes or refusal(tiling, tiler.resident) is not None:
            return None
        cycles = best.estimated_cycles
        if tiler.resident:
            estimated = TileLoop(tiling, self._cost(tiler), tiler, early).cycles()
            assert estimated is not None, "no bound was passed"
            cycles = estimated
        return replace(best, tiling=tiling, estimated_cycles=cycles)

    def _cached(self, alike: object, tiler: Tiler, limit_bytes: int) -> TilingChoice | None:
        """The choice made for an op that is alike; None for one that this op can't have been given.

        What is cached may come from a file (`scheduler.run_cache`), which others may have changed.
        """
        choice = self._cache.tiling(alike)
        if choice is None or not _goes_with(choice, tiler):
            return None
        again = _again(choice, tiler)
        return again if again.tiling.l1_bytes <= limit_bytes else None

    def _best(self, tiler: Tiler, limit_bytes: int, early: Early) -> TilingChoice | NotInPlace:
        """The best tiling with nothing resident."""
        alike = self._kind(tiler, early)
        cached = self._cached(alike, tiler, limit_bytes)
        if cached is not None:
            return cached
        described = tiler.lowering.among_others(tiler.op)
        has_siblings = described != tiler.op and not tiler.stream.tensors
        among = (self._kind(tiler, early, described), limit_bytes) if has_siblings else None
        sibling = self._cache.siblings.get(among)
        choice = _again(sibling, tiler) if sibling else self._best_of_listed(tiler, limit_bytes, early)
        if isinstance(choice, TilingChoice):
            self._cache.tilings[alike] = choice
            if has_siblings:
                self._cache.siblings[among] = choice
        return choice

    def _best_of_listed(self, tiler: Tiler, limit_bytes: int, early: Early) -> TilingChoice | NotInPlace:
        """The best of those that are worth building."""
        listed = self._listed(tiler, limit_bytes)
        if isinstance(listed, NotInPlace):
            return listed
        if listed.least != NO_PROGRAM:
            self.check(listed.least)
        return _best_tiling(tiler, listed, limit_bytes, self._cost(tiler), early)

    def _kind(self, tiler: Tiler, early: Early, described: Op | None = None) -> object:
        """Equal for ops of which the same tiling is the best."""
        kind = _kind(tiler, early, described)
        return kind if self.options.code_start == WARM else (kind, "code")

    def _cost(self, tiler: Tiler) -> TileCost:
        return TileCost(self.timing, self._cost_model, tiler.tensors, self._dma, self._code())

    def _listed(self, tiler: Tiler, limit_bytes: int) -> ShortList | NotInPlace:
        """What is worth building of an op, whatever it may load early."""
        has_code = self.options.code_start != WARM
        alike = _kind(tiler, NOTHING_EARLY), limit_bytes, _places(tiler, self._period_bytes), has_code
        known = self._cache.short_lists.get(alike)
        if known is not None:
            return known
        key = tiler.op.name, tuple(tiler.resident), repr(tiler.depths), tiler.stream
        if key not in self._cache.rankings:
            self._cache.rankings[key] = _ranked(tiler, self.timing.l1_usable_bytes, self._dma)
        ranked = self._cache.rankings[key]
        listed = _short_listed(tiler, ranked, limit_bytes, self._dma, self._cost_model, has_code=has_code)
        if isinstance(listed, ShortList):
            self._cache.short_lists[alike] = listed
        return listed


def early_beside(before: TilingChoice | None, tensors: frozenset[str], timing: SocTiming) -> Early:
    """What an op may load while the last tile of the op `before` is computed.

    More cycles than filling all of L1 takes make no difference. The rest is rounded down to a power of two,
    so that alike ops behind ones that differ little are cut alike.
    """
    if before is None:
        return NOTHING_EARLY
    fill_cycles = timing.l1_usable_bytes // timing.dma.l1_bytes_per_cycle
    within_cycles = min(fill_cycles, before.estimated_cycles // len(before.tiling.tiles))
    return Early(tensors, 1 << within_cycles.bit_length() - 1 if within_cycles else 0)


def _goes_with(choice: TilingChoice, tiler: Tiler) -> bool:
    """Whether a choice has the kernel and the dimensions of an op."""
    sizes, dims = dict(choice.tiling.sizes), tiler.dims
    return (
        choice.kernel == tiler.choice.kernel
        and sorted(sizes) == sorted(choice.tiling.order) == sorted(dims)
        and all(1 <= size <= dims[name] for name, size in sizes.items())
    )


def _again(choice: TilingChoice, tiler: Tiler) -> TilingChoice:
    """A choice made for an op that is alike."""
    return replace(choice, tiling=tiler.build(dict(choice.tiling.sizes), choice.tiling.order))


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


def _kind(tiler: Tiler, early: Early, described: Op | None = None) -> object:
    """Equal for ops (as `described`) that differ in nothing but the names of layer and tensors."""
    op = tiler.op
    names = (*op.inputs, *op.outputs)
    loaded = tuple(number for number, name in enumerate(names) if name in early.tensors)
    ahead = (*loaded, early.within_cycles) if loaded else ()
    tensors = tuple((t.shape, t.dtype, t.layout) for t in (tiler.tensors[name] for name in names))
    same = tuple(names.index(name) for name in names)
    described = replace(described or op, name="", layer="", inputs=(), outputs=())
    streamed = tuple(number for number, name in enumerate(names) if name in tiler.stream.tensors)
    offchip = (streamed, tiler.stream.window_bytes, tiler.stream.most_slots) if streamed else ()
    return repr((described, tensors, same, tiler.choice, tiler.depths, ahead, *offchip))


def _check_buffer_names(tiler: Tiler, tiling: Tiling, options: ScheduleOptions) -> None:
    known = {buffer.name for buffer in tiling.buffers if buffer.role != "scratch"}
    for name in options.buffers.get(tiler.op.name, {}):
        if name not in known:
            raise InputError(
                f"{tiler.op.name} has no operand {name!r}",
                where="--buffering",
                cure=f"use one of {', '.join(sorted(known))}",
            )


def _ranked(tiler: Tiler, available_bytes: int, dma: DmaCost) -> RankedTilings:
    candidates = enumerate_tilings(tiler, available_bytes)
    usable = allowed(candidates) if tiler.resident else np.ones(len(candidates), np.bool_)
    moves = moves_of(candidates, dma)
    return RankedTilings(candidates, moves, usable)


def _short_listed(
    tiler: Tiler,
    ranked: RankedTilings,
    available_bytes: int,
    dma: DmaCost,
    cost_model: CostModel,
    *,
    has_code: bool,
) -> ShortList | NotInPlace:
    """Those that seem best by what they move and issue (`scheduler.tiles.short_list`) of what can be.

    Raises `DoesNotFitError` if even the smallest tile is too large.
    """
    candidates = replace(ranked.candidates, tiler=tiler)
    fitting = (candidates.l1_bytes <= available_bytes) & (ranked.moves.offchip_cycles < np.inf)
    if not fitting.any():
        raise smallest_does_not_fit(tiler, available_bytes)
    if isinstance(ranked.usable, NotInPlace):
        return ranked.usable
    usable = ranked.usable & fitting
    if not usable.any():
        return NotInPlace(next(iter(tiler.resident.values())).storage, no_room(tiler.op.name))
    numbers = short_list(candidates, ranked.moves, usable, dma, cost_model)
    if has_code and candidates.tiles[0] == 1 and usable[0] and 0 not in numbers[:BUILT]:
        numbers.insert(BUILT - 1, 0)  # the list does not see code, of which one tile has the least
    return ShortList(
        tuple((number, candidates.sizes_at(number), candidates.order_at(number)) for number in numbers),
        candidates.counts,
        int(candidates.tiles[0]),
        candidates.fewest_tiles_single,
        candidates.note,
        _least_size(candidates.at(np.array(numbers))),
    )


def _least_size(candidates: TilingCandidates) -> ProgramSize:
    """About what the program of an op consists of at least, if it is cut like one of many tiles."""
    if candidates.tiles.min() <= KEPT_TILES:
        return NO_PROGRAM
    tiler, footprint = candidates.tiler, candidates.footprint
    boxes = np.zeros_like(candidates.rows)
    for column in footprint.moved:
        if footprint.tensors[footprint.keys[column]] not in tiler.resident:
            boxes += candidates.changes[column] + candidates.of_sum(column)[0]
    tiles = [tiler.task(inner_tile(tiler, candidates.sizes_at(row))) for row in range(len(candidates))]
    kernels = candidates.tiles * np.array([len(tile.calls) for tile in tiles])
    return ProgramSize(
        actions=int((kernels + 2 * boxes).min()),
        commands=int(boxes.min()),
        kernels=int(kernels.min()),
    )


def _best_tiling(
    tiler: Tiler, listed: ShortList, available_bytes: int, cost: TileCost, early: Early = NOTHING_EARLY
) -> TilingChoice | NotInPlace:
    """The tiling with the fewest estimated cycles of the first `BUILT` that use residents in place."""
    refused: NotInPlace | None = None
    loops: dict[int, TileLoop] = {}
    kept: dict[int, Tiling] = {}
    for number, sizes, order in listed.cuts:
        if len(loops) == BUILT:
            break
        tiling = tiler.build(sizes, order)
        if tiling.l1_bytes > available_bytes or not fits_slots(tiling, tiler.stream):
            continue
        why = refusal(tiling, tiler.resident)
        if why is not None:
            refused = why
            continue
        loops[number] = TileLoop(tiling, cost, tiler, early)
        if sum(len(item.tiles) for item in kept.values()) + len(tiling.tiles) <= KEPT_TILES:
            kept[number] = tiling
    if not loops:
        if refused is not None:
            return refused
        raise smallest_does_not_fit(tiler, available_bytes)
    cuts = {number: (sizes, order) for number, sizes, order in listed.cuts}

    def tiling_of(number: int) -> Tiling:
        return kept[number] if number in kept else tiler.build(*cuts[number])

    cycles, chosen = _fastest(loops, tiling_of, tiler, cost.timing)
    return TilingChoice(tiler.choice.kernel, chosen, listed.counts, cycles, _note(tiler, chosen, listed))


def _fastest(
    loops: Mapping[int, TileLoop], tiling_of: Callable[[int], Tiling], tiler: Tiler, timing: SocTiming
) -> tuple[int, Tiling]:
    """The tiling with the fewest estimated cycles, then the fewest tiles, then the lowest number.

    Those that may be the best come first: of most others it is then known before their kernels are priced
    that they take longer.
    """
    best: tuple[int, int, int] | None = None
    several = len(loops) > 1  # of one alone no bound is asked
    for index in sorted(loops, key=lambda index: (loops[index].least_cycles, index)) if several else loops:
        cycles = loops[index].cycles(inf if best is None else best[0])
        if cycles is None:
            continue
        if tiler.stream.tensors:
            cycles = with_streams(cycles, tiling_of(index), tiler, timing)
        key = cycles, loops[index].tiles, index
        best = key if best is None else min(best, key)
    assert best is not None, "the first one has no bound"
    return best[0], tiling_of(best[2])


def _note(tiler: Tiler, chosen: Tiling, listed: ShortList) -> str:
    single = listed.fewest_tiles_single
    if not 0 < single < listed.fewest_tiles:
        return listed.note
    shrunk = (
        f"smaller tiles, to fit {min(tiler.buffer_depth, len(chosen.tiles))} buffers per operand in L1: "
        f"{len(chosen.tiles)} tiles, "
        f"where {single} would do with single buffering"
    )
    return f"{shrunk}; {listed.note}" if listed.note else shrunk


def smallest_does_not_fit(tiler: Tiler, available_bytes: int) -> DoesNotFitError:
    """The report for the smallest possible tile."""
    return does_not_fit(tiler, tiler.smallest(), available_bytes)


def whole_op(tiler: Tiler, available_bytes: int) -> Tiling:
    """The op in one tile, everything it needs in L1 at once. Raises `DoesNotFitError`."""
    tiling = tiler.build({})
    if tiling.l1_bytes > available_bytes:
        raise does_not_fit(tiler, tiling, available_bytes, whole=True)
    return tiling
