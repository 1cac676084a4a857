# SPDX-License-Identifier: Apache-2.0
"""The options of a run, of tuning and of exploring: each declared here once.

Commands make their parameters of the `Option` of a key (`pulptrain.commands.parameters`), functions of Python
take the keys as keywords of these types (``**options: Unpack[RunOptions]``), and both hand them to
`pulptrain.inputs.settings.Settings`, whose fields they are. This module imports nothing slow.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, TypeVar, get_args, get_origin, get_type_hints

from configs.errors import InputError
from configs.values import Struct, replace

if TYPE_CHECKING:
    from pulptrain.python.answers import Tuned

_F = TypeVar("_F", bound=Callable[..., Any])

Size = str | int
"""A size of a memory: text such as ``64KiB``, or bytes."""

MACHINE, MODEL, SCHEDULE, SEARCH = "Machine", "Model", "Schedule", "Search"
"""Groups of options in help texts."""

MODEL_PREFIX = "model."
"""Of a path in a model file, where paths of the SoC may stand too."""


_PATH = re.compile("FILE|DIR|FOLDER|RUN|MODEL|SPEC|CASES|LOG|^IN$|^OUT$")
"""In what an option or argument takes: the name of a file or folder."""

_SENTENCE_END = re.compile(r"(?<!e\.g)\. ")


class Option(Struct, frozen=True):
    """How an option is written on the command line, and what it means.

    `flag` is the key with dashes if not said. `many` says that it may be given several times. `default` holds
    if it is not given (None: what a file says; none of `many`). `completes` names the kind of names that
    complete it.
    `path` is the value of the SoC (``l1.size_bytes``) or of the model (``model.batch``) it replaces, `swept`
    says that `explore` may vary it, `types` are those that Python may give: of its annotation below.
    """

    metavar: str
    help: str
    group: str
    flag: str = ""
    many: bool = False
    default: Any = None
    completes: str = ""
    path: str = ""
    swept: bool = True
    types: tuple[type, ...] = ()

    def check(self, value: Any) -> None:
        """Raise `InputError` for an empty text in place of the name of a file or folder."""
        if value == "" and _PATH.search(self.metavar):
            words = f"{self.flag} {self.metavar}".strip()
            sentence = _SENTENCE_END.split(self.help)[0].rstrip(".")
            raise InputError(
                "the name of the file or folder is empty",
                where=self.flag or self.metavar,
                cure=f"use {words} ({sentence})",
            )

    @property
    def kind(self) -> type:
        """Of its text on the command line."""
        return self.types[0] if self.types[0] in (int, bool, float) else str

    def takes(self, kind: type) -> bool:
        """Whether Python may give a `kind` in the place of a text."""
        return self.kind is str and kind in self.types


class SourceOptions(TypedDict, total=False):
    """What a model from elsewhere does not say itself; those that are no `Option` are of Python alone."""

    inputs: Annotated[
        str | object | None,
        Option(
            "[int:]N,...",
            "Input shape of a PyTorch module or an ONNX file, batch first, e.g. 1,3,32,32. Write int: before "
            "the shape of integer inputs (token ids), e.g. int:1,16. For several inputs write NAME=SHAPE for "
            "each: 'left=8,40 right=8,40'.",
            MODEL,
            swept=False,
            flag="--input",
        ),
    ]
    loss: Annotated[
        str | object | None,
        Option(
            "'NAME [KEY=VALUE ...]'",
            "Loss of a PyTorch module or an ONNX file, e.g. mse; `pulptrain list primitives` lists all "
            "(default: cross_entropy for outputs [batch, 2 or more classes], else mse).",
            MODEL,
            swept=False,
        ),
    ]
    optimizer: Annotated[
        str | object | None,
        Option(
            "'NAME KEY=VALUE ...'",
            "Optimizer of a PyTorch module or an ONNX file, e.g. 'adam lr=0.001'; `pulptrain list "
            "primitives` lists all (default: 'sgd lr=0.01').",
            MODEL,
            swept=False,
        ),
    ]
    learning_rate: Annotated[
        float | None,
        Option(
            "RATE",
            "Learning rate of an ONNX training graph that does not store one (default 0.001).",
            MODEL,
            swept=False,
        ),
    ]
    values: Annotated[
        str | object | None,
        Option(
            "FILE.npz",
            "NumPy file (.npz) with an array per tensor name: weights, optimizer states, input or label, "
            "e.g. a file that --save-values wrote. Tensors without an array are random. Every iteration "
            "uses the same input and label. Cycles do not depend on values.",
            MODEL,
            swept=False,
        ),
    ]
    labels: Any
    clip_norm: float | None
    clip_value: float | None
    average: Any


class NetworkOptions(SourceOptions, total=False):
    """What replaces values of the model file."""

    train: Annotated[
        str | Sequence[str] | None,
        Option(
            "LAYER,LAYER|last|all",
            "Layers to train, by name, e.g. conv2,fc; last: the last layer with weights; all: every layer "
            "(default: as in the model).",
            MODEL,
        ),
    ]
    dtype: Annotated[
        str | None,
        Option(
            "fp32|fp16|bf16|...",
            "Number format of all layers whose format the model file does not set, e.g. fp16; docs/dtypes.md "
            "lists all (default: as in the model).",
            MODEL,
            completes="dtypes",
            path="model.dtype",
        ),
    ]
    batch: Annotated[
        int | None,
        Option("N", "Samples per mini-batch (default: as in the model).", MODEL, path="model.batch"),
    ]
    accumulate: Annotated[
        int | None,
        Option(
            "N",
            "Mini-batches per weight update; their gradients are averaged (default: as in the model).",
            MODEL,
            path="model.optimizer.accumulate",
        ),
    ]
    lr_schedule: Annotated[
        str | object | None,
        Option(
            "'NAME [KEY=VALUE ...]'",
            "Change of the learning rate from iteration to iteration, e.g. 'cosine steps=100'; "
            "docs/model-file.md lists all (default: as in the model).",
            MODEL,
            swept=False,
        ),
    ]
    separate_update: Annotated[
        bool,
        Option(
            "",
            "Run two programs: forward and backward pass, then the weight update (default: one program).",
            MODEL,
            default=False,
            swept=False,
        ),
    ]


class ModelOptions(NetworkOptions, total=False):
    """What a model is, and which of its steps are taken."""

    steps: Annotated[
        str | Sequence[str] | None,
        Option(
            "fw[,loss,ig,wg,upd]",
            "Steps to run: fw forward, loss, ig input gradients, wg weight gradients, upd update (default: "
            "all). fw alone is inference: no loss, no dropout; batch norm uses its running statistics.",
            MODEL,
        ),
    ]


class ChipOptions(TypedDict, total=False):
    """What replaces values of the SoC file."""

    timing: Annotated[
        str,
        Option(
            "rtl|gvsoc",
            "Timing to reproduce: that of the hardware (rtl), or of the GVSoC simulator (gvsoc).",
            MACHINE,
            default="rtl",
            completes="timings",
        ),
    ]
    codegen: Annotated[
        str,
        Option(
            "NAME",
            "Compiler whose kernel code is simulated, e.g. clang-xpulp; `pulptrain list kernels` lists all "
            "(default: that of the SoC file).",
            MACHINE,
            default="",
            completes="codegens",
        ),
    ]
    cores: Annotated[
        int | None,
        Option(
            "N",
            "Number of cores in the cluster, 1 to 16 (default: that of the SoC).",
            MACHINE,
            path="cores",
        ),
    ]
    l1: Annotated[
        Size | None,
        Option("SIZE", "L1 size, e.g. 64KiB (default: that of the SoC).", MACHINE, path="l1.size_bytes"),
    ]
    l2: Annotated[
        Size | None,
        Option("SIZE", "L2 size, e.g. 1536KiB (default: that of the SoC).", MACHINE, path="l2.size_bytes"),
    ]
    l3: Annotated[
        Size | None,
        Option(
            "SIZE",
            "L3 size, e.g. 8MiB; 0: no L3 (default: that of the SoC).",
            MACHINE,
            path="l3.size_bytes",
        ),
    ]
    freq: Annotated[
        str | int | None,
        Option(
            "HZ",
            "Cluster clock, e.g. 240MHz; the clocks of interconnect and L2 scale along (default: that of "
            "the SoC).",
            MACHINE,
            path="freq",
        ),
    ]
    fpus: Annotated[
        str | None,
        Option(
            "private|N-static|N-dynamic",
            "Floating-point units: one per core (private), or N shared ones, assigned by core number (e.g. "
            "4-static) or each cycle (e.g. 4-dynamic). Default: those of the SoC.",
            MACHINE,
            path="fpu",
        ),
    ]
    bank_conflicts: Annotated[
        str | bool | None,
        Option(
            "on|off",
            "on: an L1 bank serves one access per cycle, others wait; off: no L1 contention (default: that "
            "of the SoC).",
            MACHINE,
            path="l1.bank_conflicts",
        ),
    ]
    form: Annotated[
        str | None,
        Option(
            "readable|tables",
            "Form of the program: readable: one C function per op; tables: the ops as tables in L1, "
            "executed by one small loop, so that the code fits a small instruction cache. A program "
            "too small to gain from tables has functions even with 'tables'. Default: that of the SoC; with "
            "--icache warm: readable.",
            MACHINE,
            path="form",
        ),
    ]
    overrides: Annotated[
        Mapping[str, object] | Sequence[str],
        Option(
            "PATH=VALUE",
            "Change one hardware parameter of the SoC, e.g. dma.burst_bytes=64; `pulptrain show SOC` lists "
            "all.",
            MACHINE,
            many=True,
            swept=False,
            flag="--set",
        ),
    ]


class MachineOptions(ChipOptions, total=False):
    """The SoC and what replaces values of its file."""

    soc: Annotated[
        str,
        Option(
            "NAME|FILE",
            "Chip: the name of a preset (`pulptrain list socs`), or a YAML file.",
            MACHINE,
            default="pulp-open",
            completes="soc",
        ),
    ]


class CodeOptions(TypedDict, total=False):
    """What the instruction caches hold."""

    icache: Annotated[
        str,
        Option(
            "warm|steady|cold",
            "Code in the instruction caches at the start: warm (all of it), steady (what the previous "
            "iteration left) or cold (none). Default: steady for a training iteration with --timing rtl, "
            "else warm.",
            MACHINE,
            default="",
        ),
    ]


class EnergyOptions(TypedDict, total=False):
    """What energy is counted with."""

    energy: Annotated[
        str | PathLike[str] | None,
        Option(
            "NAME|FILE",
            "Energy model, which computes joules from the activity of the chip: a name, e.g. gap9, or a YAML "
            "file; docs/energy.md lists all (default: that of the SoC, if it has one).",
            MACHINE,
        ),
    ]
    vdd: Annotated[
        str | None,
        Option(
            "VOLT",
            "Supply voltage of the cores for --energy, e.g. 0.65V (default: the lowest that allows the "
            "clock).",
            MACHINE,
        ),
    ]


class BufferingOptions(TypedDict, total=False):
    """How many L1 buffers operands have."""

    buffering: Annotated[
        str | int,
        Option(
            "none|single|double|best|N[,OP.OPERAND=N]",
            "L1 buffers per operand: none (no tiling: each op has all its data in L1), single (1), double "
            "(2), N, or best (the faster of single and double for each op). Add exceptions after commas: "
            "double,conv2.FW.w=1 gives operand w of conv2.FW one buffer, others two.",
            SCHEDULE,
            default="double",
        ),
    ]


class MemoryOptions(TypedDict, total=False):
    """When operands are loaded, and where tensors lie."""

    prefetch: Annotated[
        str | bool,
        Option(
            "on|off",
            "on: load data of the next op while an op computes; off: load the data of an op when the op "
            "before has ended.",
            SCHEDULE,
            default="on",
        ),
    ]
    placement: Annotated[
        str,
        Option(
            "first-fit|best-fit|optimal",
            "Algorithm that assigns addresses in L2 and L3: first-fit and best-fit are fast, optimal takes "
            "longer and may need less memory.",
            SCHEDULE,
            default="first-fit",
        ),
    ]
    homes: Annotated[
        Mapping[str, str] | Sequence[str],
        Option(
            "TENSOR=l2|l3|streamed",
            "Memory that holds a tensor, e.g. fc.weight=l3. l2: always in L2; l3: in L3, copied whole to L2 "
            "before use; streamed: in L3, moved to L1 tile by tile (default: L2, and L3 for what does not "
            "fit).",
            SCHEDULE,
            many=True,
            flag="--home",
        ),
    ]


class ResidentOptions(TypedDict, total=False):
    """What stays in L1."""

    resident: Annotated[
        str | Sequence[str] | None,
        Option(
            "off|auto|TENSOR[@OP..OP],...",
            "Tensors that stay in L1 between ops, e.g. fc.weight@fc.FW..fc.IG (from op fc.FW to fc.IG); "
            "auto: those that save cycles; off: no tensor. Saves transfers of tensors that are used again "
            "soon.",
            SCHEDULE,
        ),
    ]


class RunOptions(
    ModelOptions,
    ChipOptions,
    CodeOptions,
    EnergyOptions,
    BufferingOptions,
    MemoryOptions,
    ResidentOptions,
    total=False,
):
    """What a run may be told beside model and SoC, choices for single ops or steps the last."""

    kernels: Annotated[
        Mapping[str, str] | Sequence[str],
        Option(
            "OP|STEP=NAME",
            "Matrix-product kernel of one op or of all ops of a step, e.g. conv1.IG=mm or IG=mm; `pulptrain "
            "list kernels` lists all.",
            SCHEDULE,
            many=True,
            flag="--kernel",
        ),
    ]
    tiles: Annotated[
        Mapping[str, Mapping[str, int]] | Sequence[str],
        Option(
            "OP=DIM:SIZE,...",
            "Tile size of an op in L1 by dimension, e.g. conv2.FW=co:8,ho:3 (8 output channels, 3 "
            "output rows).",
            SCHEDULE,
            many=True,
            flag="--tile",
        ),
    ]
    loop_orders: Annotated[
        Mapping[str, Sequence[str]] | Sequence[str],
        Option(
            "OP=DIM,...",
            "Order of the tile loops of an op, outermost first, by dimension, e.g. conv2.FW=co,ho,ci.",
            SCHEDULE,
            many=True,
            flag="--loop-order",
        ),
    ]
    im2col: Annotated[
        Mapping[str, str] | Sequence[str],
        Option(
            "OP|STEP=cores|dma|none",
            "Who unrolls the images of a convolution (im2col) in an op or step: the cores, the DMA "
            "or none, e.g. WG=dma (default: as in the model).",
            SCHEDULE,
            many=True,
        ),
    ]
    variants: Annotated[
        str | Mapping[str, str] | Sequence[str],
        Option(
            "[OP|STEP=]NAME",
            "Implementation of the layers: default (pulptrain's own) or as-published (PULP-TrainLib's, if it "
            "exists). For one op or step you can also write cores, dma or none, with the same meaning as for "
            "--im2col, e.g. conv1.IG=none.",
            SCHEDULE,
            many=True,
            flag="--variant",
        ),
    ]
    schedule: Annotated[
        str | PathLike[str] | Tuned | None,
        Option(
            "FILE",
            "Schedule file that `pulptrain tune MODEL` wrote: tiles, kernels and buffers of every op.",
            SCHEDULE,
            completes="file",
        ),
    ]


class LinkedRunOptions(RunOptions, total=False):
    """What one run may be told: also of its export."""

    code_map: Annotated[
        str | None,
        Option(
            "FILE",
            "Linker map (GNU ld, lld) of the program that `deploy` exported, so that the instruction caches "
            "are simulated with its code addresses.",
            MACHINE,
            swept=False,
        ),
    ]


class PrimitiveOptions(ChipOptions, CodeOptions, EnergyOptions, BufferingOptions, total=False):
    """What one step of a layer may be told beside its SoC."""


class TuneOptions(
    ModelOptions, ChipOptions, CodeOptions, EnergyOptions, MemoryOptions, ResidentOptions, total=False
):
    """What tuning may be told beside model and SoC: all of a run but the choices it makes itself."""


class FitOptions(
    ModelOptions, ChipOptions, CodeOptions, EnergyOptions, BufferingOptions, MemoryOptions, total=False
):
    """What `fit` may be told beside model and SoC."""


def pair(text: str, option: str, form: str) -> tuple[str, str]:
    """``name=value`` of an option. Raises `InputError`, whose cure is to write it as `form`."""
    name, separator, value = text.partition("=")
    if not separator or not name.strip() or not value.strip():
        raise InputError(f"{text!r} is not NAME=VALUE", where=option, cure=f"write e.g. {form}")
    return name.strip(), value.strip()


def options_of(kind: type) -> dict[str, Option]:
    """The options of one of the classes above by key, in order."""
    hints = get_type_hints(kind, include_extras=True, localns={"Tuned": object})
    return {
        key: _declared(key, *get_args(hint)) for key, hint in hints.items() if get_origin(hint) is Annotated
    }


def _declared(key: str, hint: Any, option: Option) -> Option:
    given = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    types = tuple(get_origin(kind) or kind for kind in given)
    flag = option.flag or "--" + key.replace("_", "-")
    return replace(option, flag=flag, types=types, default=() if option.many else option.default)


class AllOptions(MachineOptions, LinkedRunOptions, total=False):
    """Every option."""


ALL = options_of(AllOptions)
"""Every option by key."""
