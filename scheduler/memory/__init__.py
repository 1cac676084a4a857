# SPDX-License-Identifier: Apache-2.0
"""A whole program: which level holds a tensor when, and what is copied or streamed."""
