"""Changes a codegen profile makes to every kernel of the profile it is based on."""

from __future__ import annotations

from collections.abc import Callable

from trainlib.kernels.nest import Nest


def _none(nest: Nest) -> Nest:
    return nest


TRANSFORMS: dict[str, Callable[[Nest], Nest]] = {"none": _none}
"""Transforms by the name used in `codegen.yaml`."""
