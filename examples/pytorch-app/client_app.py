"""A Flower client in PyTorch; two lines let it follow every method."""

import torch
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from task import load_data, make_model, test

import fedtide.client

app = ClientApp()


@app.train()
def train(message, context):
    """Train on the node's own digits."""
    model = make_model()
    task = fedtide.client.Task(message, context, model)  # instead of load_state_dict
    optimizer = task.optimizer(torch.optim.SGD(model.parameters(), lr=task.learning_rate))
    batches = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    for _ in range(context.run_config["local-epochs"]):
        for x, y in batches:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
    return task.reply(len(batches.dataset), {"train_loss": loss.item()})


@app.evaluate()
def evaluate(message, context):
    """Test the model on the node's own digits."""
    model = make_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    batches = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    loss, accuracy = test(model, batches)
    metrics = MetricRecord({"loss": loss, "accuracy": accuracy, "num-examples": len(batches.dataset)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
