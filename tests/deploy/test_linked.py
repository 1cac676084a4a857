# SPDX-License-Identifier: Apache-2.0
"""The map file of a linked export: where its functions lie, and files that are none of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from arch.spec.program import Compute
from deploy.project.linked import CACHE_BYTES, functions_of_map, linked_code
from pulptrain.__main__ import run
from pulptrain.inputs.settings import Settings
from scheduler.programs.program_code import codes_of, platform_functions
from scheduler.tiles.code_sizes import shipped_sizes
from shared.kept_plans import prepare
from shared.printed import printed, refused

GNU = """
Discarded input sections

 .text.unused   0x00000000       0x1c build/main.o

Linker script and memory map

 .text.pt_fork  0x1c000100       0x48 build/pulp_cluster.o
 *fill*         0x1c000148        0x8
 .text.conv_direct_fw
                0x1c000150      0x386 build/kernels/conv_direct.o
                0x1c000150                conv_direct_fw
 .rodata        0x1c001000       0x20 build/network.o
"""
LLD = """
     VMA      LMA     Size Align Out     In      Symbol
1c000080 1c000080     3448     2 .text
1c000100 1c000100       48     2         build/pulp_cluster.o:(.text.pt_fork)
1c000100 1c000100       48     1                 pt_fork
1c000150 1c000150      386     2         build/kernels/conv_direct.o:(.text.conv_direct_fw)
1c001000 1c001000       20     4         build/network.o:(.rodata)
"""
MODEL = "simple-mlp"
SETTINGS = Settings(timing="rtl", codegen="clang-rv32", form="readable")


@pytest.mark.parametrize("text", [GNU, LLD])
def test_both_linkers_say_the_same(text: str) -> None:
    found = functions_of_map(text)
    assert found == {"pt_fork": (0x1C000100, 0x48), "conv_direct_fw": (0x1C000150, 0x386)}


def lines(*functions: str) -> str:
    """A map of functions of 256 bytes, one behind the other."""
    at = [f"1c00{number:02x}00" for number in range(len(functions))]
    return "\n".join(
        f"{address} {address} 100 2 o:(.text.{name})" for address, name in zip(at, functions, strict=True)
    )


def functions(model: str = MODEL) -> list[str]:
    """Those of the export of a model."""
    schedule = prepare(model, SETTINGS).schedule
    ops = [op.name.replace(".", "_") for op in schedule.graph.ops]
    platform = ["pt_fork", "pt_dma_wait", "pt_dma_in", "pt_dma_out", "pt_dma_in_2d", "pt_dma_out_2d"]
    return [
        *ops,
        *platform,
        "mm",
        "mm_M",
        "vect_sum",
        "relu_fw",
        "relu_bw",
        "cross_entropy_fw",
        "cross_entropy_bw",
        "sgd",
    ]


def test_every_piece_lies_in_its_function() -> None:
    schedule = prepare(MODEL, SETTINGS).schedule
    text = lines(*functions())
    (code,) = codes_of(
        [schedule.program.actions], shipped_sizes(), linked_code(text, "network.map", [schedule])
    )
    lowest = min(address for address, _ in functions_of_map(text).values())
    near_zero = lowest - lowest % CACHE_BYTES
    places = {name: (at - near_zero, size) for name, (at, size) in functions_of_map(text).items()}
    ops = [op.name.replace(".", "_") for op in schedule.graph.ops]
    for action, pieces in zip(schedule.program.actions, code.pieces, strict=True):
        inside = [
            name
            for piece in pieces
            for name, (address, size_bytes) in places.items()
            if address <= piece.address and piece.address + piece.size_bytes <= address + size_bytes
        ]
        assert len(inside) == len(pieces)
        assert not pieces or inside[0] in ops
        if isinstance(action, Compute):
            assert inside[1:] == [*(["pt_fork"] if action.fork else []), action.team.kernel]


def test_a_run_takes_size_and_places_from_the_map(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "network.map"
    path.write_text(lines(*functions()))
    options = [
        "run",
        MODEL,
        "--no-functional",
        "--timing",
        "rtl",
        "--codegen",
        "clang-rv32",
        "--icache",
        "cold",
        "--form",
        "readable",
    ]
    linked = printed(capsys, *options, "--code-map", str(path))
    (command,) = linked["commands"].values()
    assert command.startswith("pulptrain run ")
    assert f"--code-map {path}" in command, "and no command that would lay out other code"
    assert run([*options, "--code-map", str(path)]) == 0
    report = " ".join(capsys.readouterr().out.split())
    assert report.count("--resident auto") == report.count("without --code-map") == 1
    ruled = printed(capsys, *options)
    assert linked["code_bytes"] % 256 == 0
    assert linked["code_bytes"] != ruled["code_bytes"]
    assert (
        linked["peak_bytes"]["l2"] - ruled["peak_bytes"]["l2"] == linked["code_bytes"] - ruled["code_bytes"]
    )
    assert linked["cycles"] != ruled["cycles"]


def test_a_kernel_that_the_master_runs_alone_is_not_forked() -> None:
    computes = [one for one in prepare(MODEL, SETTINGS).schedule.program.actions if isinstance(one, Compute)]
    for fork in (True, False):
        (called,) = {tuple(platform_functions(one)) for one in computes if one.fork is fork}
        assert called == (("pt_fork",) if fork else ())


@pytest.mark.parametrize(
    ("text", "options", "hint"),
    [
        ("nothing of the kind", ["--icache", "cold"], "not the linker map of an exported program"),
        (
            lines("conv1_FW", "mm", "pt_fork"),
            ["--icache", "cold", "--form", "readable"],
            "the linker map is of another program: it lacks fc1_FW, ",
        ),
        (lines("conv1_FW"), ["--icache", "warm"], "--icache steady"),
        (None, ["--icache", "cold"], "the file does not exist"),
    ],
)
def test_other_files_are_refused(
    text: str | None, options: list[str], hint: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "network.map"
    if text is not None:
        path.write_text(text)
    assert hint in refused(capsys, "run", MODEL, "--no-functional", *options, "--code-map", str(path))


def test_it_is_an_option_of_a_run_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["what-if", MODEL, "--code-map", "network.map"]) == 2
    assert "--code-map" in capsys.readouterr().err
