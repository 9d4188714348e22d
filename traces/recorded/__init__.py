"""Traces that replay recordings: of real devices on a virtual clock, and of rounds in a table."""
