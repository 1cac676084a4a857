# SPDX-License-Identifier: Apache-2.0
"""The subcommands of `pulptrain`, one file each."""
