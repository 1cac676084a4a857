# SPDX-License-Identifier: Apache-2.0
"""The Python API: calls, and the objects they return."""
