# SPDX-License-Identifier: Apache-2.0
"""`homes` of a model file: where tensors lie without an option."""

from dataclasses import replace

import pytest

from configs.errors import ConfigError
from configs.model_file import load_model
from pulptrain.given.settings import Settings
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
    with pytest.raises(ConfigError, match="'homes' names nothing"):
        prepare(replace(load_model("simple-mlp"), homes={"nothing.out": "l3"}), Settings())
