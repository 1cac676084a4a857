# SPDX-License-Identifier: Apache-2.0
"""Values of the user's own in the place of drawn ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from configs.errors import InputError
from configs.suggest import check_known
from pulptrain.inputs.npz_file import WHERE
from trainlib.ir.graph import FED_KINDS, KEPT_KINDS, TrainingGraph
from trainlib.ir.numerics import rounded, widened
from trainlib.ir.steps import Array
from trainlib.training.stored_weights import with_codes

RESULT_FOLDERS = ("before/", "results/")
"""What a file of ``--save-values`` has beside the tensors that training goes on from."""


def with_own_values(
    graph: TrainingGraph,
    kept: Mapping[str, Array],
    stream: Iterator[Mapping[str, Array]],
    given: Mapping[str, Array],
) -> tuple[dict[str, Array], Iterator[Mapping[str, Array]]]:
    """(kept tensors at the start, values of every iteration) with the user's own in their places.

    What ``--save-values`` has written can be given: its results are passed over. Raises as `replaced`.
    """
    wanted = _begun_with(given)
    fed = graph.of_kind(*FED_KINDS)
    first = next(stream)
    replacing = replaced(graph, {**kept, **first}, wanted)
    fixed = {name: replacing[name] for name in wanted if name in fed}

    def samples() -> Iterator[Mapping[str, Array]]:
        yield {**first, **fixed}
        for sample in stream:
            yield {**sample, **fixed}

    return {name: replacing[name] for name in kept}, samples()


def check_values(graph: TrainingGraph, given: Mapping[str, Array]) -> None:
    """Raise as `replaced` for values that the graph does not begin with."""
    begun = graph.of_kind(*KEPT_KINDS, *FED_KINDS)
    replaced(graph, dict.fromkeys(begun, np.empty(0)), _begun_with(given))


def _begun_with(given: Mapping[str, Array]) -> dict[str, Array]:
    return {name: array for name, array in given.items() if not name.startswith(RESULT_FOLDERS)}


def replaced(
    graph: TrainingGraph, values: Mapping[str, Array], given: Mapping[str, Array]
) -> dict[str, Array]:
    """`values` with the user's own in their place, rounded to the dtype of the tensor.

    Raises InputError for a name that is no given tensor, another shape, or numbers that the dtype cannot hold
    or a mask does not know.
    """
    result = dict(values)
    for name, array in with_codes(graph.tensors, given).items():
        check_known(name, values, f"unknown tensor '{name}'", WHERE)
        tensor = graph.tensors[name]
        if array.shape != tensor.shape:
            raise InputError(
                f"'{name}' has shape {array.shape}, but must have shape {tensor.shape}",
                where=WHERE,
                cure=f"use shape {tensor.shape}, batch first",
            )
        only = graph.draws[name].only if name in graph.draws else ()
        if only and not np.isin(array, only).all():
            allowed = " and ".join(f"{value:g}" for value in only)
            raise InputError(f"'{name}' must hold {allowed}", where=WHERE, cure=f"use only {allowed}")
        if tensor.dtype.is_float:
            if not np.issubdtype(array.dtype, np.number) or np.iscomplexobj(array):
                raise InputError(
                    f"'{name}' must hold real numbers, but has dtype {array.dtype}",
                    where=WHERE,
                    cure="convert the array, e.g. by astype(numpy.float32)",
                )
            with np.errstate(over="ignore"):
                result[name] = rounded(array.astype(np.float32), tensor.dtype)
            if np.isfinite(array).all() and not np.isfinite(widened(result[name])).all():
                what = f"'{name}' holds numbers outside the range of {tensor.dtype}"
                raise InputError(what, where=WHERE, cure="use smaller numbers, or another --dtype")
        elif not only and (
            not np.issubdtype(array.dtype, np.integer) or (array.astype(tensor.dtype) != array).any()
        ):
            what, cure = (
                f"'{name}' holds other numbers than {tensor.dtype}",
                f"use integers in the range of {tensor.dtype}",
            )
            raise InputError(what, where=WHERE, cure=cure)
        else:
            result[name] = array.astype(tensor.dtype)
    return result
