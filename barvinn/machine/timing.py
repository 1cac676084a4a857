# SPDX-License-Identifier: Apache-2.0
"""The parameters of BARVINN as frozen dataclasses, filled from ``configs/soc/barvinn.yaml``."""

from __future__ import annotations

from typing import Any, get_type_hints

from barvinn.machine.behaviour import RTL, Behaviour
from configs.errors import ConfigError
from configs.parameters import ParameterTree, last_set
from configs.suggest import suggestion
from configs.values import Struct

MACHINE = "barvinn"
"""Kind of machine in a SoC file."""

LANES = 64
"""Dot products of a unit, and their length in bits: its words are built of it (mvu_pkg.sv N)."""


class ClockTiming(Struct, frozen=True):
    """The one clock."""

    hz: int


class MemorySizes(Struct, frozen=True):
    """Words of a unit's memories: 64 bits of activations, 4096 of weights, 64 scalers, 64 biases."""

    activation_words: int
    weight_words: int
    scaler_words: int
    bias_words: int


class Widths(Struct, frozen=True):
    """Bits of registers and of the data path."""

    activation_jump_bits: int
    weight_jump_bits: int
    length_bits: int
    countdown_bits: int
    accumulator_bits: int
    scaler_bits: int
    bias_bits: int
    scaled_bits: int


class LaunchTiming(Struct, frozen=True):
    """Command to first product, last product to interrupt."""

    start_cycles: int
    done_cycles: int


class DrainTiming(Struct, frozen=True):
    """Stages between the last product and the memory."""

    memory_read_cycles: int
    product_cycles: int
    accumulate_cycles: int
    scale_cycles: int
    compare_cycles: int
    write_cycles: int
    crossbar_cycles: int

    def cycles(self, output_bits: int) -> int:
        """From the last product until all `output_bits` planes of its result are in memory."""
        stages = self.memory_read_cycles + self.product_cycles + self.accumulate_cycles
        return stages + self.scale_cycles + self.compare_cycles + self.write_cycles + output_bits


class HartTiming(Struct, frozen=True):
    """One hart of the barrel processor."""

    instruction_cycles: int
    poll_instructions: int
    handler_instructions: int

    @property
    def poll_cycles(self) -> int:
        """Time between two looks at the interrupt."""
        return self.poll_instructions * self.instruction_cycles


class HostTiming(Struct, frozen=True):
    """The link over which memories are filled; 0 bytes per cycle stand for a back door without time."""

    bytes_per_cycle: int

    def cycles(self, size_bytes: int) -> int:
        """Time to move `size_bytes`."""
        return -(-size_bytes // self.bytes_per_cycle) if self.bytes_per_cycle else 0


class BarvinnTiming(Struct, frozen=True):
    """All parameters of the machine."""

    name: str
    units: int
    clock: ClockTiming
    memory: MemorySizes
    width: Widths
    launch: LaunchTiming
    drain: DrainTiming
    hart: HartTiming
    host: HostTiming
    behaviour: Behaviour = RTL


_LEAST = {"host.bytes_per_cycle": 0, "hart.handler_instructions": 0, "hart.instruction_cycles": 1}
_MOST = {
    "units": 8,
    "memory.activation_words": 1 << 20,
    "memory.weight_words": 1 << 16,
    "memory.scaler_words": 1 << 12,
    "memory.bias_words": 1 << 12,
    "clock.hz": 10**12,
}
_MOST_BITS, _MOST_CYCLES, _MOST_OTHERS = 40, 100_000, 65_536


def timing_of(tree: ParameterTree, behaviour: Behaviour = RTL) -> BarvinnTiming:
    """The parameters of a tree that has exactly the fields of `BarvinnTiming`; raises `ConfigError`."""
    types = get_type_hints(BarvinnTiming)
    del types["behaviour"]  # no number of the machine
    wanted: list[str] = []
    for name, block in types.items():
        if issubclass(block, Struct):
            wanted += [f"{name}.{inner}" for inner in get_type_hints(block)]
        elif name != "name":
            wanted.append(name)
    for path, parameter in tree.items():
        if path not in wanted:
            cure = suggestion(path, wanted)
            raise ConfigError(f"unknown parameter '{path}'", where=parameter.where, cure=cure)
        _check(tree, path)
    for path in wanted:
        if path not in tree:
            raise ConfigError(
                f"parameter '{path}' is missing", where=tree.file, cure=f"add '{path}' to the file"
            )
    fields: dict[str, Any] = {"name": tree.name, "behaviour": behaviour}
    for name, block in types.items():
        if issubclass(block, Struct):
            inner = {key: tree[f"{name}.{key}"].value for key in get_type_hints(block)}
            fields[name] = block(**inner)
        elif name != "name":
            fields[name] = tree[name].value
    timing = BarvinnTiming(**fields)
    for what, words, bits in (
        ("activation", timing.memory.activation_words, timing.width.activation_jump_bits),
        ("weight", timing.memory.weight_words, timing.width.weight_jump_bits),
    ):
        if words > 1 << bits:
            path, of_bits = f"memory.{what}_words", f"width.{what}_jump_bits"
            places = {each: tree[each].where for each in (path, of_bits)}
            raise ConfigError(
                f"{path} is {words} words, but {bits}-bit addresses reach only {1 << bits}",
                where=last_set(places, places, tree.file),
                cure=f"use fewer words, or a larger width.{what}_jump_bits",
            )
    return timing


def _check(tree: ParameterTree, path: str) -> None:
    parameter = tree[path]
    value, unit = parameter.value, parameter.unit
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{path} = {value} is not whole", where=parameter.where, cure="use a whole number")
    by_unit = {"bits": (1, _MOST_BITS), "cycles": (0, _MOST_CYCLES)}
    least, most = by_unit.get(unit, (1, _MOST_OTHERS))
    least, most = _LEAST.get(path, least), _MOST.get(path, most)
    if not least <= value <= most:
        raise ConfigError(
            f"{path} = {value} must be between {least} and {most}",
            where=parameter.where,
            cure=f"use {least} to {most}",
        )
