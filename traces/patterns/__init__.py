"""Traces that are generated: the participation patterns of the papers."""
