# SPDX-License-Identifier: Apache-2.0
"""Multi-head self-attention: x [batch, L, E] -> y [batch, L, E], inner width F, heads of H = F / heads.

q, k, v = W·xᵀ + b (kept as [F, L]), p = softmax of each query's scores s = qᵀk / sqrt(H), map = v·pᵀ,
y = Wo·map + bo. Every product is a step of its own, so that weights, sequences and scores may all be larger
than L1: FW_Q, FW_K, FW_V, FW_SCORES, FW_SOFTMAX, FW_CONTEXT and FW; backward the same way round, IG_* the
gradients of what lies between and IG that of x, WG_* those of the four weights.

Matmul extents are those of PULP-TrainLib: projections (N=F, K=E, M=L), values (H, L, L), output (E, F, L),
and in the backward steps dmap (F, E, L), dv (H, L, L), dp (L, H, L), dk and dq (H, L, L), dW (F, L, E), dWo
(E, L, F), dx 3 x (E, F, L). Its transposes before and after a matmul are kept where the layout needs them.
Weights are stored [F, E], as PyTorch does, and scores one row per query, so those around softmax and of the
weights of FW fall away. Softmax is the exact one; the scale is the exact root, not the library's one Newton
step. On its main branch the library's MHSA does not compile, and it has neither an output bias nor bias
gradients. The bias of k is a constant here: softmax does not feel it, so its gradient is zero and PyTorch's
is rounding noise.

An adapter (LoRA) of rank R on some projections, W + alpha / R · up · down: FW_DOWN_* make
h = alpha / R · down · x [batch, R, L], the step of the frozen weight adds up · h, and IG adds down · dh. down
starts uniform in ±1/sqrt(fan_in) and up at zero, as in `trainlib.training.adapters`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from configs.errors import ShapeError
from configs.model_file import AdapterSpec, LayerSchema
from trainlib.ir.graph import Initial, Tensor
from trainlib.primitives.attention import mhsa_reference as reference
from trainlib.primitives.attention.attention import PROBABILITIES, PROBABILITY_GRADIENT, HeadScores, HeadSum
from trainlib.primitives.attention.attention_projections import (
    ENDS,
    PROJECTIONS,
    InputGradient,
    OutputGradient,
    OutputProjection,
    Projection,
    ProjectionWeightGradient,
)
from trainlib.primitives.definition import (
    ZEROS,
    DrawnInput,
    Example,
    LayerPlan,
    LayerPrimitive,
    Parameter,
    Positive,
    Saved,
    Step,
)
from trainlib.primitives.lowering.boxes import sequence_of


class _Schema(LayerSchema):
    heads: Positive
    """Heads; they share the features evenly."""
    features: Positive | None = None
    """Features of queries, keys and values of all heads together; none: those of the input."""
    bias: bool = False
    """Whether the four projections have a bias."""


def _plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    batch, length, width = sequence_of(inputs[0], "mhsa", where)
    heads = attributes["heads"]
    features = attributes["features"] or width
    if features % heads:
        raise ShapeError(
            f"{features} features cannot be divided among {heads} heads",
            where=where,
            cure=f"use a number of features that is a multiple of {heads}",
        )
    start = Initial("uniform", float((6 / (width + features)) ** 0.5))
    parameters = {f"w{name}": Parameter((features, width), start) for name in "qkv"}
    parameters["wo"] = Parameter((width, features), start)
    frozen = dict(parameters)
    if attributes["bias"]:
        # The same number added to all scores of a query changes no softmax: the gradient of bk is zero.
        parameters |= {f"b{name}": Parameter((features,), ZEROS, name != "k") for name in "qkv"}
        parameters["bo"] = Parameter((width,), ZEROS)
    sequence = Saved((batch, features, length))
    saved = dict.fromkeys(("q", "k", "v", "map", "dmap", "dq", "dk", "dv"), sequence)
    saved |= dict.fromkeys(("s", "p", "dp", "ds"), Saved((batch, heads, length, length)))
    numbers: dict[str, Any] = {
        "batch": batch,
        "length": length,
        "width": width,
        "features": features,
        "heads": heads,
    }
    adapter: AdapterSpec | None = attributes.get("adapter")
    projections: Sequence[str] = ()
    if adapter is not None:
        projections = adapter.projections or tuple(PROJECTIONS)
        numbers |= {"rank": adapter.rank, "adapter": {"rank": adapter.rank, "alpha": adapter.alpha}}
    for name in projections:
        rows, columns = frozen[f"w{name}"].shape
        start = Initial("uniform", columns**-0.5)
        down, up = Parameter((numbers["rank"], columns), start), Parameter((rows, numbers["rank"]), ZEROS)
        parameters |= zip((f"w{name}{end}" for end in ENDS), (down, up), strict=True)
        saved |= dict.fromkeys((f"h{name}", f"dh{name}"), Saved((batch, numbers["rank"], length)))
    without = {f"FW_DOWN_{name.upper()}" for name in set(PROJECTIONS) - set(projections)}
    steps = tuple(step.name for step in _STEPS if step.name not in without)
    return LayerPlan((batch, length, width), parameters, saved, attributes=numbers, steps=steps)


def _low_rank_steps() -> dict[str, list[Step]]:
    """Those of the adapters by the step they precede."""
    before: dict[str, list[Step]] = {}
    for name, (rows, columns) in PROJECTIONS.items():
        x, dy = ("map", "dy") if name == "o" else ("x", f"d{name}")
        forward, backward = ("FW", "IG_CONTEXT") if name == "o" else (f"FW_{name.upper()}", "IG")
        h, (down, up) = f"h{name}", (f"w{name}{end}" for end in ENDS)
        steps = {
            "FW_DOWN": (f"{x} {down} -> {h}", reference.inner, Projection("rank", x)),
            "WG_UP": (f"{dy} {h} -> d{up}", reference.product, ProjectionWeightGradient(rows, "rank")),
            "IG_DOWN": (f"{dy} {up} -> d{h}", reference.inner, OutputGradient("rank", dy)),
            "WG_DOWN": (f"d{h} {x} -> d{down}", reference.product, ProjectionWeightGradient("rank", columns)),
        }
        for step, how in steps.items():
            where = forward if step == "FW_DOWN" else backward
            before.setdefault(where, []).append(Step.of(f"{step}_{name.upper()}", *how))
    return before


_FROZEN = (
    Step.of("FW_Q", "x wq bq? wq_up? hq? -> q", reference.projected, Projection()),
    Step.of("FW_K", "x wk bk? wk_up? hk? -> k", reference.projected, Projection()),
    Step.of("FW_V", "x wv bv? wv_up? hv? -> v", reference.projected, Projection()),
    Step.of("FW_SCORES", "q k -> s", reference.scores, HeadScores("q", "k", "s", scaled=True)),
    Step.of("FW_SOFTMAX", "s -> p", reference.probabilities, PROBABILITIES),
    Step.of("FW_CONTEXT", "v p -> map", reference.context, HeadSum("v", "p", "map", "keys")),
    Step.of("FW", "map wo bo? wo_up? ho? -> y", reference.projected, OutputProjection()),
    Step.of("WG_O", "dy map -> dwo dbo?", reference.product, ProjectionWeightGradient("width", "features")),
    Step.of("IG_CONTEXT", "dy wo wo_down? dho? -> dmap", reference.projected, OutputGradient(source="dy")),
    Step.of("IG_V", "dmap p -> dv", reference.values_gradient, HeadSum("dmap", "p", "dv", "queries")),
    Step.of(
        "IG_SOFTMAX",
        "dmap v -> dp",
        reference.probabilities_gradient,
        HeadScores("dmap", "v", "dp", scaled=False),
    ),
    Step.of("IG_SCORES", "p dp -> ds", reference.scores_gradient, PROBABILITY_GRADIENT),
    Step.of("IG_Q", "k ds -> dq", reference.queries_gradient, HeadSum("k", "ds", "dq", "keys")),
    Step.of("IG_K", "q ds -> dk", reference.keys_gradient, HeadSum("q", "ds", "dk", "queries")),
    Step.of("WG_Q", "dq x -> dwq dbq?", reference.product, ProjectionWeightGradient()),
    Step.of("WG_K", "dk x -> dwk", reference.product, ProjectionWeightGradient()),
    Step.of("WG_V", "dv x -> dwv dbv?", reference.product, ProjectionWeightGradient()),
    Step.of(
        "IG",
        "dq dk dv wq wk wv wq_down? dhq? wk_down? dhk? wv_down? dhv? -> dx",
        reference.input_gradient,
        InputGradient(),
    ),
)
_LOW_RANK = _low_rank_steps()
_STEPS = tuple(step for known in _FROZEN for step in (*_LOW_RANK.get(known.name, ()), known))

PRIMITIVE = LayerPrimitive(
    name="mhsa",
    schema=_Schema,
    plan=_plan,
    steps=_STEPS,
    examples=(
        Example({"heads": 2, "bias": True}, ((5, 6),), roundings=12),
        Example({"heads": 3, "features": 9}, ((4, 5),), roundings=12),
        Example({"heads": 1, "features": 1, "bias": True}, ((1, 2),), roundings=12),
        Example(
            {"heads": 2, "features": 4, "bias": True, "adapter": {"rank": 3, "alpha": 2}},
            (DrawnInput((5, 6), low=-0.3, high=0.3),),  # a 16-bit softmax of large scores has few digits
            roundings=12,
        ),
        Example({"heads": 2, "adapter": {"rank": 1, "projections": ["q", "o"]}}, ((4, 6),), roundings=12),
    ),
    layouts=None,
)
