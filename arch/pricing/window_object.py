# SPDX-License-Identifier: Apache-2.0
"""`price_window` and `visit_lines` as machine code: made by Numba once, loaded without it.

Importing Numba and loading what it has compiled takes longer than a hundred prices do. So the functions are
compiled as those for C (`numba.cfunc`), and the object file LLVM makes of it is kept; `llvmlite`, Numba's own
layer to LLVM, loads it in a tenth of the time. A table is given to it by address and length.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from types import FunctionType
from typing import Any

import platformdirs

from arch.pricing import line_engine, scoreboard, window_engine
from configs.errors import InputError
from configs.files import replacing

ENTRIES = {"price_window": (window_engine, "iiiii"), "visit_lines": (line_engine, "iifff")}
"""The functions by their name in the object file: where they are from, and the tables they take, of int64
or of float64."""

CHECKSUM_BYTES = 32
"""In front of machine code, which a processor must not be given in part."""

SOURCES = (window_engine.__file__, line_engine.__file__, scoreboard.__file__, __file__)
"""What the machine code is made of."""


def functions() -> dict[str, Callable[..., None]]:
    """Those of `ENTRIES` on arrays of NumPy, loaded, or compiled and kept.

    Raises `ImportError` without Numba.
    """
    import llvmlite.binding as llvm

    with suppress(RuntimeError):  # only an older llvmlite has to be told
        llvm.initialize()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    cpu, features = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    triple = llvm.Target.from_default_triple()
    machine = triple.create_target_machine(cpu=cpu, features=features, opt=3, jit=True)
    name = file_name(llvm.get_process_triple(), cpu, features, version("llvmlite"), version("numba"))
    code = _read(name)
    if code is None:
        code = machine.emit_object(_compiled(llvm))
        _keep(name, code)
    # What is loaded lives as long as the process.
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _LOADED.append(engine)

    def loaded(name: str, tables: str) -> Callable[..., None]:
        arguments = (ctypes.c_void_p, ctypes.c_int64) * len(tables)
        function = ctypes.PYFUNCTYPE(None, *arguments)(engine.get_function_address(name))
        return lambda *given: function(
            *[value for table in given for value in (table.ctypes.data, len(table))]
        )

    return {name: loaded(name, tables) for name, (_, tables) in ENTRIES.items()}


_LOADED: list[object] = []


def file_name(*machine: str) -> str:
    """That of the machine code: of these sources, for this processor and these versions."""
    return f"window_{_checksum()}_{hashlib.sha256(repr(machine).encode()).hexdigest()[:16]}.o"


def _checksum() -> str:
    texts = b"".join([Path(source).read_bytes() for source in SOURCES])
    return hashlib.sha256(texts).hexdigest()[:16]


def is_stored() -> bool:
    """Whether machine code of these sources may be read, for whatever processor: that is told in no time."""
    made_of = _checksum()
    return any(
        os.access(path, os.R_OK) for folder in _folders() for path in folder.glob(f"window_{made_of}_*.o")
    )


def _folders() -> Iterator[Path]:
    """Where machine code may be: where Numba is told to, beside the source, in the user's cache."""
    told = os.environ.get("NUMBA_CACHE_DIR")
    if told:
        yield Path(told)
    yield Path(__file__).parent / "__pycache__"
    yield Path(platformdirs.user_cache_dir("pulptrain", appauthor=False))


def _read(name: str) -> bytes | None:
    """The machine code of this name, if it is there as it was written."""
    for folder in _folders():
        with suppress(OSError):
            text = (folder / name).read_bytes()
            code = text[CHECKSUM_BYTES:]
            if hashlib.sha256(code).digest() == text[:CHECKSUM_BYTES]:
                return code
    return None


def _keep(name: str, code: bytes) -> None:
    """In the first folder that can be written to; in none, the next process compiles again."""
    for folder in _folders():
        with suppress(OSError, InputError):
            folder.mkdir(parents=True, exist_ok=True)
            with replacing(folder / name) as path:
                path.write_bytes(hashlib.sha256(code).digest() + code)
            return


def _compiled(llvm: Any) -> Any:
    """A module of LLVM that has the functions by their names in `ENTRIES`."""
    import numba

    njit: Callable[..., Any] = numba.njit
    types, table = numba.types, numba.carray  # type: ignore[attr-defined]
    of_table = {"i": types.CPointer(types.int64), "f": types.CPointer(types.float64)}  # type: ignore[no-untyped-call]

    # What a processor has an instruction for.
    @numba.extending.intrinsic
    def place(typing: Any, bits: Any) -> Any:
        def lowest(target: Any, builder: Any, signature: Any, values: Any) -> Any:
            return builder.cttz(values[0], target.get_constant(numba.types.boolean, True))

        return bits(bits), lowest

    # The same functions, where every name of a part is the compiled part. Nothing is allocated in them, so
    # nothing is counted (`_nrt`): counting who holds a table takes longer than what is done with it.
    def one(name: str, source: Any, tables: str) -> Any:
        names = {**vars(source), "place": place}

        def with_names(name: str) -> FunctionType:
            return FunctionType(names[name].__code__, names, name)

        for part in source.PARTS:
            names[part.__name__] = njit(inline="always", _nrt=False, error_model="numpy")(
                with_names(part.__name__)
            )
        for inner in [*[part.__name__ for part in source.WHOLE], name]:
            names[inner] = njit(
                _nrt=False, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True
            )(with_names(inner))
        whole = names[name]

        def framed(a, in_a, b, in_b, c, in_c, d, in_d, e, in_e):  # type: ignore[no-untyped-def]
            whole(table(a, in_a), table(b, in_b), table(c, in_c), table(d, in_d), table(e, in_e))

        arguments = [kind for word in tables for kind in (of_table[word], types.int64)]
        entry = numba.cfunc(types.void(*arguments), error_model="numpy")(framed)
        module = llvm.parse_assembly(entry.inspect_llvm())
        module.get_function(entry.native_name).name = name
        return module

    module, *others = [one(name, *entry) for name, entry in ENTRIES.items()]
    for other in others:
        module.link_in(other)
    # Nothing raises and nothing is allocated: what would be called then, and a process without Numba has not.
    declared = [item.name for item in module.functions if item.is_declaration]
    lacking = [name for name in declared if not name.startswith(("llvm.", "Py", "mem"))]
    ends = [f"define void @{name}() {{\n call void @abort()\n unreachable\n}}" for name in lacking]
    module.link_in(llvm.parse_assembly("\n".join(["declare void @abort()", *ends])))
    return module
