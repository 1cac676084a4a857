# SPDX-License-Identifier: Apache-2.0
"""What a user gives: options, settings, a chip, layers, data and values of the own."""
