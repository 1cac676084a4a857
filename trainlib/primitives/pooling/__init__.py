"""Pooling, means and resampling."""
