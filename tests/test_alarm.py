# SPDX-License-Identifier: Apache-2.0
"""The alarm of the number check: defects are refused, whatever they are in, and what is right is not.

A share of what `make alarm` tries (see tests/alarm): a twelfth of the defects, each in the first small model
that it can be put into, in one dtype after the other.
"""

from __future__ import annotations

import pytest

from alarm import graph_defects, random_models
from alarm.formula_defects import FORMULA_DEFECTS, LISTED, exchanged
from alarm.graph_defects import GRAPH_DEFECTS
from alarm.registry import DEFECTS
from alarm.trial import CASES, DTYPES, NOT_HERE, REFUSED, SURVIVED, tried
from configs.values import replace

SHARE = 12
"""One defect of so many."""

(MLP,) = (case for case in CASES if case.model == "simple-mlp")

SMALL = (
    MLP,
    replace(MLP, optimizer="{name: adam, learning_rate: 0.001, accumulate: 2}"),
    *(case for case in CASES if case.model in ("pools", "digits-cnn")),
)


def first_verdict(name: str, dtype: str) -> tuple[str, str]:
    """What comes of a defect in the first small model it can be put into and has an effect."""
    for case in SMALL:
        verdict, why = tried(case, dtype, name)
        if verdict in (REFUSED, SURVIVED):
            return verdict, f"{case.model} {dtype}: {name}: {why}"
    return NOT_HERE, ""


@pytest.mark.parametrize("number", range(len(DTYPES)), ids=DTYPES)
def test_run_alone_refuses_every_defect(number: int) -> None:
    names = sorted(DEFECTS)[5 * number + 1 :: SHARE * len(DTYPES)]
    found = [first_verdict(name, DTYPES[number]) for name in names]
    assert [why for verdict, why in found if verdict == SURVIVED] == []
    assert sum(verdict == REFUSED for verdict, _ in found) >= 0.8 * len(names)


@pytest.mark.parametrize("dtype", ["fp8_e4m3", "fp8_e5m2"])
def test_in_8_bits_a_small_model_is_watched_as_well(dtype: str) -> None:
    """All but what is smaller than a rounding: partial results of a mini-batch are stored, to 6 or 12 %."""
    names = [name for name in sorted(DEFECTS)[::6] if not name.endswith((" x 0.9", " x 1.05", " x 1.1"))]
    found = [tried(MLP, dtype, name) for name in names]
    assert [why for verdict, why in found if verdict == SURVIVED] == []
    assert sum(verdict == REFUSED for verdict, _ in found) >= 4


@pytest.mark.needs_torch
@pytest.mark.parametrize("name", list(GRAPH_DEFECTS)[::10])
def test_a_graph_that_is_not_the_model_s_is_refused(name: str) -> None:
    """A tenth of them; machine and references agree, so that only the model itself can tell."""
    verdict, why = graph_defects.tried(GRAPH_DEFECTS[name])
    assert verdict == REFUSED, why


@pytest.mark.needs_torch
@pytest.mark.parametrize("name", list(FORMULA_DEFECTS)[::13])
def test_a_wrong_formula_is_refused(name: str) -> None:
    """Of 44; tiles agree with their references, so that only PyTorch can tell."""
    verdict, why = graph_defects.tried(FORMULA_DEFECTS[name])
    assert verdict == REFUSED, why


def test_without_pytorch_a_wrong_formula_is_not_seen_and_the_line_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pulptrain.running.number_check.torch_available", lambda: False)
    verdict, said = graph_defects.tried(FORMULA_DEFECTS["layer norm: sign in dx"])
    assert (verdict, said) == (
        SURVIVED,
        "untiled NumPy (PyTorch is not installed: tiling checked, formulas not)",
    )


def test_a_formula_of_another_wording_is_no_defect_but_an_error() -> None:
    for what, module, right, wrong, _ in LISTED:
        assert exchanged(module, right, wrong), what
    with pytest.raises(ValueError, match=r"norm_formulas\.py has 0 times: variance of something"):
        exchanged("norms.norm_formulas", "variance of something", "")


def test_there_are_as_many_defects_as_asked_for() -> None:
    assert len(DEFECTS) >= 80
    assert len(GRAPH_DEFECTS) >= 12 + 15
    assert len(FORMULA_DEFECTS) >= 30


@pytest.mark.parametrize("seed", range(1000, 1004))
def test_a_random_model_raises_no_alarm(seed: int) -> None:
    verdict, why = random_models.tried(random_models.drawn(seed))
    assert verdict in ("right", "refused", "not decidable"), why


@pytest.mark.parametrize("seed", range(2000, 2002))
def test_nor_does_one_without_pytorch(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pulptrain.running.number_check.torch_available", lambda: False)
    verdict, why = random_models.tried(random_models.drawn(seed))
    assert verdict in ("right", "refused", "not decidable"), why
