"""What every part may use: the contract, specs, allowed values, files. Needs NumPy only."""
