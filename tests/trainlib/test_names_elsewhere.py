# SPDX-License-Identifier: Apache-2.0
"""Layers by the names other frameworks give them."""

from __future__ import annotations

import pytest

from configs.errors import UnsupportedLayerError
from trainlib.names_elsewhere import NAMES_ELSEWHERE
from trainlib.registry import PRIMITIVES, layer_primitive


@pytest.mark.parametrize("word", ["Dense", "BatchNorm2d", "max-pool", "Multi_Head_Attention"])
def test_names_of_other_frameworks_lead_to_ours(word: str) -> None:
    """By its letters `dense` is more like the layer of depthwise convolutions."""
    with pytest.raises(UnsupportedLayerError) as caught:
        layer_primitive(word)
    ours = NAMES_ELSEWHERE[word.replace("_", "").replace("-", "").lower()]
    assert str(caught.value.cure).startswith(f"use '{ours}' (known: absolute, ")


def test_every_name_leads_to_one_there_is() -> None:
    assert {text.partition(",")[0] for text in NAMES_ELSEWHERE.values()} <= set(PRIMITIVES)
    assert not set(NAMES_ELSEWHERE) & set(PRIMITIVES)
