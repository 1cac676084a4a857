# SPDX-License-Identifier: Apache-2.0
"""Start-up check: are the packages called arch, scheduler, traces ... really ours?"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

_ROOMS = ("arch", "configs", "importers", "scheduler", "traces", "trainlib")


def check_own_packages(rooms: tuple[str, ...] = _ROOMS) -> None:
    """Raise `ImportError` with the cure if a foreign package answers to the name of one of our rooms.

    Packages called arch, scheduler and traces exist on PyPI; one of them in the same environment would be
    imported in place of ours.
    """
    home = Path(__file__).resolve().parents[1]
    for room in rooms:
        spec = find_spec(room)
        found = Path(spec.origin).resolve().parents[1] if spec is not None and spec.origin else None
        if found != home:
            raise ImportError(
                f"the package {room!r} found at {found or 'no place'} is not pulptrain's in {home}; "
                "install pulptrain into a virtual environment of its own"
            )
