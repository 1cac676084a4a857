"""Shared test settings: hypothesis draws the same examples in every run; nothing is kept from run to run."""

import os
import tempfile

from hypothesis import settings

CACHE_FOLDER = tempfile.TemporaryDirectory(prefix="pulptrain-cache-")
"""In place of the user's: what commands keep there must not outlive this process of pytest."""

os.environ["XDG_CACHE_HOME"] = CACHE_FOLDER.name

settings.register_profile("pulptrain", derandomize=True, deadline=None)
settings.load_profile("pulptrain")
