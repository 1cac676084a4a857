# SPDX-License-Identifier: Apache-2.0
"""The command as a process: interrupts, streams, progress, unexpected errors, its environment."""

import time

BEGUN_SECONDS = time.perf_counter()
"""When this process came to the first line of ours."""

ROOMS = ("arch", "barvinn", "configs", "deploy", "importers", "scheduler", "traces", "trainlib", "truth")
"""Our packages beside this one."""
