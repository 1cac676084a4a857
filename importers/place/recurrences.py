# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers as ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from importers.graph.arranging import Site, in_order
from importers.graph.draft import CannotTakeError
from importers.graph.views import View
from importers.graph.weights import Constant
from importers.ops import GATES
from importers.place.moves import sliced


def regated(kind: str, array: Any, *, back: bool = False) -> Any:
    """Weights or biases [gates of ONNX, ...] in our order of gates; `back`: the other way round."""
    order = np.argsort(GATES[kind]) if back else np.array(GATES[kind])
    parts = array.reshape(len(order), -1, *array.shape[1:])
    return parts[order].reshape(array.shape)


def sequence(site: Site, view: View, batch_dim: int, nearest: str) -> str:
    """The word of an input of three dimensions as [batch, time, features]; its batch is in `batch_dim`."""
    is_there = view.batch_dim in (batch_dim, None) and view.shape[batch_dim : batch_dim + 1] == (view.batch,)
    if len(view.dims) != 3 or not is_there:
        place = "first" if batch_dim == 0 else "second"
        what = f"the {place} dimension of input {list(view.shape)} must be the batch"
        raise CannotTakeError(f"{what}, or states would mix samples", nearest)
    ordered = in_order(site, view.swapped(0, batch_dim))
    shape = (view.batch, view.shape[1 - batch_dim], view.shape[2])
    return site.reshaped(ordered.word, shape)


def initial_state(site: Site, given: Any, hidden: int, batch: int, nearest: str) -> str | None:
    """The word of an initial state [1, batch, hidden]; None for zeros, and where none is given."""
    if isinstance(given, View):
        state = in_order(site, given.without_dim(0))
        if batch > 1 and (state.batch_dim != 0 or state.batch != batch):
            raise CannotTakeError("the initial state has no batch dimension", "use [layers, batch, hidden]")
        return site.reshaped(state.word, (batch, hidden))
    if isinstance(given, Constant) and given.value.any():  # zeros are nobody's weight
        raise CannotTakeError("the initial state of the node is a constant other than zeros", nearest)
    return None


def recurrent(
    site: Site,
    kind: str,
    word: str,
    states: Sequence[str | None],
    given: Mapping[str, Constant | None],
    *,
    suffix: str = "",
    back: bool = False,
) -> View:
    """One layer on [batch, time, features]; weights [inputs, gates], in our order of gates.

    `back`: from the last time to the first.
    """
    if any(states) and not all(states):
        raise CannotTakeError("only one of the two initial states is computed", "compute both or neither")
    wh = given["wh"]
    assert wh is not None
    options = {"hidden": wh.shape[0], "bias": given.get("bx") is not None}
    turned = {"axes": [0]}
    word = site.layer("flip", (word,), turned, suffix=f"{suffix}_turned").word if back else word
    made = site.layer(kind, (word, *filter(None, states)), options, given, suffix=suffix)
    return site.layer("flip", (made.word,), turned, suffix=f"{suffix}_back") if back else made


def last_state(site: Site, made: View, *, suffix: str = "", back: bool = False) -> View:
    """[1, batch, hidden] at the end, or going back at the start, of [batch, time, hidden]."""
    last = 0 if back else made.shape[1] - 1
    return sliced(site, made, 1, last, last + 1, suffix=suffix).without_dim(1).with_dim(0)
