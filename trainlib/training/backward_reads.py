# SPDX-License-Identifier: Apache-2.0
"""What backward keeps: of steps that can read the input, the output or a mask, which of these they read.

The one place where that is decided, for all layers (`trainlib.primitives.definition.Step.others`). Of each
step the form is taken for which fewest bytes of the forward pass have to be kept: what another step of the
backward pass reads anyway costs nothing. Of equal ones it is the form whose tensors are made last, so that
those before them end in the forward pass. Numbers are the same, of ELU to rounding; a mask is made in the
forward pass, for some cycles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from configs.dtypes import UINT8
from configs.errors import ConfigError
from configs.model_file import LayerSpec
from configs.values import replace
from trainlib.ir.graph import FED_KINDS, GIVEN_KINDS, Op, Tensor, TrainingGraph
from trainlib.primitives.definition import AS_PUBLISHED, Step, is_forward
from trainlib.registry import layer_primitive, step_of
from trainlib.training.built_layer import where_of

ROLES = {"input": "x", "output": "y"}
WORDS = {role: word for word, role in ROLES.items()}
"""Roles that have another name for users."""


def readable(layer: LayerSpec, of_model: str | None) -> list[str]:
    """What the backward step of a layer can read: some of input, output and mask; nothing as published.

    `of_model` is the variant of the model.
    """
    if AS_PUBLISHED in (layer.variant, of_model):
        return []
    steps = [step for step in layer_primitive(layer.type, layer.where).steps if step.name == "IG"]
    roles = {role for step in steps for form in (step, *step.others) for role in form.reads}
    return sorted({WORDS.get(role, role) for role in roles} & {"input", "output", "mask"})


def requested_reads(layers: Iterable[LayerSpec], of_model: str | None) -> dict[str, str]:
    """Layer -> what its backward step is to read (`backward_reads`). Raises `ConfigError` where it cannot."""
    wanted: dict[str, str] = {}
    for layer in layers:
        word, known = layer.backward_reads, readable(layer, of_model) if layer.backward_reads else []
        if word in known:
            wanted[layer.name] = word
        elif word is not None:
            raise ConfigError(
                f"'backward_reads: {word}' does not apply: the backward pass of {layer.type} reads no {word}",
                where=where_of(layer),
                cure=f"use backward_reads: {' or '.join(known)}" if known else "remove 'backward_reads'",
            )
    return wanted


def read_fewest_bytes(graph: TrainingGraph, wanted: Mapping[str, str]) -> TrainingGraph:
    """The graph with the inputs of its backward ops so chosen that fewest bytes live beyond the forward pass.

    From one choice to the next, until none of them would save anything by itself. `wanted` has layers that
    read what their file says.
    """
    ops, tensors = list(graph.ops), dict(graph.tensors)
    made = {graph.storage_of(name): number for number, op in enumerate(ops) for name in op.outputs}
    forward = _forward(ops)
    free = {graph.storage_of(name) for name in (*graph.results, *graph.of_kind(*GIVEN_KINDS))}
    forms = _forms(ops, forward, tensors)
    for number, choices in forms.items():
        if (word := wanted.get(ops[number].layer)) is not None:
            role = ROLES.get(word, word)
            forms[number] = [(op, maker) for op, maker in choices if role in op.reads]
            ops[number], ops[forward[ops[number].layer]] = forms[number][0]

    def bytes_across(op: Op) -> dict[str, int]:
        """Bytes by storage of what an op needs of the forward pass, and nobody else has kept for good."""
        storages = {graph.storage_of(name) if name in graph.tensors else name for name in op.inputs} - free
        found = [tensors[name] for name in storages if tensors[name].kind in ("activation", "saved")]
        return {tensor.name: tensor.size_bytes for tensor in found}

    readers = Counter(
        name for op in ops if not is_forward(op.step) and op.step != "LOSS" for name in bytes_across(op)
    )

    def price(own: Mapping[str, int], op: Op) -> tuple[int, int]:
        mine = bytes_across(op)
        alone = sum(size_bytes for name, size_bytes in mine.items() if readers[name] == (name in own))
        return alone, -max((made.get(name, forward[op.layer]) for name in mine), default=0)

    changed = True
    while changed:
        changed = False
        for number, choices in forms.items():
            own = bytes_across(ops[number])
            prices = [price(own, op) for op, _ in choices]
            best, maker = choices[prices.index(min(prices))]
            if min(prices) < price(own, ops[number]):
                readers.subtract(own.keys())
                readers.update(bytes_across(best).keys())
                ops[number], ops[forward[best.layer]], changed = best, maker, True
    return _with(graph, ops, tensors)


def in_other_forms(graph: TrainingGraph) -> list[TrainingGraph]:
    """The graph with the first of the other forms of each backward op, with the second, and so on."""
    tensors, forward = dict(graph.tensors), _forward(graph.ops)
    forms = _forms(graph.ops, forward, tensors)
    graphs = []
    for which in range(1, max(map(len, forms.values()), default=1)):
        ops = list(graph.ops)
        for number, choices in forms.items():
            ops[number], ops[forward[ops[number].layer]] = choices[min(which, len(choices) - 1)]
        graphs.append(_with(graph, ops, tensors))
    return graphs


def _with(graph: TrainingGraph, ops: Sequence[Op], tensors: Mapping[str, Tensor]) -> TrainingGraph:
    """The graph with these ops, and of new tensors those they write."""
    known = graph.tensors.keys() | {name for op in ops for name in op.outputs}
    return replace(graph, tensors={name: tensors[name] for name in tensors if name in known}, ops=tuple(ops))


def _forward(ops: Sequence[Op]) -> dict[str, int]:
    """Number of the forward op of each layer that has one alone, or of its last."""
    return {op.layer: number for number, op in enumerate(ops) if op.step == "FW"}


def _forms(
    ops: Sequence[Op], forward: Mapping[str, int], tensors: dict[str, Tensor]
) -> dict[int, list[tuple[Op, Op]]]:
    """Number of a backward op -> what it may be, and what its forward op is then; as they are first."""
    forms = {}
    for number, op in enumerate(ops):
        if op.layer in forward and not is_forward(op.step) and step_of(op).others:
            first = ops[forward[op.layer]]
            forms[number] = [(op, first), *(_form(op, first, other, tensors) for other in step_of(op).others)]
    return forms


def _form(op: Op, forward: Op, other: Step, tensors: dict[str, Tensor]) -> tuple[Op, Op]:
    """A backward op on other tensors of its layer, and the forward op that makes them; new ones are added."""
    roles = {**forward.roles, **op.roles}
    for role in set(other.reads) - roles.keys():
        name, y = f"{op.layer}.{role}", tensors[forward["y"]]
        tensors[name] = replace(y, name=name, kind="saved", dtype=UINT8, alias_of=None)
        roles[role] = name
        forward = replace(forward, writes=(*forward.writes, role), outputs=(*forward.outputs, name))
    return replace(op, reads=other.reads, inputs=tuple(roles[role] for role in other.reads)), forward


def reads_of_layers(graph: TrainingGraph) -> dict[str, tuple[str, ...]]:
    """Layer -> what of its forward pass its backward steps read: input, output, or roles of what is saved."""
    reads: dict[str, dict[str, None]] = {}
    kept = {*graph.of_kind(*FED_KINDS)}
    for op in graph.ops:
        if is_forward(op.step):
            kept.update(op.outputs)
        elif op.step != "LOSS":
            of_forward = [
                role.rstrip("0123456789")
                for role, name in zip(op.reads, op.inputs, strict=True)
                if graph.storage_of(name) in kept
            ]
            reads.setdefault(op.layer, {}).update(dict.fromkeys(of_forward))
    return {layer: tuple(WORDS.get(role, role) for role in roles) for layer, roles in reads.items()}
