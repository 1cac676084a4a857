"""docs/speechnet.md is what a run gives today, and the step has the structure of the published one."""

import importlib.util
import sys
from pathlib import Path

import pytest

from traces.metrics import measure

ROOT = Path(__file__).resolve().parents[1]


def page_writer():
    spec = importlib.util.spec_from_file_location(
        "update_speechnet_page", ROOT / "tools" / "update_speechnet_page.py"
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def page():
    writer = page_writer()
    outcome = writer.simulated()
    return writer, outcome, writer.ops_of(outcome)


def test_the_page_is_up_to_date(page) -> None:
    """If this fails after a change of the model: python tools/update_speechnet_page.py."""
    writer, outcome, _ = page
    assert writer.PAGE.read_text(encoding="utf-8") == writer.speechnet_page(outcome)


def test_kernels_and_transfers_are_all_there_is(page) -> None:
    """Parts of the ops and the hand-over to the cluster add up to the run; waits are those of the trace."""
    writer, outcome, ops = page
    parts = writer.parts_cycles(ops)
    assert sum(parts.values()) + outcome.summary["offload_cycles"] == outcome.summary["cycles"]
    master = next(core for core in measure(outcome.slices).cores if core.name == "core0")
    waited = sum(cycles for word, cycles in master.stalls if word in ("dma_wait", "dma_program"))
    assert parts["DMA in"] + parts["DMA out"] == waited


def test_the_step_is_bound_by_kernels_as_published(page) -> None:
    """94.9 % kernels, 2.9 % DMA in, 2.2 % out are published; ours has faster kernels on as many bytes."""
    writer, _, ops = page
    published = writer.published_shares()
    assert published["kernels"] == pytest.approx(0.949, abs=1e-3)
    parts = writer.parts_cycles(op for op in ops if op.phase != "UPD")
    total = sum(parts.values())
    assert 0.9 < parts["kernels"] / total < 0.97
    assert parts["DMA in"] > parts["DMA out"]
    waits = parts["DMA in"] + parts["DMA out"]
    assert waits == pytest.approx(1_742_413, rel=0.5), "cycles of DMA, published and ours"


def test_convolutions_dominate_in_the_published_order(page) -> None:
    writer, _, ops = page
    ours = writer.convolutions_cycles(ops)
    assert set(ours) == set(writer.PUBLISHED_CONVOLUTIONS_CYCLES), "no input gradient of the first layer"
    assert sum(ours.values()) > 0.7 * sum(op.cycles for op in ops)
    assert writer.structure_correlation(ops) > 0.8
    blocks = {
        block: sum(cycles for (name, _), cycles in ours.items() if name == block) for block in writer.BLOCKS
    }
    assert sorted(blocks, key=blocks.get, reverse=True)[:3] == ["b1", "b0", "b2"]
    macs = {op.block: op.macs for op in ops if op.primitive == "conv2d" and op.phase == "FW"}
    per_mac = {block: ours[block, "FW"] / macs[block] for block in writer.BLOCKS}
    assert per_mac["b0"] > 4 * max(per_mac[block] for block in writer.BLOCKS[1:]), "one channel, kernel of 4"


@pytest.mark.parametrize("block", ["b0", "b1"])
def test_weight_gradients_by_the_same_loops_agree(page, block: str) -> None:
    """PULP-TrainLib's im2col and mm in both; compiler and tiles differ."""
    writer, _, ops = page
    published = writer.PUBLISHED_CONVOLUTIONS_CYCLES[block, "WG"]
    assert writer.convolutions_cycles(ops)[block, "WG"] == pytest.approx(published, rel=0.2)
