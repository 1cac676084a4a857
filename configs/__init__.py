"""Configuration files, the code that loads them, and the base of the error tree."""
