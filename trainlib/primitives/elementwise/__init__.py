"""Activations, sums and scales: element i from elements i."""
