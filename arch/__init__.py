"""The machine: SimPy modules of a PULP SoC, their timing, and the price of kernels."""
