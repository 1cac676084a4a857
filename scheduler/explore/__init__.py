# SPDX-License-Identifier: Apache-2.0
"""Design-space exploration: many SoCs and schedules, simulated; which of them are worth having."""
