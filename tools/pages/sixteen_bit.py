# SPDX-License-Identifier: Apache-2.0
"""docs/sixteen-bit.md: what training in 16 bit gains over fp32, and which kernels the figures are made of."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from configs.grades import MEASURED
from pulptrain.inputs.settings import Settings
from pulptrain.running.session import run_model
from tools.pages.page import Page, accuracy, golden, table
from trainlib.kernels.evidence import nest_evidence
from trainlib.kernels.library import LIBRARY

CODEGEN = "clang-xpulp"
MODELS = ("digits-cnn", "resnet8")
PUBLISHED_RATIO = 1.72
"""Largest gain of a Conv2D training step, FP16 over FP32 (arXiv 2305.19167, abstract)."""

BLOCKED = {"fp32": "mm_unroll_2x4", "fp16": "mm_fp16_SIMD_4x8"}
"""The matmuls of blocks of two by four outputs: plain loops in fp32, packed in 16 bit."""

COPIES = ("im2row", "im2col", "blocktransp", "transpose", "copy", "conv_unroll")


@dataclass(frozen=True, slots=True)
class Found:
    """One training iteration: cycles, those of convolutions, MACs, and cycles of core 0 by what it did."""

    cycles: int
    conv_cycles: int
    macs: int
    groups: Mapping[str, int]


@cache
def simulate(model: str, dtype: str, blocked: bool) -> Found:
    """An iteration with the default matmuls, or with `BLOCKED` ones in all convolutions."""
    kernels: tuple[str, ...] = ()
    if blocked:
        usual = run_model(model, Settings(dtype=dtype), functional=False)
        convolutions = [op["name"] for op in usual.summary["ops"] if op["primitive"] == "conv2d"]
        kernels = tuple(f"{name}={BLOCKED[dtype]}" for name in convolutions)
    outcome = run_model(model, Settings(dtype=dtype, kernels=kernels), functional=False)
    groups: dict[str, int] = defaultdict(int)
    for item in outcome.slices:
        if item.track.endswith(".core0"):
            waits = item.kind in ("dma_wait", "dma_program")
            groups["waits for the DMA" if waits else _group(item.work.what)] += item.duration_cycles
    conv = sum(op["cycles"] for op in outcome.summary["ops"] if op["primitive"] == "conv2d")
    summary = outcome.summary
    return Found(summary["cycles"], conv, summary["macs"], dict(groups))


def _group(kernel: str) -> str:
    if kernel.startswith("mm"):
        return "matmuls"
    return "im2col, transposes and copies" if kernel.startswith(COPIES) else "all other"


def gains() -> str:
    """Cycles of an iteration in fp32 and fp16."""
    rows = []
    for model in MODELS:
        for blocked in (False, True):
            wide, narrow = (simulate(model, dtype, blocked) for dtype in ("fp32", "fp16"))
            rows.append(
                (
                    model,
                    " against ".join(BLOCKED.values()) if blocked else "defaults",
                    f"{wide.cycles:,}",
                    f"{narrow.cycles:,}",
                    f"{wide.cycles / narrow.cycles:.2f}",
                    f"{wide.conv_cycles / narrow.conv_cycles:.2f}",
                    f"{wide.macs / wide.cycles:.2f}",
                    f"{narrow.macs / narrow.cycles:.2f}",
                )
            )
    titles = ("model", "matmuls", "fp32", "fp16", "gain", "gain of convolutions", "MAC/cycle fp32", "fp16")
    return table(titles, rows, numbers=True)


def parts() -> str:
    """Where the cycles of core 0 are, of an iteration of resnet8 with blocked matmuls."""
    wide, narrow = (simulate("resnet8", dtype, True).groups for dtype in ("fp32", "fp16"))
    rows = [
        (name, f"{wide[name]:,}", f"{narrow[name]:,}", f"{wide[name] / narrow[name]:.2f}")
        for name in sorted(wide, key=lambda name: -wide[name])
    ]
    return table(("core 0", "fp32", "fp16", "gain"), rows, numbers=True)


def kernels() -> str:
    """The 16-bit kernels that have a file, by codegen; all others are described."""
    rows = []
    for codegen in LIBRARY.codegen_names():
        headers = [LIBRARY.header(codegen, name) for name in LIBRARY.kernel_names(codegen)]
        own = [header.name for header in headers if header.element_bytes == 2]
        measured = sum(nest_evidence(codegen, name).label == MEASURED for name in own)
        rows.append((f"`{codegen}`", ", ".join(f"`{name}`" for name in own) or "none", measured))
    return table(("codegen", "16-bit kernels with a file", "compared with a measurement"), rows)


PAGE = Page(
    "docs/sixteen-bit.md",
    {"gains": gains, "parts": parts, "kernels": kernels},
    dict.fromkeys(("gains", "parts"), lambda: (golden(*MODELS), accuracy("rtl mm"), BLOCKED)),
)
