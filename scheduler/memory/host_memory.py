"""What a run will need of this computer's memory, from the shapes of its tensors, before anything is made."""

from __future__ import annotations

from arch.timing import SocTiming
from configs.limits import TENSOR_COPIES, require_host_memory, size_text
from trainlib.graph import TrainingGraph


def check_host_memory(graph: TrainingGraph, timing: SocTiming) -> None:
    """Raise `InputError` if the simulated memories and the values of all tensors are more than is allowed."""
    memories_bytes = timing.l1.size_bytes + timing.l2.size_bytes + timing.l3.size_bytes
    tensors_bytes = sum(tensor.size_bytes for tensor in graph.tensors.values() if tensor.alias_of is None)
    require_host_memory(
        memories_bytes + TENSOR_COPIES * tensors_bytes,
        f"simulated memories of {size_text(memories_bytes)} and tensors of {size_text(tensors_bytes)} need",
        where=graph.name,
    )
