# SPDX-License-Identifier: Apache-2.0
"""Formulas of the tables held against the same mathematics in other words, in float64 and without PyTorch."""

from __future__ import annotations

from functools import partial, wraps

import numpy as np
import pytest

from shared.oracle_formulas import cells, elementwise, losses, norms, optimizers, rows, windows
from shared.primitive_harness import Case, all_cases, build, check_reference, check_tiles
from trainlib.primitives.definition import Example
from trainlib.primitives.formulas import wide
from trainlib.primitives.norms.norm_lowering import NormForward, NormInputGradient, NormWeightGradient
from trainlib.primitives.recurrent import gru, lstm, rnn
from trainlib.registry import step_of

ORACLES = {**elementwise.ORACLES, **losses.ORACLES, **norms.ORACLES, **optimizers.ORACLES, **rows.ORACLES}
ORACLES |= windows.ORACLES


CASES = [
    case
    for case in all_cases()
    if case.dtype == "fp32" and any(name == case.primitive for name, _ in ORACLES)
]


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


@pytest.mark.parametrize(("name", "module"), [("gru", gru), ("lstm", lstm), ("rnn", rnn)])
def test_a_cell_and_the_same_in_other_words(name: str, module) -> None:
    cell, generator = module.CELL, np.random.default_rng(1)
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


NORM = {"eps": 0.01}
FW, WG, IG = NormForward, NormWeightGradient, NormInputGradient
DEFECTS = {
    "epsilon left out": (FW, lambda right, *a, eps, **k: right(*a, eps=0 * eps, **k)),
    "mean over one element less": (FW, lambda right, *a, count, **k: right(*a, count=count - 1, **k)),
    "offset with the wrong sign": (FW, lambda right, *a, b, **k: right(*a, b=-b, **k)),
    "scale left out": (FW, lambda right, *a, w, **k: right(*a, w=None, **k)),
    "both means left out of dx": (IG, lambda right, *a, count, **k: right(*a, count=1e9, **k)),
    "mean of g left out of dx": (IG, lambda right, *a, mean, x, **k: right(*a, x=x - mean, **k)),
    "dw without the mean": (WG, lambda right, *a, mean, **k: right(*a, **k)),
    "db doubled": (WG, lambda right, *a, **k: right(*a, **k) | {"db": 2 * right(*a, **k)["db"]}),
}
"""What may be wrong in a row program: tile and reference compute it alike, only PyTorch can tell."""


@pytest.mark.needs_torch
@pytest.mark.parametrize("defect", DEFECTS)
def test_a_wrong_formula_is_seen_by_pytorch(defect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lowering, wrong = DEFECTS[defect]
    case = Case("layer_norm", 0, Example(NORM, ((5, 6),)), "fp32", 2)
    check_reference(case)
    right = lowering.formula
    monkeypatch.setattr(lowering, "formula", staticmethod(wraps(right)(partial(wrong, right))))
    check_tiles(case)
    with pytest.raises(AssertionError, match="off by"):
        check_reference(case)
