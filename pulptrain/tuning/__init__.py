# SPDX-License-Identifier: Apache-2.0
"""`tune`: the call, its files and its report."""
