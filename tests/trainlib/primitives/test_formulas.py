# SPDX-License-Identifier: Apache-2.0
"""Formulas of the tables held against the same mathematics in other words, in float64 and without PyTorch."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from configs.values import replace
from pulptrain.running.number_check import NumberCheck
from shared.oracle_formulas import cells, elementwise, losses, norms, optimizers, rows, windows
from shared.primitive_harness import CODEGEN, all_cases, build, cases_of, run_op
from tools.pages.mathematics import TWELVE, computing, formulas_of, truth_of, written_apart
from trainlib.ir.graph import Op, TrainingGraph
from trainlib.ir.steps import KernelChoice
from trainlib.primitives.formulas import wide
from trainlib.primitives.recurrent.cells import GRU, LSTM, RNN
from trainlib.primitives.recurrent.recurrent import Cell
from trainlib.references.reference import evaluate
from trainlib.registry import PRIMITIVES, lowering_of, step_of

ORACLES = {**elementwise.ORACLES, **losses.ORACLES, **norms.ORACLES, **optimizers.ORACLES, **rows.ORACLES}
ORACLES |= windows.ORACLES


CASES = [
    case
    for case in all_cases()
    if case.dtype == "fp32" and any(name == case.primitive for name, _ in ORACLES)
    if case.example.attributes.get("form") != "pulp_fastexp"
]
"""All but a bit trick, of which there are no other words: it is in `truth`."""


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_formula_and_the_same_in_other_words(case) -> None:
    graph, values = build(case)
    known, held = dict(values), 0
    for op in graph.ops:
        given = wide({role: known[name] for role, name in zip(op.reads, op.inputs, strict=True)})
        results = step_of(op).reference(op, given)
        known |= {op[role]: np.asarray(array) for role, array in results.items() if role in op.writes}
        oracle = ORACLES.get((op.primitive, op.step))
        if oracle is None:
            continue
        for role, truth in oracle(op, given).items():
            if role not in op.writes:
                continue
            held += 1
            scale = np.abs(truth).max(initial=0)
            np.testing.assert_allclose(results[role], truth, rtol=1e-9, atol=1e-12 * scale, err_msg=role)
    assert held


@pytest.mark.parametrize(("name", "cell"), [("gru", GRU), ("lstm", LSTM), ("rnn", RNN)])
def test_a_cell_and_the_same_in_other_words(name: str, cell: Cell) -> None:
    generator = np.random.default_rng(1)
    gates, units = (
        [generator.uniform(-3, 3, (5, count)) for count in (4 * cell.gates,) * 2 + (4,) * 2],
        (5, 4),
    )
    made = cell.advance(*gates)
    kept = {role: made[role] for role in (*cell.saved, "y")} | {"before": gates[2], "cell_before": gates[3]}
    arriving = [generator.uniform(-1, 1, units) for _ in range(2)]
    for ours, truth in (
        (made, cells.ADVANCE[name](*gates)),
        (cell.retreat(kept, *arriving), cells.RETREAT[name](kept, *arriving)),
    ):
        assert ours.keys() == truth.keys()
        for role in ours:
            np.testing.assert_allclose(ours[role], truth[role], rtol=1e-12, atol=1e-13, err_msg=role)


@pytest.mark.parametrize("name", PRIMITIVES)
def test_the_line_of_numbers_says_so_where_a_reference_is_the_formula_of_its_tiles(name: str) -> None:
    """Found by what both execute; a gradient whose reference is derived from y says it, too."""
    shared, said = set(), set()
    for case in cases_of(PRIMITIVES[name]):
        if case.dtype == "fp32" and case.batch == max(case.example.batches, default=1):
            graph, values = build(case)
            known = evaluate(graph, values)
            for op in graph.ops:
                if op.primitive == name:
                    shared |= {op.step} if shares(op, graph, known) else set()
                    line = NumberCheck({}, [replace(graph, ops=(op,))]).truth
                    said |= {op.step} if line.endswith("tiling checked, formulas not)") else set()
    assert shared <= said
    assert not said or shared


def shares(op: Op, graph: TrainingGraph, known: Mapping[str, np.ndarray]) -> bool:
    """Whether the reference of an op and a tile of all of it compute by the same function."""
    lowering, read = lowering_of(op), {role: known[op[role]] for role in op.reads}
    choice = KernelChoice(lowering.default_kernel(op), CODEGEN, "reference")
    whole = {**lowering.extents(op, graph.tensors), **lowering.reductions(op, graph.tensors)}
    by_reference = computing(lambda: step_of(op).reference(op, read))
    return not by_reference.isdisjoint(computing(lambda: run_op(op, graph.tensors, known, whole, choice)))


WRITTEN = {
    "conv2d": ("contractions/conv2d_reference.py",),
    "gru": ("recurrent/recurrent_reference.py",),
    "lstm": ("recurrent/recurrent_reference.py",),
}
"""References that are no formula: a contraction, the products and the walk over time."""


@pytest.mark.needs_torch
@pytest.mark.parametrize("name", TWELVE)
def test_the_mathematics_of_an_operator_is_in_one_place_of_the_description_and_one_of_truth(
    name: str,
) -> None:
    assert len(formulas_of(name)) == (name != "conv2d")
    assert written_apart(name) == WRITTEN.get(name, ())
    assert len(truth_of(name)) == 1
