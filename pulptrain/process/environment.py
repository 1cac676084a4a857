# SPDX-License-Identifier: Apache-2.0
"""Start-up check: are the packages called arch, scheduler, traces ... really ours?"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from pulptrain.process import ROOMS


def check_own_packages(rooms: tuple[str, ...] = ROOMS) -> None:
    """Raise `ImportError` with the cure if a room is missing or a foreign package has its name.

    Packages called arch, scheduler and traces exist on PyPI; one of them in the same environment would be
    imported in place of ours.
    """
    home = Path(__file__).resolve().parents[2]
    for room in rooms:
        spec = find_spec(room)
        origin = Path(spec.origin).resolve() if spec is not None and spec.origin else None
        if origin is None:
            raise ImportError(
                f"pulptrain's package {room!r} in {home} is not installed: install again "
                "(`pip install -e .` in a clone)"
            )
        if origin != home / room / "__init__.py":
            what = origin.parent if origin.name == "__init__.py" else origin
            raise ImportError(
                f"Python imports {what} instead of pulptrain's package {room!r}: rename it or run "
                "from another folder; if it was installed, install pulptrain in a separate environment"
            )
