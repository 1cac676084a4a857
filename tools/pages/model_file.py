# SPDX-License-Identifier: Apache-2.0
"""docs/model-file.md: the template, the keys, and the options of all layers, losses and optimizers."""

from __future__ import annotations

from functools import partial

from configs.meanings import keys_of
from configs.model_file import LAYER_KEYS, AdapterSchema, InputSchema, LayerSchema, ModelSchema, TermSchema
from pulptrain.show.descriptions import describe, names_of
from tools.pages.page import ROOT, Page
from tools.pages.reference import keys_table, shown
from trainlib.registry import PRIMITIVES
from trainlib.training.options import GradientOptions
from trainlib.training.schedules import SCHEDULES


def template(kind: str, name: str = "mine") -> str:
    """What `pulptrain new` writes, without the line for editors."""
    text = (ROOT / "configs" / "templates" / f"{kind}.yaml").read_text(encoding="utf-8")
    lines = text.replace("NAME", name).splitlines()[1:]
    return "\n".join(["```yaml", *lines, "```"])


def options(what: str) -> str:
    """Every primitive of a kind with its own options, as a definition list."""
    sections = []
    for name in sorted(names_of("primitive")):
        (found,) = describe(name, "primitive")
        if found["what"] != what:
            continue
        lines = [f"### {name}", "", found["about"], "", "```yaml", found["example"], "```", ""]
        keys = keys_of(PRIMITIVES[name].schema)  # type: ignore[union-attr]
        own = [key for key in keys if key.name not in (*LAYER_KEYS, "name")]
        for key in own:
            must = "required" if key.required else f"default {shown(key.default)}"
            may = f"; {key.allowed}" if key.allowed else ""
            lines.append(f"- `{key.name}` ({must}{may}): {key.meaning}")
        sections.append("\n".join(lines).rstrip())
    return "\n\n".join(sections)


def schedules() -> str:
    """Every schedule with its options, in a row."""
    rows = ["| `name` | options | what it does |", "|---|---|---|"]
    for name, schema in SCHEDULES.items():
        keys = [key for key in keys_of(schema) if key.name != "name"]
        said = [f"**{key.name}**" if key.required else f"{key.name}={shown(key.default)}" for key in keys]
        said = [text.replace("`", "") for text in said]
        rows.append(f"| `{name}` | {', '.join(said)} | {' '.join((schema.__doc__ or '').split())} |")
    return "\n".join(rows)


PAGE = Page(
    "docs/model-file.md",
    {
        "template": partial(template, "model", "net"),
        "model": partial(keys_table, ModelSchema),
        "input": partial(keys_table, InputSchema),
        "layer": partial(keys_table, LayerSchema),
        "adapter": partial(keys_table, AdapterSchema),
        "term": partial(keys_table, TermSchema),
        "gradients": partial(keys_table, GradientOptions),
        "schedules": schedules,
        "layers": partial(options, "layer"),
        "losses": partial(options, "loss"),
        "optimizers": partial(options, "optimizer"),
    },
)
