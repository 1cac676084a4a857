"""KIND tiled-layers: matmul, ReLU and SGD with operands in L2, tiled over N and M or over elements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle, islice

from arch.isa import TeamWork
from arch.program import Command
from scheduler.validation.cases import CORES, CYCLES, MACHINE_COLUMNS, MOST_REPEATED, Case, Column
from scheduler.validation.machines import machine_of, program_cycles, with_dma
from scheduler.validation.mm import matmul_team
from scheduler.validation.placement import placed
from scheduler.validation.prediction import Prediction
from scheduler.validation.team import forked
from scheduler.validation.tile_loop import Tile, tile_loop
from trainlib.kernels.catalogue import matmul_work, vector_work

ALL_IN_L1 = "none_all_in_L1"

COLUMNS = (
    *MACHINE_COLUMNS,
    Column("codegen"),
    Column("workload", choices=("matmul", "relu_fw", "sgd")),
    *(
        Column(name, 1, optional=True)
        for name in ("n", "k", "m", "elements", "tile_n", "tile_m", "tile_elements")
    ),
    Column("buffering", choices=("single", "double", "single_no_compute", "double_no_compute", ALL_IN_L1)),
    Column("kernel"),
    CORES,
    CYCLES,
)


def predict(case: Case) -> Prediction:
    """The tile loop on the event model, or one fork where everything lies in L1."""
    buffering = case.text("buffering")
    matmul = case.text("workload") == "matmul"
    if buffering == ALL_IN_L1:
        return Prediction(forked(case, _whole(case, matmul))[0])
    double = buffering.startswith("double")
    compute = not buffering.endswith("no_compute")
    found = (_matmul_tiles if matmul else _elementwise_tiles)(case, double, compute)
    tiles = list(islice(found, MOST_REPEATED + 1))
    if len(tiles) > MOST_REPEATED:
        raise case.error(f"more than {MOST_REPEATED} tiles", "larger tiles")
    commands = [command for tile in tiles for command in (*tile.fetch, tile.store)]
    l1_bytes = 1 + max(command.l1_address + command.size_bytes for command in commands)
    l2_bytes = 1 + max(
        command.external_address + max(command.size_bytes, command.lines * command.stride_bytes)
        for command in commands
    )
    timing = machine_of(case, l1_bytes=l1_bytes, l2_bytes=l2_bytes)
    code_cycles = timing.dma.transfer_code_1d_cycles
    if matmul:
        # Every operand of the matmul is moved as a box, also one whose rows touch.
        code_cycles = timing.dma.transfer_code_2d_cycles
        timing = with_dma(timing, program_1d_cycles=timing.dma.program_2d_cycles)
    actions = tile_loop(tiles, double=double, code_cycles=code_cycles)
    return Prediction(program_cycles(timing, case.id, actions))


def _whole(case: Case, matmul: bool) -> TeamWork:
    if matmul:
        return matmul_team(case, case.number("n"), case.number("k"), case.number("m"), trans_b=False)
    elements = case.number("elements")
    addresses = placed(4 * elements, 4 * elements)[:-1]
    return vector_work(case.text("codegen"), case.text("workload"), elements, case.number("cores"), addresses)


def _parts(extent: int, size: int) -> Iterator[tuple[int, int]]:
    """(start, size) of the tiles of an extent; the last may be smaller."""
    return ((start, min(size, extent - start)) for start in range(0, extent, size))


def _matmul_tiles(case: Case, double: bool, compute: bool) -> Iterator[Tile]:
    """Row by row of tiles: the rows of A are fetched once per row, the columns of B for every tile.

    K is not cut. Rows of A and whole rows of C are contiguous in L2, columns of B are a 2D transfer.
    """
    n, k, m = case.number("n"), case.number("k"), case.number("m")
    tile_n, tile_m = min(n, case.number("tile_n")), min(m, case.number("tile_m"))
    b_base = 4 * n * k
    c_base = b_base + 4 * k * m
    sizes = (4 * tile_n * k, 4 * k * tile_m, 4 * tile_n * tile_m)
    first = placed(*sizes)
    buffers = (first, placed(*sizes, base=first[-1])) if double else (first,)
    tile_sets = cycle(buffers)
    row_sets = cycle(buffers)
    for row, rows in _parts(n, tile_n):
        a = next(row_sets)[0]
        fetch_a: tuple[Command, ...] = (Command(True, a, "l2", 4 * row * k, 4 * rows * k),)
        for column, columns in _parts(m, tile_m):
            _, b, c, _ = next(tile_sets)
            fetch_b = _box(True, b, b_base + 4 * column, 4 * columns, k, 4 * m)
            store = _box(False, c, c_base + 4 * (row * m + column), 4 * columns, rows, 4 * m)
            team = None
            if compute:
                team = matmul_work(
                    case.text("kernel"),
                    case.text("codegen"),
                    n=rows,
                    k=k,
                    m=columns,
                    trans_b=False,
                    cores=case.number("cores"),
                    a_address=a,
                    b_address=b,
                    c_address=c,
                )
            yield Tile((*fetch_a, fetch_b), team, store)
            fetch_a = ()


def _box(to_l1: bool, l1_address: int, external: int, line_bytes: int, lines: int, stride: int) -> Command:
    """A box of rows as one command: 1D where the rows touch."""
    if line_bytes == stride or lines == 1:
        return Command(to_l1, l1_address, "l2", external, line_bytes * lines)
    return Command(to_l1, l1_address, "l2", external, line_bytes, lines, stride)


def _elementwise_tiles(case: Case, double: bool, compute: bool) -> Iterator[Tile]:
    """ReLU reads x and writes y; SGD reads weights and gradients and writes the weights in place.

    With `double` the weights have three buffers, as one is on its way out.
    """
    loop = case.text("workload")
    elements, tile_elements = case.number("elements"), case.number("tile_elements")
    buffers = placed(*[4 * min(elements, tile_elements)] * 5)
    in_place = loop == "sgd"
    first = cycle(_chosen(buffers, (0, 2, 4) if in_place and double else (0, 2) if double else (0,)))
    second = cycle(_chosen(buffers, (1, 3) if double else (1,)))
    for start, size in _parts(elements, tile_elements):
        x, other = next(first), next(second)
        size_bytes = 4 * size
        fetch = [Command(True, x, "l2", 4 * start, size_bytes)]
        if in_place:
            fetch.append(Command(True, other, "l2", 4 * (elements + start), size_bytes))
            store = Command(False, x, "l2", 4 * start, size_bytes)
        else:
            store = Command(False, other, "l2", 4 * (elements + start), size_bytes)
        team = None
        if compute:
            team = vector_work(case.text("codegen"), loop, size, case.number("cores"), (x, other))
        yield Tile(tuple(fetch), team, store)


def _chosen(addresses: Sequence[int], indices: tuple[int, ...]) -> list[int]:
    return [addresses[index] for index in indices]
