"""The clients' memory between rounds, and where it is stored."""
