# SPDX-License-Identifier: Apache-2.0
"""The program of the cluster's master core, emitted op by op."""
