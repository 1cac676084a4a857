# SPDX-License-Identifier: Apache-2.0
"""Every parameter of a SoC file through values nobody meant: refused, or with the effect its meaning says."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from pulptrain.inputs.settings import Settings
from shared.kept_plans import run_model
from shared.tiers import sweep_nine_of_ten
from tools.parameter_sweep import PROBES, parameters, row

PARAMETERS = [f"{soc} {path}" for soc in PROBES for path in parameters(soc)]

MORE_IS = {"cycles": "slower", "peripheral cycles": "slower", "bits": ""}
"""What a larger value makes of a program, by its unit; of all others "faster"."""

OTHERWISE: Mapping[str, tuple[str, str]] = {
    "pulp-open cores": ("slower", "all cores want the one mutex"),
    "pulp-open icache.between_calls_lines": ("slower", "they put lines of the kernel out"),
    "pulp-open icache.call_lines": ("slower", "they put lines of the kernel out"),
    "pulp-open icache.private_ways": ("", "sets become fewer as ways become more, and replacement is drawn"),
    "pulp-open icache.shared_ways": ("", "sets become fewer as ways become more, and replacement is drawn"),
    "pulp-open icache.fetch_bytes_per_cycle": ("", "it asks earlier, also for the line behind the code"),
    "pulp-open icache.jump_cycles": (
        "faster",
        "what a jump to a line elsewhere takes more is less",
    ),
    "pulp-open l2.code_behind_cycles": ("faster", "cycles a line of code does not wait"),
    "pulp-open l2.code_ahead_cycles": ("faster", "cycles a line of code does not wait"),
    "pulp-open dma.short_burst_saved_cycles": ("faster", "cycles that are saved"),
    "pulp-open dma.wait_check_cycles": (
        "",
        "a later look finds more transfers over, which cost less to wait for",
    ),
    "pulp-open clock.cluster_hz": ("slower", "cycles are those of this clock: others take more of them"),
    "barvinn memory.activation_words": ("", "maps lie elsewhere, so other registers are written"),
    "barvinn hart.handler_instructions": ("slower", "instructions between two jobs"),
    "barvinn hart.poll_instructions": ("", "when a hart looks again depends on the length of the loop"),
}
"""What a larger value does to the program that notices it where its unit does not say, and why."""

PLANNED = ("tiles",)
"""Programs that are chosen for the machine by an estimate, so that a better one may take a little longer."""

UNNOTICED: Mapping[str, str] = {
    "pulp-open l1.tables_bytes": "a place of 0 or few bytes holds no table; tests/deploy/test_tables.py",
    "pulp-open l2.holds_code": "read where code is planned; tests/scheduler/programs/test_program_code.py",
    "barvinn width.activation_jump_bits": "read as what memory.activation_words must not exceed",
    "barvinn width.weight_jump_bits": "read as what memory.weight_words must not exceed",
    "barvinn drain.crossbar_cycles": "jobs of networks stay in their unit; tests/barvinn has others",
}
"""Parameters that no program notices, and by what they are read."""


@pytest.mark.parametrize(
    "name",
    sweep_nine_of_ten(PARAMETERS, lambda name: name.partition(" ")[0]),
)
def test_a_value_is_refused_or_has_the_effect_its_parameter_says(name: str) -> None:
    soc, _, path = name.partition(" ")
    found = row(soc, path)
    for outcome in (*found.values, *found.others):
        error = outcome.error
        if error is not None:
            assert error.exit_code in (2, 3), str(error)
            assert error.cure, str(error)
        if not outcome.accepted:
            assert error is not None
            assert error.where == f"--set {path}={outcome.value}"
            assert path.partition(".")[0] in str(error)
    assert (found.probe == "") == (name in UNNOTICED)
    unit = found.parameter.unit
    direction = OTHERWISE[name][0] if name in OTHERWISE else MORE_IS.get(unit, "faster")
    if direction and found.probe not in PLANNED:
        # A size or count of 0 stands for none, or for no limit.
        outcomes = [*found.values, *found.others, found.before]
        values = [*[each.value for each in outcomes[:-1]], str(found.parameter.value)]
        figures = {
            float(value): each.figure
            for value, each in zip(values, outcomes, strict=True)
            if isinstance(found.parameter.value, int | float)
            and not isinstance(found.parameter.value, bool)
            and each.figure is not None
            and (value != "0" or "cycles" in unit.split())
        }
        ordered = [figures[value] for value in sorted(figures)]
        assert ordered == sorted(ordered, reverse=direction == "faster"), figures


WAITS = [
    f"{model} dma.wait_{wait}_cycles={cycles}"
    for model in ("simple-mlp", "tutorial-cnn")
    for wait in ("check", "done", "sleep_min", "wake")
    for cycles in (0, 3, 28, 34, 1000)
]


@pytest.mark.parametrize("case", sweep_nine_of_ten(WAITS, lambda case: case.partition("=")[0].split()[1]))
def test_however_a_core_waits_for_the_dma_no_model_races(case: str) -> None:
    model, changed = case.split()
    run_model(model, Settings(overrides=(changed,)), functional=False)


@pytest.mark.slow
@pytest.mark.parametrize("cycles", [0, 3])
def test_a_wait_that_costs_nothing_is_no_race_in_a_transformer(cycles: int) -> None:
    run_model("tiny-transformer", Settings(overrides=(f"dma.wait_done_cycles={cycles}",)), functional=False)
