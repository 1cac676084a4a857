# SPDX-License-Identifier: Apache-2.0
"""The SoC presets: they load, say where every value comes from, match the figures cited, and run."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from arch.blocks.soc import Soc
from arch.spec.program import Place
from arch.spec.soc_config import soc_from_parameters
from arch.spec.timing import SocTiming
from configs import parameters
from configs.library import list_names
from configs.parameters import PROFILES, ParameterTree
from pulptrain.__main__ import run
from pulptrain.inputs.settings import with_options
from pulptrain.show.listings import size_text
from shared.printed import printed, refused
from shared.soc_fixture import FixedCostModel, Script, elementwise, read, team, write

NAMES = list_names("soc")
KIB = 1024
MHZ = 1_000_000

FIGURES = {
    "pulp-open": (8, 4, "dynamic", 1, 64, 16, 1536, 50, 50, 50),
    "pulp-open-private": (8, 8, "private", 1, 64, 16, 1536, 50, 50, 50),
    "vega": (8, 4, "dynamic", 1, 128, 16, 1600, 450, 450, 150),
    "gap9": (8, 4, "dynamic", 1, 128, 16, 1536, 370, 370, 370),
    "siracusa": (8, 4, "dynamic", 1, 256, 16, 2048, 360, 360, 150),
    "mr-wolf": (8, 2, "dynamic", 1, 64, 16, 512, 350, 450, 100),
    "pulp-cluster-rtl": (8, 8, "private", 8, 64, 16, 1536, 50, 50, 50),
    "pulp-cluster-2025": (8, 8, "private", 0, 128, 16, 1000, 50, 50, 50),
    "pulpissimo": (1, 1, "private", 1, 512, 4, 512, 50, 50, 50),
    "stm32l4": (1, 1, "private", 1, 320, 1, 320, 80, 80, 80),
}
"""Cores, FPUs, their mapping (rtl), div/sqrt units, L1 KiB, banks, L2 KiB, cluster/SoC/peripheral MHz."""

RECALLED = {
    "vega": {"l1.banks", "clock.peripheral_hz", "fpu.latency_cycles"},
    "gap9": {"fpu.count", "l1.banks", "dma.outstanding_bursts"},
    "siracusa": {"fpu.count", "clock.soc_hz", "clock.peripheral_hz"},
    "mr-wolf": {"fpu.count", "l1.banks", "clock.cluster_hz", "clock.soc_hz"},
    "pulp-cluster-2025": {"fpu.divsqrt_latency_cycles", "l2.size_bytes", "clock.cluster_hz"},
    "pulpissimo": {"clock.cluster_hz", "fpu.latency_cycles"},
    "stm32l4": {"core.branch_taken_stall_cycles", "icache.private_refill_stall_cycles"},
}
"""Figures that no source gives although they matter to results."""

SINGLE = ("pulpissimo", "stm32l4")
"""Presets without cluster and DMA."""


@cache
def load_parameters(name: str, profile: str) -> ParameterTree:
    return parameters.load_parameters(name, profile)


@cache
def load_soc(name: str, profile: str = "rtl") -> SocTiming:
    return soc_from_parameters(load_parameters(name, profile))


def test_every_preset_has_its_figures_here() -> None:
    assert set(NAMES) == set(FIGURES)


@pytest.mark.parametrize("name", NAMES)
def test_key_figures(name: str) -> None:
    soc = load_soc(name, "rtl")
    assert FIGURES[name] == (
        *(soc.cores, soc.fpu.count, soc.fpu.mapping, soc.fpu.divsqrt_count),
        *(soc.l1.size_bytes / KIB, soc.l1.banks, soc.l2.size_bytes / KIB),
        *(soc.clock.cluster_hz / MHZ, soc.clock.soc_hz / MHZ, soc.clock.peripheral_hz / MHZ),
    )
    # Sizes and clocks are those of the chip, whichever simulator one compares with.
    gvsoc = load_soc(name, "gvsoc")
    assert (gvsoc.cores, gvsoc.fpu.count, gvsoc.clock) == (soc.cores, soc.fpu.count, soc.clock)
    assert (gvsoc.l1.size_bytes, gvsoc.l1.banks) == (soc.l1.size_bytes, soc.l1.banks)
    assert (gvsoc.l2.size_bytes, gvsoc.l3.size_bytes) == (soc.l2.size_bytes, soc.l3.size_bytes)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("name", NAMES)
def test_every_value_says_what_it_is_and_where_it_comes_from(name: str, profile: str) -> None:
    tree = load_parameters(name, profile)
    assert len(tree.description) > 20
    for parameter in tree.values():
        assert len(parameter.description) > 10, parameter
        assert len(parameter.source) > 10, parameter
        # Words by which a source admits that it does not give the value.
        if any(word in parameter.source for word in ("recalled", "as pulp-open;", "not found", "kept as in")):
            assert parameter.assumed, parameter
    assert {parameter.path for parameter in tree.assumed} < set(tree)


@pytest.mark.parametrize("name", sorted(RECALLED))
def test_what_no_source_gives_is_assumed(name: str) -> None:
    assumed = {parameter.path for parameter in load_parameters(name, "rtl").assumed}
    assert RECALLED[name] <= assumed


def test_a_preset_says_more_than_its_base_only_with_a_source_of_its_own() -> None:
    for name in NAMES:
        for profile in PROFILES:
            base = load_parameters("pulp-open", profile)
            for path, parameter in load_parameters(name, profile).items():
                if (parameter.value, parameter.assumed) != (base[path].value, base[path].assumed):
                    assert parameter.source != base[path].source, (name, path)


def test_nothing_of_the_arm_core_comes_from_a_source_about_pulp() -> None:
    """A parameter that is new in pulp-open.yaml needs a source in pulpissimo.yaml or stm32l4.yaml as well.

    PULPissimo shares the pipeline with pulp-open, and nothing else.
    """
    base = load_parameters("pulp-open", "rtl")
    inherited = {
        name: {
            path for path, each in load_parameters(name, "rtl").items() if each.source == base[path].source
        }
        for name in SINGLE
    }
    assert inherited["stm32l4"] == set()
    assert {path.split(".")[0] for path in inherited["pulpissimo"]} <= {"core", "fpu"}


def test_published_rates_fit() -> None:
    """Rates that follow from several values of a preset, against the published ones."""
    wolf = load_soc("mr-wolf")
    # 500 M fused multiply-adds per second (JSSC 2019) are too many for one FPU, and possible with its two.
    assert wolf.clock.cluster_hz < 500e6 <= wolf.fpu.count * wolf.clock.cluster_hz
    io_bits = 8 * wolf.l3.bytes_per_peripheral_cycle * wolf.clock.peripheral_hz
    assert io_bits == 1.6e9
    vega = load_soc("vega")
    assert vega.l3.bytes_per_peripheral_cycle * vega.clock.peripheral_hz == 300e6
    # One link of 8 B per cycle and direction, as DORY plans for GAP9.
    gap9 = load_soc("gap9")
    assert (gap9.l2.link_bytes_per_cycle, gap9.l2.core_access_cycles) == (8, 10)


def test_the_profiles_of_a_core_without_a_simulator_are_equal() -> None:
    rtl, gvsoc = (dict(load_parameters("stm32l4", profile)) for profile in PROFILES)
    assert {path: each.value for path, each in rtl.items()} == {
        path: each.value for path, each in gvsoc.items()
    }


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("name", NAMES)
def test_a_program_runs_on_1_to_9_cores(name: str, profile: str) -> None:
    """Load 256 floats, double them on all cores, store them: right bytes, and busy + stalls = makespan."""
    source, buffer, result = (Place(level, at, (256,)) for level, at in (("l2", 0), ("l1", 0), ("l2", 4096)))
    values = np.arange(256, dtype=np.float32)
    for cores in range(1, 10):
        timing = with_options(load_soc(name, profile), cores=cores)
        if timing.fpu.mapping == "private":
            assert timing.fpu.count == cores
        soc = Soc(timing, FixedCostModel({"double": 1000}))
        soc.load(source, values)
        script = Script()
        script.wait(script.start(read(0, 0, 1024)))
        script.compute(team("double", cores), effect=elementwise(buffer, buffer, lambda array: 2 * array))
        script.wait(script.start(write(0, 4096, 1024)))
        cycles = soc.run(script.program()).cycles
        assert np.array_equal(soc.fetch(result), 2 * values)
        if name in SINGLE:
            # Two copies that do not exist on the chip cost a cycle each; nothing else is added.
            assert cycles == 1000 + 2
        else:
            assert cycles > 1000 + 2 * 1024 // timing.dma.l1_bytes_per_cycle + timing.fc.offload_cycles


def kernel_cycles(capsys: pytest.CaptureFixture[str], *options: str) -> int:
    result = printed(capsys, "kernel", "mm", "--n", "8", "--k", "12", "--m", "8", *options)
    stalls = sum(sum(core["stalls"].values()) for core in result["per_core"])
    assert result["instructions"] + stalls == sum(core["cycles"] for core in result["per_core"])
    return int(result["cycles"])


@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_is_priced_on_every_preset(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The core of every preset runs the same code in the same cycles but for the Arm core and its FPU.

    PULPissimo has no instruction cache to wait for.
    """
    reference = kernel_cycles(capsys, "--soc", "pulp-open", "--cores", "1")
    alone = kernel_cycles(capsys, "--soc", name, "--cores", "1")
    assert kernel_cycles(capsys, "--soc", name) <= alone
    assert alone == reference or (name == "stm32l4" and alone > reference) or name == "pulpissimo"
    assert name != "pulpissimo" or alone < reference


def test_a_network_trains_in_place_on_one_core(capsys: pytest.CaptureFixture[str]) -> None:
    """Copies that do not exist on the chip take less than 0.1 % of an iteration."""
    summary = printed(capsys, "run", "digits-cnn", "--soc", "pulpissimo", "--buffering", "single")
    moved = sum(op["stalls"].get(word, 0) for op in summary["ops"] for word in ("dma_wait", "dma_program"))
    assert moved < summary["cycles"] / 1000
    assert all(
        op["stalls"].get(word, 0) == 0 for op in summary["ops"] for word in ("fork", "barrier", "offload")
    )


@pytest.mark.parametrize("profile", PROFILES)
def test_list_socs_for_machines(profile: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = printed(capsys, "list", "socs", "--timing", profile)["socs"]
    assert [row["name"] for row in rows] == list(NAMES)
    for row in rows:
        tree, soc = load_parameters(row["name"], profile), load_soc(row["name"], profile)
        assert row["assumed"] == [parameter.path for parameter in tree.assumed]
        assert row["parameters"] == len(tree)
        assert (row["cores"], row["fpu_count"], row["fpu_mapping"]) == (
            *(soc.cores, soc.fpu.count, soc.fpu.mapping),
        )
        assert (row["l1_size_bytes"], row["l1_banks"], row["l2_size_bytes"], row["l3_size_bytes"]) == (
            *(soc.l1.size_bytes, soc.l1.banks, soc.l2.size_bytes, soc.l3.size_bytes),
        )
        assert (row["cluster_hz"], row["soc_hz"], row["peripheral_hz"]) == (
            *(soc.clock.cluster_hz, soc.clock.soc_hz, soc.clock.peripheral_hz),
        )


def test_list_socs_for_people(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # pytest sets it for its workers
    assert run(["list", "socs"]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(NAMES)
    titles = ["name", "cores", "FPUs", "div", "L1", "L2", "L3", "MHz", "codegen", "assumed", "description"]
    assert header.split() == titles
    shown = {line.split()[0]: " ".join(line.split()[1:]) for line in lines}
    tree = load_parameters("mr-wolf", "rtl")
    figures = "8 2 dynamic 1 64 KiB x16 512 KiB 8 MiB 350/450/100 clang-xpulp"
    assumed = f"{len(tree.assumed)}/{len(tree)}"
    assert shown["mr-wolf"] == f"{figures} {assumed} {tree.description}"
    assert shown["stm32l4"].startswith("1 1 private 1 320 KiB x1 320 KiB none 80/80/80 cortex-m4f ")


def test_list_socs_refuses_an_unknown_profile(capsys: pytest.CaptureFixture[str]) -> None:
    assert "rtl" in refused(capsys, "list", "socs", "--timing", "rlt")


def test_descriptions_follow_in_a_table_of_their_own_on_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["list", "socs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines) <= 80
    figures, descriptions = lines[: lines.index("")], lines[lines.index("") + 1 :]
    assert "description" not in figures[0]
    assert descriptions[0].split() == ["name", "description"]
    for table in (figures, descriptions):
        assert {line.split()[0] for line in table[1:] if not line.startswith(" ")} == set(NAMES)


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        *((1, "none"), (16, "16 B"), (1024, "1 KiB"), (65532, "65532 B"), (64 * KIB, "64 KiB")),
        *((1000 * KIB, "1000 KiB"), (1536 * KIB, "1.5 MiB"), (1600 * KIB, "1600 KiB"), (2048 * KIB, "2 MiB")),
    ],
)
def test_sizes_are_shown_exactly(size_bytes: int, text: str) -> None:
    assert size_text(size_bytes) == text
