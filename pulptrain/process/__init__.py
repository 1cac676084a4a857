# SPDX-License-Identifier: Apache-2.0
"""The command as a process: interrupts, streams, progress, unexpected errors, its environment."""
