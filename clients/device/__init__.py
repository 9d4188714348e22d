"""A device of a federation in one command: `python -m clients.device`."""
