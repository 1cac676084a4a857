# SPDX-License-Identifier: Apache-2.0
"""Random networks, optimizers and machines: whatever is drawn, a run without a defect must raise no alarm."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from configs.errors import DoesNotFitError, InputError, PulptrainError
from configs.values import replace
from pulptrain.inputs.settings import Settings
from pulptrain.running import number_check
from pulptrain.running.session import prepare, run_prepared

IMAGE = (
    "conv2d, out_channels: {c}, kernel: {k}, padding: {p}, stride: {s}, bias: {b}",
    "pointwise, out_channels: {c}, bias: {b}",
    "depthwise, kernel: 3, padding: 1, bias: {b}",
    "batch_norm",
    "instance_norm, running: {b}",
    "group_norm, groups: 1",
    "max_pool2d, kernel: 2",
    "avg_pool2d, kernel: 2",
    "conv_transpose2d, out_channels: {c}, kernel: 3, stride: {s}, padding: 1, bias: {b}",
    "interpolation, scale: 2",
    "pad, pads: [[0, 1], [{p}, 1], [0, {p}]]",
    "slice, axis: 1, start: 1, stop: 3 | flip, axes: [1] | concat, axis: 1, inputs: [$b, $x]",
    "slice, axis: 2, stop: 1 | concat, axis: 2, inputs: [$a, $x, $a]",
    "pointwise, out_channels: 2 | parameter, shape: [{c}, 2, {k}, {k}], once: true | tanh | "
    "conv2d, out_channels: {c}, kernel: {k}, bias: {b}, inputs: [$a], weights_of: {{weight: $c.out}}",
)
WEIGHT_NORM = (
    "linear, out_features: 3 | parameter, shape: [{c}, 3], once: true | square | "
    "reduce_sum, axes: [1], keep_dims: true | square_root | expand, shape: [{c}, 3] | "
    "divide, inputs: [$b, $f] | "
    "linear, out_features: {c}, bias: {b}, inputs: [$a], weights_of: {{weight: $g.out}}"
)
SEQUENCE = (
    "mhsa, heads: 1",
    "gru, hidden: {c}, bias: {b}",
    "lstm, hidden: {c}",
    "rnn, hidden: {c}",
    "position",
    "layer_norm",
    "linear, out_features: {c}, bias: {b}",
    WEIGHT_NORM,
)
VECTOR = (
    "linear, out_features: {c}, bias: {b}",
    "layer_norm",
    "rms_norm",
    "linear, out_features: 1 | expand, shape: [{c}]",
    WEIGHT_NORM,
)
ANY = (
    "relu",
    "leaky_relu",
    "sigmoid",
    "tanh",
    "gelu, form: {g}",
    "silu",
    "softmax",
    "dropout, p: 0.3",
    "scale, factor: 0.5",
    "prelu",
    "elu",
    "softplus",
    "mish",
    "hard_swish",
    "clip, low: -1.0, high: 1.0",
    "square",
    "error_function",
    "log_softmax",
    "flip, axes: [0]",
    "sine",
    "floor, straight_through: true",
    "ceil, straight_through: {b}",
    "round, straight_through: true",
    "compare, form: {r}, value: 0.1 | tanh, inputs: [$x] | where, inputs: [$a, $b, $x]",
    "compare, form: {r} | multiply, inputs: [$a, $x]",
    "tanh | concat, inputs: [$a, $x]",
    "sigmoid | scale, factor: 2.0, inputs: [$x] | concat, inputs: [$x, $b, $a]",
)
"""Some are several layers: `$x` is what is before them, `$a`, `$b` ... are the first ones."""

LOSSES = (
    *("mse", "cross_entropy", "l1", "berhu", "huber", "smooth_l1", "kl_div", "output"),
    *("bce_with_logits", "hinge_embedding", "soft_margin"),
    "{name: mse, reduction: sum, weight: 0.01}",
    "{name: cross_entropy, labels: hard, label_smoothing: 0.1}",
)
"""Those that any output can have."""

OPTIMIZERS = (
    "name: sgd, learning_rate: 0.05",
    "name: sgd, learning_rate: 0.05, weight_decay: 0.001",
    "name: sgd_momentum, learning_rate: 0.05, nesterov: true",
    "name: adam, learning_rate: 0.001",
    "name: adamw, learning_rate: 0.001, weight_decay: 0.01",
    "name: adam, learning_rate: 0.001, amsgrad: true, maximize: true",
    "name: sgd, learning_rate: 0.05, momentum: 0.9, dampening: 0.1, weight_decay: 0.001",
    "name: adamax, learning_rate: 0.001",
    "name: nadam, learning_rate: 0.001",
    "name: radam, learning_rate: 0.001",
    "name: lion, learning_rate: 0.001",
    "name: rmsprop, learning_rate: 0.001, centered: true, momentum: 0.9",
    "name: adagrad, learning_rate: 0.01, lr_decay: 0.1",
    "name: adadelta, learning_rate: 0.5",
    "name: rprop, learning_rate: 0.01",
    "name: asgd, learning_rate: 0.01",
)
EXTRAS = (
    *("", ", accumulate: 3", ", separate: true", ", clip_norm: 0.1", ", clip_value: 0.05"),
    *(", average: 0.9", ", schedule: {name: cosine, steps: 3}", ", state_dtype: fp16"),
    ', groups: [{parameters: ["*.weight"], learning_rate: 0.002}]',
)


FP8 = ("fp8_e4m3", "fp8_e5m2")


@dataclass(frozen=True)
class Drawn:
    """A model file, its dtype and its machine, all from one seed."""

    seed: int
    text: str
    settings: Settings


def drawn(seed: int) -> Drawn:
    """The model of this seed; not every one has shapes that fit together."""
    draw = random.Random(seed)
    kind = draw.choice(("image", "sequence", "vector"))
    shape = {
        "image": [draw.randint(1, 4), draw.randint(5, 10), draw.randint(5, 10)],
        "sequence": [draw.randint(2, 6), draw.randint(2, 8)],
        "vector": [draw.randint(2, 20)],
    }[kind]
    pool = {"image": IMAGE, "sequence": SEQUENCE, "vector": VECTOR}[kind]
    layers = [_layer(draw, pool if draw.random() < 0.65 else ANY) for _ in range(draw.randint(1, 5))]
    if kind != "vector":
        layers.append("flatten")
    layers.append(_layer(draw, VECTOR[:1]))
    body = "".join(_written(number, layer) for number, layer in enumerate(layers))
    text = (
        f"name: drawn{seed}\ndescription: drawn\nsource: tests\ninput: {{shape: {shape}}}\n"
        f"dataset: random\nloss: {draw.choice(LOSSES)}\n"
        f"optimizer: {{{draw.choice(OPTIMIZERS)}{draw.choice(EXTRAS)}}}\n"
        f"batch: {draw.randint(1, 4)}\nlayers:\n{body}"
    )
    cores = draw.choice((1, 2, 5, 8))
    settings = Settings(
        dtype=draw.choice(("fp32", "fp32", "fp16", "bf16")),
        cores=cores,
        l1=draw.choice(("14KiB" if cores == 8 else "10KiB", "16KiB", "64KiB")),
        buffering=draw.choice(("single", "double", "3")),
        prefetch=draw.choice(("on", "off")),
        placement=draw.choice(("first-fit", "best-fit")),
        seed=seed,
    )
    eight_bits = draw.random() < 0.2
    return Drawn(seed, text, replace(settings, dtype=draw.choice(FP8)) if eight_bits else settings)


def _layer(draw: random.Random, pool: tuple[str, ...]) -> str:
    return draw.choice(pool).format(
        c=draw.randint(1, 6),
        k=draw.choice((1, 3)),
        p=draw.randint(0, 1),
        s=draw.randint(1, 2),
        b=draw.choice(("true", "false")),
        g=draw.choice(("erf", "tanh")),
        r=draw.choice(("ge", "gt", "le", "lt")),
    )


def _written(number: int, text: str) -> str:
    name, before = f"l{number}", f"l{number - 1}" if number else "input"
    *first, last = text.replace("$x", before).replace("$", name).split(" | ")
    layers = [*zip((f"{name}{letter}" for letter in "abcdefg"), first, strict=False), (name, last)]
    return "".join(f"  - {{name: {own}, type: {layer}}}\n" for own, layer in layers)


def tried(model: Drawn, iterations: int = 3) -> tuple[str, str]:
    """(verdict, why): "right", "not decidable", "refused" for what is no network, or "ALARM"."""
    with TemporaryDirectory(prefix="pulptrain-drawn-") as folder:
        path = Path(folder) / "drawn.yaml"
        path.write_text(model.text)
        try:
            outcome = run_prepared(prepare(str(path), model.settings), model.settings, iterations=iterations)
        except (InputError, DoesNotFitError) as error:
            return "refused", str(error).splitlines()[0]
        except PulptrainError as error:
            return "ALARM", str(error).splitlines()[0]
    functional = outcome.summary["functional"]
    if functional["passed"] is None:
        names = [item["name"] for item in functional["tensors"] if item["verdict"] == "not_decidable"]
        return "not decidable", ", ".join(names)
    if functional["passed"]:
        return "right", f"{len(functional['tensors'])} tensors"
    wrong = [item for item in functional["tensors"] if item["verdict"] == "failed"]
    return "ALARM", "; ".join(f"{item['name']}: {item['reason']}" for item in wrong[:3])


def all_of(seeds: range, *, torch: bool) -> list[tuple[str, str, str]]:
    """(seed, verdict, why) of these models; without `torch` as if PyTorch were not installed, from now on."""
    if not torch:
        number_check.torch_available = lambda: False
    return [(str(seed), *tried(drawn(seed))) for seed in seeds]
