# SPDX-License-Identifier: Apache-2.0
"""A synthetic but lifelike run for the tests of the traces room: eight cores, training ops, double buffering.

The master programs the DMA for the next tile, waits for the data of this one, forks, computes, joins at the
barrier. The other tests of this room import `training_run`; the tests here pin down what it produces.
"""

from shared.synthetic_trace import training_run


def test_one_tile_is_exactly_these_events() -> None:
    run = training_run(cores=2, ops=(("fc", "FW", 1, 100, 80, 16),))
    assert [(s.track.rsplit(".", 1)[-1], s.kind, s.start_cycles, s.end_cycles) for s in run] == [
        ("in", "transfer", 840, 910),
        ("out", "transfer", 1080, 1142),
        ("core0", "offload", 0, 800),
        ("core0", "dma_program", 800, 840),
        ("core0", "dma_wait", 840, 910),
        ("core0", "fork", 910, 940),
        ("core0", "compute", 940, 1040),
        ("core0", "dma_program", 1040, 1080),
        ("core0", "dma_wait", 1080, 1142),
        ("core0", "offload", 1142, 1442),
        ("core1", "offload", 0, 800),
        ("core1", "idle", 800, 910),
        ("core1", "fork", 910, 940),
        ("core1", "compute", 940, 1003),
        ("core1", "barrier", 1003, 1040),
        ("core1", "idle", 1040, 1142),
        ("core1", "offload", 1142, 1442),
    ]
