"""Checkpoints: all that a run needs to go on, bit by bit, after it was killed at any moment."""
