# SPDX-License-Identifier: Apache-2.0
"""The options all commands share, as one value, and what they mean for the SoC and the schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, dataclass_transform

from arch.pricing.code_caches import STEADY, WARM
from arch.spec.soc_config import load_soc, with_values
from arch.spec.timing import SocTiming
from configs.errors import InputError
from configs.limits import check_seed
from configs.parameters import RTL, default_codegen
from configs.values import replace
from configs.yaml_file import read_text
from pulptrain.inputs.option import ALL, MODEL_PREFIX, SCHEDULE, AllOptions, pair
from scheduler.addresses.placement import parse_placement
from scheduler.addresses.plan_options import PlanOptions, parse_homes
from scheduler.options import ScheduleOptions, parse_buffers, parse_resident
from trainlib.ir.numerics import ACCUMULATIONS
from trainlib.kernels.library import LIBRARY
from trainlib.primitives.definition import AS_PUBLISHED, DEFAULT
from trainlib.training.options import MOST_MINI_BATCHES
from trainlib.training.variants import known_variants

if TYPE_CHECKING:
    from configs.model_file import ModelSpec
    from scheduler.tuner.tuned_schedule import TunedSchedule

_T = TypeVar("_T")


@dataclass_transform(frozen_default=True)
def _with_all_options(kind: type[_T]) -> type[_T]:
    """Decorator: a frozen dataclass with a field for each option, of its default."""
    for key, option in ALL.items():
        kind.__annotations__.setdefault(key, Any)
        setattr(kind, key, option.default)
    return dataclass(frozen=True, slots=True)(kind)


@_with_all_options
class Settings:
    """Options of the command line or of a Python call; every field has the default of the command line.

    Every option is a field: those read by name have their type here, those of the SoC are found by their
    `path`. `overrides` maps parameter paths of the SoC file to values (``--set``). `kernels`, `im2col` and
    `tiles` are the texts of ``--kernel OP=NAME``, ``--im2col OP=WAY`` and ``--tile OP=dim:size,...``,
    `variants` those of ``--variant NAME`` (of all layers that do not say) and ``--variant OP=NAME``,
    `loop_orders` those of ``--loop-order OP=dim,dim``, outermost first; `prefetch` (on, off) is that across
    ops, `resident` (off, auto, or tensors) what stays in L1 between them: what the schedule file says if it
    is not given, else off.
    A `codegen` that is not given is that of the SoC file; a wrong SoC then raises `ConfigError` here.
    `icache` is one of `arch.pricing.code_caches.CODE_STARTS`, "" for what `code_start` says, `code_map` the
    path of the map file of an export. `schedule` is what `pulptrain tune` has found, or the path of its file.
    `dtype`, `batch` and `accumulate` replace what the model file says;
    `separate_update` makes the update a program of its own. `steps` (``fw,ig``) are those of an iteration
    that are taken, None for all; `train` says which layers are trained. `inputs`, `loss`, `optimizer`,
    `learning_rate` and `values` are what a model is opened with (`pulptrain.foreign.model_source`).
    `accumulation` is how
    (`trainlib.ir.numerics.ACCUMULATIONS`).
    """

    if TYPE_CHECKING:

        def __init__(
            self, *, seed: int = 0, accumulation: str = "reference", **options: Unpack[AllOptions]
        ) -> None: ...

    soc: str
    timing: str
    codegen: str
    buffering: str
    overrides: Sequence[str]
    kernels: Sequence[str]
    im2col: Sequence[str]
    variants: Sequence[str]
    tiles: Sequence[str]
    loop_orders: Sequence[str]
    prefetch: str
    resident: str | None
    schedule: str | TunedSchedule | None
    icache: str
    code_map: str | None
    energy: str | None
    vdd: str | None
    placement: str
    homes: Sequence[str]
    dtype: str | None
    batch: int | None
    accumulate: int | None
    lr_schedule: str | None
    separate_update: bool
    steps: str | None
    train: str | None
    inputs: str | None
    loss: str | None
    optimizer: str | None
    learning_rate: float | None
    values: str | None
    seed: int = 0
    accumulation: str = "reference"

    def __post_init__(self) -> None:
        check_seed(self.seed)
        for key, option in ALL.items():
            option.check(getattr(self, key))
        if self.accumulation not in ACCUMULATIONS:
            raise InputError(
                f"unknown accumulator {self.accumulation!r}",
                where="--accumulator",
                cure=f"use {' or '.join(ACCUMULATIONS)}",
            )
        if self.accumulate is not None and self.accumulate > MOST_MINI_BATCHES:
            raise InputError(
                f"{self.accumulate} mini-batches per update are too many: the limit is {MOST_MINI_BATCHES}",
                where="--accumulate",
                cure=f"use 1 to {MOST_MINI_BATCHES}",
            )
        if not self.codegen:
            object.__setattr__(self, "codegen", default_codegen(self.soc))


_OF_SOC = {
    key: option for key, option in ALL.items() if option.path and not option.path.startswith(MODEL_PREFIX)
}


def model_variant(settings: Settings) -> str | None:
    """The variant of all layers that do not say one themselves; None if the settings do not say.

    Raises `InputError` for one that is none of a model, and for several.
    """
    names = [text.strip() for text in settings.variants if "=" not in text]
    if not names:
        return None
    if names[-1] not in (DEFAULT, AS_PUBLISHED) or len(names) > 1:
        raise InputError(
            f"only one variant can apply to all layers, but {' and '.join(names)} do"
            if len(names) > 1
            else f"unknown variant {names[0]!r}",
            where="--variant",
            cure=f"use {DEFAULT} or {AS_PUBLISHED}; for one op conv1.WG=VARIANT, for one step WG=VARIANT, "
            f"where VARIANT is one of {', '.join(known_variants())}",
        )
    return names[0]


def code_start(settings: Settings, *, alone: bool = False) -> str:
    """What the instruction caches hold at the start of an iteration, or of a step that was measured `alone`.

    Without `settings.icache` it is `STEADY`, but `WARM` where measurements agree with that
    (docs/decisions/0019-code-of-the-program.md says which). Decided here, and nowhere else. Raises
    `InputError` where the wait for code would be charged twice.
    """
    includes_fetch = LIBRARY.waits_for_code(settings.codegen)
    is_measured_warm = alone or settings.timing != RTL or includes_fetch
    start = settings.icache or (WARM if is_measured_warm else STEADY)
    if start != WARM and includes_fetch:
        raise InputError(
            f"the kernel cycles of codegen '{settings.codegen}' already include instruction fetches, so "
            "--icache would count them twice",
            where="--icache",
            cure=f"use --icache {WARM}, or another --codegen",
        )
    if start == WARM and settings.code_map is not None:
        raise InputError(
            "the option has no effect with --icache warm, which fetches no code",
            where="--code-map",
            cure="use --icache steady",
        )
    return start


def code_map(settings: Settings) -> tuple[str, str] | None:
    """The text of the map file and its name. Raises `ConfigError` where it cannot be read."""
    path = settings.code_map
    return (read_text(Path(path)), path) if path is not None else None


_TABLES = "l1.tables_bytes"


def soc_timing(settings: Settings) -> SocTiming:
    """The SoC the settings describe. Raises `ConfigError` for unknown names, paths or values out of range.

    Where all code is in the caches tables cost cycles and save none: there ops are functions unless the
    settings say otherwise. Raises `InputError` for a form that contradicts a parameter that was set.
    """
    overrides = set_parameters(settings)
    timing = load_soc(settings.soc, settings.timing, overrides)
    options = {key: getattr(settings, key) for key in _OF_SOC}
    is_asked = options["form"] is not None or _TABLES in overrides
    if timing.l1.tables_bytes and not is_asked and code_start(settings) == WARM:
        timing = replace(timing, l1=replace(timing.l1, tables_bytes=0))
    asked = with_options(timing, **options)
    if _TABLES in overrides and asked.l1.tables_bytes != timing.l1.tables_bytes:
        raise InputError(
            f"{options['form']} contradicts {_TABLES}={overrides[_TABLES]} (0: ops are functions; "
            "more: ops are tables)",
            where="--form",
            cure="omit one of the two options",
        )
    return asked


def with_options(timing: SocTiming, **options: Any) -> SocTiming:
    """`timing` changed by options that have a place in the SoC; None leaves a value as it is.

    Raises as `arch.spec.soc_config.with_values`, naming the option.
    """
    given = {key: value for key, value in options.items() if value is not None}
    return with_values(
        timing,
        {_OF_SOC[key].path: value for key, value in given.items()},
        {_OF_SOC[key].path: _OF_SOC[key].flag for key in given},
    )


def set_parameters(settings: Settings) -> dict[str, str]:
    """The values of ``--set`` by path. Raises `InputError` for texts that cannot be read."""
    return dict(pair(text, "--set", "dma.burst_bytes=64") for text in settings.overrides)


def schedule_options(settings: Settings, spec: ModelSpec | None = None) -> ScheduleOptions:
    """The schedule the settings ask for; what a model file says of memory holds, settings go first.

    Raises `InputError` for texts that cannot be read.
    """
    depth, buffers = parse_buffers(settings.buffering)
    if settings.prefetch not in ("on", "off"):
        raise InputError(f"unknown value {settings.prefetch!r}", where="--prefetch", cure="use on or off")
    return ScheduleOptions(
        buffer_depth=depth,
        buffers=buffers,
        prefetch=settings.prefetch == "on",
        resident=parse_resident(settings.resident or "off"),
        codegen=settings.codegen,
        accumulation=settings.accumulation,
        kernels=dict(pair(text, "--kernel", "conv1.FW=mm or FW=mm") for text in settings.kernels),
        variants=dict(
            [
                *(pair(text, "--im2col", "conv1.WG=dma or WG=dma") for text in settings.im2col),
                *(pair(text, "--variant", "conv1.WG=dma") for text in settings.variants if "=" in text),
            ]
        ),
        tile_sizes=dict(_tile(text) for text in settings.tiles),
        loop_orders=dict(_loop_order(text) for text in settings.loop_orders),
        memory=PlanOptions(
            parse_placement(settings.placement),
            {**(spec.homes if spec else {}), **parse_homes(settings.homes)},
            spec.streams if spec else {},
            spec.slot_bytes if spec else {},
        ),
        code_start=code_start(settings),
    )


def _loop_order(text: str) -> tuple[str, tuple[str, ...]]:
    op, dims = pair(text, "--loop-order", "conv2.FW=co,ho,ci")
    return op, tuple(name.strip() for name in dims.split(","))


def _tile(text: str) -> tuple[str, dict[str, int]]:
    op, sizes = pair(text, "--tile", "conv2.FW=co:8,ho:3")
    tile: dict[str, int] = {}
    for part in sizes.split(","):
        name, separator, size = part.partition(":")
        if not separator or not (size.strip().isascii() and size.strip().isdigit() and len(size) < 19):
            raise InputError(
                f"{part!r} in {text!r} is not DIMENSION:SIZE with a size of at most 18 digits",
                where="--tile",
                cure="write e.g. conv2.FW=co:8,ho:3",
            )
        tile[name.strip()] = int(size)
    return op, tile


def requested_of(settings: Settings) -> dict[str, Any]:
    """Options of schedule, parameters of the SoC and the map file that were given, by flag."""
    requested: dict[str, Any] = {}
    for key, option in ALL.items():
        value = getattr(settings, key)
        if value != option.default and (option.group == SCHEDULE or key in ("overrides", "code_map")):
            many = list(value) if option.many else value
            requested[option.flag] = many if isinstance(many, str | int | list) else TUNED
    return requested


TUNED = "tuned"
"""A schedule that no file holds."""
