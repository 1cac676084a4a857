# SPDX-License-Identifier: Apache-2.0
"""docs/energy.md: counters, models of chips, what they were fitted to and held against; energy and time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from arch.energy.activity import COUNTERS
from configs.energy_model import COEFFICIENTS, EnergyModel, energy_text, load_energy
from configs.library import list_names
from pulptrain.inputs.settings import Settings
from pulptrain.running.session import run_model
from pulptrain.tuning.model_tuning import tune_model
from scheduler.explore.pareto import pareto_front
from scheduler.explore.picture import draw_front
from scheduler.search.workers import open_workers
from scheduler.tuner.objective import OBJECTIVES
from scheduler.tuner.search_space import SpaceRules
from tools.energy_models import (
    FITS,
    GAP9_POINTS,
    GENERIC,
    VEGA_BEST_HZ,
    VEGA_BEST_VOLT,
    Workload,
    matmul,
    training,
)
from tools.pages.page import ROOT, Page, golden, table
from traces.pictures.drawing import drawn
from traces.text_table import amount

SOC = "gap9"
SMALL, OFF_CHIP = "tutorial-cnn", "deep-autoencoder"
"""A model in L2, and one that is larger than that of `SOC`."""

FRONTNET_SECONDS = 0.510
"""Of 512 images (arXiv 2408.03168)."""


def counters() -> str:
    """The counters of activity."""
    simd = "SIMD instructions of the FPU, each on two fp16 numbers; each format and width has such a counter"
    rows = [*COUNTERS.items(), ("fpu_fp16x2", simd)]
    return table(("counter", "what it counts"), ((f"`{name}`", about) for name, about in rows))


def models() -> str:
    """The models that ship."""
    rows = []
    for name in list_names("energy"):
        model = load_energy(name)
        points = ", ".join(f"{vdd:g} V {hz / 1e6:g} MHz" for vdd, hz, _ in model.points)
        fitted = next(
            (f"{fit.factor():.2f}, from {fit.published}" for fit in FITS if fit.chip == name), "nothing"
        )
        rows.append((f"`{name}`", model.process, points, fitted))
    return table(("model", "process", "operating points", f"scaled from `{GENERIC}` by"), rows)


def coefficients() -> str:
    """The generic model, and what of it every chip has."""
    generic, rows = load_energy(GENERIC), []
    for name, item in generic.coefficients.items():
        unit = COEFFICIENTS[name].unit
        low, nominal, high = (amount(value, unit) for value in (item.low, item.nominal, item.high))
        rows.append((f"`{name}`", COEFFICIENTS[name].of, low, nominal, high, item.grade, item.source.strip()))
    return table(("coefficient", "for", "low", "nominal", "high", "grade", "source"), rows)


def fitted() -> str:
    """The totals that set a model."""
    rows = []
    for fit in FITS:
        says = _nominal(fit.workload(), fit.generic, fit.vdd, fit.hz) / fit.joules(fit.workload())
        point = f"{fit.vdd:g} V, {fit.hz / 1e6:g} MHz"
        factor = f"{fit.factor():.2f}"
        rows.append((f"`{fit.chip}`", fit.simulated, point, fit.published, f"{100 * says:.0f}", factor))
    heads = ("chip", "simulated", "at", "published", "unscaled prediction, % of published", "factor")
    return table(heads, rows)


def _nominal(work: Workload, model: EnergyModel, vdd: float, hz: int) -> float:
    return work.energy(model, vdd, hz).nominal


@dataclass(frozen=True, slots=True)
class Check:
    """A published figure that sets nothing, and the same simulated, in its unit."""

    what: str
    assumed: str
    unit: str
    simulated: tuple[float, float, float]
    published: float
    bound: bool = False
    """Whether it is an upper bound."""

    def verdict(self) -> str:
        """In words."""
        low, nominal, high = self.simulated
        off = f"nominal {nominal / self.published - 1:+.0%}"
        if self.bound:
            return "below the bound" if high <= self.published else f"range NOT below the bound, {off}"
        return f"inside the range, {off}" if low <= self.published <= high else f"OUTSIDE the range, {off}"


def checks() -> list[Check]:
    """All of them."""
    vega, gap9 = load_energy("vega"), load_energy(SOC)
    (low_vdd, low_hz, _), (vdd, hz, _) = GAP9_POINTS
    peak = matmul("vega", "fp32", "mm_M_unroll_2x4")
    per_op = _range(peak, vega, VEGA_BEST_VOLT, VEGA_BEST_HZ, 1e12 / (2 * peak.macs))
    head, eeg, eog = (training(name, SOC) for name in ("frontnet-head", "eeg", "eog"))
    fast = _range(head, gap9, vdd, hz, 1e3 * FRONTNET_SECONDS * hz / head.cycles)
    slow = _range(head, gap9, low_vdd, low_hz, 1e3 * low_hz / head.cycles)
    networks = (
        ("EEG", eeg, "8 filters, full backpropagation", 17, 2.94),
        ("EOG", eog, "layers chosen by us to have the published 4.1 k parameters", 85, 0.59),
    )
    frontnet = (
        "arXiv 2408.03168: fp32 training of the last layer (1920 to 4) on stored features, which take the "
        "published 1 MB"
    )
    return [
        Check(
            "Vega, fp32 peak",
            f"arXiv 2110.09101: fp32 matmul on 8 cores, {VEGA_BEST_VOLT} V as in the fit",
            "pJ/op",
            per_op,
            1e12 / 79e9,
        ),
        Check(
            "PULP-Frontnet, 512 images",
            f"{frontnet}; published time (510 ms) times our power at 0.8 V",
            "mJ",
            fast,
            19.4,
        ),
        Check("PULP-Frontnet, slow point", f"{frontnet}; 0.65 V and 240 MHz", "mW", slow, 19.0),
        *(
            Check(
                f"{name} network, a sample",
                f"arXiv 2604.13359: {layers}; our time; published are 50 mW and {rate} samples/s",
                "mJ",
                _range(work, gap9, vdd, hz, 1e3),
                published,
                bound=True,
            )
            for name, work, layers, rate, published in networks
        ),
        *(
            Check(
                f"{name} network, power",
                f"the same network; our time gives {hz / work.cycles:.0f} samples/s, published are {rate}",
                "mW",
                _range(work, gap9, vdd, hz, 1e3 * hz / work.cycles),
                50,
                bound=True,
            )
            for name, work, layers, rate, published in networks
        ),
    ]


def _range(
    work: Workload, model: EnergyModel, vdd: float, hz: int, factor: float
) -> tuple[float, float, float]:
    energy = work.energy(model, vdd, hz)
    return factor * energy.low, factor * energy.nominal, factor * energy.high


def checked() -> str:
    """The rows that set nothing."""
    rows = [
        (
            check.what,
            check.assumed,
            *(f"{value:.3g}" for value in check.simulated),
            f"{'< ' if check.bound else ''}{check.published:.3g} {check.unit}",
            check.verdict(),
        )
        for check in checks()
    ]
    return table(("what", "source and assumptions", "low", "nominal", "high", "published", "verdict"), rows)


WAYS: Mapping[str, Sequence[tuple[str, Mapping[str, Any]]]] = {
    "residents": [("off", {}), ("auto", {"resident": "auto"})],
    "buffering": [("single", {"buffering": "single"}), ("double", {})],
    "cores": [(f"{cores}", {"cores": cores}) for cores in (1, 2, 4, 8, 16)],
    "format": [("fp32", {}), ("fp16", {"dtype": "fp16"})],
}
"""What is compared: the first of each is what shares are of."""


@cache
def _run(model: str, *options: tuple[str, Any]) -> tuple[float, float, Mapping[str, float]]:
    """Seconds, joules, joules by block."""
    summary = run_model(model, Settings(soc=SOC, **dict(options)), functional=False).summary
    energy = summary["energy"]
    return summary["seconds"], energy["nominal_joules"], energy["by_block"]


def compared(what: str) -> Callable[[], str]:
    """Time and energy of both models under each of the ways."""

    def block() -> str:
        rows = []
        for model in (SMALL, OFF_CHIP):
            first = _run(model, *WAYS[what][0][1].items())
            for name, options in WAYS[what]:
                seconds, joules, blocks = _run(model, *options.items())
                largest = max(blocks, key=lambda block: blocks[block])
                rows.append(
                    (
                        f"`{model}`",
                        name,
                        amount(seconds, "s"),
                        f"{100 * seconds / first[0]:.0f}",
                        amount(joules, "J"),
                        f"{100 * joules / first[1]:.0f}",
                        amount(joules / seconds, "W"),
                        f"{largest.replace('_', ' ')} {blocks[largest] / joules:.0%}",
                    )
                )
        heads = ("model", what, "time", "time, %", "energy", "energy, %", "power", "largest block")
        return table(heads, rows)

    return block


TUNED, CUTS = "digits-cnn", 8


def objective() -> str:
    """A model tuned for each objective."""
    rows = []
    for name in OBJECTIVES:
        with open_workers(1) as pool:
            settings, rules = Settings(soc=SOC, resident="auto"), SpaceRules(cuts=CUTS)
            found = tune_model(TUNED, pool, settings, objective=name, rules=rules).summary
        energy = found["energy"]
        rows.append(
            (
                f"`{name}`",
                f"{found['cycles']:,}",
                amount(energy["nominal_joules"], "J"),
                f"{1e9 * energy['edp_joule_seconds']:.2f} nJ s",
                f"{100 * found['cycles'] / found['untuned_cycles']:.0f}",
                f"{100 * energy['nominal_joules'] / found['untuned_energy']['nominal_joules']:.0f}",
            )
        )
    return table(
        ("objective", "cycles", "energy", "energy times time", "time, % of untuned", "energy, % of untuned"),
        rows,
    )


def _points() -> list[tuple[float, int]]:
    (low_vdd, low_hz, _), (vdd, hz, _) = GAP9_POINTS
    return [
        (voltage, round(hz_of))
        for voltage in (low_vdd, 0.7, 0.75, vdd)
        for hz_of in (low_hz / 2, low_hz, load_energy(SOC).highest_hz(voltage))
        if low_hz / 2 <= hz_of <= hz and hz_of <= load_energy(SOC).highest_hz(voltage) * (1 + 1e-9)
    ]


@cache
def _at_points() -> Mapping[tuple[float, int], tuple[float, float]]:
    """Milliseconds and microjoules of an iteration at each point."""
    work, model = training(SMALL, SOC), load_energy(SOC)
    return {
        (vdd, hz): (1e3 * work.cycles / hz, 1e6 * _nominal(work, model, vdd, hz))
        for vdd, hz in dict.fromkeys(_points())
    }


def points() -> str:
    """Time and energy over the operating points."""
    rows = [
        (
            f"{vdd:g} V",
            f"{hz / 1e6:.0f} MHz",
            f"{time:.3f} ms",
            f"{joules:.1f} uJ",
            f"{joules / time:.1f} mW",
            f"{time * joules:.2f} nJ s",
        )
        for (vdd, hz), (time, joules) in _at_points().items()
    ]
    return table(("supply", "clock", "time", "energy", "power", "energy times time"), rows)


def _texts(*models: str) -> dict[str, str]:
    """What models say."""
    return {name: energy_text(load_energy(name), ()) for name in models}


class EnergyPage(Page):
    """The page with its pictures."""

    def write(self, names: Iterable[str]) -> None:
        """Write the blocks, and the pictures of those with one."""
        names = list(names)
        super().write(names)
        if {*names} & {*WAYS}:
            _draw_ways()
        if "points" in names:
            _draw_points()


def _draw_points() -> None:
    found = _at_points()
    rows = list(found.values())
    front = pareto_front(rows)
    labels = [f"{vdd:g} V {hz / 1e6:.0f} MHz" for vdd, hz in found]
    axes = "time of an iteration (ms)", "energy of an iteration (uJ)"
    folder = ROOT / "docs"
    draw_front(
        rows,
        front,
        labels,
        axes,
        f"{SMALL} on {SOC}",
        folder / "energy-points.png",
        folder / "energy-points.svg",
    )
    (folder / "energy-points.svg").unlink()


def _draw_ways() -> None:
    """Four panels: time and energy of `SMALL`, over those of the first way."""
    with drawn(9.0, 2.4, [ROOT / "docs" / "energy-ways.png"]) as figure:
        for number, (what, ways) in enumerate(WAYS.items()):
            plot = figure.add_axes((0.05 + 0.24 * number, 0.17, 0.2, 0.68))
            found = [_run(SMALL, *options.items()) for _, options in ways]
            bars = (
                ("#0072B2", "time", [row[0] for row in found]),
                ("#D55E00", "energy", [row[1] for row in found]),
            )
            for shift, (colour, word, amounts) in enumerate(bars):
                values = [each / amounts[0] for each in amounts]
                places = [place + 0.38 * shift for place in range(len(ways))]
                plot.bar(places, values, 0.36, color=colour, label=word)
            plot.set_xticks([place + 0.19 for place in range(len(ways))], [name for name, _ in ways])
            plot.set_title(what, fontsize=8, loc="left")
            plot.axhline(1, linewidth=0.5, color="#888888")
        figure.legend(
            *plot.get_legend_handles_labels(), loc="upper right", ncols=2, frameon=False, fontsize=7
        )


PAGE = EnergyPage(
    "docs/energy.md",
    {
        "counters": counters,
        "models": models,
        "coefficients": coefficients,
        "fitted": fitted,
        "checked": checked,
        **{what: compared(what) for what in WAYS},
        "objective": objective,
        "points": points,
    },
    {
        **{
            name: lambda: [_texts(*list_names("energy")), golden("ds-cnn")]
            for name in ("models", "fitted", "checked")
        },
        "objective": lambda: [_texts(SOC), golden(TUNED), CUTS],
        **{what: lambda: [_texts(SOC), golden(SMALL, OFF_CHIP)] for what in WAYS},
    },
)
