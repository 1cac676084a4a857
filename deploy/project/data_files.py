# SPDX-License-Identifier: Apache-2.0
"""data.c and what it includes: tensors as they begin, samples, and what the simulator has found."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from arch.spec.program import Place
from deploy.calls.expression import float_text
from deploy.project.network_files import NetworkProgram, tensor_text
from deploy.project.recorded import EQUAL, Recorded, Values
from trainlib.ir.varying import Varying


def data_files(
    programs: Sequence[NetworkProgram], varying: Sequence[Varying], recorded: Recorded, mini_batches: int
) -> dict[str, bytes]:
    """data.c, data.bin and expected.bin by name.

    data.bin holds the kept tensors before the first iteration and the samples of every mini-batch;
    expected.bin, of every iteration that is compared, the results of the ops and then the kept tensors.
    """
    fed = list(recorded.fed[0]) if recorded.fed else []
    samples = [{name: sample[name] for name in fed} for sample in recorded.fed]
    text = _text(programs, recorded, recorded.followed(varying), mini_batches, fed)
    return {
        "data.c": text.encode(),
        "data.bin": _bytes([recorded.kept, *samples]),
        "expected.bin": _bytes(recorded.results),
    }


def _bytes(together: Iterable[Values]) -> bytes:
    """All tensors one after the other."""
    return b"".join(array.tobytes() for tensors in together for array in tensors.values())


def _text(
    programs: Sequence[NetworkProgram],
    recorded: Recorded,
    followed: Sequence[Sequence[float]],
    mini_batches: int,
    fed: Sequence[str],
) -> str:
    schedule = programs[0].schedule
    losses = schedule.graph.losses
    rooms = recorded.rooms([program.schedule.graph for program in programs])
    updates = {name: new for program in programs for name, new in program.schedule.graph.updates.items()}

    def table(label: str, names: Iterable[str]) -> list[str]:
        rows, begin = [], 0
        for name in names:
            home, tensor = schedule.plan.home(name), schedule.graph.tensors[name]
            place = Place(home.level, home.address, tensor.shape, tensor.dtype, name)
            rows.append(f"    {tensor_text(place, tensor, begin, rooms.get(updates.get(name, ''), EQUAL))},")
            begin += place.size_bytes
        return [f"const struct tensor {label}[] = {{", *(rows or ['    {"", {0, 0, 0}, 0, 0, 0, 0},']), "};"]

    def floats(label: str, values: Iterable[Sequence[float]]) -> list[str]:
        rows = [f"    {', '.join(float_text(value) for value in row)}," for row in values if len(row)]
        return [f"const float {label}[] = {{", *(rows or ["    0,"]), "};"]

    numbers = len(followed[0]) if followed else 0
    lines = [
        "/* Inputs of the iterations, and the results of the simulator. */",
        '#include "network_types.h"',
        "",
        f"const int data_iterations = {len(followed)}, data_compared = {recorded.compared};",
        f"const int data_mini_batches = {mini_batches};",
        f"const int data_losses = {len(losses)}, data_varying_count = {numbers};",
        f"const int data_kept_count = {len(recorded.kept)}, data_fed_count = {len(fed)};",
        *table("data_kept", recorded.kept),
        *table("data_fed", fed),
        *table("data_loss", losses),
        *floats("data_varying", followed),
        *floats("data_expected_losses", recorded.losses),
    ]
    return "\n".join([*lines, ""])
