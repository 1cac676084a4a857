# SPDX-License-Identifier: Apache-2.0
"""What a graph was run on and what came out, as others store it: `inputs.npz` and `outputs.npz`.

Three forms are known. Deeploy's harness: ``arr_0000`` ... are inputs of the training graph in its order,
without gradient buffers; ``mb1_arr_0000`` ... those of further samples; ``meta_...`` how many; the outputs
are final weights by name and ``loss``. One iteration: inputs and outputs by the names of the graph. ONNX
Runtime's artifacts: ``x0``, ``y0``, ``w0:NAME`` and, of PyTorch, ``loss``, ``w4:NAME``, ``grad0:NAME``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np

from configs.errors import InputError
from configs.values import Struct
from importers.graph.onnx_graph import OnnxGraph
from importers.training.graph import ImportedTraining
from pulptrain.inputs.npz_file import read_values
from trainlib.ir.steps import Array

START, GRADIENT = "w0:", "grad0:"
"""Before the names of weights at the start, and of gradients of the first step."""

COUNTS = ("num_batches_tracked",)
"""Ends of names of what PyTorch counts and no graph has."""


class Goldens(Struct, frozen=True):
    """Both files of a case, by the names in them."""

    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]
    where: str

    @property
    def losses(self) -> Array | None:
        """The loss of every mini-batch, if they are stored."""
        stored = self.outputs.get("loss")
        return None if stored is None else stored.reshape(-1).astype(np.float64)

    @property
    def is_artifact(self) -> bool:
        """Whether these are goldens of ONNX Runtime's artifacts."""
        return "x0" in self.inputs

    @property
    def is_numbered(self) -> bool:
        """Whether inputs are stored by number."""
        return "arr_0000" in self.inputs

    @property
    def mini_batches(self) -> int | None:
        """Mini-batches per update, if that is stored; ONNX Runtime's are single steps."""
        if self.is_artifact:
            return 1
        stored = self.inputs.get("meta_n_accum")
        return None if stored is None else max(1, int(stored.reshape(-1)[0]))

    @property
    def trained(self) -> Collection[str] | None:
        """Weights that were trained, by their gradients: none without a loss; None if that is not stored."""
        if self.losses is None:
            return ()
        return self.gradients.keys() if self.is_artifact else None

    @property
    def gradients(self) -> dict[str, Array]:
        """Gradients of the first step by the names of the weights, where they are stored."""
        return {
            name.removeprefix(GRADIENT): array
            for name, array in self.outputs.items()
            if name.startswith(GRADIENT)
        }

    @property
    def start_weights(self) -> dict[str, Array]:
        """Weights at the start by name."""
        return {
            name.removeprefix(START): np.array(array)
            for name, array in self.inputs.items()
            if name.startswith(START) and not name.endswith(COUNTS)
        }

    @property
    def all_weights(self) -> dict[str, Array]:
        """Weights and statistics after the last step by name, as PyTorch has them."""
        steps = max(
            (int(name[1:]) for name in self.inputs if name[:1] == "x" and name[1:].isdigit()), default=0
        )
        before = f"w{steps + 1}:"
        return {
            name.removeprefix(before): array
            for name, array in self.outputs.items()
            if name.startswith(before) and not name.endswith(COUNTS)
        }

    def start(self, imported: ImportedTraining, graph: OnnxGraph) -> dict[str, Array]:
        """Start values of the inputs that are weights. Raises InputError if one is missing."""
        given = dict(self.start_weights)
        if self.is_numbered:
            numbered = self._numbered()[len(imported.data) :]
            given = dict(zip(imported.given, numbered, strict=False))
        else:
            given |= {name: self.inputs[name] for name in imported.given if name in self.inputs}
        tensors = imported.phases.mini_batch.tensors
        result: dict[str, Array] = {}
        for name in imported.given:
            if name not in tensors:
                continue
            if name not in given or given[name].size != np.prod(tensors[name].shape):
                raise InputError(
                    f"inputs.npz lacks the initial value of '{name}' with shape {list(tensors[name].shape)}",
                    where=self.where,
                    cure="store an array for every weight, in the order of the graph's inputs",
                )
            result[name] = given[name].astype(tensors[name].dtype).reshape(tensors[name].shape)
        return result

    def _numbered(self) -> list[Array]:
        names = sorted(name for name in self.inputs if name.startswith("arr_"))
        return [self.inputs[name] for name in names]

    def samples(self, data: Sequence[str]) -> list[dict[str, Array]]:
        """The inputs of every mini-batch by the names of the graph; few samples are gone through again."""
        if self.is_artifact:
            samples = [
                dict(zip(data, (self.inputs[f"x{number}"], self.inputs[f"y{number}"]), strict=True))
                for number in range(sum(name[:1] == "x" and name[1:].isdigit() for name in self.inputs))
                if f"y{number}" in self.inputs
            ]
            return samples
        if not self.is_numbered:
            missing = [name for name in data if name not in self.inputs]
            if missing:
                raise InputError(
                    f"inputs.npz lacks the input '{missing[0]}'",
                    where=self.where,
                    cure="store all inputs of a sample",
                )
            return [{name: self.inputs[name] for name in data}]
        samples = [dict(zip(data, self._numbered(), strict=False))]
        while all(f"mb{len(samples)}_arr_{index:04d}" in self.inputs for index in range(len(data))):
            samples.append(
                {name: self.inputs[f"mb{len(samples)}_arr_{index:04d}"] for index, name in enumerate(data)}
            )
        count = int(self.inputs.get("meta_n_batches", np.array([len(samples)])).reshape(-1)[0])
        if not 1 <= count <= MOST_BATCHES:
            raise InputError(
                f"the files hold {count} mini-batches, but 1 to {MOST_BATCHES} are supported",
                where=self.where,
                cure=f"use 1 to {MOST_BATCHES}",
            )
        return [samples[number % len(samples)] for number in range(count)]

    def forward_samples(self, name: str) -> list[tuple[Array, Array | None]]:
        """Inputs of a network and their labels, None where none are stored."""
        if self.is_artifact:
            return [(sample["x"], sample["y"]) for sample in self.samples(("x", "y"))]
        fed = self.inputs.get(name, self.inputs.get("arr_0000"))
        if fed is None:
            fed = next(iter(self.inputs.values()))
        return [(fed, None)]

    def arrays(self, names: Sequence[str], of: str = "inputs") -> dict[str, Array]:
        """The inputs, or the `outputs`, of a graph under its names; stored under others, in its order.

        Raises InputError where they are fewer.
        """
        stored = self.inputs if of == "inputs" else self.outputs
        if all(name in stored for name in names):
            return {name: stored[name] for name in names}
        ordered = self._numbered() if of == "inputs" and self.is_numbered else [*stored.values()]
        if len(ordered) < len(names):
            raise InputError(
                f"{of}.npz has {len(ordered)} arrays, but the graph has {len(names)} {of}",
                where=self.where,
                cure=f"store an array for each of {', '.join(names)}",
            )
        return dict(zip(names, ordered, strict=False))

    def has_output(self, name: str, size: int) -> bool:
        """Whether an array may be the output `name` of a network, of so many elements.

        Losses and weights without it are those of a training graph beside the network; ONNX Runtime's
        artifacts are of the network itself.
        """
        if self.is_artifact or name in self.outputs:
            return True
        return self.losses is None and self.output(name).size == size

    def output(self, name: str) -> Array:
        """The golden output of a network."""
        stored = self.outputs.get(name, self.outputs.get("logits0"))
        return next(iter(self.outputs.values())) if stored is None else stored

    def weights(self, given: Collection[str], graph: OnnxGraph) -> dict[str, Array]:
        """Weights after the last update by the names of the graph.

        Running statistics are PyTorch's: the graphs of ONNX Runtime keep none.
        """
        if self.is_artifact:
            return {name: array for name, array in self.all_weights.items() if name in given}
        return {
            name.removesuffix("_updated"): array for name, array in self.outputs.items() if name != "loss"
        }


MOST_BATCHES = 100_000
"""Mini-batches that are replayed: each is computed."""


def read_goldens(folder: Path) -> Goldens:
    """Both files of a folder. Raises InputError for files that are none."""
    return Goldens(
        read_values(str(folder / "inputs.npz")), read_values(str(folder / "outputs.npz")), str(folder)
    )
