"""KIND loop: ReLU, SGD, im2row and im2col on a team, second call, from fork to join."""

from __future__ import annotations

import re

from arch.isa import TeamWork
from configs.suggest import suggestion
from scheduler.validation.cases import CYCLES, MACHINE_COLUMNS, Case, Column
from scheduler.validation.placement import placed
from scheduler.validation.prediction import Prediction
from scheduler.validation.team import forked
from trainlib.kernels.catalogue import elementwise_work, im2row_work

COLUMNS = (
    *MACHINE_COLUMNS,
    Column("codegen"),
    Column("kernel"),
    Column("parameters"),
    Column("elements", 1),
    Column("cores", 1),
    CYCLES,
    Column("cycles_kernel", 0, optional=True),
)

ELEMENTWISE = {"relu_fw": ("relu_fw", 2), "relu_bw": ("relu_bw", 3), "sgd_update": ("sgd", 2)}
"""Measured loop -> (name in the catalogue, number of arrays)."""

MODELLED = (*ELEMENTWISE, "im2row")


def predict(case: Case) -> Prediction:
    """Price the loop; arrays lie one after another in L1."""
    name = case.text("kernel")
    if name in ELEMENTWISE:
        return Prediction(*forked(case, _elementwise(case, name)))
    if name == "im2row":
        return Prediction(*forked(case, _im2row(case)))
    raise case.error(f"no model of the loop '{name}'", suggestion(name, MODELLED))


def _elementwise(case: Case, name: str) -> TeamWork:
    loop, arrays = ELEMENTWISE[name]
    elements = case.number("elements")
    addresses = placed(*[4 * elements] * arrays)[:-1]
    return elementwise_work(case.text("codegen"), loop, elements, case.number("cores"), addresses)


def _im2row(case: Case) -> TeamWork:
    """`parameters` are ci x hi (= wi) x hk (= wk) x stride x pad x HWC."""
    text = case.text("parameters")
    if re.fullmatch(r"\d{1,6}(x\d{1,6}){5}", text) is None:
        raise case.error(f"cannot read parameters '{text}'", "write them as 8x8x3x1x0x0")
    ci, hi, hk, stride, pad, hwc = (int(part) for part in text.split("x"))
    if hwc:
        raise case.error("no model of the HWC form of 'im2row'", "only CHW is modelled")
    if stride < 1 or not 1 <= hk <= hi + 2 * pad or ci < 1:
        raise case.error(f"parameters '{text}' describe no image")
    ho = (hi + 2 * pad - hk) // stride + 1
    source, target, _ = placed(4 * ci * hi * hi, 4 * ci * hk * hk * ho * ho)
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
