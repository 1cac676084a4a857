# SPDX-License-Identifier: Apache-2.0
"""From integer layers to the program of the array: where maps and weights lie, who computes what."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from barvinn.machine.job import Job
from barvinn.machine.program import ArrayProgram, LayerProgram, Segment
from barvinn.machine.timing import LANES, BarvinnTiming
from barvinn.mapping.host import host_pool, host_relu, raw_layer
from barvinn.mapping.images import Words, channel_words, map_words, weight_words
from barvinn.mapping.jobs import UnitShare, layer_jobs
from barvinn.mapping.layers import IntegerLayer, Integers
from configs.errors import Contributor, DoesNotFitError, InputError
from configs.values import Struct, replace

WORD_BYTES = 8
"""Of a word of activations."""


class CompiledLayer(Struct, frozen=True):
    """A layer and its program."""

    layer: IntegerLayer
    program: LayerProgram

    @property
    def jobs(self) -> list[tuple[int, Job]]:
        """(unit, job) of all its jobs, unit by unit."""
        return [
            (unit, job)
            for unit, segments in enumerate(self.program.units)
            for segment in segments
            for job in segment.jobs
        ]

    @property
    def parts(self) -> list[list[int]]:
        """Per unit the output blocks of each load of weights."""
        shares = []
        for segments in self.program.units:
            words = self.layer.shape.taps * self.layer.weight_bits
            shares.append([max(1, len(segment.weights) // words) for segment in segments])
        return shares

    @property
    def countdown(self) -> int:
        """Cycles with products that count, all jobs of all units together."""
        return sum(job.product_cycles for _, job in self.jobs)


class CompiledNetwork(Struct, frozen=True):
    """All layers, and what the array is given."""

    layers: tuple[CompiledLayer, ...]
    program: ArrayProgram


def compile_network(
    layers: Sequence[IntegerLayer], x: Integers, timing: BarvinnTiming, units: int = 1
) -> CompiledNetwork:
    """The program that computes `layers` on the map x [ci, h, w] with `units` units.

    Output rows are dealt over the units, and output blocks too where there are fewer rows. Maps take turns at
    the two ends of the activation RAM. Raises `DoesNotFitError` where two maps, or the weights of one block
    of 64 output channels, are larger than their memory, `InputError` for a number of units there is not.
    """
    if not 1 <= units <= timing.units:
        raise InputError(
            f"the machine has {timing.units} units, not {units}",
            where="--units",
            cure=f"use 1 to {timing.units}",
        )
    depth, lowest = timing.memory.activation_words, timing.behaviour.first_word
    compiled: list[CompiledLayer] = []
    input_base, at_start = lowest, True
    for layer in layers:
        layer.shape.check()
        made = raw_layer(layer, timing)
        words_in, words_out = _input_words(made), _output_words(made)
        if lowest + words_in + words_out > depth:
            raise _maps_do_not_fit(made, words_in, words_out, depth - lowest)
        output_base = depth - words_out if at_start else lowest
        if made.shape.kind == "pool" and timing.behaviour.compare_bit is None:
            nothing = np.zeros(0, np.int64)
            host = host_pool(layer, input_base, words_in)
            program = LayerProgram(
                layer.shape.name, ((),) * units, (nothing,) * units, output_base, words_out, host
            )
        else:
            program = _layer_program(made, timing, units, input_base, output_base, is_first=not compiled)
            if made is not layer:
                program = replace(program, host=host_relu(layer, made, program))
        compiled.append(CompiledLayer(layer, program))
        input_base, at_start = output_base, not at_start
    inputs = map_words(x, layers[0].input_bits)
    programs = tuple(each.program for each in compiled)
    return CompiledNetwork(tuple(compiled), ArrayProgram(inputs, lowest, programs, timing.behaviour))


def _input_words(layer: IntegerLayer) -> int:
    shape = layer.shape
    return shape.hi * shape.wi * shape.blocks_in * layer.input_bits


def _output_words(layer: IntegerLayer) -> int:
    shape = layer.shape
    return shape.ho * shape.wo * shape.blocks_out * layer.output_bits


def _layer_program(
    layer: IntegerLayer,
    timing: BarvinnTiming,
    units: int,
    input_base: int,
    output_base: int,
    *,
    is_first: bool,
) -> LayerProgram:
    shape = layer.shape
    words: dict[range, Words] = {}
    row_parts, block_parts = deal(shape.ho, 1 if shape.kind == "pool" else shape.blocks_out, units)
    programs: list[tuple[Segment, ...]] = []
    owned: list[Integers] = []
    for unit in range(units):
        if unit >= row_parts * block_parts:
            programs.append(())
            owned.append(np.zeros(0, np.int64))
            continue
        rows = _part(shape.ho, row_parts, unit // block_parts)
        blocks = _part(shape.blocks_out, block_parts, unit % block_parts)
        segments: list[Segment] = []
        for part in _loads(layer, blocks, timing):
            share = UnitShare(input_base, output_base, part.start, len(part))
            jobs = list(layer_jobs(layer, share, rows, timing))
            if not segments and not is_first:
                jobs[0] = replace(jobs[0], after_drain=True)
            if part not in words:
                words[part] = weight_words(layer, part)
            segments.append(_segment(layer, words[part], part, jobs))
        programs.append(tuple(segments))
        owned.append(_owned(layer, output_base, rows, blocks))
    return LayerProgram(shape.name, tuple(programs), tuple(owned), output_base, _output_words(layer))


def deal(rows: int, blocks: int, units: int) -> tuple[int, int]:
    """In how many parts rows and output blocks are cut for so many units: the least work for the busiest."""
    choices = [
        (min(rows, units // parts), parts) for parts in range(1, min(blocks, units) + 1) if units // parts
    ]
    return min(choices, key=lambda choice: (-(-rows // choice[0]) * -(-blocks // choice[1]), choice[1]))


def _part(size: int, parts: int, index: int) -> range:
    """Part `index` of `size` cut into nearly equal parts."""
    return range(size * index // parts, size * (index + 1) // parts)


def _loads(layer: IntegerLayer, blocks: range, timing: BarvinnTiming) -> list[range]:
    """The blocks cut into parts whose weights and entries lie in memory together."""
    shape, memory = layer.shape, timing.memory
    if shape.kind == "pool":
        return [blocks]
    words = shape.taps * layer.weight_bits
    longest_loop = 1 << timing.width.length_bits
    most = min(
        memory.weight_words // words,
        memory.scaler_words,
        memory.bias_words,
        longest_loop // (layer.input_bits * layer.weight_bits),
    )
    if most < 1 or shape.taps > longest_loop:
        word_bytes = LANES * LANES // 8
        raise DoesNotFitError(
            "the weight RAM of a matrix-vector unit",
            words * word_bytes,
            memory.weight_words * word_bytes,
            where=shape.name,
            contributors=(Contributor(f"weights of 64 output channels, {words} words", words * word_bytes),),
            cure="use fewer bits per weight (--wprec), a smaller kernel or fewer input channels: the weights "
            "of 64 output channels must fit at once",
        )
    parts = -(-len(blocks) // most)
    cuts = [_part(len(blocks), parts, index) for index in range(parts)]
    return [range(blocks.start + cut.start, blocks.start + cut.stop) for cut in cuts]


def _segment(layer: IntegerLayer, weights: Words, part: range, jobs: list[Job]) -> Segment:
    shape = layer.shape
    if shape.kind == "pool":
        nothing = np.zeros((0, LANES), np.int64)
        return Segment(weights, nothing, nothing, tuple(jobs))
    entries = slice(part.start, part.stop)
    return Segment(
        weights,
        channel_words(layer.scaler)[entries],
        channel_words(layer.bias)[entries],
        tuple(jobs),
    )


def _owned(layer: IntegerLayer, output_base: int, rows: range, blocks: range) -> Integers:
    shape, bits = layer.shape, layer.output_bits
    pixels = np.arange(rows.start * shape.wo, rows.stop * shape.wo)
    words = np.arange(blocks.start * bits, blocks.stop * bits)
    addresses: Integers = (output_base + pixels[:, None] * shape.blocks_out * bits + words).ravel()
    return addresses


def _maps_do_not_fit(layer: IntegerLayer, words_in: int, words_out: int, depth: int) -> DoesNotFitError:
    return DoesNotFitError(
        "the activation RAM of a matrix-vector unit",
        (words_in + words_out) * WORD_BYTES,
        depth * WORD_BYTES,
        where=layer.shape.name,
        contributors=(
            Contributor(f"input map of {layer.shape.name}", words_in * WORD_BYTES),
            Contributor(f"output map of {layer.shape.name}", words_out * WORD_BYTES),
        ),
        cure="use fewer bits (--aprec, --oprec) or a smaller input",
    )
