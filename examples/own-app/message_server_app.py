"""The same on Flower's Message API: for clients, nothing changes."""

from flwr.serverapp import ServerApp
from server_app import make_strategy

from fedtide.devices.message_strategy import MessageStrategy

app = ServerApp()


@app.main()
def main(grid, context):
    """Train, and test at the server after each round."""
    config = context.run_config
    strategy = MessageStrategy(make_strategy(config), min_clients=config["clients-per-round"])
    rounds = config["num-rounds"]
    strategy.start(grid, strategy.initial_arrays, rounds, evaluate_fn=strategy.evaluate)
