# SPDX-License-Identifier: Apache-2.0
"""Every published figure of docs/traindeeploy.md has ours beside it."""

from shared.paths import ROOT
from tools.pages.traindeeploy import NAMES, PAGE, WAYS, is_of_today, published, spec_of, stored
from trainlib.training.phases import build_training_graph

ROWS = published()
OURS = stored()


def test_every_published_figure_has_ours() -> None:
    assert OURS.keys() == {key for key, row in ROWS.items() if row["kind"] != "reason"}
    assert all(row["source"] for row in ROWS.values())


def test_answers_keep_to_the_published_peaks_and_cost_no_less_than_without() -> None:
    for key, row in ROWS.items():
        for how in WAYS if row["kind"] == "point" else ():
            part = OURS[key].get(how, {})
            if "cycles" in part:
                assert part["peak_bytes"] <= int(row["peak_kib"]) * 1024, key
                assert part["cycles"] >= 0.999 * part["before_cycles"], key


def test_the_models_are_those_that_were_published() -> None:
    """15,489 parameters of SpeechNet; with adapters 13,578 of 208,010 values of CCT train."""
    assert OURS["S1"]["weight_bytes"] == 4 * 15_489
    assert OURS["L1"]["gradient_bytes"] == 4 * 13_578
    assert f"{OURS['S1']['cycles']:,}" in (ROOT / "docs" / "speechnet.md").read_text(encoding="utf-8")
    cct = build_training_graph(spec_of("cct"))
    frozen = [
        name for name in cct.tensors if name.partition(".")[0] in ("conv1", "conv2") and "weight" in name
    ]
    sizes = {name: cct.tensors[name].size_bytes // 4 for name in cct.weights}
    assert sum(sizes.values()) - sum(sizes[name] for name in frozen if name in sizes) == 208_010


def test_the_first_screen_names_what_is_larger_or_slower() -> None:
    first = PAGE.shown()["conclusion"]
    larger = {
        row["model"]
        for key, row in ROWS.items()
        if row["kind"] == "step" and (row["peak_kib"] or row["arena_kib"])
        if OURS[key]["accumulated_bytes"] > 1024 * float(row["peak_kib"] or row["arena_kib"])
    }
    assert larger
    assert all(
        NAMES[model] in first.partition("Our steps are larger or slower here:\n")[2] for model in larger
    )


def test_rows_are_of_today_or_their_table_says_that_they_are_not() -> None:
    """If this fails cycles or plans have changed: python -m tools.pages.traindeeploy --ids KEY."""
    for block, kind in (("steps", "step"), ("points", "point"), ("traffic", "traffic")):
        older = [key for key, ours in OURS.items() if ROWS[key]["kind"] == kind and not is_of_today(ours)]
        line = PAGE.shown()[block].splitlines()[0]
        assert line.startswith("*Older than ") == bool(older)
        assert all(key in line for key in older)
