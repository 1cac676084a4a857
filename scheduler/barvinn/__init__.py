# SPDX-License-Identifier: Apache-2.0
"""From a network of integer layers to the jobs of BARVINN's matrix-vector units."""
