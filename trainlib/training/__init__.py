# SPDX-License-Identifier: Apache-2.0
"""From a model to the graphs of its training, and the values of every iteration."""
