# SPDX-License-Identifier: Apache-2.0
"""The numbers of a run: bytes really move, early reads give NaN, races are named, a replay repeats it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arch.blocks.soc import Soc
from arch.memories.effects import EffectLog
from arch.memories.memory import Storage
from arch.memories.races import Span, span_of
from arch.spec.program import Action, Command, Compute, Effect, Place, Program, Release
from configs.errors import InputError, RaceError, ShapeError
from shared.counted_work import counted
from shared.soc_fixture import FixedCostModel, Script, elementwise, read, run, soc_timing, team, write
from traces.events import Work

LENGTH = 256
IN_L2, OUT_L2 = Place("l2", 0, (LENGTH,)), Place("l2", 8192, (LENGTH,))
IN_L1, OUT_L1 = Place("l1", 0, (LENGTH,), name="x"), Place("l1", 2048, (LENGTH,), name="y")
VALUES = np.arange(LENGTH, dtype=np.float32)


def double_in_l1(*, wait_for_input: bool, wait_for_output: bool = True) -> Program:
    """y = 2 x through L1, with or without the wait between transfer and kernel."""
    script = Script()
    load = script.start(read(0, 0, 4 * LENGTH))
    if wait_for_input:
        script.wait(load)
    script.compute(team("double", 1), fork=False, effect=elementwise(IN_L1, OUT_L1, lambda x: 2 * x), tile=7)
    if not wait_for_input:
        script.wait(load)
    store = script.start(write(2048, 8192, 4 * LENGTH))
    if wait_for_output:
        script.wait(store)
    return script.program()


def soc_with_values(**options: bool) -> Soc:
    soc = Soc(soc_timing(), FixedCostModel({"double": 100, "mm": 50}), **options)
    soc.load(IN_L2, VALUES)
    return soc


def test_a_tile_goes_through_l1() -> None:
    soc = soc_with_values()
    assert np.isnan(soc.fetch(OUT_L2)).all()
    soc.run(double_in_l1(wait_for_input=True))
    assert np.array_equal(soc.fetch(OUT_L2), 2 * VALUES)


def test_memory_survives_runs_and_release_ends_it() -> None:
    soc = soc_with_values()
    soc.run(Script().program())
    assert np.array_equal(soc.fetch(IN_L2), VALUES)
    soc.release(IN_L2)
    assert np.isnan(soc.fetch(IN_L2)).all()


@pytest.mark.smoke
def test_a_missing_wait_is_a_race_that_names_both_parties() -> None:
    with pytest.raises(RaceError) as caught:
        soc_with_values().run(double_in_l1(wait_for_input=False))
    message = str(caught.value)
    assert "race at cycle 118: DMA in (op op FW, buffer) touches l1 bytes 0 to 1024" in message
    assert "which kernel double (op op FW tile 7, double) has used since cycle 116" in message
    assert caught.value.exit_code == 4
    assert "wait for the transfer" in message


def test_a_missing_wait_gives_nan_when_races_are_let_through() -> None:
    soc = soc_with_values(detect_races=False)
    soc.run(double_in_l1(wait_for_input=False))
    assert np.isnan(soc.fetch(OUT_L2)).all()


def test_races_are_found_without_moving_bytes() -> None:
    with pytest.raises(RaceError):
        soc_with_values().run(double_in_l1(wait_for_input=False), effects=False)


def test_a_store_that_is_not_awaited_ends_before_the_run_returns() -> None:
    soc = soc_with_values()
    soc.run(double_in_l1(wait_for_input=True, wait_for_output=False))
    assert np.array_equal(soc.fetch(OUT_L2), 2 * VALUES)


def test_a_kernel_must_not_write_what_the_dma_still_reads() -> None:
    script = Script()
    store = script.start(write(0, 0, 4096))
    script.compute(team("mm", 1), fork=False)  # time for the transfer to begin, not to end
    script.compute(team("mm", 2), effect=elementwise(OUT_L1, IN_L1, lambda x: x))
    script.wait(store)
    with pytest.raises(RaceError, match=r"kernel mm .* touches l1 bytes .*, which DMA out .* has used"):
        soc_with_values().run(script.program())


def test_reading_what_the_other_direction_still_writes_in_l2_is_a_race() -> None:
    script = Script()
    transfers = [script.start(write(0, 0, 4096)), script.start(read(8192, 2048, 4096))]
    for transfer in transfers:
        script.wait(transfer)
    with pytest.raises(RaceError, match="l2 bytes 2048 to 6144"):
        soc_with_values().run(script.program())


def test_interleaved_columns_are_no_race() -> None:
    script = Script()
    transfers = [
        script.start(write(0, 0, 64, 100, 256)),
        script.start(read(16384, 64, 64, 100, 256)),
    ]
    for transfer in transfers:
        script.wait(transfer)
    soc_with_values().run(script.program())


def test_releasing_a_buffer_in_use_is_a_race() -> None:
    script = Script()
    script.start(read(0, 0, 4096))
    script.compute(team("mm", 1), fork=False)
    actions: list[Action] = [*script.actions, Release(2, (), Work("op"), (Place("l1", 512, (4,)),))]
    with pytest.raises(RaceError, match="the release of buffers"):
        soc_with_values().run(Program("test", tuple(actions)))


def test_a_released_buffer_reads_as_nan() -> None:
    actions = list(double_in_l1(wait_for_input=True).actions)
    actions.append(Release(len(actions), (), Work("op"), (OUT_L2,)))
    soc = soc_with_values()
    soc.run(Program("test", tuple(actions)))
    assert np.isnan(soc.fetch(OUT_L2)).all()
    assert np.array_equal(soc.fetch(OUT_L1), 2 * VALUES)


@pytest.mark.parametrize(
    ("results", "error", "message"),
    [
        (lambda x: [x, x], InputError, "2 arrays: return 1"),
        (lambda x: [x[1:]], ShapeError, r"shape \(255,\): use the shape of its place, \(256,\)"),
    ],
)
def test_results_must_fill_their_places(results, error: type[Exception], message: str) -> None:  # type: ignore[no-untyped-def]
    effect = Effect((IN_L1,), (OUT_L1,), lambda arrays: results(arrays[0]))
    script = Script()
    script.compute(team("mm", 1), effect=effect)
    with pytest.raises(error, match=message):
        soc_with_values().run(script.program())


def test_places_outside_a_memory_are_refused() -> None:
    soc = soc_with_values()
    with pytest.raises(InputError, match="x uses bytes 65532 to 65540, but the memory has 65536 B"):
        soc.fetch(Place("l1", 65532, (2,), name="x"))
    with pytest.raises(InputError, match="unknown memory level 'l7'"):
        soc.load(Place("l7", 0, (2,)), VALUES)
    with pytest.raises(ShapeError, match="the shape of its place"):
        soc.load(IN_L2, VALUES[1:])


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8", "int64"])
def test_fresh_memory_is_poison_in_every_dtype(dtype: str) -> None:
    fresh = Storage("l1", 64).read(Place("l1", 0, (4,), dtype))
    poisoned = np.isnan(fresh) if fresh.dtype.kind == "f" else fresh == np.array(-1).astype(dtype)
    assert poisoned.all()


def training_like(tiles: int) -> Program:
    """Double-buffered x <- x / 2 + 1 over `tiles` tiles of L2, in place, through two L1 buffers."""
    script = Script()
    size = 4 * LENGTH
    loads, stores = {}, {}
    for tile in range(tiles + 1):
        if tile < tiles:
            if tile >= 2:
                script.wait(stores[tile - 2])
            loads[tile] = script.start(read(size * (tile % 2), size * tile, size), tile=tile)
        if tile >= 1:
            done = tile - 1
            script.wait(loads[done])
            place = Place("l1", size * (done % 2), (LENGTH,))
            script.compute(
                team("double", 8), effect=elementwise(place, place, lambda x: x / 2 + 1), tile=done
            )
            stores[done] = script.start(write(size * (done % 2), size * done, size), tile=done)
    for tile in range(max(0, tiles - 2), tiles):
        script.wait(stores[tile])
    return script.program()


def test_replay_does_what_the_run_did() -> None:
    tiles = 5
    place = Place("l2", 0, (tiles * LENGTH,))
    values = np.random.default_rng(0).normal(size=place.shape).astype(np.float32)
    program = training_like(tiles)
    simulated, replayed = soc_with_values(), soc_with_values()
    for soc in (simulated, replayed):
        soc.load(place, values)
    log = replayed.run(program).effect_log
    simulated.run(program)
    expected = values / 2 + 1
    for _ in range(3):
        simulated.run(program)
        replayed.replay(log)
        expected = expected / 2 + 1
    assert np.array_equal(simulated.fetch(place), expected)
    assert np.array_equal(replayed.fetch(place), expected)


def test_a_log_of_a_run_without_numbers_can_be_replayed() -> None:
    soc = soc_with_values()
    log = soc.run(double_in_l1(wait_for_input=True), effects=False).effect_log
    assert np.isnan(soc.fetch(OUT_L2)).all()
    soc.replay(log)
    assert np.array_equal(soc.fetch(OUT_L2), 2 * VALUES)


def test_replay_of_a_race_gives_the_same_nan() -> None:
    simulated, replayed = (soc_with_values(detect_races=False) for _ in range(2))
    log = replayed.run(double_in_l1(wait_for_input=False), effects=False).effect_log
    simulated.run(double_in_l1(wait_for_input=False))
    replayed.replay(log)
    assert np.array_equal(simulated.fetch(OUT_L2), replayed.fetch(OUT_L2), equal_nan=True)
    assert np.isnan(replayed.fetch(OUT_L2)).all()


def test_replaying_a_hundred_actions_is_little_work() -> None:
    """Some 3 ms; `benchmarks/test_simulator_speed.py` measures the seconds."""
    soc = soc_with_values()
    place = Place("l2", 0, (25 * LENGTH,))
    soc.load(place, np.zeros(place.shape, np.float32))
    program = training_like(25)
    log = soc.run(program).effect_log
    assert len(program.actions) >= 100
    for _ in ("step by step", "compiling"):
        soc.replay(log)
    with counted() as work:
        soc.replay(log)
    assert work.calls < 5 * len(program.actions)


SPANS = st.builds(
    lambda address, line, lines, gap: span_of("l2", address, line, lines, line + gap if lines > 1 else 0),
    st.integers(0, 60),
    st.integers(1, 9),
    st.integers(1, 6),
    st.integers(0, 12),
)


@given(SPANS, SPANS)
def test_overlap_of_strided_spans_is_that_of_their_byte_sets(one: Span, two: Span) -> None:
    def touched(span: Span) -> set[int]:
        lines = range(span.lines)
        return {span.address + line * span.stride_bytes + i for line in lines for i in range(span.line_bytes)}

    assert one.overlaps(two) == two.overlaps(one) == bool(touched(one) & touched(two))


ANY_COMMANDS = st.lists(
    st.builds(
        lambda to_l1, l1, l2, size: Command(to_l1, l1, "l2", l2, size),
        st.booleans(),
        st.integers(0, 500),
        st.integers(0, 500),
        st.integers(1, 300),
    ),
    max_size=2,
).map(tuple)
"""What one core of a team moves."""

WORDS = st.integers(0, 255).map(lambda word: 4 * word)


@st.composite
def any_program(draw: st.DrawFn) -> Program:
    """Transfers and kernels over a few hundred bytes, waits in any order, races included."""
    script = Script()
    open_transfers: list[int] = []
    for _ in range(draw(st.integers(1, 14))):
        kind = draw(st.sampled_from(["in", "out", "wait", "kernel", "team"]))
        if kind in ("in", "out") and len(open_transfers) < 12:
            line = draw(st.integers(1, 60))
            lines = draw(st.integers(1, 5))
            stride = line + draw(st.integers(0, 20)) if lines > 1 else 0
            l1, l2 = draw(st.integers(0, 500)), draw(st.integers(0, 500))
            open_transfers.append(script.start(Command(kind == "in", l1, "l2", l2, line, lines, stride)))
        elif kind == "wait" and open_transfers:
            script.wait(open_transfers.pop(draw(st.integers(0, len(open_transfers) - 1))))
        elif kind == "kernel":
            source, target = (Place("l1", draw(WORDS), (16,), "uint32") for _ in range(2))
            effect = elementwise(source, target, lambda x: x * np.uint32(3) + np.uint32(1))
            script.compute(team("mm", draw(st.integers(1, 8))), effect=effect, fork=True)
        elif kind == "team" and len(open_transfers) < 8:
            script.team_transfer(*[draw(ANY_COMMANDS) for _ in range(draw(st.integers(0, 8)))])
    for transfer in open_transfers:
        script.wait(transfer)
    return script.program()


@given(any_program(), st.integers(0, 2**32 - 1))
def test_replay_equals_run_byte_for_byte_even_with_races(program: Program, seed: int) -> None:
    image = np.random.default_rng(seed).integers(0, 256, 2048, dtype=np.uint8)
    places = [Place(level, 0, (2048,), "uint8") for level in ("l1", "l2")]
    simulated, replayed = (
        Soc(soc_timing(), FixedCostModel({"mm": 40}), detect_races=False) for _ in range(2)
    )
    log: EffectLog = replayed.run(program, effects=False).effect_log
    for soc in (simulated, replayed):
        for place in places:
            soc.load(place, image)
    simulated.run(program)
    for _ in ("step by step", "compiled"):
        replayed.replay(log)
        for place in places:
            assert np.array_equal(simulated.fetch(place), replayed.fetch(place))
            replayed.load(place, image)


@given(any_program())
def test_tracks_account_for_every_cycle_and_every_byte(program: Program) -> None:
    cost_model = FixedCostModel({"mm": 90}, skew=7, slowdown=3)
    cycles, tracer, _ = run(program, cost_model, detect_races=False)
    for core in range(8):
        edge = busy = stalled = 0
        slices = sorted(
            (s for s in tracer.slices if s.track == f"soc.cluster.core{core}"), key=lambda s: s.start_cycles
        )
        for piece in slices:
            assert piece.start_cycles == edge < piece.end_cycles
            edge = piece.end_cycles
            busy += piece.busy_cycles
            inner = sum(lost for _, lost in piece.stalls)
            stalled += inner if piece.kind == "compute" else piece.duration_cycles
            if piece.kind == "compute":
                assert piece.busy_cycles == piece.instructions
        assert edge == busy + stalled == cycles
    moved = {True: 0, False: 0}
    for to_l1, name in ((True, "in"), (False, "out")):
        track = sorted(tracer.track(f"soc.cluster.dma.{name}"))
        assert all(one[1] <= two[0] for one, two in pairwise(track))
        moved[to_l1] = sum(s.bytes for s in tracer.slices if s.track == f"soc.cluster.dma.{name}")
    commands = [
        command
        for action in program.actions
        for entry in getattr(action, "commands", ())
        for command in (entry if isinstance(entry, tuple) else (entry,))
    ]
    for to_l1, total in moved.items():
        assert total == sum(command.size_bytes for command in commands if command.to_l1 == to_l1)
    computed = sum(isinstance(action, Compute) for action in program.actions)
    assert len(tracer.compute("soc.cluster.core0")) == computed


@pytest.mark.parametrize("used", [0, 1, 4096, 4099, 10_000])
def test_what_lies_in_a_memory_is_taken_and_put_back_without_what_nobody_has_written(
    used: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arch.memories.memory.BLOCK_BYTES", 4096)
    storage = Storage("l2", 10_000)
    storage.bytes[: used // 2] = 7
    storage.bytes[max(0, used - 1) : used] = 0
    before, content = storage.bytes.copy(), storage.content()
    assert content.size == used
    storage.bytes[:] = 1
    storage.set_content(content)
    assert np.array_equal(storage.bytes, before)
