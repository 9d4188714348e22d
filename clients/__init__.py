"""What runs on a client: local training, the Flower ClientApp, and the actors that play virtual clients."""
