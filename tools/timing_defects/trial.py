# SPDX-License-Identifier: Apache-2.0
"""Predictions of the rows that watch, by a product with a defect in it: each in a process of its own.

A process begins with nothing computed: no price, no loop nest, no machine is remembered from the product as
it is. So nothing has to be cleared for a defect to show, and none is left behind.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from scheduler.validation.rows.cases import Case
from scheduler.validation.rows.prediction import Prediction
from scheduler.validation.runner import predict_rows
from tools.timing_defects.bounds import Cycles
from tools.timing_defects.defects import DEFECTS
from tools.timing_defects.harmless import HARMLESS
from tools.timing_defects.rows import WATCHED, rows_of
from tools.validation.sets import SETS

AS_IT_IS = ""
"""In place of the name of a defect."""

Job = tuple[str, Mapping[str, Sequence[Case]]]


@contextmanager
def changed(name: str) -> Iterator[None]:
    """The product with the defect or the harmless change of that name."""
    with ExitStack() as stack:
        if name != AS_IT_IS:
            for target, attribute, wrong in {**DEFECTS, **HARMLESS}[name].changes():
                stack.enter_context(patch.object(target, attribute, wrong))
        yield


class OutgrownError(Exception):
    """A change that the product has outgrown: under it something is raised, not priced."""


def _predicted(job: Job) -> tuple[str, dict[str, list[int | None]] | OutgrownError]:
    name, rows = job
    try:
        with changed(name):
            return name, {
                set_name: [
                    answer.cycles if isinstance(answer, Prediction) else None
                    for answer in predict_rows(SETS[set_name].kind, cases)
                ]
                for set_name, cases in rows.items()
            }
    except Exception as error:
        return name, OutgrownError(f"{name or 'nothing'}: {type(error).__name__}: {error}")


def predictions(
    names: Sequence[str], sets: Mapping[str, Sequence[str]] | None = None, workers: int = 2
) -> Iterator[tuple[str, Cycles | OutgrownError]]:
    """(name, predictions) of every change; `sets` says by name which sets are predicted, all otherwise.

    One that no longer fits does not keep the others from being tried.
    """
    context = multiprocessing.get_context("forkserver")
    # Processes are copies of one that has imported everything and predicted nothing.
    context.set_forkserver_preload(["tools.timing_defects.warm"])
    jobs: list[Job] = [
        (name, {set_name: rows_of(set_name) for set_name in (sets or {}).get(name, tuple(WATCHED))})
        for name in names
    ]
    with context.Pool(min(workers, len(jobs)), maxtasksperchild=1) as pool:
        yield from pool.imap(_predicted, jobs, chunksize=1)
