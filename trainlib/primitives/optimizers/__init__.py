"""Optimizers, and what is done to gradients before them."""
