# SPDX-License-Identifier: Apache-2.0
"""Reports of what does not fit: every saving is what planning the changed model again gives."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import pytest

import pulptrain as pt
from configs.errors import DoesNotFitError, Lever
from configs.model_file import load_model
from configs.values import replace
from pulptrain.__main__ import run
from pulptrain.inputs.settings import Settings, schedule_options, soc_timing, with_options
from pulptrain.running.session import prepare
from scheduler.levers import MAX_LEVERS
from scheduler.memory.memory_plan import least_l2_bytes, plan_memory
from scheduler.schedule import streamer_of
from trainlib.training.phases import build_training_graph

PINNED = ("fc.weight=l2", "fc.weight.grad=l2")
"""2 x 23040 B that no op can stream; beside them conv2.UPD needs a slot of 36 B for each of its operands."""


@cache  # two tests ask the same
def refused(model: str | Path, settings: Settings) -> DoesNotFitError:
    with pytest.raises(DoesNotFitError) as raised:
        prepare(str(model), replace(settings, icache="warm"))  # of tensors alone
    return raised.value


def levers(error: DoesNotFitError) -> dict[str, Lever]:
    return {lever.name: lever for lever in error.levers}


def test_the_report_names_level_gap_contributors_with_lives_and_levers() -> None:
    error = refused("digits-cnn", Settings(l2="40KiB", homes=PINNED))
    assert (error.level, error.required_bytes, error.available_bytes) == ("l2", 46188, 40960)
    assert error.missing_bytes == 5228
    text = str(error)
    assert "46188 B required, 40960 B available, 5228 B missing" in text
    assert "23040 B  fc.weight  [conv1.FW to the end]" in text
    assert "72 B  buffers for pieces of conv2.weight  [conv2.UPD]" in text
    assert "--dtype bf16  (then it fits)" in text
    assert [lever.saved_bytes for lever in error.levers] == sorted(
        (lever.saved_bytes for lever in error.levers), reverse=True
    )


def test_each_saving_is_that_of_the_changed_model() -> None:
    settings = Settings(l2="40KiB", homes=PINNED)
    found = levers(refused("digits-cnn", settings))
    spec, timing = load_model("digits-cnn"), soc_timing(settings)
    fc = next(layer for layer in spec.layers if layer.name == "fc")
    rest = tuple(layer for layer in spec.layers if layer.name != "fc")
    changed = {
        "16-bit numbers": replace(spec, dtype="bf16"),
        "last layer only": replace(spec, train="last"),
        "update half of fc": replace(spec, layers=(*rest, replace(fc, update_channels=(0, 5)))),
    }
    assert set(found) == set(changed)
    for name, model in changed.items():
        graph, options = build_training_graph(model), schedule_options(settings)
        streamer = streamer_of(graph, timing, options)
        needed = least_l2_bytes(graph, timing, options.memory, streamer)
        assert found[name].required_bytes == needed
        assert found[name].saved_bytes == 46188 - needed
        # "Then it fits" is checked the hard way: it fits, and one word less than needed does not.
        assert found[name].fits == (needed <= timing.l2.size_bytes)
        plan_memory(graph, with_options(timing, l2=needed), options.memory, streamer)
        with pytest.raises(DoesNotFitError):
            plan_memory(graph, with_options(timing, l2=needed - 4), options.memory, streamer)


def test_without_l3_recomputation_saves_what_it_no_longer_keeps() -> None:
    error = refused("resnet8", Settings(icache="warm", l2="256KiB", l3="0"))
    found = levers(error)
    assert found["recompute conv1"].saved_bytes == 65536  # conv1.out, [16, 32, 32] in fp32
    assert found["tensors in L3"].how == "--l3 8MiB"
    assert found["tensors in L3"].fits
    assert len(error.levers) <= MAX_LEVERS


def test_a_smaller_batch_and_an_optimizer_without_states_are_tried(tmp_path: Path) -> None:
    model = tmp_path / "wide.yaml"
    model.write_text(
        "name: wide\ndescription: test\nsource: test\ninput: {shape: [64]}\ndataset: random\nloss: mse\n"
        "optimizer: {name: adam, learning_rate: 0.01}\nbatch: 8\n"
        "layers:\n  - {name: fc1, type: linear, out_features: 64}\n  - {name: relu1, type: relu}\n"
        "  - {name: fc2, type: linear, out_features: 64}\n"
    )
    found = levers(refused(model, Settings(l2="40KiB", l3="0")))
    # Two moments of two weights and two biases less.
    assert found["optimizer without states"].saved_bytes >= 2 * 2 * 64 * 64 * 4
    assert found["batch of 1"].saved_bytes > found["batch of 4"].saved_bytes > 0


def test_l1_levers_are_planned_again_too() -> None:
    error = refused("tutorial-cnn", Settings(l1="2148B", cores=1))
    found = levers(error)
    assert error.level == "l1"
    # One slot less of every moved operand.
    doubled = [item for item in error.contributors if "2 x" in item.name]
    assert found["single buffering"].saved_bytes == sum(item.size_bytes // 2 for item in doubled)
    assert found["16-bit numbers"].saved_bytes > 0
    one = next(lever for name, lever in found.items() if name.startswith("one buffer for "))
    assert one.saved_bytes == max(item.size_bytes // 2 for item in doubled)
    # What is said of the change is what asking for it gives.
    again = refused("tutorial-cnn", Settings(l1="2148B", cores=1, buffering=one.how.split()[1]))
    assert (again.where, again.required_bytes) == (error.where, one.required_bytes)


def test_a_tile_asked_for_is_changed_as_it_is() -> None:
    """The levers of a tile that was fixed keep its sizes: single buffering saves one slot of each operand."""
    error = refused("tutorial-cnn", Settings(l1="16KiB", tiles=("conv1.FW=co:8",)))
    doubled = [item for item in error.contributors if "2 x" in item.name]
    saved_bytes = sum(item.size_bytes // 2 for item in doubled)
    lever = levers(error).get("single buffering")
    assert (lever.saved_bytes if lever else 0) == saved_bytes


def test_whole_ops_can_be_cut() -> None:
    error = refused("tutorial-cnn", Settings(l1="16KiB", buffering="none"))
    assert levers(error)["tiles instead of whole ops"].fits
    prepare("tutorial-cnn", Settings(l1="16KiB", buffering="single"))


def test_json_holds_the_whole_report_and_the_exit_code_is_3(capsys: pytest.CaptureFixture[str]) -> None:
    pinned = [word for home in PINNED for word in ("--home", home)]
    assert run(["run", "digits-cnn", "--icache", "warm", "--l2", "40KiB", *pinned, "--json"]) == 3
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert report["level"] == "l2"
    assert report["missing_bytes"] == report["required_bytes"] - report["available_bytes"] == 5228
    assert report["contributors"][0]["size_bytes"] == 23040
    assert {"name", "how", "required_bytes", "saved_bytes", "fits"} == set(report["tried_changes"][0])
    assert "L2 is too small" in captured.err


def test_no_more_than_ten_contributors_are_listed() -> None:
    error = refused("resnet8", Settings(icache="warm", l2="256KiB", l3="0"))
    assert len(error.contributors) > 10
    assert len(error.largest) == 10
    assert len(re.findall(r"\[\S+ to [^]]+\]", str(error))) == 10


@pytest.mark.slow
def test_a_recurrent_layer_that_is_too_large_may_be_computed_step_by_step() -> None:
    def network(**more: bool) -> pt.Model:
        return pt.Sequential(
            pt.GRU(64, name="gru", **more),
            pt.Flatten(),
            pt.Linear(4),
            input=(12, 64),
            loss=pt.CrossEntropy(),
            optimizer=pt.SGD(0.1),
        )

    with pytest.raises(DoesNotFitError) as caught:
        pt.run(network(), functional=False)
    lever = levers(caught.value)["gru step by step"]
    assert lever.how == "stepwise: true of gru in the model file"
    assert lever.fits
    assert pt.run(network(stepwise=True), functional=False).cycles > 0
