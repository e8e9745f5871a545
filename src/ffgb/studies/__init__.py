"""Comparisons, tuning, the paper's experiments and its theorems."""
