"""Targets: values that the evaluations of a run may reach, such as `accuracy=0.9`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from fedtide.base.errors import SettingsError

if TYPE_CHECKING:  # `--help` does not wait for tasks
    from fedtide.config.settings import Settings
    from fedtide.tasks import Metric

# What evaluations may have besides the task's metric: losses, and the metric among or at the clients.
LOSSES = ("loss", "train-loss", "client-loss")
OF_MEMBERS = ("worst-client", "tenth-percentile")
OF_CLIENTS = (*OF_MEMBERS, "client")


class Target(NamedTuple):
    """A value that evaluations may reach: of what, empty for the task's metric, and which."""

    name: str
    value: float

    @classmethod
    def parse(cls, text: str, where: str, needs_name: bool = True) -> Target:
        """Read `NAME=VALUE` or, unless it `needs_name`, a value; ValueError: it is something else."""
        before, equals, after = (part.strip() for part in text.partition("="))
        name, number = (before, after) if equals or needs_name else ("", before)
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if bool(name) != (needs_name or bool(equals)) or not math.isfinite(value):
            kinds = "NAME=VALUE, such as" if needs_name else "a number or NAME=VALUE, such as 0.9,"
            raise SettingsError(f"{where} is {text!r}; it must be {kinds} accuracy=0.9 or loss=0.5")
        return cls(name, value)

    def measured(self, metrics: Sequence[Metric], where: str) -> Metric:
        """Return what has to reach the value: its key, and which is better.

        `metrics` are what evaluations measure, the task's own first. ValueError: they do not have it, or it
        never has such a value.
        """
        from fedtide.tasks import Metric

        own = metrics[0]
        name = self.name or own.name
        of_clients = {key: own._replace(name=f"{key}-{own.name}") for key in OF_CLIENTS}
        named = {metric.name: metric for metric in metrics}
        known = named | {key: Metric(key, False, False) for key in LOSSES} | of_clients
        known |= {found.name: found for found in of_clients.values()}
        if name not in known:
            names = ", ".join((*named, *LOSSES, *of_clients))
            raise SettingsError(f"{where}: evaluations have no {name!r}; they have {names}")
        if self.name and known[name].is_share and not 0 <= self.value <= 1:
            raise SettingsError(f"{where}: {name} is a share, from 0 to 1, not {self.value:g}; 80 % is 0.8")
        return known[name]

    def check(self, settings: Settings, where: str) -> None:
        """Raise ValueError if a run with these settings never evaluates it."""
        evaluated = settings.evaluate_clients > 0
        held_out = evaluated or settings.evaluate_on != "test"
        needed = {"train-loss": (settings.train_loss, "--train-loss")}
        needed |= dict.fromkeys(OF_MEMBERS, (evaluated, "--evaluate-clients"))
        needed |= {"client": (held_out, "--evaluate-on everybody")}
        for name, (given, flag) in needed.items():
            if self.name.startswith(name) and not given:
                raise SettingsError(f"{where}: {self.name} is not evaluated; give {flag}, too")

    def __str__(self) -> str:
        return f"{self.name}={self.value:g}" if self.name else f"{self.value:g}"
