# SPDX-License-Identifier: Apache-2.0
"""The functions of `arch.pricing.window_engine` as machine code: made by Numba once, loaded without it.

Importing Numba and loading what it has compiled takes longer than most prices do. So what it compiles is kept
as an object file, which `llvmlite` (Numba's own layer to LLVM) loads in a tenth of the time. Arguments go
through a frame: a table of their numbers one after another, a table by its address and length.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
from array import array
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from tempfile import NamedTemporaryFile
from types import FunctionType
from typing import Any, get_type_hints

from arch.pricing import scoreboard, window_engine
from arch.pricing.window_engine import Ints

ENTRIES = ("lay_out", "advance")
"""The functions of the engine that are called from outside."""

CHECKSUM_BYTES = 32
"""In front of machine code, which a processor must not be given in part."""

SOURCES = (window_engine.__file__, scoreboard.__file__, __file__)
"""What the machine code is made of."""


def table(numbers: Any) -> Ints:
    """A table of these numbers."""
    return array("q", numbers)


def zeros(count: int) -> Ints:
    """A table of so many zeros."""
    return array("q", bytes(8 * count))


def entries() -> list[Callable[..., int]]:
    """The `ENTRIES`, loaded, or compiled and kept.

    Raises `ImportError` without llvmlite, and without Numba where nothing is kept.
    """
    import llvmlite
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    cpu, features = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    target = llvm.Target.from_default_triple().create_target_machine(cpu, features, 3, jit=True)
    names = [file_name(entry, cpu, features, llvmlite.__version__) for entry in ENTRIES]
    objects = [code for name in names if (code := _kept(name)) is not None]
    if len(objects) < len(names):
        objects = [target.emit_object(llvm.parse_assembly(text)) for text in _compiled()]
        for name, code in zip(names, objects, strict=True):
            _keep(name, code)
    # What is loaded lives as long as the process.
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target)
    for code in objects:
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _LOADED.append(engine)
    return [_called(engine.get_function_address(entry)) for entry in ENTRIES]


_LOADED: list[object] = []


def file_name(entry: str, *machine: str) -> str:
    """That of the machine code of an entry: of these sources, for this processor and version of LLVM."""
    return f"window_{_made_of()}_{hashlib.sha256(repr(machine).encode()).hexdigest()[:16]}.{entry}.o"


def _made_of() -> str:
    texts = b"".join([Path(source).read_bytes() for source in SOURCES])
    return hashlib.sha256(texts).hexdigest()[:16]


def is_kept() -> bool:
    """Whether machine code of these sources is kept, for whatever processor: that is told in no time."""
    return any(any(folder.glob(f"window_{_made_of()}_*.o")) for folder in _folders())


def _folders() -> Iterator[Path]:
    """Where machine code may be: where Numba is told to, beside the source, in the user's cache."""
    told = os.environ.get("NUMBA_CACHE_DIR")
    if told:
        yield Path(told)
    yield Path(__file__).parent / "__pycache__"
    yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "pulptrain")


def _kept(name: str) -> bytes | None:
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
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            with NamedTemporaryFile(dir=folder, delete=False) as file:
                file.write(hashlib.sha256(code).digest() + code)
            Path(file.name).replace(folder / name)
            return


def _called(address: int) -> Callable[..., int]:
    """A function of machine code: a status, and behind the result and the error its frame."""
    function = ctypes.PYFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(address)
    result, error = ctypes.c_int64(), ctypes.c_int64()
    places = ctypes.byref(result), ctypes.byref(error)

    def call(*arguments: object) -> int:
        numbers: list[int] = []
        _flatten(arguments, numbers)
        frame = array("q", numbers)
        if function(*places, frame.buffer_info()[0]):
            raise AssertionError("the compiled window engine raises nothing")
        return result.value

    return call


def _flatten(arguments: Any, numbers: list[int]) -> None:
    for argument in arguments:
        if isinstance(argument, int):
            numbers.append(argument)
        elif isinstance(argument, array):
            numbers += argument.buffer_info()
        else:
            _flatten(argument, numbers)


def _compiled() -> list[str]:
    """The `ENTRIES` in LLVM's language, each with its frame as only argument."""
    import numba
    from numba.np import arrayobj

    array_parts: Any = arrayobj
    table_type = numba.types.Array(numba.int64, 1, "C")

    @numba.extending.intrinsic
    def view(typing: Any, address: Any, length: Any) -> Any:
        def of(target: Any, builder: Any, signature: Any, values: Any) -> Any:
            made, size = (
                array_parts.make_array(table_type)(target, builder),
                target.get_constant(numba.int64, 8),
            )
            data = builder.inttoptr(values[0], target.get_data_type(numba.int64).as_pointer())
            array_parts.populate_array(
                made, data=data, shape=[values[1]], strides=[size], itemsize=size, meminfo=None
            )
            return made._getvalue()

        return table_type(address, length), of

    # What a processor has an instruction for.
    @numba.extending.intrinsic
    def place(typing: Any, bits: Any) -> Any:
        def lowest(target: Any, builder: Any, signature: Any, values: Any) -> Any:
            return builder.cttz(values[0], target.get_constant(numba.types.boolean, True))

        return bits(bits), lowest

    # The same functions, where every name of a part is the compiled part. Nothing is allocated in them, so
    # nothing is counted (`_nrt`): counting who holds a table takes longer than what is done with it.
    names = {**vars(window_engine), "place": place, "view": view}
    njit: Any = numba.njit
    options = {"_nrt": False, "error_model": "numpy"}
    for part in (*window_engine.PARTS, *(getattr(window_engine, entry) for entry in ENTRIES)):
        name = part.__name__
        names[name] = njit(inline="always", **options)(FunctionType(part.__code__, names, name))
    texts = []
    for entry in ENTRIES:
        exec(_framed(entry), names)
        function = njit("int64(int64)", no_cpython_wrapper=True, no_cfunc_wrapper=True, **options)(
            names["framed"]
        )
        (overload,) = function.overloads.values()
        (text,) = function.inspect_llvm().values()
        texts.append(text.replace(overload.fndesc.llvm_func_name, entry))
    return texts


def _framed(entry: str) -> str:
    """Text of the function that takes the arguments of `entry` from a frame."""
    places = count()

    def taken(kind: Any) -> str:
        if kind is int:
            return f"frame[{next(places)}]"
        if kind is Any:
            address, length = next(places), next(places)
            return f"view(frame[{address}], frame[{length}])"
        return f"{kind.__name__}({', '.join(map(taken, get_type_hints(kind).values()))})"

    hints = get_type_hints(getattr(window_engine, entry))
    result = hints.pop("return")
    arguments = ", ".join(map(taken, hints.values()))
    call = f"return {entry}({arguments})" if result is int else f"{entry}({arguments})\n    return 0"
    return f"def framed(address):\n    frame = view(address, {next(places)})\n    {call}\n"
