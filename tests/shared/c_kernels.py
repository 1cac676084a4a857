# SPDX-License-Identifier: Apache-2.0
"""C kernels on the host: all of `deploy/kernels/` in one library, run on an image of L1 by a team.

What a kernel writes is held against the function of its action, and every other byte against what it was.
"""

from __future__ import annotations

import ctypes
import random
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path

import numpy as np

from arch.spec.program import Compute, Effect, Place
from configs.dtypes import dtype_of, element_bytes, is_narrow
from configs.errors import InputError
from deploy.calls.call import CCall, Pointer, Table, c_calls, kernel_sources, scalar, source_of, sources
from deploy.calls.generated import generated
from shared.primitive_harness import CODEGEN, box, cuts, poisoned
from trainlib.ir.steps import KernelChoice, find_part, widened
from trainlib.ir.varying import Varying
from trainlib.references.reference import evaluate
from trainlib.registry import lowering_of

FLAGS = ("-std=c99", "-O1", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror")

TEAM = """
#define _GNU_SOURCE
#include <pthread.h>
#include "kernel.h"
static __thread int own, team;
static pthread_barrier_t gate;
struct job { void (*kernel)(const void *); const void *args; int core, cores; };
int pt_core(void) { return own; }
int pt_cores(void) { return team; }
void pt_barrier(void) { pthread_barrier_wait(&gate); }
static void *work(void *given)
{
    const struct job *job = given;
    own = job->core;
    team = job->cores;
    job->kernel(job->args);
    return 0;
}
void run_team(void (*kernel)(const void *), const void *args, int cores, int at_once)
{
    struct job jobs[64];
    pthread_t threads[64];
    pthread_barrier_init(&gate, 0, (unsigned)cores);
    for (int core = 0; core < cores; core++) {
        jobs[core] = (struct job){kernel, args, core, cores};
        if (at_once)
            pthread_create(&threads[core], 0, work, &jobs[core]);
        else
            work(&jobs[core]);
    }
    for (int core = 0; at_once && core < cores; core++)
        pthread_join(threads[core], 0);
    pthread_barrier_destroy(&gate);
}
"""

NEAR_FILES = frozenset({"cross_entropy.c", "losses.c"})
NEAR = frozenset({"conv_bias_wg"})
"""Kernels whose sums NumPy adds in another order, or that call a function of libm: held to the tolerance."""

PRODUCTS = frozenset({"matmul.c", "mm_dw.c"})
"""In 16 bit functions with fp32 sums add in the order of BLAS, terms in several buffers without rounding."""

COPIES = frozenset({"copy", "copy_nd"})
"""May write a box of a buffer only, of which their function says the rest is 0: other calls write it."""

CLOSE = 1e-5
"""Of the largest number a kernel writes or reads, for those that are `NEAR`."""


@cache
def library() -> ctypes.CDLL:
    """All kernels written by hand, and the team, in one shared library."""
    return _built(sources(kernel_sources()) | {"team.c": TEAM})


@cache
def library_of(kernel: str) -> ctypes.CDLL:
    """The library of a kernel; a generated one has its own, which finds the team in `library`."""
    team = library()
    return team if kernel in kernel_sources() else _built(sources([kernel]))


def _built(texts: dict[str, str]) -> ctypes.CDLL:
    folder = Path(tempfile.mkdtemp(prefix="pulptrain-kernels-"))
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    made = [str(folder / name) for name in texts if name.endswith(".c")]
    target = folder / "kernels.so"
    command = ["gcc", *FLAGS, "-fPIC", "-shared", "-pthread", *made, "-o", str(target), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(target), mode=ctypes.RTLD_GLOBAL)


@cache
def _structure(kernel: str, struct: str) -> type[ctypes.Structure]:
    fields = source_of(kernel).structs[struct]
    types = {"int": ctypes.c_int, "float": ctypes.c_float}
    declared = []
    for field in fields:
        kind = ctypes.c_void_p if field.pointer else types[field.ctype]
        declared.append((field.name, kind * field.count if field.count else kind))
    return type(struct, (ctypes.Structure,), {"_fields_": declared})


def run(call: CCall, image: np.ndarray, cores: int, *, at_once: bool) -> None:
    """The C function on an image of L1, whose first byte has the address 0."""
    made, kept = _structure(call.kernel, call.struct)(), []
    for name, value in call.fields:
        if isinstance(value, Pointer):
            setattr(made, name, image.ctypes.data + value.address)
        elif isinstance(value, Table):
            kept.append(np.array(value.values, np.float32))
            setattr(made, name, kept[-1].ctypes.data if value.values else None)
        elif isinstance(value, tuple):
            slots = getattr(made, name)
            assert len(slots) == len(value), (call.kernel, name)
            slots[:] = value
        else:
            setattr(made, name, value.now if isinstance(value, Varying) else value)
    kernel = getattr(library_of(call.kernel), call.kernel)
    library().run_team(kernel, ctypes.byref(made), cores, int(at_once))


@dataclass
class Tile:
    """The buffers of one tile in an image of L1, one behind the other."""

    image: np.ndarray
    places: dict[str, Place]

    def place(self, name: str) -> Place:
        """A buffer, or the part of one that a call names."""
        buffer, first, shape = find_part(name, lambda known: self.places[known].shape)
        whole = self.places[buffer]
        if buffer == name:
            return whole
        return Place("l1", whole.address + element_bytes(whole.dtype) * first, shape, whole.dtype, name)

    def view(self, image: np.ndarray, place: Place) -> np.ndarray:
        """The array there."""
        there = image[place.address : place.address + place.size_bytes]
        return there.view(place.dtype).reshape(place.shape)


def tile_of(tensors, task, values) -> Tile:
    """All buffers of a tile, inputs loaded, the rest poisoned."""
    arrays = {item.name: item.taken(values[item.tensor]) for item in task.inputs}
    arrays |= {item.name: poisoned(item.shape, tensors[item.tensor].dtype) for item in task.outputs}
    arrays |= {item.name: poisoned(item.shape, item.dtype) for item in task.scratch}
    return laid_out(arrays)


def laid_out(arrays: dict[str, np.ndarray]) -> Tile:
    """Buffers one behind the other, as those of a tile lie in L1."""
    places, address = {}, 64
    for name, array in arrays.items():
        places[name] = Place("l1", address, array.shape, str(array.dtype), name)
        address += 4 * prod(array.shape)
    image = np.full(address + 64, 0xFF, np.uint8)
    tile = Tile(image, places)
    for name, array in arrays.items():
        tile.view(image, places[name])[...] = array
    return tile


def action_of(call, tile: Tile, cores: int) -> Compute:
    """The compute action of one call, as `scheduler.programs.program` makes it."""
    used = {name: tile.place(name) for name in (*call.reads, *call.writes)}
    addresses = {name: place.address for name, place in {**tile.places, **used}.items()}
    reads, writes = (tuple(used[name] for name in names) for names in (call.reads, call.writes))
    effect = Effect(reads, writes, call.compute, call.details)
    team = call.work(cores if call.fork else 1, addresses)
    return Compute(0, team=team, fork=call.fork, effect=effect)


def check_case(case, graph, values, *, accumulation: str = "kernel", most_tiles: int = 3) -> dict[str, int]:
    """Tiles of random sizes of all steps of a case: every kernel with a C source, with how often it ran."""
    known = evaluate(graph, values)
    chooser = random.Random(case.seed)
    ran: dict[str, int] = {}
    for op in graph.ops:
        lowering = lowering_of(op)
        default = lowering.default_kernel(op)
        for kernel in (default, *case.example.kernels) if default else ("",):
            cores = chooser.choice((1, 2, 8))
            sizes = {**lowering.extents(op, graph.tensors), **lowering.reductions(op, graph.tensors)}
            chosen = {name: chooser.randint(1, size) for name, size in sizes.items()}
            tiles = cuts(sizes, chosen)
            choice = KernelChoice(kernel, CODEGEN, accumulation, cores)
            for ranges in chooser.sample(tiles, min(len(tiles), most_tiles)):
                task = lowering.tile(op, graph.tensors, ranges, choice)
                tile = tile_of(graph.tensors, task, {name: known[name] for name in op.inputs})
                for call in task.calls:
                    action = action_of(call, tile, cores)
                    if check_action(action, op, tile, f"{case} {op.name} {ranges}"):
                        ran[action.team.kernel] = ran.get(action.team.kernel, 0) + 1
    return ran


def is_near(action: Compute, op, calls: Sequence[CCall]) -> bool:
    """Whether the numbers of an action need not be the same bits."""
    kernel = scalar(str(action.effect.details.get("source", action.team.kernel)))
    if kernel in kernel_sources() and "loop" not in action.effect.details:
        narrow = any(is_narrow(place.dtype) for place in action.effect.writes)
        in_fp32 = narrow and not any(call.kernel.endswith("_sums") for call in calls)
        files = NEAR_FILES | PRODUCTS if in_fp32 else NEAR_FILES
        return kernel in NEAR or kernel_sources()[kernel].file in files
    made = generated(action, op, kernel)
    return made is not None and not made.kernel.exact


def check_action(action: Compute, op, tile: Tile, what: str) -> bool:
    """One action in C and by its function, which has the last word; False if there is no C for it."""
    effect, kernel = action.effect, action.team.kernel
    before, untouched = tile.image.copy(), tile.image.copy()
    arrays = [widened(tile.view(before, place)) for place in effect.reads]
    for place, array in zip(effect.writes, effect.function(arrays), strict=True):
        tile.view(tile.image, place)[...] = array
    try:
        calls = c_calls(action, op)
    except InputError:
        return False
    for call in calls:
        barriers = "pt_barrier" in source_of(call.kernel).text
        run(call, before, len(action.team.cores), at_once=barriers)
    for place in effect.writes:
        ours, truth = tile.view(before, place), tile.view(tile.image, place)
        if is_near(action, op, calls):
            wide = [widened(array) for array in (ours, truth)]
            largest = max([np.abs(array[np.isfinite(array)]).max(initial=0) for array in (wide[1], *arrays)])
            last_bit = 2 * dtype_of(place.dtype).unit_roundoff if is_narrow(place.dtype) else 0
            close = CLOSE if len(calls) == 1 else max(CLOSE, last_bit)
            near = np.allclose(*wide, rtol=last_bit, atol=close * largest, equal_nan=True)
            assert near, f"{what}: {kernel}"
            ours[...] = truth
        else:
            bits = np.dtype(f"u{element_bytes(place.dtype)}")
            same = (ours == truth) | (np.isnan(ours) & np.isnan(truth))
            if scalar(kernel) in COPIES:  # what is not copied is left as it was
                same |= ours.view(bits) == tile.view(untouched, place).view(bits)
            wrong = np.flatnonzero(~same.reshape(-1))
            assert not wrong.size, (
                f"{what}: {kernel} writes {place.name}{list(place.shape)}{wrong[:8]} as "
                f"{ours.reshape(-1)[wrong[:8]]}, not {truth.reshape(-1)[wrong[:8]]}; {calls}"
            )
        tile.view(untouched, place)[...] = ours
    touched = np.flatnonzero(before != untouched)
    assert not touched.size, f"{what}: {kernel} writes bytes {touched[:8]} that are not its own; {calls}"
    tile.image[:] = before
    return True


__all__ = ["NEAR", "box", "check_action", "check_case", "library", "run"]
