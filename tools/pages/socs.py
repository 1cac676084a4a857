# SPDX-License-Identifier: Apache-2.0
"""docs/socs.md, the page about the SoC presets, from the files in configs/soc."""

from __future__ import annotations

from itertools import takewhile

from arch.spec.soc_config import soc_from_parameters
from configs.library import list_names
from configs.parameters import PROFILES, Parameter, ParameterTree, Value, load_parameters
from pulptrain.show.listings import size_text
from tools.pages.page import ROOT, Page, table

BASE = "pulp-open"

Presets = dict[str, dict[str, ParameterTree]]
"""By name and profile, the base first."""


def presets() -> Presets:
    """All presets as they are now."""
    names = sorted(list_names("soc"), key=lambda name: (name != BASE, name))
    return {name: {profile: load_parameters(name, profile) for profile in PROFILES} for name in names}


def parameters() -> str:
    """All of the base, and of every other preset what it says otherwise."""
    trees = presets()
    parts = [f"## {BASE}\n", _notes(BASE), _parameters_of_base(trees[BASE])]
    for name, tree in trees.items():
        if name != BASE:
            parts += [f"## {name}\n", _notes(name), _changes(trees[BASE], tree)]
    return "\n".join(parts)


def overview() -> str:
    """A row per preset."""
    titles = (
        *("preset", "cores", "FPUs", "div/sqrt", "L1", "banks", "L2", "L3"),
        *("cluster / SoC / peripheral MHz", "codegen", *(f"assumed ({profile})" for profile in PROFILES)),
    )
    rows = []
    for trees in presets().values():
        tree = trees["rtl"]
        soc = soc_from_parameters(tree)
        clocks = (soc.clock.cluster_hz, soc.clock.soc_hz, soc.clock.peripheral_hz)
        rows.append(
            (
                f"[{tree.name}](#{tree.name})",
                soc.cores,
                f"{soc.fpu.count} {soc.fpu.mapping}",
                soc.fpu.divsqrt_count,
                size_text(soc.l1.size_bytes),
                soc.l1.banks,
                size_text(soc.l2.size_bytes),
                size_text(soc.l3.size_bytes),
                " / ".join(f"{hertz / 1e6:g}" for hertz in clocks),
                f"`{tree.codegen}`",
                *(f"{len(trees[profile].assumed)} of {len(tree)}" for profile in PROFILES),
            )
        )
    return table(titles, rows)


def _notes(name: str) -> str:
    """The comment at the head of a preset's file, as paragraph."""
    text = (ROOT / "configs" / "soc" / f"{name}.yaml").read_text(encoding="utf-8")
    comments = takewhile(lambda line: line.startswith("#"), text.splitlines())
    comment = [line.lstrip("# ") for line in comments if "yaml-language-server" not in line]
    return "\n".join(comment) + "\n"


def _parameters_of_base(trees: dict[str, ParameterTree]) -> str:
    rows = [
        (f"`{path}`", *_values(trees, path), parameter.unit, parameter.description, _sources(trees, path))
        for path, parameter in trees["rtl"].items()
    ]
    return table(("parameter", *PROFILES, "unit", "meaning", "source"), rows)


def _changes(base: dict[str, ParameterTree], trees: dict[str, ParameterTree]) -> str:
    """What a preset says otherwise than the base: another value, or another source for the same value."""
    rows = []
    for path, parameter in trees["rtl"].items():
        if any(_cell(base[profile][path]) != _cell(trees[profile][path]) for profile in PROFILES):
            rows.append((f"`{path}`", *_values(trees, path), parameter.unit, _sources(trees, path)))
    return table(("parameter", *PROFILES, "unit", "source"), rows)


def _cell(parameter: Parameter) -> tuple[Value, str, bool]:
    return parameter.value, parameter.source, parameter.assumed


def _values(trees: dict[str, ParameterTree], path: str) -> list[str]:
    """The value of each profile, with a mark where it is assumed."""
    parameters = (trees[profile][path] for profile in PROFILES)
    return [_value_text(each) + (" (assumed)" if each.assumed else "") for each in parameters]


def _value_text(parameter: Parameter) -> str:
    value = parameter.value
    if isinstance(value, bool):
        return "on" if value else "off"
    if parameter.unit == "B" and value:
        return size_text(int(value))
    if parameter.unit == "Hz":
        return f"{float(value) / 1e6:g} MHz"
    return str(value)


def _sources(trees: dict[str, ParameterTree], path: str) -> str:
    """The source, or one per profile where they differ."""
    sources = {profile: trees[profile][path].source for profile in PROFILES}
    if len(set(sources.values())) == 1:
        return sources[PROFILES[0]]
    return "; ".join(f"*{profile}*: {source}" for profile, source in sources.items())


PAGE = Page("docs/socs.md", {"presets": overview, "parameters": parameters})
