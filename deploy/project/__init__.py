# SPDX-License-Identifier: Apache-2.0
"""The files of an exported project."""
