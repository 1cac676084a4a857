# SPDX-License-Identifier: Apache-2.0
"""Packages that only some imports need; asking for one that is missing names the extra to install."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from configs.errors import InputError, install_cure

_NEEDED_FOR = {"onnx": "reading and writing ONNX files", "torch": "reading PyTorch modules"}


def require_extra(package: str, where: str | None = None) -> ModuleType:
    """The package `package` ("onnx", "torch"), imported.

    Raises InputError that names the extra of pulptrain to install if it is missing or too old to be imported.
    """
    try:
        return import_module(package)
    except ImportError as error:
        raise InputError(
            f"{_NEEDED_FOR[package]} needs the Python package {package}: {error}",
            where=where,
            cure=install_cure(package),
        ) from None
