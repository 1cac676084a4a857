# SPDX-License-Identifier: Apache-2.0
"""Whatever is wrong with an input: one message that names the place, exit code 2, no traceback."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import typer

import pulptrain as pt
from configs.errors import ConfigError, InputError
from configs.yaml_file import parse_yaml
from pulptrain.__main__ import run
from pulptrain.cli import COMMANDS, application
from shared.paths import DATA
from traces.files.tables import read_table, write_table
from trainlib.kernels.nest import DEEPEST, MOST_INSTRUCTIONS, parse_nest

Capture = pytest.CaptureFixture[str]


def refused(capsys: Capture, *arguments: str) -> str:
    """The message of a command that ends with code 2."""
    assert run([*arguments]) == 2
    said = capsys.readouterr().err
    assert said.startswith("pulptrain: error: ")
    assert "Traceback" not in said
    assert len(said) < 2000
    return said


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: " + "9" * 5000, r"f:1: '9{60}\.\.\.' is too large: it has 5000 digits"),
        (
            "a: 1\nb: 99999999999999999999",
            "f:2: 99999999999999999999 is outside the range of -9223372036854775807",
        ),
        ("a: 0x" + "f" * 5000, r"f:1: 0xf+\.\.\. is outside the range"),
        ("a: !!int abc", "f:1: 'abc' cannot be read as a whole number"),
        ("a: !!float abc", "f:1: 'abc' cannot be read as a number"),
        ("a: !!bool abc", "f:1: 'abc' cannot be read as true or false"),
        ("a: -_", "f:1: '-_' cannot be read as a whole number"),
        ("a: 2001-99-99", "f:1: '2001-99-99' cannot be read as a date"),
        ("a: .nan", "f:1: nan is not a finite number"),
        ("a: .inf", "f:1: inf is not a finite number"),
        ("a: 1e400", "f:1: inf is not a finite number"),
        ("a: -1e300", "f:1: -1e\\+300 is outside the range of fp32"),
        ("a: " + "[" * 600 + "]" * 600, "f:1: the file is nested too deeply"),
        ("a: " + "{b: " * 600, "f:1: the file is nested too deeply"),
        ("a: &a [1, 2]\nb: [*a, *a, *a]", "f:1: YAML aliases \\(\\*name\\) are not supported"),
        ('a: "\\UFFFFFFFF"', "f:1: YAML error"),
        ("a: !!python/object:os.system x", "f:1: the YAML tag '!!python/object:os.system' is not supported"),
        ("a: \x00", "f:1: YAML error"),
    ],
)
def test_yaml_that_cannot_be_read_says_where(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_yaml(text, "f")


def test_an_unknown_name_in_a_kernel_is_named_with_its_line(capsys: Capture) -> None:
    said = refused(capsys, "kernel", str(DATA / "k1.yaml"))
    assert "k1.yaml:7: unknown name 'blok' in the kernel" in said
    assert "use 'block'" in said


def test_a_kernel_text_of_too_many_instructions(capsys: Capture) -> None:
    said = refused(capsys, "kernel", str(DATA / "k2.yaml"))
    assert f"k2.yaml:12: the code has more than {MOST_INSTRUCTIONS:,} instructions" in said


def test_a_fallback_that_is_no_list(capsys: Capture) -> None:
    said = refused(capsys, "kernel", str(DATA / "mm_M_unroll_8x1.yaml"))
    assert "mm_M_unroll_8x1.yaml:7: inf is not a finite number" in said


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("ceildiv(N, cores)", "ceildiv(N, cores - cores)", "divides by zero"),
        ("ceildiv(N, cores)", "1" + "+1" * 300, "use at most 400 characters"),
        ("ceildiv(N, cores)", "9" * 30, "is outside the range"),
        ("min(start + block, N)", "N * 99999999999999999 * 99999999999999", "instructions|away"),
        ("min(start + block, N)", "N * 99999999999999999999999", "has a number above"),
        ("A(i,k)", "A(i*9999999999999999,k)", "B away from the first"),
        ("code_bytes: 556", "code_bytes: 5000000000", "'code_bytes' must be"),
        ("kernel: k1", "fallback: [1, 2]\nkernel: k1", "1 stands where 'key: value' lines"),
        ("kernel: k1", "fallback:\n  - {when: '1', use: k1, cost: A}\nkernel: k1", "form a cycle"),
    ],
)
def test_a_kernel_file_with_a_mistake(
    old: str, new: str, message: str, tmp_path: Path, capsys: Capture
) -> None:
    text = (DATA / "k1.yaml").read_text().replace("blok", "block")
    assert old in text
    file = tmp_path / "k1.yaml"
    file.write_text(text.replace(old, new))
    assert re.search(message, refused(capsys, "kernel", str(file)))


def test_loops_inside_each_other_without_end() -> None:
    depth = DEEPEST + 1
    with pytest.raises(ConfigError, match="nested loops and conditions"):
        parse_nest("if (1) {" * 2000 + "}" * 2000)
    with pytest.raises(ConfigError, match="nested loops and conditions"):
        parse_nest("for 0..2 hw { A " * depth + "}" * depth)


def test_sizes_of_a_kernel_beyond_64_bits(capsys: Capture) -> None:
    assert "instructions" in refused(capsys, "kernel", "mm", "--n", "9" * 20, "--k", "9" * 20)


# Arrays


def _encrypted(file: Path) -> None:
    np.savez(file, x=np.ones(3))
    data = bytearray(file.read_bytes())
    for mark, place in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        data[data.index(mark) + place] |= 1
    file.write_bytes(bytes(data))


def _empty(file: Path) -> None:
    with zipfile.ZipFile(file, "w"):
        pass


def _no_arrays(file: Path) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("readme.txt", "hello")


def _huge(file: Path) -> None:
    header = "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }".ljust(117) + "\n"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\1\0" + bytes((118, 0)) + header.encode())


def _broken_header(file: Path) -> None:
    header = "{'descr': '<f4', 'shape': (4, 4".ljust(117) + "\n"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\1\0" + bytes((118, 0)) + header.encode())


def _damaged(file: Path) -> None:
    np.savez_compressed(file, x=np.arange(1000.0))
    data = bytearray(file.read_bytes())
    data[200:230] = bytes(30)
    file.write_bytes(bytes(data))


def _cut_off(file: Path) -> None:
    np.savez(file, x=np.ones(1000))
    file.write_bytes(file.read_bytes()[:500])


def _objects(file: Path) -> None:
    np.savez(file, x=np.array([None, {}], dtype=object))


def _text(file: Path) -> None:
    file.write_text("x = 1")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_encrypted, "is encrypted"),
        (_empty, "holds no array"),
        (_no_arrays, "holds a file that is not an array"),
        (_huge, "declares shape (1000000000000,)"),
        (_broken_header, "cannot read"),
        (_damaged, "cannot read"),
        (_cut_off, "cannot read"),
        (_objects, "holds Python objects"),
        (_text, "cannot read"),
        (Path.mkdir, "does not exist"),
    ],
)
def test_values_that_are_none(
    make: Callable[[Path], None], message: str, tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "v.npz"
    make(file)
    said = refused(capsys, "primitive", "relu", "--shape", "3", "--values", str(file))
    assert message in said
    assert "--values" in said


# Folders of results


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    assert run(["run", "simple-mlp", "--cores", "2", "--no-cache", "-q", "--out", str(folder)]) == 0
    write_table(read_table(folder), folder, parquet=False)
    return folder


@pytest.fixture
def damaged(results: Path, tmp_path: Path) -> Path:
    for name in ("summary.json", "trace.csv", "memory.csv"):
        shutil.copy(results / name, tmp_path)
    return tmp_path


def _picture(folder: Path, name: str) -> tuple[str, ...]:
    return ("plot", str(folder), "--what", "memory" if name == "memory.csv" else "breakdown", "-q")


@pytest.mark.parametrize("name", ["trace.csv", "memory.csv"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data.replace(b",", b",\xff", 1), "is not UTF-8 text"),
        (lambda data: data.replace(b"\n", b"\n" + b"x" * 200_000, 1), "field larger than field limit"),
        (lambda data: data + b"\n1,2\n", "the row has"),
        (lambda data: re.sub(rb",\d+,", b",nan,", data), "must be a whole number"),
        (lambda data: re.sub(rb",\d+,", b"," + b"9" * 5000 + b",", data), "above"),
        (lambda data: b"", "no column"),
    ],
)
def test_a_table_of_a_run_that_is_damaged(
    name: str, change: Callable[[bytes], bytes], message: str, damaged: Path, capsys: Capture
) -> None:
    file = damaged / name
    file.write_bytes(change(file.read_bytes()))
    said = refused(capsys, *_picture(damaged, name))
    assert message in said
    assert str(file) in said


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("cycles", "many"),
        ("cycles", -1),
        ("cycles", 10**30),
        ("cluster_hz", 0),
        ("cluster_hz", 1.5),
        ("trace_cycles", None),
        ("capacity_bytes", 5),
        ("capacity_bytes", {"l1": "x"}),
    ],
)
def test_a_summary_with_something_else_for_a_number(
    key: str, value: object, damaged: Path, capsys: Capture
) -> None:
    file = damaged / "summary.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), key: value}))
    assert f"summary.json: '{key}' in the summary of the run must" in refused(
        capsys, *_picture(damaged, "memory.csv")
    )


@pytest.mark.parametrize("text", ["", "[" * 100_000, "5", '{"cycles": ' + "9" * 5000 + "}", "\udcff"])
def test_a_summary_that_is_no_json(text: str, damaged: Path, capsys: Capture) -> None:
    (damaged / "summary.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert "summary.json" in refused(capsys, *_picture(damaged, ""))


def test_a_trace_that_contradicts_itself(damaged: Path, capsys: Capture) -> None:
    """Of a run it would be a defect; here somebody has changed the file."""
    file = damaged / "trace.csv"
    with file.open(newline="") as source:
        rows = list(csv.DictReader(source))
    row = next(row for row in rows if row["kind"] == "compute")
    row["load_use_cycles"] = "1000141"
    with file.open("w", newline="") as target:
        writer = csv.DictWriter(target, list(row))
        writer.writeheader()
        writer.writerows(rows)
    assert str(damaged) in refused(capsys, *_picture(damaged, ""))


# Options


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "simple-mlp", "--set", "dma.burst_bytes=" + "9" * 5000),
        ("run", "simple-mlp", "--set", "l2.size_bytes=1e400"),
        ("run", "simple-mlp", "--l1", "nan"),
        ("run", "simple-mlp", "--l1", "9" * 5000),
        ("run", "simple-mlp", "--cores", "9" * 30),
        ("run", "simple-mlp", "--batch", "-1"),
        ("primitive", "relu", "--shape", "4", "--option", "x=[[[["),
        ("primitive", "relu", "--shape", "4", "--option", "x=!!int a"),
        ("primitive", "linear", "--shape", "4", "--option", "out_features=" + "9" * 5000),
        ("primitive", "linear", "--shape", "4", "--option", "out_features=.nan"),
        ("tune", "simple-mlp", "--seed", "-1"),
    ],
)
def test_an_option_with_a_number_that_is_none(arguments: tuple[str, ...], capsys: Capture) -> None:
    refused(capsys, *arguments)


def test_an_objective_that_is_no_word(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "e.yaml"
    file.write_text("name: n\nmodel: simple-mlp\nsweep: {cores: [1]}\nobjectives: [cycles, {}]\n")
    assert "e.yaml:4: unknown objective" in refused(capsys, "explore", str(file), "--no-cache")


def test_an_archive_is_still_read(tmp_path: Path, capsys: Capture) -> None:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, x=np.ones((1, 3), np.float32))
    file = tmp_path / "v.npz"
    file.write_bytes(buffer.getvalue())
    assert run(["primitive", "relu", "--shape", "3", "--values", str(file), "-q"]) == 0


@pytest.mark.parametrize("name", COMMANDS)
def test_an_empty_name_of_a_file_or_folder_is_refused_by_its_option(name: str, capsys: Capture) -> None:
    options = typer.main.get_command(application([name])).params
    words = ["x" for option in options if option.param_type_name == "argument" and option.required]
    for option in options:
        if option.param_type_name == "option" and re.search("FILE|DIR", option.metavar or ""):
            flag = option.opts[0]
            said = refused(capsys, name, *words, flag, "")
            assert said.startswith(
                f"pulptrain: error: {flag}: the name of the file or folder is empty\n  try: use {flag} "
            )


def test_an_empty_name_is_refused_from_python_too() -> None:
    with pytest.raises(InputError, match="--schedule: the name of the file or folder is empty"):
        pt.run("simple-mlp", schedule="")
