# SPDX-License-Identifier: Apache-2.0
"""The measured sets that docs/validation.md tells of, and how that page is written."""
