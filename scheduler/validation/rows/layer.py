# SPDX-License-Identifier: Apache-2.0
"""KIND layer: whole layer steps as the master core sees them, every kernel with its own fork.

A row is an op of ours (`layer_steps`), its program that of `run` with the whole op in L1. The operands of the
measured steps lay there, so of the program the kernels are simulated.
"""

from __future__ import annotations

from collections.abc import Mapping

from arch.pricing.window_plan import PricingWindow
from arch.spec.isa import CoreWork, TeamWork
from arch.spec.program import Action, Compute
from arch.spec.timing import SocTiming
from configs.values import replace
from scheduler.validation.rows.cases import CORES, CYCLES, MACHINE_COLUMNS, Case, Column
from scheduler.validation.rows.layer_steps import DMA_IM2COL, Layer, LayerStep, known, step_named
from scheduler.validation.rows.machines import machine_of
from scheduler.validation.rows.measured_code import (
    dma_patch_cycles,
    gap_bytes,
    master_code,
    with_layer_calls,
    without_wrapper,
)
from scheduler.validation.rows.prediction import Prediction
from scheduler.validation.rows.programs import as_it_is, kernels_of, options_of, predicted, program_of
from trainlib.ir.graph import TrainingGraph

COLUMNS = (
    *MACHINE_COLUMNS,
    Column("codegen"),
    Column("primitive"),
    Column("step"),
    Column("variant"),
    Column("dtype"),
    Column("layout"),
    *(Column(name, 0) for name in ("ci", "hi", "wi", "co", "hk", "wk", "stride", "pad")),
    Column("kernel"),
    CORES,
    CYCLES,
    Column("cycles_min", 0, optional=True),
    Column("cycles_max", 0, optional=True),
)


def predict(case: Case, window: PricingWindow | None = None) -> Prediction:
    """The kernels of the step. A step ``WG+IG`` with kernel ``mm+mm_M`` is both steps one after the other.

    `window` says from which starts a team is priced, where not from the usual ones.
    """
    layer = Layer(*(case.number(name) for name in Layer.__slots__))
    if case.text("primitive") == "empty_fork":
        return predicted(case, machine_of(case), [Compute(0, team=_nothing(case))], window)
    if not (layer.elements and layer.co):
        raise case.error(
            "the layer has no elements", "set ci, hi, wi and co to 1 or more; use 1 for a missing dimension"
        )
    kernels, steps = case.text("kernel").split("+"), case.text("step").split("+")
    if len(kernels) == 1 or case.text("primitive") == "tutorial_step":
        kernels = [case.text("kernel")] * len(steps)
    if len(kernels) != len(steps):
        raise case.error(
            f"the row names {len(steps)} steps, but {len(kernels)} kernels", "name one kernel per step"
        )
    return Prediction(sum(_cycles(case, layer, *names, window) for names in zip(steps, kernels, strict=True)))


def _cycles(case: Case, layer: Layer, step: str, kernel: str, window: PricingWindow | None) -> int:
    """Cycles of one step with a matmul kernel."""
    return cycles_of(case, layer, _step(case, step), kernel, window)


def cycles_of(
    case: Case, layer: Layer, step: LayerStep, kernel: str, window: PricingWindow | None = None
) -> int:
    """Cycles of a step of ours with the shape of a row, the whole op in L1, from the first fork on."""
    graph = step.graph(case, layer)
    options = options_of(
        case,
        graph,
        kernels=_kernels(case, graph, kernel),
        buffer_gap_bytes=gap_bytes(case.text("codegen")),
    )
    change = as_it_is if step.wrapped else without_wrapper
    program, timing = program_of(case, graph, options, change=change, window=window)
    kernels = kernels_of(program, step.kernels)
    actions: list[Action] = [*(with_layer_calls(kernels, case.text("codegen")) if step.called else kernels)]
    if case.text("variant") == DMA_IM2COL:
        before = _patches(case, layer, timing)
        actions = [replace(action, id=number) for number, action in enumerate([*before, *actions])]
    return predicted(case, timing, actions, window).cycles


def _step(case: Case, step: str) -> LayerStep:
    primitive, variant, layout = case.text("primitive"), case.text("variant"), case.text("layout")
    layer_step = step_named(primitive, step, variant, layout)
    if layer_step is None:
        what = " ".join(filter(None, (primitive, step, variant, layout if layout == "HWC" else "")))
        raise case.error(f"pulptrain does not model the step '{what}'", f"use one of {', '.join(known())}")
    return layer_step


def _kernels(case: Case, graph: TrainingGraph, kernel: str) -> Mapping[str, str]:
    """The matmul kernel of every op, as the row names it.

    The tutorial's linear layer may have one of its own for its input gradient: ``mm_unroll_2x4+IG_mm_M``.
    Where the network runs the default ``mm``, the library takes ``mm_M`` there.
    """
    kernel, _, second = kernel.partition("+IG_")
    chosen = dict.fromkeys((op.name for op in graph.ops), kernel.removeprefix("-"))
    if case.text("primitive") == "tutorial_step":
        chosen["linear.IG"] = second or ("mm_M" if kernel == "mm" else kernel)
    return chosen


def _nothing(case: Case) -> TeamWork:
    return TeamWork("empty", (CoreWork(()),) * case.number("cores"))


def _patches(case: Case, layer: Layer, timing: SocTiming) -> list[Action]:
    """im2col by DMA as the rows have it: a core fetches the patches of its rows of the output, one by one.

    A 2D transfer per patch and channel, which it waits for before the next. No program of ours does that: our
    master fetches all patches of a tile.
    """
    ho = (layer.hi + 2 * layer.pad - layer.hk) // layer.stride + 1
    wo = (layer.wi + 2 * layer.pad - layer.wk) // layer.stride + 1
    rows = -(-ho // case.number("cores"))
    cycles = rows * wo * layer.ci * dma_patch_cycles(timing, active_cores=-(-ho // rows))
    return [Compute(0, team=_nothing(case)), *master_code(1, cycles)]
