# SPDX-License-Identifier: Apache-2.0
"""Write what pages show of the simulator, after a change of it.

    python -m tools.pages                     all blocks of all pages (some minutes)
    python -m tools.pages socs paper.peak     a page; a block
    python -m tools.pages --print paper.peak  print it instead

The figures of docs/tuned.md take a quarter of an hour and have a command of their own, which keeps them in
docs/tuned.json: ``python -m tools.pages.tuned --cache FILE``.
So have those of docs/what-if.md, which are kept in docs/what-if.json: ``python -m tools.pages.what_if``;
those of docs/fit.md in docs/fit.json: ``python -m tools.pages.fit``; those of docs/traindeeploy.md in
docs/traindeeploy.json: ``python -m tools.pages.traindeeploy``.
docs/validation.md is written by ``make validation``.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

from tools.pages.page import Page


def all_pages() -> dict[str, Page]:
    """The pages by name."""
    from tools.pages import (
        barvinn,
        barvinn_machine,
        buffering,
        deploy,
        deployed_kernels,
        energy,
        error_bars,
        evidence,
        fit,
        formats,
        getting_started,
        glossary,
        json_keys,
        mathematics,
        measured_logs,
        model_file,
        models_of_others,
        onnx,
        paper,
        pictures,
        primitives,
        python_api,
        pytorch,
        readme,
        rtl_profile,
        search_files,
        sixteen_bit,
        soc_file,
        socs,
        speechnet,
        time_model,
        timing_defects,
        traindeeploy,
        tuned,
        tuning,
        what_if,
        why_slow,
    )

    modules = (
        *(readme, getting_started, socs, primitives, buffering, error_bars, evidence, sixteen_bit),
        *(speechnet, traindeeploy, paper, time_model, timing_defects, rtl_profile, onnx, pytorch, pictures),
        *(model_file, soc_file, search_files, tuning, tuned, formats, json_keys, glossary, python_api),
        mathematics,
        *(barvinn, barvinn_machine, why_slow, what_if, measured_logs, deploy, deployed_kernels, energy, fit),
        models_of_others,
    )
    return {module.__name__.rpartition(".")[2]: module.PAGE for module in modules}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or print the blocks asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wanted", nargs="*", metavar="PAGE[.BLOCK]")
    parser.add_argument("--print", action="store_true", help="print the blocks instead")
    asked = parser.parse_args(arguments)
    pages = all_pages()
    wanted: dict[str, list[str]] = {}
    for word in asked.wanted or pages:
        name, _, block = word.partition(".")
        if name not in pages or (block and block not in pages[name].blocks):
            names = pages[name].blocks if name in pages else pages
            parser.error(f"no {word!r}; there are {', '.join(names)}")
        wanted.setdefault(name, []).extend([block] if block else pages[name].blocks)
    if len(wanted) == 1:
        print(carried_out(*wanted.popitem(), asked.print), end="")
        return 0
    # Blocks of a page share what was simulated and the file, so a page is one job.
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        jobs = [pool.submit(carried_out, name, blocks, asked.print) for name, blocks in wanted.items()]
        for job in jobs:
            print(job.result(), end="")
    return 0


def carried_out(page: str, blocks: Sequence[str], print_only: bool) -> str:
    """Write blocks of a page, or return their text; in a process of its own where there are several pages."""
    item = all_pages()[page]
    if print_only:
        return "".join(item.text_of(each) for each in blocks)
    item.write(blocks)
    return ""


if __name__ == "__main__":
    sys.exit(main())
