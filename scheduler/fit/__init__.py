# SPDX-License-Identifier: Apache-2.0
"""What is kept, computed again or moved to L3 so that an iteration fits: the problem and its search."""
