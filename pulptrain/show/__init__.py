# SPDX-License-Identifier: Apache-2.0
"""`list`, `show` and `validate`: what there is, as objects and as text."""
