"""KIND layer: whole layer steps as the master core sees them, every pass with its own fork.

A step is a list of passes after PULP-TrainLib's own code: which kernel, which extents, forked or on the
master alone. Steps beyond the plain convolution and linear ones are in `layer_steps`. Of the glue between the
passes only the call around a matmul is modelled (`layer_parts.call_team`).
"""

from __future__ import annotations

from arch.isa import CoreWork, TeamWork
from arch.window_plan import Window
from scheduler.validation import layer_steps
from scheduler.validation.cases import CORES, CYCLES, MACHINE_COLUMNS, Case, Column
from scheduler.validation.layer_parts import Builder, Layer, Pass, apart, call_team, check_window, matmul_pass
from scheduler.validation.mm import ELEMENT_BYTES, matmul_team
from scheduler.validation.prediction import Prediction
from scheduler.validation.team import alone, forked
from trainlib.kernels.catalogue import blocktransp_work, im2row_work, vector_work

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


def predict(case: Case, window: Window | None = None) -> Prediction:
    """Sum of the passes. A step ``WG+IG`` with kernel ``mm+mm_M`` is both steps one after the other.

    `window` says from which starts a team is priced, where not from the usual ones.
    """
    dtype = case.text("dtype")
    layer = Layer(*(case.number(name) for name in Layer.__slots__))
    if case.text("variant") == "vector_matrix":
        return Prediction(_vector_matrix(case, layer, window))
    if dtype != "fp32":
        raise case.error(
            f"no layer in dtype '{dtype}'", "fp32 is modelled, and the product vector_matrix in 16 bit"
        )
    kernels = case.text("kernel").split("+")
    steps = case.text("step").split("+")
    if len(kernels) == 1:
        kernels *= len(steps)
    if len(kernels) != len(steps):
        raise case.error(f"{len(steps)} steps, but {len(kernels)} kernels", "name one kernel per step")
    cycles = 0
    for step, kernel in zip(steps, kernels, strict=True):
        for item in _builder(case, step)(case, layer, kernel):
            taken = forked(case, item.team, window) if item.fork else alone(case, item.team)
            cycles += taken[0] + item.extra_cycles
            if item.called:
                cycles += alone(case, call_team(case))[0]
    return Prediction(cycles)


def _vector_matrix(case: Case, layer: Layer, window: Window | None) -> int:
    """A 16-bit input gradient of a linear layer as a bare product of a vector and a matrix."""
    dtype, kernel = case.text("dtype"), case.text("kernel")
    if (case.text("primitive"), case.text("step")) != ("linear", "IG") or ELEMENT_BYTES.get(dtype) != 2:
        raise case.error("no model of this vector_matrix", "linear IG in fp16 or bf16 is modelled")
    trans_b = kernel.endswith("transposed")
    team = matmul_team(case, 1, layer.co, layer.ci, trans_b=trans_b, kernel=kernel, element_bytes=2)
    return forked(case, team, window)[0]


def _builder(case: Case, step: str) -> Builder:
    primitive, variant, layout = case.text("primitive"), case.text("variant"), case.text("layout")
    found = layer_steps.find(primitive, step, variant, layout)
    if found is not None:
        return found
    builder = STEPS.get((primitive, step))
    if builder is None or layout not in ("CHW", "-") or variant not in VARIANTS.get(primitive, ("",)):
        what = " ".join(filter(None, (primitive, step, variant, layout if layout == "HWC" else "")))
        plain = (f"{name} {item} CHW" for name, item in STEPS)
        modelled = ", ".join(sorted({*plain, *layer_steps.known()}))
        raise case.error(f"no model of the layer step '{what}'", f"modelled are {modelled}")
    return builder


def _im2row(case: Case, layer: Layer, mode: str) -> TeamWork:
    check_window(case, layer)
    patch = layer.hk * layer.wk
    if mode == "FW":
        channels, source_elements = layer.ci, layer.ci * layer.hi * layer.wi
        rows = layer.ho * layer.wo
    else:
        channels, source_elements = layer.co, layer.co * layer.ho * layer.wo
        rows = layer.hi * layer.wi
    source, target = apart(case, 4 * source_elements, 4 * rows * channels * patch)
    return im2row_work(
        case.text("codegen"),
        mode=mode,
        ci=channels,
        hi=layer.hi,
        wi=layer.wi,
        hk=layer.hk,
        wk=layer.wk,
        ho=layer.ho,
        wo=layer.wo,
        stride=layer.stride,
        pads=(layer.pad,) * 4,
        cores=case.number("cores"),
        source_address=source,
        target_address=target,
    )


def _block_transpose(case: Case, layer: Layer) -> TeamWork:
    check_window(case, layer)
    size_bytes = 4 * layer.co * layer.ci * layer.hk * layer.wk
    source, target = apart(case, size_bytes, size_bytes)
    return blocktransp_work(
        case.text("codegen"),
        co=layer.co,
        ci=layer.ci,
        hk=layer.hk,
        wk=layer.wk,
        cores=case.number("cores"),
        source_address=source,
        target_address=target,
    )


def _linear_forward(case: Case, layer: Layer, kernel: str) -> list[Pass]:
    return [matmul_pass(case, layer.co, layer.ci, 1, kernel)]


def _linear_weight_gradient(case: Case, layer: Layer, kernel: str) -> list[Pass]:
    return [matmul_pass(case, layer.co, 1, layer.ci, kernel)]


def _linear_input_gradient(case: Case, layer: Layer, kernel: str) -> list[Pass]:
    return [matmul_pass(case, 1, layer.co, layer.ci, kernel)]


def _pointwise_forward(case: Case, layer: Layer, kernel: str) -> list[Pass]:
    return [matmul_pass(case, layer.co, layer.ci, layer.hi * layer.wi, kernel)]


def _pointwise_weight_gradient(case: Case, layer: Layer, kernel: str) -> list[Pass]:
    return [matmul_pass(case, layer.co, layer.hi * layer.wi, layer.ci, kernel, trans_b=True)]


def _conv_forward(case: Case, layer: Layer, kernel: str) -> list[Pass]:
    k, m = layer.hk * layer.wk * layer.ci, layer.ho * layer.wo
    return [
        Pass(_im2row(case, layer, "FW")),
        matmul_pass(case, layer.co, k, m, kernel, trans_b=True),
    ]


def _conv_weight_gradient(case: Case, layer: Layer, kernel: str) -> list[Pass]:
    k, m = layer.ho * layer.wo, layer.hk * layer.wk * layer.ci
    return [Pass(_im2row(case, layer, "FW")), matmul_pass(case, layer.co, k, m, kernel)]


def _conv_input_gradient(case: Case, layer: Layer, kernel: str) -> list[Pass]:
    k, m = layer.hk * layer.wk * layer.co, layer.hi * layer.wi
    return [
        Pass(_im2row(case, layer, "IG")),
        Pass(_block_transpose(case, layer)),
        matmul_pass(case, layer.ci, k, m, kernel, trans_b=True),
    ]


def _elementwise(name: str, arrays: int) -> Builder:
    def build(case: Case, layer: Layer, kernel: str) -> list[Pass]:
        addresses = apart(case, *[4 * layer.elements] * arrays)
        work = vector_work(case.text("codegen"), name, layer.elements, case.number("cores"), addresses)
        return [Pass(work)]

    return build


def _loss(name: str, *, gradient: bool) -> Builder:
    def build(case: Case, layer: Layer, kernel: str) -> list[Pass]:
        size_bytes = 4 * layer.elements
        addresses = apart(case, size_bytes, size_bytes, size_bytes if gradient else 4)
        return [Pass(vector_work(case.text("codegen"), name, layer.elements, 1, addresses), fork=False)]

    return build


def _empty(case: Case, layer: Layer, kernel: str) -> list[Pass]:
    return [Pass(TeamWork("empty", (CoreWork(()),) * case.number("cores")))]


TUTORIAL_OUTPUTS = 32
"""Outputs of the linear layer of the PULP-TrainLib tutorial network; the row gives its convolution only."""


def _tutorial_step(case: Case, layer: Layer, kernel: str) -> list[Pass]:
    """One step of the tutorial network: conv2d, ReLU, linear, MSE, SGD; the first layer has no IG.

    With the default kernel ``mm`` the library takes ``mm_M`` for the input gradient of the linear layer.
    """
    check_window(case, layer)
    activation = Layer(layer.co, layer.ho, layer.wo, layer.co, 1, 1, 1, 0)
    linear = Layer(activation.elements, 1, 1, TUTORIAL_OUTPUTS, 1, 1, 1, 0)
    output = Layer(TUTORIAL_OUTPUTS, 1, 1, TUTORIAL_OUTPUTS, 1, 1, 1, 0)
    weights = [
        Layer(layer.co * layer.ci * layer.hk * layer.wk, 1, 1, 1, 1, 1, 1, 0),
        Layer(linear.ci * linear.co, 1, 1, 1, 1, 1, 1, 0),
    ]
    steps: list[tuple[str, str, Layer]] = [
        ("conv2d", "FW", layer),
        ("relu", "FW", activation),
        ("linear", "FW", linear),
        ("loss_mse", "FW", output),
        ("loss_mse", "BW", output),
        ("linear", "WG", linear),
        ("linear", "IG", linear),
        ("relu", "BW", activation),
        ("conv2d", "WG", layer),
        *(("sgd", "UPD", item) for item in weights),
    ]
    passes = []
    for primitive, step, extents in steps:
        chosen = "mm_M" if (primitive, step, kernel) == ("linear", "IG", "mm") else kernel
        passes += STEPS[primitive, step](case, extents, chosen)
    return passes


STEPS: dict[tuple[str, str], Builder] = {
    ("conv2d", "FW"): _conv_forward,
    ("conv2d", "WG"): _conv_weight_gradient,
    ("conv2d", "IG"): _conv_input_gradient,
    ("conv_pw", "FW"): _pointwise_forward,
    ("conv_pw", "WG"): _pointwise_weight_gradient,
    ("linear", "FW"): _linear_forward,
    ("linear", "WG"): _linear_weight_gradient,
    ("linear", "IG"): _linear_input_gradient,
    ("im2row", "FW"): lambda case, layer, kernel: [Pass(_im2row(case, layer, "FW"))],
    ("im2row", "IG"): lambda case, layer, kernel: [Pass(_im2row(case, layer, "IG"))],
    ("blocktransp", "IG"): lambda case, layer, kernel: [Pass(_block_transpose(case, layer))],
    ("relu", "FW"): _elementwise("relu_fw", 2),
    ("relu", "BW"): _elementwise("relu_bw", 3),
    ("sgd", "UPD"): _elementwise("sgd", 2),
    ("loss_mse", "FW"): _loss("mse_fw", gradient=False),
    ("loss_mse", "BW"): _loss("mse_bw", gradient=True),
    ("loss_ce", "FW"): _loss("cross_entropy_fw", gradient=False),
    ("loss_ce", "BW"): _loss("cross_entropy_bw", gradient=True),
    ("empty_fork", "-"): _empty,
    ("tutorial_step", "TOTAL"): _tutorial_step,
}
"""(primitive, step) -> its passes, in CHW."""

VARIANTS: dict[str, tuple[str, ...]] = {
    "im2row": ("im2row_mode0", "im2row_mode1"),
    "linear": ("", "linear_ig_mm_M"),
    "loss_mse": ("one_core",),
    "loss_ce": ("one_core",),
}
"""Variants that change nothing in the passes; every other primitive has no variant."""
