# SPDX-License-Identifier: Apache-2.0
"""What all pictures share: size on paper, matplotlib settings, legends, and files that are repeatable."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise, repeat
from pathlib import Path
from typing import Any

from configs.errors import InputError
from configs.files import check_file, replacing
from configs.values import Struct, replace
from traces.pictures.palette import HATCH_COLOUR, Style

DPI = 160
DRAWN_BY = "drawn by pulptrain"
POINTS_PER_INCH = 72
LEAST_SEEN_POINTS = 0.5
"""Narrower or lower shares of a picture are not seen, and no legend names them."""
PATCH_LETTERS = 5
"""A patch of a legend and its gaps are as wide as so many letters."""
CHARACTER_POINTS = 0.62
"""Mean width of a character of DejaVu Sans in units of the font size, a little generous."""
LINE = 1.35
"""Height of a line of text in units of the font size."""

ENDINGS = ("png", "svg", "pdf")
"""Of the files a picture can be drawn to."""

RC: Any = {
    # DejaVu Sans comes with matplotlib: a PNG or PDF is the same everywhere. In an SVG text is text, and a
    # reader without it takes the next, which is as wide.
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "sans-serif"],
    "font.size": 8.0,
    "text.parse_math": False,  # a $ in the name of a model is a $
    "svg.hashsalt": "pulptrain",
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "hatch.linewidth": 0.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
}
"""matplotlib settings of every picture (typed Any: matplotlib wants its 300 keys as literals)."""


WIDTHS_INCHES, FONTS_POINTS, DOTS_PER_INCH = (1.0, 100.0), (4.0, 72.0), (30, 2400)
"""Smallest and largest of a picture."""
LEAST_CHART_INCHES = 0.5
MOST_TITLE = 300
"""Characters of a title that is asked for."""
NO_TITLE = "none"


class Paper(Struct, frozen=True):
    """How wide a picture is, how large its text (no text in it is smaller), its dots per inch and its title.

    Of the sizes named in `own` a picture takes those it has itself (`sized`). A title of None is the
    picture's own, "" is none.
    """

    width_inches: float = 11.0
    font_points: float = 8.0
    dpi: int = DPI
    title: str | None = None
    own: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise InputError for what is no size of a picture."""
        for value, (least, most), unit, option in (
            (self.width_inches, WIDTHS_INCHES, "in", "--width"),
            (self.font_points, FONTS_POINTS, "pt", "--font"),
            (self.dpi, DOTS_PER_INCH, " dots per inch", "--dpi"),
        ):
            if not least <= round(value, 6) <= most:
                cure = f"use {least:g} to {most:g}{unit}"
                raise InputError(f"{value:g} {unit.strip()} is not a valid size", where=option, cure=cure)

        if len(self.title or "") > MOST_TITLE:
            message = f"the title is too long: {len(self.title or ''):,} characters"
            raise InputError(message, where="--title", cure=f"use at most {MOST_TITLE} characters")

    def but(self, **asked: Any) -> Paper:
        """This paper with what is asked for (not None) in place of the picture's own. Raises `InputError`."""
        asked = {name: value for name, value in asked.items() if value is not None}
        return replace(self, **asked, own=tuple(name for name in self.own if name not in asked))

    def sized(self, width_inches: float, font_points: float = 8.0) -> Paper:
        """This paper, with the picture's own sizes where no others are asked for."""
        sizes: dict[str, Any] = {"width_inches": width_inches, "font_points": font_points}
        return replace(self, **{name: sizes[name] for name in self.own}, own=())

    def titled(self, title: str) -> str:
        """The title asked for, else the picture's own."""
        return title if self.title is None else self.title

    def check_room(self, taken_inches: float) -> None:
        """Raise InputError if labels take so much of the width that nothing can be drawn beside them."""
        if self.width_inches - taken_inches < LEAST_CHART_INCHES:
            raise self.no_room

    @property
    def no_room(self) -> InputError:
        """What is wrong where labels leave no room for a chart."""
        return InputError(
            f"text of {self.font_points:g} pt does not fit a chart {self.width_inches:g} in wide",
            where="--width",
            cure="use a wider picture or a smaller --font",
        )

    @property
    def rc(self) -> Any:
        """matplotlib settings of a picture on it."""
        sizes = ("font.size", "axes.labelsize", "axes.titlesize", "xtick.labelsize", "ytick.labelsize")
        return {**RC, **dict.fromkeys(sizes, self.font_points)}

    @property
    def line_inches(self) -> float:
        """Height of a line of text."""
        return LINE * self.font_points / POINTS_PER_INCH

    def inches(self, text: str) -> float:
        """Approximate width of a text."""
        return text_points(text, self.font_points) / POINTS_PER_INCH

    def folded(self, text: str, inches: float) -> list[str]:
        """Lines of a text that are at most so wide, in bold too."""
        return textwrap.wrap(text, max(int(inches / self.inches("x") / 1.08), 12))


OWN_PAPER = Paper(own=("width_inches", "font_points"))
"""Of a picture with sizes of its own."""


LONGEST_NAME, LONGEST_TITLE = 48, 90
"""Characters of a name beside a chart, and of a title that is not folded: all of them have room."""


def short(text: str, most: int = LONGEST_NAME) -> str:
    """The text, without its middle where it is longer than a picture has room for."""
    half = (most - 1) // 2
    return text if len(text) <= most else f"{text[:half]}\N{HORIZONTAL ELLIPSIS}{text[-half:]}"


def text_points(text: str, font_points: float) -> float:
    """Approximate width of a text."""
    return len(text) * CHARACTER_POINTS * font_points


def number_text(number: float) -> str:
    """A number beside an axis or in a cell: whole ones with commas, others with four digits."""
    return f"{number:,.0f}" if float(number).is_integer() else f"{number:.4g}"


def empty_figure(width_inches: float, height_inches: float, dpi: int = DPI) -> Any:
    """A figure with an Agg canvas; no pyplot, hence no global state and no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # slow to import
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width_inches, height_inches), dpi=dpi)
    FigureCanvasAgg(figure)
    return figure


@contextmanager
def drawn(
    width_inches: float,
    height_inches: float,
    paths: Iterable[Path | None],
    settings: Any = RC,
    dpi: int = DPI,
) -> Iterator[Any]:
    """An empty figure, which `save_figure` writes at the end of the ``with``."""
    import matplotlib as mpl  # slow to import

    with mpl.rc_context(settings):
        figure = empty_figure(width_inches, height_inches, dpi)
        yield figure
        save_figure(figure, *paths)


@contextmanager
def framed(
    paper: Paper, height_inches: float, paths: Iterable[Path | None], title: str, legend: Legend
) -> Iterator[Any]:
    """The same on a paper, with a title and a legend around what is drawn."""
    with drawn(paper.width_inches, height_inches, paths, paper.rc, paper.dpi) as figure:
        yield figure
        legend.draw(figure, paper)
        draw_title(figure, title, paper)


@contextmanager
def arranged(
    paper: Paper, height_inches: float, paths: Iterable[Path | None], title: str, legend: Legend
) -> Iterator[Any]:
    """The same for charts `height_inches` high, labels included, for which matplotlib makes room.

    Raises InputError if it cannot.
    """
    title, low = short(title, LONGEST_TITLE), legend.inches(paper)
    height = height_inches + low + title_inches(title, paper)
    with framed(paper, height, paths, title, legend) as figure:
        figure.set_layout_engine("constrained", rect=(0, low / height, 1, height_inches / height))
        yield figure
        settle(figure, paper)


def settle(figure: Any, paper: Paper) -> None:
    """Fix where the axes of an `arranged` figure are. Raises InputError if labels take all of the room."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        try:
            figure.draw_without_rendering()
        except UserWarning:  # matplotlib's word for axes without a size
            raise paper.no_room from None
    box = figure.axes[0].get_position()
    paper.check_room(paper.width_inches * (1 - box.width))
    if box.height * figure.get_figheight() < LEAST_CHART_INCHES:
        raise paper.no_room
    figure.set_layout_engine("none")


class Legend(Struct, frozen=True):
    """What the colours of a picture mean, along its bottom, and a note on how to read it."""

    looks: Sequence[Style]
    note: str = ""
    markers: Sequence[str] = ()
    """Of points of each look, where they are drawn as such."""
    dashes: Sequence[Any] = ()
    """Of a line through these points."""

    @property
    def _patch_letters(self) -> int:
        return PATCH_LETTERS + 3 * bool(self.dashes)

    def _names(self, paper: Paper) -> list[list[str]]:
        """Lines of every entry."""
        room = paper.width_inches - paper.inches(self._patch_letters * "x")
        return [paper.folded(look.name, room) for look in self.looks]

    def _columns(self, paper: Paper) -> tuple[int, int]:
        """As many as fit beside each other, each as wide as its widest entry; lines of the highest."""
        names = self._names(paper)
        widths = [paper.inches(max(lines, key=len) + self._patch_letters * "x") for lines in names]
        for columns in range(len(widths), 0, -1):
            rows, longer = divmod(len(widths), columns)
            ends = [number * rows + min(number, longer) for number in range(columns + 1)]
            parts = list(pairwise(ends))
            if columns == 1 or sum(max(widths[first:end]) for first, end in parts) <= paper.width_inches:
                return columns, max(sum(map(len, names[first:end])) for first, end in parts)
        return 1, 0

    def inches(self, paper: Paper) -> float:
        """Its height."""
        lines = len(paper.folded(self.note, paper.width_inches)) + self._columns(paper)[1]
        return (lines + 0.4) * paper.line_inches

    def draw(self, figure: Any, paper: Paper) -> None:
        """Draw it along the bottom of the figure."""
        from matplotlib.lines import Line2D
        from matplotlib.patches import Patch

        edge: dict[str, Any] = {"markeredgecolor": "black", "markeredgewidth": 0.4}
        names = ["\n".join(lines) for lines in self._names(paper)]
        handles: list[Any] = [
            Line2D([], [], color=look.colour, marker=marker, label=name, linestyle=dash, **edge)
            for look, name, marker, dash in zip(
                self.looks, names, self.markers, self.dashes or repeat("none"), strict=False
            )
        ] or [
            Patch(
                facecolor=look.colour,
                hatch=look.hatch or None,
                edgecolor=HATCH_COLOUR,
                linewidth=0.4,
                label=name,
            )
            for look, name in zip(self.looks, names, strict=True)
        ]
        legend = figure.legend(
            handles=handles,
            loc="lower center",
            bbox_to_anchor=(0.5, 0.05 / figure.get_figheight()),
            ncols=self._columns(paper)[0],
            frameon=False,
            fontsize=paper.font_points,
            title="\n".join(paper.folded(self.note, paper.width_inches)),
            title_fontsize=paper.font_points,
            handlelength=3.0 if self.dashes else 1.4,
            handletextpad=0.5,
            columnspacing=1.0,
            borderpad=0.0,
            borderaxespad=0.0,
            labelspacing=0.25,
        )
        legend.get_title().set_multialignment("center")


def grid_below(axes: Any, axis: str = "both") -> None:
    """Draw lines behind everything at the marks of axes."""
    axes.grid(axis=axis, linewidth=0.3, color="#DDDDDD")
    axes.set_axisbelow(True)


def name_rows(axes: Any, names: Sequence[str], least: int = 1) -> None:
    """A row per name, the first on top, with room for so many at least."""
    axes.set_ylim(max(len(names), least) - 0.5, -0.5)
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(axis="y", length=0)


def boxes_path(boxes: Sequence[Sequence[tuple[float, float]]]) -> Any:
    """One path of all boxes, each of five corners, the last the first."""
    import numpy as np
    from matplotlib.path import Path as Outline  # slow to import

    codes = [Outline.MOVETO, Outline.LINETO, Outline.LINETO, Outline.LINETO, Outline.CLOSEPOLY]
    corners = np.array(boxes, dtype=float).reshape(-1, 2)
    return Outline(corners, np.tile(np.array(codes, dtype=np.uint8), len(boxes)))


def title_inches(title: str, paper: Paper) -> float:
    """Height of the title of a picture."""
    return len(paper.folded(paper.titled(title), paper.width_inches)) * paper.line_inches + 0.12


def draw_title(figure: Any, title: str, paper: Paper) -> None:
    """Write the title along the top of the figure, folded where it is long."""
    left, top = 0.06 / figure.get_figwidth(), 1 - 0.06 / figure.get_figheight()
    text = "\n".join(paper.folded(paper.titled(title), paper.width_inches))
    figure.text(left, top, text, va="top", ha="left", fontsize=paper.font_points, fontweight="bold")


def save_figure(figure: Any, *paths: Path | None) -> None:
    """Write the figure without dates or versions, so that equal pictures are equal files; None is no file.

    A path ends in one of `ENDINGS`. The files say that pulptrain has drawn them: only such pictures are ever
    drawn over. Raises InputError if a file cannot be written.
    """
    metadata = {
        ".png": {"Software": DRAWN_BY},
        ".svg": {"Date": None, "Creator": DRAWN_BY},
        ".pdf": {"CreationDate": None, "Creator": DRAWN_BY, "Producer": DRAWN_BY},
    }
    for path in paths:
        if path is not None:
            with replacing(path) as temporary:
                kind = path.suffix.lower()
                figure.savefig(temporary, format=kind[1:], metadata=metadata[kind])


def picture_file(name: str, where: str) -> Path:
    """The place of a picture, refused before any work if it has another ending or is not ours to replace."""
    if Path(name).suffix.lower()[1:] not in ENDINGS:
        endings = ", ".join(f".{ending}" for ending in ENDINGS)
        raise InputError(
            f"the picture format of {name!r} is unknown",
            where=where,
            cure=f"use a name that ends in {endings}",
        )
    return check_file(name, where, is_our_picture)


def is_our_picture(path: Path) -> bool:
    """Whether a picture says that `save_figure` has written it; a PDF says so at its end."""
    with path.open("rb") as stream:
        start = stream.read(4096)
        stream.seek(max(stream.seek(0, 2) - 16_384, 0))
        return DRAWN_BY.encode() in start or (
            start.startswith(b"%PDF") and DRAWN_BY.encode() in stream.read()
        )
