# SPDX-License-Identifier: Apache-2.0
"""What searches share: workers, the cache of results, progress, the rows of results."""
