"""Comparisons: many runs, their results side by side."""
