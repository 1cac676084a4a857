# SPDX-License-Identifier: Apache-2.0
"""Matmuls of an installed PULP-TrainLib in place of ours: the files of a project that call them.

Its functions have the names ours have, so ours are renamed where it is linked (``PT_TRAINLIB``), and a call
of network.c goes to a bridge: to PULP-TrainLib if it is a product it can do (rows one after the other,
nothing added to C), else to ours. Source of names and arguments: PULP-TrainLib,
lib/include/pulp_matmul_fp32.h.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from configs.errors import InputError
from deploy.calls.call import kernel_sources, shipped

MATMULS = re.compile(r"mm(_M)?(_u2|_unroll_\dx\d)?")
"""Kernels it has under our names: fp32, B as it is or transposed."""

NEEDED = ("lib/include/pulp_train.h", "lib/sources/pulp_matmul_fp32.c")


def check_trainlib(path: str) -> str:
    """The folder of PULP-TrainLib. Raises `InputError` where it is none."""
    missing = [name for name in NEEDED if not (Path(path) / name).is_file()]
    if missing:
        raise InputError(
            f"{path!r} is not a PULP-TrainLib checkout: {missing[0]} is missing",
            where="--kernel-library",
            cure="use trainlib=PATH of a checkout",
        )
    return str(Path(path).resolve())


def trainlib_of(text: str) -> str | None:
    """The folder that ``--kernel-library`` names, None for ``ours``. Raises `InputError` for another text."""
    if text == "ours":
        return None
    kind, _, path = text.partition("=")
    if kind != "trainlib" or not path:
        raise InputError(
            f"unknown kernel library {text!r}", where="--kernel-library", cure="use 'ours' or trainlib=PATH"
        )
    return check_trainlib(path)


def with_trainlib(text: Mapping[str, str], path: str, kernels: Iterable[str]) -> dict[str, str]:
    """The files of a project whose matmuls, where ``TRAINLIB`` is set in make, are those of `path`."""
    ours = [name for name in kernel_sources() if MATMULS.fullmatch(name)]
    called = [name for name in kernels if MATMULS.fullmatch(name)]
    if not called:
        return dict(text)
    renamed = ["#ifdef PT_TRAINLIB", *(f"#define {name} pt_{name}" for name in ours), "#endif"]
    guard, last = "#define PT_KERNELS_H\n", '#include "platform.h"\n'
    return {
        **text,
        **{f"kernels/{name}": content for name, content in bridge_files(called).items()},
        "kernels/kernels.h": text["kernels/kernels.h"].replace(guard, "\n".join([guard, *renamed, ""])),
        "network.c": text["network.c"].replace(last, f'{last}#include "trainlib.h"\n', 1),
        "Makefile": f"TRAINLIB_PATH := {path}\n{text['Makefile']}",
    }


def bridge_files(names: Sequence[str]) -> dict[str, str]:
    """``trainlib.c`` and ``trainlib.h``, which network.c includes last."""
    theirs = [f"static void (*const their_{name})(void *) = {name};" for name in names]
    bridges = [
        f"void bridge_{name}(const void *args);\n"
        f"void bridge_{name}(const void *args) {{ bridge(their_{name}, {name}, args); }}"
        for name in names
    ]
    calls = [
        f"void bridge_{name}(const void *args);\n#undef {name}\n#define {name} bridge_{name}"
        for name in names
    ]
    return {
        "trainlib.c": (
            shipped("project", "trainlib.c")
            .replace("/* theirs */", "\n".join(theirs))
            .replace("/* bridges */", "\n".join(bridges))
        ),
        "trainlib.h": "\n".join(
            ["/* Calls go to the bridge. */", "#ifdef PT_TRAINLIB", *calls, "#endif", ""]
        ),
    }
