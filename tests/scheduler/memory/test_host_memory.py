# SPDX-License-Identifier: Apache-2.0
"""What a run takes of this computer's memory is said before it is taken, and is about right."""

from __future__ import annotations

import pytest

from arch.pricing.team_cost_model import TeamCostModel
from arch.spec.program import Compute, DmaStart, UdmaStart
from arch.spec.soc_config import load_soc
from configs.errors import InputError
from configs.limits import HOST_MEMORY_VARIABLE
from pulptrain.__main__ import run
from pulptrain.inputs.settings import Settings, with_options
from pulptrain.running.session import prepare, run_model
from scheduler.memory import host_memory
from scheduler.memory.host_memory import TIMING_ONLY, UNTRACED, HostUse, ProgramSize, host_memory_parts
from scheduler.options import ScheduleOptions
from scheduler.planned import Schedule
from scheduler.schedule import ProgramBuilder, build_schedule
from scheduler.table_form import is_of_tables
from scheduler.tiles.tiling import Tiler
from tools.measure_host_memory import measure
from trainlib.primitives.definition import DrawnInput
from trainlib.training.phases import build_layer_graph

MIB = 1 << 20


def counted(schedule: Schedule) -> ProgramSize:
    """Without tables, which are few: a command and two actions for some ops."""
    actions = [action for action in schedule.program.actions if not is_of_tables(action)]
    return ProgramSize(
        len(actions),
        sum(len(action.commands) for action in actions if isinstance(action, DmaStart)),
        sum(len(action.commands) for action in actions if isinstance(action, UdmaStart)),
        sum(isinstance(action, Compute) for action in actions),
    )


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("digits-cnn", Settings(l1="24KiB")),
        (
            "digits-cnn",
            Settings(
                overrides=(
                    "dma.max_command_1d_bytes=128",
                    "dma.max_command_2d_bytes=128",
                )
            ),
        ),
        ("digits-cnn", Settings(l2="20KiB", icache="warm")),
    ],
)
def test_what_a_program_consists_of_is_known_before_there_is_one(model: str, settings: Settings) -> None:
    schedule = prepare(model, settings).schedule
    program, size = counted(schedule), schedule.size
    assert size.kernels == program.kernels
    assert size.commands == program.commands
    # Copies of whole tensors between L2 and L3 are not counted: one command and two actions each.
    copies = sum(stay.loads + (stay.written_op >= 0) for stay in schedule.plan.stays)
    assert size.offchip_commands == program.offchip_commands - copies
    assert program.actions <= size.actions + 2 * copies <= 1.05 * program.actions


def test_no_action_is_made_of_a_program_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(*_: object, **__: object) -> None:
        raise AssertionError("an action")

    monkeypatch.setattr(ProgramBuilder, "add_op", made)
    monkeypatch.setattr(host_memory, "ACTION_BYTES", 16 * MIB)  # as if there were thousands more
    with pytest.raises(
        InputError, match=r"needs about .* events: .* MiB, .* DMA commands: .*, but the limit is 1\.0 GiB"
    ) as no:
        run_model("digits-cnn")
    assert f"{HOST_MEMORY_VARIABLE}=" in str(no.value.cure)
    assert "--l1" in str(no.value.cure)


@pytest.mark.parametrize("use", [TIMING_ONLY, UNTRACED])
def test_a_convolution_of_hundreds_of_thousands_of_tiles_is_refused_before_one_is_built(
    use: HostUse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Untraced the first op alone could be held, and takes half a minute to build."""

    def built(*_: object, **__: object) -> None:
        raise AssertionError("a tiling")

    options = {"out_channels": 16, "kernel": 3, "padding": 1}
    graph = build_layer_graph("conv2d", options, [DrawnInput((16, 256, 256))])
    timing = with_options(load_soc("pulp-open", "rtl"), l1="12KiB", l2="64MiB")
    monkeypatch.setenv(HOST_MEMORY_VARIABLE, "1GiB")
    monkeypatch.setattr(Tiler, "build", built)
    with pytest.raises(InputError, match=r"needs about .* kernel calls: .*, but the limit is 1\.0 GiB"):
        build_schedule(graph, timing, TeamCostModel(timing), ScheduleOptions(), use=use)


def test_runs_without_numbers_are_not_charged_for_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(HOST_MEMORY_VARIABLE, "300MiB")
    timing_only = ["run", "simple-mlp", "--no-cache", "-q"]
    assert run([*timing_only, "--no-functional"]) == 0
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pulptrain.running.session.torch_available", lambda: True)
        assert run(timing_only) == 2
    said = capsys.readouterr().err
    assert "PyTorch: 288.0 MiB" in said
    assert "the limit is 300.0 MiB" in said
    assert "run --no-functional (no values of tensors: " in said


def test_every_part_is_charged_once() -> None:
    prepared = prepare("simple-mlp", Settings())
    graph, timing, size = prepared.schedule.graph, prepared.timing, prepared.schedule.size
    timing_only = host_memory_parts(graph, timing, HostUse(), size)
    all_of_it = host_memory_parts(graph, timing, HostUse(numbers=True, torch=True, beside=size), size)
    assert set(all_of_it) - set(timing_only) > {"PyTorch"}
    assert all_of_it[f"{2 * size.actions:,} events"] == 2 * timing_only[f"{size.actions:,} events"]


def test_a_run_without_a_trace_is_not_charged_for_one() -> None:
    prepared = prepare("tutorial-cnn", Settings(), traced=False)
    graph, timing, size = prepared.schedule.graph, prepared.timing, prepared.schedule.size
    untraced, traced = (
        host_memory_parts(graph, timing, HostUse(traced=each), size) for each in (False, True)
    )
    assert untraced.keys() == traced.keys()
    for name, less in (("events", 0.5), ("DMA commands", 0.4), ("kernel calls", 0.2)):
        part = next(part for part in traced if part.endswith(name))
        assert untraced[part] < less * traced[part]


@pytest.mark.slow
@pytest.mark.needs_proc
def test_many_tiles_without_a_trace_need_what_they_are_said_to_need() -> None:
    """ResNet8 with an L1 of 12 KiB, of which a trace would take twice as much again."""
    measured = measure("many-tiles", "untraced")
    assert 0.8 <= measured.ratio <= 1.3, measured


@pytest.mark.slow
@pytest.mark.needs_torch
@pytest.mark.needs_proc
@pytest.mark.parametrize("form", ["untraced", "timing", "numbers", "torch"])
@pytest.mark.parametrize("case", ["cct", "large-tensors", "large-batch", "streamed"])
def test_the_estimate_is_about_what_is_taken(case: str, form: str) -> None:
    measured = measure(case, form)
    assert measured.peak_bytes < 400 * MIB or 0.8 <= measured.ratio <= 1.3, (case, form, measured)
