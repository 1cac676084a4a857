# SPDX-License-Identifier: Apache-2.0
"""What a forward stores into a parameter past autograd: ``weight.data = renorm(weight.data, ...)``.

torch.export does not see it. While `projections` is entered it is an op of the graph, ``projected(weight,
value)``: it has the numbers of the value, its gradient goes to the weight, and the optimizer goes on from it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

PROJECTED = "projected"
"""Name of the op."""


@cache
def _op(torch: Any) -> tuple[Any, Any]:
    """The op, and the library that has it as long as somebody holds it."""
    library = torch.library.Library("pulptrain", "FRAGMENT")
    library.define(f"{PROJECTED}(Tensor weight, Tensor value) -> Tensor")
    library.impl(PROJECTED, lambda weight, value: value.clone(), "CompositeExplicitAutograd")
    return torch.ops.pulptrain.projected, library


def projections(torch: Any) -> Any:
    """The mode of torch functions in which a capture sees what is stored into parameters."""
    from torch.overrides import TorchFunctionMode
    from torch.utils._pytree import tree_map

    data = torch.Tensor.data

    class Projections(TorchFunctionMode):  # type: ignore[misc]
        """`now` are parameters by their id, and what stands in their place from then on."""

        def __init__(self) -> None:
            super().__init__()
            self.now: dict[int, tuple[Any, Any]] = {}
            self.others = False
            """Whether anything was stored into other tensors."""

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            tensor = args[0] if args and isinstance(args[0], torch.Tensor) else None
            own = tensor is not None and tensor.is_leaf and tensor.requires_grad
            self.others |= func == data.__set__ and not own
            if own and func == data.__set__:
                self.now[id(tensor)] = tensor, _op(torch)[0](self._replaced(tensor), args[1])
                return None
            if own and func == data.__get__:
                return self._replaced(tensor).detach()
            if self.now:
                args, kwargs = tree_map(self._replaced, (args, kwargs))
            return func(*args, **(kwargs or {}))

        def _replaced(self, item: Any) -> Any:
            return self.now.get(id(item), (None, item))[1]

    return Projections()
