# SPDX-License-Identifier: Apache-2.0
"""What there is to say of a name: model, SoC, kernel, primitive, stall word, as plain objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.resources import files
from math import prod
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from arch.spec.soc_config import soc_from_parameters
from configs.errors import InputError
from configs.library import is_path, list_names, open_config
from configs.meanings import Key, keys_of
from configs.model_file import LAYER_KEYS, TERM_KEYS, LayerSchema, LossSpec, ModelSpec
from configs.model_text import model_text
from configs.parameters import load_parameters
from configs.suggest import check_known, suggestion
from configs.yaml_file import read_text
from pulptrain.foreign.foreign_model import is_foreign
from pulptrain.foreign.model_source import open_source
from pulptrain.inputs.option import ALL
from pulptrain.inputs.settings import Settings
from pulptrain.inputs.source_kind import MODEL, refuse_others
from pulptrain.running.session import model_of
from traces.stall_words import BUSY, MEANINGS
from trainlib.about import about
from trainlib.ir.graph import TrainingGraph
from trainlib.kernels.catalogue import kind_of
from trainlib.kernels.evidence import nest_evidence
from trainlib.kernels.library import LIBRARY
from trainlib.primitives.definition import (
    Example,
    LayerPrimitive,
    LossPrimitive,
    OptimizerPrimitive,
    Primitive,
)
from trainlib.registry import PRIMITIVES, is_internal
from trainlib.training.backward_reads import reads_of_layers
from trainlib.training.options import GradientOptions
from trainlib.training.phases import build_training_phases
from trainlib.training.variants import variants_text

Description = dict[str, Any]
"""`kind`, `name`, `about` and what else that kind has; every value is of plain types, units are in keys."""

KINDS = ("model", "soc", "primitive", "kernel", "stall")
"""What a name may be the name of, in the order it is looked for."""


def describe(
    name: str,
    kind: str | None = None,
    *,
    codegen: str | None = None,
    of_model: Mapping[str, Any] | None = None,
) -> list[Description]:
    """All that a name, or the path of a model or SoC file, stands for; `kind` is one of `KINDS`.

    `of_model` are options of a model. Raises `InputError` with the nearest names if there is none.
    """
    options = of_model or {}
    if kind is not None:
        check_known(kind, KINDS, f"unknown kind {kind!r}", "--kind")
    if is_foreign(name) or is_path(name):
        return [_file(name, kind, options)]
    kinds = [each for each in KINDS if kind in (None, each) and name in names_of(each)]
    if "model" in kinds and options:
        kinds = ["model"]
    describers: Mapping[str, Callable[[], Description]] = {
        "model": lambda: _model(name, options),
        "soc": lambda: _soc(name),
        "primitive": lambda: _primitive(PRIMITIVES[name]),
        "kernel": lambda: _kernel(name, codegen),
        "stall": lambda: {"kind": "stall", "name": name, "about": {**MEANINGS, "busy": BUSY}[name]},
    }
    described = [describers[each]() for each in kinds]
    if options and described and "model" not in kinds:
        raise InputError(
            f"'{name}' is not a model, so the option does not apply",
            where=ALL[next(iter(options))].flag,
            cure="remove the option",
        )
    if not described and name.removesuffix("s") in KINDS:
        each = name.removesuffix("s")
        words = (
            f"use one of {', '.join(names_of(each))}"
            if each == "stall"
            else f"use a name that `pulptrain list {each}s` prints"
        )
        raise InputError(f"'{name}' is a group of names, but one name is needed", where="show", cure=words)
    if not described:
        names = sorted({word for each in KINDS if kind in (None, each) for word in names_of(each)})
        near = suggestion(name, names).partition(" (known")[0]
        raise InputError(
            f"unknown name {name!r}",
            where="show",
            cure=near
            if near.startswith("use '")
            else "use a name that `pulptrain list models`, `pulptrain list socs`, `pulptrain list kernels` "
            "or `pulptrain list primitives` prints",
        )
    return described


def names_of(kind: str) -> tuple[str, ...]:
    """All names of a kind."""
    if kind in ("model", "soc"):
        return list_names({"model": "models", "soc": "soc"}[kind])
    if kind == "kernel":
        return tuple(
            sorted({name for codegen in LIBRARY.codegen_names() for name in LIBRARY.kernel_names(codegen)})
        )
    if kind == "primitive":
        return tuple(name for name, primitive in PRIMITIVES.items() if not is_internal(primitive))
    return (*MEANINGS, "busy")


def _file(path: str, kind: str | None, of_model: Mapping[str, Any]) -> Description:
    """A file of the user: a SoC if it has parameters, else a model."""
    if kind is None and is_foreign(path):
        kind = "model"
    if kind is None:
        if Path(path).is_dir():
            refuse_others(path, MODEL)
        kind = "soc" if "parameters" in open_config("soc", path).mapping("the file") else "model"
    if kind not in ("model", "soc"):
        raise InputError(f"a {kind} has no file", where="show", cure=f"use the name of the {kind}")
    if kind == "soc" and of_model:
        raise InputError(
            f"{path} is not a model, so the option does not apply",
            where=ALL[next(iter(of_model))].flag,
            cure="remove the option",
        )
    return _model(path, of_model) if kind == "model" else _soc(path)


def _text(kind: str, name: str) -> str:
    if is_path(name):
        return read_text(Path(name))
    return files("configs").joinpath(kind, f"{name}.yaml").read_text(encoding="utf-8")


def _model(name: str, options: Mapping[str, Any]) -> Description:
    settings = Settings(**options)
    source = open_source(name, settings)
    spec = model_of(source.network(settings), settings)
    graph = build_training_phases(spec).mini_batch
    layers = described_layers(spec, graph)
    return {
        "kind": "model",
        "name": spec.name,
        "typed": source.words,
        "about": spec.description,
        "source": spec.source,
        "input_shape": list(spec.input_shape),
        **({"inputs": {item.name: list(item.shape) for item in spec.inputs}} if spec.more_inputs else {}),
        "batch": spec.batch,
        "dtype": spec.dtype,
        "layout": spec.layout,
        "dataset": spec.dataset,
        "loss": {"name": spec.loss.name, **spec.loss.options},
        **({"losses": [_loss(loss) for loss in spec.losses]} if spec.more_losses else {}),
        "optimizer": {"name": spec.optimizer.name, **spec.optimizer.options},
        "parameters": sum(layer["parameters"] for layer in layers),
        "trained_parameters": sum(prod(graph.tensors[name].shape) for name in graph.gradients.values()),
        "layers": layers,
        "file": model_text(spec) if options or is_foreign(name) else _text("models", name),
    }


def described_layers(spec: ModelSpec, graph: TrainingGraph) -> list[Description]:
    """The layers of a model, with their shapes and sizes."""
    layers = []
    reads = reads_of_layers(graph)
    for layer in spec.layers:
        output = graph.tensors.get(f"{layer.name}.out")
        weights = [graph.tensors[name] for name in graph.weights if name.startswith(f"{layer.name}.")]
        layers.append(
            {
                "name": layer.name,
                "type": layer.type,
                "options": dict(layer.attributes),
                "output_shape": list(output.shape) if output is not None else [],
                "parameters": sum(prod(tensor.shape) for tensor in weights),
                "backward_reads": list(reads.get(layer.name, ())),
            }
        )
    return layers


def _loss(loss: LossSpec) -> Description:
    said = {key: getattr(loss, key) for key in TERM_KEYS if getattr(loss, key) is not None}
    return {"name": loss.name, **said, **loss.options}


def _soc(name: str) -> Description:
    by_profile = {profile: load_parameters(name, profile) for profile in ("rtl", "gvsoc")}
    for each in by_profile.values():
        soc_from_parameters(each)  # what cannot be run is not shown as if it could
    tree = by_profile["rtl"]
    return {
        "kind": "soc",
        "name": tree.name,
        "about": tree.description,
        "codegen": tree.codegen,
        "parameters": [
            {
                "path": path,
                "value": parameter.value,
                "value_gvsoc": by_profile["gvsoc"][path].value,
                "unit": parameter.unit,
                "description": parameter.description,
                "source": parameter.source,
                "assumed": parameter.assumed,
            }
            for path, parameter in tree.items()
        ],
        "file": _text("soc", name),
    }


def _kernel(name: str, codegen: str | None) -> Description:
    having = [each for each in LIBRARY.codegen_names() if name in LIBRARY.kernel_names(each)]
    if codegen is not None and codegen not in having:
        raise InputError(
            f"codegen {codegen!r} has no kernel {name!r}",
            where="--codegen",
            cure=f"use --codegen with one of {', '.join(having)}",
        )
    chosen = codegen or ("clang-xpulp" if "clang-xpulp" in having else having[0])
    header, evidence = LIBRARY.header(chosen, name), nest_evidence(chosen, name)
    return {
        "kind": "kernel",
        "name": name,
        "about": header.about,
        "what": kind_of(chosen, name),
        "codegen": chosen,
        "codegens": having,
        "element_bytes": header.element_bytes,
        "code_bytes": header.code_bytes,
        "arrays": dict(header.arrays),
        "trans_b": header.trans_b,
        "evidence": evidence.label,
        "rows": evidence.rows,
        "fitted_on": evidence.fitted,
        "file": header.section.file,
    }


def _primitive(primitive: Primitive) -> Description:
    words = {LayerPrimitive: "layer", LossPrimitive: "loss", OptimizerPrimitive: "optimizer"}
    what = words[type(primitive)]
    keys = keys_of(primitive.schema)  # type: ignore[union-attr]
    shared = keys_of(LayerSchema) if what == "layer" else ()
    if what == "optimizer":
        shared = keys_of(GradientOptions)
    low, high = primitive.inputs if isinstance(primitive, LayerPrimitive) else (1, 1)
    return {
        "kind": "primitive",
        "name": primitive.name,
        "about": about(primitive.name),
        "what": what,
        "inputs": [low, high],
        "steps": [step.name for step in primitive.steps],
        "variants": variants_text(primitive),
        "options": [asdict(key) for key in keys if key.name not in (*LAYER_KEYS, "name")],
        "shared_options": [asdict(key) for key in shared if key.name not in ("name", "type")],
        "example": _example(primitive, keys, what),
    }


def _example(primitive: Primitive, keys: tuple[Key, ...], what: str) -> str:
    """A line of a model file, with the options of the first example that must be given."""
    examples: tuple[Example, ...] = getattr(primitive, "examples", ())
    given = dict(examples[0].attributes) if examples else {}
    needed = {key.name: given[key.name] for key in keys if key.required and key.name in given}
    if what != "layer":
        rate = {"learning_rate": 0.01} if what == "optimizer" else {}
        return f"{what}: {flow({'name': primitive.name, **rate, **needed})}"
    least = getattr(primitive, "inputs", (1, 1))[0]
    inputs = {"inputs": f"[{', '.join(('first', 'second', 'third')[:least])}]"} if least > 1 else {}
    return f"- {flow({'name': primitive.name + '1', 'type': primitive.name, **inputs, **needed})}"


def flow(values: Mapping[str, Any]) -> str:
    """A mapping as YAML writes it in one line."""
    return "{" + ", ".join(f"{key}: {value}" for key, value in values.items()) + "}"
