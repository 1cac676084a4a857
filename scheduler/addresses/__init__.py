# SPDX-License-Identifier: Apache-2.0
"""Bytes and lives: where in one memory buffers lie."""
