"""Everything that a user can set about a run, with its default.

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

from flexfl.config.specs import parse_options

# What a run folder's config.toml holds besides the settings: packages in use, and how the run was called.
RECORDED = ("versions", "command")


def _setting(default: Any, text: str, client: bool = False) -> Any:
    """Field of a setting; `client`: what clients do depends on it."""
    return field(default=default, metadata={"help": text, "client": client})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a run; specs are kept as the user wrote them."""

    strategy: str = _setting("scheme-c", "the federated method")
    option: tuple[str, ...] = _setting((), "a further option of the strategy, KEY=VALUE; may be repeated")
    task: str = _setting("digits", "what is learned", client=True)
    model: str = _setting("", "the model; default: the task's own", client=True)
    partition: str = _setting(
        "", "how the data are divided among clients; default: the task's own", client=True
    )
    sizes: str = _setting("equal", "how many examples each client gets", client=True)
    trace: str = _setting(
        "pools:first=8", "who is online when, and how much of the work gets finished", client=True
    )
    arrivals: str = _setting(
        "", "late arrivals, CLIENT=ROUND,... (a range of clients: 10-14=50)", client=True
    )
    departures: str = _setting("", "early departures, CLIENT=ROUND,...", client=True)
    num_clients: int = _setting(20, "N, clients in the federation", client=True)
    clients_per_round: int = _setting(0, "K, clients selected a round; 0: all that are online")
    num_rounds: int = _setting(100, "T, rounds of the run")
    local_steps: int = _setting(10, "E, local steps of a complete client", client=True)
    local_epochs: int = _setting(
        0, "local passes over the client's data, instead of local steps", client=True
    )
    batch_size: int = _setting(10, "examples a step; 0: the client's whole set", client=True)
    learning_rate: float = _setting(0.1, "eta_0, the clients' learning rate", client=True)
    lr_schedule: str = _setting("constant", "how the learning rate changes over rounds")
    seed: int = _setting(0, "every random draw of the run follows from it", client=True)
    engine: str = _setting("ray", "ray: virtual clients in Ray actors; inline: in this process")
    num_workers: int = _setting(0, "Ray actors; 0: one for each GPU share, or for each CPU core")
    client_gpus: float = _setting(
        1.0, "share of a GPU for each actor, where there is one; 0: train on the CPU", client=True
    )
    ray_address: str = _setting(
        "", "a Ray cluster that is running, HOST:PORT or auto; default: start Ray here"
    )
    cohort: str = _setting(
        "auto", "how gradients are computed; auto: what suits the model and the device", client=True
    )
    cohort_size: int = _setting(0, "clients that train in one call; 0: as many as suit the model")
    data_dir: str = _setting("data", "where data sets are downloaded to", client=True)
    run_dir: str = _setting("runs", "where the folder of the run is made")
    evaluate_every: int = _setting(1, "rounds between evaluations")
    evaluate_on: str = _setting(
        "test", "test: the data set's test split; members: hold-outs of the members", client=True
    )
    holdout: float = _setting(
        0.2, "share of each client's data that is held out for --evaluate-on members", client=True
    )

    train_loss: bool = _setting(False, "give the training loss at every evaluation, not at the end only")
    connect_timeout: float = _setting(120.0, "seconds that `flwr run` waits for all clients to connect")

    def __post_init__(self) -> None:
        for name in ("learning_rate", "client_gpus", "holdout", "connect_timeout"):
            if not math.isfinite(getattr(self, name)):
                flag = name.replace("_", "-")
                raise ValueError(f"{flag} is {getattr(self, name)}; it must be a finite number")
        for name, least in (
            ("num_clients", 1),
            ("num_rounds", 1),
            ("evaluate_every", 1),
            ("num_workers", 0),
            ("cohort_size", 0),
        ):
            if getattr(self, name) < least:
                flag = name.replace("_", "-")
                raise ValueError(f"{flag} is {getattr(self, name)}; it must be at least {least}")
        if not 0 <= self.client_gpus <= 1:
            raise ValueError(f"client-gpus is {self.client_gpus}; it is a share, 0 to 1")
        if not 0 < self.holdout < 1:
            raise ValueError(f"holdout is {self.holdout}; it is a share between 0 and 1")
        if self.clients_per_round > self.num_clients:
            raise ValueError(
                f"clients-per-round is {self.clients_per_round} of only {self.num_clients} clients"
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
        """The `option` settings by key; everything after the first `=` is the value.

        Raises
        ------
        ValueError
            One is not KEY=VALUE, or a key is given twice.
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
        """Make settings from kebab-case keys.

        Parameters
        ----------
        values
            Values by key; what is not given keeps its default.
        source
            Where they come from, for messages.

        Raises
        ------
        ValueError
            A key is unknown or a value is of the wrong type or out of range.
        """
        known = {f.name.replace("_", "-"): f for f in fields(cls)}
        chosen: dict[str, Any] = {}
        for key, value in values.items():
            if key not in known:
                raise ValueError(f"{source}: unknown setting {key!r}; known: {', '.join(known)}")
            wanted = type(known[key].default)
            if wanted is tuple:
                value = _as_tuple(f"{source}: {key}", value)
            if wanted is float and type(value) is int:
                value = float(value)
            if type(value) is not wanted:
                raise ValueError(f"{source}: {key} is {value!r}; it must be of type {wanted.__name__}")
            chosen[known[key].name] = value
        return cls(**chosen)

    def as_mapping(self) -> dict[str, Any]:
        """Values by kebab-case key, as a TOML file holds them."""
        values = {f.name.replace("_", "-"): getattr(self, f.name) for f in fields(self)}
        return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}


def _as_tuple(where: str, value: Any) -> tuple[str, ...]:
    """Read a list of texts; in a single text, commas separate them, as `flwr run` knows no lists."""
    if isinstance(value, str):
        return tuple(f"{key}={text}" for key, text in parse_options(f"{where} {value!r}", value).items())
    if not isinstance(value, list | tuple) or not all(isinstance(text, str) for text in value):
        raise ValueError(f"{where} is {value!r}; it must be a list of texts")
    return tuple(value)


def read_toml(path: str) -> dict[str, Any]:
    """Read a `--config` file: the settings as top-level keys.

    The `config.toml` of a run folder is such a file; what it says about the run besides is left out.

    Raises
    ------
    ValueError
        There is no such file, or it is no TOML.
    """
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"config {path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"config {path}: not TOML: {error}") from None
    return {key: value for key, value in values.items() if key not in RECORDED}
