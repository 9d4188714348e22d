"""All settings of a run, with their defaults.

The same names, in kebab-case, are the flags of `sim.py`, the keys of a `--config` file and the keys of
`flwr run --run-config`.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from flexfl.config.specs import did_you_mean, parse_options

# What a run folder's config.toml records besides the settings: the versions of packages, the command line.
RECORDED = ("versions", "command")


def _setting(default: Any, text: str, client: bool = False) -> Any:
    """Declare a setting; `client`: whether what clients do depends on it."""
    return field(default=default, metadata={"help": text, "client": client})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a run; specs are stored as text."""

    strategy: str = _setting("scheme-c", "the federated method")
    option: tuple[str, ...] = _setting((), "an option of the strategy, KEY=VALUE; may be repeated")
    task: str = _setting("digits", "the data set", client=True)
    model: str = _setting("", "the model; default: the task's own", client=True)
    partition: str = _setting(
        "", "how the data are divided among clients; default: the task's own", client=True
    )
    sizes: str = _setting("equal", "how many examples each client gets", client=True)
    trace: str = _setting(
        "bernoulli:p=0.9+pools:first=8",
        "which clients are online in which round, and how much of their work they finish",
        client=True,
    )
    arrivals: str = _setting("", "late arrivals; a range of clients is written 10-14=50", client=True)
    departures: str = _setting("", "early departures, written like arrivals", client=True)
    num_clients: int = _setting(20, "N, clients in the federation", client=True)
    clients_per_round: int = _setting(0, "K, clients selected per round; 0: all that are available")
    num_rounds: int = _setting(100, "T, rounds of the run")
    local_steps: int = _setting(10, "E, local steps of a complete client", client=True)
    local_epochs: int = _setting(
        0, "if positive, local passes over the client's data, instead of local steps", client=True
    )
    batch_size: int = _setting(20, "examples per step; 0: all examples of the client", client=True)
    learning_rate: float = _setting(0.2, "eta_0, the clients' learning rate", client=True)
    lr_schedule: str = _setting("constant", "how the learning rate changes over rounds")
    server_opt: str = _setting("", "a server optimiser on top of the strategy's updates; default: none")
    amplify: str = _setting("", "PERIOD,FACTOR: multiply the change of every PERIOD rounds by FACTOR")
    seed: int = _setting(0, "determines all random numbers of the run", client=True)
    engine: str = _setting("ray", "ray: virtual clients in Ray actors; inline: in this process")
    num_workers: int = _setting(0, "Ray actors; 0: one per share of a GPU, or without GPUs one per CPU core")
    client_gpus: float = _setting(
        1.0, "share of a GPU per actor, on machines with a GPU; 0: train on the CPU", client=True
    )
    ray_address: str = _setting(
        "", "address of a running Ray cluster, HOST:PORT or auto; default: start Ray on this machine"
    )
    cohort: str = _setting(
        "auto", "how gradients are computed; auto: chosen by model and device", client=True
    )
    cohort_size: int = _setting(0, "clients that train in one call; 0: chosen automatically")
    data_dir: str = _setting("data", "where data sets are downloaded to", client=True)
    run_dir: str = _setting("runs", "where the run folder is made")
    evaluate_every: int = _setting(1, "rounds between evaluations")
    evaluate_on: str = _setting(
        "test", "test: the data set's test split; members: held-out examples of the members", client=True
    )
    holdout: float = _setting(
        0.2,
        "share of each client's data held out for --evaluate-on members and --evaluate-clients",
        client=True,
    )
    evaluate_clients: int = _setting(
        0, "rounds between evaluations on each member's own held-out examples; 0: none", client=True
    )
    report: bool = _setting(True, "make report.html, a page with plots, when the run has ended")
    train_loss: bool = _setting(False, "compute the training loss at every evaluation, not only at the end")
    connect_timeout: float = _setting(120.0, "seconds that `flwr run` waits for the clients to connect")

    def __post_init__(self) -> None:
        for name in ("learning_rate", "client_gpus", "holdout", "connect_timeout"):
            if not math.isfinite(getattr(self, name)):
                flag = name.replace("_", "-")
                raise ValueError(f"{flag} is {getattr(self, name)}; it must be a finite number")
        for name, least in (
            ("num_clients", 1),
            ("num_rounds", 1),
            ("evaluate_every", 1),
            ("evaluate_clients", 0),
            ("num_workers", 0),
            ("cohort_size", 0),
        ):
            if getattr(self, name) < least:
                flag = name.replace("_", "-")
                raise ValueError(f"{flag} is {getattr(self, name)}; it must be at least {least}")
        if not 0 <= self.client_gpus <= 1:
            raise ValueError(f"client-gpus is {self.client_gpus}; it must be from 0 to 1")
        if not 0 < self.holdout < 1:
            raise ValueError(f"holdout is {self.holdout}; it must be between 0 and 1, both excluded")
        if self.clients_per_round > self.num_clients:
            raise ValueError(
                f"clients-per-round is {self.clients_per_round}; "
                f"it must be at most num-clients, {self.num_clients}"
            )
        for name, known in (
            ("engine", ("ray", "inline")),
            ("evaluate_on", ("test", "members")),
        ):
            if getattr(self, name) not in known:
                flag = name.replace("_", "-")
                raise ValueError(f"unknown {flag} {getattr(self, name)!r}; known: {', '.join(known)}")

    @property
    def strategy_options(self) -> dict[str, str]:
        """The `option` settings, by key; the value is everything after the first `=`.

        Raises
        ------
        ValueError
            One of them is not KEY=VALUE, or a key is given twice.
        """
        options: dict[str, str] = {}
        for text in self.option:
            key, equals, value = (part.strip() for part in text.partition("="))
            if not (key and equals and value):
                raise ValueError(f"option {text!r} is not KEY=VALUE")
            if key in options:
                raise ValueError(f"option {key!r} is given twice")
            options[key] = value
        return options

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], source: str) -> Settings:
        """Make settings from a mapping with kebab-case keys.

        Parameters
        ----------
        values
            Values by key; other settings keep their defaults.
        source
            Where the values come from, for messages.

        Raises
        ------
        ValueError
            A key is unknown or a value is of the wrong type or out of range.
        """
        known = {f.name.replace("_", "-"): f for f in fields(cls)}
        chosen: dict[str, Any] = {}
        for key, value in values.items():
            if key not in known:
                listed = f"{', '.join(known)}{did_you_mean(key, known)}"
                raise ValueError(f"{source}: unknown setting {key!r}; known: {listed}")
            expected = type(known[key].default)
            if expected is tuple:
                value = _as_tuple(f"{source}: {key}", value)
            if expected is float and type(value) is int:
                value = float(value)
            if type(value) is not expected:
                raise ValueError(f"{source}: {key} is {value!r}; it must be of type {expected.__name__}")
            chosen[known[key].name] = value
        return cls(**chosen)

    def as_mapping(self) -> dict[str, Any]:
        """Return the values by kebab-case key, in types that TOML has."""
        values = {f.name.replace("_", "-"): getattr(self, f.name) for f in fields(self)}
        return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}


def _as_tuple(where: str, value: Any) -> tuple[str, ...]:
    """Convert a list of strings, or one string with commas, as `flwr run` has no lists."""
    if isinstance(value, str):
        return tuple(f"{key}={text}" for key, text in parse_options(f"{where} {value!r}", value).items())
    if not isinstance(value, list | tuple) or not all(isinstance(text, str) for text in value):
        raise ValueError(f"{where} is {value!r}; it must be a list of strings")
    return tuple(value)


def read_toml(path: str) -> dict[str, Any]:
    """Read a `--config` file, whose top-level keys are settings.

    The `config.toml` of a run folder is such a file; what else it records is ignored.

    Raises
    ------
    ValueError
        The file cannot be read, or is not TOML.
    """
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"config {path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"config {path}: not TOML: {error}") from None
    return {key: value for key, value in values.items() if key not in RECORDED}
