# SPDX-License-Identifier: Apache-2.0
"""`fit`: the best way to train within a memory."""
