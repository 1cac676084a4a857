"""The options all commands share, as one value, and what they mean for the SoC and the schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from arch.soc_config import load_soc, with_options
from arch.timing import SocTiming
from configs.errors import InputError
from scheduler.options import ScheduleOptions, parse_buffering


@dataclass(frozen=True, slots=True)
class Settings:
    """Options of the command line or of a Python call; every field has the default of the command line.

    `overrides` maps parameter paths of the SoC file to values (``--set``). `kernels` and `tiles` are the
    texts of ``--kernel OP=NAME`` and ``--tile OP=dim:size,...``.
    """

    soc: str = "pulp-open"
    timing: str = "rtl"
    codegen: str = "clang-xpulp"
    cores: int | None = None
    l1: str | None = None
    l2: str | None = None
    fpus: str | None = None
    bank_conflicts: str | None = None
    buffering: str = "double"
    overrides: Sequence[str] = ()
    kernels: Sequence[str] = ()
    tiles: Sequence[str] = ()
    seed: int = 0


def soc_timing(settings: Settings) -> SocTiming:
    """The SoC the settings describe. Raises `ConfigError` for unknown names, paths or values out of range."""
    overrides = dict(_pair(text, "--set", "path.to.parameter=value") for text in settings.overrides)
    return with_options(
        load_soc(settings.soc, settings.timing, overrides),
        cores=settings.cores,
        l1=settings.l1,
        l2=settings.l2,
        fpus=settings.fpus,
        bank_conflicts=settings.bank_conflicts,
    )


def schedule_options(settings: Settings) -> ScheduleOptions:
    """The schedule the settings ask for. Raises `InputError` for texts that cannot be read."""
    return ScheduleOptions(
        buffer_depth=parse_buffering(settings.buffering),
        codegen=settings.codegen,
        kernels=dict(_pair(text, "--kernel", "conv1.FW=mm or FW=mm") for text in settings.kernels),
        tile_sizes=dict(_tile(text) for text in settings.tiles),
    )


def _pair(text: str, option: str, form: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name.strip() or not value.strip():
        raise InputError(f"cannot read {text!r}", where=option, cure=f"write it as {form}")
    return name.strip(), value.strip()


def _tile(text: str) -> tuple[str, dict[str, int]]:
    op, sizes = _pair(text, "--tile", "conv2.FW=co:8,ho:3")
    tile: dict[str, int] = {}
    for part in sizes.split(","):
        name, separator, size = part.partition(":")
        if not separator or not (size.strip().isascii() and size.strip().isdigit()):
            raise InputError(
                f"cannot read {part!r} in {text!r}", where="--tile", cure="write it as conv2.FW=co:8,ho:3"
            )
        tile[name.strip()] = int(size)
    return op, tile
