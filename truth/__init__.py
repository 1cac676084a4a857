# SPDX-License-Identifier: Apache-2.0
"""Second descriptions of what is trained, read again from models as they are given; imports no other room."""
