# SPDX-License-Identifier: Apache-2.0
"""The tuner: candidates, what they cost, bounds that never exceed it, and searches that agree."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from arch.blocks.soc import Soc
from arch.pricing.team_cost_model import TeamCostModel
from arch.spec.program import Compute
from arch.spec.soc_config import load_soc
from arch.spec.timing import SocTiming
from configs.errors import InputError
from configs.model_file import load_model, read_model
from configs.values import replace
from configs.yaml_file import parse_yaml
from scheduler.executor import Executor
from scheduler.options import ScheduleOptions
from scheduler.schedule import build_schedule
from scheduler.search.cache import ResultCache
from scheduler.search.rows import text_of, value_of
from scheduler.search.workers import open_workers
from scheduler.tuner.cut_programs import CutPrograms, Tiles, options_for
from scheduler.tuner.evaluate import CandidateSimulator, Evaluation
from scheduler.tuner.iteration_tuning import Tuning
from scheduler.tuner.lower_bound import LowerBound
from scheduler.tuner.search_space import Cut, Question, SpaceRules, candidates_of, list_cuts
from scheduler.tuner.strategies import StrategyOptions
from scheduler.tuner.task import task_of
from scheduler.tuner.tuned_schedule import with_choices
from shared.tuner_case import RULES, SMALL_MODEL, question, simple_soc, small_case, small_graph, tune
from traces.metrics import measure
from traces.recorder import Recorder
from trainlib.training.phases import build_training_graph
from trainlib.training.variants import own_variant, with_variants


def tight_soc() -> SocTiming:
    """L1 that holds little more than half of the weights, their gradients and the new weights."""
    timing = simple_soc()
    stacks_bytes = timing.l1.size_bytes - timing.l1_usable_bytes
    return replace(timing, l1=replace(timing.l1, size_bytes=stacks_bytes + 520))


def run_tune(
    strategy: str = "pruned",
    *,
    workers: int = 1,
    cache: ResultCache | None = None,
    rules: SpaceRules = RULES,
    **options: int,
) -> Tuning:
    graph, timing, base, _ = small_case()
    with open_workers(workers) as pool:
        return tune(
            [(graph, 1)],
            timing,
            base,
            pool,
            rules=rules,
            strategy=StrategyOptions(strategy, **options),
            cache=cache,
        )


def test_layers_of_equal_shape_are_one_task() -> None:
    graph = build_training_graph(load_model("tutorial-cnn"))
    digits = build_training_graph(load_model("digits-cnn"))
    tasks = {op.name: task_of(graph, op) for op in graph.ops}
    others = {op.name: task_of(digits, op) for op in digits.ops}
    # conv2 of digits-cnn and conv1 of tutorial-cnn are both 8x8x8 -> 16x6x6 with 3x3 filters.
    assert tasks["conv1.FW"] == others["conv2.FW"]
    assert tasks["fc.FW"].content != others["fc.FW"].content
    assert set(tasks["conv1.FW"].graph.tensors) == {"x", "w", "y"}


def test_cuts_are_divisors_or_the_largest_that_fit() -> None:
    asked = replace(question("conv.UPD", rules=SpaceRules(cuts=0)), timing=tight_soc())
    extents = asked.tiler("", 1).dims
    assert extents == {"d0": 4, "d1": 2}
    cuts = list_cuts(asked)
    assert len({(cut.sizes, cut.order, cut.depth) for cut in cuts}) == len(cuts)
    for cut in cuts:
        tiling = asked.tiler("", cut.depth).build(dict(cut.sizes), cut.order)
        assert (len(tiling.tiles), tiling.l1_bytes) == (cut.tiles, cut.l1_bytes)
        assert cut.l1_bytes <= asked.timing.l1_usable_bytes
    # Weights, gradients and new weights take 36 B per d0 and d1 each.
    single = {cut.sizes for cut in cuts if cut.depth == 1}
    sizes = {(dict(chosen)["d0"], dict(chosen)["d1"]) for chosen in single}
    assert sizes == {(4, 1), (2, 2), (1, 2), (2, 1), (1, 1)}
    assert {cut.depth for cut in cuts} == {1, 2}


def test_a_candidate_takes_the_cycles_its_op_takes_in_the_whole_iteration() -> None:
    """But for bursts cut where a tensor of the iteration, unlike one that is alone, crosses 256 B."""
    graph, timing, _, _ = small_case()
    timing = replace(timing, dma=replace(timing.dma, bursts_aligned=False))
    options = ScheduleOptions(buffer_depth=1, prefetch=False)
    cost_model = TeamCostModel(timing)
    schedule = build_schedule(graph, timing, cost_model, options)
    recorder = Recorder()
    result = Executor(schedule, timing, cost_model, recorder, functional=False).simulate()
    measured = {op.name: op.cycles for op in measure(recorder.slices, result.cycles).ops}
    machine = CandidateSimulator(timing)
    for item in schedule.ops:
        cut = Cut(item.tiling.sizes, item.tiling.order, 1, item.kernel)
        asked = Question(task_of(graph, item.op), timing, "clang-xpulp")
        assert machine.evaluate(asked, cut).cycles == measured[item.op.name]


@pytest.mark.parametrize("op", ["conv.FW", "conv.FW dma", "conv.WG", "conv.WG none", "conv.UPD"])
def test_a_kernel_put_into_the_program_of_a_cut_takes_what_its_own_schedule_takes(op: str) -> None:
    timing = load_soc("pulp-open")
    name, _, way = op.partition(" ")
    asked = replace(question(name), timing=timing)
    asked = asked.variants()[way] if way else asked
    cost_model, machine = TeamCostModel(timing), CandidateSimulator(timing)
    soc = Soc(timing, cost_model)
    for candidate in list(candidates_of(list_cuts(asked), asked.kernels()))[::13]:
        schedule = build_schedule(asked.task.graph, timing, cost_model, options_for(asked, candidate))
        cycles = soc.run(schedule.program, effects=False).cycles - machine.hand_over_cycles
        tiling = schedule.ops[0].tiling
        expected = Evaluation(cycles, len(tiling.tiles), tiling.l1_bytes)
        assert machine.evaluate(asked, candidate) == expected
        programs = CutPrograms(asked, candidate, cost_model, Tiles(asked))
        teams = programs.teams(candidate.kernel)
        assert teams is not None
        works = [action.team for action in schedule.program.actions if isinstance(action, Compute)]
        assert teams == works


@pytest.mark.parametrize("soc", ["simple", "pulp-open"])
def test_no_bound_exceeds_what_the_simulation_takes(soc: str) -> None:
    timing = simple_soc() if soc == "simple" else load_soc("pulp-open")
    machine, floor = CandidateSimulator(timing), LowerBound(timing, TeamCostModel(timing))
    questions = [replace(question(op.name), timing=timing) for op in small_graph().ops]
    for asked in [variant for each in questions for variant in each.variants().values()]:
        candidates = list(candidates_of(list_cuts(asked), asked.kernels()))[::19]
        bounds = machine.bounds(asked, candidates)
        for candidate, bound in zip(candidates, bounds, strict=True):
            evaluation = machine.evaluate(asked, candidate)
            if evaluation.refused:
                continue
            assert 0.4 * evaluation.cycles < bound <= evaluation.cycles
            schedule = build_schedule(
                asked.task.graph, timing, TeamCostModel(timing), options_for(asked, candidate)
            )
            assert bound == floor.cycles(schedule.program)


def best(tuning: Tuning) -> list[tuple[str, Cut, int]]:
    return [(item.op, item.best, item.best.cycles) for item in tuning.schedule.choices]


def second(tuning: Tuning) -> list[object]:
    return [item.runner_up for item in tuning.schedule.choices]


def test_pruned_finds_what_exhaustive_finds() -> None:
    pruned, oracle = run_tune("pruned"), run_tune("exhaustive")
    assert best(pruned) == best(oracle)
    assert second(pruned) == second(oracle)
    assert oracle.schedule.evaluated == oracle.schedule.candidates == pruned.schedule.candidates
    assert pruned.schedule.evaluated < pruned.schedule.candidates / 2
    assert pruned.schedule.cycles == oracle.schedule.cycles
    assert pruned.untuned_cycles is not None
    assert pruned.schedule.cycles is not None
    assert pruned.schedule.cycles < pruned.untuned_cycles
    ways = {choice.op: choice.best.variant for choice in oracle.schedule.choices}
    assert (ways["conv.FW"], ways["relu.FW"]) == ("dma", "")


def test_variants_are_spaces_of_their_own() -> None:
    """A variant is the question of a layer that says so itself, in the search and in the cache."""
    graph, others = (
        small_graph(),
        build_training_graph(
            read_model(parse_yaml(SMALL_MODEL.replace("kernel: 3", "kernel: 3, im2col: dma"), "other.yaml"))
        ),
    )
    for op, other in zip(graph.ops, others.ops, strict=True):
        asked = Question(task_of(graph, op), simple_soc(), "clang-xpulp", RULES)
        says_so = Question(task_of(others, other), simple_soc(), "clang-xpulp", RULES)
        variants = asked.variants()
        if op.primitive != "conv2d":
            assert variants == {"": asked}
            continue
        assert list(variants) == ["cores", "dma", "none"]
        assert variants["cores"].content == asked.content
        assert variants["dma"].content == says_so.content
        assert len({variant.content for variant in variants.values()}) == 3
        assert variants["none"].kernels() == ("",)
    keep = replace(question("conv.FW"), rules=replace(RULES, variants=()))
    assert keep.variants() == {"": keep}


def test_dma_knows_one_group_only() -> None:
    model = SMALL_MODEL.replace("kernel: 3", "kernel: 3, groups: 2")
    graph = build_training_graph(read_model(parse_yaml(model, "groups.yaml")))
    asked = Question(task_of(graph, graph.ops[0]), simple_soc(), "clang-xpulp", RULES)
    assert list(asked.variants()) == ["cores", "none"]
    with pytest.raises(InputError, match="several groups"):
        with_variants(graph, {"conv.FW": "dma"})


def test_a_step_means_all_ops_that_have_a_choice() -> None:
    graph = with_variants(build_training_graph(load_model("digits-cnn")), {"FW": "none", "conv2.FW": "dma"})
    assert {op.name: own_variant(op) for op in graph.ops if own_variant(op)} == {
        "conv1.FW": "none",
        "conv2.FW": "dma",
        "conv2.WG": "cores",
        "conv2.IG": "cores",
        "conv1.WG": "cores",
    }
    with pytest.raises(InputError, match=r"'conv3\.FW' is not an op or step"):
        with_variants(graph, {"conv3.FW": "dma"})


@pytest.mark.slow
@pytest.mark.parametrize("model", ["digits-cnn", "tutorial-cnn"])
def test_pruned_finds_what_exhaustive_finds_on_every_op_of_a_model(model: str) -> None:
    graph, timing = build_training_graph(load_model(model)), load_soc("pulp-open")
    found = []
    with open_workers(2) as pool:
        for name in ("exhaustive", "pruned"):
            strategy = StrategyOptions(name)
            found.append(tune([(graph, 1)], timing, ScheduleOptions(), pool, strategy=strategy))
    assert best(found[0]) == best(found[1])
    assert found[1].schedule.evaluated <= found[0].schedule.evaluated / 5


def test_the_result_does_not_depend_on_the_workers() -> None:
    assert repr(run_tune(workers=1).schedule) == repr(run_tune(workers=2).schedule)  # with all cycles


def test_paper_looks_at_the_largest_tiles_and_all_kernels() -> None:
    tuning = run_tune("paper", largest_tiles=1)
    oracle = {name: cycles for name, _, cycles in best(run_tune("exhaustive"))}
    for choice in tuning.schedule.choices:
        assert choice.best.depth == 1
        assert choice.best.cycles >= oracle[choice.op]
    asked = question("conv.FW")
    choice = tuning.schedule.choices[0]
    # One tile by cores and one by DMA, each with all kernels, and one of direct loops without a matmul.
    assert choice.evaluated == 2 * len(asked.kernels()) + 1
    asked = asked.variants()[choice.best.variant]
    largest = max(cut.l1_bytes for cut in list_cuts(asked) if cut.depth == 1)
    assert choice.best.l1_bytes == largest


@pytest.mark.needs_optuna
def test_optuna_keeps_its_budget_and_repeats_itself() -> None:
    one, other = (run_tune("optuna", budget=12, seed=3) for _ in range(2))
    assert repr(one.schedule) == repr(other.schedule)
    assert all(choice.evaluated <= 12 for choice in one.schedule.choices)
    assert any(choice.candidates > 12 for choice in one.schedule.choices)


def test_what_the_cache_holds_is_not_simulated_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ResultCache(tmp_path / "c")
    cold = run_tune(cache=cache)
    assert cold.cached == 0

    def refuse(*arguments: object) -> None:
        raise AssertionError("simulated although it is in the cache")

    for name in ("evaluate_candidates", "bound_candidates", "cuts_of"):
        monkeypatch.setattr(f"scheduler.tuner.strategies.{name}", refuse)
    monkeypatch.setattr("scheduler.explore.sweep.simulate_point", refuse)
    warm = run_tune(cache=cache)
    assert repr(warm.schedule) == repr(cold.schedule)
    assert warm.cached == cold.schedule.evaluated


@pytest.mark.parametrize(
    "changed",
    [
        replace(question("conv.FW"), timing=simple_soc("32KiB")),
        replace(question("conv.FW"), codegen="pulp-gcc7"),
        question("conv.WG"),
    ],
    ids=["soc", "codegen", "task"],
)
def test_another_question_has_another_key(changed: Question) -> None:
    assert changed.content != question("conv.FW").content


def test_the_version_of_the_simulator_is_part_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = question("conv.FW").content
    monkeypatch.setattr("scheduler.tuner.search_space.model_version", lambda: "another")
    assert question("conv.FW").content != before


def test_ctrl_c_keeps_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from scheduler.tuner import evaluate

    count = 0
    original = evaluate.evaluate_candidates

    def until_then(asked: Question, candidates: Sequence[Cut]) -> list[Evaluation]:
        nonlocal count
        count += 1
        if count == 3:
            raise KeyboardInterrupt
        return original(asked, candidates)

    monkeypatch.setattr("scheduler.tuner.strategies.evaluate_candidates", until_then)
    tuning = run_tune()
    assert tuning.interrupted
    assert tuning.schedule.cycles is None
    assert 0 < len(tuning.schedule.choices) < len(small_graph().ops)
    graph, timing, base, _ = small_case()
    chosen = [(choice.op, choice.best) for choice in tuning.schedule.choices]
    build_schedule(graph, timing, TeamCostModel(timing), with_choices(base, graph, timing, chosen))


def test_a_kernel_that_cannot_is_refused_and_never_chosen() -> None:
    asked = replace(question("conv.FW"), codegen="asm-xpulp")
    machine = CandidateSimulator(asked.timing)
    cut = list_cuts(asked)[0]
    refused = [
        kernel for kernel in asked.kernels() if machine.evaluate(asked, replace(cut, kernel=kernel)).refused
    ]
    assert all(machine.bounds(asked, [replace(cut, kernel=kernel)]) for kernel in refused)


@pytest.mark.parametrize("evaluation", [Evaluation(12, 3, 4), Evaluation(0, refused="a b  c")])
def test_evaluations_survive_the_cache(evaluation: Evaluation) -> None:
    assert value_of(text_of(evaluation), Evaluation) == evaluation


def test_unknown_strategies_and_empty_budgets_are_refused() -> None:
    with pytest.raises(InputError, match="exhaustive"):
        run_tune("exhaustiv")
    with pytest.raises(InputError, match="--trials"):
        run_tune("optuna", budget=0)
