# SPDX-License-Identifier: Apache-2.0
"""Files for the machine: memory images, vectors and register writes, as text that a testbench reads.

Formats are those of the public tool: a weight word is a line of 4096 binary digits, an input word one of 64,
an output word one of 16 hexadecimal digits; lane 0 is the digit on the right, planes come MSB first.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from barvinn.machine.job import csr_writes
from barvinn.machine.timing import LANES
from barvinn.mapping.compiler import CompiledNetwork
from barvinn.mapping.images import channel_words, map_words, weight_words
from barvinn.mapping.layers import IntegerLayer, Integers

WAIT = "first wait until the results before it are written"


def weight_image(layer: IntegerLayer) -> str:
    """A line of 4096 binary digits per word; digit 64*j + i from the right is input i of output j."""
    blocks = 1 if layer.shape.kind == "pool" else layer.shape.blocks_out
    return "".join(
        "".join(f"{int(row):064b}" for row in word[::-1]) + "\n"
        for block in range(blocks)
        for word in weight_words(layer, range(block, block + 1))
    )


def published_weight_image(weights: Integers, bits: int) -> str:
    """The lines of the public tool: values in the order [kw][kh][ci][co], cut into runs of 4096.

    Right only where both channel counts are multiples of 64. The last run is filled up with zeros.
    """
    values = weights.transpose(3, 2, 1, 0).ravel()
    size = LANES * LANES
    runs = np.concatenate([values, np.zeros(-len(values) % size, np.int64)]).reshape(-1, size)
    return "".join(
        "".join("1" if bit else "0" for bit in (run[::-1] >> plane) & 1) + "\n"
        for run in runs
        for plane in range(bits - 1, -1, -1)
    )


def channel_image(values: Integers, bits: int) -> str:
    """Scalers or biases: a line per 64 output channels, hexadecimal, `bits` each, channel 0 on the right."""
    mask, digits = (1 << bits) - 1, bits // 4
    return "".join(
        "".join(f"{int(value) & mask:0{digits}x}" for value in word[::-1]) + "\n"
        for word in channel_words(values)
    )


def input_vector(values: Integers, bits: int) -> str:
    """A line of 64 binary digits per word of a map."""
    return "".join(f"{int(word):064b}\n" for word in map_words(values, bits))


def output_vector(words: NDArray[np.uint64]) -> str:
    """A line of 16 hexadecimal digits per word."""
    return "".join(f"{int(word):0{LANES // 4}x}\n" for word in words)


def register_writes(network: CompiledNetwork) -> Iterator[str]:
    """All CSR writes, one a line, in the order in which each unit's hart makes them."""
    rules = network.program.behaviour
    yield f"# behaviour {rules.name}; maps begin at word {rules.first_word}\n"
    for layer in network.layers:
        program = layer.program
        for unit, segments in enumerate(program.units):
            for number, segment in enumerate(segments):
                yield f"# {program.name}: unit {unit}, weights part {number + 1} of {len(segments)}\n"
                for job in segment.jobs:
                    after = f"; {WAIT}" if job.after_drain else ""
                    yield f"# job: {job.what}{after}\n"
                    waits = True
                    for write in csr_writes(job, unit, rules):
                        if waits and write.name in rules.live:
                            waits = False
                            yield f"# {WAIT}\n"
                        yield f"csrw 0x{write.address:03X} 0x{write.value:08X} # {write.name}\n"
        if program.host is not None:
            step = program.host
            yield (
                f"# {program.name}: {step.op} by the host, {step.read_words} words from {step.read_first} on "
                f"to {step.words} words from {program.first_word} on, in every unit\n"
            )
