"""The round loop, with virtual clients in this process or in Ray actors, or over Flower's Grid."""
