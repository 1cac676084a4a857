# SPDX-License-Identifier: Apache-2.0
"""Layers of ours as nodes of ONNX."""
