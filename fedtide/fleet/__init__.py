"""The boards of a federation: their names and keys, and how they are."""
