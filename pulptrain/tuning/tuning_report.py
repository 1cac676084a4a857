# SPDX-License-Identifier: Apache-2.0
"""What tuning came to, for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scheduler.tuner.search_space import MOST_CUTS
from traces.report import error_line, evidence_line
from traces.text_table import RUN_IT, amount, change, counted, labelled, table_lines


def tuning_lines(
    summary: Mapping[str, Any], width: int, *, top: int = 10, full: bool = False, evidence: bool = False
) -> list[str]:
    """Headline, how it was searched, and the choices of the `top` ops with most cycles (all with `full`).

    `evidence` adds which shares of the cycles rest on measurements.
    """
    lines = []
    for label, text in _headline(summary, evidence=evidence):
        lines += labelled(label, text, width)
    choices = list(summary["choices"])
    by_cycles = sorted(choices, key=lambda choice: -(choice.get("tuned_cycles") or choice["cycles"]))
    shown = choices if full else by_cycles[:top]
    heads = ["op", "untuned", "tuned", "gain", "kernel", "tile in its loops", "buffers"]
    heads += ["variant", "runner-up", "isolated", "simulated"]
    rows = [_row(choice) for choice in shown]
    lines += ["", *table_lines(heads, rows, width, left=("kernel", "tile in its loops", "variant"))]
    if len(choices) > len(shown):
        lines.append(f"{counted(len(choices) - len(shown), 'other')}: --full")
    return lines


def _headline(summary: Mapping[str, Any], *, evidence: bool) -> list[tuple[str, str]]:
    name = f"{summary['model']} on {summary['soc']}"
    lines = [("tuned", f"{name}: interrupted before a whole iteration was simulated")]
    if summary["cycles"] is not None:
        before = summary["untuned_cycles"]
        factor = f"{before / summary['cycles']:.2f}" if before else ""
        gain = f", {factor} times as fast as untuned ({before:,})" if before else ""
        lines = [("tuned", f"{name}: {summary['cycles']:,} cycles{gain}")]
    if summary.get("energy"):
        after, untuned = summary["energy"]["nominal_joules"], summary["untuned_energy"]["nominal_joules"]
        share = f", untuned {amount(untuned, 'J')} ({change(after / untuned - 1)} %)"
        goal = {
            "cycles": "",
            "energy": "; objective: energy",
            "edp": "; objective: energy-delay product",
        }
        lines.append(("energy", f"{amount(after, 'J')}{share}{goal[summary['objective']]}"))
    if summary["error"]:
        lines.append(("error", error_line(summary["error"])))
    if evidence and summary["evidence"]:
        lines.append(("evidence", evidence_line(summary["evidence"])))
    if summary["layout"]:
        lines.append(
            ("layout", ", ".join(f"{layer} {layout}" for layer, layout in summary["layout"].items()))
        )
    for stay in summary["resident"]:
        before, after = stay["before_cycles"], stay["after_cycles"]
        saved = f": {before:,} cycles become {after:,} ({change(after / before - 1)} %)"
        names = ", ".join(stay["resident"]) + saved if stay["resident"] else "nothing"
        lines.append(("resident", f"in L1 between ops of the {stay['program']}: {names}"))
    simulator = summary["simulator"]
    lines.append(
        (
            "searched",
            f"{summary['candidates']:,} candidates, {summary['evaluated']:,} evaluated "
            f"({summary['strategy']}), {simulator['cached']:,} of them from the cache; "
            f"{simulator['wall_seconds']:.1f} s",
        )
    )
    if summary["truncated_ops"]:
        lines.append(
            (
                "truncated",
                f"{', '.join(summary['truncated_ops'])} have more tilings than are searched: those of least "
                f"overhead are, {MOST_CUTS:,} for each number of buffers",
            )
        )
    if "command" in summary:
        lines.append((RUN_IT, summary["command"]))
    return lines


def _row(choice: Mapping[str, Any]) -> list[str]:
    second, sizes = choice["runner_up"], choice["tile"]
    slower = f"+{100 * (second['cycles'] / choice['cycles'] - 1):.1f} %" if second else ""
    before, after = choice.get("untuned_cycles"), choice.get("tuned_cycles")
    return [
        choice["op"],
        f"{before:,}" if before is not None else "",
        f"{after:,}" if after is not None else "",
        f"{before / after:.2f}" if before and after else "",
        choice["kernel"],
        " ".join(f"{name} {sizes[name]}" for name in choice["loop_order"] if name in sizes),
        str(choice["buffering"]),
        choice["variant"],
        slower,
        f"{choice['cycles']:,}",
        f"{choice['evaluated']}/{choice['candidates']}",
    ]
