# SPDX-License-Identifier: Apache-2.0
"""`run_model` and `prepare` for tests that ask what is computed or simulated, not what is planned.

Tilings and prices that any test of this run of pytest has found are taken over, as commands do it: to plan
the same small models again and again took half of the time of these tests.
`tests/scheduler/test_run_cache.py` holds that this changes nothing.
"""

from __future__ import annotations

from functools import partial

from configs.model_file import ModelSpec
from pulptrain.inputs.settings import Settings
from pulptrain.running import session
from pulptrain.running.machine import Prepared
from scheduler.search.cache import ResultCache, default_cache_file

KEPT = ResultCache(default_cache_file(), own_place=True)

run_model = partial(session.run_model, cache=KEPT)


def prepare(model: str | ModelSpec, settings: Settings) -> Prepared:
    """As `pulptrain.running.session.prepare`."""
    prepared = session.prepare(model, settings, KEPT)
    assert prepared.run_cache is not None
    prepared.run_cache.write()
    return prepared
