# SPDX-License-Identifier: Apache-2.0
"""Every registered primitive, every step, dtype and batch: a new primitive is tested by being registered.

Of the thousands of rows `make test` runs a tenth that meets every primitive, `make sweep` the rest.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from configs.errors import InputError
from shared.primitive_harness import (
    Case,
    all_cases,
    assert_close,
    build,
    check_reference,
    check_tiles,
    check_work,
    terms,
)
from shared.primitive_strategies import STRATEGIES
from shared.refused_layers import REFUSED, Refused
from shared.tiers import examples, sweep_nine_of_ten
from trainlib.primitives.definition import DrawnInput, Example, LayerPrimitive
from trainlib.registry import PRIMITIVES, is_internal
from trainlib.training.single import single

CASES = all_cases()

ALONE = [case for case in CASES if case.batch == 1]
FIRST = [case for case in CASES if case.number == 0]


def by_dtype(case: Case) -> tuple[str, str]:
    return case.primitive, case.dtype


def by_batch(case: Case) -> tuple[str, bool]:
    return case.primitive, case.batch > 1


def by_example(case: Case) -> tuple[str, int]:
    """The examples of a primitive together touch its every option."""
    return case.primitive, case.number


def by_primitive(case: Case) -> str:
    return case.primitive


def any_dtype(case: Case) -> str:
    return case.dtype


@pytest.mark.parametrize("case", sweep_nine_of_ten(CASES, by_dtype, by_batch, smoke=by_primitive))
def test_reference_agrees_with_pytorch(case: Case) -> None:
    check_reference(case)


@pytest.mark.parametrize("case", sweep_nine_of_ten(CASES, by_example, by_batch, smoke=by_primitive))
def test_tiles_of_any_size_give_the_reference(case: Case) -> None:
    check_tiles(case)


@pytest.mark.parametrize("case", sweep_nine_of_ten(ALONE, by_primitive, any_dtype))
def test_kernel_accumulation_stays_within_its_bound(case: Case) -> None:
    check_tiles(case, "kernel")


@pytest.mark.parametrize("case", sweep_nine_of_ten(FIRST, by_primitive, any_dtype))
def test_every_kernel_call_has_loop_nests_at_its_buffers(case: Case) -> None:
    check_work(case)


CASES_REFUSED = [
    pytest.param(name, refused, id=f"{name}-{number}")
    for name, cases in REFUSED.items()
    for number, refused in enumerate(cases)
]


@pytest.mark.parametrize(("name", "refused"), CASES_REFUSED)
def test_bad_input_is_refused_with_a_reason(name: str, refused: Refused) -> None:
    inputs = [DrawnInput(shape) for shape in refused.inputs]
    with pytest.raises(InputError) as caught:
        single(name, refused.attributes, inputs, where="net.yaml:7")
    assert re.search(refused.message, str(caught.value))
    assert str(caught.value.where).startswith("net.yaml:7")


@pytest.mark.parametrize("name", STRATEGIES)
@examples(100, suppress_health_check=[HealthCheck.too_slow, HealthCheck.differing_executors])
@given(data=st.data())
def test_any_shape_and_option(name: str, data: st.DataObject) -> None:
    example = data.draw(STRATEGIES[name])
    dtype = data.draw(st.sampled_from(example.dtypes))
    case = Case(name, data.draw(st.integers(0, 999)), example, dtype, data.draw(st.integers(1, 3)))
    check_reference(case)
    check_tiles(case)


def test_every_primitive_is_registered_under_its_own_name_and_has_examples() -> None:
    for name, primitive in PRIMITIVES.items():
        assert name == primitive.name
        assert is_internal(primitive) or primitive.examples
        if isinstance(primitive, LayerPrimitive):
            assert issubclass(primitive.schema, PRIMITIVES["relu"].schema)  # type: ignore[union-attr]


def test_the_harness_forgives_what_cancels_and_nothing_else() -> None:
    """A weight gradient of two samples: once the terms are of one sign, once all but 1e-6 of them cancels."""
    case = Case("linear", 0, Example({"out_features": 1}, ((1,),)), "fp32", 2)
    graph, values = build(case)
    output_gradient, gradient = graph.backward[graph.output], graph.gradients["linear.weight"]
    values["x"] = np.ones((2, 1), np.float32)
    for second, cancels in ((1.0, False), (-1 + 1e-6, True)):
        values[output_gradient] = np.array([[1], [second]], np.float32)
        truth = np.array([[1 + second]])
        of = terms(graph.ops, graph, values)[gradient]
        assert 1 < of < 4.1, "two terms of size 1, each moved by its two factors"
        assert_close(truth + 5e-6 * truth, truth, 1e-5, "near", lambda of=of: of)
        off = truth + 5e-5 * truth if not cancels else truth + 5e-6
        if cancels:
            assert_close(off, truth, 1e-5, "far, of almost nothing", lambda of=of: of)
            off = truth + 5e-5
        with pytest.raises(AssertionError, match="off by"):
            assert_close(off, truth, 1e-5, "far", lambda of=of: of)
