# SPDX-License-Identifier: Apache-2.0
"""Nine layer steps whose default variant differs from the published one that was measured.

The section of `docs/validation.md` with that name.
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
class ComparedStep:
    """A step and a measured row of it.

    `default` is what `run` takes if nobody asks, None where that is what the row measured.
    """

    title: str
    row: str
    default: LayerStep | None
    reason: str


STEPS = (
    ComparedStep(
        "depthwise WG",
        "L02950",
        LayerStep(sliding("depthwise", "WG", depthwise_options)),
        "In the library every core computes every channel; by default cores share the channels, which was "
        "not measured on GVSoC.",
    ),
    ComparedStep(
        "depthwise IG", "L02942", LayerStep(sliding("depthwise", "IG", depthwise_options)), "As WG."
    ),
    ComparedStep(
        "max-pool IG",
        "L08070",
        LayerStep(sliding("max_pool2d", "IG")),
        "The library searches the maximum again; the default stores its position.",
    ),
    ComparedStep(
        "residual add FW",
        "L08270",
        LayerStep(pair("add", "FW")),
        "The library adds with its loop for operands of two shapes; the default uses its plain loop, which "
        "was measured, too.",
    ),
    ComparedStep(
        "transpose",
        "L08662",
        None,
        "Both use the library's function for a matrix.",
    ),
    ComparedStep(
        "softmax FW",
        "L08590",
        LayerStep(matrix("softmax", "FW")),
        "The default computes the exponential exactly, the library by Schraudolph's formula.",
    ),
    ComparedStep(
        "pointwise HWC WG",
        "L05374",
        None,
        "`run` calls the kernels without the layer function.",
    ),
    ComparedStep("pointwise HWC IG", "L04438", None, "As WG."),
    ComparedStep("pointwise CHW IG", "L03940", None, "As WG."),
)


NAMES = ("primitive", "step", "variant", "layout")

HEADS = (
    *("step", "shape", "row", "measured", "as-published", "error %"),
    *("default", "default / measured", "why"),
)

INTRODUCTION = (
    "The measured layer steps are those of PULP-TrainLib (`--variant as-published`). By default, `run` uses",
    "other variants for some of them, so its cycles differ from the measured ones. The table shows how much:",
    "*as-published* and *default* are predicted cycles of both variants, from fork to join, with operands in",
    "L1. Steps with a matmul include the call of the layer function; `run` calls kernels directly.",
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
            *(step.title, shape, f"`{step.row}`"),
            *(f"{row.measured:,}", f"{row.prediction.cycles:,}", f"{row.error_percent:+.1f}"),
            *(f"{ours:,}", f"{ours / row.measured:.2f}", step.reason),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _default_cycles(case: Case, step: ComparedStep) -> int:
    """What `run` charges for the kernels of the step in the default variant, called directly."""
    layer_step = step.default or step_named(*(case.text(name) for name in NAMES))
    assert layer_step is not None, "its row was predicted"
    layer = Layer(*(case.number(name) for name in Layer.__slots__))
    return cycles_of(case, layer, replace(layer_step, called=False), case.text("kernel"))
