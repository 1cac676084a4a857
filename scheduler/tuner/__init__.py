# SPDX-License-Identifier: Apache-2.0
"""The AutoTuner: candidates of every op, their evaluation by simulation, the search, and its result."""
