# SPDX-License-Identifier: Apache-2.0
"""Models of others: ONNX files and PyTorch modules, read and made into models and training graphs of ours."""
