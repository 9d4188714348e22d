"""Measurements: clients a second beside other frameworks, scaling, the server's step."""
