# SPDX-License-Identifier: Apache-2.0
"""Graphs with goldens, replayed: imported, simulated, trained on their samples, compared with what they left.

A case is a folder with `inputs.npz`, `outputs.npz` and a graph. `X_optimizer` beside `X_train`, or
`optimizer_model.onnx` inside, is its optimizer. A folder of ONNX Runtime's artifacts gives two rows: its
training graph as it is, and the network alone, of which the training is derived.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from pathlib import Path

import numpy as np

from configs.errors import (
    DoesNotFitError,
    InputError,
    NotFiniteError,
    PulptrainError,
    WrongNumbersError,
)
from configs.model_file import OptimizerSpec
from configs.values import Struct, replace
from importers.graph.onnx_file import load_onnx
from importers.graph.onnx_graph import OnnxGraph
from importers.onnx.forward import ImportedModel, import_forward
from importers.training.graph import (
    DEFAULT_LEARNING_RATE,
    OPTIMIZER_FILE,
    ImportedTraining,
    as_tensor,
    import_nodes,
    import_training,
    is_training_graph,
    optimizer_beside,
    trains_weights,
)
from pulptrain.foreign.foreign_check import missing_torch
from pulptrain.foreign.golden_updates import (
    NOT_DECIDABLE,
    RIGHT,
    WRONG,
    GoldenUpdate,
    JudgedUpdate,
    judge_updates,
    trained,
)
from pulptrain.foreign.goldens import Goldens, read_goldens
from pulptrain.inputs.settings import Settings, code_start
from pulptrain.inputs.source_kind import refuse_others
from pulptrain.running.graph_run import prepare_phases
from pulptrain.running.machine import Machine
from pulptrain.running.number_check import NumberCheck
from scheduler.memory.host_memory import HostUse
from trainlib.ir.graph import KEPT_KINDS, TrainingGraph
from trainlib.ir.steps import Array
from trainlib.references.conditioning import NUDGED
from trainlib.references.reference import evaluate
from trainlib.training.phases import (
    TrainingPhases,
    build_forward_graph,
    build_training_phases,
    initial_weights,
)
from trainlib.training.step_choice import as_in_inference

REFUSED, TOO_LARGE, FAILED = "refused", "too large", "failed"
"""Statuses of a row that was not compared; the others are the verdicts of
`pulptrain.foreign.golden_updates`."""

LOSS_TOLERANCE = 1e-5
"""Of a loss, relative to the golden one or 1 if that is smaller: fp32, some dozens of roundings."""

NOTHING_TRAINS = "nothing to train: forward only"
"""The note of a graph without updates."""

OUTPUT_TOLERANCE = 1e-5
"""Of an output of the network, as a loss."""

CONTRADICTED = "the golden contradicts the file, from which PyTorch computes the simulated {}"
"""Said of a wrong row, which nobody needs to look for here."""

TRAINING, EVALUATION = "training_model.onnx", "eval_model.onnx"
"""Files of ONNX Runtime's training artifacts."""


class ReplayRow(Struct, frozen=True):
    """One replayed graph. Errors are the largest absolute ones of losses, and of weights or outputs.

    `update_error` and `gradient_error` are the worst of a tensor that is decidable, relative to the largest
    element of its update, or of its gradient; `not_decidable` of `tensors` are not. `cycles` and `seconds`
    are those of one update on the SoC; `n_accum` mini-batches have made one.
    """

    name: str
    nodes: int | None
    status: str
    loss_error: float | None = None
    value_error: float | None = None
    update_error: float | None = None
    gradient_error: float | None = None
    tensors: int | None = None
    not_decidable: int | None = None
    n_accum: int | None = None
    cycles: int | None = None
    seconds: float | None = None
    reason: str = ""


class ReplayCase(Struct, frozen=True):
    """One graph to replay: its name, its file, that of its optimizer, and the folder of its goldens."""

    name: str
    file: Path
    optimizer: Path | None
    folder: Path


def find_cases(folders: Sequence[str]) -> tuple[list[ReplayCase], list[str]]:
    """The cases below some folders, in the order of their names, and notes on files that are passed over.

    Raises InputError for what is no folder, and where there is no case at all.
    """
    cases: list[ReplayCase] = []
    notes: list[str] = []
    for name in folders:
        root = Path(name)
        if not root.is_dir():
            refuse_others(name, "cases", "replay")
            raise InputError(
                f"'{name}' is not a folder",
                where="replay",
                cure="name the folder of an ONNX test case (with inputs.npz), or a folder of such folders",
            )
        for inputs in sorted(root.rglob("inputs.npz")):
            folder = inputs.parent
            if (folder / "outputs.npz").is_file():
                label = folder.relative_to(root).as_posix()
                inside, passed = _in_folder(folder, label if label != "." else root.resolve().name)
                cases += inside
                notes += passed
    if not cases:
        raise InputError(
            f"no ONNX test case in {', '.join(folders)}",
            where="replay",
            cure="use folders with inputs.npz, outputs.npz and an .onnx file",
        )
    return cases, notes


def _in_folder(folder: Path, label: str) -> tuple[list[ReplayCase], list[str]]:
    files = sorted(folder.glob("*.onnx"))
    notes = [f"{label}: cannot replay {EVALUATION}" for file in files if file.name == EVALUATION]
    optimizer = optimizer_beside(folder)
    graphs = [file for file in files if file.name not in (EVALUATION, OPTIMIZER_FILE)]
    # The training graph first, then the network it was made of.
    graphs.sort(key=lambda file: (file.name != TRAINING, file.name))
    several = len(graphs) > 1 or (folder / TRAINING).is_file()
    return [
        ReplayCase(f"{label}:{file.stem}" if several else label, file, optimizer, folder) for file in graphs
    ], notes


def replay(
    case: ReplayCase,
    settings: Settings,
    *,
    learning_rate: float | None = None,
    mini_batches: int | None = None,
) -> ReplayRow:
    """Import a graph, simulate one update, train on its samples and compare. Raises nothing but interrupts.

    `mini_batches` per update are found from the losses if neither they nor the goldens say how many.
    """
    nodes: int | None = None
    try:
        goldens = read_goldens(case.folder)
        graph = load_onnx(case.file)
        nodes = len(graph.nodes) + len(graph.folded)
        if trains_weights(graph):
            optimizer = load_onnx(case.optimizer) if case.optimizer is not None else None
            return _training(case, graph, optimizer, goldens, settings, learning_rate, mini_batches)
        return _without_updates(case, graph, goldens, settings, learning_rate)
    except DoesNotFitError as error:
        return ReplayRow(case.name, nodes, TOO_LARGE, reason=_line(error))
    except WrongNumbersError as error:
        return ReplayRow(case.name, nodes, WRONG, reason=_line(error))
    except InputError as error:
        return ReplayRow(case.name, nodes, REFUSED, reason=str(error))
    except PulptrainError as error:
        return ReplayRow(case.name, nodes, FAILED, reason=_line(error))


def _line(error: PulptrainError) -> str:
    return str(error).splitlines()[0]


def exit_code(rows: Sequence[ReplayRow]) -> int:
    """0 if all are right or open, else that of the first that occurs: failed, wrong, refused, too large."""
    statuses = {row.status for row in rows}
    codes = {FAILED: 1, WRONG: 5, REFUSED: 2, TOO_LARGE: 3}
    return next((code for status, code in codes.items() if status in statuses), 0)


def _training(
    case: ReplayCase,
    graph: OnnxGraph,
    optimizer: OnnxGraph | None,
    goldens: Goldens,
    settings: Settings,
    learning_rate: float | None,
    mini_batches: int | None,
) -> ReplayRow:
    imported = import_training(graph, optimizer, learning_rate)
    start = _zeros(imported.phases) | dict(imported.values) | goldens.start(imported, graph)
    samples = [imported.sample(sample) for sample in goldens.samples(imported.data)]
    count = mini_batches or goldens.mini_batches
    notes = list(imported.notes)
    if count is None:
        count = _found(imported, start, samples, goldens.losses)
        if imported.accumulates and len(samples) > 1:
            notes.append(f"{count} mini-batches per update, derived from the losses")
    imported = imported.over(count)
    run = _Run(imported.phases, settings, start)
    run.train(samples)
    expected = goldens.weights(imported.given, graph)
    missing = [name for name in imported.weights if name not in expected]
    if missing:
        notes.append(f"stored results are missing: {', '.join(missing[:3])}")
    constants = {**graph.initializers, **graph.folded}
    names = _Names(lambda kept: {**constants, **kept}, lambda gradients: gradients, lambda name: name)
    judged = _judged(run, names, start, samples, expected, goldens.gradients)
    wrong = {item.name for item in judged if item.verdict == WRONG}
    if wrong and imported.phases.update is None:
        updates, fed = imported.phases.mini_batch.updates, goldens.samples(imported.data)
        if _trains_as_the_file(graph, updates, fed, names.kept(start), names.kept(run.state()), wrong):
            notes.insert(0, CONTRADICTED.format("weights"))
    return _row(case, imported.nodes, run, goldens.losses, judged, count, notes)


def _without_updates(
    case: ReplayCase,
    graph: OnnxGraph,
    goldens: Goldens,
    settings: Settings,
    learning_rate: float | None,
) -> ReplayRow:
    """A model; or what is none, node by node: a test of a kernel may have no batch, or many inputs."""
    if len(graph.inputs) != 1 or len(graph.outputs) != 1 or is_training_graph(graph):
        return _nodes(case, graph, goldens, settings)
    try:
        return _forward(case, graph, goldens, settings, learning_rate)
    except InputError as refusal:
        try:
            return _nodes(case, graph, goldens, settings)
        except InputError:
            raise refusal from None


def _nodes(case: ReplayCase, graph: OnnxGraph, goldens: Goldens, settings: Settings) -> ReplayRow:
    """A graph that trains nothing, node by node: each output beside its golden."""
    expected = goldens.arrays(graph.outputs, "outputs")
    imported = import_nodes(graph)
    run = _Run(imported.phases, settings, dict(imported.values))
    fed = goldens.arrays(graph.inputs)
    run.train([imported.sample(fed)])
    rows = [
        _output_row(case, graph, imported.nodes, run, name, run.fetched(imported.fed[name]), golden, fed)
        for name, golden in expected.items()
    ]
    return max(rows, key=lambda row: (row.status == WRONG, row.value_error or 0))


def _forward(
    case: ReplayCase,
    graph: OnnxGraph,
    goldens: Goldens,
    settings: Settings,
    learning_rate: float | None,
) -> ReplayRow:
    rate = learning_rate or DEFAULT_LEARNING_RATE
    model = import_forward(
        graph,
        optimizer=OptimizerSpec("sgd", {"learning_rate": rate}, str(case.file)),
        trained=goldens.trained,
    )
    trains = any(given.trained for given in model.sources.values())
    phases = (
        build_training_phases(model.spec)
        if trains
        else TrainingPhases(build_forward_graph(as_in_inference(model.spec)))
    )
    mini = phases.mini_batch
    start = initial_weights(mini, settings.seed) | {
        name: value for name, value in model.values.items() if name in mini.tensors
    }
    stored = goldens.forward_samples(graph.inputs[0])
    samples = [_fed(mini, model, sample, label) for sample, label in stored]
    run = _Run(phases, settings, start)
    run.train(samples)
    output = graph.outputs[0]
    if not goldens.has_output(output, run.first_output.size):
        why = f"no golden values for this graph: outputs.npz has no '{output}', only outputs of another graph"
        return _bare_row(case, model.nodes, run, NOT_DECIDABLE, [why])
    if goldens.losses is None or not goldens.is_artifact or not trains:
        fed = {graph.inputs[0]: stored[0][0]}
        golden, notes = goldens.output(output), () if trains else (NOTHING_TRAINS,)
        return _output_row(case, graph, model.nodes, run, output, run.first_output, golden, fed, notes)
    given = goldens.start_weights
    names = _Names(
        lambda kept: model.theirs(kept, given),
        lambda gradients: model.theirs(
            gradients, {name: np.zeros_like(given[name]) for name in goldens.gradients if name in given}
        ),
        lambda name: model.sources[name].source if name in model.sources else name,
    )
    judged = _judged(run, names, start, samples, goldens.all_weights, goldens.gradients)
    return _row(case, model.nodes, run, goldens.losses, judged, 1, [])


def _fed(mini: TrainingGraph, model: ImportedModel, sample: Array, label: Array | None) -> dict[str, Array]:
    """Values of the tensors of one iteration; without a label zeros, of which only the loss depends."""
    source = mini.tensors[mini.input]
    fed = {mini.input: as_tensor(model.feeds[mini.input], model.sample(sample), source)}
    if mini.label:
        wanted = mini.tensors[mini.label]
        given = np.zeros(wanted.shape, wanted.dtype) if label is None else label
        fed[mini.label] = given.astype(wanted.dtype).reshape(wanted.shape)
    return fed


def _zeros(phases: TrainingPhases) -> dict[str, Array]:
    graph = phases.mini_batch
    zeros: dict[str, Array] = {}
    for name in graph.of_kind(*KEPT_KINDS):
        zeros[name] = np.zeros(graph.tensors[name].shape, graph.tensors[name].dtype)
    return zeros


class _Run:
    """One graph on the SoC: the losses of all mini-batches, and what is kept in the end."""

    def __init__(self, phases: TrainingPhases, settings: Settings, start: Mapping[str, Array]) -> None:
        prepared = prepare_phases(phases, settings, HostUse(numbers=True))
        self.machine = Machine(prepared, functional=True, code_start=code_start(settings))
        self.phases = phases
        self.frequency_hz = prepared.timing.clock.cluster_hz
        self.losses: list[float] = []
        self.first_output: Array = np.zeros(0)
        self.gradients: dict[str, Array] = {}
        """Of the first mini-batch by weight, where it makes an update alone."""
        self._start = dict(start)
        self.machine.load_state(start)

    def train(self, samples: Sequence[Mapping[str, Array]]) -> None:
        """All samples, an update after every group; every tensor of the first update is checked.

        Raises `WrongNumbersError` if the machine has not computed what an op is, and where numbers overflow.
        """
        size = self.phases.mini_batches
        if len(samples) % size:
            raise InputError(
                f"{len(samples)} mini-batches are stored, but an update takes {size}",
                where="n_accum",
                cure=f"use a number that divides {len(samples)}",
            )
        check = NumberCheck(self._start, self.phases.programs, 1)
        for first in range(0, len(samples), size):
            group = list(samples[first : first + size])
            losses = self.machine.iterate(group, check if first == 0 else None)
            self.losses += [sum(terms) for terms in losses]
            if first == 0:
                self._judge(check)
            astray = self.machine.not_finite
            if astray is not None:
                raise WrongNumbersError(f"update {first // size + 1}: {astray.message}", where=astray.op)

    def fetched(self, name: str) -> Array:
        """A tensor of a program that is an update alone, as it lies in memory in the end."""
        return self.machine.mini.executor.fetch(name)

    def _judge(self, check: NumberCheck) -> None:
        graph = self.phases.mini_batch
        if graph.output and self.phases.mini_batches == 1:
            self.first_output = self.machine.mini.executor.fetch(graph.output)
        if self.phases.mini_batches == 1:
            # What a program of its own updates with is kept; other gradients live as long as their program.
            totals = {gradient: total for total, gradient in self.phases.means.items()}
            self.gradients = {
                weight: self.machine.mini.executor.fetch(totals.get(name, name))
                for weight, name in graph.gradients.items()
            }
        if check.wrong:
            worst = check.summary()["worst_tensor"]
            raise WrongNumbersError(
                f"the simulated tensor {worst} differs from the NumPy result of the same op", where=graph.name
            )

    def state(self) -> dict[str, Array]:
        """Weights and states as they are now."""
        return self.machine.fetch_state()

    @property
    def cycles(self) -> int:
        """Of one update: its mini-batches and, if it is a program of its own, the update."""
        last = self.machine.last
        return self.machine.mini.cycles * self.phases.mini_batches + (last.cycles if last is not None else 0)


class _Names(Struct, frozen=True):
    """What is ours under the names and in the shapes of the file: what is kept, gradients, one name."""

    kept: Callable[[Mapping[str, Array]], Mapping[str, Array]]
    gradients: Callable[[Mapping[str, Array]], Mapping[str, Array]]
    name: Callable[[str], str]


def _judged(
    run: _Run,
    names: _Names,
    start: Mapping[str, Array],
    samples: Sequence[Mapping[str, Array]],
    weights: Mapping[str, Array],
    gradients: Mapping[str, Array],
) -> list[JudgedUpdate]:
    """Verdicts on all weights and gradients of which there are goldens."""
    phases = run.phases
    updates = len(samples) // phases.mini_batches
    stored = {names.name(name): updates for name in (phases.update.updates if phases.update else ())}
    stored |= {names.name(name): len(samples) for name in phases.mini_batch.updates}
    before, after = names.kept(start), names.kept(run.state())
    compared = [
        _compared(name, golden, before.get(name), after.get(name), stored.get(name, 0))
        for name, golden in weights.items()
    ]
    ours = names.gradients(run.gradients)
    compared += [
        _compared(_gradient(name), golden, np.zeros_like(golden), ours.get(name), 0)
        for name, golden in gradients.items()
        if ours
    ]

    def draws() -> list[dict[str, Array]]:
        made = []
        for seed in (None, *range(NUDGED)):
            try:
                kept, slopes = trained(phases, start, samples, seed)
            except NotFiniteError:
                return []
            last = names.kept(kept)
            draw = {
                name: last[name].reshape(-1).astype(np.float64) - before[name].reshape(-1)
                for name in last
                if name in before
            }
            draw |= {
                _gradient(name): array.reshape(-1).astype(np.float64)
                for name, array in names.gradients(slopes).items()
            }
            made.append(draw)
        return made

    return judge_updates(compared, draws)


_GRADIENT_OF = "the gradient of "


def _gradient(name: str) -> str:
    return _GRADIENT_OF + name


def _is_gradient(item: JudgedUpdate) -> bool:
    return item.name.startswith(_GRADIENT_OF)


def _compared(
    name: str, golden: Array, before: Array | None, found: Array | None, stored: int
) -> GoldenUpdate:
    """One tensor, its arrays flat; what the graph does not have in this size is found nowhere."""
    flat = golden.reshape(-1)
    if before is None or found is None or not before.size == found.size == flat.size:
        return GoldenUpdate(name, np.zeros_like(flat), flat, None, stored)
    return GoldenUpdate(name, before.reshape(-1), flat, found.reshape(-1), stored)


def _row(
    case: ReplayCase,
    nodes: int,
    run: _Run,
    losses: Array | None,
    judged: Sequence[JudgedUpdate],
    count: int | None,
    notes: list[str],
) -> ReplayRow:
    """Right or wrong, or not decidable where not a single tensor is."""
    wrong: list[str] = []
    loss_error = None
    if losses is not None:
        if len(losses) != len(run.losses):
            wrong.append(f"the run has {len(run.losses)} losses, but outputs.npz has {len(losses)}")
        else:
            differences = np.abs(np.array(run.losses) - losses)
            loss_error = float(differences.max())
            astray = np.flatnonzero(~(differences <= LOSS_TOLERANCE * np.maximum(1, np.abs(losses))))
            if astray.size:
                at = int(astray[0])
                wrong.append(f"loss {at} is {run.losses[at]:.7g}, expected {losses[at]:.7g}")
    wrong += [str(item) for item in judged if item.verdict == WRONG]
    if not judged and loss_error is None:
        wrong.append("nothing to compare with")
    open_ones = [item.name for item in judged if item.verdict == NOT_DECIDABLE]
    if open_ones:
        notes = [*notes, f"not decidable, updates below ten times the rounding error: {_few(open_ones)}"]
    decided = [item for item in judged if item.verdict != NOT_DECIDABLE]
    status = WRONG if wrong else RIGHT if decided or not judged else NOT_DECIDABLE
    return replace(
        _bare_row(case, nodes, run, status, [*wrong[:3], *notes]),
        loss_error=loss_error,
        value_error=max((item.error for item in judged if not _is_gradient(item)), default=None),
        update_error=max((item.share for item in decided if not _is_gradient(item)), default=None),
        gradient_error=max((item.share for item in decided if _is_gradient(item)), default=None),
        tensors=len(judged),
        not_decidable=len(open_ones),
        n_accum=count,
    )


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _output_row(
    case: ReplayCase,
    graph: OnnxGraph,
    nodes: int,
    run: _Run,
    name: str,
    found: Array,
    golden: Array,
    fed: Mapping[str, Array],
    notes: Sequence[str] = (NOTHING_TRAINS,),
) -> ReplayRow:
    """Right or wrong by one output of a graph with these inputs; the reason says if the golden is."""
    error = _off(found, golden)
    status, reasons = RIGHT, list[str]()
    if error > _tolerance(golden):
        status, reasons = WRONG, [f"{name} is off by {error:.3g}"]
        literal = _literal(graph, fed, [name]).get(name)
        if literal is not None and _off(found, literal) <= _tolerance(literal):
            reasons.append(CONTRADICTED.format("output"))
    return replace(_bare_row(case, nodes, run, status, [*reasons, *notes]), value_error=error)


def _off(found: Array, golden: Array) -> float:
    """The largest difference; infinite if the sizes differ or one is not finite."""
    if golden.size != found.size:
        return np.inf
    difference = found.reshape(golden.shape).astype(np.float64) - golden
    return float(np.abs(difference).max(initial=0.0)) if np.isfinite(difference).all() else np.inf


def _tolerance(golden: Array) -> float:
    return OUTPUT_TOLERANCE * max(1.0, float(np.abs(golden).max(initial=0.0)))


def _literal(graph: OnnxGraph, fed: Mapping[str, Array], names: Collection[str]) -> dict[str, Array]:
    """Tensors of a graph in float64 as PyTorch reads the file, which shares nothing with the importers.

    None of them where PyTorch is missing or an op is not described.
    """
    if missing_torch():
        return {}
    from truth.onnx_graph import CannotComputeError, Computed, read_graph

    feeds = {key: array.astype(graph.tensor(key).dtype or array.dtype) for key, array in fed.items()}
    try:
        values = Computed(read_graph(graph.path), feeds, double=True).values
    except (CannotComputeError, RuntimeError):
        return {}
    return {name: values[name].detach().numpy() for name in names}


def _trains_as_the_file(
    graph: OnnxGraph,
    updates: Mapping[str, str],
    samples: Sequence[Mapping[str, Array]],
    before: Mapping[str, Array],
    after: Mapping[str, Array],
    wrong: Set[str],
) -> bool:
    """Whether the weights whose goldens differ are those to which PyTorch's reading of the file trains."""
    weights = {name: before[name] for name in updates if name in before}
    if not wrong <= weights.keys():
        return False
    for sample in samples:
        literal = _literal(graph, {**weights, **sample}, updates.values())
        if not literal:
            return False
        weights |= {name: literal[updates[name]] for name in weights}
    return all(
        _compared(name, weights[name], before[name], after.get(name), len(samples)).judged().verdict == RIGHT
        for name in wrong
    )


def _bare_row(case: ReplayCase, nodes: int, run: _Run, status: str, reasons: Sequence[str]) -> ReplayRow:
    cycles = run.cycles
    return ReplayRow(
        case.name, nodes, status, cycles=cycles, seconds=cycles / run.frequency_hz, reason="; ".join(reasons)
    )


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
        try:
            loss = float(evaluate(graph, {**start, **sample})[graph.loss].reshape(-1)[0])
        except NotFiniteError:  # the replay will say where
            break
        if not abs(loss - golden) <= LOSS_TOLERANCE * max(1.0, abs(golden)):
            break
        same += 1
    return max((size for size in range(1, max(same, 1) + 1) if len(samples) % size == 0), default=1)
