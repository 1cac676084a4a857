# SPDX-License-Identifier: Apache-2.0
"""An export on other machines than this computer: a platform file of the tests' own, RV32, PMSIS."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from configs.errors import InputError
from shared.exported import Exported, exported, made, written
from tools.deployed import sizes
from tools.deployed.rv32 import symbols_of
from traces.compared.log import read_log

HERE = Path(__file__).parent
PLATFORM = f"PLATFORM={HERE / 'one_core.c'}"
ITERATIONS = 2
"""Those of `exported`."""

RV32 = "-target riscv32-linux-musl -mcpu=generic_rv32+m+a+f+d+c -mabi=ilp32d -static"
MODEL = """
name: small
input: {shape: [1, 8, 8]}
loss: cross_entropy
optimizer: {name: adam, learning_rate: 0.01}
batch: 2
layers:
  - {name: conv, type: conv2d, out_channels: 4, kernel: 3, padding: 1}
  - {name: norm, type: batch_norm}
  - {name: act, type: relu}
  - {name: pool, type: max_pool2d, kernel: 2}
  - {name: flat, type: flatten}
  - {name: fc, type: linear, out_features: 5}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    model = tmp_path_factory.mktemp("machines") / "model.yaml"
    model.write_text(MODEL)
    return exported(str(model), l1=16 << 10)


@pytest.mark.needs_gcc
def test_one_core_without_an_operating_system(run: Exported, tmp_path: Path) -> None:
    folder = written(run.project(), tmp_path / "net")
    assert made(folder, ["TARGET=bare"]).returncode == 0
    ended = made(folder, ["TARGET=bare", PLATFORM])
    assert ended.returncode == 0, ended.stdout
    ops = [op.name for op in run.outcome.schedule.graph.ops]
    (tmp_path / "log.txt").write_text(ended.stdout)
    with pytest.raises(InputError, match="was measured in host ticks, not in cycles"):
        read_log(tmp_path / "log.txt")
    (tmp_path / "log.txt").write_text(ended.stdout.replace(" host ticks", ""))
    measured = read_log(tmp_path / "log.txt")
    assert [item.name for item in measured] == ops
    assert {len(item.samples) for item in measured} == {ITERATIONS}


@pytest.mark.needs_gcc
def test_code_and_buffers_are_held_against_the_l2_of_the_target(run: Exported, tmp_path: Path) -> None:
    folder = written(run.project(), tmp_path / "net")
    fits = made(folder, goal="size")
    buffers, code, l2, held = map(int, re.findall(r"\b\d+\b", fits.stdout))
    assert fits.returncode == 0
    summary = run.outcome.summary
    assert buffers == summary["peak_bytes"]["l2"] - summary["code_bytes"]
    assert l2 == run.outcome.timing.l2.size_bytes
    assert held == sum((folder / name).stat().st_size for name in ("data.bin", "expected.bin"))
    assert code > 1000
    header = (folder / "network.h").read_text()
    (folder / "network.h").write_text(re.sub(r"(OF_TARGET_BYTES) \d+", rf"\1 {buffers + code - 1}", header))
    assert made(folder, goal="size").returncode == 2


@pytest.mark.needs_rv32
def test_rv32_in_user_mode(run: Exported, tmp_path: Path) -> None:
    folder = written(run.project(), tmp_path / "net")
    compiler = f"CC={sys.executable} -m ziglang cc {RV32}"
    assert made(folder, ["TARGET=bare", PLATFORM, compiler], goal="all").returncode == 0
    network = folder / "build/bare/network"
    ended = subprocess.run(
        ["qemu-riscv32", network], capture_output=True, text=True, check=False, timeout=120
    )
    assert ended.returncode == 0, ended.stdout
    assert re.search(r"^0 of \d+ numbers and tensors wrong$", ended.stdout, re.MULTILINE)


@pytest.mark.needs_gcc
def test_a_team_of_another_size_computes_the_same(run: Exported, tmp_path: Path) -> None:
    folder = written(run.project(), tmp_path / "net")
    assert made(folder, ["CORES=3"]).returncode == 0


@pytest.mark.slow
@pytest.mark.needs_rv32
@pytest.mark.parametrize("way", ["fp32 readable", "bf16 tables"])
def test_all_targets_compile_without_a_warning_to_the_sizes_of_the_page(way: str, tmp_path: Path) -> None:
    sizes.export(tmp_path, "simple-mlp", *way.split())
    sizes.build(tmp_path)
    assert sizes.sizes_of(tmp_path) == json.loads(sizes.STORED.read_text())["simple-mlp"][way]


@pytest.mark.needs_rv32
def test_a_pulp_cluster_without_an_sdk_compiles_and_is_placed(run: Exported, tmp_path: Path) -> None:
    """Without a C library, and not executed. What is touched between kernels is in L1."""
    folder = written(run.project(), tmp_path / "net")
    compiler = f"CC={sys.executable} -m ziglang cc {RV32}"
    names = ["main", "network", "data", "binaries", "start", "pulp_cluster"]
    names += [f"kernels/{source.stem}" for source in (folder / "kernels").glob("*.c")]
    objects = [f"build/pulp-cluster/{name}.o" for name in names]
    ended = made(folder, ["TARGET=pulp-cluster", compiler, *objects[1:]], goal=objects[0])
    assert ended.returncode == 0, ended.stderr
    linker = [sys.executable, "-m", "ziglang", "ld.lld", "-T", "platform/pulp_cluster.ld", "-o", "network"]
    subprocess.run([*linker, "--unresolved-symbols=ignore-all", *objects], cwd=folder, check=True)
    network = (folder / "network").read_bytes()
    at = {name: address for name, address, _ in symbols_of(network)}
    assert int.from_bytes(network[24:28], "little") == at["pt_entry"] == 0x1C000080
    assert at["pt_master_stack"] == 0x10000000 + 2048
    in_l1 = ("under_way", "pt_team", "pt_l1", "pt_l2")
    assert all(0x10000000 + 2048 + 7 * 1024 <= at[name] < at["pt_l1_begin"] for name in in_l1)
    assert at["pt_l1_end"] == 0x10000000 + 0x10000
    assert all(0x1C000080 <= at[name] < at["pt_l2_begin"] for name in ("main", "mm", "data_bin", "pt_result"))


@pytest.mark.needs_rv32
def test_the_pmsis_platform_keeps_account_of_its_commands(run: Exported, tmp_path: Path) -> None:
    """Over functions of the tests, with two commands for up to nine transfers at a time."""
    folder = written(run.project(), tmp_path / "net")
    compiler = f"CC={sys.executable} -m ziglang cc {RV32}"
    platform = f"PLATFORM={HERE / 'pmsis/on_one_core.c'}"
    more = f"DEFINES=-I{HERE / 'pmsis'}"
    assert made(folder, ["TARGET=bare", platform, compiler, more], goal="all").returncode == 0
    network = folder / "build/bare/network"
    ended = subprocess.run(
        ["qemu-riscv32", network], capture_output=True, text=True, check=False, timeout=120
    )
    wrong = re.search(r"^(\d+) of \d+ numbers and tensors wrong$", ended.stdout, re.MULTILINE)
    assert wrong is not None, ended.stdout
    assert set(re.findall(r"^(.*): WRONG", ended.stdout, re.MULTILINE)) == set(), ended.stdout


@pytest.mark.needs_gcc
def test_the_pmsis_platform_compiles_against_prototypes(run: Exported, tmp_path: Path) -> None:
    folder = written(run.project(), tmp_path / "net")
    command = ["gcc", "-std=c99", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-DNETWORK_CORES=8"]
    folders = [f"-I{path}" for path in (HERE / "pmsis", folder, folder / "platform", folder / "kernels")]
    ended = subprocess.run(
        [*command, *folders, folder / "platform/pulp_sdk.c"], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr


@pytest.mark.needs_gcc
@pytest.mark.parametrize(("factor", "ends"), [(1, 0), (2, 2)], ids=["right", "wrong"])
def test_matmuls_of_an_installed_trainlib_are_called(
    factor: int, ends: int, run: Exported, tmp_path: Path
) -> None:
    """Against a stand-in of the tests': where that doubles its results, they are wrong."""
    trainlib = str(HERE / "trainlib")
    folder = written(run.project(trainlib=trainlib), tmp_path / "net")
    assert made(folder).returncode == 0, "ours, where none is linked"
    ended = made(folder, ["TARGET=bare", f"TRAINLIB={trainlib}", f"DEFINES=-DFACTOR={factor}"])
    assert ended.returncode == ends, ended.stdout + ended.stderr
