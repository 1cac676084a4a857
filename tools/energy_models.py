# SPDX-License-Identifier: Apache-2.0
"""Write the energy models of chips (``configs/energy``): the generic one, scaled to one published total each.

    python -m tools.energy_models            all files
    python -m tools.energy_models vega gap9  some

``configs/energy/generic-22fdx.yaml`` is written by hand. docs/energy.md shows the fits, and holds the models
against totals that set nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from arch.energy.accounting import Energy, OperatingPoint, energy_of, factor_for
from arch.energy.activity import Activity
from configs.energy_model import Coefficient, EnergyModel, energy_text, load_energy
from configs.files import write_text
from configs.model_file import read_model
from configs.values import replace
from pulptrain.inputs.layers import node_of
from pulptrain.inputs.settings import Settings
from pulptrain.running.energy import activity_from
from pulptrain.running.primitive_run import run_primitive
from pulptrain.running.session import run_model
from trainlib.primitives.definition import DrawnInput
from trainlib.training.options import check_options

GENERIC = "generic-22fdx"
FOLDER = Path(__file__).resolve().parents[1] / "configs" / "energy"


@dataclass(frozen=True, slots=True)
class Workload:
    """What was simulated: its activity, cycles and multiply-accumulates."""

    activity: Activity
    cycles: int
    macs: int

    def energy(self, model: EnergyModel, vdd: float, hz: int) -> Energy:
        """By a model at an operating point."""
        return energy_of(self.activity, model, OperatingPoint(vdd, hz))


def _of(summary: Mapping[str, Any]) -> Workload:
    return Workload(activity_from(summary, "energy"), summary["cycles"], summary["macs"])


@cache
def matmul(soc: str, dtype: str, kernel: str, samples: int = 64) -> Workload:
    """C[64, samples] = W[64, K] · X, as the forward step of a linear layer, K so that all fits in L1 once."""
    inputs = 128 if dtype == "fp16" else 64
    settings = Settings(soc=soc)
    made = run_primitive(
        "linear",
        "fw",
        [DrawnInput((inputs,))],
        {"out_features": 64},
        batch=samples,
        dtype=dtype,
        kernel=kernel,
        settings=settings,
    )
    return _of(made.summary)


@cache
def training(model: str, soc: str, dtype: str | None = None) -> Workload:
    """An iteration of a model that ships, or of one of `NETWORKS`."""
    spec = read_model(node_of(NETWORKS[model], model, 1), check_options) if model in NETWORKS else model
    return _of(run_model(spec, Settings(soc=soc, dtype=dtype), functional=False).summary)


def _network(
    name: str, shape: Sequence[int], loss: str, layers: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    return {
        "name": name,
        "description": name,
        "source": "docs/energy.md",
        "input": {"shape": list(shape)},
        "dataset": "random",
        "loss": loss,
        "optimizer": {"name": "sgd", "learning_rate": 0.01},
        "batch": 1,
        "layers": [dict(layer) for layer in layers],
    }


def _conv(name: str, channels: int, kernel: Sequence[int], **options: Any) -> dict[str, Any]:
    return {
        "name": name,
        "type": "conv2d",
        "out_channels": channels,
        "kernel": list(kernel),
        "bias": True,
        **options,
    }


NETWORKS: Mapping[str, Mapping[str, Any]] = {
    "frontnet-head": _network(
        "frontnet-head", (1920,), "mse", [{"name": "fc", "type": "linear", "out_features": 4, "bias": True}]
    ),
    "eeg": _network(
        "eeg",
        (1, 8, 1900),
        "cross_entropy",
        [
            _conv("spatial", 8, (8, 1)),
            {"name": "time", "type": "depthwise", "kernel": [1, 64]},
            {"name": "relu1", "type": "relu"},
            {"name": "pool1", "type": "avg_pool2d", "kernel": [1, 8]},
            {"name": "separable", "type": "depthwise", "kernel": [1, 16]},
            _conv("pointwise", 8, (1, 1)),
            {"name": "relu2", "type": "relu"},
            {"name": "pool2", "type": "avg_pool2d", "kernel": [1, 8]},
            {"name": "flatten", "type": "flatten"},
            {"name": "fc", "type": "linear", "out_features": 4, "bias": True},
        ],
    ),
    "eog": _network(
        "eog",
        (1, 2, 1000),
        "cross_entropy",
        [
            _conv("conv1", 4, (1, 4)),
            {"name": "relu1", "type": "relu"},
            {"name": "pool1", "type": "max_pool2d", "kernel": [1, 8]},
            _conv("conv2", 16, (1, 16), padding=[0, 0, 8, 8]),
            {"name": "relu2", "type": "relu"},
            {"name": "pool2", "type": "max_pool2d", "kernel": [1, 4]},
            _conv("conv3", 16, (1, 8), padding=[0, 0, 4, 4]),
            {"name": "relu3", "type": "relu"},
            {"name": "pool3", "type": "max_pool2d", "kernel": [1, 4]},
            _conv("conv4", 16, (2, 1)),
            {"name": "relu4", "type": "relu"},
            {"name": "flatten", "type": "flatten"},
            {"name": "fc", "type": "linear", "out_features": 4, "bias": True},
        ],
    ),
}
"""Networks of publications, as far as they are known: what is not is said on the page."""


@dataclass(frozen=True, slots=True)
class Fit:
    """A chip whose model is the generic one times what makes a run take what was published of it."""

    chip: str
    description: str
    process: str
    points: tuple[tuple[float, int, str], ...]
    """Voltage, highest clock, source."""
    workload: Callable[[], Workload]
    simulated: str
    """The workload in words."""
    vdd: float
    hz: int
    joules: Callable[[Workload], float]
    """Published, of one run of the workload."""
    published: str
    """The same in words, with its source."""
    leakage: Coefficient | None = None
    """If it is known otherwise, and not part of the joules."""

    @property
    def generic(self) -> EnergyModel:
        """What is scaled: the generic model, without leakage where that is known."""
        model = load_energy(GENERIC)
        if self.leakage is None:
            return model
        return replace(
            model, coefficients={**model.coefficients, "leakage": model.coefficients["leakage"].times(0)}
        )

    def factor(self) -> float:
        """On all coefficients of the chip itself."""
        work = self.workload()
        return factor_for(self.generic, work.activity, OperatingPoint(self.vdd, self.hz), self.joules(work))

    def model(self) -> EnergyModel:
        """The scaled model."""
        factor = self.factor()
        how = f"{GENERIC} times {factor:.3g}, fitted to {self.published} at {self.vdd:g} V: {self.simulated}"
        made = self.generic.scaled(factor, how)
        leakage = {"leakage": self.leakage} if self.leakage is not None else {}
        return replace(
            made,
            name=self.chip,
            description=self.description,
            process=self.process,
            socs=(self.chip,),
            points=self.points,
            coefficients={**made.coefficients, **leakage},
        )

    def text(self) -> str:
        """The file."""
        about = ["yaml-language-server: $schema=../schemas/energy.json", "Written by tools/energy_models.py."]
        return energy_text(self.model(), about)


def _per_flop(picojoules: float) -> Callable[[Workload], float]:
    """A published energy of an operation; a multiply-accumulate is two."""
    return lambda work: 2 * work.macs * picojoules * 1e-12


def _drawing(watts: float, hz: int) -> Callable[[Workload], float]:
    """A published power, all the time."""
    return lambda work: watts * work.cycles / hz


GAP9_POINTS = (
    (0.65, 240_000_000, "GAP9 SDK manual, guides/voltage_and_frequency (greenwaves-technologies.com)"),
    (0.80, 370_000_000, "GAP9 SDK manual, guides/voltage_and_frequency (greenwaves-technologies.com)"),
)

VEGA_BEST_VOLT = 0.57
"""Supply of Vega's best efficiency, which is not stated: 32.2 GOPS at 49.4 mW are its peak (0.8 V), 1.3
TOPS/W its best point with the same engine; 0.8 V times the root of their ratio."""

VEGA_BEST_HZ = 195_000_000
"""Clock at that supply, on the line of the points of the model."""

SIRACUSA_STATIC = Coefficient(
    1.5e-3,
    54.2e-3,
    153e-3,
    0.8,
    "of 332 mW (360 MHz, 0.8 V) and 151 mW (210 MHz, 0.65 V) what does not go with the dynamic power",
    "summary of arXiv 2312.14750; high if it went with the cube of the voltage, low as generic-22fdx",
    "second-hand",
    fitted=True,
)

FITS = (
    Fit(
        "vega",
        "Vega (GF 22FDX, 0.5 to 0.8 V), scaled to its published fp16 efficiency",
        "GF 22FDX",
        (
            (0.5, 134_000_000, "on the line of GAP9, the same process, through 450 MHz at 0.8 V; derived"),
            (0.8, 450_000_000, "arXiv 2110.09101"),
        ),
        lambda: matmul("vega", "fp16", "mm_M_fp16_SIMD_4x8"),
        "fp16 matmul with SIMD on 8 cores",
        VEGA_BEST_VOLT,
        VEGA_BEST_HZ,
        _per_flop(7.75),
        "129 GFLOPS/W of arXiv 2110.09101",
    ),
    Fit(
        "mr-wolf",
        "Mr. Wolf (40 nm LP), scaled to its published fp32 efficiency",
        "40 nm LP",
        (
            (
                0.8,
                110_000_000,
                "0.8 to 1.1 V recalled; clock in the ratio of the voltages above 0.65 V, assumed",
            ),
            (1.1, 350_000_000, "configs/soc/mr-wolf.yaml; voltage recalled"),
        ),
        lambda: matmul("mr-wolf", "fp32", "mm_unroll_2x4", 32),
        "fp32 matmul on 8 cores",
        0.8,
        110_000_000,
        _per_flop(111 / 2),
        "9 MFMAC/s/mW of the JSSC 2019 abstract",
    ),
    Fit(
        "gap9",
        "GAP9 (22 nm, 0.65 to 0.8 V), scaled to its published average power in fine-tuning",
        "22 nm FDX",
        GAP9_POINTS,
        lambda: training("ds-cnn", "gap9"),
        "a training iteration of ds-cnn in fp32",
        0.8,
        370_000_000,
        _drawing(0.0576, 370_000_000),
        "57.6 mW of arXiv 2403.10549 (806 mJ in 14 s)",
    ),
    Fit(
        "siracusa",
        "Siracusa (16 nm), scaled to a second-hand total of the whole chip with a workload that is not known",
        "16 nm",
        (
            (0.65, 210_000_000, "summary of arXiv 2312.14750"),
            (0.80, 360_000_000, "summary of arXiv 2312.14750"),
        ),
        lambda: matmul("siracusa", "fp32", "mm_unroll_2x4"),
        "fp32 matmul on 8 cores",
        0.8,
        360_000_000,
        _drawing(0.332 - SIRACUSA_STATIC.nominal, 360_000_000),
        "332 mW at 360 MHz without 54 mW of leakage, of a summary of arXiv 2312.14750",
        SIRACUSA_STATIC,
    ),
)
"""Published totals that set a model."""


def main(wanted: Sequence[str]) -> int:
    """Write the files."""
    for fit in FITS:
        if not wanted or fit.chip in wanted:
            write_text(FOLDER / f"{fit.chip}.yaml", fit.text())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
