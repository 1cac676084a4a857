# SPDX-License-Identifier: Apache-2.0
"""The loop nests of layers other than matmuls, checked against the counters of the measured rows.

On one core the counters of a step are those of the fork (25 instructions, 5 loads, 7 stores: the row
``empty_fork``) and of the kernel's own code. Stores and loads do not depend on the data; instructions do in
max pooling, ReLU and softmax, where the texts say how often a branch is taken.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from arch.spec.isa import CoreWork, Loop, Node, Op, TeamWork
from configs.errors import InputError
from scheduler.validation.rows import loop
from scheduler.validation.rows.cases import Case
from scheduler.validation.rows.layer_steps import Layer, layer_graph, step_named
from scheduler.validation.rows.programs import kernels_of, options_of, program_of
from shared.closed_forms import works_of
from shared.paths import MEASURED
from shared.vector_calls import vector_work
from trainlib.kernels.library import LIBRARY
from trainlib.primitives.contractions.conv_nests import Reach
from trainlib.primitives.definition import AS_PUBLISHED

CODEGEN = "clang-xpulp"
ROWS = MEASURED / "layer.csv.gz"
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
    with gzip.open(ROWS, "rt", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if (row["primitive"], row["step"]) != (primitive, step):
                continue
            if row["cores"] == "1" and row["bank_conflicts"] == "0":
                yield row


def executed(row: Mapping[str, str]) -> list[tuple[CoreWork | None, bool]]:
    """What the master executes in each kernel of the op a row measured, and whether it is forked."""
    values = {name: int(cell) if cell.isdigit() else cell for name, cell in row.items()}
    case = Case(row["id"], "layer.csv", values, row)
    found = step_named(row["primitive"], row["step"], row["variant"], row["layout"])
    assert found is not None
    graph = found.graph(case, Layer(*(case.number(name) for name in Layer.__slots__)))
    program, _ = program_of(case, graph, options_of(case, graph, kernels={}))
    return [(kernel.team.cores[0], kernel.fork) for kernel in kernels_of(program, found.kernels)]


@pytest.mark.parametrize(
    ("primitive", "step"),
    [
        *((name, step) for name in ("avgpool", "maxpool", "leakyrelu", "sigmoid") for step in ("FW", "BW")),
        *(("conv_dw", step) for step in ("FW", "WG", "IG")),
        *(("instnorm", step) for step in ("FW", "WG")),
        *((name, "-") for name in ("copy", "set_to_value", "vect_sum", "transpose_matrix", "transpose_nd")),
        *(("residual", step) for step in ("FW", "BW")),
        ("relu", "FW"),
        ("sgd_wd", "UPD"),
        *((f"loss_{name}", step) for name in ("l1", "ce", "mse") for step in ("FW", "BW")),
        *(("softmax", step) for step in ("FW", "BW")),
    ],
)
def test_ops_execute_the_measured_instructions(primitive: str, step: str) -> None:
    """Instructions within 1 % or 30 of the row, loads and stores within 2 % or 12; losses have no fork."""
    seen = 0
    for row in rows(primitive, step):
        kernels = executed(row)
        assert all(fork != primitive.startswith("loss") for _, fork in kernels)
        forks = sum(fork for _, fork in kernels)
        counts = [counters(core)[:3] for core, _ in kernels]
        for kind, name in enumerate(("instructions", "loads", "stores")):
            measured = float(row[name])
            found = sum(count[kind] for count in counts) + forks * FORK[kind]
            tolerance = max(0.01 * measured, 30) if kind == 0 else max(0.02 * measured, 12)
            assert abs(found - measured) <= tolerance, (row["id"], name, found, measured)
        seen += 1
    assert seen >= 1


def test_softmax_is_three_passes_forward_and_two_backward() -> None:
    for step, passes in (("FW", 3), ("BW", 2)):
        assert all(len(executed(row)) == passes for row in rows("softmax", step))


def one(
    kind: str, step: str, options: dict[str, Any], shape: tuple[int, ...], cores: int = 1, **how: str
) -> TeamWork:
    """The only kernel of a step of a layer."""
    (work,) = works_of(layer_graph(kind, step, options, [shape], where="test", **how), step, cores=cores)
    return work


def test_taken_branches_of_nested_loops_are_counted_exactly() -> None:
    """Average pooling: each branch loop is taken once less than it runs; the innermost is a hardware loop."""
    ci, ho, wo, hk = 16, 3, 3, 2
    taken = counters(one("avg_pool2d", "FW", {"kernel": hk, "stride": 2}, (ci, 6, 6)).cores[0])[3]
    expected = ci * ho * wo * (hk - 1) + ci * ho * (wo - 1) + ci * (ho - 1) + ci - 1
    assert taken == expected == 287


def test_published_depthwise_gradients_give_every_core_all_channels() -> None:
    options, shape = {"kernel": 3, "bias": False}, (8, 8, 8)
    for step in ("WG", "IG"):
        team = one("depthwise", step, options, shape, 4, variant=AS_PUBLISHED)
        assert len({counters(core) for core in team.cores}) == 1
    forward, alone = (one("depthwise", "FW", options, shape, cores) for cores in (4, 1))
    assert counters(forward.cores[0])[0] < 0.3 * counters(alone.cores[0])[0]


def test_padding_is_tested_position_by_position_and_only_inside_is_multiplied() -> None:
    """8x8, 3x3, pad 1: 22 of 24 positions per axis lie inside."""
    assert Reach.of((8, 8), (3, 3), (8, 8), pad=1).counts()["rows_in"] == 22
    team = one("depthwise", "FW", {"kernel": 3, "padding": 1, "bias": False}, (1, 8, 8))
    assert sum(_count(core.body, Op.FMA) for core in team.cores if core is not None) == 22 * 22


def _count(nodes: tuple[Node, ...], op: Op) -> int:
    """Instructions of one class."""
    return sum(
        node.trips * _count(node.body, op) if isinstance(node, Loop) else int(node.op == op) for node in nodes
    )


def test_instance_norm_divides_twice_per_element_backward() -> None:
    """The library does not hoist its divisions (reference: two fdiv per element)."""
    (core,) = one("instance_norm", "IG", {"affine": False}, (4, 10, 10)).cores
    assert core is not None
    assert _count(core.body, Op.FDIV) == 2 * 4 * 100


@pytest.mark.parametrize(
    ("name", "per_element", "around"), [("relu_fw", 5, 24), ("sgd", 6, 31), ("sgd_wd", 9, 30)]
)
def test_clang_postinc_leaves_counting_loops_as_branches(name: str, per_element: int, around: int) -> None:
    addresses = tuple(range(0, 64 * len(LIBRARY.header(CODEGEN, name).arrays), 64))
    for elements in (64, 1000):
        found = counters(vector_work("clang-postinc", name, elements, 1, addresses).cores[0])
        assert found[0] == per_element * elements + around
        assert found[3] >= elements - 1


@pytest.mark.parametrize(
    ("name", "parameters", "instructions", "loads", "stores"),
    [
        ("im2col", "8x8x3x1x0x0", 28129, 2974, 2610),
        ("im2col", "8x9x3x2x0x0", 12581, 1346, 1170),
        ("im2col", "8x8x3x1x0x1", 20108, 2649, 2609),
        ("im2row", "16x6x3x1x0x1", 15904, 2401, 2323),
        ("im2row", "2x14x3x1x0x1", 32968, 3097, 2611),
    ],
)
def test_clang_postinc_unrolls_patches_as_measured(
    name: str, parameters: str, instructions: int, loads: int, stores: int
) -> None:
    """The team `validate loop` simulates; parameters are ci x hi x hk x stride x pad x HWC."""
    row = {"codegen": "clang-postinc", "kernel": name, "parameters": parameters, "cores": 1, "elements": 1}
    row |= {"soc": "pulp-open", "timing": "gvsoc", "bank_conflicts": 0, "fpus": "private"}
    case = Case("row", "loops.csv", row, {key: str(value) for key, value in row.items()})
    (kernel,) = loop.kernels(case)[0]
    found = counters(kernel.team.cores[0])
    assert found[0] == pytest.approx(instructions, rel=0.005)
    assert found[1] == pytest.approx(loads, rel=0.01)
    assert found[2] == pytest.approx(stores, rel=0.01)


def test_what_cannot_be_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="needs 2 addresses"):
        vector_work(CODEGEN, "copy", 8, 1, (0,))
    with pytest.raises(InputError, match="must be a whole number of 1 or more"):
        vector_work(CODEGEN, "copy", 8, 0, (0, 64))
