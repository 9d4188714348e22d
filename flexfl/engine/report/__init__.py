"""Reports on what a trace does."""
