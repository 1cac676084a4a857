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
- trans_b: the only transposition of B a matmul kernel can do, true or false (optional: both).

A folder may also hold `codegen.yaml` with `base` (a codegen whose kernels are taken over) and `transform`
(see `trainlib.kernels.transform`); its own kernel files then replace those of the base, untransformed.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from configs.errors import ConfigError, InputError
from trainlib.kernels.assembly import listing_to_nest
from trainlib.kernels.expand import Expander
from trainlib.kernels.expressions import Expression, parse_expression
from trainlib.kernels.nest import parse_nest
from trainlib.kernels.transform import TRANSFORMS, Transform

_REQUIRED = ("kernel", "code_bytes", "arrays")
_OPTIONAL = ("about", "names", "fallback", "nest", "listing", "element_bytes", "trans_b")


@dataclass(frozen=True, slots=True)
class Fallback:
    """Another kernel that runs instead when `when` holds, after the instructions of `cost`."""

    when: Expression
    use: str
    cost: Expander


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel of one codegen: what the file says, parsed."""

    name: str
    codegen: str
    where: str
    code_bytes: int
    arrays: Mapping[str, int]
    names: tuple[tuple[str, Expression], ...]
    fallbacks: tuple[Fallback, ...]
    expander: Expander
    element_bytes: int = 4
    trans_b: bool | None = None


def suggestion(wanted: str, known: Iterable[str]) -> str:
    """A cure line for an unknown name: the nearest known one, or all of them."""
    choices = sorted(known)
    near = difflib.get_close_matches(wanted, choices, n=1)
    return f"did you mean '{near[0]}'?" if near else f"known are {', '.join(choices)}"


@dataclass(frozen=True, slots=True)
class _Source:
    file: Traversable
    transform: Transform


class KernelLibrary:
    """Kernels by codegen and name; a file of `root` (default: the shipped configs) is read on first use."""

    def __init__(self, root: Traversable | None = None) -> None:
        self._root = root if root is not None else files("configs").joinpath("kernels")
        self._sources: dict[str, dict[str, _Source]] = {}
        self._kernels: dict[tuple[str, str], Kernel] = {}
        self._names: tuple[str, ...] | None = None

    def codegen_names(self) -> tuple[str, ...]:
        """Names of all codegen profiles, sorted."""
        if self._names is None:
            self._names = tuple(sorted(item.name for item in self._root.iterdir() if _is_codegen(item)))
        return self._names

    def kernel_names(self, codegen: str) -> tuple[str, ...]:
        """Names of all kernels of a codegen, sorted. Raises InputError for an unknown codegen."""
        return tuple(sorted(self._find(codegen)))

    def kernel(self, codegen: str, name: str) -> Kernel:
        """A kernel by name. Raises InputError with a suggestion when codegen or name is unknown."""
        found = self._kernels.get((codegen, name))
        if found is None:
            sources = self._find(codegen)
            source = sources.get(name)
            if source is None:
                raise InputError(
                    f"codegen '{codegen}' has no kernel '{name}'",
                    where="kernel",
                    cure=suggestion(name, sources),
                )
            found = read_kernel(source.file, codegen, source.transform)
            for fallback in found.fallbacks:
                if fallback.use not in sources:
                    raise ConfigError(
                        f"fallback to unknown kernel '{fallback.use}'",
                        where=found.where,
                        cure=suggestion(fallback.use, sources),
                    )
            self._kernels[codegen, name] = found
        return found

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
        sources = _kernel_files(folder, TRANSFORMS["none"])
        profile = folder.joinpath("codegen.yaml")
        if profile.is_file():
            base, transform = _read_profile(profile)
            if base not in self.codegen_names() or base == codegen:
                raise ConfigError(
                    f"unknown base codegen '{base}'",
                    where=str(profile),
                    cure=suggestion(base, self.codegen_names()),
                )
            sources = _kernel_files(self._root.joinpath(base), transform) | sources
        self._sources[codegen] = sources
        return sources


def _kernel_files(folder: Traversable, transform: Transform) -> dict[str, _Source]:
    return {
        file.name.removesuffix(".yaml"): _Source(file, transform)
        for file in folder.iterdir()
        if file.name.endswith(".yaml") and file.name != "codegen.yaml"
    }


def _is_codegen(item: Traversable) -> bool:
    return item.is_dir() and any(file.name.endswith(".yaml") for file in item.iterdir())


def _read_yaml(file: Traversable) -> Any:
    try:
        return YAML(typ="rt").load(file.read_text(encoding="utf-8"))
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark is not None else 1
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError(f"not valid YAML: {problem}", where=f"{file}:{line}") from error


def _read_profile(file: Traversable) -> tuple[str, Transform]:
    data = _mapping(_read_yaml(file), str(file))
    _check_keys(data, ("base", "transform"), ("about",), str(file))
    name = str(data["transform"])
    if name not in TRANSFORMS:
        raise ConfigError(
            f"unknown transform '{name}'",
            where=f"{file}:{_line(data, 'transform')}",
            cure=suggestion(name, TRANSFORMS),
        )
    return str(data["base"]), TRANSFORMS[name]


def read_kernel(file: Traversable, codegen: str, transform: Transform) -> Kernel:
    """Read one kernel file. Raises ConfigError with ``file:line`` for anything it does not understand."""
    path = str(file)
    data = _mapping(_read_yaml(file), path)
    _check_keys(data, _REQUIRED, _OPTIONAL, path)
    name = data["kernel"]
    code_bytes = data["code_bytes"]
    if name != file.name.removesuffix(".yaml"):
        raise ConfigError(
            f"'kernel' is '{name}' but the file is {file.name}",
            where=f"{path}:{_line(data, 'kernel')}",
            cure="give both the same name",
        )
    if type(code_bytes) is not int or code_bytes < 0:
        raise ConfigError(
            "'code_bytes' must be a number of bytes", where=f"{path}:{_line(data, 'code_bytes')}"
        )
    element_bytes = data.get("element_bytes", 4)
    if element_bytes not in (1, 2, 4):
        raise ConfigError("'element_bytes' must be 1, 2 or 4", where=f"{path}:{_line(data, 'element_bytes')}")
    trans_b = data.get("trans_b")
    if trans_b is not None and type(trans_b) is not bool:
        raise ConfigError("'trans_b' must be true or false", where=f"{path}:{_line(data, 'trans_b')}")
    if ("nest" in data) == ("listing" in data):
        raise ConfigError("exactly one of the keys 'nest' and 'listing' is needed", where=path)
    arrays = _mapping(data["arrays"], f"{path}:{_line(data, 'arrays')}")
    for array, indices in arrays.items():
        if type(indices) is not int or indices < 1:
            raise ConfigError(
                f"array '{array}' needs its number of indices", where=f"{path}:{_line(arrays, array)}"
            )
    names: list[tuple[str, Expression]] = []
    for key, text in _mapping(data.get("names", {}), path).items():
        names.append((str(key), parse_expression(str(text), f"{path}:{_line(data['names'], key)}")))
    return Kernel(
        name,
        codegen,
        path,
        code_bytes,
        {str(array): int(indices) for array, indices in arrays.items()},
        tuple(names),
        tuple(_fallbacks(data, path, transform)),
        _nest(data, "listing" if "listing" in data else "nest", path, transform),
        element_bytes,
        trans_b,
    )


def _fallbacks(data: Any, path: str, transform: Transform) -> list[Fallback]:
    result: list[Fallback] = []
    for entry in data.get("fallback") or ():
        item = _mapping(entry, path)
        _check_keys(item, ("when", "use", "cost"), (), path)
        when = parse_expression(str(item["when"]), f"{path}:{_line(item, 'when')}")
        result.append(Fallback(when, str(item["use"]), _nest(item, "cost", path, transform)))
    return result


def _nest(data: Any, key: str, path: str, transform: Transform) -> Expander:
    # A literal block ("|") starts on the line after its key; a plain scalar on the same line.
    text = str(data[key])
    first_line = _line(data, key) + ("\n" in text)
    if key == "listing":
        text = listing_to_nest(text, path, first_line)
    return Expander(transform(parse_nest(text, path, first_line)), f"{path}:{first_line}")


def _mapping(data: Any, where: str) -> Any:
    if not isinstance(data, Mapping):
        raise ConfigError("expected 'key: value' lines", where=where)
    return data


def _line(data: Any, key: object) -> int:
    return int(data.lc.key(key)[0]) + 1


def _check_keys(data: Any, required: tuple[str, ...], optional: tuple[str, ...], path: str) -> None:
    for key in data:
        if key not in required + optional:
            raise ConfigError(
                f"unknown key '{key}'",
                where=f"{path}:{_line(data, key)}",
                cure=suggestion(str(key), required + optional),
            )
    for key in required:
        if key not in data:
            raise ConfigError(f"the key '{key}' is missing", where=path)
