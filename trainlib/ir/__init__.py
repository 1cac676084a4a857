# SPDX-License-Identifier: Apache-2.0
"""What all rooms call tensors, ops, steps and accesses: the graph, without any primitive."""
