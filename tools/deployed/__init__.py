# SPDX-License-Identifier: Apache-2.0
"""Exports of many schedules, each built, run under sanitizers and compared."""
