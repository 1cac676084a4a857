# SPDX-License-Identifier: Apache-2.0
"""The model as it was given, once more, in PyTorch: the truth that a run is held against.

This is a second description of everything a model file means, on purpose. It reads the file (or the values of
a model made in Python) by itself, knows every layer, loss and optimizer by name with defaults of its own, as
docs/primitives.md and docs/model-file.md have them, and finds shapes by executing PyTorch. It imports nothing
of graph builder, primitives, importers or scheduler (`tests/truth/test_truth.py` holds that), and must never
be merged with them: what both sides read from one place, neither can find wrong.

All it shares with the machine are the names of tensors (``conv1.out``, ``conv1.weight.grad``, ``input``), the
orders in which they are stored (CHW, HWC), and the words of number formats.
"""
