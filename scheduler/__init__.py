# SPDX-License-Identifier: Apache-2.0
"""Where and when: tiles, addresses, buffering, the program, and its execution."""
