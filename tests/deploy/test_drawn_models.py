# SPDX-License-Identifier: Apache-2.0
"""Random networks, optimizers, machines and forms, exported and executed: right, or refused by name."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from alarm.random_models import drawn
from arch.spec.soc_config import FORMS
from configs.errors import DoesNotFitError, InputError, PulptrainError
from configs.values import replace
from shared.exported import checked, exported

NETWORKS = 200
"""How many are exported by `make sweep`; what is drawn and no network, or too large, does not count."""

MOST_REFUSED = 0.05

RIGHT, REFUSED, NO_NETWORK, WRONG = "right", "refused", "no network", "WRONG"


def tried(seed: int, folder: Path) -> tuple[str, str]:
    """What became of the network of a seed in fp32, its optimizer's states as well, and why."""
    model = drawn(seed)
    file = folder / "drawn.yaml"
    file.write_text(re.sub(r", state_dtype: \w+", "", model.text))
    settings = replace(model.settings, dtype="fp32")
    fields = ("cores", "l1", "buffering", "prefetch", "placement", "seed", "dtype")
    try:
        known = {name: getattr(settings, name) for name in fields}
        run = exported(str(file), 2, form=FORMS[seed // 2 % len(FORMS)], **known)
    except (InputError, DoesNotFitError) as error:
        return NO_NETWORK, str(error).splitlines()[0]
    try:
        project = run.project()
    except PulptrainError as error:
        return REFUSED, str(error).splitlines()[0]
    sanitizer = ("", "address", "undefined", "thread")[seed % 4]
    ended = checked(project, folder, f"SANITIZE={sanitizer}", seed=seed)
    if ended.returncode == 0:
        return RIGHT, ""
    lines = [
        line for line in (ended.stderr + ended.stdout).splitlines() if "WRONG" in line or "error" in line
    ]
    return WRONG, "; ".join(lines[:3])


@pytest.mark.needs_gcc
@pytest.mark.parametrize("seed", [2, 10, 19])
def test_a_drawn_network_is_right(seed: int, tmp_path: Path) -> None:
    assert tried(seed, tmp_path)[0] == RIGHT


@pytest.mark.slow
@pytest.mark.needs_gcc
def test_drawn_networks_are_right(tmp_path: Path) -> None:
    """Prints how many were refused, with their reasons."""
    ends: Counter[tuple[str, str]] = Counter()
    seed = 0
    while sum(count for (verdict, _), count in ends.items() if verdict != NO_NETWORK) < NETWORKS:
        folder = tmp_path / str(seed)
        folder.mkdir()
        verdict, why = tried(seed, folder)
        ends[verdict, "" if verdict == NO_NETWORK else f"{seed}: {why}" if verdict == WRONG else why] += 1
        seed += 1
    print("\n".join(f"{count:4} {verdict} {why}" for (verdict, why), count in ends.most_common()))
    assert not [why for verdict, why in ends if verdict == WRONG]
    assert sum(count for (verdict, _), count in ends.items() if verdict == REFUSED) <= MOST_REFUSED * NETWORKS
