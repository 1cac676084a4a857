# SPDX-License-Identifier: Apache-2.0
"""Strict YAML: every node knows its line and every mistake names its place."""

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs import yaml_file
from configs.errors import ConfigError
from configs.library import KINDS, list_names
from configs.suggest import closest, suggestion
from configs.yaml_file import Node, installed_yaml, load_yaml, parse_yaml
from shared.paths import ROOT


def test_every_node_knows_its_line():
    root = parse_yaml("a: 1\nb:\n  - x\n  - {c: 2.5}\nd: on\n", "f.yaml")
    top = root.mapping("top")
    assert [(key, node.where) for key, node in top.items()] == [
        ("a", "f.yaml:1"),
        ("b", "f.yaml:2"),
        ("d", "f.yaml:5"),
    ]
    second = top["b"].sequence("b")[1]
    assert (second.line, second.mapping("c")["c"].value) == (4, 2.5)
    # YAML 1.2: "on" is a word, not a truth value.
    assert root.plain() == {"a": 1, "b": ["x", {"c": 2.5}], "d": "on"}


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, "duplicate key 'a', first used in line 1"),
        ("a:\n  b: 1\n  b: 2\n", 3, "duplicate key 'b'"),
        ("a: [1, 2\nb: 3\n", 2, "YAML syntax error"),
        ("a: 1\n\tb: 2\n", 2, "YAML syntax error"),
        ("a: 'open\n", 1, "YAML syntax error"),
        ("a: 1\n---\nb: 2\n", 2, "YAML syntax error"),
        ("a: *nowhere\n", 1, "YAML syntax error"),
        ("a: &x {b: 1}\nc: *x\n", 1, "YAML aliases (*name) are not supported"),
        ("a: &x [*x]\n", 1, "alias"),
        ("<<: {a: 1}\n", 1, "merge keys"),
        ("1: a\n", 1, "every key must be text"),
        ("[1]: a\n", 1, "every key must be text"),
        ("a: 2001-01-01\n", 1, "date is not supported"),
        ("a: !thing 1\n", 1, "the YAML tag '!thing' is not supported"),
        ("", 1, "the file is empty"),
        ("# nothing\n", 1, "the file is empty"),
        ("a: \x01\n", 1, "YAML error"),
        ("[" * 600, 1, "nested too deeply"),
    ],
)
def test_mistakes_name_file_and_line(text, line, message):
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text, "f.yaml")
    assert message in caught.value.message
    assert caught.value.where == f"f.yaml:{line}"
    assert caught.value.cure


def test_wrong_kind_of_node():
    root = parse_yaml("a: 5\nb: [1]\n", "f.yaml")
    with pytest.raises(ConfigError, match=r"f\.yaml:1: 'a' must be a mapping, not 5"):
        root.mapping("top")["a"].mapping("'a'")
    with pytest.raises(ConfigError, match=r"f\.yaml:1: top must be a list, not a mapping"):
        root.sequence("top")
    with pytest.raises(ConfigError, match=r"f\.yaml:2: 'b' must be a mapping, not a list"):
        root.mapping("top")["b"].mapping("'b'")


def test_unreadable_files(tmp_path):
    with pytest.raises(ConfigError, match="the file does not exist"):
        load_yaml(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_yaml(tmp_path)
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"a: \xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_yaml(binary)


def test_suggestions():
    assert closest("pulp_open", ["vega", "pulp-open"]) == "pulp-open"
    assert closest("PULP-OPEN", ["vega", "pulp-open"]) == "pulp-open"
    assert closest("xyz", ["vega", "pulp-open"]) is None
    assert closest("fp8", ["fp32", "fp8_e4m3"]) == "fp8_e4m3"
    assert suggestion("vga", ["vega", "gap9"]) == "use 'vega' (known: vega, gap9)"
    assert suggestion("qqqq", ["vega", "gap9"]) == "use one of vega, gap9"
    assert suggestion("qqqq", []) == "remove 'qqqq'"


def parsed(text: str) -> Node | ConfigError:
    try:
        return parse_yaml(text, "f.yaml")
    except ConfigError as error:
        return error


@given(st.text(alphabet="ab:-[]{}&*!|>'\"#%@`,? \n\t1.<", max_size=40))
def test_any_text_parses_or_is_a_config_error(text):
    outcome = parsed(text)
    place = outcome.where if isinstance(outcome, Node) else str(outcome.where)
    assert place.startswith("f.yaml:")


INSTALLED = [f"configs/{kind}/{name}.yaml" for kind in KINDS for name in list_names(kind)]


def test_what_is_kept_of_an_installed_file_is_what_it_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    texts = {file: (ROOT / file).read_text(encoding="utf-8") for file in INSTALLED}
    first = {file: installed_yaml(text, file) for file, text in texts.items()}
    kept = sorted(tmp_path.rglob("*.json"))
    assert len(kept) == len(texts)
    changed = parse_yaml("a: {b: [1, 2.5, off, null]}", INSTALLED[0])
    assert installed_yaml("a: {b: [1, 2.5, off, null]}", INSTALLED[0]) == changed
    with monkeypatch.context() as patch:
        patch.setattr(yaml_file, "parse_yaml", None)
        assert {file: installed_yaml(text, file) for file, text in list(texts.items())[1:]} == {
            file: node for file, node in first.items() if file != INSTALLED[0]
        }
    for path in kept:
        path.write_text('{"key": 3}' if path is kept[0] else "[")
    assert {file: installed_yaml(text, file) for file, text in texts.items()} == first
    assert first == {file: parse_yaml(text, file) for file, text in texts.items()}
