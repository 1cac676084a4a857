# SPDX-License-Identifier: Apache-2.0
"""Learning-rate schedules of the optimizer section: what each may say, and the rate of every iteration.

Iterations count from 0, an iteration is one update, and `base` is the learning rate of the section or group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import cos, inf, pi
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from configs.errors import ConfigError
from configs.schema import Schema, validate, validate_values
from configs.suggest import check_known
from configs.yaml_file import Node
from trainlib.ir.varying import Varying

Steps = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Factor = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Range = Annotated[list[Rate], Field(min_length=2, max_length=2)]


def _between(first: float, last: float, share: float) -> float:
    return first + (last - first) * share


def _wave(first: float, last: float, share: float) -> float:
    """Half a cosine from `first` to `last`."""
    return _between(last, first, (1 + cos(pi * share)) / 2)


class Schedule(Schema):
    """One kind of schedule."""

    name: str
    """Its kind."""

    def _steps_in_all(self) -> int | None:
        """Iterations it is made for; None if it does not end."""
        return None

    def _rate(self, base: float, number: int, losses: Sequence[float]) -> float:
        """The learning rate of an iteration; `losses` are those of the iterations before it."""
        raise NotImplementedError

    def _momentum(self, number: int) -> float | None:
        """The momentum of an iteration (Adam: beta1), if it has one of its own."""
        return None


class Constant(Schedule):
    """`factor` times the learning rate for `steps` steps, then the learning rate itself."""

    factor: Factor = 1 / 3
    """Factor of the learning rate."""
    steps: Steps = 5
    """For how long."""

    def _rate(self, base: float, number: int, losses: Sequence[float]) -> float:
        return base * self.factor if number < self.steps else base


class Step(Schedule):
    """The learning rate is multiplied by `factor` after every `every` steps."""

    every: Steps
    """Steps between."""
    factor: Factor = 0.1
    """Factor of the learning rate."""

    def _rate(self, base: float, number: int, losses: Sequence[float]) -> float:
        return base * self.factor ** (number // self.every)


class Multistep(Schedule):
    """The learning rate is multiplied by `factor` at each step in `milestones`."""

    milestones: Annotated[list[Steps], Field(min_length=1)]
    """At which."""
    factor: Factor = 0.1
    """Factor of the learning rate."""

    def _rate(self, base: float, number: int, losses: Sequence[float]) -> float:
        return base * self.factor ** sum(step <= number for step in self.milestones)


class Exponential(Schedule):
    """The learning rate is multiplied by `factor` at every step."""

    factor: Factor
    """Factor of the learning rate."""

    def _rate(self, base: float, number: int, losses: Sequence[float]) -> float:
        return base * self.factor**number


class Linear(Schedule):
    """Linearly from `start` to `end` times the learning rate, in `steps` steps."""

    start: Rate = 1 / 3
    """Share in the first iteration."""
    end: Rate = 1.0
    """Share from `steps` on."""
    steps: Steps = 5
    """Steps between."""

    def _rate(self, base: float, number: int, losses: Sequence[float]) -> float:
        return base * _between(self.start, self.end, min(number / self.steps, 1))


class Polynomial(Schedule):
    """Down to 0 in `steps` steps: the learning rate times (share of the steps left)^`power`."""

    steps: Steps
    """Steps until 0."""
    power: Factor = 1.0
    """The power."""

    def _rate(self, base: float, number: int, losses: Sequence[float]) -> float:
        return float(base * max(1 - number / self.steps, 0) ** self.power)


class Cosine(Schedule):
    """Half a cosine down to `lowest` in `steps` steps, then up again (Loshchilov and Hutter 2017, without
    restarts)."""

    steps: Steps
    """Steps from the full learning rate down to `lowest`."""
    lowest: Rate = 0.0
    """The least learning rate."""

    def _rate(self, base: float, number: int, losses: Sequence[float]) -> float:
        return _wave(base, self.lowest, number / self.steps)


class CosineRestarts(Cosine):
    """Half a cosine down to `lowest`, then again from the full learning rate; each period is `growth` times
    as long as the one before (Loshchilov and Hutter 2017)."""

    growth: Steps = 1
    """How many times as long each period is as the one before."""

    def _rate(self, base: float, number: int, losses: Sequence[float]) -> float:
        length = self.steps
        while number >= length:
            number, length = number - length, length * self.growth
        return _wave(base, self.lowest, number / length)


class Cyclic(Schedule):
    """Linearly up from `lowest` to `highest` and down again, repeatedly (Smith 2017)."""

    lowest: Rate
    """Where it begins."""
    highest: Factor
    """Where it goes."""
    up: Steps = 2000
    """Steps up."""
    down: Steps | None = None
    """Steps down; none: as many."""
    mode: Literal["triangular", "triangular2", "exp_range"] = "triangular"
    """triangular2 halves the distance after each cycle, exp_range takes a share of it at each step."""
    gamma: Factor = 1.0
    """That share."""
    momenta: Range | None = None
    """[least, greatest] momentum, the other way round than the rate."""

    def _height(self, number: int) -> float:
        down = self.down or self.up
        cycle, place = divmod(number, self.up + down)
        height = place / self.up if place <= self.up else 1 - (place - self.up) / down
        scale = {"triangular": 1.0, "triangular2": 0.5**cycle, "exp_range": self.gamma**number}
        return height * scale[self.mode]

    def _rate(self, base: float, number: int, losses: Sequence[float]) -> float:
        return _between(self.lowest, self.highest, self._height(number))

    def _momentum(self, number: int) -> float | None:
        if not self.momenta:
            return None
        least, greatest = self.momenta
        return _between(greatest, least, self._height(number))


class OneCycle(Schedule):
    """Once up to `highest`, then down to almost 0 (Smith and Topin 2018)."""

    highest: Factor
    """Where it goes."""
    steps: Annotated[int, Field(ge=2)]
    """Steps of the cycle, after which it ends."""
    up_share: Annotated[float, Field(gt=0, lt=1)] = 0.3
    """Share of them that go up."""
    form: Literal["cosine", "linear"] = "cosine"
    """Of what is between."""
    start_divisor: Factor = 25.0
    """`highest` over where it begins."""
    end_divisor: Factor = 1e4
    """Where it begins over where it ends."""
    momenta: Range | None = None
    """[least, greatest] momentum, the other way round than the rate."""

    def _steps_in_all(self) -> int | None:
        return self.steps

    def _at(self, number: int, start: float, top: float, end: float) -> float:
        between = _wave if self.form == "cosine" else _between
        turn = self.up_share * self.steps - 1
        if number <= turn:
            return between(start, top, number / turn)
        return between(top, end, (number - turn) / (self.steps - 1 - turn))

    def _rate(self, base: float, number: int, losses: Sequence[float]) -> float:
        first = self.highest / self.start_divisor
        return self._at(number, first, self.highest, first / self.end_divisor)

    def _momentum(self, number: int) -> float | None:
        if not self.momenta:
            return None
        least, greatest = self.momenta
        return self._at(number, greatest, least, greatest)


class Plateau(Schedule):
    """The learning rate is multiplied by `factor` if the loss has not fallen for more than `patience`
    iterations."""

    factor: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Factor of the learning rate."""
    patience: Annotated[int, Field(ge=0)] = 10
    """Iterations that may be no better."""
    threshold: Rate = 1e-4
    """Least decrease of the loss that counts as a decrease."""
    threshold_mode: Literal["rel", "abs"] = "rel"
    """As a share of the best loss, or as a difference."""
    cooldown: Annotated[int, Field(ge=0)] = 0
    """Iterations after a step down that are not counted."""
    lowest: Rate = 0.0
    """The least learning rate."""
    eps: Rate = 1e-8
    """A decrease of the learning rate by less than this is omitted."""
    mode: Literal["min", "max"] = "min"
    """max: the loss shall grow."""

    def _better(self, loss: float, best: float) -> bool:
        sign = 1 if self.mode == "min" else -1
        if self.threshold_mode == "rel":
            return sign * loss < sign * (best * (1 - sign * self.threshold))
        return sign * loss < sign * best - self.threshold

    def _rate(self, base: float, number: int, losses: Sequence[float]) -> float:
        best, bad, cooling = inf if self.mode == "min" else -inf, 0, 0
        for loss in losses[:number]:
            if self._better(loss, best):
                best, bad = loss, 0
            else:
                bad += 1
            if cooling:
                cooling, bad = cooling - 1, 0
            if bad > self.patience:
                lower = max(base * self.factor, self.lowest)
                base = lower if base - lower > self.eps else base
                cooling, bad = self.cooldown, 0
        return base


class Listed(Schedule):
    """The learning rate of every iteration; other schedules of PyTorch are imported as such a list."""

    rates: Annotated[list[Rate], Field(min_length=1)]
    """The rates."""
    momenta: list[Rate] | None = None
    """The momenta, as many."""

    @field_validator("momenta")
    @classmethod
    def _as_many(cls, value: list[float] | None, info: Any) -> list[float] | None:
        if value is not None and len(value) != len(info.data.get("rates", value)):
            raise ValueError("'momenta' must have as many numbers as 'rates'")
        return value

    def _steps_in_all(self) -> int | None:
        return len(self.rates)

    def _rate(self, base: float, number: int, losses: Sequence[float]) -> float:
        return self.rates[min(number, len(self.rates) - 1)]

    def _momentum(self, number: int) -> float | None:
        return self.momenta[min(number, len(self.momenta) - 1)] if self.momenta else None


class Warmup(Schedule):
    """The learning rate grows linearly from `start` times its value, in `steps` steps; then the schedule
    `then` begins."""

    steps: Steps
    """Steps of the linear growth."""
    start: Rate = 0.0
    """First learning rate, as a share of that after the warmup."""
    then: dict[str, Any] | None = None
    """Schedule after the warmup; none: the learning rate itself."""

    @property
    def other(self) -> Schedule:
        """The schedule after the line."""
        return schedule_of(self.then or {"name": "constant", "factor": 1.0}, "warmup")

    def _steps_in_all(self) -> int | None:
        after = self.other._steps_in_all()
        return None if after is None else self.steps + after

    def _rate(self, base: float, number: int, losses: Sequence[float]) -> float:
        after = number - self.steps
        if after >= 0:
            return self.other._rate(base, after, losses[self.steps :])
        return self.other._rate(base, 0, ()) * _between(self.start, 1, number / self.steps)

    def _momentum(self, number: int) -> float | None:
        return self.other._momentum(max(number - self.steps, 0))


SCHEDULES: Mapping[str, type[Schedule]] = {
    "constant": Constant,
    "step": Step,
    "multistep": Multistep,
    "exponential": Exponential,
    "linear": Linear,
    "polynomial": Polynomial,
    "cosine": Cosine,
    "cosine_restarts": CosineRestarts,
    "cyclic": Cyclic,
    "one_cycle": OneCycle,
    "plateau": Plateau,
    "warmup": Warmup,
    "listed": Listed,
}
"""Every schedule by name."""


def schedule_of(given: Mapping[str, Any] | Node, where: str) -> Schedule:
    """The schedule of a section, as values or with their lines. Raises ConfigError."""
    what = "'schedule'"
    plain = given.plain() if isinstance(given, Node) else given
    place = given.where if isinstance(given, Node) else where
    if not isinstance(plain, Mapping) or not isinstance(plain.get("name"), str):
        raise ConfigError(f"{what} has no 'name'", where=place, cure="write e.g. {name: cosine, steps: 100}")
    name = plain["name"]
    check_known(name, SCHEDULES, f"unknown learning-rate schedule '{name}'", place, error=ConfigError)
    if name == "warmup" and plain.get("then"):
        schedule_of(given.mapping(what)["then"] if isinstance(given, Node) else plain["then"], where)
    what = f"schedule '{name}'"
    if isinstance(given, Node):
        return validate(SCHEDULES[name], given, what)
    return validate_values(SCHEDULES[name], plain, what, where)


MOMENTA = ("momentum", "beta1")
"""What the options of optimizers call a momentum."""


def scheduled(options: Mapping[str, Any], schedule: Schedule, where: str) -> dict[str, Any]:
    """The options of an update with those that the schedule moves. Raises ConfigError without a momentum."""
    base = float(options["learning_rate"])
    text = f"{base} by {schedule!r}"
    last = schedule._steps_in_all()
    # No functions of here: a search sends ops to other processes.
    moved: dict[str, Any] = {"learning_rate": Varying(text, partial(schedule._rate, base), last)}
    if schedule._momentum(0) is not None:
        key = next((key for key in MOMENTA if options.get(key)), None)
        if key is None:
            raise ConfigError(
                f"schedule '{schedule.name}' changes the momentum, but the optimizer has no momentum",
                where=where,
                cure="set momentum: 0.9, or remove 'momenta'",
            )
        moved[key] = Varying(text, partial(_momentum, schedule), last)
    return {**options, **moved}


def _momentum(schedule: Schedule, number: int, losses: Sequence[float]) -> float:
    return schedule._momentum(number) or 0.0
