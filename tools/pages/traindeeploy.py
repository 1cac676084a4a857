# SPDX-License-Identifier: Apache-2.0
"""docs/traindeeploy.md: training steps and checkpointing points as TrainDeeploy has them, and ours.

    python -m tools.pages.traindeeploy [--ids R1,P2]

Published figures are in measured/traindeeploy.csv. Ours take half an hour; they are kept in
docs/traindeeploy.json, a row per published one, and the page is written of all rows there.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

from configs.model_file import AdapterSpec, LayerSpec, ModelSpec, load_model
from configs.parameters import load_parameters
from configs.values import replace
from pulptrain.fitting.fit_model import GAP, Fitting, sized
from pulptrain.fitting.ways import Way, from_inputs
from pulptrain.inputs.settings import Settings
from pulptrain.running.session import RunOutcome, prepare, run_model, settled
from tools.pages.page import ROOT, Page, golden, table
from trainlib.training.recompute import AGAIN

PUBLISHED = ROOT / "measured" / "traindeeploy.csv"
STORE = ROOT / "docs" / "traindeeploy.json"
SECONDS = 60.0
"""For each search."""

ACCUMULATED = 4
"""Mini-batches of a step with accumulators; CI of TrainDeeploy has as many."""

ROOMY = "8MiB"
NAMES = {
    "resnet8": "ResNet8",
    "mobilenet-v1": "MobileNetV1",
    "cct": "CCT",
    "cct-lora": "CCT-LoRA",
    "cct-qlora": "CCT-QLoRA",
    "speechnet": "SpeechNet",
}

NODES = {"resnet8": 103, "cct": 244, "mobilenet-v1": 281}
"""Nodes of the published graphs (DeeployTest/tools/checkmate/README.md)."""

LAUNCH_CYCLES = 2000
"""Of a small op at most, as published for SpeechNet (1,500 to 2,000)."""

WAYS = {
    "at_once": ("one mini-batch, updates at once", 1, 0),
    "accumulated": (f"{ACCUMULATED} mini-batches, accumulators", ACCUMULATED, 0),
    "paged": (f"{ACCUMULATED} mini-batches, accumulators, L3", ACCUMULATED, 8 << 20),
}
"""Of a checkpointing point: what it is called, mini-batches, bytes of L3."""

Row = Mapping[str, Any]


def published() -> dict[str, dict[str, str]]:
    """The rows of measured/traindeeploy.csv by id."""
    with PUBLISHED.open(encoding="utf-8", newline="") as file:
        return {row["id"]: row for row in csv.DictReader(file)}


def _in_the_zoo(model: str) -> str:
    """The model of ours that a published one is a form of."""
    return model.partition("-")[0] if model.startswith("cct") else model


def spec_of(model: str) -> ModelSpec:
    """Our model of a published one."""
    zoo = load_model(_in_the_zoo(model))
    names = [layer.name for layer in zoo.layers]
    if model == "cct":
        return replace(zoo, train=tuple(names[names.index("position") + 1 :]))
    if not model.startswith("cct-"):
        return zoo
    adapter = AdapterSpec(4, 16.0)

    def adapted(layer: LayerSpec) -> LayerSpec:
        if layer.name.endswith(("_attention", "_fc1", "_fc2")):
            return replace(layer, adapter=adapter)
        return layer if layer.name == "fc" else replace(layer, trainable=False)

    spec = replace(zoo, layers=tuple(map(adapted, zoo.layers)))
    if model == "cct-qlora":
        return replace(spec, frozen_weights="int8")
    return spec


def _machine(row: Mapping[str, str], **more: Any) -> Settings:
    """The published machine; code is outside L2 and in the caches, as nothing says otherwise."""
    return Settings(
        soc=row["soc"],
        timing="gvsoc",
        icache="warm",
        l1=f"{row['l1_kib']}KiB",
        l2=ROOMY,
        placement="optimal",
        **more,
    )


def step_cycles(run: RunOutcome) -> int:
    """Of one mini-batch, without the update, as the published counter has it."""
    ops = [op for op in run.summary["ops"] if op["step"] != "UPD"]
    return sum(int(op["cycles"]) // op.get("runs_per_update", 1) for op in ops)


def traffic_bytes(run: RunOutcome) -> int:
    """Between L2 and L3."""
    return int(run.summary["activity"]["counters"].get("udma_bytes", 0))


def digest_of(model: str) -> str:
    """Of the golden metrics that our rows of a model rest on."""
    figures = golden(_in_the_zoo(model))
    return hashlib.sha256(json.dumps(figures, sort_keys=True).encode()).hexdigest()[:8]


def measure(row: Mapping[str, str]) -> dict[str, Any]:
    """Our row beside a published one: a step, a checkpointing point or a step with promoted tensors."""
    model, started = row["model"], time.perf_counter()
    found = {"step": _step, "point": _point, "traffic": _traffic}[row["kind"]](row, spec_of(model))
    seconds = round(time.perf_counter() - started, 1)
    return {"id": row["id"], "golden": digest_of(model), "seconds": seconds, **found}


def _step(row: Mapping[str, str], spec: ModelSpec) -> dict[str, Any]:
    one = _peaks(row["model"])
    if not row["cycles"]:
        return one
    double = "double" in row["step"]
    in_l3 = "L3" in row["step"]
    settings = _machine(row, buffering="double" if double else "single")
    settings = sized(settings, l2=int(row["l2_bytes"]), **({} if in_l3 else {"l3": 0}))
    run = run_model(spec, settings, functional=False)
    macs = sum(op["macs"] for op in run.summary["ops"])
    found = {**one, "cycles": step_cycles(run), "traffic_bytes": traffic_bytes(run), "macs": macs}
    if row["id"] == "R1":
        others: dict[str, dict[str, Any]] = {
            "private FPUs": {"fpus": "private"},
            "`--timing rtl`": {"timing": "rtl"},
            "two buffers": {"buffering": "double"},
        }
        found["otherwise"] = {
            name: step_cycles(run_model(spec, replace(settings, **other), functional=False))
            for name, other in others.items()
        }
    return found


@cache
def _peaks(model: str) -> dict[str, Any]:
    """Without search and L3, of one mini-batch and with accumulators; and bytes of weights and gradients."""
    spec = spec_of(model)
    found: dict[str, Any] = {}
    for key, more in (("peak_bytes", {}), ("accumulated_bytes", {"accumulate": ACCUMULATED})):
        settings = sized(_machine({"soc": "gap9", "l1_kib": "119"}, **more), l3=0)
        schedule = prepare(spec, settings, traced=False, advise=False).schedule
        found[key] = schedule.plan.peak_bytes["l2"]
        graph = schedule.graph
        if not more:
            tensors = [tensor for tensor in graph.tensors.values() if tensor.alias_of is None]
            found["weight_bytes"] = sum(item.size_bytes for item in tensors if item.kind == "weight")
            found["gradient_bytes"] = sum(graph.tensors[name].size_bytes for name in graph.gradients.values())
    return found


@cache
def _fittings(
    model: str, soc: str, l1_kib: str, accumulate: int, l3_bytes: int
) -> list[Callable[[], Fitting]]:
    """The model, and with gradients from inputs, which `fit` tries where nothing fits."""
    settings = _machine({"soc": soc, "l1_kib": l1_kib}, buffering="single", accumulate=accumulate)
    spec, settings = settled(spec_of(model), sized(settings, l3=l3_bytes))
    ways = (Way(spec), *from_inputs(Way(spec)))
    return [cache(partial(Fitting, way.spec, settings)) for way in ways]


def _point(row: Mapping[str, str], spec: ModelSpec) -> dict[str, Any]:
    """The published peak as our L2: updates at once, with accumulators, and with an L3 where that fails."""
    found: dict[str, Any] = {}
    for key, (_, accumulate, l3_bytes) in WAYS.items():
        if l3_bytes and "cycles" in found["accumulated"]:
            continue
        first, *others = _fittings(row["model"], row["soc"], row["l1_kib"], accumulate, l3_bytes)
        part: dict[str, Any] = {
            "before_bytes": first().needed_bytes,
            "before_cycles": step_cycles(first().before),
        }
        begun = time.perf_counter()
        for fitting in (first, *others):
            started = time.perf_counter()
            answer, _ = fitting().answer(int(row["peak_kib"]) * 1024, started + SECONDS)
            if answer is not None:
                ops = [op.name for op in answer.run.schedule.graph.ops]
                part |= {
                    "peak_bytes": answer.peak_bytes["l2"],
                    "cycles": step_cycles(answer.run),
                    "recomputes": sum(f".{AGAIN}." in name for name in ops),
                    "gap": round(answer.gap, 4),
                }
                break
        found[key] = {**part, "seconds": round(time.perf_counter() - begun, 1)}
    return found


def _traffic(row: Mapping[str, str], spec: ModelSpec) -> dict[str, Any]:
    """In the published L2, with an L3: as `run` plans it."""
    settings = sized(_machine(row, buffering="double"), l2=int(row["l2_bytes"]))
    run = run_model(spec, settings, functional=False)
    return {"cycles": step_cycles(run), "traffic_bytes": traffic_bytes(run)}


def stored() -> dict[str, dict[str, Any]]:
    """The rows of docs/traindeeploy.json by id."""
    rows = json.loads(STORE.read_text(encoding="utf-8")) if STORE.is_file() else []
    return {row["id"]: row for row in rows}


def is_of_today(row: Row) -> bool:
    """Whether its model's golden metrics are those it was measured with."""
    return bool(row["golden"] == digest_of(published()[row["id"]]["model"]))


def store(row: dict[str, Any]) -> None:
    """Put a row into docs/traindeeploy.json in place of that of the same id."""
    rows = {**stored(), row["id"]: row}
    lines = ",\n".join(json.dumps(rows[key]) for key in published() if key in rows)
    STORE.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def _of_kind(kind: str) -> list[tuple[dict[str, str], dict[str, Any]]]:
    ours = stored()
    return [(row, ours[key]) for key, row in published().items() if row["kind"] == kind and key in ours]


def _kib(size_bytes: float) -> str:
    return f"{size_bytes / 1024:,.0f}"


def _more(ours: float, theirs: float) -> str:
    return f"{100 * (ours / theirs - 1):+.1f} %"


def _millions(cycles: float | str) -> str:
    return f"{float(cycles) / 1e6:.2f}"


def _step_before(row: Mapping[str, str]) -> Mapping[str, str] | None:
    """The published step that a checkpointing point is one of, if it has its cycles."""
    return published().get(row["source"].rpartition("; of ")[2])


def _name(row: Mapping[str, str]) -> str:
    return f"{NAMES[row['model']]}, {row['soc']}: {row['step']}"


def _peak_kib(row: Mapping[str, str]) -> float:
    """The published peak, or the arena where that alone is published; 0 where neither is."""
    return float(row["peak_kib"] or row["arena_kib"] or 0)


def _older(kind: str) -> str:
    names = [row["id"] for row, ours in _of_kind(kind) if not is_of_today(ours)]
    text = f"*Older than today's cycles: {', '.join(names)} come from an earlier version of pulptrain.*"
    return f"{text}\n\n" if names else ""


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _range(shares: Sequence[float]) -> str:
    return f"{100 * min(shares):.0f} to {_percent(max(shares))}"


def conclusion() -> str:
    """Two or three sentences from all rows, and where ours are slower or larger."""
    steps = [one for one in _of_kind("step") if "cycles" in one[1]]
    shares = [ours["cycles"] / float(row["cycles"]) for row, ours in steps]
    peaks = [one for one in _of_kind("step") if _peak_kib(one[0])]
    plain = [ours["peak_bytes"] / 1024 / _peak_kib(row) for row, ours in peaks]
    theirs, here = ([pair[number] for pair in _added().values()] for number in (0, 1))
    text = (
        f"**pulptrain predicts that our steps take {_range(shares)} of the published cycles. Their memory "
        f"peak is {_range(plain)} of the published peak, without a search for a better plan. TrainDeeploy "
        "also recomputes activations to fit smaller memories (checkpointing): its steps then take "
        f"{100 * min(theirs):.1f} to {100 * max(theirs):.1f} % more cycles, ours at most "
        f"{100 * max(here):.1f} % if a plan was found.**"
    )
    worse = "\n".join(f"- {line}" for line in _worse() or ["nowhere"])
    return f"{text}\n\nOur steps are larger or slower here:\n\n{worse}\n"


def _worse() -> list[str]:
    """Each figure of ours that is above the published one."""
    found = {
        f"{NAMES[row['model']]} {how}: {_percent(ours[key] / 1024 / _peak_kib(row))} of the published peak "
        f"of {_peak_kib(row):,.0f} KiB ({row['id']})": None
        for row, ours in _of_kind("step")
        for key, how in (("peak_bytes", "without a search"), ("accumulated_bytes", "with accumulators"))
        if _peak_kib(row) and ours[key] > 1024 * _peak_kib(row)
    }
    found |= {
        f"{_name(row)}: {_percent(ours['cycles'] / float(row['cycles']))} of the published cycles": None
        for row, ours in _of_kind("step")
        if "cycles" in ours and ours["cycles"] > float(row["cycles"])
    }
    for row, ours in _of_kind("point"):
        for key, (how, *_) in WAYS.items():
            if key in ours and "cycles" not in ours[key]:
                where = f"{row['peak_kib']} KiB (a search of {ours[key]['seconds']:.0f} s)"
                found[f"{NAMES[row['model']]} ({how}): no plan found for {where}"] = None
    for key, (theirs, here) in _added().items():
        if here > theirs:
            row = published()[key]
            where = (
                f"{100 * here:.1f} % more cycles to fit {row['peak_kib']} KiB, published {100 * theirs:.1f} %"
            )
            found[f"{NAMES[row['model']]}: {where}"] = None
    for row, ours in _of_kind("traffic"):
        if ours["traffic_bytes"] > 1e6 * float(row["traffic_mb"]):
            moved = f"{ours['traffic_bytes'] / 1e6:.1f} MB over the uDMA, published {row['traffic_mb']}"
            found[f"{NAMES[row['model']]} moves {moved}"] = None
    return list(found)


def _added() -> dict[str, tuple[float, float]]:
    """Of each point with a published step before it: cycles added there, and by the slower of our ways."""
    found = {}
    for row, ours in _of_kind("point"):
        before = _step_before(row)
        parts = [ours[key] for key in WAYS if "cycles" in ours.get(key, ())]
        if before is not None and parts:
            added = max(part["cycles"] / part["before_cycles"] for part in parts) - 1
            found[row["id"]] = (float(row["cycles"]) / float(before["cycles"]) - 1, added)
    return found


def steps() -> str:
    """A row per published step: its cycles, and ours."""
    rows: list[Sequence[object]] = []
    for row, ours in _of_kind("step"):
        if not row["cycles"]:
            continue
        theirs = float(row["cycles"])
        rows.append(
            (
                *(
                    row["id"],
                    _name(row),
                    _millions(theirs),
                    _millions(ours["cycles"]),
                    _percent(ours["cycles"] / theirs),
                ),
                *(f"{cycles / ours['macs']:.2f}" for cycles in (theirs, ours["cycles"])),
            )
        )
    heads = (
        *("id", "step", "published, million cycles", "ours, million cycles", "ours / published"),
        *("published cycles/MAC", "our cycles/MAC"),
    )
    return _older("step") + table(heads, rows, numbers=True)


def peaks() -> str:
    """A row per published peak without recomputation, with what lives in ours throughout."""
    rows: list[Sequence[object]] = []
    for row, ours in _of_kind("step"):
        if not _peak_kib(row):
            continue
        cells = (f"{float(row['peak_kib']):,.0f}" if row["peak_kib"] else "-", row["arena_kib"] or "-")
        sizes = ("peak_bytes", "accumulated_bytes", "weight_bytes", "gradient_bytes")
        rows.append((row["id"], _name(row), *cells, *(_kib(ours[key]) for key in sizes)))
    heads = (
        *("id", "step", "published peak", "published arena", "ours, one mini-batch"),
        *("ours, accumulators", "our weights", "our gradients"),
    )
    return _older("step") + table(heads, rows, numbers=True)


def points() -> str:
    """Two rows per published checkpointing point."""
    rows: list[Sequence[object]] = []
    for row, ours in _of_kind("point"):
        before = _step_before(row)
        added = _more(float(row["cycles"]), float(before["cycles"])) if before is not None else "-"
        rows.append(
            (
                f"{row['id']}: {NAMES[row['model']]}, published",
                row["peak_kib"],
                _millions(row["cycles"]),
                added,
                row["recomputes"],
                "",
                "",
            )
        )
        for key, (how, *_) in WAYS.items():
            if key not in ours:
                continue
            part = ours[key]
            name = f"ours, {how} ({_kib(part['before_bytes'])} KiB before)"
            if "cycles" not in part:
                rows.append((name, "none found", "", "", "", "", f"{part['seconds']:.0f} s"))
                continue
            least = "≤ " if part["gap"] > GAP else ""
            rows.append(
                (
                    name,
                    _kib(part["peak_bytes"]),
                    least + _millions(part["cycles"]),
                    least + _more(part["cycles"], part["before_cycles"]),
                    part["recomputes"],
                    f"{100 * part['gap']:.1f} %",
                    f"{part['seconds']:.0f} s",
                )
            )
    heads = ("point", "peak, KiB", "million cycles", "added cycles", "recomputed ops", "gap", "search time")
    return _older("point") + table(heads, rows, numbers=True)


def traffic() -> str:
    """A row per published step with promoted tensors."""
    rows = [
        (
            row["id"],
            NAMES[row["model"]],
            row["traffic_mb"],
            f"{ours['traffic_bytes'] / 1e6:.2f}",
            _millions(ours["cycles"]),
        )
        for row, ours in _of_kind("traffic")
    ]
    heads = ("id", "model, L2 of 840 KiB", "published, MB", "ours, MB", "ours, million cycles")
    return _older("traffic") + table(heads, rows, numbers=True)


def reasons() -> str:
    """What each reason was worth where its authors changed it, and the launches of all nodes at most."""
    rows = [
        (
            _name(row),
            _millions(row["cycles"]),
            _millions(row["after_cycles"]),
            _more(float(row["after_cycles"]), float(row["cycles"])),
        )
        for row in published().values()
        if row["kind"] == "reason"
    ]
    steps = {
        row["model"]: float(row["cycles"])
        for row in published().values()
        if row["kind"] == "step" and row["cycles"]
    }
    shares = [LAUNCH_CYCLES * nodes / steps[model] for model, nodes in NODES.items()]
    return table(
        ("published change: before -> after", "before, million cycles", "after, million cycles", "change"),
        rows,
        numbers=True,
    ) + (
        f"\nLaunches: at {LAUNCH_CYCLES:,} cycles for each of {min(NODES.values())} to {max(NODES.values())} "
        f"nodes they are {100 * min(shares):.1f} to {100 * max(shares):.1f} % of a step.\n"
    )


def gap9() -> str:
    """How much of GAP9 is assumed, and what two of the assumptions change."""
    parameters = load_parameters("gap9", "gvsoc")
    rows = [
        (name, _millions(cycles), _more(cycles, stored()["R1"]["cycles"]))
        for name, cycles in stored()["R1"]["otherwise"].items()
    ]
    count = f"{len(parameters.assumed)} of {len(parameters)}"
    return f"{count} parameters of `gap9` are assumed.\n\n" + table(
        ("R1 with", "million cycles", "change"), rows, numbers=True
    )


PAGE = Page(
    "docs/traindeeploy.md",
    {
        "conclusion": conclusion,
        "steps": steps,
        "peaks": peaks,
        "points": points,
        "traffic": traffic,
        "reasons": reasons,
        "gap9": gap9,
    },
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the rows asked for and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    every = ",".join(key for key, row in published().items() if row["kind"] != "reason")
    parser.add_argument("--ids", default=every, help="comma-separated")
    for key in filter(None, parser.parse_args(arguments).ids.split(",")):
        store(measure(published()[key]))
        print(json.dumps(stored()[key]), flush=True)
    PAGE.write(list(PAGE.blocks))
    return 0


if __name__ == "__main__":
    sys.exit(main())
