"""Layers that move data and compute nothing."""
