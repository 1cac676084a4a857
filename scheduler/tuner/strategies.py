"""Which candidates of an op are evaluated, in which order: the search of one op, step by step."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from configs.errors import InputError
from configs.suggest import suggestion
from scheduler.tuner.cache import ResultCache
from scheduler.tuner.candidates import Candidate, Cut, Question, candidates_of
from scheduler.tuner.driver import Job, Search
from scheduler.tuner.evaluate import (
    Evaluation,
    as_text,
    bound_candidates,
    cuts_of,
    evaluate_candidates,
    from_text,
)
from scheduler.tuner.fingerprint import fingerprint
from scheduler.tuner.progress import Meter

CHUNK = 24
"""Candidates of one call to a worker, less than a second: the kernels of a cut, which share its program."""

TRIALS = 8
"""Trials of optuna that are asked for before it hears of their results."""

BOUNDS_CHUNK = 384
"""The same for lower bounds, which are cheaper; cuts of one call share what they have in common."""

FIRST_ROUND, LARGEST_ROUND = 4, 32
"""Candidates evaluated before `pruned` looks at the bounds again; doubled from round to round."""


@dataclass(frozen=True, slots=True)
class StrategyOptions:
    """How to search: `name` is one of `STRATEGIES`; `largest_tiles` is the K_T of `paper`, which has the
    published value; `budget` the evaluations per op of `optuna` and `seed` that of its sampler."""

    name: str = "pruned"
    largest_tiles: int = 5
    budget: int = 200
    seed: int = 0


class OpSearch:
    """The search of one op: what is known so far, and the steps to know more.

    `start` are candidates to evaluate before all others; those that are none of the candidates are ignored.
    The best candidate is that of the fewest cycles, then of the least L1, then the first.
    """

    def __init__(
        self,
        question: Question,
        options: StrategyOptions,
        cache: ResultCache | None,
        meter: Meter,
        start: Sequence[Candidate] = (),
    ) -> None:
        self.question = question
        self.options = options
        self.candidates: list[Candidate] = []
        self.evaluations: dict[int, Evaluation] = {}
        self.cached = 0
        self._cache = cache
        self._meter = meter
        self._start = start
        self._content = question.content
        self._stored = cache.read(self._content) if cache is not None else {}

    def steps(self) -> Search:
        """All steps, for `scheduler.tuner.driver.drive`."""
        cuts = yield from self._cuts()
        self.candidates = list(candidates_of(cuts, self.question.kernels()))
        self._meter.expect(len(self.candidates))
        numbers = {candidate: number for number, candidate in enumerate(self.candidates)}
        yield from self.evaluate([numbers[item] for item in self._start if item in numbers])
        yield from STRATEGIES[self.options.name](self, cuts)
        self._meter.done(len(self.candidates) - len(self.evaluations))

    def evaluate(self, wanted: Sequence[int]) -> Search:
        """Evaluate candidates by number; what is known already costs nothing."""
        missing = []
        for number in dict.fromkeys(wanted):
            if number in self.evaluations:
                continue
            text = self._stored.get(f"cycles {self.candidates[number]}")
            if text is None:
                missing.append(number)
            else:
                self.evaluations[number] = from_text(text)
                self.cached += 1
                self._meter.done(1)
        missing.sort()  # kernels of one cut side by side
        kernels = len(self.question.kernels())
        size = kernels * max(1, CHUNK // kernels)
        if missing:
            yield [
                self._evaluation_job(missing[first : first + size]) for first in range(0, len(missing), size)
            ]

    def bounds(self) -> Generator[Sequence[Job], Sequence[Any], list[int]]:
        """Lower bounds of all candidates."""
        keys = [f"bound {candidate}" for candidate in self.candidates]
        known = {key: int(self._stored[key]) for key in keys if key in self._stored}
        missing = [number for number, key in enumerate(keys) if key not in known]

        def job(numbers: Sequence[int]) -> Job:
            def arrived(bounds: Sequence[int]) -> None:
                found = dict(zip((keys[number] for number in numbers), bounds, strict=True))
                known.update(found)
                self._keep({key: str(bound) for key, bound in found.items()})

            return Job(
                bound_candidates, (self.question, [self.candidates[number] for number in numbers]), arrived
            )

        if missing:
            yield [
                job(missing[first : first + BOUNDS_CHUNK]) for first in range(0, len(missing), BOUNDS_CHUNK)
            ]
        return [known[key] for key in keys]

    def ranking(self) -> list[int]:
        """Numbers of the possible candidates evaluated so far, the best first."""

        def key(number: int) -> tuple[int, int, int]:
            evaluation = self.evaluations[number]
            return evaluation.cycles, evaluation.l1_bytes, number

        return sorted((number for number, item in self.evaluations.items() if not item.refused), key=key)

    def _cuts(self) -> Generator[Sequence[Job], Sequence[Any], list[Cut]]:
        key = "cuts " + fingerprint(self.question.rules)
        if key in self._stored:
            return [_cut_from(line) for line in self._stored[key].splitlines()]
        cuts: list[Cut] = (yield [Job(cuts_of, (self.question,))])[0]
        self._keep({key: "\n".join(_cut_text(cut) for cut in cuts)})
        return cuts

    def _evaluation_job(self, numbers: Sequence[int]) -> Job:
        def arrived(results: Sequence[Evaluation]) -> None:
            self.evaluations.update(zip(numbers, results, strict=True))
            self._keep(
                {
                    f"cycles {self.candidates[number]}": as_text(result)
                    for number, result in zip(numbers, results, strict=True)
                }
            )
            self._meter.done(len(numbers))

        return Job(
            evaluate_candidates, (self.question, [self.candidates[number] for number in numbers]), arrived
        )

    def _keep(self, values: Mapping[str, str]) -> None:
        if self._cache is not None:
            self._cache.write(self._content, values)


def _exhaustive(search: OpSearch, cuts: Sequence[Cut]) -> Search:
    """All candidates: the oracle."""
    yield from search.evaluate(range(len(search.candidates)))


def _pruned(search: OpSearch, cuts: Sequence[Cut]) -> Search:
    """In the order of their lower bounds, until the bound of the next one exceeds the best.

    Whatever is not evaluated takes longer than the best, so the answer is that of `exhaustive`.
    """
    bounds = yield from search.bounds()
    order = sorted(range(len(bounds)), key=lambda number: (bounds[number], number))
    size = FIRST_ROUND
    while order:
        best = search.ranking()[:1]
        limit = search.evaluations[best[0]].cycles if best else None
        some = [number for number in order[:size] if limit is None or bounds[number] <= limit]
        if not some:
            return
        yield from search.evaluate(some)
        order = order[size:]
        size = min(2 * size, LARGEST_ROUND)


def _paper(search: OpSearch, cuts: Sequence[Cut]) -> Search:
    """Algorithm 1 of Nadalini et al. (SAMOS 2022): the K_T largest tiles that fit, all kernels.

    Largest by L1 bytes, single buffering, the default loop order among equals.
    """
    single = [(number, cut) for number, cut in enumerate(cuts) if cut.depth == 1]
    largest = sorted(single, key=lambda pair: (-pair[1].l1_bytes, pair[0]))
    distinct = {cut.sizes: number for number, cut in reversed(largest)}
    chosen = [number for number, cut in largest if distinct[cut.sizes] == number]
    kernels = len(search.candidates) // max(1, len(cuts))
    for number in chosen[: search.options.largest_tiles]:
        yield from search.evaluate(range(number * kernels, (number + 1) * kernels))


def _optuna(search: OpSearch, cuts: Sequence[Cut]) -> Search:
    """Tree-structured Parzen estimators over cut and kernel jointly, `budget` evaluations."""
    try:
        import optuna
    except ImportError:
        raise InputError(
            "optuna is not installed", where="--strategy optuna", cure="pip install 'pulptrain[search]'"
        ) from None
    if not search.candidates:
        return
    if len(search.candidates) <= search.options.budget:
        yield from search.evaluate(range(len(search.candidates)))
        return
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=search.options.seed))
    kernels = len(search.candidates) // len(cuts)
    for spent in range(0, search.options.budget, TRIALS):
        trials = [study.ask() for _ in range(min(TRIALS, search.options.budget - spent))]
        numbers = []
        for trial in trials:
            cut = trial.suggest_int("cut", 0, len(cuts) - 1)
            kernel = trial.suggest_categorical("kernel", list(range(kernels)))
            numbers.append(cut * kernels + int(kernel))
        yield from search.evaluate(numbers)
        for trial, number in zip(trials, numbers, strict=True):
            evaluation = search.evaluations[number]
            if evaluation.refused:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
            else:
                study.tell(trial, evaluation.cycles)


STRATEGIES: Mapping[str, Callable[[OpSearch, Sequence[Cut]], Search]] = {
    "pruned": _pruned,
    "exhaustive": _exhaustive,
    "paper": _paper,
    "optuna": _optuna,
}


def check_strategy(options: StrategyOptions) -> None:
    """Raise `InputError` for an unknown strategy and for numbers below 1."""
    if options.name not in STRATEGIES:
        raise InputError(
            f"unknown strategy {options.name!r}",
            where="--strategy",
            cure=suggestion(options.name, STRATEGIES),
        )
    for option, number in (("--largest-tiles", options.largest_tiles), ("--budget", options.budget)):
        if number < 1:
            raise InputError(f"{number} is too few", where=option, cure="1 or more")


def _cut_text(cut: Cut) -> str:
    sizes = ",".join(f"{name}={size}" for name, size in cut.sizes)
    return f"{sizes} {','.join(cut.order)} {cut.depth} {cut.tiles} {cut.l1_bytes}"


def _cut_from(text: str) -> Cut:
    sizes, order, depth, tiles, l1_bytes = text.split(" ")
    pairs = (pair.split("=") for pair in sizes.split(",") if pair)
    return Cut(
        tuple((name, int(size)) for name, size in pairs),
        tuple(name for name in order.split(",") if name),
        int(depth),
        int(tiles),
        int(l1_bytes),
    )
