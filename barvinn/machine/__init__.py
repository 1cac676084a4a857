# SPDX-License-Identifier: Apache-2.0
"""The units of BARVINN, cycle by cycle."""
