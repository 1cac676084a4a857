# SPDX-License-Identifier: Apache-2.0
"""Nine layer steps once validated by a second description of the layers, and what `run` charges now.

The section of `docs/validation.md` with that name. Until version 0.2.0 the KIND layer priced layers of its
own; for these steps, same shape and same kernels, `run` charged something else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from configs.values import replace
from scheduler.validation.rows.cases import Case
from scheduler.validation.rows.layer import cycles_of
from scheduler.validation.rows.layer_steps import (
    Layer,
    LayerStep,
    depthwise_options,
    matrix,
    pair,
    sliding,
    step_named,
)
from scheduler.validation.rows.statistics import Result


@dataclass(frozen=True, slots=True)
class StepThen:
    """A step, a measured row of it, and what `run` charged per cycle of the validated copy (state 4043f43).

    `default` is what `run` takes if nobody asks, None where that is what the row measured.
    """

    title: str
    row: str
    ratio_then: float
    default: LayerStep | None
    reason: str


STEPS = (
    StepThen(
        "depthwise WG",
        "L02950",
        0.13,
        LayerStep(sliding("depthwise", "WG", depthwise_options)),
        "In the library every core computes every channel; by default cores share the channels, which was "
        "not measured on GVSoC.",
    ),
    StepThen(
        "depthwise IG", "L02942", 0.12, LayerStep(sliding("depthwise", "IG", depthwise_options)), "As WG."
    ),
    StepThen(
        "max-pool IG",
        "L08070",
        0.09,
        LayerStep(sliding("max_pool2d", "IG")),
        "The library searches the maximum again; the default stores its position.",
    ),
    StepThen(
        "residual add FW",
        "L08270",
        0.28,
        LayerStep(pair("add", "FW")),
        "The library adds with its loop for two shapes, the default with the plain one (measured, too).",
    ),
    StepThen(
        "transpose",
        "L08662",
        4.19,
        None,
        "`run` used the library's function for any number of dimensions; today a matrix has a separate one.",
    ),
    StepThen(
        "softmax FW",
        "L08590",
        1.59,
        LayerStep(matrix("softmax", "FW")),
        "The default computes the exponential exactly, the library by Schraudolph's formula.",
    ),
    StepThen(
        "pointwise HWC WG",
        "L05374",
        1.15,
        None,
        "The former description transposed a smaller matrix; today both transpose as the library does.",
    ),
    StepThen("pointwise HWC IG", "L04438", 1.04, None, "As WG."),
    StepThen("pointwise CHW IG", "L03940", 1.04, None, "As WG, and one price of a transpose."),
)


NAMES = ("primitive", "step", "variant", "layout")

HEADS = (
    *("step", "shape", "row", "ratio before 0.2.0", "measured", "as-published", "error %"),
    *("default", "default / measured", "why"),
)

INTRODUCTION = (
    "The measured layer steps are those of PULP-TrainLib (`--variant as-published`). By default, `run` uses",
    "other variants for some of them, so its cycles differ from the measured ones. The table shows how much:",
    "*as-published* and *default* are predicted cycles of both variants, from fork to join, with operands in",
    "L1. Rows with a matmul include the call of the layer function; `run` calls kernels directly. (*Ratio",
    "before 0.2.0*: cycles of `run` / cycles of `validate`, which then had a second description of layers.)",
    "",
)


def section(results: Sequence[Result]) -> list[str]:
    """The section's lines; `results` are those of the KIND layer."""
    rows = {result.case.id: result for result in results}
    lines = [*INTRODUCTION, f"| {' | '.join(HEADS)} |", "| --- " * len(HEADS) + "|"]
    for step in STEPS:
        row = rows.get(step.row)
        if row is None:
            continue
        case, ours = row.case, _default_cycles(row.case, step)
        shape = "x".join(str(case.number(name)) for name in ("ci", "hi", "wi", "co"))
        cells = (
            *(step.title, shape, f"`{step.row}`", f"{step.ratio_then:.2f}"),
            *(f"{row.measured:,}", f"{row.prediction.cycles:,}", f"{row.error_percent:+.1f}"),
            *(f"{ours:,}", f"{ours / row.measured:.2f}", step.reason),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _default_cycles(case: Case, step: StepThen) -> int:
    """What `run` charges for the kernels of the step in the default variant, called directly."""
    layer_step = step.default or step_named(*(case.text(name) for name in NAMES))
    assert layer_step is not None, "its row was predicted"
    layer = Layer(*(case.number(name) for name in Layer.__slots__))
    return cycles_of(case, layer, replace(layer_step, called=False), case.text("kernel"))
