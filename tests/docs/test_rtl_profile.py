# SPDX-License-Identifier: Apache-2.0
from tools.pages.rtl_profile import CAUSES, cycles


def test_every_cause_is_in_the_cycles_of_a_small_network() -> None:
    """Its table is made of 13 models (slow); of one the old values give what the network took before."""
    now = cycles("simple-mlp")
    assert cycles("simple-mlp", *CAUSES) < now
    for cause in ("refills of code", "bursts", "synchronisation"):
        assert cycles("simple-mlp", cause) < now
