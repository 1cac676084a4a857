# SPDX-License-Identifier: Apache-2.0
"""PyTorch modules as models of ours: `from_torch`, and a module found in a file of the user's."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from configs.dtypes import BY_NAME, FP32
from configs.errors import InputError, UnsupportedLayerError
from configs.model_file import LossSpec, ModelSpec
from configs.suggest import suggestion
from importers.extras import require_extra
from importers.graph.arranging import Site, as_seen
from importers.graph.draft import Draft, elements
from importers.graph.node import Handler
from importers.graph.terms import Term, Terms
from importers.graph.torch_capture import capture
from importers.graph.views import View
from importers.graph.weights import Given
from importers.place.losses import default_note, losses_of
from importers.torch import elements as _elements
from importers.torch import layers, moves, products, script_loss
from importers.torch.losses import NEGATIVE_LOG, is_ours, loss_of
from importers.torch.noise import with_noise
from importers.torch.optimizers import TorchOptimizer, optimizer_of
from importers.torch.script import Script
from trainlib.ir.numerics import rounded
from trainlib.ir.steps import Array
from trainlib.training.options import check_options

HANDLERS: Mapping[str, Handler] = {
    **_elements.HANDLERS,
    **layers.HANDLERS,
    **moves.HANDLERS,
    **products.HANDLERS,
}
"""By the name of an ATen op, without overload."""


@dataclass(frozen=True, slots=True)
class ImportedModel:
    """A model of ours made of somebody else's.

    `values` are the starts of weights and buffers by tensor, of the dtype and shape of the tensor (CHW).
    `sources` says which element of which parameter of the original each is. `notes` are for people.
    """

    spec: ModelSpec
    values: Mapping[str, Array]
    sources: Mapping[str, Given] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    optimizer: TorchOptimizer | None = None
    """One of torch.optim, whose schedule is asked for as many iterations as there are."""
    script: Script | None = None
    """The loss as a script has it, where it is none of ours."""


def from_torch(
    module: Any,
    example_inputs: Any,
    loss: Any = None,
    optimizer: Any = None,
    *,
    labels: Any = None,
    lr_schedule: Any = None,
    clip_norm: float | None = None,
    clip_value: float | None = None,
    accumulate: int | None = None,
    average: Any = None,
    name: str | None = None,
    where: str | None = None,
) -> ImportedModel:
    """A torch.nn.Module as a model of ours, its parameters as initial values, in the mode it is in.

    `example_inputs` is the input tensor, or a tuple of all that forward takes, batch first: shapes are taken,
    types, and of several the names that forward has for them.
    `loss` is a loss of torch.nn, one of torch.nn.functional, or text (``mse``), see `losses.loss_of`; default
    cross_entropy for outputs [batch, classes], else mse. Any other function is captured with the module: it
    is called with what forward returns and with `labels`, a tensor or a tuple of examples. `optimizer` is one
    of torch.optim, or text (``adam lr=0.001``); default ``sgd lr=0.01``. `lr_schedule` is one of
    torch.optim.lr_scheduler, or text (``cosine steps=100``), `average` a share of EMA or an AveragedModel.
    Parameters that do not require a gradient, or that the optimizer does not have, stay as they are. Raises
    UnsupportedLayerError that lists everything that has no form here, and InputError where the module cannot
    be captured or PyTorch is not installed.
    """
    torch = require_extra("torch", where)
    if not isinstance(module, torch.nn.Module):
        raise InputError(
            f"the object is a {type(module).__name__}, not a torch.nn.Module",
            where=where or "from_torch",
            cure="pass a torch.nn.Module object",
        )
    title = name or _title(type(module).__name__)
    place = where or title
    inputs = tuple(example_inputs) if isinstance(example_inputs, (tuple, list)) else (example_inputs,)
    batches = dict.fromkeys(len(item) for item in inputs if isinstance(item, torch.Tensor) and item.ndim)
    if len(batches) > 1:
        text = ", ".join(map(str, batches))
        raise InputError(
            f"the inputs have different batch sizes: {text}",
            where=place,
            cure="use one batch size for all inputs",
        )
    _refuse_averages(torch, module, place)
    dtype = _dtype(torch, module, inputs, place)
    trained = _trained(torch, module, optimizer)
    notes: list[str] = []
    script = None
    if is_ours(torch, loss):
        draft, output = capture(torch, module, inputs, trained, place, dtype, with_noise(HANDLERS))
        assert isinstance(output, View)
        spec_of_loss = _of_log_probabilities(draft, output, loss_of(torch, loss, output.shape), notes)
        draft.without_unused(_end(draft, output))
        losses = [spec_of_loss]
        if loss is None:
            notes.insert(0, default_note(spec_of_loss))
    else:
        script = Script.of(module, loss, inputs, labels)
        whole, handlers = script.around(module), with_noise(script_loss.handlers(HANDLERS))
        apart = script_loss.TAKEN_APART
        draft, output = capture(torch, whole, script.examples, trained, place, dtype, handlers, apart)
        if isinstance(output, View):  # of a single sample
            output = Terms((Term("output", {}, output),))
        losses, labels_of = losses_of(draft, output, partial(_end, draft), partial(_stored, draft))
        script = script.with_label(next(iter(labels_of), None))
    shared = {"clip_norm": clip_norm, "clip_value": clip_value, "accumulate": accumulate, "average": average}
    taken = optimizer_of(torch, optimizer, module, draft.sources, lr_schedule, shared)
    if isinstance(optimizer, torch.optim.Optimizer) and optimizer.state:
        notes.append("the moments of the optimizer are not imported: they start at 0")
    spec = draft.model(
        title,
        losses,
        taken.spec(1) if isinstance(taken, TorchOptimizer) else taken,
        lambda word: _classes(draft, word),
        description=f"{type(module).__name__}, {'training' if module.training else 'evaluation'} mode",
        source=f"captured from {place} by torch.export",
    )
    check_options(spec)
    wide = ("running_mean", "running_var")
    values = {
        tensor: value
        if value.dtype.kind == "i"
        else rounded(value, FP32 if tensor.endswith(wide) else BY_NAME[dtype])
        for tensor, value in draft.values.items()
    }
    of_torch = taken if isinstance(taken, TorchOptimizer) else None
    return ImportedModel(spec, values, dict(draft.sources), tuple(notes), of_torch, script)


def _trained(torch: Any, module: Any, optimizer: Any) -> frozenset[str]:
    """Names of the parameters that are trained: those that require a gradient and that the optimizer has."""
    named = {
        name: parameter
        for name, parameter in module.named_parameters(remove_duplicate=False)
        if parameter.requires_grad
    }
    if isinstance(optimizer, torch.optim.Optimizer):
        has = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        named = {name: parameter for name, parameter in named.items() if id(parameter) in has}
    return frozenset(named)


def _refuse_averages(torch: Any, module: Any, place: str) -> None:
    """Raise UnsupportedLayerError for a norm whose running statistics average over all batches so far."""
    for path, part in module.named_modules():
        running = isinstance(part, torch.nn.modules.batchnorm._NormBase) and part.track_running_stats
        if running and part.training and part.momentum is None:
            raise UnsupportedLayerError(
                f"{path or 'the module'} has momentum=None, which is not supported",
                where=place,
                cure="use momentum=0.1, or module.eval()",
            )


def _title(text: str) -> str:
    """A name for a model: of letters, digits, points and dashes."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-_.") or "module"


def _dtype(torch: Any, module: Any, inputs: Sequence[Any], place: str) -> str:
    kinds = {parameter.dtype for parameter in module.parameters() if parameter.is_floating_point()}
    kinds |= {item.dtype for item in inputs if isinstance(item, torch.Tensor) and item.is_floating_point()}
    if len(kinds) > 1:
        names = " and ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))
        raise UnsupportedLayerError(
            f"parameters and inputs have different types: {names}",
            where=place,
            cure="use one type: module.float()",
        )
    name = str(next(iter(kinds), "float32")).removeprefix("torch.")
    if name not in BY_NAME:
        raise UnsupportedLayerError(
            f"numbers of type {name} are not supported", where=place, cure="use module.float()"
        )
    return name


def _of_log_probabilities(draft: Draft, output: View, loss: LossSpec, notes: list[str]) -> LossSpec:
    """NLLLoss of a log-softmax as cross-entropy, which is the same: the sum of those exponentials is 1."""
    classes = draft.log_probabilities.get(output.word)
    taken = classes is not None and classes * output.batch == elements(output.shape)
    if not taken or loss.name not in ("cross_entropy", NEGATIVE_LOG):
        return loss
    notes.append(
        "cross_entropy expects logits: remove the log-softmax at the end; loss and gradients stay the "
        "same and the network is faster"
    )
    if loss.name == "cross_entropy":
        return loss
    return LossSpec("cross_entropy", {"labels": "hard", **loss.options}, loss.where)


def _end(draft: Draft, output: View) -> str:
    """The layer that gives what forward returns, as it returns it."""
    word = _stored(draft, output)
    if "." in word or word in draft.inputs:
        what = "forward returns the input, or a part of the input"
        raise UnsupportedLayerError(what, where=draft.where, cure="use at least one layer in forward")
    return word


def _stored(draft: Draft, output: View) -> str:
    """The word of a tensor stored as it is seen, the batch in front."""
    if not output.batch_leads:
        what = (
            f"forward returns a tensor of shape {list(output.shape)}, whose first dimension is not the batch"
        )
        raise UnsupportedLayerError(what, where=draft.where, cure="return a tensor of shape [batch, ...]")
    return as_seen(Site(draft, "output", draft.where), output)


def _classes(draft: Draft, word: str) -> int:
    """Of an input of integers, which a table has to read."""
    rows = draft.smallest_table(word)
    if rows is None:
        raise UnsupportedLayerError(
            "the network has an integer input that no embedding reads",
            where=draft.where,
            cure="start with torch.nn.Embedding, or use an input of floats",
        )
    return rows


# A module in a file


def load_module(text: str, seed: int = 0) -> Any:
    """The module of ``net.py:Net``, a class without arguments or a function that returns a module.

    This runs the file. Random numbers of its initialisation follow from `seed`. Raises InputError where file,
    name or module are missing, and for what the file itself raises.
    """
    torch = require_extra("torch", text)
    path, _, member = text.rpartition(":")
    file = Path(path)
    if not file.is_file():
        raise InputError(
            "the file does not exist", where=path, cure="check the path; write FILE.py:NAME, e.g. net.py:Net"
        )
    code = _run(file, text)
    made = getattr(code, member, None)
    if made is None:
        raise InputError(
            f"{file.name} has no {member}", where=text, cure=suggestion(member, modules_in(file) or [""])
        )
    if isinstance(made, torch.nn.Module):
        return made
    torch.manual_seed(seed)
    try:
        module = made()
    except Exception as error:
        raise InputError(
            f"{member}() raised {type(error).__name__}: {error}",
            where=text,
            cure=f"mend {member}(), or use a class without arguments or a function that returns a module",
        ) from error
    if not isinstance(module, torch.nn.Module):
        raise InputError(
            f"{member}() returned an object of type {type(module).__name__}, not a torch.nn.Module",
            where=text,
            cure="return a torch.nn.Module object",
        )
    return module


def _run(file: Path, text: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"_pulptrain_user_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    code = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = code
    folder = str(file.resolve().parent)
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(code)
    except Exception as error:
        what = f"the file cannot be loaded: {type(error).__name__}: {error}"
        raise InputError(what, where=text, cure=f"run `python {file}` to find the line") from error
    finally:
        sys.path.remove(folder)
    return code


def modules_in(file: Path) -> list[str]:
    """Names of the classes and functions of a file, which is read and not run; [] if it is no Python."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError, OSError):
        return []
    return [node.name for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))]


def import_module_file(
    text: str,
    module: Any,
    input_shape: Sequence[int],
    loss: str | None = None,
    optimizer: str | None = None,
    *,
    integers: bool = False,
) -> ImportedModel:
    """`from_torch` of the module that `load_module` found at ``net.py:Net``, on an input of this shape."""
    torch = require_extra("torch", text)
    kind = next((item.dtype for item in module.parameters() if item.is_floating_point()), torch.float32)
    example = torch.zeros(tuple(input_shape), dtype=torch.int64 if integers else kind)
    file, _, member = text.rpartition(":")
    return from_torch(
        module, example, loss, optimizer, name=_title(member), where=f"{Path(file).name}:{member}"
    )
