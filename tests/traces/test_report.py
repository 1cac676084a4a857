# SPDX-License-Identifier: Apache-2.0
from typing import Any

import pytest
from msgspec.structs import asdict

from configs.errors import InputError
from shared.synthetic_trace import training_run
from traces.metrics import measure
from traces.report import Detail, functional_line, report_lines, top_stalls
from traces.text_table import RUN_IT, change, counted, labelled


def summary(**changes: Any) -> dict[str, Any]:
    """A summary as ``run --json`` prints it, of the run counted by hand in traces/test_metrics."""
    run = measure(training_run(cores=2, ops=(("fc", "FW", 1, 100, 80, 16),)))
    return {
        "cycles": run.makespan_cycles,
        "seconds": run.makespan_cycles / 100e6,
        "macs": 721,
        "mac_per_cycle": 721 / run.makespan_cycles,
        "loss": 2.302585,
        "peak_bytes": {"l1": 51_200, "l2": 2_048, "l3": 0},
        "ops": [
            {**asdict(op), "stalls": dict(op.stalls), "primitive": "linear", "kernel": "mm", "macs": 721}
            for op in run.ops
        ],
        "utilisation": dict(run.utilisation),
        "functional": {
            "checked_against": "PyTorch",
            "passed": True,
            "iterations_checked": 3,
            "not_decidable": 0,
            "without_truth": 0,
            "worst_tensor": "fc.out",
            "worst_ratio": 0.25,
            "tensors": [{}] * 9,
        },
        "soc": "pulp-open",
        "timing": "rtl",
        **changes,
    }


def printed(text: dict[str, Any], width: int = 100, detail: Detail | None = None) -> list[str]:
    return report_lines(text, width, detail)


@pytest.mark.smoke
def test_the_report_of_a_run_counted_by_hand() -> None:
    # busy 121 of 684 core-cycles; idle 212, wait for DMA 132
    assert printed(summary()) == [
        "pulp-open: 1,442 cycles = 0.014 ms at 100 MHz",
        "throughput  0.50 MAC/cycle on 2 cores",
        "memory      peak L1 50.0 KiB, L2 2.0 KiB",
        "loss        2.302585",
        "numbers     checked against PyTorch: 3 iterations, 9 tensors; worst error 0.25 of its tolerance",
        "            (fc.out); 0 not decidable",
        "utilisation cores issue in 4% of the cycles, the DMA moves bytes in 9% of the time",
        "machine     pulp-open, timing rtl",
        "",
        "step     cycles  share  MAC/cyc  busy  top stalls              MACs  tiles  KiB in  KiB out",
        "FW          342    24%     2.11   18%  idle 31%, dma_wait 19%   721      1     0.1      0.0",
        "offload   1,100    76%        -     -                             -      -       -        -",
        "total     1,442   100%     0.50    4%                           721      1     0.1      0.0",
        "",
        "layer  cycles  share  MAC/cyc  busy  top stalls              MACs  tiles  KiB in  KiB out",
        "fc        342    24%     2.11   18%  idle 31%, dma_wait 19%   721      1     0.1      0.0",
        "",
        "largest ops  cycles  share  kernel  MAC/cyc  busy  top stalls              MACs  tiles  KiB in",
        "fc.FW           342    24%  mm         2.11   18%  idle 31%, dma_wait 19%   721      1     0.1",
    ]


def long_names(**changes: Any) -> dict[str, Any]:
    """Thirty ops of layers with long names, the figures of each large."""
    op = summary()["ops"][0]
    ops = [
        {
            **op,
            "name": f"the_downsampling_convolution_of_the_last_stage{number}.FW",
            "cycles": 12_345_678 + number,
            "macs": 123_456_789,
            "tiles": 4_096,
            "bytes_in": 9_876_543,
            "bytes_out": 9_876_543,
            "tile": {"co": 16, "ho": 7, "wo": 7, "ci": 16},
            "loop_order": ["co", "ho", "wo", "ci"],
            "stalls": {"bank_conflict": 6_000_000, "dma_program": 5_000_000},
        }
        for number in range(30)
    ]
    notes = [f"{op['name']}: smaller tiles, to fit 2 buffers: {number}" for number, op in enumerate(ops)]
    whole = {"cycles": 987_654_321, "macs": 3_703_703_670, "mac_per_cycle": 3.75}
    return summary(ops=ops, model="large", notes=notes, **whole, **changes)


@pytest.mark.parametrize("width", [60, 80, 100, 160, 240])
def test_no_line_is_wider_than_the_terminal_and_no_name_is_cut(width: int) -> None:
    lines = printed(long_names(), width)
    assert max(map(len, lines)) <= max(width, 62)
    assert len(lines) <= 60
    shown = [line.split()[0] for line in lines if line.startswith("the_downsampling")]
    assert all(name.removesuffix(".FW")[-1].isdigit() for name in shown)
    assert len(shown) == 20
    assert "20 others" in " ".join(lines)


def test_the_tile_and_the_kernel_of_an_op_go_after_its_cycles() -> None:
    head = next(line for line in printed(long_names(), 160) if line.startswith("largest ops"))
    assert head.split()[:6] == ["largest", "ops", "cycles", "share", "kernel", "tile"]
    narrow = next(line for line in printed(long_names(), 80) if line.startswith("largest ops"))
    assert narrow.split() == ["largest", "ops", "cycles", "share", "kernel"]


def test_repeated_steps_of_a_layer_are_one_row() -> None:
    op = summary()["ops"][0]
    steps = [{**op, "name": f"gru.FW_STEP{number}", "step": f"FW_STEP{number}"} for number in range(49)]
    lines = printed(summary(ops=[*steps, {**op, "name": "gru.WG", "step": "WG"}]), 100)
    assert sum("FW_STEP" in line for line in lines) == 1
    row = next(line for line in lines if line.startswith("gru.FW_STEP x49"))
    assert f"{49 * op['cycles']:,}" in row
    whole = printed(summary(ops=steps), 100, Detail(full=True))
    assert sum("FW_STEP" in line for line in whole) == 49


def test_notes_are_a_line_unless_all_are_asked_for() -> None:
    lines = printed(long_names(), 100)
    at = next(number for number, line in enumerate(lines) if line.startswith("notes"))
    assert lines[at] == "notes       smaller tiles, to fit 2 buffers (x30); --full lists all 30"
    full = printed(long_names(), 200, Detail(full=True))
    assert sum(line.startswith("note ") for line in full) == 30


@pytest.mark.parametrize(("by", "rows"), [("layer", 6), ("step", 2), ("kernel", 2)])
def test_ops_are_added_up_by_what_is_asked(by: str, rows: int) -> None:
    lines = printed(long_names(), 100, Detail(top=4, by=by))
    first = next(number for number, line in enumerate(lines) if line.startswith(by))
    last = next(number for number, line in enumerate(lines) if line.startswith("total"))
    offload = 1
    assert last - first - 1 - offload == rows - 1
    assert "largest ops" in lines[last + 2]
    assert len(lines) == last + 2 + 1 + 4 + 1


def test_a_wrong_view_is_refused() -> None:
    with pytest.raises(InputError, match="the number of rows is 0"):
        Detail(top=0)
    with pytest.raises(InputError, match="unknown group 'colour'"):
        Detail(by="colour")


def test_numbers_that_were_not_checked_are_said_to_be_so() -> None:
    assert functional_line(None) == "not checked"
    assert "numbers     not checked" in printed(summary(functional=None, loss=None))
    assert not any(line.startswith("loss") for line in printed(summary(loss=None)))


def test_the_largest_stalls_come_first_and_ties_keep_their_order() -> None:
    stalls = {"fpu": 10, "branch": 30, "icache": 10, "idle": 0}
    assert top_stalls(stalls, 100) == "branch 30%, fpu 10%"


def test_a_summary_that_lacks_a_key_is_refused() -> None:
    broken = summary()
    del broken["peak_bytes"]
    with pytest.raises(InputError, match="the summary of the run lacks the key 'peak_bytes'"):
        printed(broken)


def test_a_command_is_one_line_a_percentage_is_not_broken_and_one_is_singular() -> None:
    command = "pulptrain run net.py:Net --input 1,3,32,32 --soc gap9 --freq 240MHz --set dma.burst_bytes=64"
    assert labelled(RUN_IT, command, 40) == [f"run it      {command}"]
    assert all(line != "%)" for line in labelled("try", "saves up to 23,393 cycles (17 %)", 43))
    assert [counted(count, "other") for count in (1, 2)] == ["1 other", "2 others"]
    assert [change(share) for share in (-0.0004, 0.0004, 0.25)] == ["0.0", "0.0", "+25.0"]
