# SPDX-License-Identifier: Apache-2.0
"""The module itself against the network it was made into: loss and gradients of one iteration by autograd."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from configs.errors import InputError
from importers.extras import require_extra
from importers.graph.weights import Given
from importers.torch.script import Script
from trainlib.ir.steps import Array
from trainlib.references.conditioning import Conditioning

ROUNDING = 1e-5
"""Share of the largest gradient of a parameter that may be lost in fp32 without anybody noticing."""

NOISE = 32.0
"""Times what the module's own gradients differ between fp32 and fp64 that ours may differ."""

Loss = Callable[[Any, Any], Any]
"""Of an output and a label, in PyTorch."""

Own = Callable[[], Conditioning | None]
"""Our graph in fp64, and how far fp32 moves it; None if that cannot be computed."""


@dataclass(frozen=True, slots=True)
class ModuleCheck:
    """What came of it: `worst` is the largest error over what is allowed, of tensor `tensor`; 1 is wrong.

    `not_in_fp32` are tensors that roundings to fp32 move too far to decide anything: in fp64 they are right.
    """

    compared: int
    worst: float
    tensor: str
    not_in_fp32: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether all are right."""
        return self.worst <= 1

    def as_dict(self) -> dict[str, Any]:
        """For the summary of a run."""
        return {
            "tensors": self.compared,
            "worst_error_of_tolerance": self.worst,
            "worst_tensor": self.tensor,
            "passed": self.passed,
            "not_decidable_in_fp32": list(self.not_in_fp32),
        }


def gradients_of_module(
    module: Any,
    loss: Loss | Script,
    sources: Mapping[str, Given],
    sample: Mapping[str, Array],
    *,
    double: bool,
) -> dict[str, Array]:
    """Loss and gradients of a copy of the module, by the names of our tensors.

    `sample` has the inputs, in the order of forward, and ``label`` as our loss wants it, or what a script
    names. A parameter without a gradient has zeros.
    """
    torch = require_extra("torch")
    held = [item for part in module.modules() for item in vars(part).values()]
    computed = [item for item in held if isinstance(item, torch.Tensor) and not item.is_leaf]  # weight_norm
    copied = copy.deepcopy(module, {id(item): item.detach() for item in computed})
    copied = copied.double() if double else copied.float()
    kind = torch.float64 if double else torch.float32
    fed = {name: torch.tensor(array) for name, array in sample.items()}
    fed = {name: item.to(kind) if item.is_floating_point() else item.long() for name, item in fed.items()}
    if isinstance(loss, Script):
        value = loss.computed(copied, fed)
    else:
        label = fed.pop("label", None)
        try:
            output = copied(*fed.values())
        except Exception as error:  # of any kind, as the module likes
            raise InputError(
                f"forward fails in PyTorch with {kind} numbers: {str(error).splitlines()[0]}",
                where=type(module).__name__,
                cure="call the module with such inputs in PyTorch, and correct forward",
            ) from error
        while isinstance(output, (tuple, list)):
            (output,) = output
        if label is not None and label.is_floating_point():
            output = output.reshape(label.shape)  # a number per sample is [batch, 1] here
        value = loss(output, label)
    value.backward()
    parameters = dict(copied.named_parameters(remove_duplicate=False))
    gradients = {"loss": value.detach().reshape(1).numpy()}
    for tensor, given in sources.items():
        parameter = parameters.get(given.source)
        if parameter is None or given.places is None or not given.trained:
            continue
        whole = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
        gradients[f"{tensor}.grad"] = whole.detach().numpy().ravel()[given.places]
    return gradients


def check_module(
    module: Any,
    loss: Loss | Script,
    sources: Mapping[str, Given],
    sample: Mapping[str, Array],
    results: Mapping[str, Array],
    own: Own = lambda: None,
) -> ModuleCheck:
    """Compare `results` (loss and gradients by our names) with the module's own, as `judged` says."""
    exact = gradients_of_module(module, loss, sources, sample, double=True)
    single = gradients_of_module(module, loss, sources, sample, double=False)
    return judged(results, exact, single, own)


def judged(
    results: Mapping[str, Array],
    exact: Mapping[str, Array],
    single: Mapping[str, Array],
    own: Own = lambda: None,
) -> ModuleCheck:
    """Those of `results` that are in `exact` against it; `single` is the same computed in fp32.

    What is allowed is `ROUNDING` of the largest element and `NOISE` times what `single` is off. PyTorch sums
    many ops in fp64, so a tensor off by more is asked how far fp32 moves it (`own`, called only then): it is
    not decidable in fp32 if that explains the error and our graph in fp64 is the truth.
    """
    worst, tensor, count = 0.0, "", 0
    own = cache(own)  # it evaluates the graph nine times
    open_ones: list[str] = []
    for name, array in results.items():
        if name not in exact:
            continue
        truth = exact[name]
        noise = np.abs(single[name] - truth).max(initial=0)
        room = ROUNDING * max(np.abs(truth).max(initial=0), 1e-6) + NOISE * noise
        off = float(np.abs(array.astype(np.float64) - truth).max(initial=0))
        error = float(off / room)
        count += 1
        if not error <= 1:
            moved = own()
            if moved is not None and moved.explains(name, off - room, NOISE) and moved.confirms(name, truth):
                open_ones.append(name)
                continue
        if not error <= worst:
            worst, tensor = error, name
    return ModuleCheck(count, worst, tensor, tuple(open_ones))
