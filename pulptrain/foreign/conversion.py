# SPDX-License-Identifier: Apache-2.0
"""Networks from ONNX, PyTorch or ours into a model file with its weights beside it, or into an ONNX file."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from configs.errors import InputError
from configs.files import check_file, replacing, start_of, together, write_text
from configs.model_file import ModelSpec
from configs.model_text import model_text
from configs.values import Struct
from importers.export.writer import PRODUCER
from importers.extras import require_extra
from importers.training_text import option_text
from pulptrain.foreign.foreign_model import ONNX
from pulptrain.foreign.model_source import open_source
from pulptrain.inputs.npz_file import check_weights, write_weights
from pulptrain.inputs.settings import Settings
from pulptrain.running.session import model_of
from trainlib.ir.steps import Array
from trainlib.training.phases import build_training_phases

MADE_BY = "converted by pulptrain from "
"""Begins the comment of a model file that `convert` has written."""


class Converted(Struct, frozen=True):
    """Files written, and what comes behind ``pulptrain run`` to run them."""

    files: tuple[Path, ...]
    run: str
    notes: tuple[str, ...] = ()


def convert(source: str, target: str, settings: Settings) -> Converted:
    """Write `source` in the form that the suffix of `target` names.

    ``.yaml`` writes a model file and, beside it, its weights and statistics as ``.npz``; ``.onnx`` a forward
    graph, with all of the model file in its metadata. Raises InputError
    for another suffix, for files that are there and not ours, for layers that have no form in ONNX (nothing
    is written then), and what reading `source` raises.
    """
    path = Path(target)
    if path.suffix not in (".yaml", ONNX):
        raise InputError(
            f"the format of the output file {target!r} is unknown",
            where="OUT",
            cure="use NAME.yaml or NAME.onnx",
        )
    if path.suffix == ONNX:
        require_extra("onnx", target)
        check_file(target, "OUT", lambda path: PRODUCER.encode() in start_of(path, 64))
    else:
        check_file(target, "OUT", lambda path: MADE_BY.encode() in start_of(path))
        weights_path = check_weights(path, "OUT")
    opened = open_source(source, settings)
    spec = model_of(opened.network(settings), settings)
    graph = build_training_phases(spec).mini_batch
    start = opened.weights(graph, settings.seed)
    if path.suffix == ONNX:
        _write_onnx(path, spec, start)
        return Converted((path,), shlex.quote(target), _training_words(spec))
    with together():
        write_text(path, model_text(spec, f"{MADE_BY}{source}"))
        write_weights(weights_path, start)
    return Converted((path, weights_path), shlex.join([str(path), "--values", str(weights_path)]))


def _write_onnx(path: Path, spec: ModelSpec, start: Mapping[str, Array]) -> None:
    from importers.export.writer import onnx_bytes

    data = onnx_bytes(spec, start)
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def _training_words(spec: ModelSpec) -> tuple[str, ...]:
    """How a command line says loss and optimizer, which no graph of ONNX says."""
    words = {"--optimizer": option_text(spec.optimizer.name, spec.optimizer.options)}
    if not spec.more_losses:
        words = {"--loss": option_text(spec.loss.name, spec.loss.options), **words}
    said = " ".join(f"{option} '{text}'" for option, text in words.items())
    return (f"the file stores loss and optimizer as metadata; if another tool drops them, use {said}",)
