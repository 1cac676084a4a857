# SPDX-License-Identifier: Apache-2.0
"""Files are written whole or not at all, and never in place of what is not ours."""

from __future__ import annotations

import json
import os
import resource
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from configs.errors import InputError
from configs.files import check_file, check_folder, replacing, write_text
from pulptrain.__main__ import run
from shared.onnx_models import model, node, saved, value
from shared.printed import refused
from shared.tuner_case import SMALL_MODEL


def anything(_: Path) -> bool:
    return True


def nothing(_: Path) -> bool:
    return False


def test_a_file_is_there_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with replacing(path) as temporary:
        temporary.write_text("half")
        assert not path.exists()
        assert temporary.parent == tmp_path
    assert path.read_text() == "half"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_file_name_that_is_no_text_is_written_as_an_escape(tmp_path: Path) -> None:
    name = os.fsdecode(b"net-\xff.yaml")
    write_text(tmp_path / "a.json", f'"{name}"')
    assert json.loads((tmp_path / "a.json").read_bytes()) == name


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt(), ValueError()])
def test_a_failure_leaves_the_old_file_and_no_other(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    expected = InputError if isinstance(error, OSError) else type(error)

    def fail() -> None:
        with replacing(path) as temporary:
            temporary.write_text("half")
            raise error

    with pytest.raises(expected):
        fail()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("call", ["open", "close", "unlink"])
def test_ctrl_c_while_a_folder_is_tried_leaves_no_part(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal is noticed when the call of the system has returned."""
    of_system, signals = getattr(os, call), iter([KeyboardInterrupt])

    def interrupted(*arguments: object, **options: object) -> object:
        done = of_system(*arguments, **options)
        for signal in signals:
            raise signal
        return done

    monkeypatch.setattr(os, call, interrupted)
    with pytest.raises(KeyboardInterrupt):
        check_folder(str(tmp_path), "--out")
    assert not os.listdir(tmp_path)


def test_a_new_file_has_the_permissions_of_any_other_and_an_old_one_keeps_its_own(tmp_path: Path) -> None:
    old, new, usual = tmp_path / "old", tmp_path / "new", tmp_path / "usual"
    old.touch(0o640)
    old.chmod(0o640)
    usual.write_text("")
    write_text(old, "x")
    write_text(new, "x")
    assert stat.S_IMODE(old.stat().st_mode) == 0o640
    assert new.stat().st_mode == usual.stat().st_mode


def test_what_a_link_points_to_is_written_and_the_link_stays(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    target, link, dangling = tmp_path / "other" / "a", tmp_path / "link", tmp_path / "dangling"
    target.write_text("old")
    link.symlink_to(target)
    dangling.symlink_to("other/b")
    for path in (link, dangling):
        write_text(check_file(str(path), "--x", anything), "new")
        assert path.is_symlink()
        assert path.read_text() == "new"
    assert target.read_text() == (tmp_path / "other" / "b").read_text() == "new"
    assert sorted(os.listdir(tmp_path / "other")) == ["a", "b"]


def test_devices_pipes_sockets_and_folders_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the name of a socket must be short
    os.mkfifo("pipe")
    Path("folder").mkdir()
    Path("link").symlink_to("/dev/null")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        for name in ("/dev/null", "pipe", "socket", "folder", "link", "", ".", "/"):
            with pytest.raises(InputError) as caught:
                check_file(name, "--schedule", anything)
            assert caught.value.where == "--schedule"
            if name:
                with pytest.raises(InputError):
                    write_text(Path(name), "x")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    assert stat.S_ISFIFO(os.stat("pipe").st_mode)


def test_a_file_that_is_not_ours_is_refused_unless_it_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("notes")
    with pytest.raises(InputError, match="nothing was overwritten"):
        check_file(str(path), "--schedule", nothing)
    path.write_text("")
    assert check_file(str(path), "--schedule", nothing) == path


def test_a_folder_that_is_not_there_or_is_a_file_is_told_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"the folder '.*none' does not exist"):
        check_file(str(tmp_path / "none" / "a"), "--x", anything)
    for name in (str(tmp_path / "file"), str(tmp_path / "file" / "below"), "/dev/null", "", "/proc/x"):
        with pytest.raises(InputError) as caught:
            check_folder(name, "--out")
        assert caught.value.where == "--out"


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB with 8 KiB left."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except OSError as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    try:
        (folder / "full").write_bytes(bytes(56 * 1024))
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_leaves_nothing_half_written(
    full_disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, schedule, small = full_disk / "out", full_disk / "s.yaml", tmp_path / "small.yaml"
    small.write_text(SMALL_MODEL)
    error = refused(capsys, "run", str(small), "--no-functional", "--quiet", "--no-cache", "--out", str(out))
    assert "No space left on device" in error
    assert error.count("\n") == 2, "the error and its cure"
    assert os.listdir(full_disk) == ["full"]
    fill(full_disk)
    tune = ["tune", str(small), "--tilings", "1", "--strategy", "paper", "--workers", "1", "--quiet"]
    assert "No space left on device" in refused(capsys, *tune, "--no-cache", "--save-schedule", str(schedule))
    assert not schedule.exists()
    cached = ["run", str(small), "--no-functional", "--quiet", "--cache", str(full_disk / "c")]
    assert run(cached) in (0, 2), "results are not cached, or the cache cannot be created"
    assert "database or disk is full" in capsys.readouterr().err


def content(folder: Path) -> dict[str, bytes]:
    """All files by their path."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


OUT = {
    "run": ["run", "small.yaml", "--no-functional", "--no-cache", "-q", "--out", "out"],
    "tune": [
        "tune",
        "small.yaml",
        "--trials",
        "1",
        "--workers",
        "1",
        "-q",
        "--save-schedule",
        "s.yaml",
        "--out",
        "out",
    ],
    "explore": ["explore", "sweep.yaml", "--workers", "1", "-q", "--out", "out"],
    "deploy": ["deploy", "small.yaml", "-q", "--out", "out"],
    "plot": ["plot", "run", "-q", "--out", "out"],
    "example": ["example", "notebooks", "--out", "out"],
    "barvinn": [
        "barvinn",
        "chain.onnx",
        "--aprec",
        "2",
        "--wprec",
        "2",
        "--oprec",
        "2",
        "-q",
        "--out",
        "out",
    ],
    "fit": ["fit", "small.yaml", "--time-limit", "1", "-q", "--save-model", "f.yaml", "--out", "out"],
}
"""A command of every kind that writes a folder; `fit` writes what it has found at once, file by file."""
SWEEP = "name: sweep\nmodel: small.yaml\nsweep: {cores: [1, 2]}\n"


def inputs(text: str = SMALL_MODEL) -> None:
    """What the commands read."""
    Path("small.yaml").write_text(text)
    Path("sweep.yaml").write_text(SWEEP)


@pytest.mark.parametrize(
    "name",
    [
        *("explore", "example"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("run", "tune", "deploy", "plot")),
        pytest.param("barvinn", marks=(pytest.mark.slow, pytest.mark.needs_onnx)),
    ],
)
def test_a_command_that_cannot_write_all_its_files_writes_none(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The largest is one byte too large: the system refuses it as on a full disk."""
    monkeypatch.chdir(tmp_path)
    inputs()
    if name == "plot":
        assert run(["run", "small.yaml", "--no-functional", "--no-cache", "-q", "--out", "run"]) == 0
    if name == "barvinn":
        conv, weights = (
            node("Conv", ["x", "w"], ["y"]),
            {"w": np.eye(64, dtype=np.float32).reshape(64, 64, 1, 1)},
        )
        made = model([conv], [value("x", [1, 64, 4, 4])], [value("y", None)], weights)
        saved(tmp_path, made, "chain.onnx")
    assert run(OUT[name]) == 0
    before = content(Path("out"))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for there in (False,) if name in ("deploy", "example") else (True, False):  # those leave equal files
        if not there:
            shutil.rmtree("out")
        resource.setrlimit(resource.RLIMIT_FSIZE, (max(map(len, before.values())) - 1, limits[1]))
        try:
            code = run(OUT[name])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert code == 2
        assert "File too large" in capsys.readouterr().err
        assert Path("out").exists() == there
        if there:
            assert content(Path("out")) == before
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize("name", OUT)
def test_a_command_that_is_refused_leaves_no_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    inputs(SMALL_MODEL.replace("conv2d", "conv9d"))
    words = [word.replace("notebooks", "nothing") for word in OUT[name]]
    Path("there").mkdir()
    for out in ("out", "a/b/out", "there"):
        assert run([*words[:-1], out]) == 2
    assert sorted(os.listdir(tmp_path)) == ["small.yaml", "sweep.yaml", "there"]


@pytest.mark.needs_proc
def test_parts_of_killed_runs_are_removed_and_those_of_others_stay(tmp_path: Path) -> None:
    writer = "import sys, time\nfrom pathlib import Path\nfrom configs.files import replacing\n"
    writer += "with replacing(Path(sys.argv[1])):\n    print(flush=True)\n    time.sleep(60)\n"
    killed, alive = (
        subprocess.Popen([sys.executable, "-c", writer, str(tmp_path / name)], stdout=subprocess.PIPE)
        for name in ("killed", "alive")
    )
    try:
        for process in (killed, alive):
            assert process.stdout is not None
            assert process.stdout.readline()
        killed.kill()
        killed.wait()
        assert len(list(tmp_path.glob(".pulptrain-*.part"))) == 2
        other = tmp_path / f".pulptrain-0badcafe-{killed.pid}-00.part"
        other.touch()
        write_text(tmp_path / "a.txt", "whole")
        (left,) = set(tmp_path.glob(".pulptrain-*.part")) - {other}
        assert f"-{alive.pid}-" in left.name
    finally:
        for process in (killed, alive):
            process.kill()
            process.communicate()


def fill(folder: Path) -> None:
    """Leave no room at all."""
    with (folder / "rest").open("wb", buffering=0) as stream, suppress(OSError):
        while True:
            stream.write(bytes(4096))
