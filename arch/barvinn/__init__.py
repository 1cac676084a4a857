# SPDX-License-Identifier: Apache-2.0
"""BARVINN: bit-serial matrix-vector units and the harts that drive them, on the classes of the PULP SoC."""
