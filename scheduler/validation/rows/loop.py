# SPDX-License-Identifier: Apache-2.0
"""KIND loop: ReLU, SGD, im2row and im2col on a team, second call, from fork to join.

Rows with a `build`, and all whose name is not in `MODELLED`, run a kernel file of the codegen whose arrays
have one index, such as a hand-written loop: `parameters` are N x M x K, and the arrays lie in L1 one after
another (`trainlib.kernels.catalogue.loop_work`). The others are ops of ours.
"""

from __future__ import annotations

import re

from arch.spec.program import Compute
from arch.spec.timing import SocTiming
from configs.dtypes import FP32
from configs.suggest import suggestion
from scheduler.validation.rows.cases import BUILD, CORES, CYCLES, MACHINE_COLUMNS, Case, Column
from scheduler.validation.rows.layer_steps import WEIGHT_DECAY, layer_graph, update_graph
from scheduler.validation.rows.machines import machine_of
from scheduler.validation.rows.measured_code import gap_bytes, measured_on_rtl, without_wrapper
from scheduler.validation.rows.prediction import Prediction
from scheduler.validation.rows.programs import kernels_of, options_of, predicted, program_of
from trainlib.ir.graph import TrainingGraph
from trainlib.kernels.catalogue import loop_names, loop_work
from trainlib.primitives.contractions.conv_nests import Reach, Site, im2row

COLUMNS = (
    *MACHINE_COLUMNS,
    Column("codegen"),
    Column("kernel"),
    Column("parameters"),
    Column("elements", 1),
    CORES,
    CYCLES,
    Column("cycles_kernel", 0, optional=True),
)

UNROLLED = ("im2row", "im2col")
MODELLED = ("relu_fw", "relu_bw", "sgd_update", "sgd_update_wd", *UNROLLED)


def predict(case: Case) -> Prediction:
    """The kernel of the op that runs the loop; a fork without the wrapper of the layers."""
    computes, timing = kernels(case)
    return predicted(case, timing, computes)


def kernels(case: Case) -> tuple[list[Compute], SocTiming]:
    """The kernels of a row, and its machine."""
    name = case.text("kernel")
    if case.cells.get(BUILD) or name not in MODELLED:
        return _of_file(case)
    if name not in UNROLLED:
        return _of_op(case, _elementwise(case, name))
    ci, hi, hk, stride, pad, hwc = _parameters(case)
    if name == "im2col" and not hwc:
        return _alone(case, (ci, hi, hk, stride, pad))
    # The rows of an HWC image are unrolled before FW, its columns before WG.
    step, nest = ("WG", "im2col_hwc") if name == "im2col" else ("FW", "im2row_hwc" if hwc else "im2row_fw")
    options = {"out_channels": 1, "kernel": hk, "stride": stride, "padding": pad, "bias": False}
    shape = (hi, hi, ci) if hwc else (ci, hi, hi)
    graph = layer_graph("conv2d", step, options, [shape], layout="HWC" if hwc else "CHW", where=case.where)
    return _of_op(case, graph, nest)


def _of_file(case: Case) -> tuple[list[Compute], SocTiming]:
    """A kernel file of the codegen, called like a matmul."""
    codegen, name = case.text("codegen"), case.text("kernel")
    loops = loop_names(codegen)
    if name not in loops:
        raise case.error(f"pulptrain does not model the loop '{name}'", suggestion(name, (*MODELLED, *loops)))
    text = case.text("parameters")
    if re.fullmatch(r"\d{1,6}(x\d{1,6}){2}", text) is None:
        raise case.error(f"cannot read parameters '{text}'", "write N, M and K as 32x16x1")
    sizes = dict(zip("NMK", (int(part) for part in text.split("x")), strict=True))
    sizes["elements"] = case.number("elements")
    team, size_bytes = loop_work(codegen, name, sizes, case.number("cores"))
    timing = machine_of(case, l1_bytes=size_bytes)
    return [Compute(0, team=team)], without_wrapper(timing) if measured_on_rtl(case) else timing


def _elementwise(case: Case, name: str) -> TrainingGraph:
    elements = case.number("elements")
    if name.startswith("relu"):
        step = "FW" if name == "relu_fw" else "IG"
        return layer_graph("relu", step, {}, [(elements,)], where=case.where)
    decay = {"weight_decay": WEIGHT_DECAY} if name.endswith("_wd") else {}
    return update_graph(case, elements, **decay)


def _of_op(case: Case, graph: TrainingGraph, *nests: str) -> tuple[list[Compute], SocTiming]:
    """The kernels of an op, or those of some nests only."""
    options = options_of(case, graph, kernels={}, buffer_gap_bytes=gap_bytes(case.text("codegen")))
    program, timing = program_of(case, graph, options, change=without_wrapper)
    computes = kernels_of(program, nests)
    if not computes:
        message = f"codegen '{case.text('codegen')}' has no kernel {' or '.join(nests)} that runs alone"
        raise case.error(message, "remove the row, or use another codegen (`pulptrain list kernels`)")
    return computes, timing


def _parameters(case: Case) -> tuple[int, ...]:
    """ci, hi (= wi), hk (= wk), stride, pad, and whether it is HWC."""
    text = case.text("parameters")
    if re.fullmatch(r"\d{1,6}(x\d{1,6}){5}", text) is None:
        raise case.error(f"parameters '{text}' are not CIxHIxHKxSTRIDExPADxHWC", "write e.g. 8x8x3x1x0x0")
    ci, hi, hk, stride, pad, hwc = (int(part) for part in text.split("x"))
    if stride < 1 or not 1 <= hk <= hi + 2 * pad or ci < 1:
        wrong = f"parameters '{text}' (CIxHIxHKxSTRIDExPADxHWC): CI or STRIDE is 0, or HK not 1 to HI + 2 PAD"
        raise case.error(wrong, "write e.g. 8x8x3x1x0x0")
    return ci, hi, hk, stride, pad, hwc


def _alone(case: Case, extents: tuple[int, ...]) -> tuple[list[Compute], SocTiming]:
    """im2col of a CHW image: a kernel of the library that no layer of ours runs."""
    ci, hi, hk, stride, pad = extents
    ho = (hi + 2 * pad - hk) // stride + 1
    places = {"X": 0, "R": FP32.bytes * ci * hi * hi}
    team = im2row(
        Site(case.text("codegen"), case.number("cores"), FP32, places),
        "FW",
        Reach.of((hi, hi), (hk, hk), (ho, ho), stride, pad),
        ci,
        stride=stride,
        padded=pad > 0,
        columns=True,
    )
    return [Compute(0, team=team)], without_wrapper(machine_of(case))
