# SPDX-License-Identifier: Apache-2.0
"""What a change of machine, kernels or schedule would gain: predicted from one run, and simulated."""
