# SPDX-License-Identifier: Apache-2.0
"""Configuration files, the code that loads them, and the base of the error tree."""
