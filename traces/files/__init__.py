"""Readers of data files from anywhere: memory is bounded by the file's size, and nothing is unpickled."""
