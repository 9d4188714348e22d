"""All settings of a run, with their defaults.

The same names, in kebab-case, are the flags of `sim.py`, the keys of a `--config` file and the keys of
`flwr run --run-config`.
"""

# ruff: noqa: RUF009, `_setting` returns a field

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal

from fedtide.base.allowed import (
    Count,
    CountOrZero,
    NotNegative,
    Range,
    Share,
    check,
    did_you_mean,
)
from fedtide.base.errors import SettingsError, why
from fedtide.base.files import parse_toml, read_text
from fedtide.base.specs import parse_options, split_specs
from fedtide.config.target import Target

# What a run folder's config.toml records besides the settings: versions of packages, the command line, and
# hashes of the files of the user's own parts, and Flower's number of the run.
RECORDED = ("versions", "command", "resolved", "parts", "flower-run")

# What does not change the result of a run: where and how fast it is computed, where it is logged, and how
# often it is saved.
EXECUTION_ONLY = {
    *("run-dir", "data-dir", "engine", "num-workers", "ray-address", "client-timeout", "cohort-size"),
    *("connect-timeout", "log", "report", "checkpoint-every", "keep-weights", "resume"),
    *("min-nodes", "round-deadline", "min-replies", "max-absence"),  # of devices
}
NO_DIFFERENCE = EXECUTION_ONLY | {"cohort"}  # what changes results at most in how sums are rounded

MAX_BYTES = 4 << 20  # of a configuration file
MAX_COUNT = 10**9  # of whatever is counted: more is a slip, and products of more leave 64 bits
_MAX_SHOWN = 200  # characters of a value in a message
MAX_SEED = 2**63 - 1  # as Flower sends numbers

# Groups of settings, in the order in which `--help` has them.
LEARNING = "task and method"
FEDERATION = "the federation"
PARTICIPATION = "participation"
TRAINING = "training"
ENGINE = "engine"
OUTPUT = "evaluation and output"
DEVICES = "clients that connect, under `flwr run`"


def _setting(group: str, default: Any, text: str, client: bool = False) -> Any:
    """Declare a setting; `client`: whether what clients do depends on it."""
    return field(default=default, metadata={"group": group, "help": text, "client": client})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a run; specs are stored as text."""

    strategy: str = _setting(LEARNING, "scheme-c", "the federated method")
    option: tuple[str, ...] = _setting(LEARNING, (), "an option of the strategy, KEY=VALUE; may be repeated")
    task: str = _setting(LEARNING, "digits", "the data set", client=True)
    model: str = _setting(LEARNING, "", "the model; default: the task's own", client=True)
    partition: str = _setting(
        FEDERATION, "", "how the data are divided among clients; default: the task's own", client=True
    )
    sizes: str = _setting(FEDERATION, "equal", "how many examples each client gets", client=True)
    trace: str = _setting(
        PARTICIPATION,
        "bernoulli:p=0.9+pools:first=8",
        "which clients are online in which round, and how much of their work they finish",
        client=True,
    )
    arrivals: str = _setting(
        PARTICIPATION,
        "",
        "late arrivals by round, 10=50, or in event time by second, 10=3600s; a range is 10-14=50; "
        "10=never: the client never comes, and its examples count nowhere",
        client=True,
    )
    departures: str = _setting(PARTICIPATION, "", "early departures, written like arrivals", client=True)
    num_clients: Count = _setting(FEDERATION, 20, "N, clients in the federation", client=True)
    clients_per_round: CountOrZero = _setting(
        PARTICIPATION, 0, "K, clients selected per round; 0: all that are available"
    )
    select: str = _setting(
        PARTICIPATION,
        "method",
        "which of the available clients are selected; method: as the strategy does, mostly uniformly",
    )
    round_ends: CountOrZero = _setting(
        PARTICIPATION,
        0,
        "event time: a round ends with the B-th reply, however old its task, and at most K clients are at "
        "work; 0: rounds as the trace has them",
    )
    num_rounds: Count = _setting(TRAINING, 100, "T, rounds of the run")
    until: NotNegative = _setting(TRAINING, 0.0, "virtual seconds after which the run ends; 0: no limit")
    until_seconds: NotNegative = _setting(
        TRAINING, 0.0, "wall-clock seconds after which the run ends, with the round; 0: no limit"
    )
    stop_at: str = _setting(
        TRAINING,
        "",
        "end the run when the score reaches this: accuracy=0.9, or another metric of the task, loss, "
        "train-loss, worst-client, tenth-percentile, client (personal models) or client-loss",
    )
    patience: CountOrZero = _setting(
        TRAINING,
        0,
        "evaluations in a row without a better score, of the metric or of what stop-at names, that end the "
        "run; 0: any number",
    )
    local_steps: Count = _setting(TRAINING, 10, "E, local steps of a complete client", client=True)
    local_epochs: CountOrZero = _setting(
        TRAINING, 0, "if positive, local passes over the client's data, instead of local steps", client=True
    )
    batch_size: CountOrZero = _setting(
        TRAINING, 20, "examples per step; 0: all examples of the client", client=True
    )
    learning_rate: NotNegative = _setting(
        TRAINING, 0.0, "eta_0, the clients' learning rate; 0: what suits the model", client=True
    )
    lr_schedule: str = _setting(TRAINING, "constant", "how the learning rate changes over rounds")
    server_opt: str = _setting(
        TRAINING, "", "a server optimiser on top of the strategy's updates; default: none"
    )
    amplify: str = _setting(TRAINING, "", "multiply the change of every PERIOD rounds by FACTOR")
    initial_model: str = _setting(
        TRAINING,
        "",
        "what to start from when the members have changed: a mixture of the models of earlier sets of "
        "members; default: the model as it is",
    )
    max_update_norm: str = _setting(
        TRAINING,
        "warn",
        "updates far larger than usual: warn reports those of more than 20 times the median norm, auto "
        "refuses them, a number refuses larger norms, off does nothing",
    )
    seed: CountOrZero = _setting(TRAINING, 0, "determines all random numbers of the run", client=True)
    engine: Literal["auto", "ray", "inline"] = _setting(
        ENGINE,
        "auto",
        "ray: virtual clients in Ray actors; inline: in this process; auto: what is faster for this run",
    )
    num_workers: CountOrZero = _setting(
        ENGINE, 0, "Ray actors; 0: one per share of a GPU, or without GPUs one per CPU core"
    )
    client_gpus: Share = _setting(
        ENGINE, 1.0, "share of a GPU per actor, on machines with a GPU; 0: train on the CPU", client=True
    )
    ray_address: str = _setting(
        ENGINE, "", "address of a running Ray cluster, HOST:PORT or auto; default: start Ray on this machine"
    )
    client_timeout: NotNegative = _setting(
        ENGINE,
        0.0,
        "seconds that one client, or clients that train in one call, may take on Ray; one that takes longer "
        "fails; 0: no limit",
    )
    cohort: Literal["auto", "compiled", "stacked", "vmap", "compiled-chain", "chain", "loop"] = _setting(
        ENGINE, "auto", "how gradients are computed; auto: chosen by model and device", client=True
    )
    precision: Literal["float32", "tf32", "bfloat16"] = _setting(
        ENGINE,
        "float32",
        "how precisely layers compute in training: tf32 rounds what GPUs multiply to 10 bits, bfloat16 to 7; "
        "weights and sums keep all of theirs",
        client=True,
    )
    cohort_size: CountOrZero = _setting(ENGINE, 0, "clients that train in one call; 0: chosen automatically")
    data_dir: str = _setting(OUTPUT, "data", "where data sets are downloaded to", client=True)
    run_dir: str = _setting(OUTPUT, "runs", "where the run folder is made")
    checkpoint_every: Annotated[int, Range(least=-1)] = _setting(
        OUTPUT, 0, "rounds between checkpoints; 0: as often as they take 5 % of the time; -1: none"
    )
    keep_weights: CountOrZero = _setting(
        OUTPUT, 0, "rounds between weights that are kept, as weights-ROUND.npz; 0: only the final ones are"
    )
    resume: str = _setting(OUTPUT, "", "run folder of an interrupted or killed run, to resume it")
    log: str = _setting(OUTPUT, "", "where the run is logged as well; several are separated by commas")
    evaluate_every: Count = _setting(OUTPUT, 1, "rounds between evaluations")
    evaluate_seconds: NotNegative = _setting(
        OUTPUT, 0.0, "virtual seconds between evaluations; 0: they are counted in rounds"
    )
    metrics: tuple[str, ...] = _setting(
        OUTPUT,
        (),
        "further metrics of the test data, computed at every evaluation: functions of scikit-learn, as "
        "f1_score:average=macro, or your own",
    )
    evaluate_on: Literal["test", "present", "objective", "everybody"] = _setting(
        OUTPUT,
        "test",
        "test data: the data set's test split (test), or held-out examples of all clients (everybody), of "
        "those in the objective (objective) or of those present (present); where clients come and go, only "
        "test and everybody are comparable between runs",
        client=True,
    )
    holdout: Annotated[float, Range(above=0, below=1)] = _setting(
        OUTPUT,
        0.2,
        "share of each client's data held out for --evaluate-on (unless test) and --evaluate-clients",
        client=True,
    )
    evaluate_clients: CountOrZero = _setting(
        OUTPUT, 0, "rounds between evaluations on each member's own held-out examples; 0: none", client=True
    )
    report: Literal["inline", "link", "none"] = _setting(
        OUTPUT,
        "inline",
        "report.html, a page with plots when the run has ended, has Plotly inside (inline, 5 MB), or shares "
        "it with the other pages of run-dir (link); none: no page",
    )
    train_loss: bool = _setting(
        OUTPUT, False, "compute the training loss at every evaluation, not only at the end"
    )
    connect_timeout: NotNegative = _setting(
        DEVICES, 120.0, "seconds that `flwr run` waits for the clients to connect"
    )
    min_nodes: CountOrZero = _setting(
        DEVICES,
        0,
        "clients that must be connected for the run to start; the others arrive when they connect; 0: all",
    )
    round_deadline: NotNegative = _setting(
        DEVICES,
        0.0,
        "seconds after which a round ends without clients that have not replied; 0: ten times what clients "
        "usually take, at least 60, and no deadline in a simulation",
    )
    min_replies: Share = _setting(
        DEVICES, 0.0, "share of the selected clients whose replies end a round; 0: all"
    )
    max_absence: CountOrZero = _setting(
        DEVICES, 0, "rounds after which a silent client has departed; 0: never"
    )

    def __post_init__(self) -> None:
        if str(self.evaluate_on) == "members":  # its name in older runs
            raise SettingsError("evaluate-on is 'members'; did you mean objective?")
        check(self)
        if self.client_timeout and self.engine == "inline":
            raise SettingsError(
                f"client-timeout is {self.client_timeout:g}, but engine is inline: only Ray can end a client "
                "that hangs; use --engine ray, or leave out the limit"
            )
        for f in fields(self):
            value, most = getattr(self, f.name), MAX_SEED if f.name == "seed" else MAX_COUNT
            if isinstance(value, int | float) and value > most:
                raise SettingsError(f"{f.name.replace('_', '-')} is {value}; it must be at most {most:,}")
        if self.stop_at:
            Target.parse(self.stop_at, "stop-at").check(self, "stop-at")
        for key, value in (("clients-per-round", self.clients_per_round), ("min-nodes", self.min_nodes)):
            if value > self.num_clients:
                raise SettingsError(f"{key} is {value}; it must be at most num-clients, {self.num_clients}")
        if self.round_ends > self.most_clients:
            limit = "clients-per-round" if self.clients_per_round else "num-clients"
            raise SettingsError(
                f"round-ends is {self.round_ends}; it must be at most {limit}, {self.most_clients}"
            )

    @property
    def may_stop_early(self) -> bool:
        """Whether the run may end before its last round."""
        return bool(self.until or self.until_seconds or self.stop_at or self.patience)

    @property
    def most_clients(self) -> int:
        """How many clients are asked in a round, or in event time are at work, at most."""
        return self.clients_per_round or self.num_clients

    @property
    def strategy_options(self) -> dict[str, str]:
        """The `option` settings, by key; the value is everything after the first `=`.

        ValueError: one of them is not KEY=VALUE, or a key is given twice.
        """
        options: dict[str, str] = {}
        for text in self.option:
            key, equals, value = (part.strip() for part in text.partition("="))
            if not (key and equals and value):
                raise SettingsError(f"option {text!r} is not KEY=VALUE")
            if key in options:
                raise SettingsError(f"option {key!r} is given twice")
            options[key] = value
        return options

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], source: str) -> Settings:
        """Make settings from a mapping with kebab-case keys; those left out keep their defaults.

        `source` is where the values come from, for messages. ValueError: a key is unknown, or a value is of
        the wrong type or out of range.
        """
        known = {f.name.replace("_", "-"): f for f in fields(cls)}
        chosen: dict[str, Any] = {}
        for key, value in values.items():
            if key not in known:
                listed = f"{', '.join(known)}{did_you_mean(key, known)}"
                raise SettingsError(f"{source}: unknown setting {shown(key)}; known: {listed}")
            if key == "report" and isinstance(value, bool):  # as it was, and as plain as "none"
                value = "inline" if value else "none"
            if key == "max-update-norm" and type(value) in (int, float):  # which is a word as well
                value = str(value)
            expected = type(known[key].default)
            if expected is tuple:
                value = _as_tuple(f"{source}: {key}", key, value)
            if expected is float and type(value) is int and abs(value) <= MAX_COUNT:
                value = float(value)
            if type(value) is not expected:
                raise SettingsError(
                    f"{source}: {key} is {shown(value)}; it must be of type {expected.__name__}"
                )
            chosen[known[key].name] = value
        return cls(**chosen)

    def for_clients(self) -> Settings:
        """Return the settings that clients depend on, with defaults for the others."""
        kept = [f.name for f in fields(self) if f.metadata["client"]]
        return Settings(**{name: getattr(self, name) for name in kept})

    def as_mapping(self) -> dict[str, Any]:
        """Return the values by kebab-case key, in types that TOML has."""
        values = {f.name.replace("_", "-"): getattr(self, f.name) for f in fields(self)}
        return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}


def _as_tuple(where: str, key: str, value: Any) -> tuple[str, ...]:
    """Convert a list of strings, or one string with commas, as `flwr run` has no lists."""
    if isinstance(value, str) and key == "option":
        return tuple(f"{key}={text}" for key, text in parse_options(f"{where} {shown(value)}", value).items())
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise SettingsError(f"{where} is {shown(value)}; it must be a list of strings")
    return tuple(spec for text in texts for spec in split_specs(text)) if key == "metrics" else tuple(texts)


def shown(value: Any) -> str:
    """Return the beginning of a value, which may be anything, for a message."""
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."


def read_toml(path: str) -> dict[str, Any]:
    """Read a `--config` file, whose top-level keys are settings; ValueError: it cannot be read.

    The `config.toml` of a run folder is such a file; what else it records is ignored.
    """
    try:
        values = parse_toml(read_text(path, MAX_BYTES))
    except OSError as error:
        raise SettingsError(f"config {path}: {why(error)}") from None
    except ValueError as error:  # also: not UTF-8, a number of 5,000 digits
        raise SettingsError(f"config {path}: not TOML: {error}") from None
    return {key: value for key, value in values.items() if key not in RECORDED}
