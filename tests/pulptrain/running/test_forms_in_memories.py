# SPDX-License-Identifier: Apache-2.0
"""Every form of training with every way its tensors lie in L1, L2 and L3: right numbers, or a refusal."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from arch.spec.program import UdmaCommand, UdmaStart
from pulptrain.inputs.settings import Settings
from shared.exported import checked, exported
from shared.form_table import BY_MORE, BY_RULE, FORMS, MEMORIES, ROWS, Row, outcome_of
from shared.kept_plans import prepare, run_model
from shared.tiers import sweep_nine_of_ten
from shared.training_form_models import written

ONE_OF = 60
"""A row of so many stays in `make test`, and one of every memory: each takes up to half a second."""


@pytest.mark.parametrize("row", sweep_nine_of_ten(ROWS, lambda row: row.memory, share=ONE_OF))
def test_a_form_is_right_wherever_its_tensors_lie_or_refused_by_name(row: Row, tmp_path: Path) -> None:
    outcome = outcome_of(row, tmp_path)
    assert re.match(f"{row.refusal or 'right'}", outcome), outcome


def test_few_rows_of_the_table_are_refused() -> None:
    """A refusal cannot hide a defect: 48 rows, all of two forms, and a batch in too small an L2."""
    refused = [row for row in ROWS if row.refusal]
    assert len(refused) == 2 * len(MEMORIES) + 2
    assert {row.form for row in ROWS} == {*FORMS, *BY_RULE, *BY_MORE}


def moved(path: str, tensor: str, **options: object) -> dict[bool, list[UdmaCommand]]:
    """Commands of the uDMA for a tensor, by whether they go to L2."""
    program = prepare(path, Settings(homes=(f"{tensor}=l3",), **options)).schedule.program
    commands: dict[bool, list[UdmaCommand]] = {True: [], False: []}
    for action in program.actions:
        if isinstance(action, UdmaStart) and action.work.step == "UPD" and action.work.what == tensor:
            for command in action.commands:
                commands[command.to_l2].append(command)
    return commands


def test_only_the_selected_channels_move_between_l3_and_l2(tmp_path: Path) -> None:
    """8 of 32 rows of 64 fp32: what comes for the update and goes back is 2,048 B of the 8,192 B."""
    layers = ("{name: fc, type: linear, out_features: 32, update_channels: [4, 12]}",)
    path = written(tmp_path, layers, shape="[64]")
    commands = moved(path, "fc.weight")
    home = prepare(path, Settings(homes=("fc.weight=l3",))).schedule.plan.home("fc.weight")
    for way in commands.values():
        assert [(item.l3_address - home.address, item.size_bytes) for item in way] == [(4 * 64 * 4, 2048)]
    summary = run_model(path, Settings(homes=("fc.weight=l3",)), iterations=2).summary
    assert summary["functional"]["passed"] is True
    assert summary["staged_bytes"] == {"in": 8192 + 2048, "out": 2048}


def test_runs_that_lie_close_together_are_one_transfer_and_what_lies_between_keeps_its_bits(
    tmp_path: Path,
) -> None:
    """A pointwise weight of images HWC has its channels last: 4 rows of 12 B, 12 B apart."""
    layers = ("{name: pw, type: pointwise, out_channels: 6, layout: HWC, update_channels: [2, 5]}",)
    path = written(tmp_path, layers, shape="[4, 3, 3]")
    for way in moved(path, "pw.weight").values():
        assert [item.size_bytes for item in way] == [3 * 24 + 12]
    values = run_model(path, Settings(homes=("pw.weight=l3",))).values
    before, after = values["before/pw.weight"], values["pw.weight"]
    same = before == after
    assert same[:, :2].all()
    assert same[:, 5:].all()
    assert not np.any(same[:, 2:5])
    apart = moved(
        path,
        "pw.weight",
        overrides=("l3.program_cycles=0", "l3.burst_setup_peripheral_cycles=0", "l3.wake_cycles=0"),
    )
    assert [item.size_bytes for item in apart[False]] == [12] * 4, "a transfer that costs nothing to set up"


@pytest.mark.needs_gcc
def test_an_export_compares_the_part_in_l2_and_the_rest_in_l3(tmp_path: Path) -> None:
    """Of the copy in L2 the bytes beside the channels are poison: what was compared there was wrong."""
    layers = ("{name: fc, type: linear, out_features: 8, update_channels: [2, 5]}",)
    path = written(tmp_path, layers, shape="[6]")
    ended = checked(exported(path, 2, homes=("fc.weight=l3",)).project(), tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
