# SPDX-License-Identifier: Apache-2.0
"""Kernels in C, compiled for RV32 and executed on examples of all primitives: which instructions, how often.

Inputs are those that the examples draw, of elementwise layers as large as in training. A call runs in a team
of one core and in one of eight, its cores one after the other (`in_turn.c` says what that means for numbers).
"""

from __future__ import annotations

import re
import subprocess
import sys
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from math import prod
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from arch.spec.isa import NestCall
from arch.spec.program import Compute, Effect, Place
from configs.errors import InputError, PulptrainError
from configs.values import replace
from deploy.calls.call import FUNCTIONS, CCall, Pointer, Table, c_calls, source_of, sources
from tools.deployed.counted import FLAGS, IN_LINE, MACHINE, TARGET
from tools.deployed.rv32 import Program
from trainlib.ir.graph import Op, TrainingGraph
from trainlib.ir.numerics import widened
from trainlib.ir.steps import KernelCall, KernelChoice, find_part
from trainlib.ir.varying import Varying
from trainlib.kernels.catalogue import depthwise_names, kernel_names, matmul_work
from trainlib.kernels.library import FP32_BYTES, LIBRARY
from trainlib.primitives.definition import DrawnInput, LayerPrimitive, OptimizerPrimitive
from trainlib.primitives.lowering.elementwise import ElementwiseLowering
from trainlib.primitives.lowering.kernel_call import form_of
from trainlib.primitives.optimizers import gradient_steps
from trainlib.references.reference import evaluate
from trainlib.registry import PRIMITIVES, lowering_of
from trainlib.training.backward_reads import in_other_forms
from trainlib.training.phases import build_update_graph
from trainlib.training.single import Single, single

CODEGEN = "clang-xpulp"
"""Whose nests say the sizes of a call; other codegens have the same."""

TEAMS = (1, 8)
MANY = 8
"""Samples of a batch, beside those of the examples."""
HIDDEN = "hidden"
"""Of a recurrent layer: sums of its gates are smaller in one of usual size, as its weights are."""
LENGTHS = ((41,), (96,), (7, 25))
"""Of weights that optimizers update, beside those of the examples."""
DEVIATION = 2**0.5
"""Of what elementwise layers read: linear layers with our initial weights make it of normalised inputs."""
PRODUCTS = (
    *((1, 1, 1), (8, 1, 50), (19, 1, 6), (16, 1, 10), (3, 1, 33), (40, 1, 3)),
    *((3, 5, 2), (17, 7, 9), (33, 4, 35), (40, 12, 66), (64, 9, 20), (20, 3, 11), (9, 6, 40)),
)
"""N, K, M."""
MOST_CALLS = 40
"""Of a nest, each of other sizes."""

MAIN = """
#include <string.h>
#include "kernels.h"
extern const char images[];
static char l1[%d] __attribute__((aligned(64)));
int pt_team = 1, pt_turn;
void pt_barrier(void) { __asm__ volatile(""); }
__attribute__((noinline)) void bench_begin(void) { __asm__ volatile(""); }
__attribute__((noinline)) void bench_end(void) { __asm__ volatile(""); }
%s
static const struct { void (*kernel)(const void *); const void *args; int image, bytes, cores; } calls[] = {
%s};
int main(void) {
    for (unsigned n = 0; n < sizeof calls / sizeof *calls; n++) {
        if (calls[n].bytes) memcpy(l1, images + calls[n].image, calls[n].bytes);
        pt_team = calls[n].cores;
        for (pt_turn = 0; pt_turn < pt_team; pt_turn++) {
            bench_begin();
            calls[n].kernel(calls[n].args);
            bench_end();
        }
    }
    return 0;
}
"""

IMAGES = '.section .rodata\n.globl images\n.balign 64\nimages: .incbin "images.bin"\n'


@dataclass(frozen=True, slots=True)
class Called:
    """A call of a nest, what does it in C, and L1 before it."""

    nest: NestCall
    calls: tuple[CCall, ...]
    image: bytes
    form: str = ""
    """Of a row program (`form_of`)."""
    action: Compute | None = None
    op: Op | None = None


@dataclass(slots=True)
class Execution:
    """One core of one call: how often it went from an instruction to the next, by their addresses."""

    nest: NestCall
    core: int
    kernels: tuple[str, ...]
    form: str
    numbers: Mapping[str, int]
    """What the C is given beside arrays."""
    steps: Counter[tuple[int, int]] = field(default_factory=Counter)


# --------------------------------------------------------------------------- what is called


def called() -> Iterator[Called]:
    """Calls of all nests that have C: at most `MOST_CALLS` a nest and C kernel, of one product each."""
    found: dict[tuple[str, tuple[str, ...]], dict[tuple[Any, ...], Called]] = defaultdict(dict)
    for one in (*_of_primitives(), *_of_matmuls()):
        key = (one.nest.kernel, tuple(call.kernel for call in one.calls))
        size = (one.nest.sizes, one.nest.per_core, one.nest.accumulates, one.nest.cores)
        # Arguments that no size says may differ: of equal sizes up to three are called.
        found[key].setdefault((*size, len(found[key]) % 3), one)
    for key in sorted(found):
        yield from _various(list(found[key].values()))


def _various(calls: list[Called]) -> list[Called]:
    """At most `MOST_CALLS`, in turn of those that differ in what is 0, 1 or more."""
    kinds: dict[tuple[int, ...], list[Called]] = defaultdict(list)
    for call in Random(1).sample(calls, len(calls)):
        kinds[call.nest.cores, *(min(size, 2) for _, size in call.nest.sizes)].append(call)
    turns = [kind[turn] for turn in range(MOST_CALLS) for kind in kinds.values() if turn < len(kind)]
    return turns[:MOST_CALLS]


def _of_primitives() -> Iterator[Called]:
    for graph, values in _graphs():
        known = evaluate(graph, values)
        for op in graph.ops:
            yield from _of_op(op, graph, known)


def _graphs() -> Iterator[tuple[TrainingGraph, dict[str, Any]]]:
    generator = np.random.default_rng(1)
    for name, primitive in PRIMITIVES.items():
        for example in getattr(primitive, "examples", ()):
            if "fp32" not in example.dtypes:
                continue
            options, many = example.attributes, max(example.batches)
            if isinstance(primitive, OptimizerPrimitive):
                inputs = (example.cases, *([DrawnInput(one)] for one in LENGTHS))
                drawn = [(options, one, 1) for one in inputs]
            else:
                drawn = [(options, example.cases, batch) for batch in (many, MANY)]
                drawn += [(options, inputs, many) for inputs in _larger(example.cases)]
            if HIDDEN in options:
                drawn.append(({**options, HIDDEN: MANY * options[HIDDEN]}, example.cases, many))
            for attributes, cases, batch in drawn:
                with suppress(PulptrainError):  # options may not fit a larger input
                    made = single(name, attributes, cases, batch=batch)
                    values = {**made.values, **dict(_activations(primitive, made, generator))}
                    evaluate(made.graph, values)
                    yield made.graph, values
                    yield from ((other, values) for other in in_other_forms(made.graph))
    for shape in LENGTHS:
        update = build_update_graph("sgd", {"learning_rate": 0.1}, shape)
        for graph in (
            *gradient_steps.accumulate_gradients(update, 2),
            gradient_steps.clip_gradients_by_value(update, 1.0),
            gradient_steps.clip_gradients_by_norm(update, 1.0),
            gradient_steps.average_weights(update, 0.5),
        ):
            given = {name: graph.tensors[name] for name in graph.needed_values}
            yield (
                graph,
                {
                    name: generator.uniform(-1, 1, item.shape).astype(item.dtype)
                    for name, item in given.items()
                },
            )


def _activations(layer: object, made: Single, generator: np.random.Generator) -> Iterator[tuple[str, Any]]:
    """Inputs of an elementwise layer as training has them, which some kernels branch on: `DEVIATION`.

    Not those that must be positive or differ: no example of theirs has others.
    """
    cases = [example.cases for example in getattr(layer, "examples", ())]
    elementwise = any(isinstance(lowering_of(op), ElementwiseLowering) for op in made.graph.ops)
    for name in made.graph.needed_values if isinstance(layer, LayerPrimitive) and elementwise else ():
        number = int(name.removeprefix("x") or 0) if re.fullmatch(r"x\d*", name) else -1
        drawn = [case[number] for case in cases if 0 <= number < len(case)]
        if any(case.dtype is None and case.low < 0 < case.high and not case.distinct for case in drawn):
            yield name, generator.normal(0, DEVIATION, made.values[name].shape).astype(np.float32)


def _larger(inputs: Sequence[DrawnInput]) -> Iterator[list[DrawnInput]]:
    """Every dimension twice as long; all but the first, or the only one, three longer."""
    yield [replace(case, shape=tuple(2 * size for size in case.shape)) for case in inputs]
    for kept in {min(1, len(case.shape) - 1) for case in inputs}:
        yield [
            replace(case, shape=(*case.shape[:kept], *(size + 3 for size in case.shape[kept:])))
            for case in inputs
        ]


def _of_op(op: Op, graph: TrainingGraph, known: Mapping[str, Any]) -> Iterator[Called]:
    lowering, chooser = lowering_of(op), Random(op.name)
    sizes = {**lowering.extents(op, graph.tensors), **lowering.reductions(op, graph.tensors)}
    whole = {axis: (0, size) for axis, size in sizes.items()}
    cuts = [{axis: (0, chooser.randint(1, size)) for axis, size in sizes.items()} for _ in range(2)]
    for number, ranges in enumerate((whole, *cuts)):
        for cores in TEAMS[number:] or TEAMS[:1]:
            choice = KernelChoice(lowering.default_kernel(op), CODEGEN, "kernel", cores)
            task = lowering.tile(op, graph.tensors, ranges, choice)
            arrays = {item.name: item.taken(known[item.tensor]) for item in task.inputs}
            arrays |= {
                item.name: np.zeros(item.shape, graph.tensors[item.tensor].dtype) for item in task.outputs
            }
            arrays |= {item.name: np.zeros(item.shape, item.dtype) for item in task.scratch}
            tile = _Tile(arrays)
            for call in task.calls:
                action = tile.action(call, cores)
                image = tile.image.tobytes()
                with np.errstate(all="ignore"):
                    tile.compute(action)
                yield from _as_c(action, op, image)


class _Tile:
    """Buffers in an image of L1, one behind the other."""

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        self.places: dict[str, Place] = {}
        address = 64
        for name, array in arrays.items():
            self.places[name] = Place("l1", address, array.shape, str(array.dtype), name)
            address += 4 * prod(array.shape)
        self.image = np.zeros(address + 64, np.uint8)
        for name, array in arrays.items():
            self.view(self.places[name])[...] = array

    def view(self, place: Place) -> Any:
        there = self.image[place.address : place.address + place.size_bytes]
        return there.view(place.dtype).reshape(place.shape)

    def action(self, call: KernelCall, cores: int) -> Compute:
        used = {name: self._part(name) for name in (*call.reads, *call.writes)}
        addresses = {name: place.address for name, place in {**self.places, **used}.items()}
        reads, writes = (tuple(used[name] for name in names) for names in (call.reads, call.writes))
        team = call.work(cores if call.fork else 1, addresses)
        return Compute(0, team=team, fork=call.fork, effect=Effect(reads, writes, call.compute, call.details))

    def _part(self, name: str) -> Place:
        buffer, first, shape = find_part(name, lambda known: self.places[known].shape)
        whole = self.places[buffer]
        return whole if buffer == name else Place("l1", whole.address + 4 * first, shape, whole.dtype, name)

    def compute(self, action: Compute) -> None:
        assert action.effect is not None
        arrays = [widened(self.view(place).copy()) for place in action.effect.reads]
        for place, array in zip(action.effect.writes, action.effect.function(arrays), strict=True):
            self.view(place)[...] = array


def _as_c(action: Compute, op: Op, image: bytes) -> Iterator[Called]:
    try:
        calls = c_calls(action, op)
    except InputError:
        return
    origin = action.team.origin
    # Several products of one action are several calls of the nest.
    if len(calls) == 1 and origin is not None:
        nest, details = origin.calls[0], action.effect.details if action.effect is not None else {}
        yield Called(nest, calls, image, form_of(nest.kernel, details), action, op)


_NO_OP = Op("", "", "", "", (), ())


def _of_matmuls() -> Iterator[Called]:
    for kernel in (*kernel_names(CODEGEN), *depthwise_names(CODEGEN)):
        header = LIBRARY.header(CODEGEN, kernel)
        if header.element_bytes != FP32_BYTES:
            continue
        forms = (False,) if header.is_depthwise else (False, True)
        for (n, k, m), trans_b, cores in product(PRODUCTS, forms, TEAMS):
            of_b = (m, n, k) if header.is_depthwise else (m, k) if trans_b else (k, m)
            arrays = {"A": (n, k), "B": of_b, "C": (n, m)}
            tile = _Tile({name: np.ones(shape, np.float32) for name, shape in arrays.items()})
            places = [tile.places[name] for name in arrays]
            addresses = [place.address for place in places]
            team = matmul_work(kernel, CODEGEN, n, k, m, trans_b, cores, *addresses)
            effect = Effect(tuple(places[:2]), (places[2],), lambda _: ())
            yield from _as_c(Compute(0, team=team, effect=effect), _NO_OP, tile.image.tobytes())


# --------------------------------------------------------------------------- what is executed


def execute(cases: Sequence[Called], folder: Path) -> tuple[Path, list[Execution]]:
    """Compile all in one program, run it; the program, and every core of every call."""
    network = build(cases, folder)
    return network, list(traced(network, cases))


def build(cases: Sequence[Called], folder: Path) -> Path:
    """The program that makes these calls."""
    folder.mkdir(parents=True, exist_ok=True)
    kernels = {call.kernel for case in cases for call in case.calls}
    texts = {
        name: text for name, text in sources(kernels).items() if not name.endswith(".c") or name == FUNCTIONS
    }
    texts |= {f"{kernel}.c": alone(kernel) for kernel in kernels}
    arguments, rows, images, size = [], [], bytearray(), 0
    for number, case in enumerate(cases):
        for call in case.calls:
            arguments.append(f"static const struct {call.struct} a{number} = {{{_fields(call)}}};\n")
            rows.append(
                f"    {{{call.kernel}, &a{number}, {len(images)}, {len(case.image)}, {case.nest.cores}}},\n"
            )
        images += case.image
        size = max(size, len(case.image))
    texts |= {
        "main.c": MAIN % (size + 64, "".join(arguments), "".join(rows)),
        "images.S": IMAGES,
    }
    for name, text in texts.items():
        path = folder / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
    (folder / "images.bin").write_bytes(images)
    # images.bin is not among what zig knows of images.S.
    flags = f"{TARGET} {FLAGS} {IN_LINE} -ffunction-sections -I. -DNETWORK_CORES=8 -DPT_CORES=8"
    made = [*sorted(name for name in texts if name.endswith(".c")), "images.S"]
    version = f"-DIMAGES={zlib.crc32(bytes(images))}u"
    command = [sys.executable, "-m", "ziglang", "cc", *flags.split(), version, *made, "-lm", "-o", "bench"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "bench"


def alone(kernel: str) -> str:
    """The file of a kernel as an export has it that calls no other; kernels it hands over to are its own."""
    text = sources([kernel])[source_of(kernel).file]
    others = sorted({*re.findall(r"^void (\w+)\(const void \*args\)", text, re.MULTILINE)} - {kernel})
    return "".join(f"#define {other} {other}_of_{kernel}\n" for other in others) + text


def _fields(call: CCall) -> str:
    texts = []
    for name, value in call.fields:
        if isinstance(value, Pointer):
            text = f"(void *)(l1 + {value.address})"
        elif isinstance(value, Table):
            text = f"(const float[]){{{', '.join(map(repr, value.values))}}}" if value.values else "0"
        elif isinstance(value, tuple):
            text = f"{{{', '.join(map(str, value))}}}"
        else:
            number = value.now if isinstance(value, Varying) else value
            text = (
                "__builtin_inff()"
                if number == float("inf")
                else "-__builtin_inff()"
                if number == float("-inf")
                else repr(number)
            )
        texts.append(f".{name} = {text}")
    return ", ".join(texts)


def traced(network: Path, cases: Iterable[Called]) -> Iterator[Execution]:
    """What every core executed: qemu says where it goes on after each jump."""
    program = Program(network)
    begin, end = (f"{program.functions[name][0]:08x}" for name in ("bench_begin", "bench_end"))
    first, last = program.spans[0][0], program.spans[-1][1]
    command = [*MACHINE, "-dfilter", f"{first:#x}..{last:#x}", "-D", "/dev/stderr", str(network)]
    cores = (
        Execution(case.nest, core, tuple(call.kernel for call in case.calls), case.form, _numbers(case))
        for case in cases
        for core in range(case.nest.cores)
    )
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        steps: Counter[tuple[str, str]] = Counter()
        before = ""
        for line in process.stderr:
            at = line.split("/", 2)[1]
            if at == begin:
                steps, before = Counter(), ""
            elif at == end and before:
                execution = next(cores)
                execution.steps = _one_by_one(steps, program)
                yield execution
                before = ""
            else:
                if before:
                    steps[before, at] += 1
                before = at
    if process.returncode:
        raise RuntimeError(f"{network} ended with {process.returncode}")


def _numbers(case: Called) -> dict[str, int]:
    return {name: value for call in case.calls for name, value in call.fields if isinstance(value, int)}


def _one_by_one(runs: Mapping[tuple[str, str], int], program: Program) -> Counter[tuple[int, int]]:
    """Steps from instruction to instruction of straight runs, each from its first to the next run's."""
    steps: Counter[tuple[int, int]] = Counter()
    for (start, following), times in runs.items():
        for step in program.straight(int(start, 16), int(following, 16)):
            steps[step] += times
    return steps
