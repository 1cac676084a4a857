# SPDX-License-Identifier: Apache-2.0
"""docs/why-slow.md: problems that `pulptrain why` finds, what mends them, and cycles before and after."""

from __future__ import annotations

import io
import json
import shlex
import tempfile
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from pulptrain.__main__ import run
from tools.pages.page import ROOT, Page, golden, table
from traces.causes import bound_by
from traces.compared.comparison import compared
from traces.why import REMEDIES, advice, remedy_of, why_lines

WIDTH, ROWS = 100, 3
"""Of what is shown: columns, and rows of a table."""

UNROLLED = " ".join(f"--kernel {step}=mm_unroll_2x4" for step in ("FW", "WG", "IG"))

SCHEDULE = "tuned.yaml"


@dataclass(frozen=True)
class Story:
    """A run that is too slow, and options, beside or in place of some of its own, that were tried in turn.

    `held_by` are zoo models whose golden figures tell whether this would be another today. With `tune`,
    options of that command, it has written the schedule of what is tried.
    """

    title: str
    model: str
    before: str
    tried: tuple[str, ...]
    held_by: tuple[str, ...]
    tune: str = ""


STORIES: Mapping[str, Story] = {
    "gru": Story("GRU", "gru-keywords", "", ("--resident auto",), ("gru-keywords",)),
    "depthwise": Story("depthwise network", "ds-cnn", "", (UNROLLED,), ("ds-cnn",)),
    "autoencoder": Story("autoencoder in L3", "deep-autoencoder", "", ("--l2 2MiB",), ("deep-autoencoder",)),
    "transformer": Story(
        "transformer block",
        "examples/lora-block.yaml",
        "",
        ("--fpus private", "--set fpu.divsqrt_count=8"),
        ("cct", "tiny-transformer"),
    ),
    "batch": Story(
        *(
            "batch of 8",
            "tutorial-cnn",
            "--batch 8",
            (f"--batch 8 --schedule {SCHEDULE}",),
            ("tutorial-cnn",),
        ),
        tune="--batch 8 --tilings 2",
    ),
    "l1": Story("too little L1", "tutorial-cnn", "--l1 20KiB", ("--l1 32KiB",), ()),
}
"""By block of the page; those that no golden figure holds are cheap."""


def words(model: str, options: str) -> str:
    """The command that runs a model."""
    return " ".join(["pulptrain run", model, *([options] if options else []), "--no-functional"])


@cache
def summary_of(model: str, options: str, tune: str = "") -> dict[str, Any]:
    """What the command prints with ``--json``, after `tune` has written its schedule."""
    place = str(ROOT / model) if Path(model).suffix else model
    with redirect_stdout(io.StringIO()) as out, tempfile.TemporaryDirectory() as folder:
        schedule = str(Path(folder) / SCHEDULE)
        code = run(["tune", place, *shlex.split(tune), "--quiet", "--save-schedule", schedule]) if tune else 0
        command = words(place, options.replace(SCHEDULE, schedule))
        code = code or run([*shlex.split(command)[1:], "--json"])
    if code:
        raise ValueError(f"{words(model, options)}: exit code {code}")
    found: dict[str, Any] = json.loads(out.getvalue().replace(f"{ROOT}/", ""))
    return found


def transcript(story: Story) -> str:
    """The commands of a story, and what they print."""
    before = summary_of(story.model, story.before)
    lines = [
        f"$ {words(story.model, story.before)} --out before",
        f"$ pulptrain why before --top {ROWS}",
        *why_lines(before, ROWS, WIDTH),
    ]
    for number, options in enumerate(story.tried, 1):
        name = "after" if number == len(story.tried) else "tried"
        found = compared([before, summary_of(story.model, options, story.tune)], ("before", name))
        tuning = f"$ pulptrain tune {story.model} {story.tune} --save-schedule {SCHEDULE}"
        lines += ["", *([tuning] if story.tune else []), f"$ {words(story.model, options)} --out {name}"]
        lines += [f"$ pulptrain compare before {name} --top {ROWS}", *found.lines(WIDTH, ROWS)]
    return "\n".join(["```text", *lines, "```"])


def overview() -> str:
    """All stories, a row for everything that was tried."""
    rows = []
    for story in STORIES.values():
        before = summary_of(story.model, story.before)
        given = advice(before)
        first, share = next(
            (name, cycles / sum(before["causes"].values()))
            for name, cycles in bound_by(before["causes"]).items()
            if name != "compute"
        )
        for options in story.tried:
            after = summary_of(story.model, options, story.tune)["cycles"]
            gained = before["cycles"] - after
            shown = options.replace(UNROLLED, "`mm_unroll_2x4`").removeprefix(story.before).strip()
            if story.tune:
                shown = f"pulptrain tune {story.tune}"
            rows.append(
                (
                    *(story.title, f"{first} {share:.0%}", shown, f"{before['cycles']:,}", f"{after:,}"),
                    *(f"{before['cycles'] / after:.2f}", f"{gained:,}", f"{given.loss_cycles:,}"),
                )
            )
    heads = ("what", "largest loss", "changed", "before", "after", "times as fast", "gained")
    return table((*heads, "could save up to"), rows)


def remedies() -> list[str]:
    """The advice there is, in the words of today."""
    sample = {"model": "m", "cores": 8, "buffering": 2, "resident": []}
    return [str(remedy_of(sample, cause)) for cause in REMEDIES]


def _rests_on(story: Story) -> Callable[[], object]:
    example = ROOT / story.model
    text = example.read_text(encoding="utf-8") if example.is_file() else ""
    return lambda: [golden(*story.held_by), remedies(), text, story.before, story.tried, story.tune]


PAGE = Page(
    "docs/why-slow.md",
    {"overview": overview, **{name: partial(transcript, story) for name, story in STORIES.items()}},
    {
        "overview": lambda: [_rests_on(story)() for story in STORIES.values() if story.held_by],
        **{name: _rests_on(story) for name, story in STORIES.items() if story.held_by},
    },
)
