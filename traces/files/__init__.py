"""Readers of untrusted data files: memory is bounded by the size of the file, and nothing is unpickled."""
