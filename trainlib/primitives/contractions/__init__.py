# SPDX-License-Identifier: Apache-2.0
"""Linear layers, matrix products and convolutions."""
