"""KIND loop: ReLU, SGD, im2row and im2col on a team, second call, from fork to join."""

from __future__ import annotations

import re

from arch.isa import TeamWork
from configs.suggest import suggestion
from scheduler.validation.cases import CORES, CYCLES, MACHINE_COLUMNS, Case, Column
from scheduler.validation.layer_parts import FORK_WRAPPER_CYCLES, apart
from scheduler.validation.prediction import Prediction
from scheduler.validation.team import forked
from trainlib.kernels.catalogue import im2row_work, vector_work
from trainlib.kernels.layer_catalogue import Window, unroll_work
from trainlib.kernels.library import LIBRARY

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

ELEMENTWISE = {"relu_fw": "relu_fw", "relu_bw": "relu_bw", "sgd_update": "sgd", "sgd_update_wd": "sgd_wd"}
"""Measured loop -> name in the catalogue."""

MODELLED = (*ELEMENTWISE, "im2row", "im2col")


def predict(case: Case) -> Prediction:
    """Price the loop; arrays lie one after another in L1, a little apart."""
    name = case.text("kernel")
    if name in ELEMENTWISE:
        return _unwrapped(case, _elementwise(case, name))
    if name in ("im2row", "im2col"):
        return _unwrapped(case, _unrolled(case, name))
    raise case.error(f"no model of the loop '{name}'", suggestion(name, MODELLED))


def _unwrapped(case: Case, team: TeamWork) -> Prediction:
    cycles, instructions = forked(case, team)
    return Prediction(cycles - FORK_WRAPPER_CYCLES, instructions)


def _elementwise(case: Case, name: str) -> TeamWork:
    loop = ELEMENTWISE[name]
    elements, codegen = case.number("elements"), case.text("codegen")
    addresses = apart(case, *[4 * elements] * len(LIBRARY.header(codegen, loop).arrays))
    return vector_work(codegen, loop, elements, case.number("cores"), addresses)


def _unrolled(case: Case, name: str) -> TeamWork:
    """`parameters` are ci x hi (= wi) x hk (= wk) x stride x pad x HWC."""
    text = case.text("parameters")
    if re.fullmatch(r"\d{1,6}(x\d{1,6}){5}", text) is None:
        raise case.error(f"cannot read parameters '{text}'", "write them as 8x8x3x1x0x0")
    ci, hi, hk, stride, pad, hwc = (int(part) for part in text.split("x"))
    if stride < 1 or not 1 <= hk <= hi + 2 * pad or ci < 1:
        raise case.error(f"parameters '{text}' describe no image")
    ho = (hi + 2 * pad - hk) // stride + 1
    source, target = apart(case, 4 * ci * hi * hi, 4 * ci * hk * hk * ho * ho)
    if hwc or name == "im2col":
        if pad:
            raise case.error(f"no model of padding in this form of '{name}'", "only im2row in CHW has it")
        window = Window(ci, hi, hi, hk, hk, stride)
        form = f"{name}_hwc" if hwc else name
        return unroll_work(case.text("codegen"), form, window, case.number("cores"), (source, target))
    return im2row_work(
        case.text("codegen"),
        mode="FW",
        ci=ci,
        hi=hi,
        wi=hi,
        hk=hk,
        wk=hk,
        ho=ho,
        wo=ho,
        stride=stride,
        pads=(pad, pad, pad, pad),
        cores=case.number("cores"),
        source_address=source,
        target_address=target,
    )
