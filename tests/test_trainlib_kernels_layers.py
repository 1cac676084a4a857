"""The loop nests of layers other than matmuls, checked against the counters of the measured rows.

On one core the counters of a step are those of the fork (25 instructions, 5 loads, 7 stores: the row
``empty_fork``) and of the kernel's own code. Stores and loads do not depend on the data; instructions do in
max pooling, ReLU and softmax, where the texts say how often a branch is taken.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator
from pathlib import Path

import pytest

from arch.isa import CoreWork, Loop, Node, Op
from configs.errors import InputError
from trainlib.kernels import catalogue
from trainlib.kernels import layer_catalogue as layers
from trainlib.kernels.layer_catalogue import Window
from trainlib.kernels.library import LIBRARY

CODEGEN = "clang-xpulp"
MEASURED = Path(__file__).parent.parent / "measured" / "layer.csv.gz"
FORK = (25, 5, 7)
"""Instructions, loads and stores of the master for a fork through a wrapper: row ``empty_fork``."""


def counters(work: CoreWork | None) -> tuple[float, float, float, float]:
    """Instructions, loads, stores and taken branches of one core."""
    totals = [0.0] * 4

    def walk(nodes: tuple[Node, ...], times: float) -> None:
        for node in nodes:
            if isinstance(node, Loop):
                walk(node.body, times * node.trips)
                totals[3] += 0 if node.hardware else times * (node.trips - 1)
                continue
            totals[0] += times
            totals[1] += times * (node.op == Op.LOAD)
            totals[2] += times * (node.op == Op.STORE)
            totals[3] += times * node.taken_fraction

    assert work is not None
    walk(work.body, 1.0)
    return totals[0], totals[1], totals[2], totals[3]


def rows(primitive: str, step: str) -> Iterator[dict[str, str]]:
    """Measured rows of a step on one core, without bank conflicts."""
    with gzip.open(MEASURED, "rt", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if (row["primitive"], row["step"]) != (primitive, step):
                continue
            if row["cores"] == "1" and row["bank_conflicts"] == "0":
                yield row


def window_of(row: dict[str, str]) -> Window:
    return Window(*(int(row[name]) for name in ("ci", "hi", "wi", "hk", "wk", "stride", "pad")))


def expect(row: dict[str, str], work: CoreWork | None, forks: int = 1, share: float = 0.01) -> None:
    """Instructions within `share` or 30 of the row, loads and stores within 2 % or 12."""
    measured = [float(row[name]) for name in ("instructions", "loads", "stores")]
    for kind, (found, fork, value) in enumerate(zip(counters(work)[:3], FORK, measured, strict=True)):
        tolerance = max(share * value, 30) if kind == 0 else max(0.02 * value, 12)
        assert abs(found + forks * fork - value) <= tolerance, (row["id"], kind, found, value)


@pytest.mark.parametrize(
    ("primitive", "step", "name", "arrays"),
    [
        ("avgpool", "FW", "avgpool_fw", 2),
        ("avgpool", "BW", "avgpool_bw", 2),
        ("maxpool", "FW", "maxpool_fw", 2),
        ("maxpool", "BW", "maxpool_bw", 3),
    ],
)
def test_pooling_executes_the_measured_instructions(
    primitive: str, step: str, name: str, arrays: int
) -> None:
    seen = 0
    for row in rows(primitive, step):
        team = layers.pooling_work(CODEGEN, name, window_of(row), 1, tuple(range(0, 64 * arrays, 64)))
        expect(row, team.cores[0])
        seen += 1
    assert seen >= 4


@pytest.mark.parametrize(("step", "name"), [("FW", "dw_fw"), ("WG", "dw_wg"), ("IG", "dw_ig")])
def test_depthwise_executes_the_measured_instructions(step: str, name: str) -> None:
    seen = 0
    for row in rows("conv_dw", step):
        team = layers.depthwise_work(CODEGEN, name, window_of(row), 1, (0, 4096, 8192))
        expect(row, team.cores[0])
        seen += 1
    assert seen >= 1


@pytest.mark.parametrize(
    ("primitive", "step", "name"),
    [
        ("copy", "-", "copy"),
        ("set_to_value", "-", "set_to_value"),
        ("vect_sum", "-", "vect_sum"),
        ("residual", "FW", "broadcast_sum"),
        ("residual", "BW", "copy"),
        ("leakyrelu", "FW", "leakyrelu_fw"),
        ("leakyrelu", "BW", "leakyrelu_bw"),
        ("sigmoid", "FW", "sigmoid_fw"),
        ("sigmoid", "BW", "sigmoid_bw"),
        ("relu", "FW", "relu_fw"),
        ("sgd_wd", "UPD", "sgd_wd"),
    ],
)
def test_vector_loops_execute_the_measured_instructions(primitive: str, step: str, name: str) -> None:
    seen = 0
    for row in rows(primitive, step):
        elements = int(row["ci"]) * int(row["hi"]) * int(row["wi"])
        addresses = tuple(range(0, 64 * len(LIBRARY.header(CODEGEN, name).arrays), 64))
        expect(row, catalogue.vector_work(CODEGEN, name, elements, 1, addresses).cores[0])
        seen += 1
    assert seen >= 2


@pytest.mark.parametrize("name", ["transpose_matrix", "transpose_nd"])
def test_transpositions_execute_the_measured_instructions(name: str) -> None:
    for row in rows(name, "-"):
        team = catalogue.transpose_work(CODEGEN, name, int(row["hi"]), int(row["wi"]), 1, (0, 4096))
        expect(row, team.cores[0])


@pytest.mark.parametrize(
    ("primitive", "step", "name"),
    [
        ("loss_l1", "FW", "l1_fw"),
        ("loss_l1", "BW", "l1_bw"),
        ("loss_ce", "FW", "cross_entropy_fw"),
        ("loss_ce", "BW", "cross_entropy_bw"),
        ("loss_mse", "FW", "mse_fw"),
        ("loss_mse", "BW", "mse_bw"),
    ],
)
def test_losses_run_on_the_master_without_a_fork(primitive: str, step: str, name: str) -> None:
    for row in rows(primitive, step):
        team = catalogue.vector_work(CODEGEN, name, int(row["ci"]), 1, (0, 4096, 8192))
        assert len(team.cores) == 1
        expect(row, team.cores[0], forks=0)


def test_softmax_is_three_passes_forward_and_two_backward() -> None:
    addresses = {"X": 0, "Y": 8192, "G": 8192, "R": 16384, "Z": 16512}
    for step, names in (("FW", ("row_max", "exp_sum", "row_div")), ("BW", ())):
        for row in rows("softmax", step):
            passes = names or ("softmax_bw_sum", "softmax_bw_scale")
            total = 0.0
            for name in passes:
                used = {array: addresses[array] for array in LIBRARY.header(CODEGEN, name).arrays}
                team = catalogue.rows_work(CODEGEN, name, int(row["hi"]), int(row["wi"]), 1, used)
                total += counters(team.cores[0])[0] + FORK[0]
            assert total == pytest.approx(float(row["instructions"]), rel=0.005)


def test_taken_branches_of_nested_loops_are_counted_exactly() -> None:
    """Average pooling: each branch loop is taken once less than it runs; the innermost is a hardware loop."""
    window = Window(ci=16, hi=6, wi=6, hk=2, wk=2, stride=2)
    taken = counters(layers.pooling_work(CODEGEN, "avgpool_fw", window, 1, (0, 4096)).cores[0])[3]
    rows_of_windows = window.ci * window.ho * window.wo
    expected = rows_of_windows * (window.hk - 1) + window.ci * window.ho * (window.wo - 1)
    expected += window.ci * (window.ho - 1) + window.ci - 1
    assert taken == expected == 287


def test_depthwise_gradients_give_every_core_all_channels() -> None:
    window = Window(ci=8, hi=8, wi=8, hk=3, wk=3)
    for name in ("dw_wg", "dw_ig"):
        team = layers.depthwise_work(CODEGEN, name, window, 4, (0, 4096, 8192))
        assert len({counters(core) for core in team.cores}) == 1
    forward = layers.depthwise_work(CODEGEN, "dw_fw", window, 4, (0, 4096, 8192))
    alone = layers.depthwise_work(CODEGEN, "dw_fw", window, 1, (0, 4096, 8192))
    assert counters(forward.cores[0])[0] < 0.3 * counters(alone.cores[0])[0]


def test_padding_is_tested_position_by_position_and_only_inside_is_multiplied() -> None:
    """8x8, 3x3, pad 1: 22 of 24 positions per axis lie inside."""
    assert catalogue.inside(8, 3, 8, 1, 1) == 22
    window = Window(ci=1, hi=8, wi=8, hk=3, wk=3, pad=1)
    team = layers.depthwise_work(CODEGEN, "dw_fw", window, 1, (0, 4096, 8192))
    core = team.cores[0]
    assert core is not None
    fmas = 0

    def walk(nodes: tuple[Node, ...], times: int) -> None:
        nonlocal fmas
        for node in nodes:
            if isinstance(node, Loop):
                walk(node.body, times * node.trips)
            else:
                fmas += times * (node.op == Op.FMA)

    walk(core.body, 1)
    assert fmas == 22 * 22


def test_direct_convolution_multiplies_every_tap_once() -> None:
    window = Window(ci=3, hi=6, wi=5, hk=3, wk=3)
    for name in ("naive_fw", "naive_wg", "naive_ig"):
        team = layers.naive_conv_work(CODEGEN, name, window, 4, 2, (0, 4096, 8192))
        total = sum(_fmas(core.body) for core in team.cores if core is not None)
        assert total == team.macs == 4 * 3 * 9 * window.ho * window.wo


def _fmas(nodes: tuple[Node, ...]) -> int:
    return sum(
        node.trips * _fmas(node.body) if isinstance(node, Loop) else int(node.op == Op.FMA) for node in nodes
    )


def test_instance_norm_divides_twice_per_element_backward() -> None:
    """The library does not hoist its divisions (reference: two fdiv per element)."""
    team = layers.instance_norm_work(CODEGEN, "instnorm_bw_input", 4, 100, 1, (0, 4096, 8192))
    core = team.cores[0]
    assert core is not None

    def divisions(nodes: tuple[Node, ...]) -> int:
        return sum(
            node.trips * divisions(node.body) if isinstance(node, Loop) else int(node.op == Op.FDIV)
            for node in nodes
        )

    assert divisions(core.body) == 2 * 4 * 100


@pytest.mark.parametrize(
    ("name", "per_element", "around"), [("relu_fw", 5, 24), ("sgd", 6, 31), ("sgd_wd", 9, 30)]
)
def test_clang_postinc_leaves_counting_loops_as_branches(name: str, per_element: int, around: int) -> None:
    addresses = tuple(range(0, 64 * len(LIBRARY.header(CODEGEN, name).arrays), 64))
    for elements in (64, 1000):
        found = counters(catalogue.vector_work("clang-postinc", name, elements, 1, addresses).cores[0])
        assert found[0] == per_element * elements + around
        assert found[3] >= elements - 1


@pytest.mark.parametrize(
    ("name", "window", "instructions", "loads", "stores"),
    [
        ("im2col", Window(8, 8, 8, 3, 3), 28129, 2974, 2610),
        ("im2col", Window(8, 9, 9, 3, 3, 2), 12581, 1346, 1170),
        ("im2col_hwc", Window(8, 8, 8, 3, 3), 20108, 2649, 2609),
        ("im2row_hwc", Window(16, 6, 6, 3, 3), 15904, 2401, 2323),
        ("im2row_hwc", Window(2, 14, 14, 3, 3), 32968, 3097, 2611),
    ],
)
def test_clang_postinc_unrolls_patches_as_measured(
    name: str, window: Window, instructions: int, loads: int, stores: int
) -> None:
    team = layers.unroll_work("clang-postinc", name, window, 1, (0, 1 << 15))
    found = counters(team.cores[0])
    assert found[0] == pytest.approx(instructions, rel=0.005)
    assert found[1] == pytest.approx(loads, rel=0.01)
    assert found[2] == pytest.approx(stores, rel=0.01)


def test_what_cannot_be_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="unknown kernel 'avgpol_fw'") as error:
        layers.pooling_work(CODEGEN, "avgpol_fw", Window(1, 4, 4, 2, 2), 1, (0, 64))
    assert "avgpool_fw" in str(error.value)
    with pytest.raises(InputError, match="needs 2 addresses"):
        catalogue.vector_work(CODEGEN, "copy", 8, 1, (0,))
    with pytest.raises(InputError, match="does not fit"):
        layers.pooling_work(CODEGEN, "avgpool_fw", Window(1, 2, 2, 3, 3), 1, (0, 64))
    with pytest.raises(InputError, match="neither stride nor pad"):
        layers.depthwise_work(CODEGEN, "dw_ig", Window(1, 8, 8, 3, 3, 2), 1, (0, 64, 128))
    with pytest.raises(InputError, match="cores must be a positive integer"):
        catalogue.vector_work(CODEGEN, "copy", 8, 0, (0, 64))
    with pytest.raises(InputError, match="needs the addresses of X, R"):
        catalogue.rows_work(CODEGEN, "row_max", 2, 2, 1, {"X": 0})
