# SPDX-License-Identifier: Apache-2.0
"""Optimizers of torch.optim, their groups of parameters and their schedules, as our optimizer section."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from configs.errors import InputError, UnsupportedLayerError
from configs.model_file import OptimizerSpec
from importers.graph.weights import Given
from importers.training_text import DEFAULT_OPTIMIZER, parse_optimizer, parse_schedule
from trainlib.registry import optimizer_primitive

WHERE, SCHEDULE = "optimizer", "lr_schedule"

TAKEN = (
    *("ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax"),
    *("NAdam", "RAdam", "RMSprop", "Rprop", "SGD"),
)
"""Classes of torch.optim, which are called the same here in small letters."""

_WHY_NOT = {
    "Adafactor": "stores a row and a column for each matrix; a state must have the shape of its weight",
    "LBFGS": "computes the loss several times per step, over all parameters together",
    "Muon": "orthogonalises whole matrices; an update here works element by element",
    "SparseAdam": "needs sparse gradients; gradients of embeddings are dense here",
}

_PAIRS = {
    "lr": ("learning_rate",),
    "betas": ("beta1", "beta2"),
    "etas": ("eta_minus", "eta_plus"),
    "step_sizes": ("size_min", "size_max"),
}
"""Options that torch.optim calls otherwise, or has as one."""


@dataclass(frozen=True, slots=True)
class TorchOptimizer:
    """An optimizer of torch.optim as it was given, with a copy of its schedule.

    `groups` are the options of each of its groups and the names of our weights in it; what is in the first is
    the optimizer section. `shared` are the keys beside, for all.
    """

    name: str
    groups: tuple[tuple[Mapping[str, Any], tuple[str, ...]], ...]
    shared: Mapping[str, Any]
    schedule: Any = None

    def spec(self, iterations: int) -> OptimizerSpec:
        """Our section, with the rates of a schedule in these iterations, or in as many as it has."""
        first, *others = self._with_rates(iterations)
        section, _ = first
        groups = [
            {
                "parameters": list(names),
                **{key: item for key, item in options.items() if section[key] != item},
            }
            for options, names in others
            if names
        ]
        whole = {**section, **self.shared, **({"groups": groups} if groups else {})}
        return OptimizerSpec(self.name, whole, WHERE)

    def _with_rates(self, iterations: int) -> Sequence[tuple[Mapping[str, Any], tuple[str, ...]]]:
        if self.schedule is None:
            return self.groups
        rates = _rates(self.schedule, iterations)
        return [
            ({**options, "schedule": schedule}, names)
            for (options, names), schedule in zip(self.groups, rates, strict=True)
        ]


def optimizer_of(
    torch: Any,
    given: Any,
    module: Any,
    sources: Mapping[str, Given],
    lr_schedule: Any,
    shared: Mapping[str, Any],
) -> OptimizerSpec | TorchOptimizer:
    """Our optimizer for text, or one of torch.optim; None is SGD with a learning rate of 0.01.

    `sources` says which parameters of the module our weights are, `lr_schedule` is one of
    torch.optim.lr_scheduler, text or a mapping, `shared` has what else there is beside the options. Raises
    UnsupportedLayerError for optimizers that have no form here, and InputError for parameters of another
    module and schedules of another optimizer.
    """
    beside = {key: item for key, item in shared.items() if item is not None}
    if "average" in beside:
        beside["average"] = _average(torch, beside["average"])
    schedule = None
    if isinstance(lr_schedule, torch.optim.lr_scheduler.LRScheduler):
        schedule = _schedule(torch, lr_schedule, given)
    elif lr_schedule is not None:
        beside["schedule"] = parse_schedule(lr_schedule, SCHEDULE)
    if given is None or isinstance(given, (str, OptimizerSpec)):
        spec = (
            given if isinstance(given, OptimizerSpec) else parse_optimizer(given or DEFAULT_OPTIMIZER, WHERE)
        )
        return OptimizerSpec(spec.name, {**spec.options, **beside}, spec.where)
    name = type(given).__name__
    if name not in TAKEN or type(given) is not getattr(torch.optim, name):
        why = f": {name} {_WHY_NOT[name]}" if name in _WHY_NOT else ""
        raise UnsupportedLayerError(
            f"optimizer {name} is not supported{why}",
            where=WHERE,
            cure=f"use one of torch.optim: {', '.join(TAKEN)}",
        )
    kinds = {
        "adamw" if name == "Adam" and group.get("decoupled_weight_decay") else name.lower()
        for group in given.param_groups
    }
    if len(kinds) > 1:
        raise UnsupportedLayerError(
            "some groups of the optimizer use Adam, others AdamW",
            where=WHERE,
            cure="use the same decoupled_weight_decay for all",
        )
    (kind,) = kinds
    weights = _weights(given, module, sources)
    options = [_options(kind, group) for group in given.param_groups]
    return TorchOptimizer(kind, tuple(zip(options, weights, strict=True)), beside, schedule)


def _options(kind: str, group: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a group by our names; how PyTorch computes (fused, foreach) is none of them."""
    fields = optimizer_primitive(kind, WHERE).schema.model_fields.keys() - {"name", "state_dtype"}
    options: dict[str, Any] = {}
    for key, item in group.items():
        values = item if key in _PAIRS and isinstance(item, (tuple, list)) else (item,)
        names = zip(_PAIRS.get(key, (key,)), values, strict=True)
        options |= {
            name: value if isinstance(value, bool) else float(value)
            for name, value in names
            if name in fields
        }
    if not options.get("momentum", 1):
        options.pop("dampening", None)  # PyTorch does not look at it then
    return options


def _weights(given: Any, module: Any, sources: Mapping[str, Given]) -> Iterator[tuple[str, ...]]:
    """The names of our weights in each group. Raises for parameters that are not of the module."""
    names: dict[int, set[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), set()).add(name)
    owners: dict[str, int] = {}
    strangers = 0
    for number, group in enumerate(given.param_groups):
        for parameter in group["params"]:
            strangers += id(parameter) not in names
            owners |= dict.fromkeys(names.get(id(parameter), ()), number)
    if strangers:
        raise InputError(
            f"{strangers} parameters of the optimizer do not belong to the module",
            where=WHERE,
            cure="create the optimizer from module.parameters()",
        )
    groups: list[list[str]] = [[] for _ in given.param_groups]
    for tensor, source in sources.items():
        mine = {owners[name] for name in source.source.split(" + ") if name in owners}
        if len(mine) > 1:
            raise UnsupportedLayerError(
                f"{source.source} share a weight, but are in different groups of the optimizer",
                where=WHERE,
                cure="put both in one group",
            )
        for number in mine:
            groups[number].append(tensor)
    return (tuple(group) for group in groups)


def _schedule(torch: Any, given: Any, optimizer: Any) -> Any:
    """A copy of the schedule and of its optimizer, whose parameters stay where they are."""
    inner = [given, *getattr(given, "_schedulers", ())]
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau
    if given.optimizer is not optimizer:
        raise InputError(
            "the schedule belongs to another optimizer",
            where=SCHEDULE,
            cure="create the schedule from the optimizer that you pass",
        )
    if any(isinstance(part, plateau) for part in inner[1:]):
        raise UnsupportedLayerError(
            "ReduceLROnPlateau cannot be part of another schedule",
            where=SCHEDULE,
            cure="use ReduceLROnPlateau alone",
        )
    if isinstance(given, plateau) and given.last_epoch:
        raise UnsupportedLayerError(
            f"the ReduceLROnPlateau has stepped {given.last_epoch} times; a run needs a new one",
            where=SCHEDULE,
            cure="create a new ReduceLROnPlateau",
        )
    return _copied(given)


def _copied(schedule: Any) -> Any:
    """The schedule and its optimizer, without copies of parameters and states."""
    optimizer = schedule.optimizer
    same = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return copy.deepcopy(schedule, {id(item): item for item in (*same, optimizer.state)})


def _rates(schedule: Any, iterations: int) -> list[dict[str, Any]]:
    """The schedule of each group: what a copy gives, step by step; it ends where a step raises.

    OneCycleLR would take a step more, up again.
    """
    groups = schedule.optimizer.param_groups
    if hasattr(schedule, "min_lrs"):
        return [_plateau(schedule, number) for number in range(len(groups))]
    taken = _copied(schedule)
    groups = taken.optimizer.param_groups
    if hasattr(taken, "total_steps"):
        iterations = min(iterations, taken.total_steps - taken.last_epoch)
    rates: list[list[float]] = [[] for _ in groups]
    momenta: list[list[float]] = [[] for _ in groups]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of steps that no optimizer takes
        for left in reversed(range(iterations)):
            for number, group in enumerate(groups):
                rates[number].append(float(group["lr"]))
                momenta[number].append(float(group.get("momentum", group.get("betas", (0,))[0])))
            try:
                if left:
                    taken.step()
            except Exception:
                break
    return [
        {"name": "listed", "rates": learning, **({"momenta": moved} if len(set(moved)) > 1 else {})}
        for learning, moved in zip(rates, momenta, strict=True)
    ]


def _plateau(schedule: Any, number: int) -> dict[str, Any]:
    """ReduceLROnPlateau of a group, which looks at losses that are not known yet."""
    same = ("mode", "factor", "patience", "threshold", "threshold_mode", "cooldown", "eps")
    options = {key: getattr(schedule, key) for key in same}
    return {"name": "plateau", **options, "lowest": float(schedule.min_lrs[number])}


def _average(torch: Any, given: Any) -> float:
    """The share of an exponential average: a number, or what an AveragedModel was made with."""
    if not isinstance(given, torch.optim.swa_utils.AveragedModel):
        return float(given)
    function = given.multi_avg_fn or given.avg_fn
    share = inspect.getclosurevars(inspect.unwrap(function)).nonlocals.get("decay") if function else None
    if share is None or function.__module__ != torch.optim.swa_utils.__name__:
        raise UnsupportedLayerError(
            "the averaging function of the AveragedModel is not supported",
            where="average",
            cure="use multi_avg_fn=get_ema_multi_avg_fn(0.999)",
        )
    if int(given.n_averaged):
        raise UnsupportedLayerError(
            f"the AveragedModel was already updated {int(given.n_averaged)} times; a new one is needed",
            where="average",
            cure="create a new AveragedModel",
        )
    return float(share)
