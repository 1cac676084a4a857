# SPDX-License-Identifier: Apache-2.0
"""From a compute action to a call of a C function."""
