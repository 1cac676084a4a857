"""Put the present output and picture of `pulptrain run tutorial-cnn` into README.md and docs/.

Run it after a change of the model: ``python tools/update_readme.py``. A test compares the committed text with
what this program would write, so that the README never shows figures of an older simulator.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from io import StringIO
from pathlib import Path

from rich.console import Console

from pulptrain.outputs import write_outputs
from pulptrain.session import RunOutcome, run_model
from traces.report import print_report

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"(<!-- output of: pulptrain run tutorial-cnn -->\n```\n).*?(\n```\n)", re.DOTALL)
WIDTH = 100


def report_text(outcome: RunOutcome) -> str:
    """The table and totals as a terminal of `WIDTH` columns shows them, without colours."""
    console = Console(file=StringIO(), width=WIDTH, color_system=None)
    print_report(outcome.summary, console)
    output = console.file
    assert isinstance(output, StringIO)
    return "\n".join(line.rstrip() for line in output.getvalue().rstrip().splitlines())


def updated_readme(readme: str, outcome: RunOutcome) -> str:
    """README with the block of `pulptrain run tutorial-cnn` replaced. Raises `ValueError` without a block."""
    text, count = BLOCK.subn(lambda match: match[1] + report_text(outcome) + match[2], readme)
    if count != 1:
        raise ValueError(f"README.md has {count} blocks of output, 1 expected")
    return text


def main() -> int:
    """Write README.md and docs/gantt-tutorial-cnn.png."""
    outcome = run_model("tutorial-cnn")
    readme = ROOT / "README.md"
    readme.write_text(updated_readme(readme.read_text(), outcome))
    with tempfile.TemporaryDirectory() as folder:
        write_outputs(outcome, Path(folder))
        shutil.copy(Path(folder) / "gantt.png", ROOT / "docs" / "gantt-tutorial-cnn.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
