# SPDX-License-Identifier: Apache-2.0
"""Cases of the list of a hundred on the simulated machine, held against PyTorch in float64."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

import pulptrain as pt
from configs.errors import PulptrainError
from shared.paths import ROOT
from shared.torch_index import CASES, Case, Step, Training, trained

STORED = ROOT / "tests" / "torch-index.json"
"""How all cases ended, for docs/pytorch.md; user CPU seconds, the first with what PyTorch loads."""

RIGHT, REFUSED, WRONG = "right", "refused", "wrong"

RELATIVE, ABSOLUTE = 2e-6, 2e-7
"""Of the largest element of a tensor, and beside it: the gradient of a bias before a norm is 0."""


@dataclass(frozen=True)
class Outcome:
    """How a case ended: `reason` says why it is refused, or what is wrong."""

    case: Case
    status: str
    seconds: float
    reason: str = ""


def outcome(case: Case) -> Outcome:
    """Two steps of training: losses, gradients of the second, weights and averages after each."""
    begun = time.process_time()
    try:
        wrong = _wrong(case)
    except PulptrainError as error:
        return Outcome(case, REFUSED, time.process_time() - begun, _short(error))
    return Outcome(case, WRONG if wrong else RIGHT, time.process_time() - begun, wrong)


def _short(error: PulptrainError) -> str:
    """Why, without names of files and nodes, and without what to do."""
    first, *nodes = [line.strip() for line in error.message.splitlines()]
    node = nodes[0].partition(" (")[2].replace("): ", ": ", 1) if nodes else first
    return re.sub(r"(, | \()[^ ]*\.py:\d+\)?|; (nearest|try: ).*", "", node)


def _wrong(case: Case) -> str:
    """What is not as in PyTorch; "" if all is right."""
    training = case.training()
    model = taken(training)
    data = list(_samples(model, training))
    run = pt.run(model, iterations=2, data=data, values=model.values, cache=False)
    steps = list(trained(case.in_double()))
    if run.numbers_right is False:
        return "the number check of the run has failed"
    for name, ours, exact in _pairs(model, run, steps):
        if training.accumulate > 1 and name.endswith(".grad"):
            continue  # what is left of gradients is of the last mini-batch, the weights are of their mean
        size = np.abs(exact).max(initial=0)
        error = np.abs(np.asarray(ours, np.float64).reshape(exact.shape) - exact).max(initial=0)
        if not error <= RELATIVE * size + ABSOLUTE:
            return f"{name} is off by {error:.1e} of {size:.1e}"
    return ""


def taken(training: Training) -> pt.Model:
    """The training as it is taken over."""
    inputs, labels = training.batches[0]
    return pt.from_torch(
        training.module,
        inputs,
        training.loss,
        training.optimizer,
        labels=labels or None,
        lr_schedule=training.schedule,
        clip_norm=training.clip_norm,
        clip_value=training.clip_value,
        accumulate=training.accumulate if training.accumulate > 1 else None,
        average=training.averaged,
    )


def _samples(model: pt.Model, training: Training) -> Iterator[tuple[dict, dict]]:
    """Sample by sample, by the names of inputs and labels."""
    script = model.foreign.script
    inputs = {item.name: item.shape for item in model.spec.inputs}
    names = script.names if script is not None else (*inputs, "label")
    for fed, labels in training.batches:
        for number in range(len(fed[0])):
            arrays = zip(names, (*fed, *labels), strict=True)
            sample = {name: item[number].numpy() for name, item in arrays}
            x = {name: array.reshape(inputs[name]) for name, array in sample.items() if name in inputs}
            yield x, {name: array for name, array in sample.items() if name not in inputs}


def _pairs(model: pt.Model, run: pt.Result, steps: list[Step]) -> Iterator[tuple[str, object, np.ndarray]]:
    """(what, ours, exact) of everything that is compared."""
    values = run.values
    for number, step in enumerate(steps):
        yield f"loss {number + 1}", run.losses[number], np.array(step.loss)
    found = 0
    for tensor, given in model.foreign.sources.items():
        if given.places is None or not given.source:
            continue
        for name, exact in (
            (tensor, steps[1].weights),
            (f"before/{tensor}", steps[0].weights),
            (f"{tensor}.average", steps[1].averages),
            (f"results/{tensor}.grad", steps[1].gradients),
        ):
            if name in values and given.source in exact:
                found += name == tensor
                yield name, values[name], exact[given.source].numpy().ravel()[given.places]
    yield "number of weights", found > 0, np.array(True)


def main() -> None:
    """Write how all cases end: `PYTHONPATH=tests python -m shared.torch_index_runs`, some minutes."""
    found = [outcome(case) for case in CASES]
    rows = [
        {
            "section": item.case.section,
            "name": item.case.name,
            "status": item.status,
            "reason": item.reason,
            "seconds": round(item.seconds, 1),
        }
        for item in found
    ]
    STORED.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
