# SPDX-License-Identifier: Apache-2.0
"""Which candidates of an op are evaluated, in which order: the search of one op, step by step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from configs.errors import InputError, install_cure
from configs.suggest import check_known
from configs.values import Struct, replace
from scheduler.search.cache import ResultCache
from scheduler.search.driver import Job, Search
from scheduler.search.fingerprint import fingerprint
from scheduler.search.progress import Meter
from scheduler.search.rows import text_of, value_of
from scheduler.tuner.evaluate import (
    Evaluation,
    bound_candidates,
    cuts_of,
    evaluate_candidates,
)
from scheduler.tuner.search_space import MOST_CUTS, Cut, Question, candidates_of

CHUNK = 24
"""Candidates of one call to a worker, less than a second: the kernels of a cut, which share its program."""

TRIALS = 8
"""Trials of optuna that are asked for before it hears of their results."""

BOUNDS_CHUNK = 384
"""The same for lower bounds, which are cheaper; cuts of one call share what they have in common."""

FIRST_ROUND, LARGEST_ROUND = 4, 32
"""Candidates evaluated before `pruned` looks at the bounds again; doubled from round to round."""


class StrategyOptions(Struct, frozen=True):
    """How to search: `name` is one of `STRATEGIES`; `largest_tiles` is the K_T of `paper`, which has the
    published value; `budget` the evaluations per op of `optuna` and `seed` that of its sampler."""

    name: str = "pruned"
    largest_tiles: int = 5
    budget: int = 200
    seed: int = 0


Kept = Evaluation | int | tuple[Cut, ...]
"""What the cache keeps of a question: evaluations and lower bounds of candidates, lists of cuts."""


@dataclass(slots=True)
class Variant:
    """The candidates of one variant: every cut with every kernel, numbered from `first` on.

    `stored` is what the cache held of them when the search began, by item.
    """

    name: str
    question: Question
    content: str
    stored: Mapping[str, Kept]
    kernels: tuple[str, ...]
    cuts: list[Cut]
    first: int = 0

    @property
    def numbers(self) -> range:
        """Those of its candidates, in the order of `candidates_of`."""
        return range(self.first, self.first + len(self.cuts) * len(self.kernels))

    def of_cut(self, position: int) -> range:
        """Those of one cut under every kernel."""
        return self.numbers[position * len(self.kernels) : (position + 1) * len(self.kernels)]


class OpSearch:
    """The search of one op: what is known so far, and the steps to know more.

    Its candidates are those of all `variants`, one variant after the other. `start` are candidates to
    evaluate before all others; those that are none of the candidates are ignored. The best candidate is that
    of the least cost (cycles, unless the objective is another), then of the least L1, then the first.
    """

    def __init__(
        self,
        question: Question,
        options: StrategyOptions,
        cache: ResultCache | None,
        meter: Meter,
        start: Sequence[Cut] = (),
    ) -> None:
        self.question = question
        self.options = options
        self.candidates: list[Cut] = []
        self.evaluations: dict[int, Evaluation] = {}
        self.cached = 0
        self._cache = cache
        self._meter = meter
        self._start = start
        self.variants = [
            Variant(name, each, content, _stored(cache, each, content), each.kernels(), [])
            for name, each in question.variants().items()
            for content in (each.content,)
        ]

    def steps(self) -> Search:
        """All steps, for `scheduler.search.driver.drive`."""
        yield from self._list_candidates()
        self._meter.expect(len(self.candidates))
        numbers = {candidate: number for number, candidate in enumerate(self.candidates)}
        start = map(self.question.as_candidate, self._start)
        yield from self.evaluate([numbers[item] for item in start if item in numbers])
        yield from STRATEGIES[self.options.name](self)
        self._meter.done(len(self.candidates) - len(self.evaluations))

    def evaluate(self, wanted: Sequence[int]) -> Search:
        """Evaluate candidates by number; what is known already costs nothing."""
        missing = []
        for number in dict.fromkeys(wanted):
            if number in self.evaluations:
                continue
            kept = self._variant(number).stored.get(f"cycles {self._item(number)}")
            if isinstance(kept, Evaluation):
                self.evaluations[number] = kept
                self.cached += 1
                self._meter.done(1)
            else:
                missing.append(number)
        jobs = []
        for variant in self.variants:
            kernels = len(variant.kernels)
            size = kernels * max(1, CHUNK // kernels)
            numbers = [number for number in sorted(missing) if number in variant.numbers]  # cut by cut
            jobs += [
                self._evaluation_job(variant, numbers[first : first + size])
                for first in range(0, len(numbers), size)
            ]
        if jobs:
            yield jobs

    def bounds(self) -> Generator[Sequence[Job], Sequence[Any], list[int]]:
        """Lower bounds of all candidates."""
        by_number: dict[int, int] = {}

        def job(variant: Variant, numbers: Sequence[int]) -> Job:
            def arrived(bounds: Sequence[int]) -> None:
                new = dict(zip(numbers, bounds, strict=True))
                by_number.update(new)
                self._keep(
                    variant, {f"bound {self._item(number)}": str(bound) for number, bound in new.items()}
                )

            candidates = [self.candidates[number] for number in numbers]
            return Job(bound_candidates, (variant.question, candidates), arrived)

        jobs = []
        for variant in self.variants:
            missing = []
            for number in variant.numbers:
                kept = variant.stored.get(f"bound {self._item(number)}")
                if isinstance(kept, int):
                    by_number[number] = kept
                else:
                    missing.append(number)
            jobs += [
                job(variant, missing[first : first + BOUNDS_CHUNK])
                for first in range(0, len(missing), BOUNDS_CHUNK)
            ]
        if jobs:
            yield jobs
        return [by_number[number] for number in range(len(self.candidates))]

    @property
    def bounded(self) -> bool:
        """Whether all cuts were asked for and there may be more than are listed."""
        if self.question.rules.cuts:
            return False
        counts = (Counter(cut.depth for cut in variant.cuts) for variant in self.variants)
        return any(count >= MOST_CUTS for each in counts for count in each.values())

    def ranking(self) -> list[int]:
        """Numbers of the possible candidates evaluated so far, the best first."""

        def key(number: int) -> tuple[int, int, int]:
            evaluation = self.evaluations[number]
            return evaluation.rank, evaluation.l1_bytes, number

        return sorted((number for number, item in self.evaluations.items() if not item.refused), key=key)

    def _list_candidates(self) -> Search:
        """Fill `candidates` with those of every variant."""
        key = "cuts " + fingerprint((self.question.rules.depths, self.question.rules.cuts))
        unknown = [variant for variant in self.variants if key not in variant.stored]
        listed = (yield [Job(cuts_of, (variant.question,)) for variant in unknown]) if unknown else []
        by_variant = dict(zip((variant.name for variant in unknown), listed, strict=True))
        for variant in self.variants:
            variant.first = len(self.candidates)
            kept = variant.stored.get(key)
            if isinstance(kept, tuple):
                variant.cuts = list(kept)
            else:
                variant.cuts = by_variant[variant.name]
                self._keep(variant, {key: text_of(variant.cuts)})
            self.candidates += candidates_of(variant.cuts, variant.kernels, variant.name)

    def _variant(self, number: int) -> Variant:
        return next(variant for variant in self.variants if number in variant.numbers)

    def _item(self, number: int) -> str:
        """What the cache calls a candidate, under the content of its variant."""
        return str(replace(self.candidates[number], variant=""))

    def _evaluation_job(self, variant: Variant, numbers: Sequence[int]) -> Job:
        def arrived(results: Sequence[Evaluation]) -> None:
            self.evaluations.update(zip(numbers, results, strict=True))
            self._keep(
                variant,
                {
                    f"cycles {self._item(number)}": text_of(result)
                    for number, result in zip(numbers, results, strict=True)
                },
            )
            self._meter.done(len(numbers))

        candidates = [self.candidates[number] for number in numbers]
        return Job(evaluate_candidates, (variant.question, candidates), arrived)

    def _keep(self, variant: Variant, values: Mapping[str, str]) -> None:
        if self._cache is not None:
            self._cache.write(variant.content, values)


def _exhaustive(search: OpSearch) -> Search:
    """All candidates: the oracle."""
    yield from search.evaluate(range(len(search.candidates)))


def _pruned(search: OpSearch) -> Search:
    """In the order of their lower bounds, until the bound of the next one exceeds the second best.

    Whatever is not evaluated takes longer than both, so the answer is that of `exhaustive`.
    """
    bounds = yield from search.bounds()
    order = sorted(range(len(bounds)), key=lambda number: (bounds[number], number))
    size = FIRST_ROUND
    while order:
        best = search.ranking()[:2]
        limit = search.evaluations[best[1]].rank if len(best) == 2 else None
        some = [number for number in order[:size] if limit is None or bounds[number] <= limit]
        if not some:
            return
        yield from search.evaluate(some)
        order = order[size:]
        size = min(2 * size, LARGEST_ROUND)


def _paper(search: OpSearch) -> Search:
    """Algorithm 1 of Nadalini et al. (SAMOS 2022): the K_T largest tiles that fit, all kernels.

    Largest by L1 bytes, single buffering, the default loop order among equals; for every variant.
    """
    for variant in search.variants:
        single = [(number, cut) for number, cut in enumerate(variant.cuts) if cut.depth == 1]
        largest = sorted(single, key=lambda pair: (-pair[1].l1_bytes, pair[0]))
        distinct = {cut.sizes: number for number, cut in reversed(largest)}
        chosen = [number for number, cut in largest if distinct[cut.sizes] == number]
        for number in chosen[: search.options.largest_tiles]:
            yield from search.evaluate(variant.of_cut(number))


def _optuna(search: OpSearch) -> Search:
    """Tree-structured Parzen estimators over variant, cut and kernel jointly, `budget` evaluations."""
    try:
        import optuna
    except ImportError:
        raise InputError(
            "the Python package optuna is not installed",
            where="--strategy optuna",
            cure=install_cure("search"),
        ) from None
    if not search.candidates:
        return
    if len(search.candidates) <= search.options.budget:
        yield from search.evaluate(range(len(search.candidates)))
        return
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=search.options.seed))
    variants = {variant.name: variant for variant in search.variants if variant.cuts}
    for spent in range(0, search.options.budget, TRIALS):
        trials = [study.ask() for _ in range(min(TRIALS, search.options.budget - spent))]
        numbers = []
        for trial in trials:
            variant = variants[trial.suggest_categorical("variant", list(variants))]
            # Cuts and kernels of one variant are not those of another: each has parameters of its own.
            cut = trial.suggest_int(f"cut {variant.name}", 0, len(variant.cuts) - 1)
            kernel = trial.suggest_categorical(f"kernel {variant.name}", list(range(len(variant.kernels))))
            numbers.append(variant.of_cut(cut)[int(kernel)])
        yield from search.evaluate(numbers)
        for trial, number in zip(trials, numbers, strict=True):
            evaluation = search.evaluations[number]
            if evaluation.refused:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
            else:
                study.tell(trial, evaluation.rank)


STRATEGIES: Mapping[str, Callable[[OpSearch], Search]] = {
    "pruned": _pruned,
    "exhaustive": _exhaustive,
    "paper": _paper,
    "optuna": _optuna,
}


def check_strategy(options: StrategyOptions) -> None:
    """Raise `InputError` for an unknown strategy and for numbers below 1."""
    check_known(options.name, STRATEGIES, f"unknown strategy {options.name!r}", "--strategy")
    for option, number in (("--largest-tiles", options.largest_tiles), ("--trials", options.budget)):
        if number < 1:
            raise InputError(
                f"the number is {number}, but must be 1 or more", where=option, cure="use 1 or more"
            )


def _cuts_from(text: str, dims: Mapping[str, int]) -> tuple[Cut, ...]:
    """Raises `ValueError` for a text that is none of cuts of an op with these dimensions."""
    cuts = value_of(text, tuple[Cut, ...])
    for cut in cuts:
        sizes = dict(cut.sizes)
        if not (sorted(sizes) == sorted(cut.order) == sorted(dims) and cut.depth and cut.tiles) or not all(
            1 <= size <= dims[name] for name, size in cut.sizes
        ):
            raise ValueError("not a tiling of this op")
    return cuts


def _stored(cache: ResultCache | None, question: Question, content: str) -> dict[str, Kept]:
    """What the cache holds of a question."""
    if cache is None:
        return {}
    dims = question.tiler(question.default_kernel, 1).dims

    def parse(item: str, value: str) -> Kept:
        kind = item.partition(" ")[0]
        if kind == "cycles":
            return value_of(value, Evaluation)
        if kind == "bound":
            return value_of(value, int)
        if kind == "cuts":
            return _cuts_from(value, dims)
        raise ValueError("not an item of this search")

    return cache.read(content, parse)
