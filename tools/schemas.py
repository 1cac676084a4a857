# SPDX-License-Identifier: Apache-2.0
"""Write configs/schemas/*.json, from the schemas that read the files: ``python -m tools.schemas``.

They are for editors, which read the place of one in the first line of a file. A test compares the committed
ones with what is made today.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from configs.dtypes import BY_WORD
from configs.energy_model import (
    COEFFICIENTS,
    GRADES,
    CoefficientSchema,
    EnergySchema,
    PointSchema,
)
from configs.library import list_names
from configs.meanings import meanings
from configs.model_file import AdapterSchema, InputSchema, LayerSchema, ModelSchema, TermSchema
from configs.parameters import PROFILES, UNITS, ParameterSchema, SocSchema, load_parameters
from configs.schema import Schema
from pulptrain.exploring.explore_spec import (
    OBJECTIVES,
    OF_MODEL,
    OF_ONE,
    SETTINGS,
    SHORT_PATHS,
    ExploreSchema,
)
from scheduler.tuner.tuned_schedule import (
    Named,
    OpChoice,
    ResidentTensors,
    TunedSchedule,
    TunedSoc,
)
from trainlib.about import about
from trainlib.ir.graph import LAYOUTS
from trainlib.primitives.definition import LayerPrimitive, LossPrimitive, OptimizerPrimitive
from trainlib.registry import PRIMITIVES, is_internal
from trainlib.training.options import GradientOptions

FOLDER = Path(__file__).resolve().parents[1] / "configs" / "schemas"
DRAFT = "http://json-schema.org/draft-07/schema#"

Json = dict[str, Any]


def of(schema: type[Schema], about: str = "", **changed: Json) -> Json:
    """The JSON Schema of one mapping, with the meaning of every key; `changed` replaces what keys may be."""
    texts, made = meanings(schema), schema.model_json_schema()
    properties = {}
    for name, given in made["properties"].items():
        kept = {key: value for key, value in given.items() if key not in ("title", "examples")}
        default = {"default": kept["default"]} if kept.get("default") not in (None, "") else {}
        kept = {**changed[name], **default} if name in changed else kept
        properties[name] = {"description": texts[name], **kept} if name in texts else kept
    return {
        "type": "object",
        "description": about or (schema.__doc__ or "").partition("\n")[0],
        "additionalProperties": False,
        "required": made.get("required", []),
        "properties": properties,
    }


def _top(title: str, schema: Json) -> Json:
    return {"$schema": DRAFT, "title": title, **schema}


def _chosen(key: str, kinds: Mapping[str, Json]) -> Json:
    """A mapping whose `key` says which of several schemas it follows."""
    return {
        "type": "object",
        "required": [key],
        "properties": {key: {"enum": sorted(kinds)}},
        "allOf": [
            {"if": {"properties": {key: {"const": name}}, "required": [key]}, "then": schema}
            for name, schema in sorted(kinds.items())
        ],
    }


def _of_kind(kind: type[Any], key: str) -> dict[str, Json]:
    found = {}
    for name, primitive in PRIMITIVES.items():
        if isinstance(primitive, kind) and not is_internal(primitive):
            found[name] = of(primitive.schema, about(name), **{key: {"const": name}})
    return found


def model() -> Json:
    """Of a model file."""
    dtype, layout = {"enum": list(BY_WORD)}, {"enum": list(LAYOUTS)}
    layer = of(LayerSchema, dtype=dtype, layout=layout, adapter=of(AdapterSchema))
    shared = {
        key: {"$ref": f"#/definitions/layer/properties/{key}"} for key in layer["properties"] if key != "type"
    }
    layers = _of_kind(LayerPrimitive, "type")
    for schema in layers.values():
        schema["properties"] = {**schema["properties"], **shared}
    losses, optimizers = _of_kind(LossPrimitive, "name"), _of_kind(OptimizerPrimitive, "name")
    gradients, term = of(GradientOptions)["properties"], of(TermSchema)["properties"]
    for schema in losses.values():
        schema["properties"] = {**schema["properties"], **term}
    for schema in optimizers.values():
        schema["properties"] = {**schema["properties"], **gradients}
    loss = {"anyOf": [{"enum": sorted(losses)}, _chosen("name", losses)]}
    made = of(
        ModelSchema,
        input=of(InputSchema),
        inputs={"type": "object", "minProperties": 1, "additionalProperties": of(InputSchema)},
        loss=loss,
        losses={"type": "array", "minItems": 1, "items": loss},
        optimizer=_chosen("name", optimizers),
        dtype=dtype,
        layout=layout,
        layers={"type": "array", "minItems": 1, "items": _chosen("type", layers)},
    )
    made["allOf"] = [
        {"oneOf": [{"required": [one]}, {"required": [other]}]} for one, other in ModelSchema.either.items()
    ]
    return {**_top("pulptrain model", made), "definitions": {"layer": layer}}


def soc() -> Json:
    """Of a SoC file: the parameters of the base of all, with their meanings."""
    tree: Json = {"type": "object", "additionalProperties": False, "properties": {}}
    for path, parameter in load_parameters("pulp-open").items():
        group = tree
        *names, last = path.split(".")
        for name in names:
            empty: Json = {"type": "object", "additionalProperties": False, "properties": {}}
            group = group["properties"].setdefault(name, empty)
        text = f"{parameter.description} ({parameter.unit}); pulp-open: {parameter.value}"
        group["properties"][last] = {"description": text, "allOf": [{"$ref": "#/definitions/parameter"}]}
    by_profile = {"type": "object", "additionalProperties": False, "required": list(PROFILES)}
    scalar = ["string", "number", "boolean"]

    def profiled(kind: Json) -> Json:
        return {"anyOf": [kind, {**by_profile, "properties": dict.fromkeys(PROFILES, kind)}]}

    leaf = of(
        ParameterSchema,
        unit={"enum": list(UNITS)},
        value=profiled({"type": scalar}),
        source=profiled({"type": "string"}),
        assumed=profiled({"type": "boolean"}),
    )
    leaf["required"] = []
    made = of(SocSchema, parameters=tree, base={"type": "string", "examples": list(list_names("soc"))})
    return {**_top("pulptrain SoC", made), "definitions": {"parameter": leaf}}


def explore() -> Json:
    """Of an exploration file."""
    scalar = ["string", "number", "boolean"]
    axes = (*SETTINGS, *SHORT_PATHS, "model")
    swept = {key: {"type": "array"} for key in axes}
    prefixes = "|".join(
        ("model", *OF_ONE, *dict.fromkeys(p.partition(".")[0] for p in load_parameters("pulp-open")))
    )
    named = f"^({prefixes})(\\..+)?$"
    return _top(
        "pulptrain exploration",
        of(
            ExploreSchema,
            settings={
                "type": "object",
                "additionalProperties": False,
                "properties": {key: {"type": scalar} for key in (*SETTINGS, *SHORT_PATHS, *OF_MODEL)},
            },
            sweep={
                "type": "object",
                "additionalProperties": False,
                "properties": swept,
                "patternProperties": {named: {"type": "array"}},
            },
            points={
                "type": "array",
                "items": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {key: {} for key in axes},
                    "patternProperties": {named: {}},
                },
            },
            objectives={"type": "array", "items": {"enum": list(OBJECTIVES)}},
            baseline={"type": "object"},
        ),
    )


def energy() -> Json:
    """Of an energy model."""
    coefficient = of(CoefficientSchema, grade={"enum": list(GRADES)})
    coefficients = {
        name: {"description": f"{meaning.unit} for {meaning.of}", "$ref": "#/definitions/coefficient"}
        for name, meaning in COEFFICIENTS.items()
    }
    made = of(
        EnergySchema,
        socs={"type": "array", "items": {"type": "string"}},
        points={"type": "array", "items": of(PointSchema)},
        coefficients={"type": "object", "additionalProperties": False, "properties": coefficients},
    )
    return {**_top("pulptrain energy model", made), "definitions": {"coefficient": coefficient}}


def schedule() -> Json:
    """Of a schedule file."""
    return _top(
        "pulptrain schedule",
        of(
            TunedSchedule,
            model=of(Named),
            soc=of(TunedSoc),
            resident=of(ResidentTensors),
            layout={"type": "object", "additionalProperties": {"enum": list(LAYOUTS)}},
            choices={"type": "array", "items": of(OpChoice)},
        ),
    )


SCHEMAS: Mapping[str, Callable[[], Json]] = {
    "model": model,
    "soc": soc,
    "explore": explore,
    "energy": energy,
    "schedule": schedule,
}


def text_of(name: str) -> str:
    """The file of a schema."""
    return json.dumps(SCHEMAS[name](), indent=1, ensure_ascii=False) + "\n"


def main() -> int:
    """Write all of them."""
    for name in SCHEMAS:
        (FOLDER / f"{name}.json").write_text(text_of(name), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
