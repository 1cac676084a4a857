# SPDX-License-Identifier: Apache-2.0
"""A file or a capture as nodes and a draft of layers: what every dialect reads and adds to."""
