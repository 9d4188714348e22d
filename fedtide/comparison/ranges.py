"""The search space of `--tune`: a range or a list of values for each setting or option of the method."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fedtide.base.allowed import Option, did_you_mean, options_of
from fedtide.base.errors import SettingsError
from fedtide.base.specs import parse
from fedtide.config import Settings
from fedtide.plan import Plan, own_options, strategy_type

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

TUNED = (
    *("learning-rate", "lr-schedule", "server-opt", "amplify", "select", "max-update-norm"),
    *("local-steps", "local-epochs", "batch-size", "clients-per-round"),
)
"""The settings that can be searched; others change the task, or how a run is measured."""
OPTION = "option."  # before the name of an option of the strategy
DIGITS = 3  # of the numbers that are tried

Values = Mapping[str, Any]
"""Values of what is searched, by key."""


@dataclass(frozen=True)
class Between:
    """The numbers from `low` to `high`, whole ones or all; on a logarithmic scale if `low` is positive."""

    low: float
    high: float
    whole: bool

    @property
    def is_log(self) -> bool:
        """Whether it is searched on a logarithmic scale."""
        return self.low > 0

    @property
    def distribution(self) -> BaseDistribution:
        """The range as Optuna has it."""
        from optuna.distributions import FloatDistribution, IntDistribution

        if self.whole:
            return IntDistribution(int(self.low), int(self.high), log=self.is_log)
        return FloatDistribution(self.low, self.high, log=self.is_log)

    def at(self, share: float) -> float:
        """Return the number at a share of the range, from 0 to 1, in few digits."""
        if self.is_log:
            value = math.exp(math.log(self.low) + share * math.log(self.high / self.low))
        else:
            value = self.low + share * (self.high - self.low)
        return self.rounded(value)

    def rounded(self, value: float) -> float:
        """Return a number in few digits, within the range."""
        near = round(value) if self.whole else float(f"{value:.{DIGITS}g}")
        return min(max(near, self.low), self.high)

    def end(self, value: float, tried: Sequence[float]) -> str:
        """Return "low" or "high" if no value that was tried lies beyond this one; else an empty text."""
        return "low" if value <= min(tried) else "high" if value >= max(tried) else ""

    def wider(self, end: str) -> Between:
        """Return the range with an end moved outwards by half of its width on its scale, at most tenfold."""
        if self.is_log:
            factor = min(math.sqrt(self.high / self.low), 10.0)
            below, above = self.low / factor, self.high * factor
        else:
            more = (self.high - self.low) / 2
            below, above = self.low - more, self.high + more
        ends = (below, self.high) if end == "low" else (self.low, above)
        low, high = (round(x) if self.whole else float(f"{x:.{DIGITS}g}") for x in ends)
        low = max(1, low) if self.whole and self.is_log else low  # 0 is often no number but a word
        return Between(low, high, self.whole)

    def __str__(self) -> str:
        return f"{written(self.low)}..{written(self.high)}"


@dataclass(frozen=True)
class Among:
    """Some values."""

    values: tuple[Any, ...]
    is_log = False

    @property
    def distribution(self) -> BaseDistribution:
        """The values as Optuna has them."""
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(self.values)

    def at(self, share: float) -> Any:
        """Return the value at a share of the list, from 0 to 1."""
        return self.values[min(int(share * len(self.values)), len(self.values) - 1)]

    def rounded(self, value: Any) -> Any:
        """Return the value unchanged."""
        return value

    def end(self, value: Any, tried: Sequence[Any]) -> str:
        """Return "low" or "high" for the smallest or largest of numbers; else an empty text."""
        if any(isinstance(v, str | bool) for v in self.values):
            return ""
        return "low" if value == min(self.values) else "high" if value == max(self.values) else ""

    def __str__(self) -> str:
        return "|".join(map(written, self.values))


Ranges = Mapping[str, Between | Among]
"""What is searched for one method, by key."""


def parse_tune(texts: Sequence[str]) -> dict[str, str]:
    """Return the ranges of `--tune` as text by key; ValueError: not KEY=RANGE, or not a key to search."""
    given: dict[str, str] = {}
    for text in texts:
        key, equals, values = (part.strip() for part in text.partition("="))
        if not (key and equals and values):
            raise SettingsError(f"tune {text!r} is not KEY=LOW..HIGH or KEY=VALUE|VALUE")
        if key not in TUNED and not key.startswith(OPTION):
            known = ", ".join(TUNED)
            hint = did_you_mean(key, TUNED) or f"; an option of the method is {OPTION}{key}"
            raise SettingsError(f"tune {key}: what can be searched is {known}, {OPTION}NAME{hint}")
        if key in given:
            raise SettingsError(f"tune {key} is given twice")
        given[key] = values
    return given


def ranges_of(settings: Settings, given: Mapping[str, str]) -> dict[str, Between | Among]:
    """Return the ranges to search for the method of these settings, without options that it lacks.

    ValueError: a value is not allowed, or a range is the wrong way round.
    """
    options = own_options(strategy_type(parse("strategy", settings.strategy).name))
    ranges: dict[str, Between | Among] = {}
    for key, text in given.items():
        name = key.removeprefix(OPTION)
        known = options if key != name else options_of(Settings)
        if name in known:
            ranges[key] = found = _range(key, text, known[name])
            if key == "learning-rate" and 0 in (found.values if isinstance(found, Among) else (found.low,)):
                raise SettingsError(f"tune {key}={text}: learning-rate is 0.0; it must be positive")
            for value in found.values if isinstance(found, Among) else (found.low, found.high):
                Plan.of(with_values(settings, {key: value}))
    return ranges


def refuse(settings: Settings, key: str) -> None:
    """Raise SettingsError for an option that the method lacks."""
    try:
        Plan.of(replace(settings, option=(*settings.option, f"{key.removeprefix(OPTION)}=1")))
    except ValueError as error:
        raise SettingsError(f"tune {key}: {error}") from None


def with_values(settings: Settings, values: Values) -> Settings:
    """Return settings with values of what is searched."""
    own = {key.removeprefix(OPTION): written(v) for key, v in values.items() if key.startswith(OPTION)}
    kept = [f"{key}={value}" for key, value in settings.strategy_options.items() if key not in own]
    option = (*kept, *(f"{key}={value}" for key, value in own.items()))
    others = {key.replace("-", "_"): v for key, v in values.items() if not key.startswith(OPTION)}
    return replace(settings, option=option, **others)


def widened(settings: Settings, key: str, tried: Between | Among, end: str) -> Between | Among:
    """Return a range that is wider at an end, "low" or "high", if the setting allows that; else the same."""
    if not end or isinstance(tried, Among):
        return tried
    wider = tried.wider(end)
    try:
        Plan.of(with_values(settings, {key: getattr(wider, end)}))
    except ValueError:
        return tried
    return wider


def written(value: Any) -> str:
    """Return a value as users write it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _range(key: str, text: str, option: Option) -> Between | Among:
    where = f"tune {key}={text}: "
    if "|" in text:
        values = [option.parse(part.strip(), where) for part in text.split("|")]
        if len(set(values)) < len(values):
            raise SettingsError(f"{where}a value is given twice")
        return Among(tuple(values))
    low, dots, high = text.partition("..")
    if not dots or option.kind not in (int, float) or option.choices:
        raise SettingsError(f"{where}write LOW..HIGH for a number, or values as A|B|C")
    ends = [option.parse(part.strip(), where) for part in (low, high)]
    if ends[0] >= ends[1]:
        raise SettingsError(f"{where}the range is the wrong way round, or empty: write LOW..HIGH")
    return Between(ends[0], ends[1], option.kind is int)
