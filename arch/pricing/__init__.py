# SPDX-License-Identifier: Apache-2.0
"""What a kernel costs on a team of cores: pipeline, contention, instruction caches."""
