# SPDX-License-Identifier: Apache-2.0
"""One op: how it is cut into tiles, what a tiling needs and what it is estimated to cost."""
