"""Measurements: clients per second compared with other frameworks, scaling, and the server's step."""
