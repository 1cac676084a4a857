# SPDX-License-Identifier: Apache-2.0
"""Kernels users bring: the worked examples of docs/kernels.md, and what wrong files are answered with."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from configs.errors import ConfigError, InputError
from pulptrain.__main__ import run
from pulptrain.running.kernel_cost import kernel_cost
from shared.paths import ROOT
from shared.printed import printed
from trainlib.kernels.catalogue import matmul_work
from trainlib.kernels.kernel_file import full_section, quick_section
from trainlib.kernels.library import LIBRARY

PAGE = ROOT / "docs" / "kernels.md"
KERNELS = PAGE.parent.parent / "configs" / "kernels"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The example files of the page, in an empty working folder."""
    for name, text in re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", PAGE.read_text(), re.DOTALL):
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_page_says_what_the_commands_do(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands = re.findall(r"<!-- run: (.+) -->\n```\npulptrain (.+)\n```", PAGE.read_text())
    assert [shown for _, shown in commands] == [command for command, _ in commands]
    results = []
    for command, _ in commands:
        results.append(printed(capsys, *command.split()))
    mine, dot, transpose = results
    # Rows of 50 over 8 cores: seven cores have 7 rows, and a turn of the inner loop is a load and a store.
    assert transpose["instructions"] > 2 * 50 * 50
    assert transpose["macs"] == 0
    assert [core["instructions"] for core in mine["per_core"]] == [726] * 4
    assert dot["per_core"][0]["stalls"]["load_use"] == 128
    assert dot["macs"] == 8 * 16 * 8
    # 2 instructions to start, 8 columns of 3 + 16 * 3 + 3, the return.
    assert dot["per_core"][0]["instructions"] == 2 + 8 * 54 + 1


def test_a_user_kernel_falls_back_to_kernels_of_the_codegen(files: Path) -> None:
    odd = kernel_cost("mine.yaml", 8, 16, 7)
    shipped = kernel_cost("mm", 8, 16, 7)
    assert odd["instructions"] == shipped["instructions"] + 3 * odd["cores"]


def test_a_user_kernel_stays_out_of_the_shipped_library(files: Path) -> None:
    library, name = LIBRARY.with_file("clang-xpulp", Path("mine.yaml"))
    assert name == "mine"
    assert "mine" in library.kernel_names("clang-xpulp")
    assert "mine" not in LIBRARY.kernel_names("clang-xpulp")
    with pytest.raises(InputError, match="has no kernel 'mine'"):
        matmul_work("mine", "clang-xpulp", 2, 2, 2, False, 1, 0, 0, 0)


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("dot.S", "mv a1,a6", "frobnicate a1,a6", "dot.S:10: unknown instruction 'frobnicate'"),
        ("mine.yaml", "L+:A(i,k)", "X:A(i,k)", "mine.yaml:21: unknown instruction code 'X"),
        ("mine.yaml", "A(i,k)", "A(i*i,k)", "mine.yaml:21: 'i*i' is not linear in the loop variable 'i'"),
        (
            "mine.yaml",
            "start..stop",
            "start..stopp",
            "mine.yaml:15: unknown name 'stopp' in the kernel file",
        ),
        ("mine.yaml", "L:B(k,j)", "L:D(k,j)", "mine.yaml:15: 'arrays' does not declare D with 2 indices"),
        ("mine.yaml", "nest: |", "nests: |", "mine.yaml:14: unknown key 'nests'"),
        ("mine.yaml", "kernel: mine", "kernel: other", "mine.yaml:1: 'kernel' is 'other'"),
        ("mine.yaml", "use: mm", "use: mm_4x4", "'fallback' names an unknown kernel 'mm_4x4'"),
        ("dot.S", "trans_b true", "trans_b perhaps", "dot.S:2: 'trans_b' must be true or false"),
        ("dot.S", "let busy = core < N", "let busy = core <", "dot.S:3: cannot read the expression"),
        ("dot.S", "#@ for j in 0..M branch {", "#@ loop j {", "dot.S:8: invalid annotation '#@ loop j {'"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(
    files: Path, capsys: pytest.CaptureFixture[str], file: str, old: str, new: str, message: str
) -> None:
    path = files / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    assert run(["kernel", file, "--trans-b", "--n", "4", "--k", "4", "--m", "4"]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["kernel", "nowhere.yaml"], "nowhere.yaml: the kernel file does not exist"),
        (["kernel", "some/kernel"], "or a file that ends in .yaml"),
        (["kernel", "dot.S", "--n", "4"], "needs B transposed"),
        (["kernel", "mm", "--dtype", "bf16"], "mm_fp16_SIMD_4x8"),
        (["kernel", "mm_fp16", "--dtype", "fp32"], "elements of 2 bytes"),
        (["kernel", "mm_dw", "--trans-b"], "cannot transpose B"),
    ],
)
def test_a_wrong_request_is_refused(
    files: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert run(arguments) == 2
    assert message in capsys.readouterr().err


def test_the_quick_reader_reads_what_the_full_parser_reads() -> None:
    read = 0
    for file in sorted(KERNELS.glob("*/*.yaml")):
        text = file.read_text()
        quick = quick_section(text, str(file))
        if quick is None:
            assert not file.name.startswith("mm"), file
            continue
        assert quick == full_section(text, str(file))
        read += 1
    assert read > 375


@pytest.mark.parametrize(
    "text",
    [
        "a: 1\na: 2\n",
        "a: [1, 2]\n",
        'a: "quoted"\n',
        "a: b: c\n",
        "a: text # comment\n",
        "a: null\n",
        "a: &anchor x\n",
        "a: 1.5\n",
        "a: 2020-01-01 10:00:00\n",
        "a: {b: 1,}\n",
        "a:\n\tb: 1\n",
        "- a\n",
        "a: |+\n  x\n",
    ],
)
def test_the_quick_reader_leaves_everything_else_to_the_full_parser(text: str) -> None:
    assert quick_section(text, "x.yaml") is None


def test_a_file_the_quick_reader_leaves_alone_means_the_same(files: Path) -> None:
    text = (files / "mine.yaml").read_text()
    plain = kernel_cost("mine.yaml", 8, 16, 8)
    (files / "mine.yaml").write_text(
        text.replace("about: ", "about: >-\n  ").replace("nest: |", "nest: |  # all")
    )
    assert quick_section((files / "mine.yaml").read_text(), "x") is None
    assert kernel_cost("mine.yaml", 8, 16, 8) == plain
    (files / "mine.yaml").write_text((files / "mine.yaml").read_text().replace("F*2", "X*2"))
    with pytest.raises(ConfigError, match=r"mine\.yaml:22: unknown instruction code"):
        kernel_cost("mine.yaml", 8, 16, 8)
