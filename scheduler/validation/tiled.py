"""KIND tiled: a loop over equal tiles of one kernel, operands in L2, single or double buffered."""

from __future__ import annotations

from arch.program import Command
from scheduler.validation.cases import CORES, CYCLES, MACHINE_COLUMNS, MOST_REPEATED, Case, Column
from scheduler.validation.machines import machine_of, program_cycles
from scheduler.validation.placement import placed
from scheduler.validation.prediction import Prediction
from scheduler.validation.tile_loop import Tile, bare_calls, tile_loop
from trainlib.kernels.catalogue import matmul_work, vector_work

COLUMNS = (
    *MACHINE_COLUMNS,
    Column("codegen"),
    Column("kernel"),
    Column("dtype", choices=("fp32",)),
    Column("n", 1),
    Column("k", 0),
    Column("m", 0),
    Column("tiles", 1, most=MOST_REPEATED),
    CORES,
    Column("buffering", choices=("single", "double")),
    CYCLES,
)


def predict(case: Case) -> Prediction:
    """The whole loop on the event model; tile i of every operand is contiguous in L2."""
    double = case.text("buffering") == "double"
    in_place = case.text("kernel") == "sgd"
    tiles = _elementwise_tiles(case, double) if in_place else _matmul_tiles(case, double)
    l1_bytes = 1 + max(
        command.l1_address + command.size_bytes for tile in tiles for command in (*tile.fetch, tile.store)
    )
    l2_bytes = 1 + max(tile.store.external_address + tile.store.size_bytes for tile in tiles)
    timing = bare_calls(machine_of(case, l1_bytes=l1_bytes, l2_bytes=l2_bytes))
    return Prediction(program_cycles(timing, case.id, tile_loop(tiles, double=double, in_place=in_place)))


def _command(l1_address: int, external_address: int, size_bytes: int, *, to_l1: bool) -> Command:
    return Command(to_l1, l1_address, "l2", external_address, size_bytes)


def _matmul_tiles(case: Case, double: bool) -> list[Tile]:
    """Each tile has its own A, B and C; set i modulo 2 of the L1 buffers when `double`."""
    n, k, m = case.number("n"), case.number("k"), case.number("m")
    if not (k and m):
        raise case.error(f"a matmul of {n} x {k} x {m} computes nothing", "sizes of 1 or more")
    sizes = (4 * n * k, 4 * k * m, 4 * n * m)
    a_bytes, b_bytes, c_bytes = sizes
    sets = [placed(*sizes)]
    if double:
        sets.append(placed(*sizes, base=sets[0][-1]))
    tiles = []
    for index in range(case.number("tiles")):
        a, b, c, _ = sets[index % len(sets)]
        team = matmul_work(
            case.text("kernel"),
            case.text("codegen"),
            n=n,
            k=k,
            m=m,
            trans_b=False,
            cores=case.number("cores"),
            a_address=a,
            b_address=b,
            c_address=c,
        )
        source = index * sum(sizes)
        fetch = (
            _command(a, source, a_bytes, to_l1=True),
            _command(b, source + a_bytes, b_bytes, to_l1=True),
        )
        tiles.append(Tile(fetch, team, _command(c, source + a_bytes + b_bytes, c_bytes, to_l1=False)))
    return tiles


def _elementwise_tiles(case: Case, double: bool) -> list[Tile]:
    """SGD works in place, in two sets of weights and gradients when `double`.

    All 72 measured rows have per tile kernel + output + a few cycles (2048 elements: 3223 a tile, 2127 + 1079
    without overlap): the output is not waited for after the next kernel, as in the other loops of the file,
    but before the buffer it leaves is fetched into again.
    """
    size_bytes = 4 * case.number("n")
    buffers = placed(*[size_bytes] * 4)
    tiles = []
    for index in range(case.number("tiles")):
        first = 2 * (index % 2) if double else 0
        w, g = buffers[first], buffers[first + 1]
        team = vector_work(case.text("codegen"), "sgd", case.number("n"), case.number("cores"), (w, g))
        source = 2 * index * size_bytes
        fetch = (
            _command(w, source, size_bytes, to_l1=True),
            _command(g, source + size_bytes, size_bytes, to_l1=True),
        )
        tiles.append(Tile(fetch, team, _command(w, source, size_bytes, to_l1=False)))
    return tiles
