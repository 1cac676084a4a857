# SPDX-License-Identifier: Apache-2.0
"""BARVINN, the second machine: a network from ONNX, its jobs, and the units that execute them."""
