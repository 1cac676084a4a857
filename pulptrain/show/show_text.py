# SPDX-License-Identifier: Apache-2.0
"""What `pulptrain show` prints of a model, SoC, kernel, primitive or stall word."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from configs.errors import InputError
from configs.parameters import DEFAULT_CODEGEN
from pulptrain.show.descriptions import Description, flow
from pulptrain.show.listings import columns, size_text


def file_of(found: list[Description], name: str) -> str:
    """The text of the file of what was found. Raises `InputError` for what has none."""
    texts = [item["file"] for item in found if item["kind"] in ("model", "soc")]
    if not texts:
        raise InputError(
            f"{name!r} has no YAML file that --file can print",
            where="--file",
            cure="remove --file, or use a model or a SoC",
        )
    return str(texts[0])


def lines_of(item: Description, part: str | None, width: int) -> Iterator[str]:
    """A description as lines; `part` is a group of parameters of a SoC. Raises `InputError` for none such."""
    what = item.get("what", item["kind"])
    yield f"{item['name']}: {'SoC' if what == 'soc' else 'stall word' if what == 'stall' else what}"
    yield from _wrapped(item["about"], width)
    if item["kind"] == "soc":
        yield from _soc(item, part, width)
    elif item["kind"] in _BODIES:
        yield from _BODIES[item["kind"]](item, width)


def _model(item: Description, width: int) -> Iterator[str]:
    if item["source"]:
        yield from _wrapped(f"source: {item['source']}", width)
    yield ""
    yield from _pairs(
        {
            **{
                name: "x".join(map(str, shape))
                for name, shape in item.get("inputs", {"input": item["input_shape"]}).items()
            },
            "batch": item["batch"],
            "dtype": item["dtype"],
            "layout": item["layout"],
            "dataset": item["dataset"],
            "loss": " + ".join(_named(loss) for loss in item.get("losses", [item["loss"]])),
            "optimizer": _named(item["optimizer"]),
            "parameters": f"{item['parameters']:,}, {item['trained_parameters']:,} of them trained",
        }
    )
    yield ""
    rows = [("layer", "type", "output", "parameters", "backward reads", "options")]
    for layer in item["layers"]:
        shape, options = layer["output_shape"][1:], layer["options"]
        count = f"{layer['parameters']:,}" if layer["parameters"] else "-"
        rows.append(
            (
                layer["name"],
                layer["type"],
                "x".join(map(str, shape)),
                count,
                ", ".join(layer["backward_reads"]) or "-",
                flow(options)[1:-1] if options else "",
            )
        )
    yield from columns(rows, width)
    yield ""
    yield f"The file itself: pulptrain show {item['typed']} --kind model --file"


def _soc(item: Description, part: str | None, width: int) -> Iterator[str]:
    chosen = [
        p for p in item["parameters"] if part is None or f"{p['path']}.".startswith(part.rstrip(".") + ".")
    ]
    if not chosen:
        groups = dict.fromkeys(p["path"].partition(".")[0] for p in item["parameters"])
        raise InputError(
            f"{item['name']} has no group of parameters {part!r}",
            where="show",
            cure=f"use one of {', '.join(groups)}",
        )
    yield f"codegen: {item['codegen']}"
    yield ""
    for parameter in chosen:
        value = _value(parameter["value"], parameter["unit"])
        if parameter["value_gvsoc"] != parameter["value"]:
            value += f" ({_value(parameter['value_gvsoc'], parameter['unit'])} under --timing gvsoc)"
        yield f"{parameter['path']} = {value}{'  [assumed]' if parameter['assumed'] else ''}"
        if part is not None:
            yield from _wrapped(parameter["description"], width, "    ")
            yield from _wrapped(f"source: {parameter['source']}", width, "    ")
    yield ""
    if part is None:
        group = next(path.partition(".")[0] for each in chosen if "." in (path := each["path"]))
        yield f"Meaning and source of one group: pulptrain show {item['name']} {group}"
        yield "Change one by --set PATH=VALUE, or in a file with this SoC as its base:"
        yield "pulptrain new mine.yaml --kind soc"


def _kernel(item: Description, width: int) -> Iterator[str]:
    transposed = {None: "transposed or not", True: "transposed only", False: "not transposed"}[
        item["trans_b"]
    ]
    yield ""
    yield from _pairs(
        {
            "codegen": f"{item['codegen']} (of {', '.join(item['codegens'])})",
            "element": f"{item['element_bytes']} B",
            "code": size_text(item["code_bytes"]),
            "arrays": ", ".join(f"{array} ({count}D)" for array, count in item["arrays"].items()),
            **({"B": transposed} if item["what"] == "matmul" else {}),
            "evidence": item["evidence"] + (f": {item['rows']}" if item["rows"] else ""),
            **({"fitted on": item["fitted_on"]} if item["fitted_on"] else {}),
            "file": item["file"],
        }
    )
    if item["what"] == "matmul":
        yield ""
        more = f" --codegen {item['codegen']}" if item["codegen"] != DEFAULT_CODEGEN else ""
        more += " --trans-b" if item["trans_b"] else ""
        yield f"Try it: pulptrain kernel {item['name']} --n 32 --k 64 --m 32{more}"


def _primitive(item: Description, width: int) -> Iterator[str]:
    low, high = item["inputs"]
    indent = " " * len("variants  " if item["variants"] else "example  ")
    yield ""
    yield from _pairs(
        {
            "steps": f"\n{indent}".join(textwrap.wrap(" ".join(item["steps"]), width - len(indent)))
            or "none: a view of its input",
            **({"inputs": f"{low} to {high}" if low != high else low} if high > 1 else {}),
            **({"variants": item["variants"]} if item["variants"] else {}),
            "example": item["example"],
        }
    )
    yield ""
    yield from _options("Options", item["options"], width)
    if item["shared_options"]:
        yield ""
        every = {"layer": "every layer", "optimizer": "every optimizer"}[item["what"]]
        yield from _options(f"Options of {every}", item["shared_options"], width)


_BODIES = {"model": _model, "kernel": _kernel, "primitive": _primitive}


def _options(title: str, keys: list[Mapping[str, Any]], width: int) -> Iterator[str]:
    if not keys:
        yield f"{title}: none"
        return
    yield f"{title}:"
    for key in keys:
        default = "required" if key["required"] else f"default {_plain(key['default'])}"
        allowed = f"; {key['allowed']}" if key["allowed"] else ""
        yield from _wrapped(f"{key['name']}  ({default}{allowed})", width, "  ", hang="    ")
        yield from _wrapped(key["meaning"], width, "      ")


def _plain(value: Any) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _named(values: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in values.items() if key != "name"}
    return f"{values['name']}" + (f" ({flow(rest)[1:-1]})" if rest else "")


def _value(value: Any, unit: str) -> str:
    if unit == "B":
        return size_text(value) if value >= 1024 else f"{value} B"
    if unit == "Hz":
        return f"{value / 1e6:g} MHz"
    if unit in ("flag", "choice"):
        return ("on" if value else "off") if isinstance(value, bool) else str(value)
    return f"{value} {unit}" if unit != "count" else str(value)


def _wrapped(text: str, width: int, indent: str = "", hang: str | None = None) -> Iterator[str]:
    """Lines of a text; those after the first are set in by `hang`, if it is given."""
    if text:
        rest = indent if hang is None else hang
        yield from textwrap.wrap(text, max(width, 40), initial_indent=indent, subsequent_indent=rest)


def _pairs(values: Mapping[str, Any]) -> Iterator[str]:
    longest = max(map(len, values))
    for name, value in values.items():
        yield f"{name:<{longest}}  {value}"
