# SPDX-License-Identifier: Apache-2.0
"""`homes`, `streams` and `slot_bytes` of a model file: where tensors lie, and what is streamed."""

from pathlib import Path
from typing import Any

import pytest

from configs.errors import ConfigError
from configs.model_file import load_model
from configs.model_text import model_text
from configs.values import replace
from pulptrain.inputs.settings import Settings
from pulptrain.running.session import prepare


def test_a_home_in_the_model_file_is_that_of_the_option_and_the_option_goes_first() -> None:
    spec = load_model("simple-mlp")
    name = next(iter(prepare(spec, Settings()).schedule.graph.weights))
    there = replace(spec, homes={"*": "l2", name: "l3"})
    plan = prepare(there, Settings()).schedule.plan
    assert plan.home(name).level == "l3"
    assert [item for item in plan.homes.values() if item.level == "l3"] == [plan.home(name)]
    assert prepare(there, Settings(homes=(f"{name}=l2",))).schedule.plan.home(name).level == "l2"


def test_a_home_of_no_tensor_is_refused_at_the_model() -> None:
    with pytest.raises(ConfigError, match="'homes' names 'nothing"):
        prepare(replace(load_model("simple-mlp"), homes={"nothing.out": "l3"}), Settings())


def test_what_a_model_streams_goes_through_so_many_bytes_and_its_home_is_l3(tmp_path: Path) -> None:
    spec = load_model("simple-mlp")
    name, op = "fc1.weight", "fc1.UPD"
    there = replace(spec, homes={"*": "l2"}, streams={op: (name,)}, slot_bytes={op: 300})
    (tmp_path / "there.yaml").write_text(model_text(there))
    again = load_model(str(tmp_path / "there.yaml"))
    assert (again.homes, again.streams, again.slot_bytes) == (there.homes, there.streams, there.slot_bytes)
    plan = prepare(again, Settings()).schedule.plan
    assert {plan.ops[number]: stream.storages for number, stream in plan.streams.items()} == {op: (name,)}
    assert plan.home(name).level == "l3"
    slots = [item for item in plan.allocations if item.level == "l2" and item.name.startswith(f"{op}:")]
    assert 0 < sum(item.size_bytes for item in slots) <= 300


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"streams": {"fc9.UPD": ("fc1.weight",)}}, "'streams' names 'fc9.UPD', which is not an op"),
        (
            {"streams": {"fc1.UPD": ("fc2.weight",)}},
            "'streams' names 'fc2.weight', which is not a tensor of fc1.UPD",
        ),
        ({"slot_bytes": {"fc9.UPD": 64}}, "'slot_bytes' names 'fc9.UPD', which is not an op"),
    ],
)
def test_what_it_streams_and_through_what_is_named_right(said: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        prepare(replace(load_model("simple-mlp"), **said), Settings())


def test_what_has_another_home_takes_over_no_bytes() -> None:
    """Else the input would be moved to L3 with the result."""
    spec = load_model("digits-cnn")
    taken = prepare(spec, Settings()).schedule.plan.in_place
    result, source = next(iter(taken.items()))
    there = replace(spec, homes={"*": "l2", result: "l3"})
    plan = prepare(there, Settings()).schedule.plan
    assert result not in plan.in_place
    assert (plan.home(result).level, plan.home(source).level) == ("l3", "l2")
