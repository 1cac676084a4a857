# SPDX-License-Identifier: Apache-2.0
"""`python -m tools.deployed.breaks`: exports broken by hand, an edit each, and what `make check` says.

Ends with 1 if a check passes that should fail, or fails where nothing changes a number. `--orders` tries
instead every statement of every op function in front of all before it in its block; where all seeds pass, so
must the thread sanitizer.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from arch.spec.soc_config import READABLE
from tools.pages.page import table

MLP = """
name: mlp
input: {shape: [48]}
loss: mse
optimizer: {name: sgd, learning_rate: 0.0001, momentum: 0.9}
batch: 2
layers:
  - {name: fc1, type: linear, out_features: 120, bias: false}
  - {name: act, type: relu}
  - {name: fc2, type: linear, out_features: 12, bias: false}
"""

CNN = """
name: cnn
input: {shape: [1, 8, 8]}
loss: cross_entropy
optimizer: {name: adam, learning_rate: 0.0001}
batch: 2
layers:
  - {name: conv, type: conv2d, out_channels: 4, kernel: 3, padding: 1}
  - {name: norm, type: batch_norm}
  - {name: act, type: relu}
  - {name: pool, type: max_pool2d, kernel: 2}
  - {name: flat, type: flatten}
  - {name: fc, type: linear, out_features: 5}
"""

EXPORTS: dict[str, tuple[str, dict[str, Any]]] = {
    "mlp": (MLP, {"l1": 16 << 10, "buffering": "double", "icache": "warm"}),
    "mlp-l3": (
        MLP,
        {"l1": 16 << 10, "l2": 48 << 10, "l3": 1 << 20, "buffering": "double", "icache": "warm"},
    ),
    "cnn": (CNN, {"l1": 16 << 10, "buffering": "single"}),
    "cnn-l1": (CNN, {"buffering": "single", "resident": "fc.weight.t"}),
    "mlp-tables": (MLP, {"l1": 16 << 10, "buffering": "double", "icache": "warm", "form": "tables"}),
    "cnn-tables": (
        CNN,
        {"l1": 12 << 10, "buffering": "single", "form": "tables", "lr_schedule": "cosine steps=10"},
    ),
    "mlp-bf16": (MLP.replace("0.0001", "0.1"), {"l1": 16 << 10, "buffering": "double", "dtype": "bf16"}),
    "cnn-fp16": (CNN, {"l1": 16 << 10, "buffering": "single", "form": "tables", "dtype": "fp16"}),
}
"""What is broken: a model and how it is planned. Tiles from L2 with two slots or one, from L3, a state in L1;
ops as tables; arrays of 16 bit.

Warm: with its code in sight the planner leaves out double buffers that are broken here.
"""

Edit = Callable[[str], str]
"""The statements of a function, or a whole file, before and after."""


@dataclass(frozen=True, slots=True)
class Break:
    """One edit of an export; `function` of network.c, or None for all of `file`."""

    export: str
    kind: str
    what: str
    function: str | None
    edit: Edit
    file: str = "network.c"
    harmless: str = ""
    """Why no number changes, of those that cannot be seen."""

    def __str__(self) -> str:
        return f"{self.export}: {self.kind}: {self.what}"

    def applied(self, text: str) -> str:
        """The file after the edit. Raises ValueError if the edit changes nothing."""
        first, last = 0, len(text)
        if self.function is not None:
            first = text.index(f"\nvoid {self.function}(void) {{") + 1
            last = text.index("\n}\n", first)
        changed = text[:first] + self.edit(text[first:last]) + text[last:]
        if changed == text:
            raise ValueError(f"{self} changes nothing")
        return changed


def statements(body: str) -> list[str]:
    """The statements of a function, one or several lines each, with its first line and those of loops."""
    result, open_lines = [], []
    for line in body.split("\n"):
        open_lines.append(line)
        code = re.sub(r"/\*.*?\*/", "", line).rstrip()
        if code.endswith((";", "{", "}")) and not code.endswith("){"):
            result.append("\n".join(open_lines))
            open_lines = []
    return [*result, *(["\n".join(open_lines)] if open_lines else [])]


def _found(body: str, pattern: str, number: int) -> tuple[list[str], int]:
    lines = statements(body)
    places = [place for place, line in enumerate(lines) if re.search(pattern, line)]
    if not places:
        raise ValueError(f"no statement {pattern!r}")
    return lines, places[number]


def drop(pattern: str, number: int = 0) -> Edit:
    """Without the statement that has the pattern in it, the `number`-th of them."""

    def edit(body: str) -> str:
        lines, place = _found(body, pattern, number)
        return "\n".join(lines[:place] + lines[place + 1 :])

    return edit


def twice(pattern: str, number: int = 0) -> Edit:
    """The statement once more behind itself."""

    def edit(body: str) -> str:
        lines, place = _found(body, pattern, number)
        return "\n".join([*lines[: place + 1], lines[place], *lines[place + 1 :]])

    return edit


def move(pattern: str, before: str, number: int = 0, anchor: int = 0, *, after: bool = False) -> Edit:
    """The statement in front of, or `after`, another one."""

    def edit(body: str) -> str:
        lines, place = _found(body, pattern, number)
        statement = lines.pop(place)
        _, other = _found("\n".join(lines), before, anchor)
        lines.insert(other + after, statement)
        return "\n".join(lines)

    return edit


def put(pattern: str, replacement: str, number: int = 0) -> Edit:
    """The `number`-th match of a pattern replaced."""

    def edit(body: str) -> str:
        found = list(re.finditer(pattern, body))
        if not found:
            raise ValueError(f"no {pattern!r}")
        match = found[number]
        return body[: match.start()] + match.expand(replacement) + body[match.end() :]

    return edit


def everywhere(pattern: str, replacement: str) -> Edit:
    """All matches replaced."""
    return lambda text: re.sub(pattern, replacement, text)


def number(pattern: str, change: int, which: int = 0) -> Edit:
    """The whole number in the group of a pattern, and so much."""

    def edit(body: str) -> str:
        match = list(re.finditer(pattern, body))[which]
        first, last = match.span(1)
        return body[:first] + str(int(match[1]) + change) + body[last:]

    return edit


def in_table(op: str, edit: Edit) -> Edit:
    """An edit of the records of an op."""

    def whole(text: str) -> str:
        first = text.index(f"    /* {op}: ")
        last = text.index("\n    0,\n", first)
        return text[:first] + edit(text[first:last]) + text[last:]

    return whole


def wait(tensor: str, level: str = "dma") -> str:
    """The pattern of a wait for a tensor."""
    return rf"pt_{level}_wait\(.*/\* {re.escape(tensor)} \*/"


def load(tensor: str) -> str:
    """The pattern of a load of a tensor."""
    return rf"pt_dma_in(_2d)?\(.*/\* {re.escape(tensor)} \*/"


def store(tensor: str) -> str:
    """The pattern of a store of a tensor."""
    return rf"pt_dma_out(_2d)?\(.*/\* {re.escape(tensor)} \*/"


FORK = r"pt_(fork|alone)\("

RATE = r"(\.learning_rate = )[^,}]+"

BREAKS = (
    # waits that are not there, or for something else
    Break("mlp", "wait", "input", "fc1_FW", drop(wait("input"))),
    Break("mlp", "wait", "a weight in the loop", "fc1_FW", drop(wait("fc1.weight"))),
    Break("mlp", "wait", "a store whose slot is written again", "fc1_FW", drop(wait("fc1.out"))),
    Break("mlp", "wait", "the last store of an op", "act_FW", drop(wait("act.out"))),
    Break("mlp", "wait", "what an op before has loaded", "loss_LOSS", drop(wait("label"))),
    Break("mlp", "wait", "a gradient's slot", "fc2_WG", drop(wait("fc2.weight.grad"))),
    Break("mlp", "wait", "a gradient in the loop of the update", "fc1_UPD", drop(wait("fc1.weight.grad"))),
    Break("mlp", "wait", "a momentum's slot", "fc1_UPD", drop(wait("fc1.weight.velocity_updated"))),
    Break("mlp", "wait", "another transfer", "act_FW", put(r"pt_dma_wait\(0\)", "pt_dma_wait(7)")),
    Break("cnn", "wait", "a weight", "conv_FW", drop(wait("conv.weight"))),
    Break("cnn", "wait", "a running variance", "norm_FW_INV", drop(wait("norm.running_var"))),
    Break("cnn", "wait", "an Adam's second moment", "fc_UPD", drop(wait("fc.weight.v"))),
    Break("cnn", "wait", "a store of 16 bytes", "norm_FW_INV", drop(wait("norm.running_mean_updated"))),
    Break("mlp-l3", "wait", "a weight from L3", "fc2_FW", drop(wait("fc2.weight", "l3"))),
    Break("mlp-l3", "wait", "a gradient from L3", "fc1_UPD", drop(wait("fc1.weight.grad", "l3"))),
    # orders
    Break("mlp", "order", "store, kernel", "act_FW", move(store("act.out"), FORK)),
    Break("mlp", "order", "kernel, load", "act_FW", move(FORK, load("fc1.out"))),
    Break("mlp", "order", "kernel, wait of the load", "act_FW", move(FORK, wait("fc1.out"))),
    Break("mlp", "order", "wait, load", "act_FW", move(wait("fc1.out"), load("fc1.out"))),
    Break("mlp", "order", "store, kernel in a loop", "fc1_FW", move(store("fc1.out"), FORK)),
    Break("mlp", "order", "store, kernel of the last tile", "fc1_FW", move(store("fc1.out"), FORK, -1, -1)),
    Break("mlp", "order", "sum, product", "fc2_WG", move("vect_sum", r"fork\(mm,", -1, -1)),
    Break("mlp", "order", "store of a weight, update", "fc2_UPD", move(store("fc2.weight_updated"), FORK)),
    Break(
        "mlp",
        "order",
        "store of a momentum, update",
        "fc1_UPD",
        move(store("fc1.weight.velocity_updated"), FORK, -1, -1),
    ),
    Break(
        "mlp",
        "order",
        "load of the next tile, wait of this one's slot",
        "fc1_FW",
        move(load("fc1.weight"), wait("fc1.weight"), 1, 0),
    ),
    Break("cnn", "order", "store, mean", "norm_FW_MEAN", move(store("norm.mean"), FORK)),
    Break("cnn", "order", "load of the next sample, kernel", "fc_WG", move(load("flat.out"), FORK)),
    Break("cnn", "order", "store of positions, pooling", "pool_FW", move(store("pool.argmax"), FORK, 0, -1)),
    Break(
        "cnn",
        "order",
        "rows of the second sample, product of the first",
        "conv_FW",
        move("im2row", r"fork\(mm", 1, 0),
    ),
    Break(
        "cnn",
        "order",
        "load, store it reads",
        None,
        move(load("norm.mean_g"), store("norm.mean_g")),
    ),
    Break(
        "mlp-l3",
        "order",
        "store to L3, its last tile",
        "fc2_WG",
        move("pt_l3_out", wait("fc2.weight.grad"), 0, -1),
    ),
    Break("mlp-l3", "order", "load, wait of L3", "fc2_FW", move(load("fc2.weight"), "pt_l3_wait")),
    Break(
        "mlp",
        "order",
        "load in the op before, store it reads",
        None,
        lambda text: put(
            r"L2\(fc1_out\), \d+\); /\* act.out \*/\n\s*pt_dma_in", "L2(fc1_out), 4); pt_dma_in"
        )(
            put(
                r"(pt_fork\(relu_fw,)", r"pt_dma_in(5, L1(fc2_FW_x_in), L2(fc1_out), 960); pt_dma_wait(5); \1"
            )(text)
        ),
    ),
    Break("mlp", "order", "to L1, to L2", "act_FW", put(r"pt_dma_in\((.*fc1_out)", r"pt_dma_out(\1")),
    # strides
    Break("mlp", "stride", "a 2D store's in L2", "fc1_FW", number(r"out_2d\(.*, (\d+), \d+\)", 4)),
    Break("mlp", "stride", "a 2D load's in L2", "fc2_IG", number(r"in_2d\(.*, (\d+), \d+\)", -4)),
    Break("mlp", "stride", "a 2D load's line", "fc2_IG", everywhere(r"(in_2d\(.*), 160\)", r"\1, 80)")),
    Break("mlp", "stride", "A of a product", "fc1_FW", put(r"\.A_s = \{48, 1\}", ".A_s = {47, 1}")),
    Break("mlp", "stride", "B of a product", "fc1_FW", put(r"\.B_s = \{1, 48\}", ".B_s = {48, 1}")),
    Break("cnn", "stride", "C of a product", "conv_WG", put(r"\.C_s = \{9, 1\}", ".C_s = {8, 1}")),
    Break("cnn", "stride", "an image's", "conv_FW", put(r"\.X_s = \{64, 8, 1\}", ".X_s = {64, 7, 1}")),
    Break("cnn", "bound", "rows of a norm", "norm_FW_APPLY", number(r"\.rows = (\d+)", -1)),
    # slots and addresses
    Break(
        "mlp",
        "slot",
        "the next tile into this one's",
        "fc1_FW",
        put(r"(fc1_FW_w_in) \+ (\d+) - \2 \* t", r"\1 + \2 * t"),
    ),
    Break(
        "mlp",
        "slot",
        "the kernel reads the other one",
        "fc1_UPD",
        put(r"fc1_UPD_dw_in_1 : fc1_UPD_dw_in_0", "fc1_UPD_dw_in_0 : fc1_UPD_dw_in_1"),
    ),
    Break(
        "mlp",
        "slot",
        "results of two tiles in one",
        "fc2_IG",
        put(r"t % 2 \? fc2_IG_dx_out_1 : fc2_IG_dx_out_0", "fc2_IG_dx_out_0"),
    ),
    Break("mlp", "address", "a load a word further", "fc2_FW", put(r"L2\(fc1_out\)", "L2(fc1_out + 4)")),
    Break("mlp", "address", "a store a word further", "fc1_FW", number(r"L2\(fc1_out \+ (\d+)\)", 4)),
    Break("mlp", "address", "an entry of a table", None, put(r"(fc1_WG_1\[\] = \{\d+, \d+, )\d+", r"\g<1>0")),
    Break(
        "mlp",
        "address",
        "the update to the gradient",
        "fc2_UPD",
        put(r"out\((.*)L2\(fc2_weight \+", r"out(\1L2(fc2_weight_grad +"),
    ),
    Break("mlp", "address", "another buffer", "act_IG", put(r"L2\(act_out_grad\)", "L2(fc1_out)")),
    Break(
        "mlp",
        "address",
        "a buffer in network.h over another",
        None,
        everywhere(r"fc2_FW_w_in = \d+", "fc2_FW_w_in = 8"),
        "network.h",
    ),
    Break("cnn", "address", "the second sample", "conv_FW", put(r"x_in \+ \d+", "x_in")),
    Break(
        "cnn",
        "address",
        "weights that begin elsewhere",
        None,
        number(r'"fc\.weight", \{IN_L2, (\d+)', 4),
        "data.c",
    ),
    Break("mlp-l3", "address", "in L3", "fc2_FW", put(r"L2\(fc2_weight_2\)", "L2(fc2_weight_2 + 4)")),
    # kernels that are called otherwise
    Break("mlp", "fork", "left out", "fc2_WG", drop("vect_sum", -1)),
    Break("mlp", "fork", "twice", "fc2_WG", twice("vect_sum", -1)),
    Break("mlp", "fork", "another kernel", "act_FW", put(r"pt_fork\(relu_fw,", "pt_fork(sgd_momentum,")),
    Break("mlp", "fork", "accumulate", "fc2_FW", put(r"\.accumulate = 0", ".accumulate = 1")),
    Break(
        "mlp",
        "fork",
        "B turned",
        "fc2_FW",
        put(r"\.trans_b = 1", ".trans_b = 0"),
    ),
    Break(
        "mlp",
        "fork",
        "by one core",
        "act_FW",
        put(r"pt_fork", "pt_alone"),
        harmless="one core computes what eight do; it only takes longer",
    ),
    Break(
        "mlp",
        "fork",
        "another matmul kernel",
        "fc1_FW",
        put(r"pt_fork\(mm_M,", "pt_fork(mm,"),
        harmless="both kernels are the same product in the same order; one cuts rows, one columns",
    ),
    # bounds
    Break("mlp", "bound", "N", "fc2_FW", number(r"\.N = (\d+)", -1)),
    Break("mlp", "bound", "K", "fc2_FW", number(r"\.K = (\d+)", -1)),
    Break("mlp", "bound", "M", "fc2_FW", number(r"\.M = (\d+)", -1)),
    Break("mlp", "bound", "elements", "act_FW", number(r"\.elements = (\d+)", -1)),
    Break("mlp", "bound", "a tile too few", "fc1_FW", number(r"t < (\d+)", -1, 1)),
    Break("mlp", "bound", "elements of a loss", "loss_LOSS", number(r"\.elements = (\d+)", -1)),
    Break("cnn", "bound", "segments of a mean", "norm_FW_MEAN", number(r"\.segments = (\d+)", -1)),
    Break("cnn", "bound", "how many share a mean", "norm_FW_MEAN", number(r"\.count = (\d+)", 1)),
    Break("cnn", "bound", "a border", "conv_FW", put(r"\.row_first = -1", ".row_first = 0")),
    Break("cnn", "bound", "the last tile's step count", "fc_UPD", put(r"\.last = 1", ".last = 0")),
    Break(
        "cnn",
        "bound",
        "a step count too early",
        "fc_UPD",
        put(r"\.last = 0", ".last = 1"),
    ),
    Break(
        "mlp", "bound", "a core's part", None, put(r"start \+ block", "start + block - 1"), "kernels/kernel.h"
    ),
    Break(
        "mlp",
        "bound",
        "a core's part too long",
        None,
        put(r"start \+ block", "start + block + 1"),
        "kernels/kernel.h",
    ),
    # bytes
    Break("mlp", "bytes", "a word too few of a load", "fc1_FW", number(r"L2\(input\), (\d+)", -4)),
    Break("mlp", "bytes", "a word too few of a store", "act_FW", number(r"out\(.*L2\(fc1_out\), (\d+)", -4)),
    Break("mlp", "bytes", "a word too many of a load", "fc2_FW", number(r"L2\(fc1_out\), (\d+)", 4)),
    Break(
        "mlp",
        "bytes",
        "a word too many of a weight",
        "fc2_UPD",
        number(r"out\(.*L2\(fc2_weight \+ \d+\), (\d+)", 4),
    ),
    Break(
        "mlp",
        "bytes",
        "a word too many of a store",
        "fc2_FW",
        number(r"L2\(fc2_out\), (\d+)", 4),
        harmless="the word behind it is the loss, which comes later",
    ),
    Break("mlp", "bytes", "a line too few", "fc2_IG", number(r"in_2d\(.*, (\d+), \d+, 160\)", -160)),
    Break("mlp-l3", "bytes", "a word too few from L3", "act_FW", number(r"fc2_weight, (\d+)", -4)),
    Break("cnn", "bytes", "a word too few of a state", "conv_UPD", number(r"L2\(conv_weight_v\), (\d+)", -4)),
    Break(
        "mlp", "bytes", "a bit of a weight", None, lambda text: chr(ord(text[0]) ^ 64) + text[1:], "data.bin"
    ),
    # rates and other constants
    Break("mlp", "rate", "all learning rates 0", None, everywhere(RATE, r"\g<1>0.0f")),
    Break("mlp", "rate", "one tile's learning rate 0", "fc1_UPD", put(RATE, r"\g<1>0.0f", -1)),
    Break("mlp", "rate", "a learning rate 1 % too large", "fc1_UPD", put(RATE, r"\g<1>0.000101f")),
    Break("mlp", "rate", "a learning rate of another sign", "fc2_UPD", put(RATE, r"\g<1>-0.0001f")),
    Break("mlp", "rate", "momentum 0", "fc2_UPD", everywhere(r"(\.momentum = )[^,]+", r"\g<1>0.0f")),
    Break("mlp", "rate", "the scale of the loss", "loss_LOSS", put(r"(\.scale = )[^,}]+", r"\g<1>0.0417f")),
    Break("cnn", "rate", "all learning rates 0", None, everywhere(RATE, r"\g<1>0.0f")),
    Break("cnn", "rate", "beta1", "conv_UPD", put(r"(\.beta1 = )[^,]+", r"\g<1>0.8f")),
    Break("cnn", "rate", "1 - beta2", "norm_UPD", put(r"(\.one_minus_beta2 = )[^,]+", r"\g<1>0.002f")),
    Break("cnn", "rate", "log beta2", "fc_UPD", put(r"(\.log_beta2 = )[^,]+", r"\g<1>-0.002f")),
    Break("cnn", "rate", "weight decay", "fc_UPD", put(r"(\.weight_decay = )[^,]+", r"\g<1>0.01f")),
    Break("cnn", "rate", "an Adam's epsilon", "conv_UPD", put(r"(\.eps = )[^,]+", r"\g<1>1e-4f")),
    Break("cnn", "rate", "a norm's epsilon", "norm_FW_INV", put(r"(\.eps = )[^,]+", r"\g<1>1e-4f")),
    Break(
        "cnn", "rate", "a running mean's momentum", "norm_FW_INV", put(r"(\.momentum = )[^}]+", r"\g<1>0.0f")
    ),
    # kernels
    Break("mlp", "kernel", "a threshold", None, put(r"> 0\.0f", "> 0.05f"), "kernels/relu_bw_from_y.c"),
    Break(
        "mlp",
        "kernel",
        "zero counts as positive",
        None,
        put(r"> 0\.0f", ">= 0.0f"),
        "kernels/relu_fw.c",
        harmless="of 0 the one branch makes 0, and so does the other",
    ),
    # cores
    Break(
        "cnn-l1",
        "cores",
        "a step count before others read it",
        None,
        drop(r"pt_barrier\(\)"),
        "kernels/adam.c",
    ),
    Break(
        "mlp",
        "cores",
        "all store the same",
        None,
        put(r"pt_own\(arg->elements\)", "(struct pt_range){0, arg->elements}"),
        "kernels/relu_fw.c",
    ),
    Break(
        "mlp",
        "cores",
        "all add an eighth to one word",
        None,
        lambda text: put(r"PT_LOAD\(g->G, i\)", r"\g<0> / 8")(
            put(r"pt_own\(g->elements\)", "(struct pt_range){0, g->elements}")(text)
        ),
        "kernels/vectors.c",
    ),
    Break("mlp", "fork", "an update left out", "fc2_UPD", drop(FORK)),
    Break("cnn", "fork", "an update of the last tile left out", "fc_UPD", drop(FORK, -1)),
    # tables, and what walks them
    *(
        Break("mlp-tables", kind, what, None, in_table(op, edit))
        for kind, what, op, edit in (
            ("wait", "a weight", "fc1.FW", put(r" \| 2 \* DETAIL << 4, /\* input", ", /* input")),
            ("wait", "a load", "act.FW", put(r"WAITS \| 1 \*(.*fc1\.out)", r"WAITS | 9 *\1")),
            (
                "wait",
                "the last store of an op",
                "act.FW",
                put(r"WAITS \| 2 \*(.*act\.out)", r"WAITS | 9 *\1"),
            ),
            ("wait", "a slot that is written again", "fc1.FW", put(r"WAITS \| 3 \* DETAIL \|", "WAITS |")),
            ("order", "store, kernel", "act.FW", put(r"(?s)( +CALLS.*?0x3,\n)( +STORES[^\n]*\n)", r"\2\1")),
            ("order", "kernel, wait of the load", "act.FW", put(r"(?s)( +WAITS[^\n]*\n)(.*0x3,\n)", r"\2\1")),
            ("fork", "another kernel", "act.FW", put(r"DETAIL, \d+, /\* relu_fw", "DETAIL, 2, /* relu_fw")),
            ("fork", "accumulate", "fc1.FW", put(r"1, 0, 0x7", "1, 1, 0x7")),
            ("fork", "a word that is no address", "act.FW", put("0x3,", "0x1,")),
            ("argument", "N", "fc1.FW", put(r" 2, 48, 8, 1, 0, 0x7", " 1, 48, 8, 1, 0, 0x7")),
            ("argument", "K", "fc1.FW", put(r" 2, 48, 8, 1, 0, 0x7", " 2, 47, 8, 1, 0, 0x7")),
            ("argument", "elements", "act.FW", put(r" 240, 0x3", " 239, 0x3")),
            (
                "argument",
                "another buffer",
                "act.FW",
                put(r"act_FW_x_in, act_FW_y_out, 240", "act_FW_y_out, act_FW_y_out, 240"),
            ),
            (
                "bytes",
                "a word too few of a load",
                "act.FW",
                put(r"fc1_out, 960, /\* fc1", "fc1_out, 956, /* fc1"),
            ),
            (
                "bytes",
                "a word too few of a store",
                "act.FW",
                put(r"fc1_out, 960, /\* act", "fc1_out, 956, /* act"),
            ),
            ("bytes", "a line too few", "fc1.FW", put(r"fc1_out, 64, 480", "fc1_out, 32, 480")),
            ("bytes", "a word too few of a table", "fc1.FW", number(r"FETCH, \w+, 1, (\d+)", -4)),
            (
                "address",
                "a store a word further",
                "act.FW",
                put(r"fc1_out, 960, /\* act", "fc1_out + 4, 960, /* act"),
            ),
            ("address", "another table", "fc1.FW", put(r"FETCH, (\w+), 1", r"FETCH, \1, 2")),
            ("address", "a table a word further", "fc1.FW", put(r"FETCH, (\w+),", r"FETCH, \1 + 4,")),
            ("stride", "in L2", "fc1.FW", put("64, 480, 32", "64, 476, 32")),
            ("stride", "a line", "fc1.FW", put("64, 480, 32", "64, 480, 16")),
            ("stride", "the other way", "act.FW", put(r"LINES \| INTO", "LINES")),
            ("loop", "a turn too few", "fc1.FW", put(r", 6, 6, 0, 71", ", 5, 5, 0, 71")),
            ("loop", "a step", "fc1.FW", put(r"71, 3072", "71, 1536")),
            ("loop", "another word", "fc1.FW", put(r", 71, 3072", ", 70, 3072")),
            ("loop", "a word fewer", "fc1.FW", put(r", 92, 64,", ", 92, 0,")),
        )
    ),
    *(
        Break(name, kind, what, None, edit, file)
        for name, kind, what, edit, file in (
            (
                "mlp-tables",
                "walk",
                "no wait for a table",
                drop("at & NETWORK_FETCHED.*pt_dma_wait"),
                "tables.c",
            ),
            (
                "mlp-tables",
                "walk",
                "one wait of several",
                put(r"while \(detail >>= 4\)", "while (0)"),
                "tables.c",
            ),
            (
                "mlp-tables",
                "walk",
                "waits for the next identifier",
                put(r"\(detail & 15\) - 1", "(detail & 15)"),
                "tables.c",
            ),
            (
                "mlp-tables",
                "walk",
                "a load of a word fewer",
                put(r"record\[3 - MOVE\]", r"\g<0> - 4"),
                "tables.c",
            ),
            (
                "mlp-tables",
                "walk",
                "a store of a word fewer",
                put(r"record\[3 - MOVE\]", r"\g<0> - 4", 1),
                "tables.c",
            ),
            (
                "mlp-tables",
                "walk",
                "lines of a stride of their own",
                put(r"record\[4\], record\[5\]\)", "record[5], record[5])"),
                "tables.c",
            ),
            (
                "mlp-tables",
                "walk",
                "a loop once more",
                put(r"if \(--record\[2\]\)", "if (record[2]--)"),
                "tables.c",
            ),
            ("cnn-tables", "walk", "no rate", drop("memcpy.*network_varying"), "tables.c"),
            (
                "cnn-tables",
                "walk",
                "runs that do not end",
                put(r"if \(--pair\[2\]\) continue;", "continue;"),
                "tables.c",
            ),
            (
                "mlp-tables",
                "cores",
                "one core that stays away",
                put(
                    r"job\(job_arguments\);\n        ended",
                    "if (my_core < 7) job(job_arguments);\n        ended",
                ),
                "platform/host.c",
            ),
            (
                "mlp-bf16",
                "rounding",
                "cut off",
                put(r"bits \+ 0x7FFFu \+ \(bits >> 16 & 1\)", "bits"),
                "kernels/narrow.h",
            ),
            (
                "cnn-fp16",
                "rounding",
                "cut off",
                put(r"size \+ 0xFFFu \+ \(size >> 13 & 1\)", "size"),
                "kernels/narrow.h",
            ),
            (
                "cnn-fp16",
                "rounding",
                "no subnormal numbers",
                put(r"pt_bits\(pt_float_of_bits\(size\) \+ 0\.5f\) - 0x3F000000u", "0u"),
                "kernels/narrow.h",
            ),
            (
                "mlp-bf16",
                "width",
                "a sum in bf16",
                put(r"= (fmaf\(.*\));", r"= pt_from_bf16(pt_to_bf16(\1));"),
                "kernels/matmul_bf16.c",
            ),
            (
                "cnn-fp16",
                "width",
                "a sum in fp16",
                everywhere(r"= (fmaf\(.*sum\[.*\));", r"= pt_from_fp16(pt_to_fp16(\1));"),
                "kernels/matmul_fp16.c",
            ),
            (
                "mlp-bf16",
                "width",
                "a momentum in bf16",
                put(r"= new_velocity;", "= pt_from_bf16(pt_to_bf16(new_velocity));"),
                "kernels/sgd_momentum_w_bf16_dw_bf16_w_updated_bf16.c",
            ),
            (
                "mlp-bf16",
                "conversion",
                "none of a load",
                put(r"pt_float_of_bits\(\(uint32_t\)x\.bits << 16\)", "(float)x.bits"),
                "kernels/narrow.h",
            ),
            (
                "cnn-fp16",
                "conversion",
                "none of a store",
                put(r"PT_STORE\(arg->w_updated, i, new_w\)", "arg->w_updated[i].bits = (uint16_t)new_w"),
                "kernels/adam_w_fp16_dw_fp16_w_updated_fp16.c",
            ),
            (
                "mlp-bf16",
                "conversion",
                "an update is lost",
                put(r"learning_rate \* new_velocity", "0.0f * learning_rate * new_velocity"),
                "kernels/sgd_momentum_w_bf16_dw_bf16_w_updated_bf16.c",
            ),
        )
    ),
    Break(
        "mlp", "kernel", "one element for all", None, put(r"\(g->G, i\)", "(g->G, 0)"), "kernels/vectors.c"
    ),
)


def export(name: str, folder: Path) -> None:
    """The export of this name, built in `folder`."""
    import pulptrain

    text, options = EXPORTS[name]
    model = folder.with_suffix(".yaml")
    model.write_text(text)
    pulptrain.deploy(str(model), str(folder), **{"form": READABLE, **options})
    ended = check(folder)
    if ended.returncode:
        raise RuntimeError(f"{name} is wrong as it is: {ended.stdout}{ended.stderr}")


def check(folder: Path, *variables: str) -> subprocess.CompletedProcess[str]:
    """`make check` with the seeds that it has."""
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "PT_SEED")}
    command = ["make", "-s", "-C", str(folder), "check", "CC=gcc", "CFLAGS=-O0", *variables]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=600)


def broken(folder: Path, copy: Path, file: str, change: Callable[[str], str]) -> None:
    """A copy of a built export with one of its files changed; times stay, so that little is built again."""
    subprocess.run(["rm", "-rf", str(copy)], check=True)
    subprocess.run(["cp", "-a", str(folder), str(copy)], check=True)
    path = copy / file
    path.write_bytes(change(path.read_bytes().decode("latin-1")).encode("latin-1"))


def instead(text: str, _: str) -> str:
    """The first text: a change of `broken` that knows all of the file."""
    return text


def first_finding(ended: subprocess.CompletedProcess[str]) -> str:
    """What a failed check says first, in a word or two: the seed, and the tensor or the reason."""
    if not ended.returncode:
        return "passes"
    if ": error:" in ended.stderr:
        return "does not compile"
    seed = ["", *re.findall(r"PT_SEED=(\d+)", ended.stdout)][-1]
    wrong = re.search(r"^(\S+ \S+): WRONG", ended.stdout, re.MULTILINE)
    why = re.search(r"host\.c: (.*)", ended.stderr)
    return f"seed {seed}: {wrong[1] if wrong else why[1] if why else 'ends with a signal'}"


def moved_statements(body: str) -> Iterator[tuple[str, str]]:
    """A function with a statement earlier in its block, every way, and what was moved over what."""
    lines = statements(body)
    for place, line in enumerate(lines):
        for to in range(place - 1, 0, -1):
            if re.search(r"[{}]\s*$", lines[to]) or not line.lstrip().startswith("pt_"):
                break
            moved = [*lines[:to], line, *lines[to:place], *lines[place + 1 :]]
            yield f"{_short(line)} before {_short(lines[to])}", "\n".join(moved)


def _short(statement: str) -> str:
    name = re.match(r"\s*(\w+)\((\w+)", statement)
    about = re.search(r"/\* (.*?) \*/", statement)
    return f"{name[1]} {about[1] if about else name[2]}" if name else statement.strip()


def functions(text: str) -> Iterator[tuple[str, int, int]]:
    """Name, beginning and end of every op function of network.c."""
    for match in re.finditer(r"^void (\w+)\(void\) \{", text, re.MULTILINE):
        yield match[1], match.start(), text.index("\n}\n", match.start())


def try_breaks(out: Path) -> int:
    """All of `BREAKS`, a row each; how many are not as they should be."""
    rows, unlike = [], 0
    for name in EXPORTS:
        export(name, out / name)
        for item in (item for item in BREAKS if item.export == name):
            broken(out / name, out / "broken", item.file, item.applied)
            ended = check(out / "broken")
            verdict = first_finding(ended)
            right = (ended.returncode == 0) == bool(item.harmless) and "compile" not in verdict
            unlike += not right
            print(f"{'' if right else 'UNLIKE '}{item}: {verdict}", flush=True)
            rows.append((name, item.kind, item.what, verdict, item.harmless))
    print(table(("export", "kind", "broken", "`make check`", "why no number changes"), rows))
    changing = sum(not row[-1] for row in rows)
    print(f"{len(rows)} breaks, {changing} change a number; {unlike} not as they should be")
    return unlike


def try_orders(out: Path, name: str, every: int) -> int:
    """Every `every`-th order of the statements of an export; how many only the thread sanitizer sees."""
    export(name, out / name)
    text = (out / name / "network.c").read_text()
    orders = [
        (f"{function}: {what}", text[:first] + moved + text[last:])
        for function, first, last in functions(text)
        for what, moved in moved_statements(text[first:last])
    ][::every]
    seeds: dict[str, int] = {}
    unseen = 0
    for what, changed in orders:
        broken(out / name, out / "broken", "network.c", partial(instead, changed))
        ended = check(out / "broken")
        verdict = first_finding(ended)
        if not ended.returncode and check(out / "broken", "SANITIZE=thread").returncode:
            verdict = "ONLY THE THREAD SANITIZER"
            unseen += 1
            print(f"{name} {what}: {verdict}", flush=True)
        seeds[verdict.split(":")[0]] = seeds.get(verdict.split(":")[0], 0) + 1
    print(f"{name}: {len(orders)} orders; {', '.join(f'{key} {seeds[key]}' for key in sorted(seeds))}")
    return unseen


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tools.deployed.breaks", description=__doc__)
    parser.add_argument("--out", default="out/breaks", help="folder of exports")
    parser.add_argument("--orders", choices=EXPORTS, help="the export whose orders are tried")
    parser.add_argument("--every", type=int, default=1, help="of the orders every so manieth")
    arguments = parser.parse_args()
    out = Path(arguments.out).absolute()
    out.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    failed = try_orders(out, arguments.orders, arguments.every) if arguments.orders else try_breaks(out)
    print(f"{time.perf_counter() - started:.0f} s")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
