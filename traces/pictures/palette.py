# SPDX-License-Identifier: Apache-2.0
"""Colours and names of steps, busy and stall words, shared by all pictures and texts.

Steps and the frequent stalls use the palette of Okabe and Ito (Color Universal Design, 2008), which stays
apart under the common colour blindnesses; waiting is grey and differs in lightness and hatching.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from traces.causes import BUSY
from traces.events import STALLS


@dataclass(frozen=True, slots=True)
class Style:
    """How one category is drawn, and what the legend says."""

    colour: str
    name: str
    hatch: str = ""


STEP_STYLES = {
    "FW": Style("#0072B2", "FW  forward"),
    "LOSS": Style("#F0E442", "LOSS  loss"),
    "IG": Style("#E69F00", "IG  input gradient"),
    "WG": Style("#009E73", "WG  weight gradient"),
    "UPD": Style("#CC79A7", "UPD  weight update"),
    "other": Style("#7F5539", "other work"),
}

_STALL_LOOKS = {
    "load_use": ("#E69F00", ""),
    "multicycle": ("#56B4E9", ""),
    "misaligned": ("#F0E442", ""),
    "fpu": ("#CC79A7", ""),
    "divider": ("#882255", ""),
    "branch": ("#009E73", ""),
    "icache": ("#7F5539", ""),
    "bank_conflict": ("#D55E00", ""),
    "l2_access": ("#332288", ""),
    "dma_wait": ("#D9D9D9", "/////"),
    "dma_program": ("#3A3A3A", ""),
    "barrier": ("#B5B5B5", ""),
    "fork": ("#7A7A7A", ""),
    "offload": ("#E4E4E4", "\\\\\\\\\\"),
    "idle": ("#F3F3F3", ""),
}
STALL_STYLES = {word: Style(look[0], word, look[1]) for word, look in _STALL_LOOKS.items()}
BUSY_STYLE = Style("#0072B2", "busy")
MOVING_STYLE = Style("#44546A", "DMA moving bytes")

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


def mixed_colour(
    parts: Iterable[tuple[str, float]], width_cycles: float, look: Callable[[str], Style] = style
) -> tuple[float, float, float]:
    """Mean colour (red, green, blue in 0..1) of a mixture of categories; the rest of the width is white."""
    red = green = blue = 1.0
    for name, cycles in parts:
        share = cycles / width_cycles
        colour = look(name).colour
        r, g, b = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
        red, green, blue = red - share * (1 - r), green - share * (1 - g), blue - share * (1 - b)
    return max(red, 0.0), max(green, 0.0), max(blue, 0.0)


def family(step: str) -> str:
    """The step whose colour this one has: steps of a layer that does one in parts (FW_MEAN, IG_APPLY) have
    that of the whole, and whatever else there is is "other"."""
    whole = step.partition("_")[0]
    return whole if whole in STEP_STYLES else "other"


def ink_on(step: str) -> str:
    """Colour of text on the colour of a step."""
    return "black" if family(step) in ("LOSS", "IG", "UPD") else "white"
