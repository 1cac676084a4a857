# SPDX-License-Identifier: Apache-2.0
"""From the actions of a program to C statements: loops over tiles, index arithmetic for what varies."""
