# SPDX-License-Identifier: Apache-2.0
"""What fitting came to, in Python: a model for `run` and `tune`, and its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from configs.files import together, write_text
from configs.model_text import model_text
from pulptrain.python.op_result import Summarised, text_width

if TYPE_CHECKING:
    from configs.model_file import ModelSpec
    from trainlib.ir.steps import Array


class Fitted(Summarised):
    """An answer of `fit`, or a ladder. `summary` is what ``fit --json`` prints."""

    def __init__(
        self,
        summary: Mapping[str, Any],
        spec: ModelSpec | None = None,
        values: Mapping[str, Array] | None = None,
    ) -> None:
        super().__init__(summary)
        self._spec, self._values = spec, values

    @property
    def cycles(self) -> int | None:
        """Of an iteration as decided, simulated; None of a ladder."""
        value: int | None = self.summary["cycles"]
        return value

    @property
    def decisions(self) -> Sequence[Mapping[str, Any]]:
        """What was decided, with what each decision saves and costs."""
        rows: Sequence[Mapping[str, Any]] = self.summary["decisions"]
        return rows

    @property
    def ladder(self) -> Sequence[Mapping[str, Any]]:
        """The ladder, if it was asked for."""
        rows: Sequence[Mapping[str, Any]] = self.summary["ladder"]
        return rows

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the model with what was decided, which `run` and `tune` read.

        Weights that it brings, as one of PyTorch does, lie beside it: ``small.npz`` of ``small.yaml``, for
        ``values=`` of `run`. Raises `InputError`.
        """
        from configs.errors import InputError
        from pulptrain.given.npz_file import check_weights, write_weights

        if self._spec is None:
            raise InputError(
                "fit with ladder=True has no model to save", where="save", cure="call fit without ladder=True"
            )
        place = Path(fspath(path))
        with together():
            write_text(place, model_text(self._spec))
            if self._values:
                write_weights(check_weights(place, "save"), self._values)
        return place

    def __str__(self) -> str:
        from pulptrain.fitting.fit_summary import fit_lines, front_lines

        width = text_width()
        return "\n".join([*fit_lines(self.summary, width), *front_lines(self.summary, width)])
