"""Our methods in any Flower app: `fedtide.strategy` at the server, `fedtide.client` at the clients."""
