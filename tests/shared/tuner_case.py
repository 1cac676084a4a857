# SPDX-License-Identifier: Apache-2.0
"""A training graph and a SoC small enough to tune in a second: no contention, so kernels are priced fast."""

from __future__ import annotations

from typing import Any

from arch.spec.soc_config import load_soc
from arch.spec.timing import SocTiming
from configs.model_file import load_model, read_model
from configs.yaml_file import parse_yaml
from pulptrain.inputs.settings import with_options
from scheduler.options import ScheduleOptions
from scheduler.search.workers import Workers
from scheduler.tuner.iteration_tuning import Tuning, tune_iteration
from scheduler.tuner.op_tuner import OpTuner, RepeatedGraphs
from scheduler.tuner.search_space import Question, SpaceRules
from scheduler.tuner.task import task_of
from trainlib.ir.graph import TrainingGraph
from trainlib.training.phases import build_training_graph

SMALL_MODEL = """
name: small
description: A convolution
source: made for tests
input: {shape: [2, 6, 6]}
dataset: random
loss: mse
optimizer: {name: sgd, learning_rate: 0.1}
layers:
  - {name: conv, type: conv2d, out_channels: 4, kernel: 3}
  - {name: relu, type: relu}
"""

RULES = SpaceRules(cuts=2)


def small_graph() -> TrainingGraph:
    return build_training_graph(read_model(parse_yaml(SMALL_MODEL, "small.yaml")))


def simple_soc(l1: str = "16KiB") -> SocTiming:
    """Two cores, an FPU each, no bank conflicts."""
    return with_options(load_soc("pulp-open"), cores=2, l1=l1, fpus="private", bank_conflicts=False)


def small_case() -> tuple[TrainingGraph, SocTiming, ScheduleOptions, SpaceRules]:
    return small_graph(), simple_soc(), ScheduleOptions(), RULES


def tune(
    programs: RepeatedGraphs,
    timing: SocTiming,
    options: ScheduleOptions,
    workers: Workers,
    *,
    version: str = "",
    **search: Any,
) -> Tuning:
    """Every op searched, what `search` says to the `OpTuner`, then the iteration."""
    tuner = OpTuner(timing, options.codegen, workers, **search)
    tuner.search([programs])
    return tune_iteration(programs, options, tuner, version=version)


def question(op: str, *, model: str | None = None, rules: SpaceRules = RULES, l1: str = "16KiB") -> Question:
    """The question of one op of the small model, or of an installed one."""
    graph = small_graph() if model is None else build_training_graph(load_model(model))
    found = next(item for item in graph.ops if item.name == op)
    return Question(task_of(graph, found), simple_soc(l1), "clang-xpulp", rules)
