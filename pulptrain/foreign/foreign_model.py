# SPDX-License-Identifier: Apache-2.0
"""Models that are no model files of ours, as the commands take them: ``net.py:Net``, ``model.onnx``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from configs.errors import InputError, WrongNumbersError
from configs.limits import MOST_ELEMENTS
from configs.model_file import ModelSpec
from configs.values import Struct, replace
from importers.training_text import parse_loss, parse_optimizer
from pulptrain.inputs.settings import Settings
from pulptrain.running.session import RunOutcome
from trainlib.ir.steps import Array

if TYPE_CHECKING:
    from importers.torch.check import ModuleCheck
    from importers.torch.optimizers import TorchOptimizer
    from importers.torch.script import Script
    from pulptrain.foreign.foreign_check import OnnxOrigin

ONNX = ".onnx"
"""Ending of ONNX files."""

TRAINING_GRAPHS = "use run, what-if or deploy, or a network without a backward pass"
"""Who takes a graph that has a backward pass of its own."""

INTEGERS = "int:"
"""Before a shape: the input is integers, numbers of words."""


def refuse_options(model: str, settings: Settings) -> None:
    """Raise `InputError` for options that a model file answers itself."""
    for flag, asked in (
        ("input", settings.inputs),
        ("loss", settings.loss),
        ("optimizer", settings.optimizer),
    ):
        if asked is not None:
            raise InputError(
                f"{model} already specifies '{flag}', so --{flag} cannot be used",
                where=f"--{flag}",
                cure=f"remove --{flag}; in a YAML file set '{flag}:'",
            )


class ForeignModel(Struct, frozen=True):
    """A model read, the starts of its weights, and the module or the ONNX file it was, if it was one."""

    spec: ModelSpec
    values: Mapping[str, Array] = {}
    notes: tuple[str, ...] = ()
    module: Any = None
    sources: Mapping[str, Any] = {}
    file: OnnxOrigin | None = None
    optimizer: TorchOptimizer | None = None
    script: Script | None = None

    @property
    def origin(self) -> str:
        """What it was: ``file``, ``module``, or "" of one that is held against nothing."""
        return "file" if self.file is not None else "module" if self.module is not None else ""

    def for_iterations(self, spec: ModelSpec, iterations: int) -> ModelSpec:
        """`spec`, with what a schedule of torch.optim.lr_scheduler says of so many iterations."""
        if self.optimizer is None or spec.optimizer != self.optimizer.spec(1):
            return spec
        return replace(spec, optimizer=self.optimizer.spec(iterations))


def parse_input(text: str, where: str = "--input") -> tuple[tuple[int, ...], bool]:
    """(shape, whether it is integers) of ``1,3,32,32`` or ``int:1,16``. Raises InputError."""
    integers = text.startswith(INTEGERS)
    sizes = text.removeprefix(INTEGERS).replace("x", ",").split(",")
    if len(sizes) < 2 or not all(
        size.strip().isascii() and size.strip().isdigit() and len(size) < 10 and int(size) for size in sizes
    ):
        raise InputError(
            f"{text!r} is not a shape",
            where=where,
            cure="write the batch first: 1,3,32,32, or int:1,16 for integers",
        )
    shape = tuple(int(size) for size in sizes)
    if prod(shape) > MOST_ELEMENTS:
        raise InputError(
            f"the input shape has {prod(shape):,} elements, but the limit is {MOST_ELEMENTS:,}",
            where=where,
            cure="use a smaller shape",
        )
    return shape, integers


def is_foreign(text: str) -> bool:
    """Whether a model is named as ``model.onnx``, ``net.py:Net``, or ``net.py``, which lacks the class."""
    path, separator, member = text.rpartition(":")
    of_module = bool(separator) and path.endswith(".py") and member.isidentifier()
    return of_module or text.endswith((ONNX, ".py"))


def open_foreign(model: str, settings: Settings) -> ForeignModel:
    """``net.py:Net``, whose file is then run, or ``model.onnx``, with what the settings say of them.

    The first size of ``--input`` is the batch, unless `settings` says another. Raises the errors of
    `importers.torch.module.import_module_file`.
    """
    if model.endswith(ONNX):
        return _open_onnx(model, settings)
    from importers.torch import module as torch_module

    if model.endswith(".py"):
        names = torch_module.modules_in(Path(model))
        wanted = f"{model}:{names[-1] if names else 'Net'}"
        raise InputError("the name of the class or function is missing", where=model, cure=f"use {wanted}")
    if settings.inputs is None:
        raise InputError(
            "the shape of the model's input is missing",
            where=model,
            cure="add the shape with the batch first, e.g. --input 1,3,32,32",
        )
    shape, integers = parse_input(settings.inputs)
    if settings.batch is not None and settings.batch > 0:
        shape = (settings.batch, *shape[1:])
    module = torch_module.load_module(model, settings.seed)
    read = torch_module.import_module_file(
        model, module, shape, settings.loss, settings.optimizer, integers=integers
    )
    return ForeignModel(read.spec, read.values, read.notes, module, read.sources)


CHANGED = "the graph was changed after pulptrain wrote it: imported with its loss and optimizer"
"""Note on a file of ours that somebody has changed."""


def _open_onnx(model: str, settings: Settings) -> ForeignModel:
    """A forward graph; the shape of its input from ``--input``, loss and optimizer as for a module.

    A file that `pulptrain convert` wrote is the model it was written from.
    """
    from importers.export.writer import merged, read_own

    converted = read_own(model)
    if converted is None:
        return _open_graph(model, settings)
    if converted.values is None:
        read = _open_graph(model, settings)
        return replace(
            read,
            spec=_with_training_options(merged(converted, read.spec), settings),
            notes=(*read.notes, CHANGED),
        )
    spec = converted.spec
    if settings.inputs is not None:
        if spec.more_inputs:
            raise InputError(
                f"{model} already specifies the shapes of its inputs",
                where="--input",
                cure="remove --input; --batch sets the batch",
            )
        shape, _ = parse_input(settings.inputs)
        if shape[1:] != spec.input_shape:
            raise InputError(
                f"the samples of {model} have shape {list(spec.input_shape)}, but --input specifies "
                f"{list(shape[1:])}",
                where="--input",
                cure=f"use --input {','.join(str(size) for size in (shape[0], *spec.input_shape))}",
            )
        spec = replace(spec, batch=shape[0])
    return ForeignModel(_with_training_options(spec, settings), converted.values)


def _with_training_options(spec: ModelSpec, settings: Settings) -> ModelSpec:
    """The model with loss and optimizer of the command line, where it says them."""
    if settings.loss is not None:
        if spec.more_losses:
            raise InputError(
                f"{spec.name} has several losses, which --loss cannot set",
                where="--loss",
                cure="convert the model to NAME.yaml, and set 'losses:' in that file",
            )
        spec = replace(spec, loss=parse_loss(settings.loss))
    if settings.optimizer is not None:
        spec = replace(spec, optimizer=parse_optimizer(settings.optimizer))
    return spec


def _input_shapes(text: str) -> dict[str, tuple[int, ...]]:
    """Shapes of inputs by name: of the first, "", or ``left=1,4 right=1,4``."""
    words = [word.partition("=") for word in text.split()] if "=" in text else [("", "", text)]
    return {name: parse_input(shape)[0] for name, _, shape in words}


def _open_graph(model: str, settings: Settings) -> ForeignModel:
    from importers.graph.onnx_file import load_onnx
    from importers.onnx.forward import import_forward
    from importers.place.losses import default_note
    from importers.training.graph import is_training_graph

    batch = settings.batch if settings.batch is not None and settings.batch > 0 else 1
    shapes = {} if settings.inputs is None else _input_shapes(settings.inputs)
    if settings.batch is not None and settings.batch > 0:
        shapes = {name: (settings.batch, *shape[1:]) for name, shape in shapes.items()}
    graph = load_onnx(model, batch=batch, input_shapes=shapes)
    if is_training_graph(graph):
        raise InputError(
            "the model is a training graph, but the command takes only networks without a backward pass",
            where=model,
            cure=TRAINING_GRAPHS,
        )
    read = import_forward(
        graph,
        loss=parse_loss(settings.loss) if settings.loss is not None else None,
        optimizer=parse_optimizer(settings.optimizer) if settings.optimizer is not None else None,
    )
    from pulptrain.foreign.foreign_check import OnnxOrigin, check_output

    origin = OnnxOrigin(graph, read)
    said = settings.loss is not None or read.loss
    merged = f"trained as separate weights, although the file stores them once: {', '.join(graph.merged)}"
    notes = (*(() if said else [default_note(read.spec.loss)]), check_output(origin))
    notes += (merged,) if graph.merged else ()
    return ForeignModel(read.spec, read.values, notes, sources=read.sources, file=origin)


def why_not_compared(
    foreign: ForeignModel, outcome: RunOutcome, iterations: int, *, given: bool = False
) -> str | None:
    """Why the gradients of a run cannot be held against those of module or file; None if they can.

    `given` says that values or samples took the place of the model's own and of those that are drawn.
    """
    graph = outcome.schedule.graph
    reasons = {
        "the run has several iterations": iterations != 1,
        "the update is a separate program": outcome.update_schedule is not None,
        "the run computes no loss": not graph.loss,
        "the network draws random masks": bool(graph.draws),
        "its numbers are not fp32": any(
            dtype.is_float and dtype != "float32"
            for dtype in (graph.tensors[name].dtype for name in graph.weights)
        ),
        "the user passed values or samples": given,
        "the batch differs from that of the model's input": bool(graph.input)
        and graph.tensors[graph.input].shape[0] != foreign.spec.batch,
        "values are infinite or NaN": bool(outcome.summary["not_finite"]),
    }
    return next((why for why, holds in reasons.items() if holds), None)


def compare_with_origin(
    foreign: ForeignModel, outcome: RunOutcome, settings: Settings, iterations: int, *, given: bool = False
) -> None:
    """Compare the gradients of a run with those of its module or file; the summary says what came of it.

    What came of it is in the functional part, under ``module`` or ``file``; why nothing was compared in
    ``skipped``. `given` is that of `why_not_compared`.
    """
    functional = outcome.summary["functional"]
    if functional is None or not foreign.origin:
        return
    why = why_not_compared(foreign, outcome, iterations, given=given)
    check = why or _compared(foreign, outcome, settings)
    if isinstance(check, str):
        functional["skipped"].append(f"loss and gradients with those of the {foreign.origin} ({check})")
        return
    functional[foreign.origin] = check.as_dict()
    if check.passed:
        outcome.summary["notes"].append(
            f"loss and gradients equal those of the {foreign.origin}, computed by torch.autograd "
            f"({check.compared} tensors, worst error {check.worst:.2f} of its tolerance, "
            f"{check.tensor}){_in_double(check)}"
        )


def _in_double(check: ModuleCheck) -> str:
    """What is said of tensors that fp32 does not decide, "" if there are none."""
    if not check.not_in_fp32:
        return ""
    first, *others = check.not_in_fp32
    more = f" and {len(others)} more" if others else ""
    return (
        f"; rounding in fp32 is too large to check {first}{more}; computed in fp64, our graph gives the "
        "same values"
    )


def _compared(foreign: ForeignModel, outcome: RunOutcome, settings: Settings) -> ModuleCheck | str:
    """What came of it; a text says why it cannot be computed."""
    from importers.torch.check import check_module
    from pulptrain.foreign.foreign_check import check_file, loss_of
    from trainlib.references.conditioning import conditioning
    from trainlib.training.training_data import sample_stream

    spec, graph = foreign.spec, outcome.schedule.graph
    sample = next(sample_stream(graph, spec, settings.seed))
    fed = {name: sample[name] for name in (*graph.inputs, *graph.labels)}
    results = {
        name.removeprefix("results/"): array
        for name, array in outcome.values.items()
        if name.startswith("results/")
    }
    results["loss"] = sum((results[name] for name in graph.losses[1:]), results[graph.loss])
    before = {name: outcome.values.get(f"before/{name}") for name in graph.needed_values}
    start = {name: array for name, array in before.items() if array is not None}
    own = partial(conditioning, graph, {**start, **fed})
    if foreign.file is not None:
        return check_file(foreign.file, spec, graph, fed, results, own)
    loss = foreign.script or loss_of(spec.loss)
    return check_module(foreign.module, loss, foreign.sources, fed, results, own)


def refuse_other_gradients(foreign: ForeignModel, outcome: RunOutcome) -> None:
    """Raise `WrongNumbersError` if `compare_with_origin` found another gradient than module or file have."""
    verdict = (outcome.summary["functional"] or {}).get(foreign.origin)
    if verdict is not None and not verdict["passed"]:
        raise WrongNumbersError(
            f"{verdict['worst_tensor']} differs from the result of torch.autograd for the "
            f"{foreign.origin} by {verdict['worst_error_of_tolerance']:.3g} times the tolerance",
            where=foreign.spec.where,
            outcome=outcome,
        )
