"""Reports on traces."""
