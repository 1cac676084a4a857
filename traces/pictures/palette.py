# SPDX-License-Identifier: Apache-2.0
"""Colours and names of what pictures show: steps, busy and stall words, causes, kernels.

Hues are those of Okabe and Ito (Color Universal Design, 2008), which stay apart under the common colour
blindnesses. Their lightness is set so that what may meet in one picture is either 7 or more steps of CIE L*
apart or hatched in another way, and so stays apart in grey print too. A colour has one meaning in a picture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from configs.values import Struct, replace
from traces.causes import GROUPS
from traces.events import STALLS
from traces.parts import BUSY

HATCH_COLOUR = "#6E6E6E"


class Style(Struct, frozen=True):
    """How one category is drawn, and what the legend says."""

    colour: str
    name: str
    hatch: str = ""

    @property
    def ink(self) -> str:
        """Colour of text on it."""
        return "black" if lightness(self.colour) > DARKEST_UNDER_BLACK else "white"


DARKEST_UNDER_BLACK = 58.0
"""CIE L* above which black text reads better than white."""

BLACK, BLUE, VERMILLION, GREEN, PURPLE = "#1E1E1E", "#00548C", "#B04500", "#009068", "#CC79A7"
ORANGE, SKY, YELLOW, BROWN, INDIGO, SLATE = "#E69F00", "#8CCDF2", "#F0E442", "#7F5539", "#332288", "#2B3648"
WINE = "#882255"

STEP_STYLES = {
    "FW": Style(BLUE, "FW  forward"),
    "LOSS": Style(YELLOW, "LOSS  loss"),
    "IG": Style(ORANGE, "IG  input gradient"),
    "WG": Style(GREEN, "WG  weight gradient"),
    "UPD": Style(PURPLE, "UPD  weight update"),
    "other": Style(BROWN, "other work", "xxxx"),
}

_STALL_LOOKS = {
    "load_use": (ORANGE, ""),
    "multicycle": (SKY, ""),
    "misaligned": (YELLOW, ""),
    "fpu": (PURPLE, ""),
    "divider": (WINE, "++++"),
    "branch": (GREEN, ""),
    "icache": (BROWN, "xxxx"),
    "bank_conflict": (VERMILLION, ""),
    "l2_access": (INDIGO, "----"),
    "dma_wait": ("#D9D9D9", "/////"),
    "dma_program": (BLACK, ""),
    "barrier": ("#C6C6C6", "...."),
    "fork": ("#9A9A9A", "||||"),
    "offload": ("#E4E4E4", "\\\\\\\\\\"),
    "idle": ("#F7F7F7", ""),
}
_PLAIN = {"load_use": "load-use", "fpu": "FPU", "l2_access": "L2 access"}
_NO_LOOK = ("#B7A58C", "****")
"""Of a word or a cause that has no look of its own yet."""


def plain(word: str) -> str:
    """A stall word as a legend says it."""
    return _PLAIN.get(word) or word.replace("_", " ").replace("dma", "DMA")


STALL_STYLES = {
    word: Style(colour, plain(word), hatch)
    for word, (colour, hatch) in ((word, _STALL_LOOKS.get(word, _NO_LOOK)) for word in STALLS)
}
BUSY_STYLE = Style(BLUE, BUSY)
MOVING_STYLE = Style(SLATE, "DMA moving bytes")

_CAUSE_LOOKS = {
    "compute": BUSY_STYLE,
    "load-use": STALL_STYLES["load_use"],
    "latency": STALL_STYLES["multicycle"],
    "branches": STALL_STYLES["branch"],
    "FPU": STALL_STYLES["fpu"],
    "divider": STALL_STYLES["divider"],
    "bank conflicts": STALL_STYLES["bank_conflict"],
    "code refills": STALL_STYLES["icache"],
    "DMA in": STALL_STYLES["dma_wait"],
    "DMA out": Style("#BDBDBD", "", "\\\\\\\\\\"),
    "L3": Style("#9A9A9A", "", "xxxx"),
    "imbalance": STALL_STYLES["barrier"],
    "serial code": Style(BLACK, ""),
    "overhead of tiles": STALL_STYLES["fork"],
    "offload": Style("#F7F7F7", ""),
}
CAUSE_STYLES: Mapping[str, Style] = {
    group: replace(_CAUSE_LOOKS.get(group, Style(_NO_LOOK[0], "", _NO_LOOK[1])), name=group)
    for group in GROUPS
}
"""By `traces.causes.GROUPS`, in their order."""

BLOCK_STYLES: Mapping[str, Style] = {
    "cores": Style(BLUE, "cores"),
    "icache": Style(SKY, "instruction caches", "....."),
    "fpu": Style(VERMILLION, "FPU"),
    "l1": Style(GREEN, "L1", "/////"),
    "l2": Style(YELLOW, "L2 and DMA"),
    "off_chip": Style(BLACK, "off-chip"),
    "clock_tree": Style("#BDBDBD", "clock tree"),
    "leakage": Style("#F7F7F7", "leakage", "xxxx"),
}
"""By blocks of a chip that take energy, in their order."""

KERNEL_LOOKS = (BLUE, ORANGE, GREEN, PURPLE, YELLOW, SKY, VERMILLION)
"""Of the kernels with most cycles, the first first."""
OTHER_KERNELS = Style(BROWN, "other kernels", "xxxx")

INWARD_STYLE = Style(SLATE, "DMA into L1")
OUTWARD_STYLE = Style("#B9C4D6", "DMA out of L1", "\\\\\\\\\\")
OFF_CHIP_STYLE = Style("#5A5A5A", "uDMA (L3)", "||||")

MOVING = "moving"
STEP_ORDER = (*STEP_STYLES, MOVING, *STALLS)
STALL_ORDER = (BUSY, MOVING, *STALLS)
"""Stacking and legend order, bottom first."""


def style(category: str) -> Style:
    """Look of a step, of `BUSY`, of `MOVING` or of a stall word."""
    if category == BUSY:
        return BUSY_STYLE
    if category == MOVING:
        return MOVING_STYLE
    return STEP_STYLES.get(category) or STALL_STYLES[category]


def rgb(colour: str) -> tuple[float, float, float]:
    """Red, green and blue of ``#RRGGBB``, in 0..1."""
    red, green, blue = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return red, green, blue


def lightness(colour: str) -> float:
    """CIE L* of a colour of sRGB: what is left of it in grey print, from 0 to 100."""
    lights = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in rgb(colour)]
    luminance = sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), lights, strict=True))
    return 116 * luminance ** (1 / 3) - 16 if luminance > 0.008856 else 903.3 * luminance


def mixed_colour(
    parts: Iterable[tuple[str, float]], width_cycles: float, look: Callable[[str], Style] = style
) -> tuple[float, float, float]:
    """Mean colour (red, green, blue in 0..1) of a mixture of categories; the rest of the width is white."""
    mixed = [1.0, 1.0, 1.0]
    for name, cycles in parts:
        for at, value in enumerate(rgb(look(name).colour)):
            mixed[at] -= cycles / width_cycles * (1 - value)
    red, green, blue = (max(value, 0.0) for value in mixed)
    return red, green, blue


def family(step: str) -> str:
    """The step whose colour this one has: steps of a layer that does one in parts (FW_MEAN, IG_APPLY) have
    that of the whole, and whatever else there is is "other"."""
    whole = step.partition("_")[0]
    return whole if whole in STEP_STYLES else "other"


def ink_on(step: str) -> str:
    """Colour of text on the colour of a step."""
    return STEP_STYLES[family(step)].ink
