# SPDX-License-Identifier: Apache-2.0
"""The module itself against the network it was made into: loss and gradients of one iteration by autograd."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from importers.extras import require_extra
from importers.graph.weights import Given
from importers.torch.script import Script
from trainlib.ir.steps import Array

ROUNDING = 1e-5
"""Share of the largest gradient of a parameter that may be lost in fp32 without anybody noticing."""

NOISE = 32.0
"""Times what the module's own gradients differ between fp32 and fp64 that ours may differ."""

Loss = Callable[[Any, Any], Any]
"""Of an output and a label, in PyTorch."""


@dataclass(frozen=True, slots=True)
class ModuleCheck:
    """What came of it: `worst` is the largest error over what is allowed, of tensor `tensor`; 1 is wrong."""

    compared: int
    worst: float
    tensor: str

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
    copied = copy.deepcopy(module)
    copied = copied.double() if double else copied.float()
    kind = torch.float64 if double else torch.float32
    fed = {name: torch.tensor(array) for name, array in sample.items()}
    fed = {name: item.to(kind) if item.is_floating_point() else item.long() for name, item in fed.items()}
    if isinstance(loss, Script):
        value = loss.computed(copied, fed)
    else:
        label = fed.pop("label", None)
        output = copied(*fed.values())
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
) -> ModuleCheck:
    """Compare `results` (loss and gradients by the names of our tensors) with the module's own.

    What is allowed for a gradient is `ROUNDING` of its largest element and `NOISE` times what the module's
    own one differs between fp32 and fp64.
    """
    exact = gradients_of_module(module, loss, sources, sample, double=True)
    single = gradients_of_module(module, loss, sources, sample, double=False)
    return judged(results, exact, single)


def judged(
    results: Mapping[str, Array], exact: Mapping[str, Array], single: Mapping[str, Array]
) -> ModuleCheck:
    """Those of `results` that are in `exact` against it; `single` is the same computed in fp32."""
    worst, tensor, count = 0.0, "", 0
    for name, array in results.items():
        if name not in exact:
            continue
        truth = exact[name]
        noise = np.abs(single[name] - truth).max(initial=0)
        room = ROUNDING * max(np.abs(truth).max(initial=0), 1e-6) + NOISE * noise
        error = float(np.abs(array.astype(np.float64) - truth).max(initial=0) / room)
        count += 1
        if not error <= worst:
            worst, tensor = error, name
    return ModuleCheck(count, worst, tensor)
