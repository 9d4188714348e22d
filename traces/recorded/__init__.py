"""Recorded traces: the sessions of real devices on a virtual clock, and tables of rounds."""
