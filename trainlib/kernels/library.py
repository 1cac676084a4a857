# SPDX-License-Identifier: Apache-2.0
"""The kernel files of a codegen profile: `configs/kernels/<codegen>/*.yaml`, read strictly, parsed once.

A kernel file has the keys

- kernel: its name, which is also the name of the file;
- about: one line of text (optional);
- code_bytes: size of its machine code;
- arrays: number of indices of every array the text may touch, e.g. {A: 2, B: 2, C: 2};
- names: expressions evaluated in order for every core (block, start, stop ...); they may use the sizes of the
  call, `core` (0, 1, ...), `cores` and names defined before;
- fallback: list of {when, use, cost}: if `when` is true on a core, it executes the nest `cost` and then the
  kernel `use` (optional);
- nest: the text, see `trainlib.kernels.nest`; or instead
- listing: an annotated assembly listing, see `trainlib.kernels.assembly`;
- element_bytes: bytes of an element (optional, 4);
- measured: the measured rows that have it, and fitted: those its counts were read off, such as
  ``layer.csv primitive=relu step=FW; mm.csv kernel=mm`` (optional; `trainlib.kernels.evidence`);
- trans_b: the only transposition of B a matmul kernel can do, true or false (optional: both).

A user's own file can be an annotated listing by itself, see `trainlib.kernels.kernel_file`.

A kernel is found by codegen, name and element size. One for narrower elements is a file of its own, such as
`mm_fp16` beside `mm` (`sibling`); where there is none it is described: the nest of the fp32 kernel with
narrower accesses (`trainlib.kernels.transform.narrowed`), never measured. A listing is one program and has
no such form.

A folder may also hold `codegen.yaml` with `base` (a codegen whose kernels are taken over), `transform` (see
`trainlib.kernels.transform`) and `without` (kernels of the base that do not run on this core, optional); its
own kernel files then replace those of the base, untransformed. That is the one rule for a kernel a codegen
has no file of: the base's, transformed. `estimates: true` says that kernels so made stand in for code of
another compiler; `measured` lists those of them that have rows of their own. `compiled` names another codegen
of the same compiler, whose files stand in for kernels of the base that no row has, and with them those of
their forms. `waits_for_code: true` says that its kernels contain the wait for their own code already, as they
were fitted to first calls.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from configs.errors import ConfigError, InputError
from configs.values import Struct, replace
from trainlib.kernels.accumulate import accumulating
from trainlib.kernels.assembly import listing_to_nest
from trainlib.kernels.expand import Expander
from trainlib.kernels.expressions import ALLOWED, Expression, parse_expression
from trainlib.kernels.kernel_file import KEY_LINES, Section, read_section, suggestion
from trainlib.kernels.nest import parse_nest
from trainlib.kernels.transform import TRANSFORMS, Transform, narrowed

_REQUIRED = ("kernel", "code_bytes", "arrays")
_OPTIONAL = (
    "about",
    "names",
    "fallback",
    "nest",
    "listing",
    "element_bytes",
    "trans_b",
    "measured",
    "fitted",
)
FP32_BYTES = 4
"""Bytes of an element of a kernel, if its file does not say otherwise."""

AS = "_as_"
"""In the name of a form: what is computed, and whose nest was its price."""

MOST_CODE_BYTES = 1 << 20
"""Size of the machine code of one kernel."""

_MATMUL = {"A": 2, "B": 2, "C": 2}
_DEPTHWISE = {"A": 2, "B": 3, "C": 2}


class Fallback(Struct, frozen=True):
    """Another kernel that runs instead when `when` holds, after the instructions of `cost`."""

    when: Expression
    use: str
    cost: Expander


class Header(Struct, frozen=True):
    """What a kernel file says about the kernel beside its text."""

    name: str
    codegen: str
    section: Section
    code_bytes: int
    arrays: Mapping[str, int]
    about: str
    element_bytes: int
    trans_b: bool | None

    @property
    def is_matmul(self) -> bool:
        """Whether it multiplies A[N,K] and B[K,M] to C[N,M]."""
        return self.arrays == _MATMUL

    @property
    def is_depthwise(self) -> bool:
        """Whether it multiplies A[N,K] and the rows B[M,N,K] channel by channel to C[N,M]."""
        return self.arrays == _DEPTHWISE


@dataclass(frozen=True, eq=False)
class Kernel:
    """One kernel of one codegen: what the file says, parsed."""

    header: Header
    names: tuple[tuple[str, Expression], ...]
    fallbacks: tuple[Fallback, ...]
    expander: Expander
    accumulates: bool = False

    def failure(self, error: Exception, names: Mapping[str, int]) -> ConfigError:
        """What to tell the user of an expression of the file that has no value: its place, and why.

        `names` are those that were known.
        """
        name, file = self.header.name, self.header.section.file
        if isinstance(error, ZeroDivisionError):
            message = f"an expression of kernel '{name}' divides by zero"
            return ConfigError(message, where=file, cure="use a divisor other than 0")
        if not isinstance(error, KeyError):
            message = f"cannot evaluate an expression of '{name}': {error}"
            return ConfigError(message, where=file, cure=ALLOWED)
        missing = str(error.args[0])
        section = self.header.section.values.get("names")
        user = next((word for word, expression in self.names if missing in expression.names), None)
        where = section.where(user) if user is not None and isinstance(section, Section) else file
        return ConfigError(
            f"unknown name '{missing}' in the kernel", where=where, cure=suggestion(missing, names)
        )

    @cached_property
    def core_names(self) -> tuple[tuple[str, Expression], ...]:
        """The names that differ from core to core, in order."""
        varying = {"core"}
        for name, expression in self.names:
            if expression.names & varying:
                varying.add(name)
        return tuple(item for item in self.names if item[0] in varying)

    @cached_property
    def team_names(self) -> tuple[tuple[str, Expression], ...]:
        """The names that are the same on all cores, in order."""
        varying = {name for name, _ in self.core_names}
        return tuple(item for item in self.names if item[0] not in varying)


class Origin(Struct, frozen=True):
    """Where a nest comes from: the kernel it is made of, and how.

    `how` is `OWN` (a file of its own), `GIVEN` (a user's), `SHARED` (the same code as the base's), `CHANGED`
    (the base's, transformed or in place of another compiler's) or `NARROWED` (to `element_bytes`). `codegen`
    and `name` are those of what it is made of: of an `OWN` one the nest of the same function in the base, of
    a 16-bit one the wide nest of the same loops; empty if there is none. `listed` says that the codegen
    itself lists rows of it.
    """

    how: str
    codegen: str = ""
    name: str = ""
    element_bytes: int = 0
    listed: bool = False


OWN, GIVEN, SHARED, CHANGED, NARROWED = "own", "given", "shared", "changed", "narrowed"


class _Source(Struct, frozen=True):
    """The file of a kernel, what is made of it, and where it comes from.

    `described` is the size in bytes of the elements of a kernel that is made from one for wider elements; 0
    for all others.
    """

    file: Traversable
    transform: Transform
    origin: Origin
    described: int = 0


WORDS: Mapping[int, str] = {1: "fp8", 2: "fp16"}
"""Bytes of an element -> the word in the name of a kernel for such elements; bf16 costs what fp16 costs."""

_FAMILY = re.compile(r"(mm(?:_M|_dw_in_grad|_dw)?)(_.*)?")
"""The matmuls: the word stands behind the family, as in PULP-TrainLib's ``mm_M_fp16_unroll_2x1``."""


def sibling(name: str, element_bytes: int) -> str:
    """Name of the form of an fp32 kernel for elements of 1 or 2 bytes."""
    word = WORDS[element_bytes]
    match = _FAMILY.fullmatch(name)
    return f"{match[1]}_{word}{match[2] or ''}" if match else f"{name}_{word}"


def _origin(name: str) -> tuple[str, int] | None:
    """The fp32 kernel a name is a `sibling` of, and the bytes of an element; None for other names."""
    for element_bytes, word in WORDS.items():
        base = name.replace(f"_{word}", "", 1)
        if base != name and sibling(base, element_bytes) == name:
            return base, element_bytes
    return None


class KernelLibrary:
    """Kernels by codegen and name; a file of `root` (default: the shipped configs) is read on first use."""

    def __init__(self, root: Traversable | None = None) -> None:
        self._root = root if root is not None else files("configs").joinpath("kernels")
        self._sources: dict[str, dict[str, _Source]] = {}
        self._headers: dict[tuple[str, str], Header] = {}
        self._kernels: dict[tuple[str, str, bool], Kernel] = {}
        self._named: dict[tuple[str, str, int], str] = {}
        self._names: tuple[str, ...] | None = None
        self._with_rows: dict[str, bool] = {}
        self._compiled: dict[str, dict[str, _Source]] = {}
        """Of codegens that name another as `compiled`, the files of that."""

    def codegen_names(self) -> tuple[str, ...]:
        """Names of all codegen profiles, sorted."""
        if self._names is None:
            self._names = tuple(sorted(item.name for item in self._root.iterdir() if _is_codegen(item)))
        return self._names

    def kernel_names(self, codegen: str) -> tuple[str, ...]:
        """Names of all kernels of a codegen, sorted. Raises InputError for an unknown codegen."""
        return tuple(sorted(self._find(codegen)))

    def form(self, codegen: str, name: str, form: str) -> str:
        """`form` if the codegen has a nest of that form of the kernel, else `name`. Raises InputError."""
        if form in self._find(codegen):
            return form
        compiled = self._compiled.get(codegen, {})
        if form not in compiled:
            return name
        taken = name in compiled and self._source(codegen, name).file == compiled[name].file
        return form if taken or AS in form else name

    def waits_for_code(self, codegen: str) -> bool:
        """Whether the kernels of a codegen contain the wait for their own code. Raises InputError."""
        self._find(codegen)
        profile = self._root.joinpath(codegen, "codegen.yaml")
        return profile.is_file() and bool(read_section(profile).values.get("waits_for_code", False))

    def with_file(self, codegen: str, file: Path) -> tuple[KernelLibrary, str]:
        """This library with a user's kernel file added to (or replacing one of) a codegen, and its name.

        Raises ConfigError with ``file:line`` for anything in the file that is wrong.
        """
        library = KernelLibrary(self._root)
        sources = library._find(codegen)
        name = file.stem
        library._sources[codegen] = {**sources, name: _Source(file, TRANSFORMS["none"], Origin(GIVEN))}
        library.kernel(codegen, name)
        library._check_fallbacks(codegen, name)
        return library, name

    def _check_fallbacks(self, codegen: str, name: str) -> None:
        """Raise ConfigError if the fallbacks of a kernel, or theirs, lead back to it."""
        seen: set[str] = set()
        wanted = [item.use for item in self.kernel(codegen, name).fallbacks]
        while wanted:
            used = wanted.pop()
            if used == name:
                raise ConfigError(
                    f"the fallbacks of kernel '{name}' form a cycle",
                    where=self.header(codegen, name).section.where("fallback"),
                    cure="remove one of the fallbacks",
                )
            if used not in seen:
                seen.add(used)
                wanted += [item.use for item in self.kernel(codegen, used).fallbacks]

    def header(self, codegen: str, name: str) -> Header:
        """What the file of a kernel says without its text. Raises like `kernel`."""
        header = self._headers.get((codegen, name))
        if header is None:
            source = self._source(codegen, name)
            header = _header(source.file, codegen)
            if source.described:
                about = f"described, {header.name} with narrower accesses: {header.about}"
                header = replace(header, name=name, element_bytes=source.described, about=about)
            self._headers[codegen, name] = header
        return header

    def origin(self, codegen: str, name: str) -> Origin:
        """Where a nest comes from. Raises like `kernel`."""
        return self._source(codegen, name).origin

    def rows(self, codegen: str, name: str, key: str = "measured") -> str:
        """What the file of a kernel says under `measured` or `fitted`, or nothing. Raises like `kernel`."""
        return str(self.header(codegen, name).section.values.get(key, ""))

    def has_rows(self, codegen: str) -> bool:
        """Whether any kernel of a codegen was measured as that codegen's. Raises InputError."""
        answer = self._with_rows.get(codegen)
        if answer is None:
            origins = {name: source.origin for name, source in self._find(codegen).items()}
            answer = any(origin.how == SHARED or origin.listed for origin in origins.values()) or any(
                self.rows(codegen, name) for name, origin in origins.items() if origin.how == OWN
            )
            self._with_rows[codegen] = answer
        return answer

    def named(self, codegen: str, name: str, element_bytes: int) -> str:
        """The kernel `name` for elements of this size: itself, or its `sibling`.

        Raises InputError like `kernel`, and for a kernel that has no form for such elements.
        """
        key = (codegen, name, element_bytes)
        name_there = self._named.get(key)
        if name_there is not None:
            return name_there
        header = self.header(codegen, name)
        if header.element_bytes == FP32_BYTES and element_bytes in WORDS:
            name_there = sibling(name, element_bytes)
        if header.element_bytes == element_bytes:
            name_there = name
        if name_there == name or (
            name_there and (name_there in self._find(codegen) or self._described(codegen, name_there))
        ):
            self._named[key] = name_there
            return name_there
        names = self.sized_like(codegen, name, element_bytes)
        raise InputError(
            f"kernel '{name}' needs elements of {header.element_bytes} bytes, not {element_bytes}",
            where="kernel",
            cure=f"use one of {', '.join(names)}" if names else "use another dtype",
        )

    def sized_like(self, codegen: str, name: str, element_bytes: int) -> tuple[str, ...]:
        """Names of kernels with the arrays of `name` for elements of this size, described ones included."""
        arrays, alike = self.header(codegen, name).arrays, set[str]()
        for other in self.kernel_names(codegen):
            header = self.header(codegen, other)
            if header.arrays != arrays:
                continue
            if header.element_bytes == element_bytes:
                alike.add(other)
            elif header.element_bytes == FP32_BYTES and element_bytes in WORDS:
                narrow = sibling(other, element_bytes)
                if self._described(codegen, narrow) is not None:
                    alike.add(narrow)
        return tuple(sorted(alike))

    def kernel(self, codegen: str, name: str, accumulate: bool = False) -> Kernel:
        """A kernel by name, or the form of it that adds to C.

        Raises InputError with a suggestion when codegen or name is unknown, ConfigError with ``file:line``.
        """
        key = (codegen, name, accumulate)
        kernel = self._kernels.get(key)
        if kernel is None:
            source = self._source(codegen, name)
            kernel = _kernel(self.header(codegen, name), source.transform, accumulate)
            nests = self._find(codegen)
            for fallback in kernel.fallbacks:
                if fallback.use not in nests:
                    raise ConfigError(
                        f"'fallback' names an unknown kernel '{fallback.use}'",
                        where=kernel.header.section.file,
                        cure=suggestion(fallback.use, nests),
                    )
            self._kernels[key] = kernel
        return kernel

    def _source(self, codegen: str, name: str) -> _Source:
        sources = self._find(codegen)
        source = sources.get(name) or self._described(codegen, name)
        compiled = self._compiled.get(codegen, {}).get(name)
        if compiled is not None and source is not None and source.file != compiled.file:
            if source.origin.how != CHANGED or "measured" in read_section(source.file).values:
                return source
            source = sources[name] = replace(compiled, origin=source.origin)
        source = source or compiled
        if source is None:
            raise InputError(
                f"codegen '{codegen}' has no kernel '{name}'", where="kernel", cure=suggestion(name, sources)
            )
        return source

    def _described(self, codegen: str, name: str) -> _Source | None:
        """What stands in for a kernel for narrow elements that the codegen has no file of."""
        origin = _origin(name)
        if origin is None or origin[0] not in self._find(codegen):
            return None
        source, header = self._source(codegen, origin[0]), self.header(codegen, origin[0])
        if header.element_bytes != FP32_BYTES or "listing" in header.section.values:
            return None
        narrow, wide = narrowed(origin[1]), source.transform
        made_of = Origin(NARROWED, codegen, origin[0], origin[1])
        return _Source(source.file, lambda nest: narrow(wide(nest)), made_of, origin[1])

    @staticmethod
    def _own(
        codegen: str,
        name: str,
        base: str,
        inherited: Mapping[str, _Source],
        files: Mapping[str, Traversable],
    ) -> Origin:
        """Of a file of a codegen: the nest of the same function elsewhere."""
        if name in inherited:
            return Origin(OWN, base, name)
        wide = _origin(name)
        if wide is not None and wide[0] in files:
            return Origin(OWN, codegen, wide[0], wide[1])
        return Origin(OWN)

    def _find(self, codegen: str) -> dict[str, _Source]:
        if codegen in self._sources:
            return self._sources[codegen]
        if codegen not in self.codegen_names():
            raise InputError(
                f"unknown codegen '{codegen}'",
                where="codegen",
                cure=suggestion(codegen, self.codegen_names()),
            )
        folder = self._root.joinpath(codegen)
        files = _kernel_files(folder)
        profile = folder.joinpath("codegen.yaml")
        inherited: dict[str, _Source] = {}
        base = ""
        if profile.is_file():
            base, transform, without, listed, shared, compiled = _read_profile(profile)
            for key, named in (("base", base), ("compiled", compiled or base)):
                if named not in self.codegen_names() or named == codegen:
                    raise ConfigError(
                        f"unknown codegen '{named}' in '{key}'",
                        where=str(profile),
                        cure=suggestion(named, self.codegen_names()),
                    )
            if compiled:
                self._compiled[codegen] = {
                    name: _Source(file, TRANSFORMS["none"], Origin(OWN))
                    for name, file in _kernel_files(self._root.joinpath(compiled)).items()
                }
            how = SHARED if shared else CHANGED
            inherited = {
                name: _Source(file, transform, Origin(how, base, name, listed=name in listed))
                for name, file in _kernel_files(self._root.joinpath(base)).items()
            }
            for key, names in (("without", without), ("measured", listed)):
                for name in names:
                    if name not in inherited or (key != "without" and name in files):
                        raise ConfigError(
                            f"'{key}' names the kernel '{name}', which is not inherited from '{base}'",
                            where=str(profile),
                            cure=f"remove '{name}' from '{key}'",
                        )
            for name in without:
                del inherited[name]
        sources = inherited | {
            name: _Source(file, TRANSFORMS["none"], self._own(codegen, name, base, inherited, files))
            for name, file in files.items()
        }
        self._sources[codegen] = sources
        return sources


def _kernel_files(folder: Traversable) -> dict[str, Traversable]:
    return {
        file.name.removesuffix(".yaml"): file
        for file in folder.iterdir()
        if file.name.endswith(".yaml") and file.name != "codegen.yaml"
    }


def _is_codegen(item: Traversable) -> bool:
    return item.is_dir() and any(file.name.endswith(".yaml") for file in item.iterdir())


def _read_profile(
    file: Traversable,
) -> tuple[str, Transform, tuple[str, ...], tuple[str, ...], bool, str]:
    """Base, transform, kernels of the base left out, those with rows here, whether all are its code, and the
    codegen that is `compiled` or ""."""
    section = read_section(file)
    section.check(
        ("base", "transform"),
        ("about", "without", "estimates", "measured", "waits_for_code", "compiled"),
    )
    name = str(section.values["transform"])
    if name not in TRANSFORMS:
        raise ConfigError(
            f"unknown transform '{name}'", where=section.where("transform"), cure=suggestion(name, TRANSFORMS)
        )
    without, listed = (tuple(str(section.values.get(key, "")).split()) for key in ("without", "measured"))
    estimates = section.values.get("estimates", False)
    if type(estimates) is not bool:
        raise _unfit(section, "estimates", "true or false")
    shared = name == "none" and not estimates
    compiled = str(section.values.get("compiled", ""))
    return str(section.values["base"]), TRANSFORMS[name], without, listed, shared, compiled


def _header(file: Traversable, codegen: str) -> Header:
    section = read_section(file)
    section.check(_REQUIRED, _OPTIONAL)
    values = section.values
    if values["kernel"] != file.name.rpartition(".")[0]:
        raise ConfigError(
            f"'kernel' is '{values['kernel']}', but the name of the file is {file.name}",
            where=section.where("kernel"),
            cure="use the same name for both",
        )
    if type(values["code_bytes"]) is not int or not 0 <= values["code_bytes"] <= MOST_CODE_BYTES:
        raise _unfit(section, "code_bytes", f"a whole number of bytes from 0 to {MOST_CODE_BYTES}")
    element_bytes = values.get("element_bytes", FP32_BYTES)
    if type(element_bytes) is not int or element_bytes not in (1, 2, 4):
        raise _unfit(section, "element_bytes", "1, 2 or 4")
    if "trans_b" in values and type(values["trans_b"]) is not bool:
        raise _unfit(section, "trans_b", "true or false")
    for key in ("measured", "fitted"):
        if key in values and not isinstance(values[key], str):
            raise ConfigError(
                f"'{key}' must select rows of a CSV file of measurements",
                where=section.where(key),
                cure="write FILE COLUMN=VALUE, e.g. mm.csv kernel=mm",
            )
    if ("nest" in values) == ("listing" in values):
        found = "both 'nest' and" if "nest" in values else "neither 'nest' nor"
        raise ConfigError(
            f"the file has {found} 'listing'",
            where=section.file,
            cure="write one: loops and instructions, or the path of a disassembly (docs/kernels.md)",
        )
    arrays = _part(section, "arrays")
    for array, indices in arrays.values.items():
        if type(indices) is not int or indices < 1:
            raise _unfit(arrays, array, "the number of indices of the array, 1 or more")
    return Header(
        values["kernel"],
        codegen,
        section,
        values["code_bytes"],
        dict(arrays.values),
        str(values.get("about", "")),
        element_bytes,
        values.get("trans_b"),
    )


def _kernel(header: Header, transform: Transform, accumulate: bool) -> Kernel:
    section = header.section
    names: list[tuple[str, Expression]] = []
    if "names" in section.values:
        part = _part(section, "names")
        names = [(key, parse_expression(str(text), part.where(key))) for key, text in part.values.items()]
    entries = section.values.get("fallback") or ()
    if not isinstance(entries, list | tuple) or not all(isinstance(entry, Section) for entry in entries):
        raise _unfit(section, "fallback", "a list of mappings with the keys when, use and cost")
    fallbacks: list[Fallback] = []
    for entry in entries:
        entry.check(("when", "use", "cost"), ())
        when = parse_expression(str(entry.values["when"]), entry.where("when"))
        cost = _expander(entry, "cost", transform, header.element_bytes)
        fallbacks.append(Fallback(when, str(entry.values["use"]), cost))
    text = "listing" if "listing" in section.values else "nest"
    expander = _expander(section, text, transform, header.element_bytes, accumulate)
    return Kernel(header, tuple(names), tuple(fallbacks), expander, accumulate)


def _expander(
    section: Section, key: str, transform: Transform, element_bytes: int, accumulate: bool = False
) -> Expander:
    text, first_line = str(section.values[key]), section.text_line(key)
    if key == "listing":
        text = listing_to_nest(text, section.file, first_line)
    nest = transform(parse_nest(text, section.file, first_line))
    where = f"{section.file}:{first_line}"
    return Expander(accumulating(nest, where) if accumulate else nest, where, element_bytes)


def _unfit(section: Section, key: str, wanted: str) -> ConfigError:
    """The error of a value that is not `wanted`."""
    found = "" if isinstance(section.values[key], list | tuple) else f", not {section.values[key]!s:.60}"
    return ConfigError(
        f"'{key}' must be {wanted}{found}", where=section.where(key), cure=f"correct the value of '{key}'"
    )


def _part(section: Section, key: str) -> Section:
    part = section.values[key]
    if not isinstance(part, Section):
        raise ConfigError(f"'{key}' is not a mapping", where=section.where(key), cure=KEY_LINES)
    return part


LIBRARY = KernelLibrary()
"""The shipped kernels."""
