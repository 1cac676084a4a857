# SPDX-License-Identifier: Apache-2.0
"""The vocabulary of SystemC on SimPy: modules, ports, threads, clocks, transactions."""
