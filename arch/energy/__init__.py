# SPDX-License-Identifier: Apache-2.0
"""What the blocks of the machine did in a run, and the energy they took for it."""
