# SPDX-License-Identifier: Apache-2.0
"""The summary of a run for people: a table per layer and step, and the totals below it.

Takes the plain dict that ``run --json`` prints (DESIGN.md §8), so that a stored ``summary.json`` prints the
same. In it `stalls` of an op are core-cycles per word, and `utilisation` has one entry ``core<i>`` per core.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from configs.errors import InputError
from configs.grades import LABELS
from traces.palette import STALL_NAMES
from traces.tracks import op_label

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

TOP_STALLS = 2
_KIB = 1024
_SHORT = {
    "multicycle": "multi-cycle",
    "misaligned": "misaligned",
    "fpu": "FPU",
    "icache": "icache",
    "bank_conflict": "banks",
    "l2_access": "L2",
    "dma_wait": "DMA wait",
    "dma_program": "DMA prog",
    "barrier": "barrier",
    "fork": "fork",
}
"""Stall words shortened for the table; `STALL_NAMES` has the others."""


def print_report(summary: Mapping[str, Any], console: Console) -> None:
    """Print table and totals to a rich console.

    Raises InputError naming the key if `summary` lacks one of the contract.
    """
    try:
        table = ops_table(summary)
        lines = total_lines(summary)
    except KeyError as error:
        raise InputError(
            f"the summary has no {error.args[0]!r}", where="summary.json", cure="run the simulation again"
        ) from error
    console.print(table)
    console.print()
    for name, text in lines:
        console.print(f"[bold]{name:<13}[/bold] {text}", highlight=False, soft_wrap=False)


def ops_table(summary: Mapping[str, Any]) -> Table:
    """One row per op, one for the offload, one for the whole; shares are of the run's cycles."""
    from rich.table import Table  # slow to import

    ops: Sequence[Mapping[str, Any]] = summary["ops"]
    cores = core_count(summary)
    total_cycles = summary["cycles"]
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    table.add_column("layer.step", overflow="fold", max_width=18)
    for name in ("cycles", "share", "MACs", "MAC/cyc", "tiles", "KiB in", "KiB out", "busy"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("top stalls", overflow="ellipsis", no_wrap=True)
    for op in ops:
        table.add_row(
            op_label(op["name"], op["step"]),
            f"{op['cycles']:,}",
            _percent(op["cycles"], total_cycles),
            f"{op['macs']:,}" if op["macs"] else "-",
            f"{op['macs'] / op['cycles']:.2f}" if op["macs"] and op["cycles"] else "-",
            f"{op['tiles']:,}",
            _kib(op["bytes_in"]),
            _kib(op["bytes_out"]),
            _busy(op["stalls"], op["cycles"] * cores),
            top_stalls(op["stalls"], op["cycles"] * cores),
        )
    rest_cycles = total_cycles - sum(op["cycles"] for op in ops)
    if rest_cycles:
        row = ("offload", f"{rest_cycles:,}", _percent(rest_cycles, total_cycles))
        table.add_row(*row, *["-"] * 6, "")
    table.add_row(
        "total",
        f"{total_cycles:,}",
        _percent(total_cycles, total_cycles),
        f"{summary['macs']:,}",
        f"{summary['mac_per_cycle']:.2f}",
        f"{sum(op['tiles'] for op in ops):,}",
        _kib(sum(op["bytes_in"] for op in ops)),
        _kib(sum(op["bytes_out"] for op in ops)),
        f"{_mean_utilisation(summary):.0%}",
        "",
        style="bold",
    )
    return table


def _code_caches(summary: Mapping[str, Any]) -> str:
    """What kernels waited for their code, unless the caches were taken as warm."""
    state = summary.get("icache", "warm")
    if state == "warm":
        return ""
    cycles = sum(op["stalls"].get("icache", 0) for op in summary["ops"]) // core_count(summary)
    return f", instruction caches {state}: {cycles:,} cycles a core waiting for code"


def _throughput(summary: Mapping[str, Any]) -> str:
    """Multiply-accumulates per cycle, and how many of them meet a zero, if some do."""
    text = f"{summary['mac_per_cycle']:.2f} MAC/cycle on {_plural(core_count(summary), 'core')}"
    zeros = summary["macs"] - summary.get("useful_macs", summary["macs"])
    if not zeros:
        return text
    return f"{text}; {zeros / summary['macs']:.0%} of the products meet padding or zeros between strides"


def total_lines(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The totals as (name, text): time, throughput, memory, loss, and the check of the numbers."""
    cycles, seconds = summary["cycles"], summary["seconds"]
    clock = f" at {cycles / seconds / 1e6:.0f} MHz" if seconds else ""
    peak = summary["peak_bytes"]
    lines = [
        ("time", f"{cycles:,} cycles = {seconds * 1e3:.3f} ms{clock}"),
        ("throughput", _throughput(summary)),
        (
            "utilisation",
            f"cores issue {_mean_utilisation(summary):.0%} of the cycles, the DMA moves bytes "
            f"{summary['utilisation']['dma']:.0%} of the time",
        ),
        (
            "peak memory",
            ", ".join(f"{level.upper()} {_kib(size)} KiB" for level, size in peak.items() if size),
        ),
        ("machine", f"{summary['soc']}, timing {summary['timing']}{_code_caches(summary)}"),
    ]
    if summary["loss"] is not None:
        lines.append(("loss", f"{summary['loss']:.6f}"))
    lines.append(("numbers", functional_line(summary["functional"])))
    if summary.get("not_finite"):
        lines.append(("not finite", not_finite_line(summary["not_finite"])))
    training = summary.get("training")
    if training and training["iterations"] > 1:
        lines.append(("training", training_line(training)))
    if summary.get("evidence"):
        lines.append(("evidence", evidence_line(summary["evidence"])))
    lines.extend(("note", note) for note in summary.get("notes", ()))
    return lines


def evidence_line(evidence: Mapping[str, Any]) -> str:
    """Which shares of the cycles rest on measurements, what the largest others are, and what is assumed."""
    shares = ", ".join(f"{evidence[label]:.1%} {label}" for label in LABELS)
    largest = ", ".join(f"{item['kernel']} {item['share']:.1%}" for item in evidence["largest_unmeasured"])
    most = f"; largest not measured: {largest}" if largest else ""
    return f"{shares}{most}; {_plural(evidence['assumed_parameters'], 'parameter')} of the SoC assumed"


def training_line(training: Mapping[str, Any]) -> str:
    """What several iterations gave: simulated time, mean loss at both ends, test accuracy."""
    text = (
        f"{training['iterations']:,} iterations = {training['seconds']:.3g} s of simulated time; mean loss "
        f"of {training['mean_window']} iterations: first {_loss(training['mean_loss_first'])}, "
        f"last {_loss(training['mean_loss_last'])}"
    )
    if training["test_accuracy"] is not None:
        text += f"; test accuracy {training['test_accuracy']:.1%} of {training['test_samples']} samples"
    return text


def functional_line(functional: Mapping[str, Any] | None) -> str:
    """What was checked, against what, and how much of its tolerance the worst tensor needs."""
    if not functional or not functional.get("checked_against"):
        return "not checked"
    iterations, tensors = functional["iterations_checked"], functional["tensors"]
    verdict = {True: "checked", False: "WRONG", None: "checked in part"}[functional["passed"]]
    text = (
        f"{verdict} against {functional['checked_against']}: {_plural(iterations, 'iteration')}, "
        f"{_plural(len(tensors), 'tensor')}"
    )
    if functional["worst_tensor"]:
        ratio = functional["worst_ratio"]
        text += f"; worst error {ratio:.2g} of its tolerance ({functional['worst_tensor']})"
    text += f"; {functional['not_decidable']} not decidable"
    if functional["without_truth"]:
        text += f", {functional['without_truth']} without truth"
    return text


def not_finite_line(event: Mapping[str, Any]) -> str:
    """Where numbers went astray."""
    what = f"overflowed {event['dtype']}" if event["value"] == "infinity" else "became NaN"
    place = f"iteration {event['iteration']}, op {event['op']}"
    return f"'{event['tensor']}' {what} in {place}; training ended there"


def _loss(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4f}"


def top_stalls(stalls: Mapping[str, int], core_cycles: int) -> str:
    """The largest stalls as shares of the core-cycles, ties in the order given."""
    largest = sorted((item for item in stalls.items() if item[1]), key=lambda item: -item[1])[:TOP_STALLS]
    if not core_cycles:
        return ""
    return ", ".join(f"{_SHORT.get(w, STALL_NAMES.get(w, w))} {_percent(n, core_cycles)}" for w, n in largest)


def core_count(summary: Mapping[str, Any]) -> int:
    """Number of cores of the run: the entries ``core<i>`` of `utilisation`."""
    return sum(name.startswith("core") for name in summary["utilisation"])


def _mean_utilisation(summary: Mapping[str, Any]) -> float:
    cores = [value for name, value in summary["utilisation"].items() if name.startswith("core")]
    return sum(cores) / len(cores) if cores else 0.0


def _busy(stalls: Mapping[str, int], core_cycles: int) -> str:
    return _percent(core_cycles - sum(stalls.values()), core_cycles)


def _percent(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "-"


def _kib(size_bytes: int) -> str:
    return f"{size_bytes / _KIB:,.1f}"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")
