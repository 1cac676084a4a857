# SPDX-License-Identifier: Apache-2.0
"""What cannot be done is refused from shapes and sizes alone, at once, with what would allow it."""

from __future__ import annotations

import gzip
import io
import resource
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from configs.errors import ConfigError, DoesNotFitError, InputError
from configs.limits import HOST_MEMORY_VARIABLE, require_host_memory
from configs.model_file import load_model
from configs.yaml_file import load_yaml, parse_yaml
from pulptrain.__main__ import run
from pulptrain.inputs.npz_file import read_values
from pulptrain.inputs.settings import Settings, schedule_options, soc_timing
from pulptrain.running.session import prepare, run_model
from scheduler.addresses import order_search
from scheduler.addresses.allocation import Interval
from scheduler.schedule import tiler_of
from scheduler.tiles.tiling_candidates import MOST_CANDIDATES, balanced_sizes, enumerate_tilings
from scheduler.validation.rows.cases import Column, read_cases
from shared.counted_work import counted
from shared.paths import DATA
from trainlib.primitives.definition import DrawnInput
from trainlib.training.phases import build_layer_graph, build_training_phases

MOST_CALLS = 5_000_000
"""Calls of functions in a refusal, some seconds of them; most refusals have a few thousand."""

MODEL = """\
name: m
description: d
source: s
input: {{shape: {shape}}}
dataset: random
loss: mse
optimizer: {{name: sgd, learning_rate: 0.01}}
layers:
  - {{name: fc, type: linear, out_features: {outputs}}}
"""


@contextmanager
def in_little_memory(more_bytes: int = 1 << 30) -> Iterator[None]:
    """Fails what is inside if it takes more memory than a refusal may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@contextmanager
def at_once() -> Iterator[None]:
    """Fails if what is inside takes more memory or does more work than a refusal may."""
    with in_little_memory(), counted() as work:
        yield
    assert work.calls < MOST_CALLS


def refused(capsys: pytest.CaptureFixture[str], *arguments: str, planned: bool = False) -> tuple[int, str]:
    """Exit code and message of a command that is refused at once; what is `planned` first may work more."""
    with in_little_memory() if planned else at_once():
        code = run([*arguments])
    said = capsys.readouterr().err
    assert said.startswith("pulptrain: error: ")
    assert "try: " in said
    return code, said


def test_a_layer_of_1e8_features_does_not_fit_from_its_shapes_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "m.yaml"
    model.write_text(MODEL.format(shape=[16], outputs=100_000_000))
    code, said = refused(capsys, "run", str(model), "--no-cache")
    assert code == 3
    assert "L3 is too small" in said
    assert "fc.weight" in said


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("--batch", "100000000"), 3),
        (("--batch", "100000", "--l3", "1GiB"), 2),
        (("--batch", "9" * 30), 2),
        (("--iterations", "99999999999999"), 2),
        (("--accumulate", "3000000000"), 2),
        (("--accumulate", "1000000"), 2),
        (("--buffering", "99999999999999999999999"), 2),
        (("--l3", "3GiB"), 2),
        (("--seed", "-1"), 2),
        (("--seed", "9" * 30), 2),
        (("--set", "core.csr_cycles=100000000"), 2),
        (("--set", "l1.banks=1073741824"), 2),
        (("--tile", "conv1.FW=co:" + "9" * 30), 2),
    ],
)
def test_a_request_that_is_too_large_is_refused(
    options: tuple[str, ...], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    planned = options == ("--accumulate", "1000000")
    found, said = refused(capsys, "run", "digits-cnn", "--no-cache", "-q", *options, planned=planned)
    assert found == code
    assert any(word in said for word in (options[0], HOST_MEMORY_VARIABLE, "--l3", "elements"))


def test_memories_are_counted_before_tune_simulates_on_them(capsys: pytest.CaptureFixture[str]) -> None:
    found, said = refused(capsys, "tune", "simple-mlp", "--no-cache", "-q", "--l2", "2147483647")
    assert found == 2
    assert "simulated memories: 2.0 GiB" in said
    assert HOST_MEMORY_VARIABLE in said


@pytest.mark.parametrize(
    "arguments",
    [
        ("linear", "--shape", "100000000", "--option", "out_features=100000000"),
        ("conv2d", "--shape", "16000x8x8", "--option", "out_channels=16000", "--option", "kernel=1"),
        ("relu", "--shape", "9223372036854775807x9"),
        ("relu", "--shape", "9" * 5000),
    ],
)
def test_a_primitive_on_huge_inputs_is_refused(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    code, _ = refused(capsys, "primitive", *arguments)
    assert code == 2


def test_sixteen_thousand_channels_are_searched_in_bounds() -> None:
    graph = build_layer_graph(
        "conv2d", {"out_channels": 16_000, "kernel": 1}, [DrawnInput((16_000, 64, 64))], where="here"
    )
    settings = Settings(l1="64KiB")
    with in_little_memory():
        for op in graph.ops:
            tiler = tiler_of(op, graph, soc_timing(settings), schedule_options(settings))
            found = enumerate_tilings(tiler, 60_000)
            assert len(found) <= MOST_CANDIDATES


def test_a_search_that_was_bounded_says_so() -> None:
    graph = build_layer_graph("linear", {"out_features": 1_000_000}, [DrawnInput((1_000_000,))], where="here")
    settings = Settings()
    tiler = tiler_of(graph.ops[0], graph, soc_timing(settings), schedule_options(settings))
    with in_little_memory():
        found = enumerate_tilings(tiler, 60_000)
        again = enumerate_tilings(tiler, 60_000)
    assert "too many tile sizes to try all" in found.note
    assert 0 < len(found) <= MOST_CANDIDATES
    assert (found.sizes == again.sizes).all()


def test_ordinary_searches_leave_nothing_out() -> None:
    settings = Settings()
    graph = build_training_phases(load_model("resnet8")).mini_batch
    op = max(graph.ops, key=lambda op: len(op.inputs))
    tiler = tiler_of(op, graph, soc_timing(settings), schedule_options(settings))
    assert enumerate_tilings(tiler, 60_000).note == ""


def test_sizes_are_found_without_counting_to_the_extent() -> None:
    for extent in (*range(1, 300), 4096, 9999):
        assert balanced_sizes(extent) == sorted({-(-extent // n) for n in range(1, extent + 1)}, reverse=True)
    with at_once():
        assert len(balanced_sizes(10**9)) < 100_000


def test_tiles_that_are_too_many_to_build_are_refused() -> None:
    graph = build_layer_graph("linear", {"out_features": 1000}, [DrawnInput((1000,))], where="here")
    settings = Settings()
    tiler = tiler_of(graph.ops[0], graph, soc_timing(settings), schedule_options(settings))
    with at_once(), pytest.raises(InputError, match="1,000,000 tiles take"):
        tiler.build(dict.fromkeys(tiler.dims, 1))
    with at_once():
        assert 16 <= tiler.smallest().l1_bytes <= 64


def test_more_buffers_are_tried_in_fewer_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = 0
    addresses: list[int] = []
    real = order_search.fit_addresses

    def counting(spans: list[tuple[int, int, int]], order: list[int], **_: object) -> list[int]:
        nonlocal tried
        tried += 1
        addresses[:] = addresses or real(spans, order)  # how many orders are tried does not depend on them
        return [*addresses]

    monkeypatch.setattr(order_search, "fit_addresses", counting)
    items = [Interval(f"t{number}", 4 + number % 7 * 4, number, number + 3) for number in range(1200)]
    order_search.search_orders(items, 0)
    assert order_search.STEPS // 9 < tried <= 3 * (order_search.STEPS // 9 + 1)


@pytest.mark.slow
def test_the_optimal_placement_of_a_small_l2_ends() -> None:
    options = ("--l2", "4KiB", "--fpus", "private", "--resident", "auto", "--placement", "optimal")
    with in_little_memory():
        assert run(["run", str(DATA / "rmod-2229.yaml"), *options, "--no-cache", "-q"]) == 0


def test_the_limit_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    require_host_memory(1 << 30, "the tensors need")
    with pytest.raises(InputError, match=r"need about 2\.0 GiB .*, but the limit is 1\.0 GiB") as refusal:
        require_host_memory(1 << 31, "the tensors need", where="here")
    assert f"{HOST_MEMORY_VARIABLE}=2GiB" in str(refusal.value.cure)
    with pytest.raises(InputError, match=r"need about 1\.0 GiB .*, but the limit is 1\.0 GiB, 3\.0 KiB less"):
        require_host_memory((1 << 30) + 3072, "the tensors need")
    monkeypatch.setenv(HOST_MEMORY_VARIABLE, "2GiB")
    require_host_memory(1 << 31, "the tensors need")
    monkeypatch.setenv(HOST_MEMORY_VARIABLE, "much")
    with pytest.raises(ConfigError, match="'much' is not a size"):
        require_host_memory(1, "the tensors need")


def test_what_does_not_fit_the_simulated_memories_is_told_before_the_host_memory() -> None:
    with pytest.raises(DoesNotFitError), at_once():
        prepare("digits-cnn", Settings(batch=10**7))


# Files


def test_a_large_yaml_file_is_not_parsed(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("a: 1\n" * 200_000)
    with (
        at_once(),
        pytest.raises(ConfigError, match=r"has a size of 976\.6 KiB, but the limit is 512\.0 KiB"),
    ):
        load_yaml(file)
    with at_once(), pytest.raises(ConfigError, match="the limit is"):
        parse_yaml("a" * 1_000_000, "a.yaml")


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_a_large_table_of_cases_is_not_read(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    rows = b"id,cycles\n" + (b"a" * 1021 + b",1\n") * 36_000
    file.write_bytes(gzip.compress(rows, 1) if name.endswith(".gz") else rows)
    with in_little_memory(), pytest.raises(ConfigError, match=r"the limit is 32\.0 MiB"):
        read_cases(file, (Column("cycles", 1),))


def test_a_line_without_end_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "a.csv.gz"
    file.write_bytes(gzip.compress(b"id,cycles\n" + bytes(100_000_000), 1))
    with at_once(), pytest.raises(ConfigError, match="the line has more than 1048576 characters"):
        read_cases(file, (Column("cycles", 1),))


def test_a_zip_bomb_is_refused_by_what_it_says_of_itself(tmp_path: Path) -> None:
    file = tmp_path / "v.npz"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x.npy", "w") as member:
        zeros = bytes(1 << 20)
        for _ in range(300):
            member.write(zeros)
    assert file.stat().st_size < 1 << 20
    with at_once(), pytest.raises(InputError, match=r"need about 1\.2 GiB"):
        read_values(str(file))


def test_an_array_that_is_smaller_than_it_says_is_refused(tmp_path: Path) -> None:
    whole = io.BytesIO()
    np.save(whole, np.ones(10, np.float32))
    data = whole.getvalue().replace(b"(10,), }       ", b"(1000000000000,), }", 1)
    file = tmp_path / "v.npz"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x.npy", data)
    with at_once(), pytest.raises(InputError, match="declares shape"):
        read_values(str(file))


def test_python_may_not_ask_for_more_iterations_than_the_command_line() -> None:
    with pytest.raises(InputError, match=r"1000000000 iterations take about 59\.6 GiB"):
        run_model("simple-mlp", iterations=10**9)


def test_the_help_text_names_the_limit(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    assert "PULPTRAIN_HOST_MEMORY, memory a command may use" in " ".join(capsys.readouterr().out.split())
