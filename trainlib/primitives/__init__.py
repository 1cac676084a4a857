# SPDX-License-Identifier: Apache-2.0
"""One file per primitive: its shapes, its steps, its reference and its tiles."""
