# SPDX-License-Identifier: Apache-2.0
import io
from typing import Any

import pytest
from rich.console import Console
from test_traces_synthetic import training_run

from configs.errors import InputError
from traces.metrics import measure
from traces.report import functional_line, print_report, top_stalls


def summary(**changes: Any) -> dict[str, Any]:
    """A summary as ``run --json`` prints it, of the run counted by hand in test_traces_metrics."""
    run = measure(training_run(cores=2, ops=(("fc", "FW", 1, 100, 80, 16),)))
    return {
        "cycles": run.makespan_cycles,
        "seconds": run.makespan_cycles / 100e6,
        "macs": 721,
        "mac_per_cycle": 721 / run.makespan_cycles,
        "loss": 2.302585,
        "peak_bytes": {"l1": 51_200, "l2": 2_048, "l3": 0},
        "ops": [{**op.as_dict(), "primitive": "linear", "kernel": "mm", "macs": 721} for op in run.ops],
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


def printed(text: dict[str, Any], width: int = 100) -> list[str]:
    out = io.StringIO()
    print_report(text, Console(file=out, width=width, color_system=None))
    return [line.rstrip() for line in out.getvalue().splitlines()]


@pytest.mark.smoke
def test_the_report_of_a_run_counted_by_hand() -> None:
    # busy 121 of 684 core-cycles; idle 212, wait for DMA 132
    assert printed(summary()) == [
        "layer.step  cycles  share  MACs  MAC/cyc  tiles  KiB in  KiB out  busy  top stalls",
        "fc.FW          342    24%   721     2.11      1     0.1      0.0   18%  idle 31%, DMA wait 19%",
        "offload      1,100    76%     -        -      -       -        -     -",
        "total        1,442   100%   721     0.50      1     0.1      0.0    4%",
        "",
        "time          1,442 cycles = 0.014 ms at 100 MHz",
        "throughput    0.50 MAC/cycle on 2 cores",
        "utilisation   cores issue 4% of the cycles, the DMA moves bytes 9% of the time",
        "peak memory   L1 50.0 KiB, L2 2.0 KiB",
        "machine       pulp-open, timing rtl",
        "loss          2.302585",
        "numbers       checked against PyTorch: 3 iterations, 9 tensors; worst error 0.25 of its tolerance",
        "(fc.out); 0 not decidable",
    ]


def test_figures_of_a_large_run_fit_into_100_columns() -> None:
    op = summary()["ops"][0]
    large = {
        **op,
        "name": "layer4.1.downsample.conv2",
        "cycles": 12_345_678,
        "macs": 123_456_789,
        "tiles": 4_096,
        "bytes_in": 9_876_543,
        "bytes_out": 9_876_543,
        "stalls": {"bank_conflict": 6_000_000, "dma_program": 5_000_000},
    }
    lines = printed(summary(cycles=98_765_432, macs=987_654_321, ops=[large]))
    assert max(map(len, lines)) <= 100
    figures = next(line for line in lines if "12,345,678" in line)
    assert {"123,456,789", "10.00", "4,096", "9,645.1", "55%"} <= set(figures.split())
    assert "banks 24%" in figures


def test_numbers_that_were_not_checked_are_said_to_be_so() -> None:
    assert functional_line(None) == "not checked"
    assert "numbers       not checked" in printed(summary(functional=None, loss=None))
    assert not any(line.startswith("loss") for line in printed(summary(loss=None)))


def test_the_largest_stalls_come_first_and_ties_keep_their_order() -> None:
    stalls = {"fpu": 10, "branch": 30, "icache": 10, "idle": 0}
    assert top_stalls(stalls, 100) == "branch 30%, FPU 10%"


def test_a_summary_that_lacks_a_key_is_refused() -> None:
    broken = summary()
    del broken["peak_bytes"]
    with pytest.raises(InputError, match="the summary has no 'peak_bytes'"):
        printed(broken)
