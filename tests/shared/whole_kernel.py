# SPDX-License-Identifier: Apache-2.0
"""The window that cuts nothing off a kernel."""

from __future__ import annotations

from arch.pricing.window_plan import START_OFFSETS_CYCLES, PricingWindow

WHOLE_KERNEL = PricingWindow(1 << 60, starts=START_OFFSETS_CYCLES[:1])
"""Executes everything from the start the fork gives: exact."""
