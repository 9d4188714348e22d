"""Names of what a client reports in the metrics of its replies, besides the number of its examples.

All of them are optional: a reply without metrics counts as all local steps of the current round. Simulated
clients report theirs in columns instead of a dictionary for each client.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

CLIENT_ID = "client-id"
"""int: which client it is. On devices, the node config says so."""

ROUND = "round"
"""int: the round that the reply belongs to."""

STEPS = "steps"
"""int: s_k, the local steps that were done."""

PLANNED = "planned-steps"
"""int: E_k, where the client itself decides how many local steps it is to do."""

RULE = "rule"
"""str: the rule of its local steps, from clients of Flower apps; see `fedtide.base.contract.Rule`."""

TRAIN_LOSS = "train-loss"
"""float: mean loss over the local steps."""

FINAL_LOSS = "final-loss"
"""float: loss in the last local step."""

RMS_LOSS = "rms-loss"
"""float: root mean square of the losses of the local steps."""

SECONDS = "seconds"
"""float: how long the client took for a task with a deadline, from its receipt to the reply.

If it does not say that, the engine says how long its reply took; in a simulation these are virtual seconds.
"""

DEPARTING = "departing"
"""bool: the client leaves the federation for good."""

RESYNC = "resync"
"""bool: the client did not have the state that the server assumed, and started without one."""

TASK_DATA = "task-data"
"""bool: the client is a device without data of its own, and trains on its part of the run's data set."""

BOARD = "board-"
"""Before the name of something that a board reports of itself, such as its temperature: see `--report`."""

ACCURACY = "accuracy"
"""float: share of correct predictions, in replies to an evaluation; other tasks have other metrics."""

MEAN_ABSOLUTE_ERROR = "mean-absolute-error"
"""float: of predicted numbers, in their unit, in replies to an evaluation."""

TESTED_EXAMPLES = "tested-examples"
"""int: on how many examples the metric was tested."""

TESTED_CLIENTS = "tested-clients"
"""int: whose held-out examples these are, number of clients; not there where no client has them."""

WORST_CLIENT = "worst-client-"
"""Before a metric's name; float: its worst value on a member's own held-out examples, from the server."""

TENTH_PERCENTILE = "tenth-percentile-"
"""Before a metric's name; float: the value that 90 % of the members reach, from the server."""

GROUPS = "groups"
"""dict: metrics of the members' held-out examples by kind and name of a group, from the server."""

OF_CLIENTS = ("client", "worst_client", "tenth_percentile")
"""How the keys of records begin that are of clients."""

RECORDED = {
    *("round", "seconds", "loss", "train_loss", "tested_examples", "tested_clients", "selected", "active"),
    *("steps", "incomplete", "failed", "offline", "learning_rate", "bytes_down", "bytes_up", "events"),
    *("batch_loss", "notes", "at_work", "late", "virtual_seconds", "device_seconds", "begin", "idle"),
    *("replied", "dropped", "withdrawn", "stopped", "discarded", "probe", "fisher_bytes_up", "extrapolation"),
    *("iterations", "time"),
    *("deadline_seconds", "available", "members", "planned", "reply_seconds", "names", "boards"),
    *("round_ends", "runs", "last", "difference", "rounds", "uploads", "local_steps", "megabytes_up"),
    *("megabytes_down", "paper", "strategy", "option", "task", "model", "partition", "sizes", "trace"),
    *("select", "seed", GROUPS),
}
"""The other keys of records, but for that of the task's metric, and the columns of tables."""

REPORTED = np.dtype(
    [
        ("client", np.int64),
        ("round", np.int64),
        ("num_examples", np.int64),
        ("steps", np.int64),
        ("train_loss", np.float64),
        ("final_loss", np.float64),
        ("rms_loss", np.float64),
        ("seconds", np.float64),
        ("update_norm", np.float64),
        ("resync", np.bool_),
    ]
)
"""One row: the client's index, the round of its task, n_k, and what is named above.

`seconds` is NaN where it is not measured. `update_norm` is the Euclidean norm of the local weights less those
that the client started from; NaN if it does not send its weights.
"""

Reported = NDArray[Any]
"""K such rows."""


def of_row(row: Any) -> dict[str, int | float]:
    """Return one row of `REPORTED` as the metrics of a reply."""
    client, server_round, _, steps, train_loss, final_loss, rms_loss, seconds, _, resync = row.item()
    reported: dict[str, int | float] = {
        CLIENT_ID: client,
        ROUND: server_round,
        STEPS: steps,
        TRAIN_LOSS: train_loss,
        FINAL_LOSS: final_loss,
        RMS_LOSS: rms_loss,
    }
    if not math.isnan(seconds):
        reported[SECONDS] = seconds
    return reported | ({RESYNC: True} if resync else {})
