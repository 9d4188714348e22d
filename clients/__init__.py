"""What runs on a client: local training, the Flower ClientApp, and the simulation of many clients."""
