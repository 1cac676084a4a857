# SPDX-License-Identifier: Apache-2.0
"""Training graphs of others: their gradients, updates and accumulation as steps of our primitives."""
