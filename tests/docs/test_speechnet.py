# SPDX-License-Identifier: Apache-2.0
"""The training step of docs/speechnet.md has the structure of the published one."""

import pytest

from tools.pages import speechnet as writer
from traces.metrics import measure


@pytest.fixture(scope="module")
def page():
    """The writer of the page, our run, the published costs and ours."""
    outcome = writer.simulated()
    return writer, outcome, writer.published_costs(), writer.our_costs(outcome)


def test_the_trace_adds_up_to_what_its_authors_printed(page) -> None:
    """LATENCY_DERIVATION.md and LATENCY_REPORT.md of the published run; 94.9 % kernels, 2.9 and 2.2 % DMA."""
    writer, _, theirs, _ = page
    whole = writer.total(theirs, writer.everything)
    assert (whole.kernel_cycles, whole.in_cycles, whole.out_cycles) == (32_353_106, 989_231, 753_182)
    convolutions = {key: cost.cycles for key, cost in theirs.items() if key[1] == "conv2d"}
    assert sum(cycles for key, cycles in convolutions.items() if key[2] == "FW") == 14_715_218
    assert convolutions["b0", "conv2d", "FW"] == 7_405_374
    assert convolutions["b1", "conv2d", "IG"] == 3_402_803
    assert writer.total(theirs, lambda key: key[1] == "bias").cycles == 491_626
    assert writer.total(theirs, lambda key: key[2] == "UPD").cycles == 54_215


def test_every_cycle_of_our_run_is_in_the_table(page) -> None:
    """Kernels, waits and the hand-over to the cluster are the run; waits are those of the trace."""
    writer, outcome, _, ours = page
    whole = writer.total(ours, writer.everything)
    assert whole.cycles + outcome.summary["offload_cycles"] == outcome.summary["cycles"]
    master = next(core for core in measure(outcome.slices).cores if core.name == "core0")
    assert whole.dma_cycles == sum(
        cycles for word, cycles in master.stalls if word in ("dma_wait", "dma_program")
    )
    assert 0 < whole.work_cycles < whole.kernel_cycles


def test_the_model_has_the_traced_shapes(page) -> None:
    """Multiply-accumulates of every step of every convolution, and no input gradient of the first."""
    writer, outcome, theirs, _ = page
    ours = {
        (op["name"][:2], op["step"]): op["macs"]
        for op in outcome.summary["ops"]
        if op["primitive"] == "conv2d"
    }
    traced = {(block, step): macs for block, macs in writer.FORWARD_MACS.items() for step in ("FW", "WG")}
    traced |= {(block, "IG"): macs for block, macs in writer.GRADIENT_MACS.items()}
    assert ours == traced
    assert {(block, step) for block, layer, step in theirs if layer == "conv2d"} == set(traced)


def test_causes_are_disjoint_and_explain_the_whole_difference(page) -> None:
    writer, outcome, theirs, ours = page
    for key in {*theirs, *ours}:
        if key[2] != "UPD":
            assert sum(cause.holds(key) for cause in writer.CAUSES) == 1, key
    found = writer.differences(theirs, ours, outcome)
    published, own = (sum(row[side].cycles for row in found) for side in (1, 2))
    assert published == 34_084_097, "the counter on the device, forward and backward pass"
    update = writer.total(ours, lambda key: key[2] == "UPD").cycles
    assert own + update == outcome.summary["cycles"]


def test_the_step_is_bound_by_kernels_as_published(page) -> None:
    """Ours moves no more than the published step, in fewer cycles; with all cores at work there, the shares
    of the DMA are near."""
    writer, outcome, theirs, ours = page
    there, here = (writer.total(costs, writer.everything) for costs in (theirs, ours))
    assert there.kernel_cycles / there.cycles == pytest.approx(0.949, abs=1e-3)
    assert 0.9 < here.kernel_cycles / here.cycles < 0.97
    assert here.in_cycles > here.out_cycles, "as published"
    assert here.dma_cycles < there.dma_cycles
    moved = outcome.summary["bytes_in"] + outcome.summary["bytes_out"]
    port = outcome.timing.dma.l1_bytes_per_cycle
    assert 7 < moved / here.dma_cycles < 2 * port, "alone 7.0 to 7.9 as SGD's there, in and out together more"
    spread = there.dma_cycles / (there.dma_cycles + there.work_cycles)
    assert here.dma_cycles / here.cycles == pytest.approx(spread, rel=0.15)


def test_cycles_stand_in_the_published_order(page) -> None:
    writer, _, theirs, ours = page
    correlation = writer.structure_correlation(theirs, ours)
    assert correlation["convolutions"] > 0.9
    assert correlation["all"] > 0.9
    share = {
        block: writer.total(ours, lambda key, block=block: key[0] == block and key[2] != "UPD").cycles
        for block in writer.BLOCKS
    }
    assert sorted(share, key=share.get, reverse=True)[2:] == ["b2", "b3", "b4"], "b0 and b1 come before"
    per_mac = {
        block: ours[block, "conv2d", "FW"].cycles / writer.FORWARD_MACS[block] for block in writer.BLOCKS
    }
    assert per_mac["b0"] > 4 * max(per_mac[block] for block in writer.BLOCKS[1:]), "one channel, kernel of 4"


def test_the_weight_gradient_of_the_first_block_by_the_same_loops_agrees(page) -> None:
    """PULP-TrainLib's im2col and mm in both; compiler and tiles differ."""
    _, _, theirs, ours = page
    key = ("b0", "conv2d", "WG")
    assert ours[key].cycles == pytest.approx(theirs[key].cycles, rel=0.2)
