"""Shared test settings: hypothesis draws the same examples in every run."""

from hypothesis import settings

settings.register_profile("pulptrain", derandomize=True, deadline=None)
settings.load_profile("pulptrain")
