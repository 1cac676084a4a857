# SPDX-License-Identifier: Apache-2.0
"""One run: simulated, trained, checked, summed up, written."""
