# SPDX-License-Identifier: Apache-2.0
"""What `fit` has decided, as rows: what each decision saves at the peak, and what it costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from configs.limits import size_text
from configs.values import replace
from scheduler.fit.prices import UNITS_OF_JOULE
from scheduler.fit.problem import Decisions, NotAllowedError, Outcome, Problem, evaluate
from scheduler.tuner.objective import ENERGY
from traces.text_table import RUN_IT, amount, change, counted, labelled, table_lines

if TYPE_CHECKING:
    from pulptrain.fitting.fit_model import Answer, Fitting
    from pulptrain.fitting.ways import Way

RECOMPUTE, PAGE, STREAM, AT_ONCE = "recompute", "page", "stream", "update at once"
"""What may be decided about a tensor that is not kept in L2."""


def point_of(answer: Answer) -> dict[str, Any]:
    """An answer as a point of the front: bytes of each level, cycles predicted and simulated."""
    return {
        "peak_l2_bytes": answer.peak_bytes["l2"],
        "peak_l3_bytes": answer.peak_bytes["l3"],
        "predicted_bytes": answer.predicted_bytes,
        "cycles": answer.cycles,
        "predicted_cycles": answer.predicted_cycles,
        "joules": answer.joules,
        "predicted_joules": answer.predicted_joules,
        "optimality_gap": round(answer.gap, 6),
        "recomputed": len(answer.decisions.again),
        "paged": len(answer.decisions.moved),
    }


def changed_rows(way: Way, before: Fitting, after: Fitting) -> list[dict[str, Any]]:
    """A row for what was changed of the model itself, if anything was: with everything in L2."""
    if not way.changed:
        return []
    saves, cycles = (
        int(one) - int(other)
        for one, other in (
            (before.needed_bytes, after.needed_bytes),
            (after.before.summary["cycles"], before.before.summary["cycles"]),
        )
    )
    joules = after.cost(after.before) - before.cost(before.before) if after.objective == ENERGY else None
    return [_row(", ".join(way.changed), ", ".join(way.how), [], [], saves, cycles, joules)]


def decision_rows(fitting: Fitting, answer: Answer) -> list[dict[str, Any]]:
    """A row per decision; saved and costed are the difference it makes to all the others together.

    Joules are told where they are what is made small.
    """
    rows: list[dict[str, Any]] = []
    if answer.spec.optimizer.options.get("immediate") and fitting.immediate:
        before, after = (int(run.summary["peak_bytes"]["l2"]) for run in (fitting.before, fitting.base))
        cycles = int(fitting.base.summary["cycles"]) - int(fitting.before.summary["cycles"])
        cost = fitting.cost(fitting.base) - fitting.cost(fitting.before)
        rows.append(_row("all weight gradients", AT_ONCE, [], [], before - after, cycles, cost))
    problem, decisions = answer.problem, answer.decisions
    whole = evaluate(problem, decisions)
    for group in sorted(decisions.again):
        others = _outcome(problem, replace(decisions, again=decisions.again - {group}))
        turns = [entry for entry in whole.entries if problem.tasks[entry.task].group == group and entry.again]
        made = [problem.buffers[~item].name for entry in turns for item in entry.writes]
        sources = [item for entry in turns for item in entry.reads]
        names = [problem.buffers[~item if item < 0 else item].name for item in sources]
        at = [problem.tasks[whole.entries[_next(whole, entry.task)].task].name for entry in turns[-1:]]
        kept = [name for name in dict.fromkeys(names) if name not in made]
        rows.append(_row(", ".join(made), RECOMPUTE, kept, at, *_difference(others, whole)))
    for buffer in sorted(decisions.moved):
        name, streaming = problem.buffers[buffer].name, sorted(decisions.streaming(problem, buffer))
        whole_for = _unstreamed(problem, decisions, buffer)
        if runs := problem.visits(buffer, frozenset(streaming)).runs:
            in_l2 = replace(whole_for, moved=decisions.moved - {buffer}) if whole_for is not None else None
            at = [problem.tasks[run.first].name for run in runs if run.first > 0][:3]
            rows.append(_row(name, PAGE, ["l3"], at, *_difference(_outcome(problem, in_l2), whole)))
        if streaming:
            at = [problem.tasks[task].name for task in streaming]
            rows.append(_row(name, STREAM, ["l3"], at, *_difference(_outcome(problem, whole_for), whole)))
    rows += _others_streamed(answer)
    return rows if fitting.objective == ENERGY else [{**row, "added_joules": None} for row in rows]


def _unstreamed(problem: Problem, decisions: Decisions, buffer: int) -> Decisions | None:
    """The decisions in which a buffer is copied as a whole for tasks that stream it; None if they cannot."""
    streams = set(decisions.streams)
    for number, way in decisions.streams:
        task = problem.tasks[number]
        if buffer in task.way(way).buffers:
            rest = task.way(way).buffers - {buffer}
            alike = [place for place, stream in enumerate(task.streams) if stream.buffers == rest]
            if rest and not alike:
                return None
            streams ^= {(number, way), *((number, place) for place in alike[:1])}
    return replace(decisions, streams=frozenset(streams))


def _others_streamed(answer: Answer) -> list[dict[str, Any]]:
    """Rows of what the planner streams by itself; saved and costed cannot be told one by one."""
    plan, decided = answer.run.schedule.plan, answer.spec.streams
    ops: dict[str, list[str]] = {}
    for number, stream in plan.streams.items():
        for name in stream.storages if plan.ops[number] not in decided else ():
            ops.setdefault(name, []).append(plan.ops[number])
    return [_row(name, STREAM, ["l3"], at) for name, at in ops.items()]


def _row(
    tensor: str,
    action: str,
    sources: Sequence[str],
    at: Sequence[str],
    saves: int | None = None,
    cycles: int | None = None,
    joules: float | None = None,
) -> dict[str, Any]:
    return {
        "tensor": tensor,
        "action": action,
        "from": list(sources),
        "before_ops": list(at),
        "saved_bytes": saves,
        "added_cycles": cycles,
        "added_joules": joules,
    }


def _outcome(problem: Problem, decisions: Decisions | None) -> Outcome | None:
    if decisions is None:
        return None
    try:
        return evaluate(problem, decisions)
    except NotAllowedError:
        return None


def _difference(without: Outcome | None, whole: Outcome) -> tuple[int | None, int | None, float | None]:
    """Bytes more, cycles and joules less without a decision; None where the others rest on it."""
    if without is None:
        return None, None, None
    joules = (whole.cost - without.cost) / UNITS_OF_JOULE
    return without.peak_bytes - whole.peak_bytes, whole.cycles - without.cycles, joules


def _next(outcome: Outcome, task: int) -> int:
    """The turn behind those in which a task and what follows it is done again."""
    turn = next(turn for turn, entry in enumerate(outcome.entries) if entry.again and entry.task == task)
    return next(later for later in range(turn, len(outcome.entries)) if not outcome.entries[later].again)


def fit_lines(summary: Mapping[str, Any], width: int, *, top: int = 10, full: bool = False) -> list[str]:
    """Headline, predictions, decisions and ladder, as far as there are any."""
    lines: list[str] = []
    for label, text in _headline(summary) if summary["feasible"] else ():
        lines += labelled(label, text, width)
    if "command" in summary:
        lines += labelled(RUN_IT, summary["command"], width)
    decisions = summary["decisions"]
    if decisions:
        shown = decisions if full else sorted(decisions, key=lambda row: -(row["saved_bytes"] or 0))[:top]
        heads = ["decision", "tensor", "from", "before", "saves B", "cycles"]
        cells = [
            [
                row["action"],
                row["tensor"],
                " ".join(row["from"]),
                " ".join(row["before_ops"][:1]),
                _number(row["saved_bytes"]),
                _number(row["added_cycles"]),
            ]
            for row in shown
        ]
        lines += ["", *table_lines(heads, cells, width, left=("tensor", "from", "before"))]
        if len(decisions) > len(shown):
            lines.append(f"{counted(len(decisions) - len(shown), 'other')}: --full")
    if summary["ladder"]:
        lines += ["", *ladder_lines(summary["ladder"], width)]
    return lines


def _headline(summary: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    before, peak = summary["before"], summary["peak_bytes"]
    more = summary["cycles"] / before["cycles"] - 1
    yield (
        "fit",
        f"{summary['model']} on {summary['soc']}: {summary['cycles']:,} cycles in "
        f"{size_text(summary['budget_bytes']['l2'])} of L2; with all data in L2: {before['cycles']:,} in "
        f"{before['peak_bytes']['l2']:,} B ({change(more)} %)",
    )
    levels = ", ".join(f"{level.upper()} {count:,} B" for level, count in peak.items() if count)
    yield (
        "peak",
        f"{levels}; L2 predicted {summary['predicted_bytes']:,} B, cycles {summary['predicted_cycles']:,} "
        f"({change(summary['cycles'] / summary['predicted_cycles'] - 1, 2)} % simulated)",
    )
    if summary["joules"] is not None:
        joules, all_in_l2 = summary["joules"], before["joules"]
        error = joules / summary["predicted_joules"] - 1
        yield (
            "energy",
            f"{amount(joules, 'J')}, with all data in L2 {amount(all_in_l2, 'J')} "
            f"({change(joules / all_in_l2 - 1)} %); predicted {change(error, 2)} % simulated",
        )
    of, gap = summary["objective"], 100 * summary["optimality_gap"]
    yield "gap", f"the optimum is at most {gap:.2f} % better in {of}, by the search's cost model"


def front_lines(summary: Mapping[str, Any], width: int) -> list[str]:
    """The front, if it is more than the answer, and the notes."""
    points = summary["points"]
    lines = ["", *_points_table(points, width)] if len(points) > 1 else []
    for note in summary["notes"]:
        lines += labelled("note", note, width)
    return lines


def _points_table(points: Sequence[Mapping[str, Any]], width: int) -> list[str]:
    heads = ["L2 B", "L3 B", "cycles", "predicted", "energy", "gap %", "recomputed", "in L3", "front"]
    rows = [
        [
            f"{point['peak_l2_bytes']:,}",
            f"{point['peak_l3_bytes']:,}",
            f"{point['cycles']:,}",
            f"{point['predicted_cycles']:,}",
            amount(point["joules"], "J") if point["joules"] is not None else "-",
            f"{100 * point['optimality_gap']:.2f}",
            str(point["recomputed"]),
            str(point["paged"]),
            "*" if point["on_front"] else "",
        ]
        for point in points
    ]
    return table_lines(heads, rows, width)


def ladder_lines(rows: Sequence[Mapping[str, Any]], width: int) -> list[str]:
    """The ladder: form, techniques, smallest bytes of each level, cycles with them."""
    heads = ["form", "techniques", "L1 B", "L2 B", "L3 B", "cycles"]
    cells = [
        [
            row["form"],
            ", ".join(row["techniques"]) or "none",
            *ladder_bytes(row),
            f"{row['cycles']:,}",
        ]
        for row in rows
    ]
    return table_lines(heads, cells, width, left=("techniques",))


def ladder_bytes(row: Mapping[str, Any]) -> list[str]:
    """Bytes of each level of a row of the ladder; ≤ where the search for the smallest L2 proved nothing."""
    at_most = "≤ " if row["at_most"] else ""
    return [f"{at_most if level == 'l2' else ''}{row['bytes'][level]:,}" for level in ("l1", "l2", "l3")]


def _number(value: int | None) -> str:
    return f"{value:,}" if value is not None else "-"
