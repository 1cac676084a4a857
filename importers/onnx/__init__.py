# SPDX-License-Identifier: Apache-2.0
"""ONNX: the names of its ops and attributes, as what `importers.place` is told."""
