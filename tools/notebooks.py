# SPDX-License-Identifier: Apache-2.0
"""Execute docs/notebooks/*.ipynb and write them with what they show: ``python -m tools.notebooks``.

Needs nbclient and ipykernel (the extra `docs`). A test executes them again and compares the text.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "notebooks"
SECONDS = 600
"""A cell may take."""


def executed(path: Path, folder: Path) -> Any:
    """The notebook with fresh outputs; its cells run in `folder`. Raises what a cell raises."""
    import matplotlib.font_manager  # noqa: F401  builds its cache here: in a cell that would be printed
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    os.environ["PYTHONPATH"] = str(ROOT)
    client = NotebookClient(
        notebook,
        timeout=SECONDS,
        kernel_name="python3",
        coalesce_streams=True,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return notebook


def texts(notebook: Any) -> list[str]:
    """What the cells print, and what they are worth where that is text."""
    found = []
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            found.append(output.get("text", "") or output.get("data", {}).get("text/plain", ""))
    return found


def main() -> int:
    """Execute and write them all."""
    import nbformat

    for path in sorted(FOLDER.glob("*.ipynb")):
        with TemporaryDirectory() as folder:
            notebook = executed(path, Path(folder))
        nbformat.write(notebook, path)
        print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
