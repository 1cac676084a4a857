# SPDX-License-Identifier: Apache-2.0
"""What a machine and its work are said in: timing, instruction classes, actions of a program."""
