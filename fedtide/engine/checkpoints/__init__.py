"""Checkpoints: all that a run needs to resume, bit for bit, after being killed at any moment."""
