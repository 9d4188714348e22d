"""Generated traces: the participation patterns of the papers."""
