# SPDX-License-Identifier: Apache-2.0
"""What all pictures share: matplotlib settings, an empty figure, legends, and files that are repeatable."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from configs.files import replacing, start_of
from traces.pictures.palette import Style

DPI = 160
DRAWN_BY = "drawn by pulptrain"
POINTS_PER_INCH = 72
CHARACTER_POINTS = 0.62
"""Mean width of a character of DejaVu Sans in units of the font size, a little generous."""

RC: Any = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so the picture is the same on every machine
    "font.size": 8.0,
    "svg.hashsalt": "pulptrain",
    "svg.fonttype": "path",
    "hatch.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
}
"""matplotlib settings of every picture (typed Any: matplotlib wants its 300 keys as literals)."""


def text_points(text: str, font_points: float) -> float:
    """Approximate width of a text."""
    return len(text) * CHARACTER_POINTS * font_points


def number_text(number: float) -> str:
    """A number beside an axis or in a cell: whole ones with commas, others with four digits."""
    return f"{number:,.0f}" if float(number).is_integer() else f"{number:.4g}"


def empty_figure(width_inches: float, height_inches: float) -> Any:
    """A figure with an Agg canvas; no pyplot, hence no global state and no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # slow to import
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width_inches, height_inches), dpi=DPI)
    FigureCanvasAgg(figure)
    return figure


def draw_legend(figure: Any, looks: Sequence[Style], columns: int, bottom: float, title: str) -> None:
    """A legend along the bottom of the figure, one patch per look; `bottom` in figure units."""
    from matplotlib.patches import Patch

    patches = [
        Patch(
            facecolor=look.colour,
            hatch=look.hatch or None,
            edgecolor="#8A8A8A",
            linewidth=0.4,
            label=look.name,
        )
        for look in looks
    ]
    figure.legend(
        handles=patches,
        loc="lower center",
        bbox_to_anchor=(0.5, bottom),
        ncols=max(min(len(patches), columns), 1),
        frameon=False,
        fontsize=7,
        title=title,
        title_fontsize=7,
        handlelength=1.5,
        columnspacing=1.3,
        borderpad=0.0,
        borderaxespad=0.0,
        labelspacing=0.3,
    )


def save_figure(figure: Any, path_png: Path | None, path_svg: Path | None) -> None:
    """Write the figure without dates or versions, so that equal pictures are equal files.

    They say that pulptrain has drawn them: only such pictures are ever drawn over. Raises InputError if a
    file cannot be written.
    """
    for path, options in (
        (path_png, {"format": "png", "metadata": {"Software": DRAWN_BY}}),
        (path_svg, {"format": "svg", "metadata": {"Date": None, "Creator": DRAWN_BY}}),
    ):
        if path is not None:
            with replacing(path) as temporary:
                figure.savefig(temporary, dpi=DPI, **options)


def is_our_picture(path: Path) -> bool:
    """Whether a picture says that `save_figure` has written it."""
    return DRAWN_BY.encode() in start_of(path, 4096)
