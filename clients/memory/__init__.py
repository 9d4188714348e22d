"""What clients remember between rounds, and where it is kept."""
