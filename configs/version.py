# SPDX-License-Identifier: Apache-2.0
"""The version of all rooms, as in pyproject.toml."""

VERSION = "0.2.0"
