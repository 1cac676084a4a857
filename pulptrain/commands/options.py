# SPDX-License-Identifier: Apache-2.0
"""Parameters that several commands share and that are about the command, not about what is simulated.

What is simulated is declared in `pulptrain.inputs.option`.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from configs.errors import InputError
from pulptrain.commands.completion import completes
from pulptrain.inputs.option import SEARCH
from pulptrain.running.result_cache import CACHE_VARIABLE, NO_CACHE_VARIABLE

if TYPE_CHECKING:
    from traces.pictures.drawing import Paper as Paper  # noqa: PLC0414  the commands' name of it
else:
    Paper = Any  # annotations of a command are read where its help is

OUTPUT, RUN = "Output", "Run"
"""Groups of options in help texts, beside those of `pulptrain.inputs.option`."""


def option(flag: str, metavar: str, text: str, group: str | None = None, **more: Any) -> Any:
    """An option: its flag (or several), what it takes, what it does, and its group in help texts."""
    return typer.Option(*flag.split(), metavar=metavar or None, help=text, rich_help_panel=group, **more)


ModelName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Network: a shipped model by name (`pulptrain list models`), model.yaml, model.onnx, or "
        "net.py:Net (a PyTorch module).",
        autocompletion=completes("models"),
    ),
]
Seed = Annotated[int, option("--seed", "N", "Seed of the random weights, data and sample order.", RUN)]
Accumulation = Annotated[
    str,
    option(
        "--accumulator",
        "reference|kernel",
        "How to sum 16-bit numbers: in fp32 (reference), or rounded after each multiply-add (kernel).",
        RUN,
    ),
]
Out = Annotated[
    str | None,
    option(
        "--out", "DIR", "Folder to write to: summary, trace, Perfetto file, memory map and pictures.", OUTPUT
    ),
]
DRAWING: dict[str, Any] = {
    "width": Annotated[
        str | None,
        option("--width", "LENGTH", "Width of pictures with its unit: 3.5in, 88mm, 8.8cm or 252pt.", OUTPUT),
    ],
    "font": Annotated[
        str | None, option("--font", "SIZE", "Smallest text size in pictures, 4pt to 72pt, e.g. 8pt.", OUTPUT)
    ],
    "dpi": Annotated[
        int | None, option("--dpi", "N", "Dots per inch of PNG pictures (default 160).", OUTPUT)
    ],
    "title": Annotated[
        str | None,
        option(
            "--title",
            "TEXT|none",
            "Title of the pictures, in quotes; none: no title (default: model, SoC and cycles).",
            OUTPUT,
        ),
    ],
}
"""Options of every command that draws, see `draws`."""
Json = Annotated[bool, option("--json", "", "Print one JSON object instead of tables, for scripts.", OUTPUT)]
Quiet = Annotated[bool, option("--quiet -q", "", "Print neither progress nor tables.", OUTPUT)]
Top = Annotated[int, option("--top", "N", "Number of rows to show per table.", OUTPUT)]
By = Annotated[
    str | None,
    option(
        "--group-by",
        "layer|step|kernel",
        "Print total cycles per layer, step (FW, IG, WG, ...) or kernel (default: per step and per layer).",
        OUTPUT,
    ),
]
Full = Annotated[
    bool,
    option(
        "--full",
        "",
        "Show all rows of the tables (ops in program order) and all notes.",
        OUTPUT,
    ),
]
Why = Annotated[bool, option("--why", "", "Show what limits the slowest ops, instead of totals.", OUTPUT)]
Evidence = Annotated[
    bool,
    option(
        "--evidence",
        "",
        "Also show how many of the cycles come from measured kernels, and how many from estimates.",
        OUTPUT,
    ),
]
WorkerCount = Annotated[
    int | None,
    option(
        "--workers",
        "N",
        "Number of worker processes (default: one per CPU); results do not depend on the number.",
        SEARCH,
    ),
]
ExecutorAddress = Annotated[
    str | None,
    option(
        "--executor",
        "dask://HOST:PORT",
        "Run on the workers of a Dask cluster, not on this computer.",
        SEARCH,
    ),
]
CacheFile = Annotated[
    str | None,
    option(
        "--cache",
        "FILE",
        "File in which results are cached, so that later commands run faster (default: in the cache folder "
        "of your system, on Linux ~/.cache/pulptrain).",
        RUN,
        envvar=CACHE_VARIABLE,
    ),
]
NoCache = Annotated[
    bool,
    option(
        "--no-cache",
        "",
        "Neither read nor write cached results of earlier commands.",
        RUN,
        envvar=NO_CACHE_VARIABLE,
    ),
]
LearningRate = Annotated[
    float | None,
    option(
        "--learning-rate",
        "RATE",
        "Learning rate of an ONNX training graph that does not store one (default 0.001).",
        min=0.0,
    ),
]


def draws(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator of a command with a parameter `paper`: it gets what `DRAWING` says in place of it.

    Without `out` only a command that has `folders` draws.
    """
    signature = inspect.signature(command, eval_str=True)

    @functools.wraps(command)
    def call(**options: Any) -> None:
        values = {name: options.pop(name) for name in DRAWING}
        place = options["out"] or next(iter(options.get("folders", ())), None)
        command(**options, paper=parse_paper(place, **values))

    parameters = []
    for item in signature.parameters.values():
        own = DRAWING.items() if item.name == "paper" else [(item.name, item.annotation)]
        parameters += [item.replace(name=name, annotation=kind) for name, kind in own]
    call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return call


def parse_paper(
    out: str | None,
    width: str | None = None,
    font: str | None = None,
    dpi: int | None = None,
    title: str | None = None,
) -> Paper | None:
    """The paper of ``--width``, ``--font``, ``--dpi`` and ``--title``; None if none of them is given.

    Raises `InputError` for a length without a unit, for sizes no picture can have, and if one is given
    without the place where pictures go, `out`.
    """
    if (width, font, dpi, title) == (None, None, None, None):
        return None
    from traces.pictures.drawing import NO_TITLE, OWN_PAPER, POINTS_PER_INCH

    asked: dict[str, Any] = {}
    if width is not None:
        asked["width_inches"] = _inches(
            width, "--width", "use a length from 1in to 100in, e.g. 3.5in or 88mm"
        )
    if font is not None:
        size = _inches(font, "--font", "use a size from 4pt to 72pt, e.g. 8pt")
        asked["font_points"] = POINTS_PER_INCH * size
    if dpi is not None:
        asked["dpi"] = dpi
    if title is not None:
        asked["title"] = "" if title == NO_TITLE else title
    paper = OWN_PAPER.but(**asked)
    if out is None:
        flags = {"width_inches": "--width", "font_points": "--font", "dpi": "--dpi", "title": "--title"}
        raise InputError(
            "the option sets the look of a picture, so it needs --out",
            where=flags[next(iter(asked))],
            cure="add --out FILE",
        )
    return paper


_INCHES = {"in": 1.0, "cm": 1 / 2.54, "mm": 1 / 25.4, "pt": 1 / 72}


def _inches(text: str, option_name: str, cure: str) -> float:
    """A length with its unit."""
    length = re.fullmatch(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*(in|cm|mm|pt)\s*", text)
    if length is None:
        raise InputError(f"{text!r} is not a length with a unit", where=option_name, cure=cure)
    return float(length[1]) * _INCHES[length[2]]
