# SPDX-License-Identifier: Apache-2.0
"""The executed program as a graph of activities: its critical path, and slack."""
