# SPDX-License-Identifier: Apache-2.0
"""Predicts all rows of a file of measured cases, on several processes, in row order."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from configs.errors import ConfigError, InputError, PulptrainError
from configs.suggest import suggestion
from configs.values import Struct
from scheduler.search.workers import begin_worker, without_interrupts
from scheduler.validation.rows.cases import Case, Selection
from scheduler.validation.rows.kinds import Kind, kind_named
from scheduler.validation.rows.prediction import Prediction
from scheduler.validation.rows.statistics import Result

ROWS_PER_TASK = 32
"""Rows a worker predicts before it reports."""

MAX_WORKERS = 64

Progress = Callable[[int, int], None]
"""Called with (rows done, rows in all)."""


Answer = Prediction | InputError
"""What a worker says about a row."""


class Refused(Struct, frozen=True):
    """A row that cannot be predicted, and why; `case` is None where it cannot even be read."""

    error: InputError
    case: Case | None = None


class Validation(Struct, frozen=True):
    """Predictions of the rows of a file, in file order; fewer than `asked` if it was interrupted.

    `refused` are the rows that cannot be predicted, those that cannot be read first; empty unless they were
    asked to be kept.
    """

    kind: Kind
    results: tuple[Result, ...]
    refused: tuple[Refused, ...]
    asked: int

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended it early."""
        return len(self.results) + len(self.refused) < self.asked


def default_workers() -> int:
    """One process per CPU this process may use."""
    return min(MAX_WORKERS, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)


def validate(
    kind: str,
    path: str | Path,
    *,
    workers: int | None = None,
    selections: Sequence[Selection] = (),
    group_by: Sequence[str] = (),
    keep_going: bool = False,
    progress: Progress | None = None,
) -> Validation:
    """Predict every selected row of a file.

    `group_by` are columns the caller will group by: they must exist. The result does not depend on `workers`.
    Ctrl-C keeps the rows done so far. Raises InputError (ConfigError) naming ``file:line`` for anything that
    cannot be read, and for the first row that cannot be predicted; with `keep_going` rows that can be neither
    read nor predicted are `refused`.
    """
    named = kind_named(kind)
    workers = default_workers() if workers is None else workers
    if not 1 <= workers <= MAX_WORKERS:
        raise InputError(
            f"the number of workers is {workers}, but must be 1 to {MAX_WORKERS}",
            where="--workers",
            cure=f"use --workers 1 to {MAX_WORKERS}",
        )
    unreadable: list[ConfigError] = []
    cases = named.read(path, selections, unreadable if keep_going else None)
    for column in group_by if cases else ():
        if column not in cases[0].cells:
            cure = suggestion(column, tuple(cases[0].cells))
            raise InputError(f"{path} has no column '{column}'", where="--group-by", cure=cure)
    tasks = [cases[start : start + ROWS_PER_TASK] for start in range(0, len(cases), ROWS_PER_TASK)]
    answers: list[Answer] = []
    parts = (
        (predict_rows(kind, task) for task in tasks)
        if workers == 1 or len(tasks) <= 1
        else _in_parallel(kind, tasks, workers)
    )
    try:
        for part in parts:
            answers += part
            for answer in part:
                if isinstance(answer, InputError) and not keep_going:
                    raise answer
            if progress is not None:
                progress(len(answers), len(cases))
    except KeyboardInterrupt:
        # What is done is kept; `Validation.interrupted` tells.
        pass
    finally:
        parts.close()
    results = tuple(
        Result(case, answer, named.measure_of(case).column)
        for case, answer in zip(cases, answers, strict=False)
        if isinstance(answer, Prediction)
    )
    refused = [Refused(error) for error in unreadable]
    refused += [
        Refused(answer, case)
        for case, answer in zip(cases, answers, strict=False)
        if isinstance(answer, InputError)
    ]
    return Validation(named, results, tuple(refused), len(cases) + len(unreadable))


def predict_rows(kind: str, cases: Sequence[Case]) -> list[Answer]:
    """Predict some rows, one after another; a row that cannot be predicted gives the error that names it."""
    named = kind_named(kind)
    return [_predict(named.measure_of(case).predict, case) for case in cases]


def _predict(predict: Callable[[Case], Prediction], case: Case) -> Answer:
    try:
        return predict(case)
    except PulptrainError as error:
        if error.where == case.where and isinstance(error, InputError):
            return error
        # Whatever a model complains about, the place to look is the row.
        place = f"{error.where}: " if error.where else ""
        return case.error(f"{place}{error.message}", error.cure)


def _in_parallel(
    kind: str, tasks: Sequence[tuple[Case, ...]], workers: int
) -> Generator[list[Answer], None, None]:
    """The answers to all tasks, in their order."""
    pool = ProcessPoolExecutor(min(workers, len(tasks)), initializer=begin_worker)
    try:
        with without_interrupts():
            futures = [pool.submit(predict_rows, kind, task) for task in tasks]
        for future in futures:
            yield future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
