# SPDX-License-Identifier: Apache-2.0
"""Commands whose outputs are aimed at devices, links, files of others and whatever else has a name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from configs.values import replace
from tools.fuzz.folder import CACHE_OPTIONS, FOLDER_OPTIONS, OUTPUT_OPTIONS
from tools.fuzz.subject import FINE, FOLDER, Subject, Thing

REFUSED, WRITTEN, EITHER = frozenset({2}), frozenset({0}), frozenset({0, 2})

FULL = "/dev/full"


@dataclass(frozen=True, slots=True)
class Target:
    """A name that is typed, what is there before, and how a command may end that should write to it.

    `ours` is where an earlier result of the same command lies, a file or a folder of them; it may have become
    another in `files`.
    """

    typed: str
    file: frozenset[int]
    cache: frozenset[int]
    folder: frozenset[int]
    files: Mapping[str, bytes] | None = None
    things: tuple[Thing, ...] = ()
    ours: str = ""

    def exit_codes(self, option: str) -> frozenset[int]:
        """How a command may end whose `option` names this target."""
        if option in FOLDER_OPTIONS:
            return self.folder
        return self.cache if option in CACHE_OPTIONS else self.file


FOREIGN = b'{"mine": 1}\n'

_NOTHING_THERE = ("new", "a b", "a\nb", "\u00fc\U0001f600", "%s{0}[red]", "'\"`$(x)", "n" * 240, "dir/../new")


def _named(name: str) -> Thing:
    return Thing("link", "link", name)


def _mode(path: str, mode: int) -> tuple[Thing, ...]:
    return (Thing(path, "mode", mode=mode),)


_IN = f"{FOLDER}/"
_DEVICES = ("/dev/null", FULL, "/proc/none/x", "/proc/self/x")
_NOTES, _FOREIGN, _EMPTY = {"dir/notes.txt": FOREIGN}, {"foreign": FOREIGN}, {"empty": b""}
_FAR, _LOCKED = {"far/x": FOREIGN}, {"locked/y": FOREIGN}
_SQLITE = {"foreign": b"SQLite format 3\0" + b"\1" * 200}
_NO_UTF8 = "\udcff"  # a byte that is no UTF-8, as Python gets it

# By column: as a file, as a cache, as a folder.
TARGETS: Sequence[Target] = (
    *(Target(name, REFUSED, REFUSED, REFUSED) for name in (*_DEVICES, "")),
    *(Target(_IN + name, WRITTEN, WRITTEN, WRITTEN, _NOTES) for name in _NOTHING_THERE),
    Target("new", WRITTEN, WRITTEN, WRITTEN),
    Target(".", REFUSED, REFUSED, EITHER),
    Target("-x", EITHER, EITHER, EITHER),
    Target(_IN + "new/", EITHER, EITHER, WRITTEN),
    Target(_IN + _NO_UTF8, EITHER, EITHER, EITHER),
    Target(_IN + "n" * 255, EITHER, EITHER, WRITTEN),
    Target(_IN + "n" * 256, REFUSED, REFUSED, REFUSED),
    Target(_IN + "d/" * 2500, REFUSED, REFUSED, REFUSED),
    Target(_IN + "none/deep/x", REFUSED, WRITTEN, WRITTEN),
    Target(_IN + "dir", REFUSED, REFUSED, WRITTEN, things=(Thing("dir", "folder"),)),
    Target(_IN + "dir", REFUSED, REFUSED, REFUSED, _NOTES),
    Target(_IN + "foreign", REFUSED, REFUSED, REFUSED, _FOREIGN),
    Target(_IN + "foreign/below", REFUSED, REFUSED, REFUSED, _FOREIGN),
    Target(_IN + "foreign", REFUSED, REFUSED, REFUSED, {"foreign": b"\0" * 200}),
    Target(_IN + "foreign", REFUSED, REFUSED, REFUSED, _SQLITE),
    Target(_IN + "empty", WRITTEN, WRITTEN, REFUSED, _EMPTY),
    Target(_IN + "empty", WRITTEN, WRITTEN, REFUSED, _EMPTY, _mode("empty", 0o600)),
    Target(_IN + "ours", WRITTEN, WRITTEN, WRITTEN, ours="ours"),
    # Links
    Target(_IN + "link", WRITTEN, WRITTEN, WRITTEN, {}, (_named("far/ours"),), ours="far/ours"),
    Target(_IN + "link", REFUSED, REFUSED, REFUSED, _FOREIGN, (_named("foreign"),)),
    Target(_IN + "link", WRITTEN, WRITTEN, REFUSED, _EMPTY, (_named("empty"),)),
    Target(_IN + "link", WRITTEN, WRITTEN, EITHER, _FAR, (_named("far/new"),)),
    Target(_IN + "link", REFUSED, WRITTEN, EITHER, {}, (_named("none/new"),)),
    Target(_IN + "link", REFUSED, REFUSED, REFUSED, {}, (_named("link"),)),
    Target(_IN + "link", REFUSED, REFUSED, REFUSED, {}, (_named("/dev/null"),)),
    Target(_IN + "link", REFUSED, REFUSED, REFUSED, _FAR, (_named("far"),)),
    Target(_IN + "link/new", WRITTEN, WRITTEN, WRITTEN, _FAR, (_named("far"),)),
    # No permission
    Target(_IN + "locked/x", REFUSED, REFUSED, REFUSED, _LOCKED, _mode("locked", 0o555)),
    Target(_IN + "locked", REFUSED, REFUSED, REFUSED, _LOCKED, _mode("locked", 0o555)),
    Target(_IN + "locked/x", REFUSED, REFUSED, REFUSED, _LOCKED, _mode("locked", 0o444)),
    Target(_IN + "foreign", REFUSED, REFUSED, REFUSED, _FOREIGN, _mode("foreign", 0)),
    Target(_IN + "ours", REFUSED, EITHER, EITHER, {}, _mode("ours", 0o555), ours="ours"),
    # What would block whoever opens it
    Target(_IN + "fifo", REFUSED, REFUSED, REFUSED, {}, (Thing("fifo", "fifo"),)),
    Target(_IN + "socket", REFUSED, REFUSED, REFUSED, {}, (Thing("socket", "socket"),)),
)

CACHE_TARGETS: Sequence[Target] = (
    Target(f"{FOLDER}/new", FINE, EITHER, FINE, {"new-wal": FOREIGN}),
    Target(f"{FOLDER}/new", FINE, EITHER, FINE, {"new-shm": FOREIGN}),
    Target(f"{FOLDER}/new", FINE, EITHER, FINE, {"new-journal": FOREIGN}),
    Target(
        f"{FOLDER}/cut", FINE, WRITTEN, FINE, {"cut": b"SQLite format", "cut.corrupt-1": FOREIGN}, ours="cut"
    ),
    Target(f"{FOLDER}/new", FINE, EITHER, FINE, {"x": FOREIGN}, (Thing("new-wal", "link", "x"),)),
    Target(f"{FOLDER}/ours", FINE, EITHER, FINE, {"ours.corrupt-1": FOREIGN}, ours="ours"),
)
"""What may lie beside a cache."""


def within(name: str) -> Sequence[Target]:
    """Folders that have something under the name of a result."""
    path = f"{FOLDER}/out"
    return (
        Target(path, FINE, FINE, REFUSED, {f"out/{name}": FOREIGN}),
        Target(path, FINE, FINE, REFUSED, {"far": FOREIGN}, (Thing(f"out/{name}", "link", "../far"),)),
        Target(path, FINE, FINE, REFUSED, {"far/x": FOREIGN}, (Thing(f"out/{name}", "link", "../far/new"),)),
        Target(path, FINE, FINE, REFUSED, {}, (Thing(f"out/{name}", "link", "/dev/null"),)),
        Target(path, FINE, FINE, REFUSED, {}, (Thing(f"out/{name}", "folder"),)),
        Target(path, FINE, FINE, REFUSED, {}, (Thing(f"out/{name}", "fifo"),)),
        Target(path, FINE, FINE, WRITTEN, {f"out/{name}": b""}),
    )


SPEC = b"name: n\nmodel: simple-mlp\nsweep:\n  cores: [1, 2]\nobjectives: [cycles, cores]\n"

_SMALL = ("simple-mlp", "--cores", "2")

_TUNE = ("tune", *_SMALL, "--tilings", "1", "--strategy", "paper", "--workers", "1")
_EXPLORE = ("explore", f"{FOLDER}/spec", "--workers", "1")

COMMANDS: Mapping[str, Sequence[tuple[tuple[str, ...], str]]] = {
    "--out": (
        (("run", *_SMALL, "--no-functional", "--no-cache"), "summary.json gantt.png trace.csv memory.csv"),
        (("primitive", "relu", "--shape", "8"), "summary.json run-info.json trace.pftrace breakdown.svg"),
        ((*_EXPLORE, "--no-cache"), "points.json points.csv front.png"),
        (("plot", f"{FOLDER}/results", "--what", "breakdown"), "breakdown.png breakdown.svg"),
    ),
    "--save-schedule": (((*_TUNE, "--no-cache"), ""),),
    "--save-values": ((("run", *_SMALL, "--no-cache"), ""),),
    "--save-model": ((("fit", *_SMALL, "--l2", "32KiB", "--points", "0", "--no-cache"), ""),),
    "--cache": ((("run", *_SMALL, "--no-functional"), ""), (_TUNE, ""), (_EXPLORE, "")),
}
"""By option: the commands that have it, and the files they write to a folder."""

PRINTING: Sequence[tuple[str, ...]] = (
    ("list", "socs"),
    ("list", "kernels"),
    ("kernel", "mm", "--n", "3", "--k", "4", "--m", "5"),
    ("run", *_SMALL, "--no-functional", "--no-cache"),
    ("run", *_SMALL, "--no-cache", "--dump-program"),
    ("primitive", "relu", "--shape", "8"),
    ("explore", f"{FOLDER}/spec", "--workers", "1", "--no-cache"),
    ("--help",),
    ("run", "--help"),
    ("--version",),
)


def aimed(generator: Random, base: Callable[[], Mapping[str, bytes]]) -> Subject:
    """A command whose output goes to a place that is none, or a special one; `base` has results of ours."""
    if generator.random() < 0.06:
        words = generator.choice(PRINTING)
        json = ("--json",) if words[0] in ("kernel", "primitive", "list") and generator.random() < 0.5 else ()
        return Subject("outputs", (*words, *json), {"spec": SPEC}, exit_codes=REFUSED, stdout=FULL)
    option = generator.choice(sorted(OUTPUT_OPTIONS))
    command, names = generator.choice(COMMANDS[option])
    special: Sequence[Target] = ()
    if option in CACHE_OPTIONS:
        special = CACHE_TARGETS
    elif names:
        special = within(generator.choice(names.split()))
    target = generator.choice(special if special and generator.random() < 0.25 else TARGETS)
    item = subject_of(command, option, target, base())
    if generator.random() < 0.1:
        # Files are written before anything is printed, so that what is lost is the text only.
        return replace(item, arguments=(*item.arguments[:-1], "--json"), exit_codes=REFUSED, stdout=FULL)
    return item


def subject_of(words: Sequence[str], option: str, target: Target, base: Mapping[str, bytes]) -> Subject:
    """The command with its output aimed at the target."""
    files = dict(target.files or {})
    ours: set[str] = set()
    if target.ours:
        before = _earlier(words[0], option, base)
        at = {f"{target.ours}/{name}" if name else target.ours: data for name, data in before.items()}
        files = at | files
        ours = {name for name in files if name == target.ours or name.startswith(f"{target.ours}/")}
    if words[0] == "plot":
        files |= {f"results/{name.removeprefix('run/')}": base[name] for name in RESULTS}
    if words[0] == "explore":
        files["spec"] = SPEC
    arguments = (*words, option, target.typed, "-q")
    return Subject("outputs", arguments, files, target.things, frozenset(ours), target.exit_codes(option))


RESULTS = ("run/summary.json", "run/memory.csv", "run/trace.csv")


def _earlier(command: str, option: str, base: Mapping[str, bytes]) -> Mapping[str, bytes]:
    """An earlier result: by name in its folder, or of a file under no name."""
    match option:
        case "--out" if command == "explore":
            return {"points.json": base["points.json"]}
        case "--out":
            return {name.removeprefix("run/"): base[name] for name in RESULTS}
        case "--save-schedule":
            return {"": base["schedule.yaml"]}
        case "--save-model":
            return {"": base["fitted.yaml"]}
        case "--save-values":
            return {"": base["values.npz"]}
        case _:
            return {"": base["cache"]}
