# SPDX-License-Identifier: Apache-2.0
"""Pages of docs/ and the README that show what the simulator says: text by hand, blocks by these modules."""
