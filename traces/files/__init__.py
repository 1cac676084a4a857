# SPDX-License-Identifier: Apache-2.0
"""The files of a result folder: JSON with its keys, tables, Perfetto traces, and whose they are."""
