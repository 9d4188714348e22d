"""What every method stands on: Flower's interface, membership, replies, options and schedules."""
