"""Rounds of an app of Flower's: how it asks its clients, and whether these follow the method's rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from flwr.common import Code, MetricsAggregationFn, Scalar
from flwr.server.client_manager import ClientManager

from fedtide.base.allowed import Checked, CountOrZero, Share
from fedtide.base.contract import SGD, FitConfig, metrics
from fedtide.base.contract.fit import WIRE_NAMES
from fedtide.base.errors import SettingsError
from strategies.core.options import Options
from strategies.core.replies import ReplyTable
from strategies.core.roster import Clients, Roster

WAIT_SECONDS = 86400  # as Flower does


@dataclass(frozen=True)
class FlowerArguments(Checked):
    """How an app of Flower's asks its clients; nothing of it concerns our own engine.

    Attributes
    ----------
    fraction_fit, min_fit_clients
        Of the clients that are there, this share is asked, and at least so many; `clients_per_round` is the
        number itself.
    min_available_clients
        How many have to be there before a round begins.
    on_fit_config_fn
        Returns further scalars for the clients, given the round.
    fit_metrics_aggregation_fn
        Makes the metrics of a round of each active client's number of examples and metrics.
    client_rule
        What happens if a client does not report that it has followed the method's rule, where that is not
        plain training: `checked` ends the run, `trust` believes it.
    """

    fraction_fit: Share = 1.0
    min_fit_clients: CountOrZero = 0
    min_available_clients: CountOrZero = 1
    on_fit_config_fn: Callable[[int], dict[str, Scalar]] | None = None
    fit_metrics_aggregation_fn: MetricsAggregationFn | None = None
    client_rule: Literal["checked", "trust"] = "checked"

    def wait(self, manager: ClientManager, options: Options) -> Options:
        """Wait until enough clients are there; return options with the number of those to ask."""
        manager.num_available()  # has Flower look who is there, which it does only every 5 s otherwise
        manager.wait_for(max(self.min_available_clients, self.min_fit_clients), WAIT_SECONDS)
        if self.fraction_fit == 1 and not self.min_fit_clients:
            return options
        number = max(int(manager.num_available() * self.fraction_fit), self.min_fit_clients, 1)
        return replace(options, clients_per_round=number)

    def added_to(self, config: FitConfig) -> FitConfig:
        """Return a round's configuration with the app's own scalars."""
        if self.on_fit_config_fn is None:
            return config
        further = self.on_fit_config_fn(config.round)
        if taken := sorted(WIRE_NAMES & further.keys()):
            option = taken[0].replace("-", "_")
            advice = f", or give {option}= to strategies.make" if hasattr(Options, option) else ""
            raise SettingsError(
                f"on_fit_config_fn gives {taken[0]!r}, which every task has: call it otherwise{advice}"
            )
        return replace(config, own={**further, **config.own})

    def check_replies(self, method: str, needs_steps: bool, asked: FitConfig, table: ReplyTable) -> None:
        """Raise SettingsError if a client has not followed the rule of its task, or hides what is needed."""
        checks_rule = self.client_rule == "checked" and not is_plain(asked.rule, asked.own)
        for name, result in zip(table.names, table.results, strict=True):
            if result.status.code != Code.OK or not result.num_examples:
                continue
            if checks_rule:
                check_rule(method, f"client {name}", asked.rule, result.metrics.get(metrics.RULE))
            if needs_steps and metrics.STEPS not in result.metrics:
                raise SettingsError(
                    f"{method} needs the number of local steps, and client {name} does not report it: give "
                    "local_steps=, if all do the same, or report 'steps' (docs/flower-app.md)"
                )

    def metrics(self, table: ReplyTable, roster: Roster, active: Clients) -> dict[str, Scalar]:
        """Return the metrics that the app makes of those of the active clients."""
        if self.fit_metrics_aggregation_fn is None:
            return {}
        counting, answers = {*active.tolist()}, zip(table.names, table.results, strict=True)
        counted = [found for name, found in answers if roster.find(name) in counting]
        return self.fit_metrics_aggregation_fn([(found.num_examples, found.metrics) for found in counted])


def is_plain(rule: str, scalars: Mapping[str, Scalar]) -> bool:
    """Whether a client that trains its weights as it always does follows a rule with these scalars."""
    return rule == SGD.name or (rule == "proximal" and not scalars.get("mu"))


def check_rule(method: str, client: str, rule: str, applied: object) -> None:
    """Raise SettingsError unless a client has applied the rule of its task."""
    if applied != rule:
        does = f"has applied {applied!r}" if applied else "does not say that it has"
        raise SettingsError(
            f"{method} needs clients that follow its rule {rule!r}, and {client} {does}: train with "
            "fedtide.client.Task (docs/flower-app.md), or give client_rule='trust'"
        )
