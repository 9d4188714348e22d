"""What a finished run did for each client: its share of the updates, how often it took part, its score."""
