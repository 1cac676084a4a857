# SPDX-License-Identifier: Apache-2.0
"""Models of others: read, held against where they come from, replayed, converted."""
