# SPDX-License-Identifier: Apache-2.0
"""What an op should have made of the numbers it was given, and whether it has."""
