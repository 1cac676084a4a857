# SPDX-License-Identifier: Apache-2.0
"""What lowerings of several primitives share: kernel calls, pieces of buffers, loops over elements."""
