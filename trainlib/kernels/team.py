# SPDX-License-Identifier: Apache-2.0
"""The one way from a kernel to the work of a team of cores: nest, sizes and arrays in, `TeamWork` out.

Cores run the published split: what differs from core to core are the names of the kernel file that depend on
`core`, and the fallback a core takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from arch.spec.isa import CoreWork, NestCall, Origin, TeamWork
from configs.errors import InputError
from trainlib.kernels.conversions import converting
from trainlib.kernels.expand import Array
from trainlib.kernels.library import FP32_BYTES, LIBRARY, Fallback, Kernel, KernelLibrary

__all__ = ["Array", "team_work"]

KEPT_TEAMS = 2_000
"""Works kept by what they were made from; the one not asked for longest is dropped first."""

_Sizes = tuple[tuple[str, int], ...]


def team_work(
    codegen: str,
    kernel: str,
    sizes: Mapping[str, int],
    arrays: Mapping[str, Array],
    cores: int,
    *,
    macs: int = 0,
    per_core: Sequence[Mapping[str, int]] = (),
    element_bytes: int = FP32_BYTES,
    library: KernelLibrary = LIBRARY,
    accumulate: bool = False,
) -> TeamWork:
    """The nest `kernel`.yaml of a codegen on `cores` cores, fallbacks included.

    `sizes` are the sizes the file names, `per_core` those that differ from core to core, `arrays` lie at L1
    byte addresses with strides in elements. `element_bytes` is the size of the data: the kernel for such
    elements is run, under its own name (`KernelLibrary.named`). With `accumulate` a product is added to C.

    Raises InputError for an unknown codegen or kernel, one without a form for such elements and an array
    narrower than the kernel's accesses; ConfigError for a name or array the nest uses and the call lacks.
    """
    nest = library.kernel(codegen, library.named(codegen, kernel, element_bytes), accumulate)
    if type(cores) is not int or cores < 1:
        raise InputError(f"cores must be a positive integer, not {cores!r}", where=nest.name)
    names_per_core = tuple([tuple(names.items()) for names in per_core])
    return _team(library, nest, tuple(sizes.items()), tuple(arrays.items()), cores, macs, names_per_core)


@lru_cache(KEPT_TEAMS)
def _team(
    library: KernelLibrary,
    kernel: Kernel,
    sizes: _Sizes,
    arrays: tuple[tuple[str, Array], ...],
    cores: int,
    macs: int,
    per_core: tuple[_Sizes, ...],
) -> TeamWork:
    placed = dict(arrays)
    shared: dict[Kernel, dict[str, int]] = {}
    works = []
    for core in range(cores):
        names = {**dict(sizes), "cores": cores}
        if per_core:
            names |= dict(per_core[core])
            shared = {}
        works.append(_core_work(library, kernel, names, core, placed, shared))
    return TeamWork(kernel.name, tuple(works), macs, _origin(kernel, sizes, arrays, cores, per_core, library))


def _origin(
    kernel: Kernel,
    sizes: _Sizes,
    arrays: tuple[tuple[str, Array], ...],
    cores: int,
    per_core: tuple[_Sizes, ...],
    library: KernelLibrary,
) -> Origin | None:
    if library is not LIBRARY:
        return None
    forms = tuple([(name, array.strides, array.element_bytes) for name, array in arrays])
    made = NestCall(kernel.codegen, kernel.name, kernel.accumulates, cores, sizes, per_core, forms)
    return Origin(repr(tuple(made)), tuple([array.address for _, array in arrays]), (made,))


def _core_work(
    library: KernelLibrary,
    kernel: Kernel,
    sizes: Mapping[str, int],
    core: int,
    arrays: Mapping[str, Array],
    shared: dict[Kernel, dict[str, int]],
) -> CoreWork:
    """The work of one core; `shared` keeps the names that are the same on all cores of the team."""
    names, fallback = _evaluated(kernel, sizes, core, shared)
    if fallback is None:
        work = kernel.expander.core_work(names, arrays, kernel.code_bytes)
        return converting(work, _bytes_in(kernel, arrays)) if kernel.element_bytes == 1 else work
    before = fallback.cost.core_work(names, arrays, kernel.code_bytes)
    use = library.named(kernel.codegen, fallback.use, kernel.element_bytes)
    used = library.kernel(kernel.codegen, use, kernel.accumulates)
    after = _core_work(library, used, sizes, core, arrays, shared)
    # Straight-line code without addressed accesses, and then the other kernel.
    return CoreWork(before.body + after.body, after.streams, after.code_bytes)


def _bytes_in(kernel: Kernel, arrays: Mapping[str, Array]) -> frozenset[int]:
    """The accesses of a kernel to numbers of one byte, in a format no FPU computes in."""
    accesses = kernel.expander.nest.accesses
    narrow = {name for name, array in arrays.items() if array.element_bytes == 1}
    return frozenset(index for index, access in enumerate(accesses) if access.array in narrow)


def _evaluated(
    kernel: Kernel, sizes: Mapping[str, int], core: int, shared: dict[Kernel, dict[str, int]]
) -> tuple[dict[str, int], Fallback | None]:
    """The names of one core, and the other kernel it executes, if any."""
    common = shared.get(kernel)
    names = dict(sizes) if common is None else common
    try:
        if common is None:
            for name, expression in kernel.team_names:
                names[name] = expression.evaluate(names)
            common = shared[kernel] = names
        names = {**common, "core": core}
        for name, expression in kernel.core_names:
            names[name] = expression.evaluate(names)
        for fallback in kernel.fallbacks:
            if fallback.when.evaluate(names):
                return names, fallback
    except (KeyError, ArithmeticError, RecursionError) as error:
        raise kernel.failure(error, names) from None
    return names, None
