"""Clients simulated by Ray actors: placement, calls, faults, and shared memory for their replies."""
