# SPDX-License-Identifier: Apache-2.0
"""Files are written whole or not at all, and never in place of what is not ours."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from configs.errors import InputError
from configs.files import check_file, check_folder, replacing, write_text
from pulptrain.__main__ import run
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
    with pytest.raises(InputError, match="would be lost"):
        check_file(str(path), "--schedule", nothing)
    path.write_text("")
    assert check_file(str(path), "--schedule", nothing) == path


def test_a_folder_that_is_not_there_or_is_a_file_is_told_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="no folder"):
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
    out, schedule, model = full_disk / "out", full_disk / "s.yaml", tmp_path / "small.yaml"
    model.write_text(SMALL_MODEL)
    error = refused(capsys, "run", str(model), "--no-functional", "--quiet", "--no-cache", "--out", str(out))
    assert "No space left on device" in error
    assert error.count("\n") == 2, "the error and its cure"
    for path in out.iterdir():
        assert path.stat().st_size > 0
        assert not path.name.endswith(".part")
    fill(full_disk)
    tune = ["tune", str(model), "--cuts", "1", "--strategy", "paper", "--workers", "1", "--quiet"]
    assert "No space left on device" in refused(capsys, *tune, "--no-cache", "--schedule", str(schedule))
    assert not schedule.exists()
    cached = ["run", str(model), "--no-functional", "--quiet", "--cache", str(full_disk / "c")]
    assert run(cached) in (0, 2), "results are not kept, or the cache cannot be begun"
    assert "database or disk is full" in capsys.readouterr().err


def fill(folder: Path) -> None:
    """Leave no room at all."""
    with (folder / "rest").open("wb", buffering=0) as stream, suppress(OSError):
        while True:
            stream.write(bytes(4096))
