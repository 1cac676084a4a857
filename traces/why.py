# SPDX-License-Identifier: Apache-2.0
"""Why a run takes as long as it does: what binds it and each op, and the first thing to try, with figures.

Takes the dict that ``run --json`` prints. Shares are of core-cycles, `traces.causes` says of what. What is
lost to a cause is its core-cycles over the cores: removing it alone gains no more, another kernel may.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from configs.errors import InputError
from configs.values import Struct
from traces.causes import CAUSES, bound_by
from traces.csv_file import AGAIN
from traces.text_table import COMMAND, Table, labelled, percent
from traces.totals import collapsed, largest

SHOWN = 3
"""Groups on the line of what a run is bound by."""
LEAST_SHARE = 0.1
"""Of the core-cycles a cause has to take to be what is tried first."""

Summary = Mapping[str, Any]


TUNE, NEXT = "tune", "what-if"
"""Commands that go on from a run, keys of ``summary["commands"]``."""


class Advice(Struct, frozen=True):
    """What to try first, by what command if that is known, and the cluster cycles it could save at most."""

    what: str
    most: str
    """The op that loses most."""
    loss_cycles: int
    command: str | None = None


def bound_line(summary: Summary) -> str:
    """The causes that take most of the core-cycles, with their shares."""
    groups = bound_by(summary["causes"])
    whole = sum(groups.values())
    return ", ".join(f"{name} {percent(cycles, whole)}" for name, cycles in list(groups.items())[:SHOWN])


def advice(summary: Summary) -> Advice:
    """What to try first: against the largest loss, or at the kernels' instructions where no loss is large."""
    cores, whole = summary["cores"], sum(summary["causes"].values())
    lost = {remedy: _cycles_of(summary, remedy) for remedy in REMEDIES}
    remedy = max(list(lost)[1:], key=lambda item: lost[item])
    if lost[remedy] < LEAST_SHARE * whole:
        remedy = "compute"
    most = max(summary["ops"], key=lambda op: _cycles_of(op, remedy))
    what, name = remedy_of(summary, remedy)
    command = _command(summary, name) if name is not None else None
    return Advice(what, most["name"], lost[remedy] // cores, command)


def advice_texts(summary: Summary) -> list[tuple[str, str]]:
    """The advice with its figure, and its command, if there is one, as texts with their labels."""
    given = advice(summary)
    share = f"{100 * given.loss_cycles / summary['cycles']:.0f} %"
    text = f"{given.what}; could save up to {given.loss_cycles:,} cycles ({share}), most in {given.most}"
    return [("try", text), *([(COMMAND, given.command)] if given.command is not None else [])]


def why_lines(summary: Summary, top: int, width: int) -> list[str]:
    """What binds the run, what to try, and `why_table`, at most `width` wide; its errors."""
    table = why_table(summary, top).lines(width)
    return [
        *labelled("bound by", bound_line(summary), width),
        *(line for label, text in advice_texts(summary) for line in labelled(label, text, width)),
        "",
        *table,
    ]


def why_json(summary: Summary) -> dict[str, Any]:
    """The same for machines. Raises InputError as `why_table` does."""
    check_causes(summary)
    given = advice(summary)
    return {
        "model": summary["model"],
        "soc": summary["soc"],
        "cycles": summary["cycles"],
        "bound_by": bound_by(summary["causes"]),
        "advice": {
            "remedy": given.what,
            "command": given.command,
            "max_saving_cycles": given.loss_cycles,
            "most_in": given.most,
        },
        "ops": [
            {"name": op["name"], "cycles": op["cycles"], "bound_by": bound_by(op["causes"])}
            for op in summary["ops"]
        ],
    }


def why_table(summary: Summary, top: int) -> Table:
    """Ops with most cycles, what each is bound by, and the shares of all causes, the run's largest first.

    Raises InputError if the causes are not all there, as in a summary of a former version.
    """
    check_causes(summary)
    groups = tuple(bound_by(summary["causes"]))
    rows = largest(collapsed(summary["ops"]), top)
    cells = [_row(row.name, row.cycles, summary["cycles"], row.causes, groups) for row in rows]
    cells.append(_row("total", summary["cycles"], summary["cycles"], summary["causes"], groups))
    return Table(("largest ops", "cycles", "share", "bound by", *groups), cells, ("bound by",))


def check_causes(summary: Summary, where: str = "summary.json") -> None:
    """Raise InputError unless run and ops say causes and what is added up: anybody may change a file."""
    ops = summary.get("ops")
    is_whole = isinstance(ops, list) and len(ops) > 0 and _is_counted(summary, ("cycles", "cores"))
    is_whole = is_whole and min(summary["cycles"], summary["cores"], sum(summary["causes"].values())) > 0
    if not is_whole or not all(_is_op(op) for op in summary["ops"]):
        raise InputError(
            "the summary of the run lacks the causes of lost cycles",
            where=where,
            cure=AGAIN,
        )


def _is_op(op: Any) -> bool:
    names = ("name", "step")
    said = isinstance(op, dict) and all(isinstance(op.get(key), str) for key in names)
    loops = isinstance(op.get("tile", {}), dict) and isinstance(op.get("loop_order") or (), list | tuple)
    return said and loops and _is_counted(op, _ADDED)


def _is_counted(item: Summary, keys: Sequence[str]) -> bool:
    """Whether these keys, all causes and all stalls are whole numbers of at least 0."""
    causes, stalls = item.get("causes"), item.get("stalls")
    if not isinstance(causes, dict) or not isinstance(stalls, dict):
        return False
    numbers = [*map(item.get, keys), *map(causes.get, CAUSES), *causes.values(), *stalls.values()]
    return all(type(number) is int and number >= 0 for number in numbers)


_ADDED = ("cycles", "macs", "tiles", "bytes_in", "bytes_out")
"""What ops are added up by, see `traces.totals`."""


def _row(
    name: str, cycles: int, whole_cycles: int, causes: Mapping[str, int], groups: Sequence[str]
) -> list[str]:
    binding, whole = bound_by(causes), sum(causes.values())
    shares = [percent(binding[group], whole) if group in binding else "" for group in groups]
    return [name, f"{cycles:,}", percent(cycles, whole_cycles), next(iter(binding), ""), *shares]


def _cycles_of(counted: Summary, remedy: str) -> int:
    """Core-cycles of a run or an op that a remedy is for."""
    groups = bound_by(counted["causes"])
    return sum(groups.get(name, 0) for name in _FOR[remedy])


class Remedy(Struct, frozen=True):
    """What to try against a cause: by tuning, by options (texts), or by either.

    An option that was given already, of `options` (a flag, or a flag and how its value begins), is not
    advised again.
    """

    by_tuning: str | None = None
    by_option: str | None = None
    option: tuple[str, str] | None = None


REMEDIES: Mapping[str, Remedy] = {
    "compute": Remedy("other kernels and tiles"),
    "inside kernels": Remedy("kernels with fewer stalls"),
    "transfers": Remedy("fewer transfers", "a larger --l1"),
    "L3": Remedy(None, "a larger --l2, or --home for tensors streamed from L3"),
    "imbalance": Remedy("tiles whose rows fill all {cores} cores"),
    "serial code": Remedy(
        None,
        "a --variant that forks, for work on core 0 alone",
        ("--variant", ""),
    ),
    "overhead of tiles": Remedy("fewer, larger tiles", "a larger --l1"),
    "bank conflicts": Remedy(
        "other kernels", "--set l1.banks=32 shows the gain of more banks", ("--set", "l1.banks=")
    ),
    "FPU": Remedy(None, "--fpus private shows the gain of private FPUs"),
    "divider": Remedy(
        None,
        "--set fpu.divsqrt_count={cores} shows the gain of private dividers",
        ("--set", "fpu.divsqrt_count="),
    ),
    "code refills": Remedy("kernels with less code"),
    "offload": Remedy(None, "more work per iteration: a larger --batch"),
}
"""What to try against a cause, or several that the same helps against."""

FETCHED = Remedy(
    None,
    "--set icache.shared_bytes=65536, to see what a shared instruction cache that holds the program gives",
    ("--set", "icache.shared_bytes="),
)
"""Against code refills where the code of the program comes from L2 in every iteration."""

NOTHING_LEFT = "next: what-if predicts the gain of changes to machine, kernels and schedule"


OTHER_CODE = " (without --code-map, which has the code of this schedule)"


def remedy_of(summary: Summary, cause: str) -> tuple[str, str | None]:
    """What to try against a cause that was not tried yet, and the command of it (`TUNE`, `NEXT`, None).

    A schedule is of one machine and one model, so no option that changes these is advised beside it; with
    other options a schedule has other code than the map file of an export.
    """
    text, command = _remedy_of(summary, cause)
    return text + (OTHER_CODE if "--" in text and _has(summary, "--code-map") else ""), command


def _remedy_of(summary: Summary, cause: str) -> tuple[str, str | None]:
    if _has(summary, "--schedule"):
        return f"tuned; {NOTHING_LEFT}", NEXT
    is_alone = "primitive" in summary
    is_fetched = cause == "code refills" and summary.get("icache", "warm") != "warm"
    if cause == "transfers" and summary.get("buffering") == 1:
        return "--buffering double: transfers during kernels", None
    if not (summary.get("resident") or _has(summary, "--resident") or is_alone):
        if cause == "transfers":
            return "--resident auto: tensors that stay in L1 between ops", None
        if is_fetched:
            return "--resident auto: tensors that stay in L1 need no transfers, nor code for them", None
    remedy = FETCHED if is_fetched else REMEDIES[cause]
    texts = []
    can_tune = "commands" not in summary or _command(summary, TUNE) is not None
    if remedy.by_tuning is not None and can_tune:
        how = "--kernel and --tile" if is_alone else "tuning"
        texts.append(
            remedy.by_tuning if _command(summary, TUNE) is not None else f"{how} for {remedy.by_tuning}"
        )
    if remedy.by_option is not None and not (remedy.option and _has(summary, *remedy.option)):
        texts.append(remedy.by_option)
    if not texts:
        return NOTHING_LEFT, NEXT
    by_tuning = remedy.by_tuning is not None and can_tune and not is_alone
    return ", or ".join(texts).format(**summary), TUNE if by_tuning else None


def _has(summary: Summary, flag: str, start: str = "") -> bool:
    """Whether an option was given, with a value that begins so."""
    requested = summary.get("requested", {})
    values = requested.get(flag, []) if isinstance(requested, dict) else []
    return any(str(value).startswith(start) for value in (values if isinstance(values, list) else [values]))


def _command(summary: Summary, name: str) -> str | None:
    """A command that goes on from a run of the command line; the summary may have been changed."""
    commands = summary.get("commands")
    text = commands.get(name) if isinstance(commands, dict) else None
    return text if isinstance(text, str) and text.isprintable() else None


_FOR: Mapping[str, tuple[str, ...]] = {
    **{name: (name,) for name in REMEDIES},
    "inside kernels": ("load-use", "latency", "branches"),
    "transfers": ("DMA in", "DMA out"),
}
"""Groups of causes by remedy."""
