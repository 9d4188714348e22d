"""Names of what a client reports in its fit metrics, beside the number of its examples.

All of them are optional: a client that reports nothing has done all of its steps in the current round.
"""

CLIENT_ID = "client-id"
"""int: which client it is. On devices, the node config says so."""

ROUND = "round"
"""int: the round whose task it answers."""

STEPS = "steps"
"""int: s_k, local steps done."""

TRAIN_LOSS = "train-loss"
"""float: mean loss over the local steps."""

FINAL_LOSS = "final-loss"
"""float: loss in the last local step."""

DEPARTING = "departing"
"""bool: the client leaves the federation for good."""

RESYNC = "resync"
"""bool: the client had lost the state that the server takes it to have, and started without one."""

ACCURACY = "accuracy"
"""float: share of correct predictions, in replies to an evaluation."""
