# SPDX-License-Identifier: Apache-2.0
"""What `import pulptrain as pt` can do: the commands as functions of values."""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast

from configs.errors import InputError
from configs.old_names import new_keywords
from pulptrain.inputs.chip import Soc, as_soc
from pulptrain.inputs.option import FitOptions, LinkedRunOptions, RunOptions, TuneOptions
from pulptrain.inputs.real_values import as_fields
from pulptrain.inputs.settings import Settings
from pulptrain.python.answers import Explored, Fitted, Tuned, Validated
from pulptrain.python.network import Model, as_model
from pulptrain.python.result import Result
from pulptrain.running.result_cache import cache_of

if TYPE_CHECKING:
    from pulptrain.deploying.deployed import Deployed
    from pulptrain.predicting.gains import Gains
    from traces.compared.comparison import Comparison
    from traces.compared.residuals import Residuals
    from traces.speed_up import SpeedUp

ModelLike = Model | str | PathLike[str] | Any
"""A network, the name of one that ships, a file (model.yaml, model.onnx, net.py:Net), or a torch.nn.Module.

All calls take `pulptrain.inputs.option.SourceOptions` with it.
"""

SocLike = Soc | str | PathLike[str]
"""A SoC, the name of one that ships, or the path of a SoC file."""

Cache = bool | str | PathLike[str]
"""Whether results are kept from call to call (in the user's cache folder), or the file they are kept in."""


_F = TypeVar("_F", bound=Callable[..., Any])


def _renamed(call: _F) -> _F:
    """The call, which takes keywords by their former names as well (`configs.old_names`)."""

    known = inspect.signature(call).parameters

    @functools.wraps(call)
    def with_new_keywords(*values: Any, **keywords: Any) -> Any:
        return call(*values, **new_keywords(call.__name__, keywords, known))

    return cast(_F, with_new_keywords)


def settings_of(soc: SocLike, options: Mapping[str, Any], **more: Any) -> Settings:
    """The settings of a SoC and options; options of the SoC among them go before what it says."""
    chip = as_soc(soc)
    fields = as_fields(options)
    if "overrides" in fields:
        fields["overrides"] = (*chip.fields.get("overrides", ()), *fields["overrides"])
    return Settings(**{**chip.fields, **fields, **more})


def run(
    model: ModelLike,
    soc: SocLike = "pulp-open",
    *,
    iterations: int = 1,
    seed: int = 0,
    functional: bool = True,
    data: Any = None,
    progress: Callable[[int, int, float], None] | None = None,
    cache: Cache = True,
    **options: Unpack[LinkedRunOptions],
) -> Result:
    """Simulate a training iteration of `model` on `soc` in time, and compute `iterations` of them.

    Of a torch.nn.Module `inputs` is an example of what goes in, batch first; `labels`, `loss`, `optimizer`,
    `clip_norm`, `clip_value`, `average`, `lr_schedule` and `accumulate` are those of `from_torch`. Of a file
    ``model.onnx`` or ``net.py:Net`` `inputs` (a shape), `loss`, `optimizer` and `learning_rate` are those of
    the command line. `values` are arrays by tensor name, or their .npz file, in place of drawn ones.
    With `functional` False only time is simulated.
    `data` are the samples: any iterable of pairs (x, y), arrays ``{"x": ..., "y": ...}`` (and x_test, y_test,
    of which the accuracy is asked), or an .npz file with these; y are numbers of classes, or targets.
    `progress` is called with iterations done, in all, and the loss. The `options` are those of
    ``pulptrain run``, as texts or as values: ``buffering="double", kernels={"conv1.FW": "mm"},
    tiles={"fc.FW": {"co": 8}}, l1=65536, schedule=tuned``.
    Raises the errors of `configs.errors`, `DoesNotFitError` and `WrongNumbersError` among them.
    """
    network, others = as_model(model, options, seed)
    settings = settings_of(soc, others, seed=seed)
    with cache_of(cache) as kept:
        outcome = network.source.run(
            settings,
            iterations=iterations,
            functional=functional,
            progress=progress,
            cache=kept,
            **_data(data),
        )
    network.source.refuse_other_gradients(outcome)
    return Result(outcome.summary, outcome=outcome)


def _data(data: Any) -> dict[str, Any]:
    """The samples, where there are any: a training graph takes none."""
    return {} if data is None else {"data": fspath(data) if isinstance(data, PathLike) else data}


@_renamed
def tune(
    model: ModelLike,
    soc: SocLike = "pulp-open",
    *,
    objective: str = "cycles",
    strategy: str = "pruned",
    tilings: int | None = None,
    largest_tiles: int = 5,
    trials: int = 200,
    step_variants: str = "search",
    variant: str | None = None,
    layout: str = "keep",
    start: str | PathLike[str] | None = None,
    workers: int | None = None,
    executor: str | None = None,
    seed: int = 0,
    cache: Cache = True,
    **options: Unpack[TuneOptions],
) -> Tuned:
    """Find the fastest tile, loop order, buffering, kernel and variant of every op: ``schedule=`` of `run`.

    Arguments are the options of ``pulptrain tune``. Raises the errors of `configs.errors`.
    """
    from pulptrain.tuning.model_tuning import base_variant, tune_model
    from scheduler.search.workers import open_workers
    from scheduler.tuner.search_space import space_rules
    from scheduler.tuner.strategies import StrategyOptions

    network, others = as_model(model, options, seed)
    settings = settings_of(soc, {"resident": "auto", **others}, seed=seed, variants=base_variant(variant))
    with open_workers(workers, executor) as pool, cache_of(cache) as kept:
        outcome = tune_model(
            network.source.network(settings),
            pool,
            settings,
            strategy=StrategyOptions(strategy, largest_tiles, trials, seed),
            rules=space_rules(tilings, step_variants),
            start=fspath(start) if start is not None else None,
            cache=kept,
            layout=layout,
            objective=objective,
        )
    return Tuned(outcome.schedule, outcome.summary)


@_renamed
def fit(
    model: ModelLike,
    soc: SocLike = "pulp-open",
    *,
    ladder: bool = False,
    deadline: int | str | None = None,
    objective: str = "cycles",
    allow: str | None = None,
    points: int = 0,
    time_limit: float = 300.0,
    seed: int = 0,
    cache: Cache = True,
    **options: Unpack[FitOptions],
) -> Fitted:
    """The fastest way to train `model` with the memories of `soc`: what is kept, computed again, paged.

    With `ladder` the smallest memories for each form of training instead. `deadline` are cycles (a number or
    ``"20Mcycles"``), `allow` are changes of numbers (``"accumulate,fp16-states"``), `time_limit` the seconds
    of the call but for what a first answer takes, `points` other sizes of L2 for the Pareto front, which
    share half of it; the `options` are those of ``pulptrain fit``: ``l2="256KiB"``, ``train=["fc"]``. Raises
    the errors of `configs.errors`, `DoesNotFitError` where nothing fits.
    """
    from pulptrain.fitting.fit_model import add_points, check_solver, deadline_cycles, fit_model
    from pulptrain.fitting.ladder import check_ladder, ladder_summary
    from pulptrain.fitting.ways import parse_changes

    started = time.perf_counter()
    check_solver()
    network, others = as_model(model, options, seed)
    settings = settings_of(soc, {"placement": "optimal", **others}, seed=seed)
    spec = network.source.network(settings)
    with cache_of(cache) as kept:
        if ladder:
            check_ladder(
                deadline=deadline, objective=objective, allow=allow, points=points, time_limit=time_limit
            )
            return Fitted(ladder_summary(spec, settings, cache=kept)[0])
        outcome = fit_model(
            spec,
            settings,
            deadline=deadline_cycles(str(deadline) if deadline is not None else None),
            objective=objective,
            allowed=parse_changes(allow),
            points=points,
            seconds=time_limit,
            started=started,
            cache=kept,
        )
        outcome = add_points(outcome, points)
    return Fitted(outcome.summary, outcome.spec, network.source.brought)


def explore(
    model: ModelLike | None = None,
    soc: SocLike = "pulp-open",
    *,
    sweep: Mapping[str, Sequence[Any]] | None = None,
    points: Iterable[Mapping[str, Any]] = (),
    objectives: Sequence[str] | None = None,
    baseline: Mapping[str, Any] | None = None,
    spec: str | PathLike[str] | None = None,
    name: str = "exploration",
    workers: int | None = None,
    executor: str | None = None,
    cache: Cache = True,
    **options: Unpack[RunOptions],
) -> Explored:
    """Simulate all combinations of the values of `sweep`, and `points`; find what is worth having.

    Keys are options (``cores``, ``l1``, ``schedule`` with files or what `tune` returns), parameters of the
    SoC (``dma.burst_bytes``) and of the model (``model.batch``); `options` hold for all points. Speed-ups are
    over the point with the values of `baseline`, the first one if none is named. Or `spec` is a file as of
    ``pulptrain explore``. Raises the errors of `configs.errors`.
    """
    from pulptrain.exploring.exploration import explore as simulate
    from pulptrain.exploring.explore_spec import load_spec, spec_of
    from scheduler.search.workers import open_workers

    if spec is not None:
        if model is not None or sweep is not None:
            raise InputError(
                "the exploration file already names the model and the sweep",
                where="spec",
                cure="pass either the file, or model and sweep",
            )
        read = load_spec(Path(fspath(spec)), as_fields(options))
    else:
        if model is None:
            raise InputError(
                "the argument 'model' is missing",
                where="explore",
                cure='write e.g. explore("resnet8", sweep={"cores": [1, 8]})',
            )
        network, others = as_model(model, options)
        network.source.network()
        chip = as_soc(soc)
        plan: dict[str, Any] = {"name": name, "model": network.tree}
        plan |= {"sweep": dict(sweep)} if sweep else {}
        plan |= {"points": list(points)} if points else {}
        plan |= {"objectives": list(objectives)} if objectives is not None else {}
        plan |= {"baseline": dict(baseline)} if baseline is not None else {}
        read = spec_of(plan, {**chip.fields, **as_fields(others)})
    with open_workers(workers, executor) as pool, cache_of(cache) as kept:
        return Explored(simulate(read, pool, kept).summary)


def validate(
    kind: str,
    cases: str | PathLike[str],
    *,
    where: Mapping[str, object] | None = None,
    group_by: Sequence[str] = (),
    workers: int | None = None,
    keep_going: bool = False,
) -> Validated:
    """Predict measured rows (``.csv``, ``.csv.gz``) of a `kind` and say how far off the predictions are.

    `where` maps columns to a value, or several: only these rows. Raises `ConfigError` with ``file:line``.
    """
    from pulptrain.show.validation_report import validation_summary
    from scheduler.validation.rows.cases import parse_selection
    from scheduler.validation.runner import validate as predict

    chosen = [f"{column}={_values(value)}" for column, value in (where or {}).items()]
    done = predict(
        kind,
        fspath(cases),
        workers=workers,
        selections=[parse_selection(text) for text in chosen],
        group_by=tuple(group_by),
        keep_going=keep_going,
    )
    return Validated(validation_summary(done, tuple(group_by)))


def _values(value: object) -> str:
    if isinstance(value, list | tuple | set):
        return ",".join(map(str, value))
    return str(value)


def compare(
    *runs: Result | str | PathLike[str],
    in_l1: bool = False,
    path: str | PathLike[str] | None = None,
    width_inches: float | None = None,
    font_points: float | None = None,
    dpi: int | None = None,
    title: str | None = None,
) -> Comparison | Residuals:
    """What changed between runs of one model, or how far one is off from a log; printed it is tables.

    `runs` are results, or folders that `save` or ``--out`` has written; the first is what the others are
    compared with. A file in place of the second is a log of measured cycles (docs/measured-logs.md); with
    `in_l1` predictions are without waits for transfers. With `path`, a .png, .svg or .pdf file, they are
    drawn on one axis of time. Raises `InputError` for runs of different models, fewer than two, a folder that
    holds no run, and a log in which nothing is an op of the run.
    """
    from pulptrain.running.compared_runs import compare_runs
    from traces.compared.strips import draw_strips
    from traces.pictures.drawing import OWN_PAPER, picture_file

    given = [run.summary if isinstance(run, Result) else Path(fspath(run)) for run in runs]
    drawn = picture_file(fspath(path), "path") if path is not None else None
    found = compare_runs(given, [f"run {number}" for number in range(1, len(runs) + 1)], in_l1=in_l1)
    if drawn is not None:
        paper = OWN_PAPER.but(width_inches=width_inches, font_points=font_points, dpi=dpi, title=title)
        draw_strips(found.strips(), found.model, drawn, paper)
    return found


def speed_up(
    *runs: Result | str | PathLike[str],
    path: str | PathLike[str] | None = None,
    width_inches: float = 5.0,
    font_points: float = 8.0,
    dpi: int = 160,
    title: str | None = None,
) -> SpeedUp:
    """What more cores are worth to runs of one model: cycles by step and op; printed it is tables.

    `runs` are results, or folders that `save` or ``--out`` has written, in any order. With `path`, a .png,
    .svg or .pdf file, it is drawn too. Raises `InputError` for runs of different models or SoCs, of equal
    numbers of cores, and for a file that is there and was not drawn by pulptrain.
    """
    from pulptrain.running.stored_run import read_summary
    from traces.pictures.drawing import Paper, picture_file
    from traces.pictures.speed_up import draw_speed_up
    from traces.speed_up import speed_up_of

    if path is not None:
        picture_file(fspath(path), "path")
    summaries = [run.summary if isinstance(run, Result) else read_summary(Path(fspath(run))) for run in runs]
    speed = speed_up_of(summaries, [f"run {number}" for number in range(1, len(runs) + 1)])
    if path is not None:
        draw_speed_up(speed, Path(fspath(path)), paper=Paper(width_inches, font_points, dpi, title))
    return speed


def what_if(
    model: ModelLike,
    soc: SocLike = "pulp-open",
    *,
    verify: bool = False,
    more_l1: int | str | None = None,
    seed: int = 0,
    **options: Unpack[RunOptions],
) -> Gains:
    """What a training iteration would gain from a wider DMA, no bank conflicts, balanced rows and others.

    Predicted from one run; with `verify` each is simulated as well. `more_l1` is by how much L1 is to grow,
    by as much as there is if it is not given. Printed it is a table. Raises the errors of `run`.
    """
    from pulptrain.predicting.gains import gains_of

    network, others = as_model(model, options, seed)
    settings = settings_of(soc, others, seed=seed)
    return gains_of(network.source.prepared, settings, more_l1=more_l1, verify=verify)


@_renamed
def deploy(
    model: ModelLike,
    out: str | PathLike[str],
    soc: SocLike = "pulp-open",
    *,
    iterations: int = 2,
    seed: int = 0,
    data: Any = None,
    arena: int | str | None = None,
    accumulator: str = "reference",
    trainlib: str | PathLike[str] | None = None,
    cache: Cache = True,
    **options: Unpack[RunOptions],
) -> Deployed:
    """Write the schedule of a run as a C project to the folder `out`: ``make check`` proves it.

    `iterations` are those the project carries out and holds against what the simulator finds. `arena` is
    what the linker of the target leaves of L1, in bytes or as a text; `accumulator` is how the simulator
    rounds matmuls: in fp32, or as the C kernels do (`kernel`); `trainlib` is the folder of an
    installed PULP-TrainLib whose matmuls are called. All else
    is as in `run`. Raises the errors of `run`, and `InputError` for a folder with files of others and for a
    kernel or dtype that has no form in C.
    """
    from configs.files import no_empty_folder
    from configs.units import parse_size
    from deploy.calls.trainlib import check_trainlib
    from pulptrain.deploying.deployed import deploy as write
    from pulptrain.deploying.deployed import deploy_folder

    library = check_trainlib(fspath(trainlib)) if trainlib is not None else None
    network, others = as_model(model, options, seed)
    settings = settings_of(soc, others, seed=seed, accumulation=accumulator)
    with no_empty_folder(), cache_of(cache) as kept:
        folder = deploy_folder(fspath(out))
        return write(
            lambda record: network.source.run(
                settings,
                iterations=iterations,
                functional=True,
                traced=False,
                cache=kept,
                record=record,
                **_data(data),
            ),
            folder,
            parse_size(arena, where="arena") if arena is not None else None,
            library,
        )


def load(folder: str | PathLike[str]) -> Result | Explored:
    """What `save` or ``--out`` has written to a folder: a run, or an exploration.

    A folder of `tune` gives the run with the schedule found; its schedule.yaml is for ``schedule=``.
    Raises `InputError` for a folder with neither, and for files that are not as they were written.
    """
    from pulptrain.running.stored_run import read_exploration, read_summary
    from traces.files.result_folder import EXPLORATION_FILES

    place = Path(fspath(folder))
    if (place / EXPLORATION_FILES[0]).is_file():
        return Explored(read_exploration(place))
    return Result(read_summary(place), folder=place)
