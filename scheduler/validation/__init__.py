"""Predicted against measured cycles: measured cases in, predictions and their errors out."""
