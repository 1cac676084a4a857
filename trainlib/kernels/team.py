# SPDX-License-Identifier: Apache-2.0
"""The one way from a kernel to the work of a team of cores: nest, sizes and arrays in, `TeamWork` out.

Cores run the published split: what differs from core to core are the names of the kernel file that depend on
`core`, and the fallback a core takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache

from arch.spec.isa import CoreForm, CoreWork, NestCall, Origin, Skeleton, TeamWork
from configs.errors import InputError
from trainlib.kernels.conversions import converting
from trainlib.kernels.expand import Array, Expander, Placed
from trainlib.kernels.library import FP32_BYTES, LIBRARY, Fallback, Kernel, KernelLibrary

__all__ = ["Array", "team_work"]

KEPT_TEAMS = 2_000
"""Works kept by what they were made from; the one not asked for longest is dropped first."""

KEPT_JOINED = 1_000
"""Skeletons of kernels behind the cost of a fallback; compared by identity."""

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
    form: str = "",
) -> TeamWork:
    """The nest `kernel`.yaml of a codegen on `cores` cores, or that of its `form` if the codegen has one.

    `sizes` are the sizes the file names, `per_core` those that differ from core to core, `arrays` lie at L1
    byte addresses with strides in elements. `element_bytes` is the size of the data: the kernel for such
    elements is run, under its own name (`KernelLibrary.named`). With `accumulate` a product is added to C.

    Raises InputError for an unknown codegen or kernel, one without a form for such elements and an array
    narrower than the kernel's accesses; ConfigError for a name or array the nest uses and the call lacks.
    """
    kernel = library.named(codegen, kernel, element_bytes)
    wide = form and element_bytes == FP32_BYTES
    nest = library.kernel(codegen, library.form(codegen, kernel, form) if wide else kernel, accumulate)
    if type(cores) is not int or cores < 1:
        raise InputError(
            f"the number of cores is {cores!r}, but must be 1 or more",
            where=nest.header.name,
            cure="use 1 core or more",
        )
    names_per_core = tuple([tuple(names.items()) for names in per_core])
    team = _team(
        library, kernel, nest, tuple(sizes.items()), tuple(arrays.items()), cores, macs, names_per_core
    )
    if library is not LIBRARY:
        team.cores  # noqa: B018 - of a user's kernel it is said at once what is wrong with it
    return team


_Forms = tuple[tuple[str, tuple[int, ...], int], ...]
"""Of `NestCall`."""

_Lowered = tuple[Kernel, Expander, Mapping[str, int]]
"""A kernel, the text of it that is executed, and the names of the core that executes it."""


class _Lowering:
    """A nest as it was called, wherever its arrays lie, and what one core after the other executes of it.

    Names that are the same on all cores are evaluated once.
    """

    def __init__(
        self,
        library: KernelLibrary,
        kernel: Kernel,
        sizes: _Sizes,
        forms: _Forms,
        cores: int,
        per_core: tuple[_Sizes, ...],
    ) -> None:
        self.call = NestCall(
            kernel.header.codegen, kernel.header.name, kernel.accumulates, cores, sizes, per_core, forms
        )
        self.shipped = library is LIBRARY
        self.members = tuple(range(cores))
        self._library = library
        self._kernel = kernel
        self._sizes = {**dict(sizes), "cores": cores}
        self._arrays = {name: Array(0, strides, element_bytes) for name, strides, element_bytes in forms}
        self._per_core = per_core
        self._shared: dict[Kernel, dict[str, int]] = {}
        self._forms: dict[int, CoreForm] = {}
        self._ends: dict[int, Kernel] = {}
        """The kernels cores execute in the end."""
        # Raises ConfigError for arrays the kernel does not have, InputError for too narrow elements.
        self._placed: dict[Expander, Placed] = {kernel.expander: kernel.expander.placed(self._arrays)}

    @cached_property
    def text(self) -> str:
        """Of an `Origin`; one object, so that its hash is worked out once."""
        return repr(tuple(self.call))

    @cached_property
    def issued(self) -> tuple[int, ...] | None:
        """Instructions of every core; None where they are not those of the text."""
        counts = []
        for core in self.members:
            texts = self._texts(core)
            if texts[-1][0].header.element_bytes == 1:
                return None
            counts.append(sum([text.issued(names) for _, text, names in texts]))
        return tuple(counts)

    def work(self, core: int, addresses: Mapping[str, int]) -> CoreWork:
        """The work of a core."""
        kernel, form = self._form(core)
        work = kernel.expander.work(_at(form, addresses))
        return converting(work, _bytes_in(kernel, self._arrays)) if kernel.header.element_bytes == 1 else work

    def form(self, core: int, addresses: Mapping[str, int]) -> CoreForm | None:
        """That work by its numbers; None where it is more than the text."""
        kernel, form = self._form(core)
        return None if kernel.header.element_bytes == 1 else _at(form, addresses)

    def _texts(self, core: int) -> list[_Lowered]:
        """What a core executes: what it pays for a fallback, if it takes one, and the kernel."""
        sizes, shared = self._sizes, self._shared
        if self._per_core:
            sizes, shared = {**sizes, **dict(self._per_core[core])}, {}
        executed: list[_Lowered] = []
        kernel = self._kernel
        while True:
            names, fallback = _evaluated(kernel, sizes, core, shared)
            if fallback is None:
                executed.append((kernel, kernel.expander, names))
                return executed
            executed.append((kernel, fallback.cost, names))
            use = self._library.named(kernel.header.codegen, fallback.use, kernel.header.element_bytes)
            kernel = self._library.kernel(kernel.header.codegen, use, kernel.accumulates)

    def _form(self, core: int) -> tuple[Kernel, CoreForm]:
        """The kernel a core executes in the end, and all it executes by its numbers, arrays at 0."""
        form = self._forms.get(core)
        if form is None:
            *costs, (kernel, expander, names) = self._texts(core)
            form = self._form_of(expander, names, kernel.header.code_bytes)
            for before, cost, names in reversed(costs):
                # Straight-line code without addressed accesses, and then the other kernel.
                first = self._form_of(cost, names, before.header.code_bytes)
                form = form._replace(
                    skeleton=_joined(first.skeleton, form.skeleton), trips=first.trips + form.trips
                )
            self._forms[core], self._ends[core] = form, kernel
        return self._ends[core], form

    def _form_of(self, expander: Expander, names: Mapping[str, int], code_bytes: int) -> CoreForm:
        placed = self._placed.get(expander)
        if placed is None:
            placed = self._placed[expander] = expander.placed(self._arrays)
        return expander.form(names, placed, code_bytes)


def _at(form: CoreForm, addresses: Mapping[str, int]) -> CoreForm:
    """A form whose arrays are at 0 with them at `addresses`."""
    skeleton, trips, units_bytes, anchors_bytes = form
    moved = tuple([addresses[array] + at for array, at in zip(skeleton.arrays, anchors_bytes, strict=True)])
    return CoreForm(skeleton, trips, units_bytes, moved)


class _Team(TeamWork):
    """The work of a team, lowered core by core when it is asked for: of most works only a count is wanted."""

    _lowering: _Lowering
    _addresses: Mapping[str, int]
    _works: dict[int, CoreWork]

    def __init__(self, kernel: str, macs: int, lowering: _Lowering, addresses: Mapping[str, int]) -> None:
        mine = {"kernel": kernel, "macs": macs, "members": lowering.members, "size": len(lowering.members)}
        vars(self).update(mine, _lowering=lowering, _addresses=addresses, _works={})

    @cached_property
    def origin(self) -> Origin | None:
        made = self._lowering
        return Origin(made.text, tuple(self._addresses.values()), (made.call,)) if made.shipped else None

    @cached_property
    def cores(self) -> tuple[CoreWork, ...]:
        return tuple([self.core(member) for member in self.members])

    @cached_property
    def issued(self) -> tuple[int, ...]:
        """Instructions of every core."""
        counts = self._lowering.issued
        return super().issued if counts is None else counts

    def core(self, member: int) -> CoreWork:
        work = self._works.get(member)
        if work is None:
            work = self._works[member] = self._lowering.work(member, self._addresses)
        return work

    def form(self, member: int) -> CoreForm | None:
        return self._lowering.form(member, self._addresses)


@lru_cache(KEPT_JOINED)
def _joined(first: Skeleton, second: Skeleton) -> Skeleton:
    """What a fallback costs, and the kernel behind it."""
    return Skeleton(first.body + second.body, second.streams, second.code_bytes, arrays=second.arrays)


@lru_cache(KEPT_TEAMS)
def _team(
    library: KernelLibrary,
    name: str,
    kernel: Kernel,
    sizes: _Sizes,
    arrays: tuple[tuple[str, Array], ...],
    cores: int,
    macs: int,
    per_core: tuple[_Sizes, ...],
) -> TeamWork:
    forms = tuple([(name, strides, element_bytes) for name, (_, strides, element_bytes) in arrays])
    lowering = _lowering(library, kernel, sizes, forms, cores, per_core)
    return _Team(name, macs, lowering, {name: array.address for name, array in arrays})


_lowering = lru_cache(KEPT_TEAMS)(_Lowering)
"""Tiles of one shape lie at different addresses."""


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
