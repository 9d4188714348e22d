"""The base of every strategy."""
