# SPDX-License-Identifier: Apache-2.0
"""Why an op does not fit L1: what its buffers take. What would help is tried out by `scheduler.levers`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from configs.errors import Contributor, DoesNotFitError

if TYPE_CHECKING:
    from scheduler.tiles.tiling import Tiler, Tiling


def does_not_fit(
    tiler: Tiler, tiling: Tiling, available_bytes: int, *, whole: bool = False
) -> DoesNotFitError:
    """The report for a tiling that exceeds L1: the smallest possible one, or the one asked for.

    With `whole` the op was to lie in L1 uncut.
    """
    sizes = ", ".join(f"{name}={size}" for name, size in tiling.sizes)
    slots = max((buffer.slots for buffer in tiling.buffers), default=1)
    many = tiler.buffer_depth > 2
    buffers = "one buffer" if tiler.buffer_depth == 1 else f"up to {slots} buffers" if many else "two buffers"
    fewer = ", or use fewer buffers (--buffering 2)" if many else ""
    return DoesNotFitError(
        "l1",
        tiling.l1_bytes,
        available_bytes,
        where=tiler.op.name,
        what=(f"a tile of {sizes}" if sizes else "the op without tiles")
        + ("" if whole else f" with {buffers} per operand"),
        contributors=tuple(
            Contributor(
                f"{_tensor(tiler, buffer.name)} ({buffer.role}, {buffer.slots} x {buffer.slot_bytes} B)",
                buffer.size_bytes,
            )
            for buffer in tiling.buffers
        ),
        cure=f"enlarge --l1 by {-(-(tiling.l1_bytes - available_bytes) // 1024)} KiB or more{fewer}"
        + (", or --buffering single, which allows smaller tiles" if whole else ""),
    )


def _tensor(tiler: Tiler, name: str) -> str:
    role, dot, rest = name.partition(".")
    return tiler.op.roles.get(name) or (tiler.op.roles.get(role, role) + dot + rest)
