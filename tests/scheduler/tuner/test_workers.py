# SPDX-License-Identifier: Apache-2.0
"""Workers: the same results here, in processes and on a cluster; clear words when there are none."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from configs.errors import InputError
from scheduler.search.driver import Job, drive
from scheduler.search.workers import InlineExecutor, Workers, open_workers
from shared.tuner_case import small_case, tune


def square(number: int) -> int:
    return number * number


def search(log: list[Any], name: str) -> Generator[Sequence[Job], Sequence[Any], None]:
    """Asks for three squares, then for the squares of those, then ends."""
    results = yield [Job(square, (number,)) for number in range(3)]
    log.append((name, list(results)))
    yield []
    results = yield [Job(square, (number,)) for number in results]
    log.append((name, list(results)))


def test_searches_get_their_results_in_the_order_they_asked() -> None:
    log: list[Any] = []
    with open_workers(1) as workers:
        drive([search(log, "a"), search(log, "b")], workers)
    assert [entry for entry in log if entry[0] == "a"] == [("a", [0, 1, 4]), ("a", [0, 1, 16])]
    assert [entry for entry in log if entry[0] == "b"] == [("b", [0, 1, 4]), ("b", [0, 1, 16])]


def test_processes_give_what_this_process_gives() -> None:
    log: list[Any] = []
    with open_workers(2) as workers:
        assert workers.count == 2
        drive([search(log, "a"), search(log, "b"), search(log, "c")], workers)
        pids = {workers.executor.submit(os.getpid).result() for _ in range(4)}
    assert os.getpid() not in pids
    assert sorted(log) == sorted((name, row) for name in "abc" for row in ([0, 1, 4], [0, 1, 16]))


def test_every_result_arrives_before_the_search_goes_on() -> None:
    arrived: list[int] = []
    seen: list[list[int]] = []

    def steps() -> Generator[Sequence[Job], Sequence[Any], None]:
        yield [Job(square, (number,), arrived.append) for number in range(4)]
        seen.append(sorted(arrived))

    drive([steps()], Workers(InlineExecutor(), 1))
    assert seen == [[0, 1, 4, 9]]


def test_an_error_of_a_job_ends_the_searches() -> None:
    def steps() -> Generator[Sequence[Job], Sequence[Any], None]:
        yield [Job(int, ("no number",))]

    with pytest.raises(ValueError, match="no number"):
        drive([steps()], Workers(InlineExecutor(), 1))


ORPHAN = """
import multiprocessing, os, threading, time
from scheduler.search.workers import open_workers

if __name__ == "__main__":
    if THREADS:
        threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
    with open_workers(2) as workers:
        for _ in range(8):
            workers.executor.submit(time.sleep, 0.1)
        workers.executor.submit(os.getpid).result()
        children = [child.pid for child in multiprocessing.active_children()]
        print(type(workers.executor).__name__, *children, flush=True)
        time.sleep(3600)
"""

STARTING = """
import os, signal
from concurrent.futures import ProcessPoolExecutor
from scheduler.search.workers import open_workers

class Interrupted(ProcessPoolExecutor):
    def submit(self, *args):
        os.kill(os.getpid(), NUMBER)
        future = super().submit(*args)
        print("begun", flush=True)
        return future

if __name__ == "__main__":
    import scheduler.search.workers as workers
    workers.ProcessPoolExecutor = Interrupted
    signal.signal(NUMBER, signal.default_int_handler)
    try:
        with open_workers(2):
            print("used")
    except KeyboardInterrupt:
        print("interrupted")
        error = __import__("sys").exc_info()  # as long as that lives the pool does
"""


@pytest.mark.needs_proc
@pytest.mark.parametrize("number", ["SIGINT", "SIGALRM"])
def test_a_ctrl_c_while_workers_start_waits_until_they_can_be_ended(tmp_path: Path, number: str) -> None:
    script = tmp_path / "starting.py"
    script.write_text(STARTING.replace("NUMBER", f"signal.{number}"))
    command = [sys.executable, str(script)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert (done.stdout.split(), done.stderr) == (["begun", "interrupted"], "")


def lives(process: int) -> bool:
    try:
        # Of one that is dead only its entry waits to be collected.
        return " Z " not in Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.needs_proc
@pytest.mark.parametrize("threads", [False, True], ids=["forked", "spawned"])
def test_processes_end_when_their_parent_is_killed(tmp_path: Path, threads: bool) -> None:
    script = tmp_path / "orphan.py"
    script.write_text(ORPHAN.replace("THREADS", str(threads)))
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pool, *words = parent.stdout.readline().split()
    # A thread may hold a lock that its copy would wait for, as nobody there would let it go: no copy then.
    assert pool == ("LazyProcesses" if threads else "ProcessPoolExecutor")
    workers = [int(word) for word in words]
    assert len(workers) == 2
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    for _ in range(12_000):  # seconds on a busy machine; ten minutes are too many on any
        if not any(map(lives, workers)):
            return
        time.sleep(0.05)
    pytest.fail("a worker lives on")


@pytest.mark.parametrize("address", ["dask://nowhere", "ray://localhost:1", "dask://localhost:port"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(InputError, match="dask://HOST:PORT"), open_workers(1, address):
        pass


def test_no_workers_are_too_few() -> None:
    with pytest.raises(InputError, match="1 or more"), open_workers(0):
        pass


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.needs_distributed
def test_a_scheduler_nobody_runs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler.search.workers.DASK_TIMEOUT_SECONDS", 1)
    with (
        pytest.raises(InputError, match="no Dask scheduler answers"),
        open_workers(1, f"dask://127.0.0.1:{free_port()}"),
    ):
        pass


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """A real scheduler and two worker processes on loopback."""
    port = free_port()
    address = f"127.0.0.1:{port}"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    dask = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1"]
    worker = [sys.executable, "-m", "distributed.cli.dask_worker", f"tcp://{address}", "--nthreads", "1"]
    processes = [subprocess.Popen([*dask, "--port", str(port), "--no-dashboard"], **quiet)]  # type: ignore[call-overload]
    processes += [
        subprocess.Popen([*worker, "--no-dashboard", "--no-nanny"], **quiet)  # type: ignore[call-overload]
        for _ in range(2)
    ]
    for _ in range(6000):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.1)
    yield f"dask://{address}"
    for process in processes:
        process.kill()
    for process in processes:
        process.wait()


@pytest.mark.slow
@pytest.mark.needs_distributed
def test_a_cluster_gives_what_this_process_gives(cluster: str) -> None:
    graph, timing, options, rules = small_case()
    with open_workers(1, cluster) as workers:
        assert workers.count >= 1
        there = tune([(graph, 1)], timing, options, workers, rules=rules)
    with open_workers(1) as workers:
        here = tune([(graph, 1)], timing, options, workers, rules=rules)
    assert repr(there.schedule) == repr(here.schedule)
