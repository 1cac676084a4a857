# SPDX-License-Identifier: Apache-2.0
"""A SoC in Python: a preset or a file, and what is changed of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from typing import Any, Unpack

from arch.spec.timing import SocTiming
from configs.parameters import ParameterTree, load_parameters
from pulptrain.inputs.option import ChipOptions
from pulptrain.inputs.real_values import as_fields
from pulptrain.inputs.settings import Settings, set_parameters, soc_timing
from traces.text_table import Table

_KIB = 1024


@dataclass(frozen=True, repr=False)
class Soc:
    """A SoC under a timing profile, checked: every value is legal.

    `fields` are those of `pulptrain.inputs.settings.Settings` that make it; `timing` has every value of it.
    """

    fields: Mapping[str, Any]
    timing: SocTiming = field(compare=False)
    parameters: ParameterTree = field(compare=False)
    """Every parameter of its file by path: value, unit, description, source."""

    @property
    def name(self) -> str:
        """Of its file."""
        return self.timing.name

    @property
    def cores(self) -> int:
        """Of the cluster."""
        return self.timing.cores

    @property
    def l1_bytes(self) -> int:
        """Size of L1."""
        return self.timing.l1.size_bytes

    @property
    def l2_bytes(self) -> int:
        """Size of L2."""
        return self.timing.l2.size_bytes

    @property
    def l3_bytes(self) -> int:
        """Size of L3; 0 if there is none."""
        return self.timing.l3.size_bytes

    @property
    def cluster_hz(self) -> int:
        """Clock of the cluster."""
        return self.timing.clock.cluster_hz

    def replace(self, **options: Unpack[ChipOptions]) -> Soc:
        """The SoC with other values: ``cores=4, l1="32KiB", overrides={"dma.burst_bytes": 64}``.

        Sizes are texts or bytes. Raises `ConfigError` for a value that cannot be, `DoesNotFitError` for an L1
        that does not hold the stacks of the cores.
        """
        changes = as_fields(options)
        if "overrides" in changes:
            changes["overrides"] = (*self.fields.get("overrides", ()), *changes["overrides"])
        return _checked({**self.fields, **changes})

    def _rows(self) -> list[tuple[str, str]]:
        chip = self.timing
        return [
            ("cores", f"{chip.cores}, {chip.fpu.count} FPUs ({chip.fpu.mapping})"),
            ("L1", f"{self.l1_bytes / _KIB:g} KiB in {chip.l1.banks} banks"),
            ("L2", f"{self.l2_bytes / _KIB:g} KiB"),
            ("L3", f"{self.l3_bytes / _KIB:g} KiB" if self.l3_bytes else "none"),
            ("clock", f"{self.cluster_hz / 1e6:g} MHz"),
            ("timing", chip.profile),
            ("codegen", Settings(**self.fields).codegen),
        ]

    def __str__(self) -> str:
        return "\n".join([self.name, *(f"  {name:<8}{text}" for name, text in self._rows())])

    def __repr__(self) -> str:
        changes = "".join(f", {key}={value!r}" for key, value in self.fields.items() if key != "soc")
        return f"Soc({self.fields.get('soc', self.name)!r}{changes})"

    def _repr_html_(self) -> str:
        return Table((self.name, ""), self._rows(), ("",)).html()


def soc(name_or_path: str | PathLike[str] = "pulp-open", **options: Unpack[ChipOptions]) -> Soc:
    """A SoC that ships (see ``pulptrain list socs``), or one from a file, with `options` as in `Soc.replace`.

    Raises `ConfigError`.
    """
    return _checked(as_fields({"soc": name_or_path, **options}))


def as_soc(given: Soc | str | PathLike[str]) -> Soc:
    """The SoC itself, or that of a name or path."""
    return given if isinstance(given, Soc) else soc(given)


def _checked(fields: Mapping[str, Any]) -> Soc:
    settings = Settings(**fields)
    parameters = load_parameters(settings.soc, settings.timing, set_parameters(settings))
    return Soc(dict(fields), soc_timing(settings), parameters)
