"""Layer steps beyond the plain convolution, linear and ReLU ones: which passes each is made of.

`find` answers by (primitive, step, variant, layout). The passes follow PULP-TrainLib: every kernel with the
extents and the fork it has there. Argument structs and calls around them are not modelled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from arch.isa import CoreWork, TeamWork
from arch.timing import SocTiming
from scheduler.validation.cases import Case
from scheduler.validation.layer_parts import (
    FORK_WRAPPER_CYCLES,
    Builder,
    Layer,
    Pass,
    apart,
    check_window,
    matmul_pass,
)
from scheduler.validation.machines import machine_of
from trainlib.kernels.catalogue import rows_work, transpose_work, vector_work
from trainlib.kernels.layer_catalogue import Window, depthwise_work, pooling_work
from trainlib.kernels.library import LIBRARY


def find(primitive: str, step: str, variant: str, layout: str) -> Builder | None:
    """The builder of a layer step, or None if it is not one of these."""
    return STEPS.get((primitive, step, variant, layout))


def known() -> tuple[str, ...]:
    """What `find` knows, as texts for messages."""
    return tuple(" ".join(filter(None, key)) for key in STEPS)


def _window(case: Case, layer: Layer) -> Window:
    check_window(case, layer)
    return Window(layer.ci, layer.hi, layer.wi, layer.hk, layer.wk, layer.stride, layer.pad)


def _activation(name: str) -> Builder:
    """An activation function of the library forks by itself, without the wrapper of the measured programs."""

    def build(case: Case, layer: Layer, kernel: str) -> list[Pass]:
        return [
            replace(item, extra_cycles=-FORK_WRAPPER_CYCLES) for item in _vector(name)(case, layer, kernel)
        ]

    return build


def _vector(name: str) -> Builder:
    def build(case: Case, layer: Layer, kernel: str) -> list[Pass]:
        codegen, cores = case.text("codegen"), case.number("cores")
        addresses = apart(case, *[4 * layer.elements] * len(LIBRARY.header(codegen, name).arrays))
        return [Pass(vector_work(codegen, name, layer.elements, cores, addresses))]

    return build


def _loss(name: str, *, gradient: bool) -> Builder:
    def build(case: Case, layer: Layer, kernel: str) -> list[Pass]:
        size_bytes = 4 * layer.elements
        addresses = apart(case, size_bytes, size_bytes, size_bytes if gradient else 4)
        return [Pass(vector_work(case.text("codegen"), name, layer.elements, 1, addresses), fork=False)]

    return build


def _pooling(name: str) -> Builder:
    def build(case: Case, layer: Layer, kernel: str) -> list[Pass]:
        window = _window(case, layer)
        image, result = 4 * layer.elements, 4 * layer.ci * layer.ho * layer.wo
        sizes = [image, image, result] if name == "maxpool_bw" else [image, result]
        addresses = apart(case, *sizes)
        cores = case.number("cores")
        return [Pass(pooling_work(case.text("codegen"), name, window, cores, addresses))]

    return build


def _depthwise(name: str) -> Builder:
    def build(case: Case, layer: Layer, kernel: str) -> list[Pass]:
        window = _window(case, layer)
        taps, result = 4 * layer.ci * layer.hk * layer.wk, 4 * layer.ci * layer.ho * layer.wo
        x, w, y = apart(case, 4 * layer.elements, taps, result)
        return [Pass(depthwise_work(case.text("codegen"), name, window, case.number("cores"), (x, w, y)))]

    return build


def _transposed(case: Case, name: str, n: int, m: int) -> Pass:
    source, target = apart(case, 4 * n * m, 4 * n * m)
    work = transpose_work(case.text("codegen"), name, n, m, case.number("cores"), (source, target))
    return Pass(work)


def _transpose(name: str) -> Builder:
    def build(case: Case, layer: Layer, kernel: str) -> list[Pass]:
        return [_transposed(case, name, layer.hi, layer.wi)]

    return build


def _pointwise_input_gradient(case: Case, layer: Layer, kernel: str) -> list[Pass]:
    return [
        _transposed(case, "transpose_matrix", layer.co, layer.ci),
        matmul_pass(case, layer.ci, layer.co, layer.hi * layer.wi, kernel),
    ]


def _pointwise_forward_hwc(case: Case, layer: Layer, kernel: str) -> list[Pass]:
    return [matmul_pass(case, layer.hi * layer.wi, layer.ci, layer.co, kernel)]


def _pointwise_weight_gradient_hwc(case: Case, layer: Layer, kernel: str) -> list[Pass]:
    pixels = layer.hi * layer.wi
    return [
        _transposed(case, "transpose_matrix", pixels, layer.ci),
        matmul_pass(case, layer.ci, pixels, layer.co, kernel),
    ]


def _pointwise_input_gradient_hwc(case: Case, layer: Layer, kernel: str) -> list[Pass]:
    return [
        _transposed(case, "transpose_matrix", layer.ci, layer.co),
        matmul_pass(case, layer.hi * layer.wi, layer.co, layer.ci, kernel),
    ]


def _softmax(names: Sequence[str]) -> Builder:
    """Passes over the rows of one matrix; arrays lie one after another, in the order they are first used."""

    def build(case: Case, layer: Layer, kernel: str) -> list[Pass]:
        codegen = case.text("codegen")
        arrays = {name: LIBRARY.header(codegen, name).arrays for name in names}
        indices = {array: count for name in names for array, count in arrays[name].items()}
        rows, columns = layer.hi, layer.wi
        sizes = [4 * rows * (columns if count == 2 else 1) for count in indices.values()]
        address = dict(zip(indices, apart(case, *sizes), strict=False))
        return [
            Pass(
                rows_work(
                    codegen,
                    name,
                    rows,
                    columns,
                    case.number("cores"),
                    {array: address[array] for array in arrays[name]},
                )
            )
            for name in names
        ]

    return build


def _conv_forward_dma(case: Case, layer: Layer, kernel: str) -> list[Pass]:
    """im2col by DMA: a core fetches the patches of its output rows, one 2D transfer per patch and channel."""
    check_window(case, layer)
    cores = case.number("cores")
    rows = -(-layer.ho // cores)
    transfers = rows * layer.wo * layer.ci
    active = -(-layer.ho // rows)
    nothing = TeamWork("im2col by DMA", (CoreWork(()),) * cores)
    wait_cycles = transfers * dma_patch_cycles(machine_of(case), active)
    k, m = layer.hk * layer.wk * layer.ci, layer.ho * layer.wo
    return [Pass(nothing, extra_cycles=wait_cycles), matmul_pass(case, layer.co, k, m, kernel, trans_b=True)]


def dma_patch_cycles(timing: SocTiming, active_cores: int) -> int:
    """Cycles of one blocking 2D transfer of a patch, while `active_cores` do the same.

    Program, sleep, wake up. A patch is so small that the wait has its least duration. The DMA event goes to
    every core, so the end of each transfer of another core wakes this one, which looks and sleeps again.
    """
    dma = timing.dma
    own_cycles = dma.program_1d_cycles + dma.program_2d_cycles + dma.wait_sleep_min_cycles
    return own_cycles + (active_cores - 1) * (dma.wait_check_cycles + dma.wait_wake_cycles)


STEPS: dict[tuple[str, str, str, str], Builder] = {
    ("avgpool", "FW", "", "CHW"): _pooling("avgpool_fw"),
    ("avgpool", "BW", "", "CHW"): _pooling("avgpool_bw"),
    ("maxpool", "FW", "", "CHW"): _pooling("maxpool_fw"),
    ("maxpool", "BW", "", "CHW"): _pooling("maxpool_bw"),
    ("conv2d", "FW", "dma_im2col", "CHW"): _conv_forward_dma,
    ("conv_dw", "FW", "", "CHW"): _depthwise("dw_fw"),
    ("conv_dw", "WG", "", "CHW"): _depthwise("dw_wg"),
    ("conv_dw", "IG", "", "CHW"): _depthwise("dw_ig"),
    ("conv_pw", "IG", "", "CHW"): _pointwise_input_gradient,
    ("conv_pw", "FW", "", "HWC"): _pointwise_forward_hwc,
    ("conv_pw", "WG", "", "HWC"): _pointwise_weight_gradient_hwc,
    ("conv_pw", "IG", "", "HWC"): _pointwise_input_gradient_hwc,
    ("copy", "-", "", "-"): _vector("copy"),
    ("leakyrelu", "FW", "", "CHW"): _activation("leakyrelu_fw"),
    ("leakyrelu", "BW", "", "CHW"): _activation("leakyrelu_bw"),
    ("loss_l1", "FW", "one_core", "-"): _loss("l1_fw", gradient=False),
    ("loss_l1", "BW", "one_core", "-"): _loss("l1_bw", gradient=True),
    ("relu", "FW", "", "CHW"): _activation("relu_fw"),
    ("relu", "BW", "", "CHW"): _activation("relu_bw"),
    ("residual", "FW", "", "-"): _vector("broadcast_sum"),
    ("residual", "BW", "", "-"): _vector("copy"),
    ("set_to_value", "-", "", "-"): _vector("set_to_value"),
    ("sgd_wd", "UPD", "", "-"): _vector("sgd_wd"),
    ("sigmoid", "FW", "", "CHW"): _activation("sigmoid_fw"),
    ("sigmoid", "BW", "", "CHW"): _activation("sigmoid_bw"),
    ("softmax", "FW", "schraudolph", "-"): _softmax(("row_max", "exp_sum", "row_div")),
    ("softmax", "BW", "", "-"): _softmax(("softmax_bw_sum", "softmax_bw_scale")),
    ("sumnode", "BW", "", "-"): _vector("broadcast_sum"),
    ("transpose_matrix", "-", "", "-"): _transpose("transpose_matrix"),
    ("transpose_nd", "-", "", "-"): _transpose("transpose_nd"),
    ("vect_sum", "-", "", "-"): _vector("vect_sum"),
}
"""(primitive, step, variant, layout) -> its passes."""
