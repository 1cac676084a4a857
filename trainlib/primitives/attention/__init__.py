"""Attention, softmax and tokens."""
