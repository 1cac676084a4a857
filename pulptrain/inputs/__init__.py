# SPDX-License-Identifier: Apache-2.0
"""What a user brings: options, settings, a chip, layers, data and values."""
