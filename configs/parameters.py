# SPDX-License-Identifier: Apache-2.0
"""Parameters of a SoC: a tree of values, each with unit, description and source, per timing profile.

A file holds ``name``, ``description``, ``codegen`` (what the compiler makes of kernels for its cores, unless
the user says otherwise; optional), ``machine`` (which kind of machine it describes, `PULP` unless it says
otherwise) and ``parameters``, a tree of groups whose leaves are mappings with the
keys of `LEAF_KEYS`. ``value``, ``source`` and ``assumed`` may give one entry per timing profile
(``value: {rtl: 1, gvsoc: 2}``). With ``base: NAME`` a file changes only ``value``, ``source`` and
``assumed`` of parameters of another file; a new value has its own source, and counts as assumed without one.
``codegen`` is that of the base, or `DEFAULT_CODEGEN`, unless the file names one; ``machine`` is that of the
base.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import Field, field_validator

from configs.errors import ConfigError, shortened
from configs.library import PULP, is_path, open_config
from configs.problems import Problems
from configs.schema import Schema, check_keys, validate
from configs.suggest import check_known, path_suggestion, suggestion
from configs.units import parse_bytes, parse_hz
from configs.values import Struct, replace
from configs.yaml_file import Node

Value = str | int | float | bool

PROFILES = RTL, GVSOC = "rtl", "gvsoc"
"""Timing profiles: what the hardware does, and what the reference simulator does."""

UNITS: Mapping[str, str] = {
    "cycles": "integer",
    "peripheral cycles": "integer",
    "count": "integer",
    "bits": "integer",
    "B": "bytes",
    "Hz": "hertz",
    "B/cycle": "number",
    "B/peripheral cycle": "number",
    "flag": "flag",
    "choice": "text",
}
"""Units a parameter may have and the kind of value each goes with; ``cycles`` are those of the cluster."""

NO_SOURCE = "no source"
"""Source of a value whose file gives none; every file that ships with pulptrain gives one."""

LEAF_KEYS = ("value", "unit", "description", "source", "assumed")
OVERRIDE_KEYS = ("value", "source", "assumed")

DEFAULT_CODEGEN = "clang-xpulp"
"""Codegen profile of a SoC file that names none and has no base: PULP cores."""

COMMANDS = {PULP: "pulptrain run MODEL", "barvinn": "pulptrain barvinn MODEL.onnx"}
"""Kinds of machines that a file may describe, and what simulates them."""

_FLAGS = {
    "on": True,
    "true": True,
    "yes": True,
    "1": True,
    "off": False,
    "false": False,
    "no": False,
    "0": False,
}


class Parameter(Struct, frozen=True):
    """One value of one timing profile: what it is, where it comes from, and the place that set it.

    `path` is dotted (``l1.size_bytes``), `value` is exact and in `unit` (one of `UNITS`), `assumed` tells
    that no source gives the value, `where` is ``file:line`` or the option that set it.
    """

    path: str
    value: Value
    unit: str
    description: str
    source: str
    assumed: bool
    where: str

    @property
    def name(self) -> str:
        """Last part of the path."""
        return self.path.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class ParameterTree(Mapping[str, Parameter]):
    """All parameters of one SoC under one timing profile, by dotted path, in the order of the file."""

    name: str
    description: str
    profile: str
    file: str
    codegen: str
    parameters: Mapping[str, Parameter]
    machine: str = PULP

    def __getitem__(self, path: str) -> Parameter:
        return self.parameters[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self.parameters)

    def __len__(self) -> int:
        return len(self.parameters)

    @property
    def assumed(self) -> tuple[Parameter, ...]:
        """The parameters that no source gives."""
        return tuple(parameter for parameter in self.values() if parameter.assumed)


def last_set(paths: Iterable[str], places: Mapping[str, str], file: str = "") -> str | None:
    """Of the places where these parameters were set that of an option, else one in `file`, else any."""
    found = [places[path] for path in paths if path in places]
    of_file = [place for place in found if file and place.startswith(file)]
    return next(iter([*[place for place in found if place.startswith("--")], *of_file, *found]), None)


class SocSchema(Schema):
    """A SoC file: a name, a base and the parameters that differ from it."""

    name: str
    """Name of the SoC in tables and pictures."""
    parameters: dict[str, Any] = Field(examples=["{cores: {value: 4}}"])
    """Groups of parameters; `pulptrain show NAME` lists those of a SoC."""
    description: str = ""
    """Description in one sentence."""
    base: str | None = None
    """SoC, by name or path, whose values this file changes; without it the file needs all values."""
    codegen: str | None = None
    """Compiler profile of the kernels (`pulptrain list kernels`)."""
    machine: str | None = None
    """Kind of machine: none for PULP clusters, `barvinn` for the accelerator BARVINN."""


class ParameterSchema(Schema):
    """One parameter; `value`, `source` and `assumed` may be `{rtl: ..., gvsoc: ...}`."""

    value: Any
    """A number or word, in the unit; sizes and frequencies as `64 KiB`, `50 MHz`."""
    unit: str
    """Unit, one of those below; omitted in a file with a base."""
    description: str = ""
    """Meaning; omitted in a file with a base."""
    source: str = NO_SOURCE
    """Source of the value; a value without a source counts as assumed."""
    assumed: bool = False
    """Whether the value is without a source."""

    @field_validator("value")
    @classmethod
    def _scalar(cls, value: Any) -> Any:
        if isinstance(value, str | int | float | bool):
            return value
        raise ValueError("Input should be a number, a text, true or false")

    @field_validator("description", "source")
    @classmethod
    def _not_blank(cls, text: str) -> str:
        if not text.strip():
            raise ValueError("Input should be a text that is not empty")
        return text


def load_parameters(
    name_or_path: str | Path,
    profile: str = "rtl",
    overrides: Mapping[str, str | int | float] | None = None,
    *,
    machine: str = PULP,
) -> ParameterTree:
    """Load a SoC file by installed name or by path, pick one timing profile, and apply overrides.

    The file has to describe the kind of `machine` that is asked for.

    `overrides` maps dotted paths to new values (numbers, or texts as a user types them: ``"64 KiB"``,
    ``"on"``). All profiles of the file are checked, whichever is asked for. Raises `ConfigError` with
    ``file:line`` for a wrong file, and naming the override for a wrong path or value.
    """
    check_known(profile, PROFILES, f"unknown timing profile '{profile}'", "--timing", error=ConfigError)
    tree = _trees(name_or_path)[profile]
    if tree.machine != machine:
        raise ConfigError(
            f"'{tree.name}' describes a machine of kind '{tree.machine}', but the command needs '{machine}'",
            where=tree.file,
            cure=f"use `{COMMANDS[tree.machine]}`, or another SoC",
        )
    changed = dict(tree.parameters)
    for path, text in (overrides or {}).items():
        where = f"--set {shortened(path)}={shortened(str(text))}"
        if path not in changed:
            raise ConfigError(
                f"unknown parameter '{shortened(path)}'", where=where, cure=path_suggestion(path, changed)
            )
        old = changed[path]
        try:
            value = _value(text, old.unit, path, where)
        except ConfigError as error:
            has = f"; {tree.name} has {old.value} {old.unit}".removesuffix(" count").removesuffix(" choice")
            cure = error.cure if error.cure is None or old.unit == "flag" else error.cure + has
            raise ConfigError(error.message, where=where, cure=cure) from None
        changed[path] = replace(old, value=value, source="set by the user", assumed=False, where=where)
    return replace(tree, parameters=MappingProxyType(changed))


def default_codegen(name_or_path: str | Path) -> str:
    """The codegen profile a SoC file names for its cores. Raises `ConfigError` like `load_parameters`."""
    return _trees(name_or_path)[PROFILES[0]].codegen


def _trees(name_or_path: str | Path) -> dict[str, ParameterTree]:
    """The trees of a SoC file by profile; installed files are read once."""
    return _read(name_or_path, None, ()) if is_path(name_or_path) else _installed(str(name_or_path))


@cache
def _installed(name: str) -> dict[str, ParameterTree]:
    return _read(name, None, ())


def _read(name_or_path: str | Path, folder: Path | None, opened: tuple[str, ...]) -> dict[str, ParameterTree]:
    """Read one file and its bases; `opened` holds the files that led here. One tree per timing profile."""
    node = open_config("soc", name_or_path, folder=folder)
    if node.file in opened:
        chain = " -> ".join((*opened, node.file))
        raise node.error(f"the SoC files name each other as 'base': {chain}", "remove one of the keys 'base'")
    problems = Problems()
    header = _header(node, problems)
    top = node.mapping("the SoC file")
    leaves: dict[str, Node] = {}
    if "parameters" in top:
        _leaves(top["parameters"], "", leaves, problems)
        whole = any("unit" in leaf.mapping("") for leaf in leaves.values() if leaf.is_mapping)
        if header.base is None and leaves and not whole:
            cure = "add 'base: pulp-open', or another SoC; its values apply where this file has none"
            raise node.error("the SoC file changes values of a base, but lacks the key 'base'", cure)
    base: dict[str, ParameterTree] = {}
    if header.base is not None:
        here = Path(node.file).parent if is_path(name_or_path) else None
        try:
            base = _read(header.base, here, (*opened, node.file))
        except ConfigError as error:
            if error.where is not None:
                raise
            raise top["base"].error(error.message, error.cure) from None
    codegen = header.codegen or (base[PROFILES[0]].codegen if base else DEFAULT_CODEGEN)
    machine = _machine(top, base)
    trees: dict[str, ParameterTree] = {}
    for profile in PROFILES:
        items = dict(base[profile].parameters) if base else {}
        for path, leaf in leaves.items():
            if not base:
                changed = problems.of(_parameter, path, leaf, profile)
            elif path in items:
                changed = problems.of(_override, items[path], leaf, profile)
            else:
                cure = path_suggestion(path, items)
                message = f"unknown parameter '{path}': '{header.base}' has no such parameter"
                problems.note(leaf.error(message, cure))
                continue
            if changed is not None:
                items[path] = changed
        trees[profile] = ParameterTree(
            header.name, header.description, profile, node.file, codegen, MappingProxyType(items), machine
        )
    problems.refuse()
    return trees


def _header(node: Node, problems: Problems) -> SocSchema:
    """The keys at the top. If one is wrong, at least the base: what it is needed for is told as well.

    Raises the mistakes if the base cannot be read: then nothing can be said of the parameters.
    """
    top = node.mapping("the SoC file")
    groups = open_config("soc", "pulp-open").mapping("")["parameters"].mapping("")
    for key, child in top.items():
        if key in groups and key not in SocSchema.model_fields:
            inner = child.plain() if child.is_mapping else {"value": child.plain()}
            text = f"parameters: {{{key}: {inner}}}".replace("'", "")
            raise child.error(f"unknown key '{key}' in the SoC file", f"write the key in {text}")
    header = problems.of(validate, SocSchema, node, "the SoC file")
    if header is not None:
        return header
    base = top["base"].value if "base" in top else None
    if not isinstance(base, str):
        problems.refuse()
    return SocSchema(name="", parameters={}, base=str(base))


def _leaves(node: Node, path: str, leaves: dict[str, Node], problems: Problems) -> None:
    """Walk the groups depth first; a mapping with a key of `LEAF_KEYS`, or with scalars only, is a leaf."""
    what = f"group '{path}'" if path else "'parameters'"
    if path and not (node.is_mapping or node.is_sequence):
        value = f"write {path.rpartition('.')[2]}: {{value: {node.value}}}"
        problems.note(node.error(f"parameter '{path}' must be a mapping, not {node.kind}", value))
        return
    children = problems.of(node.mapping, what)
    if children is None:
        return
    if not children:
        problems.note(node.error(f"{what} is empty", f"write values below {what}, or remove the key"))
    is_leaf = any(key in LEAF_KEYS for key in children) or not any(c.is_mapping for c in children.values())
    if path and children and is_leaf:
        leaves[path] = node
        return
    for key, child in children.items():
        _leaves(child, f"{path}.{key}" if path else key, leaves, problems)


def _parameter(path: str, leaf: Node, profile: str) -> Parameter:
    what = f"parameter '{path}'"
    checked = validate(ParameterSchema, _picked(leaf, what, profile), what)
    children = leaf.mapping(what)
    if checked.unit not in UNITS:
        raise children["unit"].error(
            f"unknown unit '{checked.unit}' of {what}", suggestion(checked.unit, UNITS)
        )
    where = _pick(children["value"], what, profile).where
    value = _value(checked.value, checked.unit, path, where)
    assumed = checked.assumed or checked.source == NO_SOURCE
    return Parameter(path, value, checked.unit, checked.description, checked.source, assumed, where)


def _override(old: Parameter, leaf: Node, profile: str) -> Parameter:
    what = f"override of '{old.path}'"
    children = leaf.mapping(what)
    for key, child in children.items():
        if key in LEAF_KEYS and key not in OVERRIDE_KEYS:
            raise child.error(
                f"'{key}' of '{old.path}' comes from the base file and cannot be changed",
                f"remove '{key}'; a file with a 'base' changes only {', '.join(OVERRIDE_KEYS)}",
            )
    check_keys(leaf, what, (), OVERRIDE_KEYS)
    kept = {} if "value" in children else {"source": Node(old.source, leaf.file, leaf.line)}
    merged = {
        **kept,
        "value": Node(old.value, leaf.file, leaf.line),
        "unit": Node(old.unit, leaf.file, leaf.line),
        "description": Node(old.description, leaf.file, leaf.line),
        **children,
    }
    new = _parameter(old.path, Node(merged, leaf.file, leaf.line), profile)
    return new if "value" in children else replace(new, where=old.where)


def _picked(leaf: Node, what: str, profile: str) -> Node:
    """Return the leaf with the entries of one profile in place of per-profile mappings."""
    children = {
        key: _pick(child, what, profile) if key in OVERRIDE_KEYS else child
        for key, child in leaf.mapping(what).items()
    }
    return Node(children, leaf.file, leaf.line)


def _pick(node: Node, what: str, profile: str) -> Node:
    if not node.is_mapping:
        return node
    check_keys(node, f"the mapping by timing profile of {what}", PROFILES)
    return node.mapping(what)[profile]


def _value(given: Any, unit: str, path: str, where: str) -> Value:
    """Convert a value from a file or an option to the kind its unit asks for."""
    kind = UNITS[unit]
    if kind == "bytes":
        return parse_bytes(given, where=where)
    if kind == "hertz":
        return parse_hz(given, where=where)
    result: Value | None = None
    if kind == "flag":
        result = given if isinstance(given, bool) else _FLAGS.get(str(given).strip().casefold())
        needed = "on or off"
    elif kind == "text":
        result = given.strip() if isinstance(given, str) and given.strip() else None
        needed = "a word"
    else:
        result = _number(given, whole=kind == "integer")
        needed = "a whole number" if kind == "integer" else "a finite number"
    if result is None:
        is_value = f"is '{shortened(str(given))}'" if str(given).strip() else "is empty"
        raise ConfigError(f"'{path}' {is_value}, but must be {needed}", where=where, cure=f"use {needed}")
    return result


def _number(given: Any, *, whole: bool) -> int | float | None:
    """Return the number `given` means, as int where whole; None if it is none or not as asked."""
    if isinstance(given, bool):
        return None
    if isinstance(given, int):
        return given if abs(given) <= 2**53 else None
    try:
        number = float(given)
    except (ValueError, TypeError):
        return None
    if not math.isfinite(number) or abs(number) > 2**53:
        return None
    if number.is_integer():
        return int(number)
    return None if whole else number


def _machine(top: Mapping[str, Node], base: Mapping[str, ParameterTree]) -> str:
    """The kind of machine a file describes: that of its base. Raises `ConfigError` for one there is not."""
    machines = [base[PROFILES[0]].machine] if base else list(COMMANDS)
    given = str(top["machine"].value) if "machine" in top else machines[0]
    if given not in machines and base:
        wrong = f"'machine' is '{given}', but that of the base is '{machines[0]}'"
        raise top["machine"].error(wrong, "remove 'machine', or use another 'base'")
    if given not in machines:
        raise top["machine"].error(f"unknown kind of machine '{given}'", suggestion(given, machines))
    return given
