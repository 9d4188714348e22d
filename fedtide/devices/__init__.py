"""The strategies on real devices, under `flwr run`: the Grid, its nodes, deadlines, connected clients."""
