# SPDX-License-Identifier: Apache-2.0
"""The alarm of the number check, tried: defects put into a run on purpose, and random models without any."""
