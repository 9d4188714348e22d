"""What methods remember of each client between rounds: vectors by client, and sums of them."""
