# SPDX-License-Identifier: Apache-2.0
"""Graphs with goldens, replayed: imported, simulated, trained on their samples, compared with what they left.

A case is a folder with `inputs.npz`, `outputs.npz` and a graph. `X_optimizer` beside `X_train`, or
`optimizer_model.onnx` inside, is its optimizer. A folder of ONNX Runtime's artifacts gives two rows: its
training graph as it is, and the network alone, of which the training is derived.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from configs.errors import DoesNotFitError, InputError, PulptrainError, WrongNumbersError
from configs.model_file import OptimizerSpec
from importers.onnx_file import load_onnx
from importers.onnx_forward import ImportedModel, import_forward
from importers.onnx_graph import OnnxGraph
from importers.onnx_training import (
    DEFAULT_LEARNING_RATE,
    OPTIMIZER_FILE,
    ImportedTraining,
    import_training,
    is_training_graph,
    optimizer_beside,
)
from pulptrain.goldens import Goldens, read_goldens
from pulptrain.graph_run import prepare_phases
from pulptrain.machine import Machine
from pulptrain.number_check import NumberCheck
from pulptrain.settings import Settings, code_start
from scheduler.memory.host_memory import HostUse
from trainlib.graph import KEPT_KINDS, TrainingGraph
from trainlib.reference import evaluate
from trainlib.steps import Array
from trainlib.training import TrainingPhases, build_training_phases, initial_weights

RIGHT, REFUSED, WRONG, FAILED = "right", "refused", "wrong", "failed"

LOSS_TOLERANCE = 1e-5
"""Of a loss, relative to the golden one or 1 if that is smaller: fp32, some dozens of roundings."""

VALUE_TOLERANCE = 1e-6
"""Of a weight after training, relative to the largest of its tensor or 1 if that is smaller.

A wrong number of mini-batches per update moves weights by 1e-4 and more (reference replays: 2e-8).
"""

OUTPUT_TOLERANCE = 1e-5
"""Of an output of the network, as a loss."""

TRAINING, EVALUATION = "training_model.onnx", "eval_model.onnx"
"""Files of ONNX Runtime's training artifacts."""


@dataclass(frozen=True, slots=True)
class ReplayRow:
    """One replayed graph. Errors are the largest absolute ones of losses, and of weights or outputs.

    `cycles` and `seconds` are those of one update on the SoC; `n_accum` mini-batches have made one.
    """

    name: str
    nodes: int | None
    status: str
    loss_error: float | None = None
    value_error: float | None = None
    n_accum: int | None = None
    cycles: int | None = None
    seconds: float | None = None
    reason: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Case:
    """One graph to replay: its name, its file, that of its optimizer, and the folder of its goldens."""

    name: str
    file: Path
    optimizer: Path | None
    folder: Path


def find_cases(folders: Sequence[str]) -> tuple[list[Case], list[str]]:
    """The cases below some folders, in the order of their names, and notes on files that are passed over.

    Raises InputError for what is no folder, and where there is no case at all.
    """
    cases: list[Case] = []
    notes: list[str] = []
    for name in folders:
        root = Path(name)
        if not root.is_dir():
            raise InputError(f"'{name}' is no folder", where="replay", cure="a folder with cases below it")
        for inputs in sorted(root.rglob("inputs.npz")):
            folder = inputs.parent
            if (folder / "outputs.npz").is_file():
                label = folder.relative_to(root).as_posix()
                found, passed = _in_folder(folder, label if label != "." else root.resolve().name)
                cases += found
                notes += passed
    if not cases:
        raise InputError(
            f"no case below {', '.join(folders)}",
            where="replay",
            cure="a folder with inputs.npz, outputs.npz and an .onnx file",
        )
    return cases, notes


def _in_folder(folder: Path, label: str) -> tuple[list[Case], list[str]]:
    files = sorted(folder.glob("*.onnx"))
    notes = [f"{label}: {EVALUATION} is not replayed" for file in files if file.name == EVALUATION]
    optimizer = optimizer_beside(folder)
    graphs = [file for file in files if file.name not in (EVALUATION, OPTIMIZER_FILE)]
    # The training graph first, then the network it was made of.
    graphs.sort(key=lambda file: (file.name != TRAINING, file.name))
    several = len(graphs) > 1 or (folder / TRAINING).is_file()
    return [
        Case(f"{label}:{file.stem}" if several else label, file, optimizer, folder) for file in graphs
    ], notes


def replay(
    case: Case,
    settings: Settings,
    *,
    learning_rate: float | None = None,
    mini_batches: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ReplayRow:
    """Import a graph, simulate one update, train on its samples and compare. Raises nothing but interrupts.

    `mini_batches` per update are found from the losses if neither they nor the goldens say how many.
    """
    nodes: int | None = None
    try:
        goldens = read_goldens(case.folder)
        graph = load_onnx(case.file)
        nodes = len(graph.nodes) + len(graph.folded)
        if is_training_graph(graph):
            optimizer = load_onnx(case.optimizer) if case.optimizer is not None else None
            return _training(case, graph, optimizer, goldens, settings, learning_rate, mini_batches, progress)
        return _forward(case, graph, goldens, settings, learning_rate, progress)
    except DoesNotFitError as error:
        return ReplayRow(case.name, nodes, FAILED, reason=_line(error))
    except WrongNumbersError as error:
        return ReplayRow(case.name, nodes, WRONG, reason=_line(error))
    except InputError as error:
        return ReplayRow(case.name, nodes, REFUSED, reason=str(error))
    except PulptrainError as error:
        return ReplayRow(case.name, nodes, FAILED, reason=_line(error))


def _line(error: PulptrainError) -> str:
    return str(error).splitlines()[0]


def exit_code(rows: Sequence[ReplayRow]) -> int:
    """0 if all are right; 1 if any failed, 5 if any is wrong, 2 if any could not be taken."""
    found = {row.status for row in rows}
    return next((code for status, code in ((FAILED, 1), (WRONG, 5), (REFUSED, 2)) if status in found), 0)


def _training(
    case: Case,
    graph: OnnxGraph,
    optimizer: OnnxGraph | None,
    goldens: Goldens,
    settings: Settings,
    learning_rate: float | None,
    mini_batches: int | None,
    progress: Callable[[int, int], None] | None,
) -> ReplayRow:
    imported = import_training(graph, optimizer, learning_rate)
    start = _zeros(imported.phases) | dict(imported.values) | goldens.start(imported, graph)
    samples = [imported.sample(sample) for sample in goldens.samples(imported.data)]
    count = mini_batches or goldens.mini_batches
    notes = list(imported.notes)
    if count is None:
        count = _found(imported, start, samples, goldens.losses)
        if imported.accumulates and len(samples) > 1:
            notes.append(f"{count} mini-batches per update, found from the losses")
    imported = imported.over(count)
    run = _Run(imported.phases, settings, start)
    run.train(samples, progress)
    after = run.kept()
    expected = goldens.weights(imported.given, graph)
    missing = [name for name in imported.weights if name not in expected]
    errors = _errors(expected, {**graph.initializers, **graph.folded, **after})
    if missing:
        notes.append(f"no golden of {', '.join(missing[:3])}")
    return _row(case, imported.nodes, run, goldens, errors, count, notes, VALUE_TOLERANCE)


def _forward(
    case: Case,
    graph: OnnxGraph,
    goldens: Goldens,
    settings: Settings,
    learning_rate: float | None,
    progress: Callable[[int, int], None] | None,
) -> ReplayRow:
    rate = learning_rate or DEFAULT_LEARNING_RATE
    model = import_forward(
        graph,
        optimizer=OptimizerSpec("sgd", {"learning_rate": rate}, str(case.file)),
        trained=goldens.trained,
    )
    phases = build_training_phases(model.spec)
    mini = phases.mini_batch
    start = initial_weights(mini, settings.seed) | {
        name: value for name, value in model.values.items() if name in mini.tensors
    }
    samples = [_fed(mini, model, sample, label) for sample, label in goldens.forward_samples(graph.inputs[0])]
    run = _Run(phases, settings, start)
    run.train(samples, progress)
    if goldens.losses is None:
        output = goldens.output(graph.outputs[0])
        found = run.first_output.reshape(output.shape) if output.size == run.first_output.size else None
        errors = {
            graph.outputs[0]: (float("inf") if found is None else _error(found, output), _scale(output))
        }
        return _row(case, model.nodes, run, goldens, errors, None, [], OUTPUT_TOLERANCE)
    theirs = model.theirs(run.kept(), goldens.given_weights)
    errors = _errors(goldens.all_weights, theirs)
    return _row(case, model.nodes, run, goldens, errors, 1, [], VALUE_TOLERANCE)


def _fed(mini: TrainingGraph, model: ImportedModel, sample: Array, label: Array | None) -> dict[str, Array]:
    """Values of the tensors of one iteration; without a label zeros, of which only the loss depends."""
    source, wanted = mini.tensors[mini.input], mini.tensors[mini.label]
    x = model.sample(sample).astype(source.dtype).reshape(source.shape)
    given = np.zeros(wanted.shape, wanted.dtype) if label is None else label
    return {mini.input: np.ascontiguousarray(x), mini.label: given.astype(wanted.dtype).reshape(wanted.shape)}


def _zeros(phases: TrainingPhases) -> dict[str, Array]:
    graph = phases.mini_batch
    found: dict[str, Array] = {}
    for name in graph.of_kind(*KEPT_KINDS):
        found[name] = np.zeros(graph.tensors[name].shape, graph.tensors[name].dtype)
    return found


class _Run:
    """One graph on the SoC: the losses of all mini-batches, and what is kept in the end."""

    def __init__(self, phases: TrainingPhases, settings: Settings, start: Mapping[str, Array]) -> None:
        prepared = prepare_phases(phases, settings, HostUse(numbers=True))
        self.machine = Machine(prepared, functional=True, code_start=code_start(settings))
        self.phases = phases
        self.frequency_hz = prepared.timing.clock.cluster_hz
        self.losses: list[float] = []
        self.first_output: Array = np.zeros(0)
        self._start = dict(start)
        self.machine.load_kept(start)

    def train(
        self, samples: Sequence[Mapping[str, Array]], progress: Callable[[int, int], None] | None
    ) -> None:
        """All samples, an update after every group; every tensor of the first update is checked.

        Raises `WrongNumbersError` if the machine has not computed what an op is.
        """
        size = self.phases.mini_batches
        if len(samples) % size:
            raise InputError(
                f"{len(samples)} mini-batches are no whole number of updates of {size}",
                where="n_accum",
                cure="a divisor",
            )
        check = NumberCheck(self._start, self.phases.programs, 1)
        for first in range(0, len(samples), size):
            group = list(samples[first : first + size])
            self.losses += self.machine.iterate(group, check if first == 0 else None)
            if first == 0:
                self._judge(check)
            if progress is not None:
                progress(first + size, len(samples))

    def _judge(self, check: NumberCheck) -> None:
        graph = self.phases.mini_batch
        if graph.output and self.phases.mini_batches == 1:
            self.first_output = self.machine.mini.executor.fetch(graph.output)
        if check.wrong:
            worst = check.summary()["worst_tensor"]
            raise WrongNumbersError(
                f"tensor {worst} is not what its op makes of its inputs", where=graph.name
            )

    def kept(self) -> dict[str, Array]:
        """Weights and states as they are now."""
        return self.machine.fetch_kept()

    @property
    def cycles(self) -> int:
        """Of one update: its mini-batches and, if it is a program of its own, the update."""
        last = self.machine.last
        return self.machine.mini.cycles * self.phases.mini_batches + (last.cycles if last is not None else 0)


def _row(
    case: Case,
    nodes: int,
    run: _Run,
    goldens: Goldens,
    errors: Mapping[str, tuple[float, float]],
    count: int | None,
    notes: list[str],
    tolerance: float,
) -> ReplayRow:
    """Right or wrong: errors (absolute, and the size they are relative to) against what is allowed."""
    wrong: list[str] = []
    loss_error = None
    if goldens.losses is not None:
        expected = goldens.losses
        if len(expected) != len(run.losses):
            wrong.append(f"{len(run.losses)} losses, {len(expected)} goldens")
        else:
            differences = np.abs(np.array(run.losses) - expected)
            loss_error = float(differences.max())
            astray = np.flatnonzero(~(differences <= LOSS_TOLERANCE * np.maximum(1, np.abs(expected))))
            if astray.size:
                at = int(astray[0])
                wrong.append(f"loss {at} is {run.losses[at]:.7g}, not {expected[at]:.7g}")
    for name, (error, scale) in errors.items():
        if not error <= tolerance * scale:
            wrong.append(f"{name} is off by {error:.3g}")
    if not errors and loss_error is None:
        wrong.append("nothing to compare with")
    value_error = max((error for error, _ in errors.values()), default=None)
    cycles = run.cycles
    return ReplayRow(
        name=case.name,
        nodes=nodes,
        status=WRONG if wrong else RIGHT,
        loss_error=loss_error,
        value_error=value_error,
        n_accum=count,
        cycles=cycles,
        seconds=cycles / run.frequency_hz,
        reason="; ".join([*wrong[:3], *notes]),
    )


def _errors(expected: Mapping[str, Array], found: Mapping[str, Array]) -> dict[str, tuple[float, float]]:
    """Largest absolute error of every golden, and the size it is relative to; a missing one is wrong."""
    result: dict[str, tuple[float, float]] = {}
    for name, golden in expected.items():
        array = found.get(name)
        fits = array is not None and array.size == golden.size
        error = _error(array.reshape(golden.shape), golden) if array is not None and fits else float("inf")
        result[name] = error, _scale(golden)
    return result


def _error(found: Array, golden: Array) -> float:
    difference = np.abs(found.astype(np.float64) - golden.astype(np.float64))
    return float(difference.max(initial=0.0)) if np.isfinite(difference).all() else float("inf")


def _scale(golden: Array) -> float:
    return max(1.0, float(np.abs(golden).max(initial=0.0)))


def _found(
    imported: ImportedTraining,
    start: Mapping[str, Array],
    samples: Sequence[Mapping[str, Array]],
    losses: Array | None,
) -> int:
    """How many mini-batches make an update: as long as the losses are those of the weights at the start.

    Computed without the machine, and compared with the machine's replay afterwards as anything else.
    """
    if not imported.accumulates or losses is None or len(losses) != len(samples):
        return 1
    graph, same = imported.phases.mini_batch, 0
    for sample, golden in zip(samples, losses, strict=True):
        loss = float(evaluate(graph, {**start, **sample})[graph.loss].reshape(-1)[0])
        if not abs(loss - golden) <= LOSS_TOLERANCE * max(1.0, abs(golden)):
            break
        same += 1
    return max((size for size in _divisors(len(samples)) if size <= max(same, 1)), default=1)


def _divisors(count: int) -> Iterator[int]:
    return (size for size in range(1, count + 1) if count % size == 0)
