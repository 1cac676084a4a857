# SPDX-License-Identifier: Apache-2.0
"""Ops of a network as layers of ours, one function a family, whatever the dialect."""
