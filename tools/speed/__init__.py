# SPDX-License-Identifier: Apache-2.0
"""User CPU and memory of commands: beside a former version's, and as what is asked grows."""
