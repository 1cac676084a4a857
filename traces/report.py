# SPDX-License-Identifier: Apache-2.0
"""The summary of a run for people: a headline, totals by step and layer, and the largest ops.

Takes the plain dict that ``run --json`` prints (DESIGN.md §8), so that a stored ``summary.json`` prints the
same. In it `stalls` of an op are core-cycles per word, and `utilisation` has one entry ``core<i>`` per core.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from configs.errors import InputError
from configs.grades import LABELS
from configs.limits import check_at_least_one
from configs.suggest import check_known
from configs.values import Struct, replace
from traces.csv_file import AGAIN
from traces.text_table import Table, amount, counted, labelled, percent, wrapped
from traces.totals import BY, Total, added, collapsed, largest, totals
from traces.why import advice_texts, bound_line, why_table

TOP_STALLS = 2
LEAST_RATE = 0.005
"""MAC/cycle that two decimals show."""
LARGEST = 3
"""Contributors without a comparable measurement that are named."""

MUCH = 0.05
"""Share without a comparable measurement from which on a bar is told as that of the others."""

LEAST_SHARE = 0.0005
"""Share that a decimal of a per cent shows."""

_KIB = 1024


class Detail(Struct, frozen=True):
    """How much of a run is shown.

    `top` ops with most cycles and, `by` layer, step or kernel, as many totals (None: steps, and layers).
    `full` shows every op in order instead, and every note; `why` what the ops with most cycles are bound by;
    `evidence` adds which shares of the cycles rest on measurements.
    """

    top: int = 10
    by: str | None = None
    full: bool = False
    why: bool = False
    evidence: bool = False

    def __post_init__(self) -> None:
        check_at_least_one(self.top, "number of rows", "--top")
        if self.by is not None:
            check_known(self.by, BY, f"unknown group {self.by!r}", "--group-by")


def report_lines(summary: Mapping[str, Any], width: int, detail: Detail | None = None) -> list[str]:
    """Headline, totals and the largest ops as lines; names are never cut, columns that do not fit left out.

    Raises InputError naming the key if `summary` lacks one of the contract.
    """
    detail = detail or Detail()
    try:
        lines = headline(summary, width, full=detail.full, evidence=detail.evidence)
        for table in report_tables(summary, detail):
            lines += ["", *table.lines(width)]
        return lines
    except KeyError as error:
        raise InputError(
            f"the summary of the run lacks the key {error.args[0]!r}", where="summary.json", cure=AGAIN
        ) from error


def report_tables(summary: Mapping[str, Any], detail: Detail) -> list[Table]:
    """Totals and the largest ops; every op of a full view."""
    if detail.why:
        return [why_table(summary, detail.top)]
    if detail.full:
        every_op = [total for op in summary["ops"] for total in collapsed([op])]
        return [_table("layer.step", every_op, summary, whole=True)]
    tables = []
    by = (detail.by,) if detail.by is not None else ("step", "layer")
    for word in by:
        rows = totals(summary["ops"], word)
        rows = rows if word == "step" else largest(rows, detail.top)
        tables.append(_table(word, rows, summary, whole=word == by[0]))
    return [
        *tables,
        _table("largest ops", largest(collapsed(summary["ops"]), detail.top), summary, whole=False),
    ]


def totals_table(summary: Mapping[str, Any], by: str) -> Table:
    """The table of all totals by one of `BY`."""
    return _table(by, totals(summary["ops"], by), summary, whole=True)


def _table(head: str, rows: Sequence[Total], summary: Mapping[str, Any], *, whole: bool) -> Table:
    """A table of totals; shares are of the run's cycles. With `whole` the last rows are offload and total."""
    cores, total_cycles, ops = core_count(summary), summary["cycles"], summary["ops"]
    shown = ("kernel", "tile") if head not in BY else ()
    energy = summary.get("energy") or {}

    def cells(row: Total) -> dict[str, str]:
        """By column."""
        core_cycles = row.cycles * cores
        return {
            head: row.name,
            "cycles": f"{row.cycles:,}",
            "share": percent(row.cycles, total_cycles),
            "energy": amount(row.joules, "J") if row.joules else "-",
            **{name: getattr(row, name) for name in shown},
            "MAC/cyc": _rate(row),
            "busy": percent(core_cycles - sum(row.stalls.values()), core_cycles),
            "top stalls": top_stalls(row.stalls, core_cycles),
            "MACs": f"{row.macs:,}" if row.macs else "-",
            "tiles": f"{row.tiles:,}",
            "KiB in": _kib(row.bytes_in),
            "KiB out": _kib(row.bytes_out),
        }

    every = added("total", ops)
    rest_cycles, empty = total_cycles - every.cycles, dict.fromkeys((*shown, "top stalls"), "")
    table = list(map(cells, rows))
    total = cells(replace(every, cycles=total_cycles, joules=energy.get("nominal_joules", 0.0)))
    if whole and rest_cycles:
        joules = sum(item["joules"] for item in energy.get("by_op", ()) if item["name"] == "offload")
        offload = cells(replace(every, name="offload", cycles=rest_cycles, joules=joules))
        known = {name: offload[name] for name in (head, "cycles", "share", "energy")}
        table.append({**dict.fromkeys(offload, "-"), **known, **empty})
    if whole:
        table.append({**total, "busy": f"{_mean_utilisation(summary):.0%}", **empty})
    return Table(list(total), [list(row.values()) for row in table], ("tile", "kernel", "top stalls"))


def _rate(row: Total) -> str:
    """MAC/cycle, where it is more than nothing."""
    rate = row.macs / row.cycles if row.cycles else 0.0
    return f"{rate:.2f}" if rate >= LEAST_RATE else "-"


def _code_caches(summary: Mapping[str, Any]) -> str:
    """What kernels waited for their code, unless the caches were taken as warm."""
    state = summary.get("icache", "warm")
    if state == "warm":
        return ""
    cycles = sum(op["stalls"].get("icache", 0) for op in summary["ops"]) // core_count(summary)
    return f", instruction caches {state}: each core waits {cycles:,} cycles for code (mean)"


def _throughput(summary: Mapping[str, Any]) -> str:
    """Multiply-accumulates per cycle, and how many of them meet a zero, if some do."""
    text = f"{summary['mac_per_cycle']:.2f} MAC/cycle on {counted(core_count(summary), 'core')}"
    zeros = summary["macs"] - summary.get("useful_macs", summary["macs"])
    if not zeros:
        return text
    return (
        f"{text}; {zeros / summary['macs']:.0%} of the products multiply padding zeros or zeros between "
        "strides"
    )


def headline(
    summary: Mapping[str, Any], width: int, *, full: bool = False, evidence: bool = False
) -> list[str]:
    """What a run came to, in a few lines: cycles and time first."""
    cycles, seconds = summary["cycles"], summary["seconds"]
    clock = f" at {cycles / seconds / 1e6:.0f} MHz" if seconds else ""
    name = f"{summary['model']} on " if "model" in summary else ""
    steps = f", steps {','.join(summary['steps'])}" if "fw" in summary.get("steps", ()) else ""
    steps = "" if summary.get("steps", ())[-1:] == ["upd"] else steps
    first = f"{name}{summary['soc']}{steps}: {cycles:,} cycles = {seconds * 1e3:.3f} ms{clock}"
    lines = wrapped(first, width)
    for label, text in total_lines(summary, full=full, evidence=evidence):
        lines += labelled(label, text, width)
    return lines


def total_lines(
    summary: Mapping[str, Any], *, full: bool = False, evidence: bool = False
) -> list[tuple[str, str]]:
    """The totals as (name, text): throughput, memory, check of the numbers, error, and the rest."""
    lines = [
        ("throughput", _throughput(summary)),
        *([("bound by", bound_line(summary)), *advice_texts(summary)] if "causes" in summary else []),
        ("memory", _memory(summary)),
    ]
    if summary["loss"] is not None:
        lines.append(("loss", f"{summary['loss']:.6f}"))
    if summary.get("energy"):
        lines.append(("energy", energy_line(summary["energy"])))
    lines.append(("numbers", functional_line(summary["functional"])))
    if summary.get("not_finite"):
        lines.append(("not finite", not_finite_line(summary["not_finite"])))
    training = summary.get("training")
    if training and training["iterations"] > 1:
        lines.append(("training", training_line(training)))
    if summary.get("error"):
        lines.append(("error", error_line(summary["error"])))
    if evidence and summary.get("evidence"):
        lines.append(("evidence", evidence_line(summary["evidence"])))
    lines.append(
        (
            "utilisation",
            f"cores issue in {_mean_utilisation(summary):.0%} of the cycles, the DMA moves bytes in "
            f"{summary['utilisation']['dma']:.0%} of the time",
        )
    )
    lines.append(("machine", f"{_machine(summary)}{_code_caches(summary)}"))
    notes = list(summary.get("notes", ()))
    if full or len(notes) == 1:
        lines.extend(("note", note) for note in notes)
    elif notes:
        lines.append(("notes", notes_line(notes)))
    return lines


def energy_line(energy: Mapping[str, Any]) -> str:
    """Energy of an iteration with its range, power, the largest blocks, and what makes the range wide."""
    joules = energy["nominal_joules"]
    blocks = sorted(energy["by_block"].items(), key=lambda item: -item[1])
    shares = ", ".join(
        f"{name.replace('_', ' ')} {part / joules:.0%}" for name, part in blocks[:LARGEST] if part
    )
    wide = " and ".join(item["name"] for item in energy["by_coefficient"][:TOP_STALLS])
    low, high = (amount(energy[key], "J") for key in ("low_joules", "high_joules"))
    power = f"{amount(energy['average_watts'], 'W')} at {energy['vdd_volts']:.3g} V"
    return (
        f"{amount(joules, 'J')} ({low} to {high}), {power} by {energy['energy_model']}; "
        f"{shares}; least known: {wide}"
    )


def notes_line(notes: Sequence[str]) -> str:
    """Several notes in a line: how many say what."""
    kinds: dict[str, int] = {}
    for note in notes:
        place, _, said = note.partition(": ")
        what = note if " " in place or not said else said.partition(":")[0]  # of an op, without its numbers
        kinds[what] = kinds.get(what, 0) + 1
    ordered = sorted(kinds.items(), key=lambda item: -item[1])
    shown = "; ".join(f"{what} (x{count})" if count > 1 else what for what, count in ordered[:2])
    others = sum(count for _, count in ordered[2:])
    more = f"; {counted(others, 'other')}" if others else ""
    return f"{shown}{more}; --full lists all {len(notes)}"


def _memory(summary: Mapping[str, Any]) -> str:
    """Peak of every level, and of how much."""
    sizes = summary.get("capacity_bytes", {})
    parts = []
    for level, peak_bytes in summary["peak_bytes"].items():
        if peak_bytes:
            of = f" of {_kib(sizes[level])}" if sizes.get(level) else ""
            parts.append(f"{level.upper()} {_kib(peak_bytes)}{of} KiB")
            if level == "l2" and summary.get("code_bytes"):
                parts[-1] += f" ({_kib(summary['code_bytes'])} of code)"
    return f"peak {', '.join(parts)}"


def _machine(summary: Mapping[str, Any]) -> str:
    """The SoC, its timing, and how many of its parameters no source gives."""
    evidence = summary.get("evidence")
    assumed = evidence["assumed_parameters"] if evidence else 0
    of_them = f" ({counted(assumed, 'parameter')} assumed)" if assumed else ""
    return f"{summary['soc']}{of_them}, timing {summary['timing']}"


def error_line(error: Mapping[str, Any]) -> str:
    """How far the cycles may be off, and what of them nothing measured tells about."""
    left = error["no_measurement"]
    names = [f"{item['kernel']} {_share(item['share'])}" for item in left[:LARGEST]]
    names += [counted(len(left) - LARGEST, "other")] if len(left) > LARGEST else []
    if error["typical_percent"] is None:
        return f"not known: {error['note']}"
    bar = f"typical {error['typical_percent']:.1f}%, 95% within {error['within_percent']:.1f}%"
    gap, share = f"have no comparable measurement ({', '.join(names)})", error["no_measurement_share"]
    if share >= MUCH:
        return f"for {1 - share:.1%} of the cycles {bar}; the others {gap}"
    return f"{bar}; {_share(share)} of the cycles {gap}" if left else bar


def _share(share: float) -> str:
    """A share in per cent, with what is little told as little."""
    return f"{share:.1%}" if share >= LEAST_SHARE else "<0.1%"


def evidence_line(evidence: Mapping[str, Any]) -> str:
    """Which shares of the cycles rest on measurements, what the largest others are, and what is assumed."""
    shares = ", ".join(f"{evidence[label]:.1%} {label}" for label in LABELS)
    largest = ", ".join(f"{item['kernel']} {item['share']:.1%}" for item in evidence["largest_unmeasured"])
    most = f"; largest not measured: {largest}" if largest else ""
    return f"{shares}{most}; {counted(evidence['assumed_parameters'], 'parameter')} of the SoC assumed"


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
        f"{verdict} against {functional['checked_against']}: {counted(iterations, 'iteration')}"
        f"{_which(functional.get('iterations_followed', ()))}, {counted(len(tensors), 'tensor')}"
    )
    if functional["worst_tensor"]:
        ratio = functional["worst_ratio"]
        text += f"; worst error {ratio:.2g} of its tolerance ({functional['worst_tensor']})"
    text += f"; {functional['not_decidable']} not decidable"
    if functional["without_truth"]:
        text += f", {functional['without_truth']} without truth"
    if functional.get("skipped"):
        text += f"; not compared: {'; '.join(functional['skipped'])}"
    return text


def _which(numbers: Sequence[int]) -> str:
    """The numbers of iterations that do not just begin with the first."""
    if list(numbers) == list(range(1, len(numbers) + 1)):
        return ""
    first = next(place for place, number in enumerate(numbers) if number != place + 1)
    *others, last = [f"1 to {first}", *(f"{number:,}" for number in numbers[first:])]
    return f" ({', '.join(others)} and {last})"


def not_finite_line(event: Mapping[str, Any]) -> str:
    """Where numbers went astray."""
    what = f"overflowed {event['dtype']}" if event["value"] == "infinity" else "became NaN"
    place = f"iteration {event['iteration']}, op {event['op']}"
    return f"'{event['tensor']}' {what} in {place}; training stopped there; later values were not checked"


def _loss(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4f}"


def top_stalls(stalls: Mapping[str, int], core_cycles: int) -> str:
    """The largest stalls as shares of the core-cycles, ties in the order given."""
    largest = sorted((item for item in stalls.items() if item[1]), key=lambda item: -item[1])[:TOP_STALLS]
    if not core_cycles:
        return ""
    return ", ".join(f"{word} {percent(n, core_cycles)}" for word, n in largest)


def core_count(summary: Mapping[str, Any]) -> int:
    """Number of cores of the run: the entries ``core<i>`` of `utilisation`."""
    return sum(name.startswith("core") for name in summary["utilisation"])


def _mean_utilisation(summary: Mapping[str, Any]) -> float:
    cores = [value for name, value in summary["utilisation"].items() if name.startswith("core")]
    return sum(cores) / len(cores) if cores else 0.0


def _kib(size_bytes: int) -> str:
    return f"{size_bytes / _KIB:,.1f}"
