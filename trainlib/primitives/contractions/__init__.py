"""Linear layers, matrix products and convolutions."""
