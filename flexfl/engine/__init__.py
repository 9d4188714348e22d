"""The round loop, over virtual clients in this process, in Ray actors, or behind Flower's Grid."""
