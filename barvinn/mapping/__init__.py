# SPDX-License-Identifier: Apache-2.0
"""From layers to jobs, images and register writes, and what was published and measured of them."""
