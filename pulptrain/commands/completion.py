# SPDX-License-Identifier: Apache-2.0
"""Names that complete what is typed: looked up when the shell asks, so that nothing is imported before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping


def _shipped(kind: str) -> Iterable[str]:
    from configs.library import list_names

    return list_names(kind)


def _kernels() -> Iterable[str]:
    from trainlib.kernels.library import LIBRARY

    return sorted({name for codegen in LIBRARY.codegen_names() for name in LIBRARY.kernel_names(codegen)})


def _primitives() -> Iterable[str]:
    from trainlib.registry import PRIMITIVES, is_internal

    return [name for name, primitive in PRIMITIVES.items() if not is_internal(primitive)]


def _codegens() -> Iterable[str]:
    from trainlib.kernels.library import LIBRARY

    return LIBRARY.codegen_names()


def _dtypes() -> Iterable[str]:
    from configs.dtypes import WORDS

    return WORDS.split("|")


NAMES: Mapping[str, Callable[[], Iterable[str]]] = {
    "models": lambda: _shipped("models"),
    "soc": lambda: _shipped("soc"),
    "kernels": _kernels,
    "primitives": _primitives,
    "codegens": _codegens,
    "dtypes": _dtypes,
    "timings": lambda: ("rtl", "gvsoc"),
    "everything": lambda: [*_shipped("models"), *_shipped("soc"), *_kernels(), *_primitives()],
    "lists": lambda: ("socs", "models", "kernels", "primitives"),
}
"""By kind of name: what there is. Files are completed by the shell."""


def completes(kind: str) -> Callable[[str], list[str]] | None:
    """What completes a name of a kind for typer; None leaves it to the shell."""
    if kind not in NAMES:
        return None

    def names(incomplete: str) -> list[str]:
        return [name for name in NAMES[kind]() if name.startswith(incomplete)]

    return names
