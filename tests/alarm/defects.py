# SPDX-License-Identifier: Apache-2.0
"""Defects a simulator of training could have, each as a function of a planned run; None if it cannot be."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from alarm.registry import defect
from alarm.seams import (
    Arrays,
    Prepared,
    moved,
    op_of_step,
    ops_of,
    with_actions,
    with_commands,
    with_kernels,
    with_places,
    with_results,
)
from arch.spec.program import Action, Command, Compute, DmaStart, Effect
from configs.dtypes import BY_WORD, element_bytes, is_narrow
from configs.values import replace
from trainlib.primitives.definition import is_forward

FIRST_TWO_CALLS = 2
"""A kernel is called in the first iteration and in the stirred one; the third call is iteration 2."""


def _result(name: str, steps: tuple[str, ...], role: str, change, primitive: str = "", **options) -> None:
    """A defect that changes a result of the op in the middle of those with such a step."""

    def apply(prepared: Prepared) -> Prepared | None:
        item = op_of_step(prepared, *steps, primitive=primitive, role=role)
        return with_results(prepared, item, role, change, **options) if item is not None else None

    defect(name)(apply)


def _times(factor: float):
    return lambda result, arrays: result * np.float32(factor)


def _largest(change):
    """Change only the largest element of a result."""

    def wrong(result: np.ndarray, arrays: Arrays) -> np.ndarray:
        flat = result.reshape(-1)
        place = int(np.argmax(np.abs(flat)))
        flat[place] = change(flat[place])
        return result

    return wrong


def _last_row_zero(result: np.ndarray, arrays: Arrays) -> np.ndarray:
    result[-1] = 0
    return result


def _rolled(result: np.ndarray, arrays: Arrays) -> np.ndarray:
    return np.roll(result.reshape(-1), 1).reshape(result.shape)


def _one_tile(number: int, count: int) -> bool:
    return number == count // 2


FORWARD, BACKWARD = ("FW",), ("IG",)
LINEAR = "linear"

# Wrong factors and signs of whole tensors, of single tiles, rows and elements.
_result("weight gradient x 0.9", ("WG",), "dw", _times(0.9))
_result("weight gradient x 1.1", ("WG",), "dw", _times(1.1))
_result("weight gradient x 0.5", ("WG",), "dw", _times(0.5))
_result("sign of the weight gradient", ("WG",), "dw", _times(-1))
_result("input gradient x 0.9", BACKWARD, "dx", _times(0.9))
_result("sign of the input gradient", BACKWARD, "dx", _times(-1))
_result("output x 1.05", FORWARD, "y", _times(1.05))
_result("missing tile of an output", FORWARD, "y", _times(0), only=_one_tile)
_result("missing tile of a weight gradient", ("WG",), "dw", _times(0), only=_one_tile)
_result("missing tile of an input gradient", BACKWARD, "dx", _times(0), only=_one_tile)
_result("last row of a tile left out", FORWARD, "y", _last_row_zero, only=_one_tile)
_result("last row of a weight gradient left out", ("WG",), "dw", _last_row_zero, only=_one_tile)
_result("one element of an output 10 % off", FORWARD, "y", _largest(lambda x: x * 1.1), only=_one_tile)
_result("one element of a gradient negated", ("WG",), "dw", _largest(lambda x: -x), only=_one_tile)
_result("results one element further on", FORWARD, "y", _rolled, only=_one_tile)
_result("update x 1.1 of the weight", ("UPD",), "w_updated", _times(1.1))
_result("sign of the loss gradient", ("LOSS",), "dy", _times(-1))
_result("loss gradient not divided", ("LOSS",), "dy", _times(2))
_result("loss x 1.01", ("LOSS",), "loss", _times(1.01))
_result("bias gradient x 0.9", ("WG",), "db", _times(0.9))
_result("depthwise gradient x 0.9", ("WG",), "dw", _times(0.9), "depthwise")

# What a layer gets wrong.
_result("relu leaks", FORWARD, "y", lambda y, a: np.where(y == 0, a[0].astype(np.float32) * 0.05, y), "relu")
_result("relu gradient passes everywhere", BACKWARD, "dx", lambda dx, a: a[-1].astype(np.float32), "relu")
_result("padding of a max-pool taken as 0", FORWARD, "y", lambda y, a: np.maximum(y, 0), "max_pool")
_result("mean of a pool over one element less", FORWARD, "y", _times(1.2), "avg_pool")
_result("mean of a global pool over one element less", FORWARD, "y", _times(1.2), "global_avg_pool")
_result("sum of a residual takes one addend", FORWARD, "y", lambda y, a: a[0].astype(np.float32), "add")
_result("sum of gradients takes one addend", ("ACC",), "sum", lambda s, a: a[0].astype(np.float32))
_result("running variance not corrected", ("FW_INV", "FW"), "running_var_updated", _times(0.9))
_result("running mean not kept", ("FW_INV", "FW"), "running_mean_updated", _times(0.9))
_result("variance of a norm 2 % off", ("FW_VAR", "FW_INV", "FW"), "inv_std", _times(0.98))
_result("scale of a norm ignored in its gradient", ("IG", "IG_APPLY"), "dx", _times(1.1), "batch_norm")


@defect("bias added twice")
def _bias_twice(prepared: Prepared) -> Prepared | None:
    """To the outputs of a layer that has one; biases start at 0, so only stirred values can show it."""
    found = ops_of(prepared, lambda item: is_forward(item.op.step) and "b" in item.op and "y" in item.op)
    if not found:
        return None
    item = found[len(found) // 2]
    own = item.op["b"]

    def wrap(action: Compute, function):
        reads = [place.name.partition("[")[0] for place in action.effect.reads]
        if not {own, "b"} & set(reads):
            return function
        at = next(number for number, name in enumerate(reads) if name in (own, "b"))

        def wrong(arrays: Arrays) -> Arrays:
            bias = [array * 2 if number == at else array for number, array in enumerate(arrays)]
            return function(bias)

        return wrong

    return with_kernels(prepared, item.op.name, wrap)


def _state(
    name: str, role: str, change: Callable[[Mapping[str, np.ndarray], np.ndarray], np.ndarray]
) -> None:
    """A defect of a state of the optimizer: `change(arrays read by role, right result)`."""

    def apply(prepared: Prepared) -> Prepared | None:
        found = ops_of(
            prepared, lambda item: item.op.step in ("UPD", "ACCUMULATE") and role in item.op.writes
        )
        if not found:
            return None
        item = found[len(found) // 2]
        roles = {name: read for read, name in zip(item.op.reads, item.op.inputs, strict=True)}

        def wrap(action: Compute, function):
            names = [roles.get(place.name, place.name) for place in action.effect.reads]
            written = [place.name for place in action.effect.writes]

            def wrong(arrays: Arrays) -> Arrays:
                read = {name: np.array(array) for name, array in zip(names, arrays, strict=True)}
                return tuple(
                    change(read, np.array(result)) if place in (item.op[role], role) else result
                    for place, result in zip(written, function(arrays), strict=True)
                )

            return wrong

        return with_kernels(prepared, item.op.name, wrap)

    defect(name)(apply)


_state("velocity not kept", "velocity_updated", lambda read, new: new * 0)
_state(
    "velocity x momentum twice", "velocity_updated", lambda read, new: read["dw"] + 0.81 * read["velocity"]
)
_state(
    "first moment not kept", "m_updated", lambda read, new: np.float32(0.1) * read["dw"].astype(np.float32)
)
_state("step count of Adam stuck", "t_updated", lambda read, new: read["t"])
_state(
    "beta2 = beta1",
    "v_updated",
    lambda read, new: 0.9 * read["v"] + 0.1 * np.square(read["dw"].astype(np.float32)),
)
_state(
    "accumulator never reset",
    "total_updated",
    lambda read, new: read["total"] + 0.5 * read["dw"].astype(np.float32),
)
_state("accumulator takes the sum, not the mean", "total_updated", lambda read, new: new * 2)
_state("weight not updated", "w_updated", lambda read, new: read["w"])


def _later(name: str, steps: tuple[str, ...], role: str, change) -> None:
    """A defect that begins in iteration 2: `change(result, arrays, result of the iteration before)`."""

    def apply(prepared: Prepared) -> Prepared | None:
        item = op_of_step(prepared, *steps)
        if item is None or role not in item.op.writes:
            return None

        def wrap(action: Compute, function):
            known: list[list[np.ndarray]] = []

            def wrong(arrays: Arrays) -> Arrays:
                results = [np.array(result) for result in function(arrays)]
                before = known[0] if known else results
                late = len(known) >= FIRST_TWO_CALLS
                known.append(results)
                return (
                    [change(new, arrays, old) for new, old in zip(results, before, strict=True)]
                    if late
                    else results
                )

            return wrong

        return with_kernels(prepared, item.op.name, wrap)

    defect(name)(apply)


_later("replay skips a forward op from iteration 2", FORWARD, "y", lambda new, arrays, old: old)
_later("replay skips a weight gradient from iteration 2", ("WG",), "dw", lambda new, arrays, old: old)
_later("replay skips an input gradient from iteration 2", BACKWARD, "dx", lambda new, arrays, old: old)
_later("replay skips an update from iteration 2", ("UPD",), "w_updated", lambda new, arrays, old: old)
_later("replay uses the first label for ever", ("LOSS",), "dy", lambda new, arrays, old: old)


def _rounded(prepared: Prepared, step) -> Prepared | None:
    """The FPU rounds another way: in every sum of products of the forward pass."""
    found: Prepared | None = None
    for item in ops_of(prepared, lambda item: item.op.step == "FW" and item.macs > 0 and "y" in item.op):
        dtype = np.dtype(prepared.schedule.graph.tensors[item.op["y"]].dtype)
        if not is_narrow(dtype):
            continue

        def wrong(result: np.ndarray, arrays: Arrays, dtype: np.dtype = dtype) -> np.ndarray:
            nearest = result.astype(dtype)
            words = f"uint{8 * element_bytes(dtype)}"
            bits = nearest.view(words) + step(result, nearest.astype(np.float32)).astype(words)
            return bits.view(dtype).astype(np.float32)

        found = with_results(found or prepared, item, "y", wrong) or found
    return found


defect("rounding towards 0")(
    lambda prepared: _rounded(
        prepared, lambda value, nearest: np.where(np.abs(nearest) > np.abs(value), -1, 0)
    )
)
defect("rounding away from 0")(
    lambda prepared: _rounded(
        prepared, lambda value, nearest: np.where(np.abs(nearest) < np.abs(value), 1, 0)
    )
)


@defect("fp32 computed as if it were fp16")
def _half(prepared: Prepared) -> Prepared | None:
    item = op_of_step(prepared, *FORWARD)
    if item is None or prepared.schedule.graph.tensors[item.op["y"]].dtype != "float32":
        return None
    return with_results(prepared, item, "y", lambda y, arrays: y.astype(np.float16).astype(np.float32))


# Transfers.


def _item_bytes(prepared: Prepared) -> int:
    return BY_WORD[prepared.spec.dtype].bytes


def _command(
    name: str, wanted: Callable[[Command, int], bool], change: Callable[[Command, int], Command | None]
) -> None:
    """A defect of one DMA command; both functions get it and the bytes of an element."""

    def apply(prepared: Prepared) -> Prepared | None:
        by = _item_bytes(prepared)
        return with_commands(prepared, lambda c: wanted(c, by), lambda c: change(c, by))

    defect(name)(apply)


def _of_both(names: tuple[str, str], wanted: Callable[[Command, int], bool], change) -> None:
    """The same defect of a load and of a store."""
    load, store = names
    _command(load, lambda c, by: c.to_l1 and wanted(c, by), change)
    _command(store, lambda c, by: not c.to_l1 and wanted(c, by), change)


def _line(command: Command) -> int:
    return command.stride_bytes if command.lines > 1 else command.line_bytes


_of_both(
    ("stride of a load off by one element", "stride of a store off by one element"),
    lambda c, by: c.lines > 2 and c.stride_bytes > by,
    lambda c, by: replace(c, stride_bytes=c.stride_bytes - by),
)
_command(
    "halo off by one: a load begins a line early",
    lambda c, by: c.to_l1 and c.external_address >= _line(c),
    lambda c, by: replace(c, external_address=c.external_address - _line(c)),
)
_of_both(
    ("a load begins an element late", "a store begins an element late"),
    lambda c, by: True,
    lambda c, by: replace(c, external_address=c.external_address + by),
)
_of_both(
    ("last line of a load missing", "last line of a store missing"),
    lambda c, by: c.lines > 1,
    lambda c, by: replace(c, lines=c.lines - 1),
)
_of_both(
    ("half of a load missing", "half of a store missing"),
    lambda c, by: c.lines == 1 and c.line_bytes >= 16,
    lambda c, by: replace(c, line_bytes=c.line_bytes // 8 * 4),
)
_command("a command of a transfer left out", lambda c, by: True, lambda c, by: None)


# Buffers.


@defect("stale double buffer")
def _stale(prepared: Prepared) -> Prepared | None:
    """A kernel of a later tile finds what the tile two before it was given."""
    item = op_of_step(prepared, "FW", "WG", "IG", tiles=3)
    if item is None:
        return None
    seen: dict[str, np.ndarray] = {}

    def wrap(action: Compute, function):
        place = action.effect.reads[0] if action.effect.reads else None
        if place is None:
            return function
        tile, name = action.work.tile, f"{place.name}{action.team.kernel}"

        def wrong(arrays: Arrays) -> Arrays:
            before = seen.get(name)
            if tile == 0:
                seen[name] = arrays[0].copy()
            if tile == 2 and before is not None and before.shape == arrays[0].shape:
                arrays = [before, *arrays[1:]]
            return function(arrays)

        return wrong

    return with_kernels(prepared, item.op.name, wrap)


def _shifted(name: str, shift: Callable[[Effect, int], Effect]) -> None:
    def apply(prepared: Prepared) -> Prepared | None:
        item = op_of_step(prepared, "FW")
        if item is None:
            return None
        by = _item_bytes(prepared)
        return with_places(prepared, item, lambda effect: shift(effect, by) if effect.reads else None)

    defect(name)(apply)


_shifted(
    "a kernel reads an element too far",
    lambda effect, by: replace(effect, reads=(moved(effect.reads[0], by), *effect.reads[1:])),
)
_shifted(
    "a kernel writes an element too far",
    lambda effect, by: replace(effect, writes=(moved(effect.writes[0], by), *effect.writes[1:])),
)


@defect("two operands of a kernel exchanged")
def _exchanged(prepared: Prepared) -> Prepared | None:
    def swap(effect: Effect) -> Effect | None:
        for first, place in enumerate(effect.reads):
            for second, other in enumerate(effect.reads[:first]):
                if place.shape == other.shape and place.address != other.address:
                    reads = list(effect.reads)
                    reads[first], reads[second] = other, place
                    return replace(effect, reads=tuple(reads))
        return None

    for item in reversed(ops_of(prepared, lambda item: item.op.step in ("UPD", "IG", "WG"))):
        found = with_places(prepared, item, swap)
        if found is not None:
            return found
    return None


@defect("one bank's words of a buffer moved on")
def _bank(prepared: Prepared) -> Prepared | None:
    """Of 16 banks of 4 bytes, the words of one lie a row further on."""
    item = op_of_step(prepared, "FW")
    if item is None:
        return None

    def wrap(action: Compute, function):
        def wrong(arrays: Arrays) -> Arrays:
            first = np.ascontiguousarray(arrays[0])
            words = first.view(np.uint8).reshape(-1).copy()
            usable = words.size // 64 * 64
            if usable >= 128:
                rows = words[:usable].reshape(-1, 64)
                rows[:, 12:16] = np.roll(rows[:, 12:16], 1, axis=0)
            return function([words.view(first.dtype).reshape(first.shape), *arrays[1:]])

        return wrong

    return with_kernels(prepared, item.op.name, wrap)


@defect("weights of a kernel in reverse")
def _reversed(prepared: Prepared) -> Prepared | None:
    item = op_of_step(prepared, "FW", primitive="linear") or op_of_step(prepared, "FW", primitive="conv")
    if item is None or "w" not in item.op:
        return None
    own = item.op["w"]

    def wrap(action: Compute, function):
        names = [place.name.partition("[")[0] for place in action.effect.reads]

        def wrong(arrays: Arrays) -> Arrays:
            return function(
                [
                    array[..., ::-1] if name in (own, "w") else array
                    for name, array in zip(names, arrays, strict=True)
                ]
            )

        return wrong

    return with_kernels(prepared, item.op.name, wrap)


# What backward keeps.


def _read(name: str, role: str, change: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> None:
    """A defect of what a backward step reads of its forward pass: `change(array, the one before)`."""

    def apply(prepared: Prepared) -> Prepared | None:
        found = ops_of(prepared, lambda item: item.op.step == "IG" and role in item.op.reads)
        if not found:
            return None
        own = found[len(found) // 2].op
        seen: list[np.ndarray] = []

        def wrap(action: Compute, function):
            names = [place.name.partition("[")[0] for place in action.effect.reads]
            number = next(n for n, name in enumerate(names) if name in (role, own[role]))

            def wrong(arrays: Arrays) -> Arrays:
                seen.append(np.array(arrays[number]))
                wrong_ones = [
                    change(seen[-1], seen[-2:][0]) if n == number else a for n, a in enumerate(arrays)
                ]
                return function(wrong_ones)

            return wrong

        return with_kernels(prepared, own.name, wrap)

    defect(name)(apply)


def _other_sample(array: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Of a tile of one sample that of the tile before, which may be of another part as well."""
    return np.roll(array, 1, axis=0) if len(array) > 1 or array.shape != before.shape else before


_read("output of another sample", "y", _other_sample)
_read("mask of another sample", "mask", _other_sample)
_read("bits of a place shifted", "argmax", lambda place, before: place << 1)


@defect("output overwritten too early")
def _overwritten(prepared: Prepared) -> Prepared | None:
    """The gradient that a backward step reads is stored over the output that it reads, as well."""
    schedule, plan = prepared.schedule, prepared.schedule.plan
    found = ops_of(prepared, lambda item: item.op.reads == ("y", "dy"))
    for item in found:
        gradient, output = plan.home(item.op["dy"]), plan.home(item.op["y"])
        if gradient.size_bytes == output.size_bytes:
            break
    else:
        return None
    makers = [
        op.op.name
        for op in schedule.ops[: schedule.ops.index(item)]
        if plan.owners[item.op["dy"]] in {plan.owners[name] for name in op.op.outputs}
    ]

    def twice(action: Action) -> Action:
        if not isinstance(action, DmaStart) or action.commands[0].to_l1:
            return action
        copies = [
            moved_out(command, output.address - gradient.address)
            for command in action.commands
            if gradient.address <= command.external_address < gradient.end_address
        ]
        return replace(action, commands=(*action.commands, *copies))

    return with_actions(prepared, makers[-1], lambda own: [twice(action) for action in own])


def moved_out(command: Command, by_bytes: int) -> Command:
    """A command whose external side lies some bytes further on."""
    return replace(command, external_address=command.external_address + by_bytes)
