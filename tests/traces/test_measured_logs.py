# SPDX-License-Identifier: Apache-2.0
"""Logs of measured programs: every format that is printed is read, and put to the ops it was measured of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from configs.errors import InputError
from traces.causes import CAUSES
from traces.compared.log import read_log
from traces.compared.residuals import Residuals, residuals

CYCLES = {
    **{"conv.FW": 100, "act.FW": 10, "rnn.FW_STEP0": 5, "rnn.FW_STEP1": 6, "loss.LOSS": 7},
    **{"rnn.WG": 20, "rnn.IG": 22, "act.IG": 11, "conv.WG": 90, "conv.UPD": 9},
}


def summary(cycles: dict[str, int] | None = None, offload: int = 4) -> dict[str, Any]:
    """A run on two cores, a tenth of whose cycles both wait for transfers."""
    cycles = CYCLES if cycles is None else cycles
    counted = dict.fromkeys(("macs", "tiles", "bytes_in", "bytes_out"), 0)
    ops = [
        {
            **counted,
            **{"name": name, "step": name.rpartition(".")[2], "cycles": own, "stalls": {}},
            "causes": dict.fromkeys(CAUSES, 0) | {"dma_in": own // 10, "dma_program": own // 10, "busy": own},
        }
        for name, own in cycles.items()
    ]
    whole = sum(cycles.values()) + offload
    causes = dict.fromkeys(CAUSES, 0) | {"dma_in": whole // 5, "busy": whole}
    return {"model": "m", "cores": 2, "cycles": whole, "stalls": {}, "causes": causes, "ops": ops}


def read(folder: Path, text: str, run: dict[str, Any] | None = None, **how: bool) -> Residuals:
    log = folder / "log.txt"
    log.write_text(text)
    return residuals(run or summary(), read_log(log), "run", str(log), **how)


def rows(found: Residuals) -> dict[str, tuple[int, int]]:
    return {row.name: (row.predicted_cycles, row.measured_cycles) for row in found.rows}


def test_counters_of_a_deployed_network_are_those_of_numbered_layers(tmp_path: Path) -> None:
    """Backward counters hold all gradients of a layer; the loop over epochs measures each several times."""
    epoch = (
        "\nFORWARD PROFILING:\n\nLayer 0\n\n[0] cycles = {0}\n[0] instr = 80\n[1] cycles = 7\n"
        "\nLayer 2\n\n[0] elapsed clock cycles = 12\n"
        "\nBACKWARD PROFILING:\n\nLayer 2\n\n[0] cycles = 40\n\nLayer 0\n[core 0] cycles = 95\n"
    )
    found = read(tmp_path, "Hello sir.\n" + epoch.format(110) + "Layer 2 output:\n-0.1\n" + epoch.format(104))
    assert rows(found) == {"conv.FW": (100, 104), "rnn.FW": (11, 12), "rnn.BW": (42, 40), "conv.WG": (90, 95)}
    assert [row.samples for row in found.rows] == [1, 1, 1, 1]
    assert found.unmeasured == {"act.FW": 10, "loss.LOSS": 7, "act.IG": 11, "conv.UPD": 9}


def test_a_cold_run_is_held_against_the_first_iteration_others_against_later_ones(
    tmp_path: Path,
) -> None:
    """What an exported project prints; rows of a table have no order, so their median counts."""
    samples = (130, 104, 106, 108)
    log = "".join(
        f"op conv.FW {each}\niteration {n} loss 2.3, expected 2.3\n" for n, each in enumerate(samples)
    )
    for icache, measured, count in (("cold", 130, 1), ("steady", 106, 3), ("warm", 106, 3)):
        (row,) = read(tmp_path, log, {**summary(), "icache": icache}).rows
        assert (row.measured_cycles, row.samples) == (measured, count)
    table = "op,cycles\n" + "".join(f"conv.FW,{each}\n" for each in samples)
    assert rows(read(tmp_path, table, {**summary(), "icache": "cold"})) == {"conv.FW": (100, 107)}


def test_counters_of_a_test_are_those_of_its_passes(tmp_path: Path) -> None:
    text = "Forward stats\n\n[0] cycles = 130\n\nBackward stats\n\n[0] cycles = 140 <= so many\n"
    assert rows(read(tmp_path, text)) == {"FW": (121, 130), "BW": (143, 140)}
    other_core = f"[{'1' * 5000}] cycles = 7\n"
    text = f"STATISTICS\x07\n{other_core}12:00 \x1b[32m[0] cycles = 300\x1b[0m\r\n"
    assert rows(read(tmp_path, text)) == {"iteration": (284, 300)}


def test_waits_for_transfers_are_left_out_where_data_lie_in_l1(tmp_path: Path) -> None:
    found = read(tmp_path, "op conv.FW 100\n[0] cycles = 300\n", in_l1=True)
    assert rows(found) == {"conv.FW": (90, 100), "iteration": (256, 300)}
    assert found.unmeasured["conv.WG"] == 81


def test_tiles_of_a_node_are_added_up(tmp_path: Path) -> None:
    """In both wordings; of two mini-batches the mean. Gradients of training graphs are nodes of their own."""
    lines = [
        *("===== Profiling conv_L2 =====", "[conv_L2][SB][99 ops][Tile 0] Pre-Kernel :    10 cycles "),
        "[conv_L2][SB][99 ops][Tile 0] Kernel     :    60 cycles ",
        "[conv_L2][SB][99 ops][Tile 0] Post-Kernel:     0 cycles ",
        "[conv_L2][SB][99 ops][Tile 0] Total      :    70 cycles (85.7% Kernel + 14.3% Overhad, 60 + 10)",
        "[conv_L2][SB][99 ops][Tile 1] Kernel     :    20 cycles ",
    ]
    again = [line.replace("60 cycles", "64 cycles") for line in lines]
    tile = "[act L2][DB][0 ops][Tile 0]"
    older = f"{tile} Input DMA took 2 cycles\n{tile} Kernel took 9 cycles"
    found = read(tmp_path, "\r\n".join([*lines, *again, older]))
    assert rows(found) == {"conv.FW": (100, 92), "act.FW": (10, 11)}
    graph = summary({"Gemm_5.WG": 30, "/w/Add.UPD": 3})
    text = (
        "[Gemm_5_L2][SB][9 ops][Tile 0] Kernel : 33 cycles\n[_w__Add_L2][SB][9 ops][Tile 0] Kernel : 4 cycles"
    )
    assert rows(read(tmp_path, text, graph)) == {"Gemm_5.WG": (30, 33), "/w/Add.UPD": (3, 4)}


def test_tiles_from_l3_hold_those_from_l2(tmp_path: Path) -> None:
    inner = "[conv_L2][SB][9 ops][Tile {0}] Kernel : 40 cycles\n"
    tile = "[conv_L3][SB][9 ops][Tile {0}]"
    outer = f"{tile} Input DMA took 5 cycles\n{tile} Kernel took 44 cycles\n"
    for text in (
        inner + outer.format(0) + inner + outer.format(1),
        inner * 2 + outer.format(0) + outer.format(1),
    ):
        assert rows(read(tmp_path, text.format(0))) == {"conv.FW": (100, 90)}


def test_counters_of_a_training_are_divided_by_its_steps(tmp_path: Path) -> None:
    head = "N_TRAIN_STEPS=4  N_ACCUM_STEPS=1  DATA_INPUTS=2\n"
    found = read(tmp_path, head + "BENCH train_cycles=1200 opt_cycles=40 weight_sram=9\n")
    assert rows(found) == {"all but UPD": (271, 300), "conv.UPD": (9, 10)}
    found = read(tmp_path, "BENCH train_cycles_hi=1 train_cycles_lo=2 opt_cycles_lo=8\n")
    assert rows(found) == {"all but UPD": (271, 2**32 + 2), "conv.UPD": (9, 8)}


@pytest.mark.parametrize(
    "text",
    [
        "noise\nop conv.FW 99\nconv.WG: 91 cycles\nop act 20\n",
        "# mine\nop,cycles\nconv.FW,99\nconv.WG,91\nrnn.WG,\nact,20\n",
        '\ufeffLayer,step,cycles,note\n"conv",FW,99.0,x\nconv,WG,91,x\n# no\nact,,20,x\n',
    ],
)
def test_lines_and_tables_of_ones_own(text: str, tmp_path: Path) -> None:
    assert rows(read(tmp_path, text)) == {"conv.FW": (100, 99), "act": (21, 20), "conv.WG": (90, 91)}


def test_what_several_rows_hold_is_counted_once(tmp_path: Path) -> None:
    found = read(tmp_path, "op conv 180\nop conv.FW 110\nop act 21\nop iteration 300\nop nothing 5\n")
    assert [(row.name, row.counted) for row in found.rows] == [
        *(("conv.FW", True), ("iteration", False), ("conv", False), ("act", True)),
    ]
    assert (found.predicted_cycles, found.measured_cycles) == (121, 131)
    assert found.worst.name == "conv.FW"
    assert found.median_error == pytest.approx((10 / 110) / 2)
    assert [item.name for item in found.unmatched] == ["nothing"]
    text = str(found)
    assert "measured, but not an op of the run (line): nothing (5)" in text
    assert "not part of the total" in text
    assert "rnn.FW_STEP x2, loss.LOSS" in text
    assert "\n3 others" in "\n".join(found.lines(100, 1))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "the file has no measured cycles"),
        ("Layer 0\nhello\n", "the file has no measured cycles"),
        ("op,cycles\nconv.FW,\n", "the file has no measured cycles"),
        ("a\0b", "not a text file"),
        ("\n[0] cycles = -7\n", "log.txt:2: cycles must be a number above 0, not '-7'"),
        ("op conv.FW 1200cycles\n", "log.txt:1: cycles must be a number above 0, not '1200cycles'"),
        ("[0] cycles = 0x12\n", "log.txt:1: cycles must be a number above 0, not '0x12'"),
        ("op conv.FW nan\n", "not 'nan'"),
        ("op conv.FW 0\n", "not '0'"),
        ("op conv.FW 31415 ns\n", "log.txt:1: conv.FW was measured in ns, not in cycles"),
        ("conv.FW: 31us\n", "log.txt:1: conv.FW was measured in us, not in cycles"),
        ("op,cycles\n\nconv.FW,1e99\n", "log.txt:3: cycles must be a number above 0, not '1e99'"),
        ("BENCH train_cycles=0 opt_cycles=0\n", "log.txt:1: cycles must be a number above 0"),
        ("op,cycles\nconv.FW\n", "log.txt:2: the row has 1 fields, but the header has 2"),
        ('op,cycles\n"conv.FW,5\n', "log.txt:2: the file is not valid CSV"),
        (
            "layer;cycles\nconv;5\n",
            "columns are separated by ';', not by commas\n  try: separate columns by commas: layer,cycles",
        ),
        ("what,cycles\nconv.FW,5\n", "the column 'op' is missing; the columns are 'what', 'cycles'"),
        ("op convolution.FW 5\n", "model 'm' does not have the ops of the log: convolution.FW"),
    ],
)
def test_a_log_that_cannot_be_used_says_why(text: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, text)
    assert told in str(caught.value)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none", Path("a\0b")):
        with pytest.raises(InputError, match="cannot read"):
            read_log(path)


def test_rows_within_the_error_bar_are_counted(tmp_path: Path) -> None:
    """Bars of 10 %, 40 % and none; of several ops the mean by their cycles."""
    bars = {"conv.FW": 10.0, "conv.WG": 40.0}
    ops = [{**op, "within_percent": bars.get(op["name"])} for op in summary()["ops"]]
    cycles = {op["name"]: op["cycles"] for op in ops}
    lines = [f"op conv.FW {round(1.09 * cycles['conv.FW'])}", f"op conv.WG {round(1.41 * cycles['conv.WG'])}"]
    (tmp_path / "log.txt").write_text("\n".join([*lines, f"op loss.LOSS {cycles['loss.LOSS']}\n"]))
    found = residuals({**summary(), "ops": ops}, read_log(tmp_path / "log.txt"), "run", "log")
    assert {row.name: row.within_bar for row in found.rows} == {
        "conv.FW": True,
        "conv.WG": False,
        "loss.LOSS": None,
    }
    counts = "3 rows: 1 within the error bar, 1 beyond it (conv.WG), 1 without an error bar"
    assert counts in " ".join(str(found).split())
