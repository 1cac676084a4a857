# SPDX-License-Identifier: Apache-2.0
"""A quick estimate of what core 0 waits for the code of an op: its tile loop, and what that calls.

It is a term of the op alone: its function, kernels and functions of the platform come once from L2, as far as
they have not survived in the shared cache, and then from that. `scheduler.programs.program_code` lays the
code of a whole program, `arch.blocks.code_fetch` fetches it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from arch.blocks.bursts import BurstRules
from arch.spec.timing import SocTiming
from configs.values import Struct
from scheduler.tiles.code_sizes import (
    LEAST_LOOP,
    WRITTEN_OUT_BYTES,
    kernel_sizes,
    shipped_sizes,
    table_place_bytes,
)
from scheduler.tiles.tiling import Tiler

MOST = 0.5
"""A share of code from which on it counts as lost where it is lost or not."""


class TileCode(Struct, frozen=True):
    """The code of one tile: its `form`, equal for tiles that may be one in a loop; statements by their word
    in the sizes, without and with loads that run beside them; kernels it calls; cycles of these loads; and of
    a table those of its transfers, more than of a function."""

    form: object
    statements: Sequence[tuple[str, int]]
    beside: Sequence[tuple[str, int]]
    kernels: Sequence[str]
    beside_cycles: float
    table_cycles: float = 0.0


class OpCode(Struct, frozen=True):
    """The code of an op before it is cut: bytes of its function, and of those of each of its kernels."""

    size_bytes: int
    kernels: Mapping[str, Mapping[str, int]]


def op_code(tiler: Tiler, usable_bytes: int) -> OpCode:
    """That of an op with one tile, or if that is too large with a loop of tiles.

    Around such a loop stand the first tiles and the last ones of several buffers.
    """
    tiling, sizes = tiler.build({}), shipped_sizes()["op"]
    task = tiling.tiles[0]
    moved = len(task.inputs) + len(task.outputs)
    tile_bytes = len(task.calls) * sizes["fork"] + moved * (sizes["transfer_1d"] + sizes["wait"])
    if tiling.l1_bytes > usable_bytes:
        tile_bytes = tile_bytes * (2 * max(1, tiler.buffer_depth) - 1) + sizes["loop"]
    calls = {call.kernel: call for call in task.calls}
    kernels = {
        name: kernel_sizes(call.work(tiler.choice.cores, defaultdict(int)), shipped_sizes())
        for name, call in calls.items()
    }
    return OpCode(sizes["op"] + tile_bytes, kernels)


def _survives(timing: SocTiming, size_bytes: int) -> float:
    """The share of a line that so many bytes of code leave in the shared cache."""
    ways = timing.icache.shared_ways
    return float((1 - 1 / ways) ** (size_bytes * ways / timing.icache.shared_bytes))


def functions_bytes(ops: Sequence[OpCode]) -> int:
    """Bytes of the code of ops that are functions, with kernels and platform."""
    called = {name: size for op in ops for found in op.kernels.values() for name, size in found.items()}
    code = sum(op.size_bytes for op in ops) + sum(called.values())
    return code + sum(shipped_sizes()["platform"].values())


class Lost:
    """What of its code an op does not find in the shared cache.

    A line that was fetched once stays until another line takes its way, which is a random one: with each line
    of the same set with a probability of 1 in the number of ways. In the second iteration, as
    `arch.blocks.code_fetch` has it, all lines of the program have come since. What several `ops` execute was
    fetched by the last of them. In the first iteration (`cold`) nothing of its function is there.
    """

    def __init__(
        self, timing: SocTiming, ops: Sequence[OpCode], beside_bytes: int = 0, *, cold: bool = False
    ) -> None:
        sizes = shipped_sizes()
        kernels = {name: functions for op in ops for name, functions in op.kernels.items()}
        functions = {name: each for found in kernels.values() for name, each in found.items()}
        uses = Counter(
            name for op in ops for name in {name for found in op.kernels.values() for name in found}
        )
        size_bytes = functions_bytes(ops)
        lost_share = 1 - _survives(timing, size_bytes + beside_bytes)
        self.is_walked = timing.l1.tables_bytes > 0 and lost_share >= MOST
        """Whether ops are tables: if most code of the programs would be lost as functions. Below that the
        walk costs more than it saves. Tiles are chosen after this decision, so it cannot depend on them."""
        if self.is_walked:
            size_bytes += sum(sizes["walk"].values()) - sum(op.size_bytes for op in ops)
        survives = _survives(timing, size_bytes)
        self.own = 1.0 if cold else 1 - survives
        """The share of its own function."""
        self.platform = 1 - float(survives ** (1 / max(1, len(ops))))
        """The share of a function of the platform."""
        lost = {name: each * (1 - float(survives ** (1 / uses[name]))) for name, each in functions.items()}
        self.kernels = {kernel: {name: lost[name] for name in found} for kernel, found in kernels.items()}
        """By kernel the bytes that are lost of each of its functions."""


_Walk = tuple[float, float, float]
_NO_CODE: _Walk = 0.0, 0.0, 0.0
TRANSFERS = ("transfer_1d", "transfer_2d")

WAITS_A_RECORD = 2
"""Of one table, about: 1.6 to 2.0 in the exports of docs/deploy.md."""


class _Form(Struct, frozen=True):
    """The code of each statement by its word, as `_walk` has it: its `own`, and what is `shared`.

    Tiles that are alike are a loop if there are more than `written_out`. A table takes `walk_cycles` beside.
    """

    own: Mapping[str, _Walk]
    shared: Mapping[str, _Walk]
    written_out: int
    walk_cycles: Mapping[str, float] = {}


class CodeCost:
    """What the tiles of an op wait for code on a machine, of which a part is `lost`."""

    def __init__(self, timing: SocTiming, lost: Lost) -> None:
        icache, dma, events, sizes = timing.icache, timing.dma, timing.event_unit, shipped_sizes()
        self._lost, self._icache, own = lost, icache, sizes["op"]
        self._place_bytes = table_place_bytes(timing) if lost.is_walked else 0
        # Turns of a loop of the smallest tiles that the compiler writes out.
        written_out = WRITTEN_OUT_BYTES // (2 * own["transfer_1d"] + 2 * own["wait"] + own["fork"])
        cycles = {
            "transfer_1d": dma.transfer_code_1d_cycles + dma.program_1d_cycles,
            "transfer_2d": dma.transfer_code_2d_cycles + dma.program_2d_cycles,
            "wait": dma.wait_done_cycles,
            "fork": max(events.fork_push_cycles, events.fork_master_cycles) + events.join_cycles,
        }

        def walks(of: Mapping[str, int], beside: Mapping[str, int]) -> dict[str, _Walk]:
            both = {word: size + beside.get(word, 0) for word, size in of.items()}
            pace = {word: cycles.get(word, 0) * icache.line_bytes / size for word, size in both.items()}
            return {word: self._walk(size, pace[word]) for word, size in of.items()}

        platform = walks(sizes["platform"], own)
        self._function = _Form(walks(own, sizes["platform"]), platform, written_out)
        walk = {**sizes["walk"], "op": sizes["walk"]["op"] + sizes["walk"]["record"]}
        shared: dict[str, _Walk] = {}
        for word, (lines, near, far) in walks(walk, sizes["platform"]).items():
            called = platform.get(word, _NO_CODE)
            shared[word] = lines + called[0], near + called[1], far + called[2]
        walked = {word: each for word, each in sizes["walk_cycles"].items() if word not in TRANSFERS}
        walked["wait"] = walked["wait"] / WAITS_A_RECORD + walked["waits"]
        self._table = _Form({}, shared, LEAST_LOOP - 1, walked)
        self._kernel_cycles = max(0, icache.line_from_l2_cycles - icache.line_from_shared_cycles)
        link = timing.l2.link_bytes_per_cycle
        bursts = (BurstRules.of(timing.dma, timing.l1.word_bytes).outstanding - 1) * timing.dma.burst_bytes
        self._behind_cycles = max(0.0, bursts / link - timing.l2.code_behind_cycles) if link else 0.0

    def _walk(self, size_bytes: int, pace_cycles: float) -> tuple[float, float, float]:
        """Lines of straight code that is jumped to, and what it waits: all in the shared cache, or in L2."""
        icache, lines = self._icache, size_bytes / self._icache.line_bytes
        near, far = (
            max(0.0, jump - icache.jump_cycles) + max(0.0, lines - 1) * max(0.0, line - pace_cycles)
            for jump, line in (
                (icache.jump_from_shared_cycles, icache.line_from_shared_cycles),
                (icache.jump_from_l2_cycles, icache.line_from_l2_cycles),
            )
        )
        return lines, near, far

    def waits(self, tiles: Sequence[TileCode]) -> Iterator[float]:
        """What core 0 waits for code in each tile.

        A form that was there has its code in the shared cache, unless so few tiles have it that they are
        written out. A line that is fetched while loads run waits behind as many bursts as may be outstanding,
        but not longer than they run.
        """
        before: object = None
        alike = Counter(tile.form for tile in tiles)
        forms: dict[object, bool] = {}
        settled: dict[object, float] = {}
        there: set[str] = set()
        lost_own, lost_platform = self._lost.own, self._lost.platform
        form = self._table if self._has_table(tiles, alike) else self._function
        for tile in tiles:
            is_new = tile.form not in forms or alike[tile.form] <= form.written_out
            becomes_loop = not is_new and tile.form == before and not forms[tile.form]
            before = tile.form
            if tile.form in settled and not becomes_loop:
                yield settled[tile.form]
                continue
            cycles = lines = 0.0
            for place, (word, count) in enumerate((*tile.statements, *tile.beside)):
                of_own, of_platform = form.own.get(word, _NO_CODE), form.shared.get(word)
                is_beside = place >= len(tile.statements)
                cycles += count * (of_own[1] + form.walk_cycles.get(word, 0))
                if is_new:
                    lines += is_beside * lost_own * count * of_own[0]
                    cycles += lost_own * count * (of_own[2] - of_own[1])
                if count and of_platform is not None:
                    cycles += count * of_platform[1]
                    if word not in there:
                        there.add(word)
                        lines += is_beside * lost_platform * of_platform[0]
                        cycles += lost_platform * (of_platform[2] - of_platform[1])
            if is_new:
                forms[tile.form] = False
                called = [
                    one for kernel in tile.kernels for one in self._lost.kernels.get(kernel, {}).items()
                ]
                for name, lost_bytes in dict(called).items():
                    lost_lines = lost_bytes / self._icache.line_bytes if name not in there else 0.0
                    there.add(name)
                    lines += lost_lines
                    cycles += lost_lines * self._kernel_cycles
            elif becomes_loop:
                forms[tile.form] = True
                loop = form.own.get("loop", _NO_CODE)
                lines += lost_own * loop[0]
                cycles += lost_own * loop[2]
            if form.walk_cycles:
                cycles += tile.table_cycles
            if not is_new and form.walk_cycles:
                # A turn has two tiles, and each transfer of it an address that changes.
                moved = sum(count for word, count in (*tile.statements, *tile.beside) if word in TRANSFERS)
                cycles += form.walk_cycles["loop"] / 2 + moved * form.walk_cycles["changed"]
            cycles += min(tile.beside_cycles, lines * self._behind_cycles)
            if not (is_new or becomes_loop):
                settled[tile.form] = cycles
            yield cycles

    def _has_table(self, tiles: Sequence[TileCode], alike: Mapping[object, int]) -> bool:
        """Whether the op is a table, by about the bytes of that: two turns of a loop have its place."""
        if not self._place_bytes:
            return False
        sizes = shipped_sizes()
        known, arguments = sizes["table"], sizes["arguments"]
        size_bytes, turns = float(known["op"] + known["fetch"]), Counter[object]()
        for tile in tiles:
            is_loop = alike[tile.form] >= LEAST_LOOP
            turns[tile.form] += 1
            if is_loop and turns[tile.form] > 2:
                continue
            for word, count in (*tile.statements, *tile.beside):
                size_bytes += count * known[word] * (1 / 4 if word == "wait" else 1)
                size_bytes += 8 * count * (is_loop and word in TRANSFERS)
            words = [arguments.get(kernel, known["arguments"]) for kernel in tile.kernels]
            size_bytes += sum(4 * (each - -each // 32) for each in words) + known["loop"] / 2 * is_loop
        return size_bytes <= self._place_bytes
