# SPDX-License-Identifier: Apache-2.0
"""`python -m tools.deployed.sizes`: all targets of exports of the zoo, compiled, and what one of them takes.

Every model, number format and form is exported and compiled with ``-Wall -Wextra -Werror``: for this computer
by gcc, for the others by clang for RV32 (package ziglang), for an SDK against the prototypes of the tests.
Writes docs/deploy-sizes.json: bytes of code, constants and data of ops, tables and kernels, read off the map
of the linker for `pulp-cluster`. ``--tree FOLDER`` exports with an earlier version of pulptrain there, fp32
as functions, for the column of what was before.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Mapping
from itertools import product
from pathlib import Path

from arch.spec.soc_config import FORMS
from tools.deployed.counted import FLAGS, TARGET
from tools.pages.page import ROOT, table

STORED = ROOT / "docs" / "deploy-sizes.json"

MODELS = (
    *("simple-mlp", "tutorial-cnn", "digits-cnn", "tiny-transformer", "tiny-vit", "deep-autoencoder"),
    *("gru-keywords", "ds-cnn", "resnet8", "trainlib-resnet-cifar10", "speechnet", "mobilenet-v1", "cct"),
)
DTYPES = ("fp32", "fp16", "bf16")
KINDS = ("code", "constants", "data")
BEFORE = "before"

SCRIPT = "deploy/platforms/pulp_cluster.ld"
COMPILER = f"CC={sys.executable} -m ziglang cc {TARGET}"
SDK_RULES = "all:\n\tset -e; for file in $(APP_SRCS); do $(CC) $(APP_CFLAGS) -c $$file -o /dev/null; done\n"
"""What an SDK's rules do here: compile, do not link."""

_PIECE = re.compile(r"^ *[0-9a-f]+ +[0-9a-f]+ +([0-9a-f]+) +\d+ +(\S+)\.o:\(\.(\w+)\S*\)$", re.MULTILINE)
_KIND = {"text": "code", "start": "code", "rodata": "constants", "srodata": "constants"}
_KIND |= dict.fromkeys(("data", "sdata", "bss", "sbss", "l1"), "data")
_COUNTED = ("network", "tables")


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tools.deployed.sizes", description=__doc__)
    parser.add_argument("models", nargs="*", default=MODELS, help="those to build again (all)")
    parser.add_argument(
        "--tree", type=Path, help="folder of an earlier version of pulptrain, for the column before"
    )
    parser.add_argument("--dtypes", nargs="*", default=DTYPES)
    arguments = parser.parse_args()
    found = json.loads(STORED.read_text(encoding="utf-8")) if STORED.is_file() else {}
    ways = [("fp32", BEFORE)] if arguments.tree else list(product(arguments.dtypes, FORMS))
    failed = 0
    for model, (dtype, form) in product(arguments.models, ways):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            try:
                export(folder, model, dtype, form, arguments.tree or ROOT)
                build(folder)
                found.setdefault(model, {})[f"{dtype} {form}"] = sizes_of(folder)
            except subprocess.CalledProcessError as error:
                failed += 1
                print(f"{model} {dtype} {form}: {shlex.join(error.cmd)}: {error.stderr[-600:]}", flush=True)
                continue
        print(f"{model} {dtype} {form}: {found[model][f'{dtype} {form}']}", flush=True)
        lines = (f"{json.dumps(key)}: {json.dumps(found[key])}" for key in MODELS if key in found)
        STORED.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    return failed > 0


def _run(command: list[str], folder: Path, **variables: str) -> None:
    environment = {**os.environ, "MAKEFLAGS": "", **variables}
    subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, env=environment)


def export(folder: Path, model: str, dtype: str, form: str, tree: Path = ROOT) -> None:
    """The project, as `tree` writes it, into ``net``."""
    options = ["--dtype", dtype, "--iterations", "1", "--quiet", "--out", str(folder / "net")]
    options += [] if form == BEFORE else ["--form", form]
    _run([sys.executable, "-m", "pulptrain", "deploy", model, *options], folder, PYTHONPATH=str(tree))
    script = (ROOT / SCRIPT).read_text(encoding="utf-8").replace("1536K", "64M")  # room for all samples
    (folder / "net/platform/pulp_cluster.ld").write_text(script, encoding="utf-8")


def build(folder: Path) -> None:
    """All targets, warnings being errors."""
    net, rules = folder / "net", folder / "rules"
    rules.mkdir()
    (rules / "pmsis_rules.mk").write_text(SDK_RULES)
    # The cache of zig mistakes network.h of one folder for that of another: each has a name in its flags.
    flags = f"{FLAGS} -DEXPORT_OF={zlib.crc32(str(folder).encode())}u"
    prototypes = f"DEFINES=-I{ROOT / 'tests/deploy/pmsis'}"
    _run(["make", "-s", "CC=gcc", "CFLAGS=-O1"], net)
    _run(["make", "-s", "TARGET=bare", COMPILER, f"CFLAGS={flags}"], net)
    _run(["make", "-s", "TARGET=pulp-cluster", COMPILER, f"CFLAGS={flags}"], net)
    _run(["make", "-s", "TARGET=pulp-sdk", COMPILER, prototypes], net, RULES_DIR=str(rules))


def sizes_of(folder: Path) -> dict[str, int]:
    """Bytes by kind of what is linked of the target `pulp-cluster`."""
    net = folder / "net"
    objects = [str(path.relative_to(net)) for path in sorted((net / "build/pulp-cluster").rglob("*.o"))]
    linker = ["ld.lld", "-O0", "-T", "platform/pulp_cluster.ld"]  # O0: strings of objects, unmerged
    linker += ["-e", "main", "--gc-sections", "--unresolved-symbols=ignore-all"]
    command = [sys.executable, "-m", "ziglang", *linker, "-Map=network.map", "-o", "network", *objects]
    _run(command, net)
    sizes: Counter[str] = Counter()
    for size, file, section in _PIECE.findall((net / "network.map").read_text()):
        if section in _KIND and ("/kernels/" in file or Path(file).name in _COUNTED):
            sizes[_KIND[section]] += int(size, 16)
    return {kind: sizes[kind] for kind in KINDS}


def page() -> str:
    """The table of docs/deploy.md."""
    found: Mapping[str, Mapping[str, Mapping[str, int]]] = json.loads(STORED.read_text(encoding="utf-8"))
    rows = []
    for model, ways in found.items():
        for dtype in DTYPES:
            cells: list[str] = []
            for form in (BEFORE, *FORMS):
                sizes = ways.get(f"{dtype} {form}")
                cells.append(" + ".join(f"{sizes[kind]:,}" for kind in KINDS) if sizes else "")
            if any(cells):
                rows.append((model, dtype, *cells))
    return table(("model", "dtype", "0bac56ab", *FORMS), rows)


if __name__ == "__main__":
    sys.exit(main())
