# SPDX-License-Identifier: Apache-2.0
"""Parameter files: profiles, bases, overrides, and every way to get them wrong."""

from pathlib import Path

import pytest

from configs.errors import ConfigError, MistakesError
from configs.library import list_names, open_config
from configs.parameters import NO_SOURCE, PROFILES, load_parameters

LEAF = "{value: 1, unit: cycles, description: d, source: s}"
HEAD = "name: x\ndescription: y\nparameters:\n"


def write(folder: Path, text: str, name: str = "x.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def refused(path: Path, line: int | None, *needles: str) -> None:
    """The file is refused at `line`, with all needles in the message or the cure, in every profile."""
    for profile in PROFILES:
        with pytest.raises(ConfigError) as caught:
            load_parameters(path, profile)
        assert caught.value.where == (f"{path}:{line}" if line else str(path))
        for needle in needles:
            assert needle in str(caught.value)


def test_profiles_pick_value_source_and_assumed(tmp_path):
    path = write(
        tmp_path,
        HEAD
        + "  g:\n    p:\n      value: {rtl: 1, gvsoc: 2}\n      unit: cycles\n      description: d\n"
        + "      source: {rtl: a, gvsoc: b}\n      assumed: {rtl: true, gvsoc: false}\n"
        + "  size: {value: 64 KiB, unit: B, description: d, source: s}\n",
    )
    rtl, gvsoc = (load_parameters(path, profile) for profile in ("rtl", "gvsoc"))
    assert (rtl["g.p"].value, rtl["g.p"].source, rtl["g.p"].assumed) == (1, "a", True)
    assert (gvsoc["g.p"].value, gvsoc["g.p"].source, gvsoc["g.p"].assumed) == (2, "b", False)
    assert (rtl["size"].value, rtl["size"].where, rtl["g.p"].name) == (65536, f"{path}:11", "p")
    assert list(rtl) == ["g.p", "size"]
    assert [parameter.path for parameter in rtl.assumed] == ["g.p"]
    assert (rtl.name, rtl.description, rtl.profile) == ("x", "y", "rtl")


def test_base_changes_only_what_it_names(tmp_path):
    write(tmp_path, HEAD + f"  a: {LEAF}\n  b: {LEAF}\n", "base.yaml")
    child = write(
        tmp_path,
        "name: z\ndescription: y\nbase: ./base.yaml\nparameters:\n"
        "  b: {value: {rtl: 7, gvsoc: 8}, source: new}\n",
    )
    tree = load_parameters(child, "gvsoc")
    assert {path: (each.value, each.source) for path, each in tree.items()} == {
        "a": (1, "s"),
        "b": (8, "new"),
    }
    assert tree["b"].where == f"{child}:5"
    assert tree["b"].unit == "cycles"


def test_overrides_convert_by_unit():
    tree = load_parameters(
        "pulp-open",
        "gvsoc",
        {
            "l1.size_bytes": "32 KiB",
            "cores": "4",
            "clock.cluster_hz": "450 MHz",
            "l1.bank_conflicts": "on",
            "fpu.mapping": "dynamic",
            "l3.bytes_per_peripheral_cycle": "0.5",
            "core.div_cycles": 3,
        },
    )
    assert tree["l1.size_bytes"].value == 32768
    assert tree["cores"].value == 4
    assert tree["clock.cluster_hz"].value == 450_000_000
    assert tree["l1.bank_conflicts"].value is True
    assert tree["fpu.mapping"].value == "dynamic"
    assert tree["l3.bytes_per_peripheral_cycle"].value == 0.5
    assert tree["core.div_cycles"].where == "--set core.div_cycles=3"
    assert tree["core.div_cycles"].source == "set by the user"


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("cluster.l1.size_bytes", "1 KiB", "try: use 'l1.size_bytes'"),
        ("l1.siz_bytes", "1 KiB", "try: use 'l1.size_bytes'"),
        ("l1", "1 KiB", "unknown parameter 'l1'"),
        ("qqqqqqq", "1", "use a full name, e.g. 'core.load_cycles'; the groups are cores, core, fpu"),
        ("l1.size_bytes", "-4", "cannot be negative"),
        ("l1.size_bytes", "64k", "ambiguous"),
        ("cores", "four", "must be a whole number"),
        ("cores", "2.5", "must be a whole number"),
        ("cores", True, "must be a whole number"),
        ("l1.bank_conflicts", "maybe", "must be on or off"),
        ("l3.bytes_per_peripheral_cycle", "nan", "must be a finite number"),
        ("fpu.mapping", "", "must be a word"),
    ],
)
def test_refused_overrides(path, value, message):
    with pytest.raises(ConfigError) as caught:
        load_parameters("pulp-open", overrides={path: value})
    assert message in str(caught.value)
    assert caught.value.where == f"--set {path}={value}"


def test_unknown_names():
    with pytest.raises(
        ConfigError, match=r"unknown SoC 'pulp_open'\n  try: use 'pulp-open' \(known: .*pulp-open-private"
    ):
        load_parameters("pulp_open")
    with pytest.raises(ConfigError, match="unknown timing profile 'gvsock'\n  try: use 'gvsoc'"):
        load_parameters("pulp-open", "gvsock")
    with pytest.raises(ConfigError, match="the file does not exist"):
        load_parameters("./pulp-open.yaml")
    with pytest.raises(ConfigError, match="unknown kind of configuration 'socs'\n  try: use 'soc'"):
        list_names("socs")
    with pytest.raises(ConfigError, match=r"unknown model '\.\.'"):
        open_config("models", "..")


def test_installed_names():
    assert {"pulp-open", "pulp-open-private"} <= set(list_names("soc"))
    assert {"digits-cnn", "tutorial-cnn"} <= set(list_names("models"))


def test_a_value_without_a_source_counts_as_assumed(tmp_path):
    base = load_parameters(write(tmp_path, "name: x\nparameters:\n  a: {value: 1, unit: cycles}\n"))
    assert (base["a"].source, base["a"].assumed, base["a"].description) == (NO_SOURCE, True, "")
    text = "name: y\nbase: pulp-open\nparameters:\n"
    text += "  l1:\n    banks: {value: 8}\n    size_bytes: {assumed: true}\n"
    tree = load_parameters(write(tmp_path, text))
    banks, size, kept = tree["l1.banks"], tree["l1.size_bytes"], load_parameters("pulp-open")["l1.size_bytes"]
    assert (banks.value, banks.source, banks.assumed) == (8, NO_SOURCE, True)
    assert (size.value, size.source, size.assumed) == (kept.value, kept.source, True)


def test_all_mistakes_of_a_file_are_told_at_once_in_the_order_of_its_lines(tmp_path):
    leaves = "  a: {value: no, unit: cycles}\n  b: {value: 1, unit: cycle}\n  c: 3\n  d: {}\n"
    path = write(tmp_path, f"name: x\nparameters:\n{leaves}")
    with pytest.raises(MistakesError) as caught:
        load_parameters(path)
    assert [error.where for error in caught.value.errors] == [f"{path}:{line}" for line in (3, 4, 5, 6)]
    assert str(caught.value).startswith("4 mistakes\n")


def test_a_mistake_at_the_top_of_a_file_hides_none_in_its_parameters(tmp_path):
    changed = "name: x\ndescriptoin: y\nbase: pulp-open\nparameters:\n  l1:\n    size: {value: 3}\n"
    path = write(tmp_path, changed)
    with pytest.raises(MistakesError) as caught:
        load_parameters(path)
    assert [error.where for error in caught.value.errors] == [f"{path}:{line}" for line in (2, 6)]
    path = write(tmp_path, changed.replace("base:", "bas:"))
    with pytest.raises(MistakesError, match=r"'bas'") as caught:
        load_parameters(path)
    # Without its base nothing can be said of the parameters.
    assert [error.where for error in caught.value.errors] == [f"{path}:{line}" for line in (2, 3)]


@pytest.mark.parametrize(
    ("text", "line", "needles"),
    [
        (
            HEAD + "  a: {value: 1, unit: cycles, description: d, sauce: s}\n",
            4,
            ("unknown key 'sauce'", "'source'"),
        ),
        (HEAD + "  a: {unit: cycles, description: d, source: s}\n", 4, ("parameter 'a' has no 'value'",)),
        (HEAD + f"  a: {LEAF}\n  a: {LEAF}\n", 5, ("duplicate key 'a', first used in line 4",)),
        (
            HEAD + f"  g:\n    a: {LEAF}\n    b: 3\n",
            6,
            ("parameter 'g.b' must be a mapping, not 3", "b: {value: 3}"),
        ),
        (HEAD + "  g: {}\n", 4, ("group 'g' is empty",)),
        (HEAD + "  a: 3\n", 4, ("parameter 'a' must be a mapping, not 3",)),
        (
            HEAD + "  a:\n    value: 1\n    unit: cycle\n    description: d\n    source: s\n",
            6,
            ("unit", "'cycles'"),
        ),
        (
            HEAD + "  a:\n    value: [1]\n    unit: B\n    description: d\n    source: s\n",
            5,
            ("a list", "a number"),
        ),
        (
            HEAD + "  a:\n    value:\n    unit: B\n    description: d\n    source: s\n",
            5,
            ("'value'", "empty"),
        ),
        (
            HEAD + "  a:\n    value: x\n    unit: cycles\n    description: d\n    source: s\n",
            5,
            ("whole number",),
        ),
        (HEAD + "  a:\n    value: 4k\n    unit: B\n    description: d\n    source: s\n", 5, ("ambiguous",)),
        (
            HEAD + "  a:\n    value: 1\n    unit: B\n    description: d\n    source: ''\n",
            8,
            ("must be a text that is not empty",),
        ),
        (HEAD + "  a:\n    value: 1\n    unit: B\n    description: 7\n    source: s\n", 7, ("be a text",)),
        (
            HEAD + "  a:\n    value: {rtl: 1}\n    unit: B\n    description: d\n    source: s\n",
            5,
            ("the mapping by timing profile of parameter 'a' has no 'gvsoc'",),
        ),
        (
            HEAD
            + "  a:\n    value: {rtl: 1, gvsoc: 1, rlt: 2}\n    unit: B\n    description: d\n    source: s\n",
            5,
            ("unknown key 'rlt'", "'rtl'"),
        ),
        (HEAD + f"  a: {LEAF}\nparamters: {{}}\n", 5, ("unknown key 'paramters'", "'parameters'")),
        ("name: x\ndescription: y\n", 1, ("the SoC file has no 'parameters'",)),
        ("- 1\n", 1, ("the SoC file must be a mapping, not a list",)),
        ("name: 3\ndescription: y\nparameters: {}\n", 1, ("'name' of the SoC file",)),
        (
            f"name: x\ndescription: y\nbase: pulp-opn\nparameters:\n  a: {LEAF}\n",
            3,
            ("unknown SoC 'pulp-opn'", "'pulp-open'"),
        ),
    ],
)
def test_refused_files(tmp_path, text, line, needles):
    refused(write(tmp_path, text), line, *needles)


BASED = "name: x\ndescription: y\nbase: pulp-open\nparameters:\n  l1:\n    banks:\n"


@pytest.mark.parametrize(
    ("text", "line", "needles"),
    [
        (BASED + "      valu: 8\n", 7, ("unknown key 'valu'", "'value'")),
        (
            BASED + "      value: 8\n      source: s\n      unit: B\n",
            9,
            ("'unit' of 'l1.banks' comes from the base",),
        ),
        (BASED + "      value: 8\n      sorce: s\n", 8, ("unknown key 'sorce'", "'source'")),
        (
            BASED.replace("banks", "bank") + "      value: 8\n      source: s\n",
            6,
            ("'l1.bank'", "'l1.banks'"),
        ),
    ],
)
def test_refused_overrides_of_a_base(tmp_path, text, line, needles):
    refused(write(tmp_path, text), line, *needles)


def test_circle_of_bases(tmp_path):
    text = "name: x\ndescription: y\nbase: ./{}.yaml\nparameters:\n  a: {{value: 1, source: s}}\n"
    write(tmp_path, text.format("b"), "a.yaml")
    write(tmp_path, text.format("a"), "b.yaml")
    with pytest.raises(ConfigError, match="the SoC files name each other as 'base'"):
        load_parameters(tmp_path / "a.yaml")


def test_units_agree_with_the_names():
    """A name that ends in a unit has that unit in the installed files."""
    suffixes = {"_peripheral_cycles": "peripheral cycles", "_bytes": "B", "_hz": "Hz", "_cycles": "cycles"}
    tree = load_parameters("pulp-open")
    checked = 0
    for path, parameter in tree.items():
        for suffix, unit in suffixes.items():
            if path.endswith(suffix):
                assert parameter.unit == unit, path
                checked += 1
                break
    assert checked > 30
