# SPDX-License-Identifier: Apache-2.0
"""The inputs: a command line with its files, drawn from a seed and a number, of one of `KINDS`."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from configs.dtypes import BY_WORD
from configs.yaml_file import load_yaml
from pulptrain.__main__ import run
from tools.fuzz.archives import archive_subject
from tools.fuzz.cases import cases
from tools.fuzz.folder import OUTPUT_OPTIONS
from tools.fuzz.mutate import NUMBERS, WORDS, mutated_bytes, mutated_text
from tools.fuzz.onnx_files import onnx_subject
from tools.fuzz.subject import FOLDER, ROOT, Subject
from tools.fuzz.targets import SPEC, aimed
from traces.files.tables import read_table, write_table
from trainlib.primitives.definition import LayerPrimitive, LossPrimitive, OptimizerPrimitive
from trainlib.registry import PRIMITIVES, is_internal


def subject(seed: int, number: int, kinds: Sequence[str] = ()) -> Subject:
    """Input `number` of a seed: always the same."""
    generator = Random(f"{seed}:{number}")
    kind = generator.choice(tuple(kinds) or tuple(KINDS))
    return KINDS[kind](generator)


# Models

SMALL_SOC = ("--cores", "2")


def _layer(name: str, generator: Random) -> str:
    schemas = {
        key: item.schema
        for key, item in PRIMITIVES.items()
        if isinstance(item, LayerPrimitive) and not is_internal(item)
    }
    kind = generator.choice(list(schemas))
    schema = schemas[kind]
    options = [f"name: {name}", f"type: {kind}"]
    for key, declared in schema.model_fields.items():
        if key in ("name", "type", "inputs") or not (declared.is_required() or generator.random() < 0.15):
            continue
        options.append(f"{key}: {_option(key, str(declared.annotation), generator)}")
    return "  - {" + ", ".join(options) + "}"


def _option(key: str, annotation: str, generator: Random) -> str:
    if generator.random() < 0.03:
        return generator.choice((*NUMBERS, *WORDS))
    if "bool" in annotation and generator.random() < 0.7:
        return generator.choice(("true", "false"))
    if key in ("shape", "axes", "starts", "stops", "padding", "kernel", "stride", "scales", "order"):
        few = [str(generator.randrange(4)) for _ in range(generator.randrange(1, 4))]
        return generator.choice((few[0], "[" + ", ".join(few) + "]"))
    if "float" in annotation:
        return generator.choice(("0.1", "0.5", "1.0", "2.0", "0"))
    if "str" in annotation and "int" not in annotation:
        return generator.choice(("erf", "tanh", "same", "mean", "nearest", "bilinear", "relu", "fp16", "HWC"))
    return str(generator.randrange(10))


def model_text(generator: Random) -> str:
    """A small model, of layers that may or may not fit together."""
    shape = generator.choice(([8], [4, 6], [3, 8, 8], [2, 5, 7], [16]))
    layers = [_layer(f"l{number}", generator) for number in range(generator.randrange(0, 4))]
    if len(shape) == 3 and generator.random() < 0.7:
        layers.append("  - {name: flat, type: flatten}")
    if generator.random() < 0.8:
        layers.append("  - {name: fc, type: linear, out_features: 4}")
    optimizer = generator.choice(
        [key for key, item in PRIMITIVES.items() if isinstance(item, OptimizerPrimitive)]
    )
    loss = generator.choice([key for key, item in PRIMITIVES.items() if isinstance(item, LossPrimitive)])
    more = generator.choice(
        ("", "", "", ", clip_value: 0.1", ", clip_norm: 1.0", ", accumulate: 2", ", separate: true")
    )
    lines = [
        "name: m",
        "description: d",
        "source: s",
        f"input: {{shape: {shape}}}",
        "dataset: random",
        f"loss: {loss}",
        f"optimizer: {{name: {optimizer}, learning_rate: 0.01{more}}}",
        f"batch: {generator.choice((1, 1, 2, 3))}",
        generator.choice(("", "", *(f"dtype: {word}" for word in BY_WORD), "layout: HWC", "train: last")),
        "layers:",
        *layers,
    ]
    return "\n".join(line for line in lines if line) + "\n"


def _models(generator: Random) -> Subject:
    text = model_text(generator) if generator.random() < 0.7 else _shipped_model(generator)
    options = _some_options(RUN_OPTIONS, generator, 0.3)
    return Subject(
        "model",
        ("run", f"{FOLDER}/m.yaml", "--no-cache", "-q", *options),
        {"m.yaml": text.encode() if generator.random() < 0.5 else mutated_text(text, generator)},
    )


def _shipped_model(generator: Random) -> str:
    name = generator.choice(("simple-mlp", "simple-mlp", "tutorial-cnn", "digits-cnn"))
    return (ROOT / "configs" / "models" / f"{name}.yaml").read_text()


# SoCs and kernels


def _socs(generator: Random) -> Subject:
    names = ("pulpissimo", "stm32l4", "gap9")
    name = generator.choice(names)
    if generator.random() < 0.4:
        paths = generator.sample(_parameter_paths(), generator.randrange(1, 4))
        groups: dict[str, list[str]] = {}
        for path in paths:
            group, _, key = path.rpartition(".")
            leaf = f"{{value: {generator.choice(NUMBERS)}, source: s}}"
            groups.setdefault(group, []).append(f"{key}: {leaf}")
        lines = ["name: x", "description: d", "base: pulp-open", "parameters:"]
        for group, leaves in groups.items():
            lines += (
                [f"  {group}:", *(f"    {leaf}" for leaf in leaves)]
                if group
                else [f"  {leaf}" for leaf in leaves]
            )
        data = "\n".join(lines).encode()
    else:
        data = mutated_text((ROOT / "configs" / "soc" / f"{name}.yaml").read_text(), generator)
    command: tuple[str, ...] = ("run", "simple-mlp", "--no-cache", "-q")
    if generator.random() < 0.4:
        command = ("kernel", "mm", "--n", "3", "--k", "4", "--m", "5", "-q")
    return Subject("soc", (*command, "--soc", f"{FOLDER}/soc.yaml"), {"soc.yaml": data})


@cache
def _parameter_paths() -> tuple[str, ...]:
    paths: list[str] = []

    def walk(node: object, path: str) -> None:
        if isinstance(node, dict):
            if "value" in node:
                paths.append(path)
                return
            for key, child in node.items():
                walk(child, f"{path}.{key}" if path else key)

    walk(load_yaml(ROOT / "configs" / "soc" / "pulp-open.yaml").plain()["parameters"], "")
    return tuple(paths)


def _kernels(generator: Random) -> Subject:
    folder = ROOT / "configs" / "kernels" / "clang-xpulp"
    files = sorted(
        path for path in folder.iterdir() if path.name != "codegen.yaml" and path.name.startswith("mm")
    )
    file = generator.choice(files)
    size = [generator.choice(("1", "2", "4", "7", "9")) for _ in range(3)]
    if generator.random() < 0.1:
        size[generator.randrange(3)] = generator.choice(NUMBERS)
    listings = sorted((ROOT / "configs" / "kernels" / "asm-xpulp").glob("*.S"))
    if listings and generator.random() < 0.15:
        file = generator.choice(listings)
    return Subject(
        "kernel",
        ("kernel", f"{FOLDER}/{file.name}", "--n", size[0], "--k", size[1], "--m", size[2], "-q"),
        {file.name: mutated_text(file.read_text(), generator)},
    )


# Schedules and explore specs


def _schedules(generator: Random) -> Subject:
    data = mutated_text(base_files()["schedule.yaml"].decode(), generator)
    return Subject(
        "schedule",
        ("run", "simple-mlp", "--cores", "2", "--schedule", f"{FOLDER}/s.yaml", "--no-cache", "-q"),
        {"s.yaml": data},
    )


EXPLORE = """\
name: n
model: simple-mlp
settings:
  l2: 256KiB
sweep:
  cores: [1, 2]
  l1.size_bytes: [32KiB]
points:
  - {cores: 2, l1: 64KiB, resident: auto}
objectives: [cycles, l1_size_bytes]
"""


def _explore(generator: Random) -> Subject:
    arguments = ("explore", f"{FOLDER}/e.yaml", "--workers", "1", "--no-cache", "-q")
    return Subject("explore", arguments, {"e.yaml": mutated_text(EXPLORE, generator)})


# Arguments

SIZES = ("64KiB", "32KiB", "16KiB", "4KiB", "0", "1B", "1MiB", "8MiB", "1TiB", "64k", "-1KiB", "1e99GiB", "x")
OPS = ("fc1.FW", "fc1.WG", "fc2.IG", "fc1.UPD", "loss.LOSS", "FW", "UPD", "no.FW", "", "fc1")
RUN_OPTIONS: Mapping[str, Sequence[str]] = {
    "--cores": ("1", "2", "4", "8", "16", "17"),
    "--l1": SIZES,
    "--l2": SIZES,
    "--l3": SIZES,
    "--fpus": ("private", "1-static", "2-dynamic", "99-static", "x"),
    "--bank-conflicts": ("on", "off", "x"),
    "--icache": ("warm", "cold", "steady", "x"),
    "--buffering": (
        "none",
        "single",
        "double",
        "best",
        "3",
        "double,fc1.FW.w=1",
        "2,x.y=1",
        "fc1.FW.w=9",
        "1000",
    ),
    "--placement": ("first-fit", "best-fit", "optimal", "x"),
    "--home": ("fc1.weight=l3", "fc1.weight=streamed", "x=l2", "fc1.weight=x", "input=l3", "label=streamed"),
    "--kernel": ("FW=mm", "fc1.FW=mm_unroll_2x4", "FW=x", "x=mm", "UPD=mm"),
    "--im2col": ("FW=cores", "WG=dma", "IG=none", "x=dma", "FW=x"),
    "--variant": ("as-published", "default", "WG=as-published", "FW=none", "x=dma", "x"),
    "--tile": ("fc1.FW=co:1", "fc1.FW=co:3,ci:2", "fc1.WG=co:99", "fc1.FW=x:1", "x=co:1", "fc1.FW=co:0"),
    "--loop-order": ("fc1.FW=ci,co", "fc1.FW=co,co", "fc1.FW=x", "x=co"),
    "--prefetch": ("on", "off", "x"),
    "--resident": (
        "off",
        "auto",
        "fc1.weight",
        "fc1.weight@fc1.FW..fc1.WG",
        "x",
        "fc1.weight@x",
        "input,auto",
    ),
    "--seed": ("0", "1", "7"),
    "--dtype": (*BY_WORD, "x"),
    "--batch": ("1", "2", "5"),
    "--accumulate": ("1", "2", "3"),
    "--iterations": ("1", "2", "3"),
    "--timing": ("rtl", "gvsoc", "x"),
    "--codegen": ("clang-xpulp", "gcc-xpulp", "asm-xpulp", "x"),
    "--soc": ("pulp-open", "stm32l4", "gap9", "pulpissimo", "vega", "x", "/no/such.yaml"),
    "--out": (f"{FOLDER}/out", f"{FOLDER}/m.yaml", f"{FOLDER}/out/a/b"),
    "--separate-update": (),
    "--no-functional": (),
    "--json": (),
    "--dump-program": (),
}
KERNEL_OPTIONS: Mapping[str, Sequence[str]] = {
    "--n": ("1", "3", "16"),
    "--k": ("1", "5", "16"),
    "--m": ("1", "7", "16"),
    "--trans-b": (),
    "--accumulate": (),
    "--dtype": (*BY_WORD, "int8", "x"),
    "--cores": ("1", "8"),
    "--json": (),
    **{key: RUN_OPTIONS[key] for key in ("--soc", "--timing", "--codegen", "--fpus", "--bank-conflicts")},
}
PRIMITIVE_OPTIONS: Mapping[str, Sequence[str]] = {
    "--shape": ("4", "8x8", "4x6x6", "2x3x5x5", "5:int32:10", "0x3", "x", "3x", "4:uint8:2", "4:x:3"),
    "--step": ("fw", "ig", "wg", "loss", "upd", "x"),
    "--option": (
        "out_features=4",
        "kernel=3",
        "out_channels=2",
        "hidden=3",
        "heads=2",
        "classes=3",
        "axes=[1]",
        "x=1",
        "learning_rate=0.1",
        "kernel=[",
        "name=x",
        "dtype=fp16",
        "shape=[2, 2]",
        "layout=HWC",
        "words=5",
    ),
    "--batch": ("1", "2"),
    "--accumulator": ("reference", "kernel", "x"),
    "--json": (),
    **{
        key: RUN_OPTIONS[key]
        for key in ("--dtype", "--l1", "--l2", "--cores", "--buffering", "--seed", "--icache")
    },
    "--tile": ("co:2", "n:1", "x:1", "co"),
    "--loop-order": ("co,ci", "x"),
    "--kernel": ("mm", "mm_unroll_2x4", "x"),
}
TUNE_OPTIONS: Mapping[str, Sequence[str]] = {
    "--strategy": ("pruned", "paper", "exhaustive", "x"),
    "--tilings": ("1", "3"),
    "--largest-tiles": ("1", "2"),
    "--trials": ("1", "3"),
    "--step-variants": ("search", "keep", "cores,dma", "as-published", "x"),
    "--variant": ("as-published", "default", "FW=none", "x"),
    "--layout": ("keep", "search", "HWC", "x"),
    "--json": (),
    **{
        key: RUN_OPTIONS[key]
        for key in ("--cores", "--l1", "--l2", "--fpus", "--resident", "--seed", "--soc")
    },
}
SETTABLE = (
    "cores",
    "l1.size_bytes",
    "l1.banks",
    "dma.burst_bytes",
    "l2.dma_read_latency_cycles",
    "x.y",
    "l3.size_bytes",
)


MANY = ("65536", "1000000")
WORK = {
    "--accumulate": MANY,
    "--iterations": MANY,
    "--tilings": ("0", *(text for text in NUMBERS if text.isdecimal() and len(text) > 1)),
}
"""Values that are no mistake, but work for longer than an input may take: that much was asked for."""


def _likely(values: Sequence[str]) -> Sequence[str]:
    """The values, those more often that are no mistake by their looks."""
    return (
        *values,
        *(value for value in values for _ in range(2) if not re.search(r"(^|[=:.@])x|no|99", value)),
    )


def _some_options(options: Mapping[str, Sequence[str]], generator: Random, share: float = 1.0) -> list[str]:
    """Some of the options with values they know, and some they do not."""
    if generator.random() > share:
        return []
    result: list[str] = []
    for name in generator.sample(sorted(options), min(len(options), generator.choice((1, 1, 2, 2, 3, 5)))):
        result.append(name)
        if options[name]:
            drawn = generator.random()
            odd = generator.choice(NUMBERS) if drawn < 0.1 else generator.choice(WORDS)
            if odd in WORK.get(name, ()):
                odd = options[name][-1]
            result.append(odd if drawn < 0.14 else generator.choice(_likely(options[name])))
    if "--soc" in options and generator.random() < 0.15:
        result += [
            "--set",
            f"{generator.choice((*SETTABLE, *_parameter_paths()))}={generator.choice(NUMBERS)}",
        ]
    # A null byte cannot be typed, and what is written goes to the folder of the input.
    return [text.replace("\0", "") if "\0" in text else text for text in _safe(result)]


def _safe(arguments: Sequence[str]) -> list[str]:
    """The arguments with no output file or folder outside that of the input."""
    result = list(arguments)
    for place, name in enumerate(result[:-1]):
        if name in OUTPUT_OPTIONS and not result[place + 1].startswith(FOLDER):
            result[place + 1] = f"{FOLDER}/out"
    return result


def _arguments(generator: Random) -> Subject:
    files = {"m.yaml": (ROOT / "configs" / "models" / "simple-mlp.yaml").read_bytes()}
    match generator.randrange(8):
        case 0 | 1 | 2:
            words = ["run", "simple-mlp", "--no-cache", *_some_options(RUN_OPTIONS, generator)]
        case 3:
            words = ["kernel", generator.choice(("mm", "mm_unroll_2x4", "dw", "x", ""))]
            words += _some_options(KERNEL_OPTIONS, generator)
        case 4 | 5:
            words = [
                *generator.choice(cases()).words(generator),
                *_some_options(PRIMITIVE_OPTIONS, generator),
            ]
            if generator.random() < 0.3:
                words[generator.randrange(1, len(words))] = generator.choice(words)
        case 6:
            words = [
                "tune",
                "simple-mlp",
                "--tilings",
                "1",
                "--workers",
                "1",
                "--no-cache",
                "--save-schedule",
            ]
            words += [f"{FOLDER}/s.yaml", *_some_options(TUNE_OPTIONS, generator)]
        case _:
            words = [generator.choice(("list", "validate", "plot", "explore", "x", "--version", "-h", "run"))]
            words += [generator.choice(("socs", "models", "kernels", "primitives", "mm", "x", *WORDS[:20]))]
    if (
        "--json" not in words
        and generator.random() < 0.8
        and words[0] not in ("list", "--version", "-h", "x")
    ):
        words.append("-q")
    if generator.random() < 0.05:
        words.insert(generator.randrange(len(words) + 1), generator.choice(WORDS).replace("\0", ""))
    return Subject("arguments", tuple(_safe(words)), files)


# Tables and folders of results


def _cases(generator: Random) -> Subject:
    kind, file = generator.choice(
        (
            *(("mm", "mm"), ("loop", "loops"), ("layer", "layer"), ("dma", "dma"), ("tiled", "tiled")),
            *((name, name) for name in ("micro", "icache", "overlap", "dma-contention")),
        )
    )
    text = _measured(file)
    rows = text.split("\n")
    some = [rows[0], *generator.sample(rows[1:], 3)]
    if generator.random() < 0.05:
        some.append(generator.choice(rows[1:]).replace(",", "," + "x" * 200_000, 1))
    data = mutated_text("\n".join(some) + "\n", generator)
    name = "c.csv"
    if generator.random() < 0.2:
        name, data = "c.csv.gz", gzip.compress(data)
        data = mutated_bytes(data, generator) if generator.random() < 0.2 else data
    more = generator.choice(
        ((), (), ("--group-by", "soc"), ("--where", "soc=pulp-open"), ("--keep-going",), ("--json",))
    )
    return Subject("cases", ("validate", kind, f"{FOLDER}/{name}", "--workers", "1", *more), {name: data})


@cache
def _measured(name: str) -> str:
    with gzip.open(ROOT / "measured" / f"{name}.csv.gz", "rt") as file:
        return "\n".join(line.rstrip("\n") for _, line in zip(range(400), file, strict=False))


def _results(generator: Random) -> Subject:
    table = generator.choice(("run/trace.csv", "run/trace.csv", "run/trace.parquet"))
    files = {name: base_files()[name] for name in ("run/summary.json", "run/memory.csv", table)}
    name = generator.choice(sorted(files))
    if name.endswith(".parquet"):
        files[name] = mutated_bytes(files[name], generator)
    else:
        files[name] = mutated_text(files[name].decode(), generator)
    if generator.random() < 0.1:
        place = files[name].find(b",") + 1
        files[name] = files[name][:place] + b"x" * 200_000 + files[name][place:]
    if generator.random() < 0.05:
        del files[name]
    what = generator.choice(
        ("breakdown", "causes", "gantt", "memory", "roofline", "bandwidth", "bytes", "all")
    )
    window = generator.choice(
        ((), (), ("--window", generator.choice(("0:1000", ":", "5:1", "x", "fc.FW", "0:" + "9" * 30))))
    )
    command = ("plot", f"{FOLDER}/run", "--what", what, *window, "--out", f"{FOLDER}/out", "-q")
    if name == "run/summary.json" and generator.random() < 0.5:
        command = generator.choice((("why", f"{FOLDER}/run"), ("compare", f"{FOLDER}/run", f"{FOLDER}/run")))
    return Subject("results", command, files)


@cache
def base_files() -> Mapping[str, bytes]:
    """What commands write for a small model: to be mutated, and to be found as an earlier result."""
    with TemporaryDirectory() as folder:
        schedule, out, values = Path(folder, "schedule.yaml"), Path(folder, "run"), Path(folder, "values.npz")
        fitted = Path(folder, "fitted.yaml")
        points, kept, spec = Path(folder, "points"), Path(folder, "cache"), Path(folder, "spec")
        spec.write_bytes(SPEC)
        small = ("simple-mlp", "--cores", "2", "-q")
        uncached = (*small, "--no-cache")
        run(["tune", *uncached, "--workers", "1", "--tilings", "1", "--save-schedule", str(schedule)])
        run(["fit", *uncached, "--l2", "32KiB", "--points", "0", "--save-model", str(fitted)])
        run(["run", *uncached, "--out", str(out), "--save-values", str(values)])
        run(["run", *small, "--no-functional", "--cache", str(kept)])
        run(["explore", str(spec), "--workers", "1", "--no-cache", "-q", "--out", str(points)])
        files = {
            path.name: path.read_bytes() for path in (schedule, values, kept, fitted, points / "points.json")
        }
        slices = read_table(out)
        for parquet in (True, False):
            table = write_table(slices, out, parquet=parquet)
            files[f"run/{table.name}"] = table.read_bytes()
        return files | {f"run/{name}": (out / name).read_bytes() for name in ("summary.json", "memory.csv")}


KINDS: Mapping[str, Callable[[Random], Subject]] = {
    "model": _models,
    "soc": _socs,
    "kernel": _kernels,
    "schedule": _schedules,
    "explore": _explore,
    "arguments": _arguments,
    "npz": lambda generator: archive_subject(generator, base_files),
    "cases": _cases,
    "results": _results,
    "outputs": lambda generator: aimed(generator, base_files),
    **({"onnx": onnx_subject} if find_spec("onnx") else {}),
}
"""What is mutated."""
