"""Local training: s_k steps on one client's data, by the rule of the method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clients.flat import FlatModel
from clients.memory import Memory
from clients.rules import RULES, SGD, Config
from tasks import FederatedData
from traces import finished_steps


class DroppedError(Exception):
    """The client went offline in mid-round, before it finished a step."""


@dataclass(frozen=True)
class Update:
    """What a client hands in.

    Attributes
    ----------
    vector
        Local weights after training, shape (M,); shape (0,) where the method's own arrays say it all.
    extra
        The method's own arrays.
    metrics
        Scalars: `client-id`, `round`, `steps`, `train-loss` (mean over the steps), `final-loss` (last step).
    num_examples
        n_k.
    memory
        What the client remembers from now on; None where the method needs no memory at the client.
    """

    vector: NDArray[np.float32]
    extra: list[NDArray[Any]]
    metrics: dict[str, int | float]
    num_examples: int
    memory: Memory | None = None


def batches(
    num_examples: int, batch_size: int, steps: int, rng: np.random.Generator
) -> list[NDArray[np.intp]]:
    """Positions of each step's examples: reshuffled passes over the data, the last batch of a pass as it is.

    The first s of E batches are the same whatever E is, so that an incomplete client did the beginning of the
    work. `batch_size` 0 takes all examples in every step.
    """
    size = min(batch_size, num_examples) or num_examples
    chosen: list[NDArray[np.intp]] = []
    while len(chosen) < steps:
        order = rng.permutation(num_examples)
        chosen += [order[start : start + size] for start in range(0, num_examples, size)]
    return chosen[:steps]


def planned_steps(config: Config, num_examples: int) -> int:
    """E_k, the steps that the server asks of a client with this many examples."""
    epochs = int(config.get("local-epochs", 0))
    if not epochs:
        return int(config["local-steps"])
    batch_size = int(config["batch-size"]) or num_examples
    return epochs * -(-num_examples // batch_size)


def rule_of(config: Config) -> type[SGD]:
    """Return the rule that the server asks for.

    Raises
    ------
    ValueError
        This client does not know it.
    """
    name = config.get("rule", "sgd")
    if name not in RULES:
        raise ValueError(f"unknown rule {name!r}; known: {', '.join(RULES)}; is this client up to date?")
    return RULES[name]


def begin(
    model: FlatModel,
    weights: NDArray[Any],
    arrays: Sequence[NDArray[Any]],
    config: Config,
    memory: Memory | None,
) -> tuple[SGD, Memory, bool]:
    """Load the global weights and settle what the client remembers.

    Returns
    -------
    rule, memory, resync
        The method's rule with the client's state, and what `Memory.open` returns.
    """
    model.load(weights)
    own = [torch.from_numpy(np.array(a)).to(model.device) for a in arrays]
    remembered, resync = (memory or Memory()).open(int(config.get("last-accepted", 0)))
    state = {key: torch.from_numpy(np.array(v)).to(model.device) for key, v in remembered.committed.items()}
    return rule_of(config)(model.vector.clone(), own, config, state), remembered, resync


def train(
    model: FlatModel,
    data: FederatedData,
    client: int,
    weights: NDArray[Any],
    arrays: Sequence[NDArray[Any]],
    config: Config,
    completion: float,
    seed: int,
    memory: Memory | None = None,
) -> Update:
    """Train one client as far as its availability lets it.

    Parameters
    ----------
    model
        Working memory; its weights are overwritten.
    data, client
        Whose data to train on.
    weights
        Global weights, shape (M,).
    arrays
        The method's own arrays.
    config
        Scalars of the task: `round`, `local-steps` or `local-epochs`, `batch-size`, `learning-rate`, `rule`,
        and `last-accepted` where the method needs memory at the client.
    completion
        Share of the planned steps that gets done.
    seed
        With client and round it determines the batches.
    memory
        What the client remembers; None: nothing yet.

    Raises
    ------
    DroppedError
        No step was finished.
    """
    num_examples = int(data.sizes[client])
    steps = int(finished_steps(completion, planned_steps(config, num_examples)))
    if not steps:
        raise DroppedError("dropped in mid-round")
    rng = np.random.default_rng([seed, *b"batches", client, int(config["round"])])
    chosen = batches(num_examples, int(config["batch-size"]), steps, rng)
    x, labels = data.examples(client, np.concatenate(chosen))
    lengths = [len(rows) for rows in chosen]
    inputs = torch.from_numpy(x).to(model.device)
    targets = torch.from_numpy(labels).to(model.device)

    rule, remembered, resync = begin(model, weights, arrays, config, memory)
    y, rate = model.vector, float(config["learning-rate"])
    if rule.needs_fisher:
        rule.fisher = lambda at: model.fisher(at, _fisher_examples(model, data, client, config, seed))
    losses: list[Tensor] = []  # of each step's first gradient, where a method takes several
    for batch in zip(torch.split(inputs, lengths), torch.split(targets, lengths), strict=True):
        done = len(losses)

        def gradient(at: Tensor, batch: tuple[Tensor, Tensor] = batch, done: int = done) -> Tensor:
            value, loss = model.gradient(at, batch)
            if len(losses) == done:
                losses.append(loss)
            return value

        rule.step(y, gradient, rate)
    reported = torch.stack(losses).double().cpu()
    metrics: dict[str, int | float] = {
        "client-id": client,
        "round": int(config["round"]),
        "steps": steps,
        "train-loss": float(reported.mean()),
        "final-loss": float(reported[-1]),
    }
    if "last-accepted" in config:
        new = {key: value.cpu().numpy() for key, value in rule.remember(y, steps, rate).items()}
        remembered = remembered.stage(int(config["round"]), new)
        metrics |= {"resync": True} if resync else {}
    return Update(
        vector=(y if rule.sends_weights else y[:0]).cpu().numpy().copy(),
        extra=[a.cpu().numpy() for a in rule.upload(y, steps, rate)],
        metrics=metrics,
        num_examples=num_examples,
        memory=remembered if "last-accepted" in config else None,
    )


def _fisher_examples(
    model: FlatModel, data: FederatedData, client: int, config: Config, seed: int
) -> tuple[Tensor, Tensor]:
    """Draw `fisher-batches` batches of different examples; with 0, or if there are not more, take all."""
    num_examples = int(data.sizes[client])
    wanted = int(config["fisher-batches"]) * int(config["batch-size"]) or num_examples
    rng = np.random.default_rng([seed, *b"fisher", client, int(config["round"])])
    x, labels = data.examples(client, rng.permutation(num_examples)[:wanted])
    return torch.from_numpy(x).to(model.device), torch.from_numpy(labels).to(model.device)
