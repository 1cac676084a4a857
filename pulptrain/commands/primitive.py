# SPDX-License-Identifier: Apache-2.0
"""`pulptrain primitive NAME`: one step of one layer, loss or optimizer, alone on the SoC."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from configs.values import replace
from pulptrain.commands import options as common
from pulptrain.commands.completion import completes
from pulptrain.commands.parameters import takes
from pulptrain.inputs.option import PrimitiveOptions
from pulptrain.process.progress import telling

if TYPE_CHECKING:
    from trainlib.primitives.definition import (
        DrawnInput,
        LayerPrimitive,
        LossPrimitive,
        OptimizerPrimitive,
    )

    StepPrimitive = LayerPrimitive | LossPrimitive | OptimizerPrimitive

KEPT = ("--dtype", "--batch")
"""Options that an example may have, whatever its shape."""


Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="Layer type, loss or optimizer, e.g. conv2d (`pulptrain list primitives`).",
        autocompletion=completes("primitives"),
    ),
]
Shape = Annotated[
    list[str] | None,
    common.option(
        "--shape",
        "CxHxW[:DTYPE:HIGH]",
        "Shape of one input, without the batch dimension, e.g. 8x8x8; give --shape once per input. Integers "
        "need a type and an upper bound HIGH: 16:int32:10 is 16 integers from 0 to 9.",
        common.RUN,
    ),
]
Step = Annotated[
    str,
    common.option(
        "--step",
        "fw|ig|wg|loss|upd",
        "Step to run: fw (forward), ig (input gradients), wg (weight gradients), loss or upd (update).",
        common.RUN,
    ),
]
Option = Annotated[
    list[str] | None,
    common.option(
        "--option",
        "KEY=VALUE",
        "Option of the layer, as in a model file, e.g. kernel=3; `pulptrain show NAME` lists all.",
        common.RUN,
    ),
]
Dtype = Annotated[
    str,
    common.option("--dtype", "fp32|fp16|bf16|...", "Number format of the tensors, e.g. fp16.", common.RUN),
]
Batch = Annotated[int, common.option("--batch", "N", "Samples in the batch.", common.RUN)]
Kernel = Annotated[
    str | None,
    common.option(
        "--kernel",
        "NAME",
        "Kernel for the matrix products of --step, e.g. mm_unroll_2x4 (`pulptrain list kernels`).",
        common.RUN,
    ),
]
Values = Annotated[
    str | None,
    common.option(
        "--values",
        "FILE.npz",
        "Values of the tensors: a NumPy .npz file with an array per tensor name; other tensors are random.",
        common.RUN,
    ),
]
Variant = Annotated[
    str | None,
    common.option(
        "--variant",
        "NAME",
        "Implementation of the layer by name (`pulptrain list primitives`), e.g. as-published, "
        "the code of PULP-TrainLib.",
        common.RUN,
    ),
]
Tile = Annotated[
    str | None,
    common.option(
        "--tile",
        "DIM:SIZE,...",
        "Tile size in L1 by dimension, e.g. co:8,ho:3 (8 output channels, 3 output rows).",
        common.RUN,
    ),
]
LoopOrder = Annotated[
    str | None,
    common.option(
        "--loop-order",
        "DIM,...",
        "Order of the tile loops, outermost first, by dimension, e.g. co,ho,ci.",
        common.RUN,
    ),
]


@takes(PrimitiveOptions)
@common.draws
def command(
    context: typer.Context,
    name: Name,
    shape: Shape = None,
    step: Step = "fw",
    option: Option = None,
    dtype: Dtype = "fp32",
    batch: Batch = 1,
    kernel: Kernel = None,
    accumulation: common.Accumulation = "reference",
    values: Values = None,
    variant: Variant = None,
    tile: Tile = None,
    loop_order: LoopOrder = None,
    seed: common.Seed = 0,
    out: common.Out = None,
    paper: common.Paper | None = None,
    evidence: common.Evidence = False,
    as_json: common.Json = False,
    quiet: common.Quiet = False,
    **options: Any,
) -> None:
    """Simulate one step of a primitive, check its numbers, and show where its cycles go."""
    with telling(f"simulating {step} of {name}", show=not (quiet or as_json)) as teller:
        from pulptrain.commands.printing import finish_run, outcome_of, run_folder
        from pulptrain.inputs.npz_file import read_values
        from pulptrain.inputs.settings import Settings
        from pulptrain.inputs.source_kind import refuse_others
        from pulptrain.running.primitive_run import run_primitive
        from traces.report import Detail
        from trainlib.primitives.definition import VARIANT

        refuse_others(name, "primitive", "primitive")
        settings = Settings(
            **options,
            loop_orders=(f"{name}.{step.upper()}={loop_order}",) if loop_order is not None else (),
            tiles=(f"{name}.{step.upper()}={tile}",) if tile is not None else (),
            seed=seed,
        )
        attributes = dict(parse_option(text) for text in option or ())
        shapes = [parse_shape(text) for text in shape or ()]
        _refuse_missing(context, name, shapes, attributes)
        shapes = _in_domain(name, shapes)
        folder = run_folder(out) if out is not None else None
        own_values = read_values(values) if values is not None else None
        outcome = outcome_of(
            lambda: run_primitive(
                name,
                step,
                shapes,
                attributes | ({VARIANT: variant} if variant else {}),
                batch=batch,
                dtype=dtype,
                kernel=kernel,
                accumulation=accumulation,
                settings=settings,
                values=own_values,
            )
        )
        detail = Detail(full=True, evidence=evidence)
        finish_run(outcome, folder, as_json=as_json, quiet=quiet, detail=detail, teller=teller, paper=paper)


def _refuse_missing(
    context: typer.Context, name: str, shapes: Sequence[DrawnInput], attributes: Mapping[str, Any]
) -> None:
    """Raise `InputError` for a shape or options that are missing, with a command that has them.

    Tile sizes and kernel may be none of the example's.
    """
    from configs.errors import InputError
    from pulptrain.commands.typed import CARRIED, next_command
    from trainlib.primitives.definition import InternalPrimitive
    from trainlib.registry import PRIMITIVES

    primitive = PRIMITIVES.get(name)
    if primitive is None or isinstance(primitive, InternalPrimitive) or not primitive.steps:
        return  # said where it is looked up
    needed = [key for key, field in primitive.schema.model_fields.items() if field.is_required()]
    lacking = [f"--option {key}=..." for key in needed if key not in (*attributes, "name", "type")]
    if lacking or not shapes:
        raise InputError(
            f"{name} needs {' and '.join([*lacking, *([] if shapes else ['--shape'])])}",
            where=f"primitive {name}",
            cure=next_command(
                context, "primitive", name, add=_of_example(context, primitive), carry=(*CARRIED, *KEPT)
            ),
        )


def _in_domain(name: str, shapes: Sequence[DrawnInput]) -> list[DrawnInput]:
    """The inputs, positive where those of the primitive's examples are: a logarithm has no other."""
    from trainlib.registry import PRIMITIVES

    cases = [case for example in getattr(PRIMITIVES.get(name), "examples", ()) for case in example.cases]
    low, high = max(((case.low, case.high) for case in cases if case.dtype is None), default=(-1.0, 1.0))
    is_positive = low > 0
    return [
        replace(item, low=low, high=high) if is_positive and item.dtype is None else item for item in shapes
    ]


def _of_example(context: typer.Context, primitive: StepPrimitive) -> dict[str, Any]:
    """Step, shapes and options of an example; the step that was typed, if there is such a one."""
    example, typed = primitive.examples[0], context.params["step"]
    source = context.get_parameter_source("step")
    by_default = source is None or source.name == "DEFAULT"
    steps = [step.name.lower() for step in primitive.steps]
    shapes = []
    for case in example.cases:
        integers = f":{case.dtype}:{int(case.high)}" if case.dtype is not None else ""
        shapes.append(f"{'x'.join(str(size) for size in case.shape)}{integers}")
    options = [f"{key}={json.dumps(value)}" for key, value in example.attributes.items()]
    step = typed if typed in steps else steps[0]
    return {"--step": None if by_default and step == typed else step, "--shape": shapes, "--option": options}


def parse_shape(text: str) -> DrawnInput:
    """``8x8x8``, or ``5:int32:10`` for integers below 10. Raises `InputError`."""
    from configs.dtypes import dtype_of
    from configs.errors import InputError
    from trainlib.primitives.definition import DrawnInput

    sizes, _, rest = text.partition(":")
    dtype, _, high = rest.partition(":")
    parts = sizes.split("x")
    if not all(_is_size(part) for part in parts) or (dtype and not _is_size(high)):
        by_comma = all(_is_size(part.strip()) for part in text.split(",")) and "," in text
        right = text.replace(" ", "").replace(",", "x") if by_comma else "write 8x8x8, or 5:int32:10"
        message = f"{text!r} is not a shape"
        if any(part.isdigit() and not _is_size(part) for part in parts):
            message = f"a size in {text!r} is 0 or too large"
        more = " (5 integers from 0 to 9)"
        raise InputError(message, where="--shape", cure=right if by_comma else right + more)
    shape = tuple(int(part) for part in parts)
    if not dtype:
        return DrawnInput(shape)
    if dtype not in ("int32", "uint8"):
        raise InputError(
            f"the type of an integer input must be int32 or uint8, not {dtype!r}",
            where="--shape",
            cure=f"use int32 or uint8; for floats write only {sizes}, and set their type by --dtype",
        )
    return DrawnInput(shape, dtype_of(dtype), 0, int(high))


def _is_size(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19 and int(text) >= 1


def parse_option(text: str) -> tuple[str, Any]:
    """``key=value`` with the value as in a model file (YAML 1.2). Raises `InputError`."""
    from configs.errors import InputError
    from configs.yaml_file import parse_yaml

    key, separator, value = text.partition("=")
    if not separator or not key.strip() or not value.strip():
        raise InputError(f"{text!r} is not NAME=VALUE", where="--option", cure="write e.g. kernel=3")
    return key.strip(), parse_yaml(value, f"--option {key.strip()}").plain()
