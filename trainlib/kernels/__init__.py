"""Kernels as loop nests: data from configs/kernels turned into instruction streams."""
