"""Methods and settings: what a comparison compares, and where; and the baseline of its differences.

A *method* is the strategy, with whatever varies of the settings that belong to it (`OF_METHOD`). A *setting*
is a combination of all else that varies, but for the seed: in most comparisons, a trace on a task.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedtide.base import dotted
from fedtide.base.errors import SettingsError
from fedtide.config import Settings

OF_METHOD = (
    *("strategy", "option", "learning-rate", "lr-schedule", "server-opt", "amplify", "select"),
    *("initial-model", "max-update-norm"),
    "round-ends",  # after how many replies the model changes: what makes a method asynchronous
    "folder",  # of runs whose settings do not tell them apart
)

MAX_NAMED = 4  # methods in a message

Varied = Mapping[str, Any]
"""The settings in which a combination differs from others, by kebab-case key, without the seed."""
Baseline = Mapping[str, Any]
"""Settings of what others are compared to; those that it leaves out are as in each of the others."""


def method_of(varied: Varied) -> dict[str, Any]:
    """Return the settings that belong to the method."""
    return {key: value for key, value in varied.items() if key in OF_METHOD}


def setting_of(varied: Varied) -> dict[str, Any]:
    """Return the settings that do not belong to the method."""
    return {key: value for key, value in varied.items() if key not in (*OF_METHOD, "seed")}


def label_of(varied: Varied) -> str:
    """Return a label made of settings: just the value of the strategy, others with their keys."""
    return " · ".join(
        text_of(value) if key in ("strategy", "folder") else f"{key} {text_of(value)}"
        for key, value in varied.items()
    )


def without_seed(varied: Mapping[str, Any]) -> dict[str, Any]:
    """Return all that varies but the seed."""
    return {key: value for key, value in varied.items() if key != "seed"}


def text_of(value: Any) -> str:
    """Return the value of a setting as text."""
    return shown_value(value) or "default"


def shown_value(value: Any) -> str:
    """Return the value of a setting as tables have it."""
    return dotted.shown(",".join(value) if isinstance(value, list) else str(value))


def parse_baseline(text: str, every: Sequence[Varied]) -> Baseline:
    """Read `strategy=fedavg,round-ends=0`; of an empty text it is the first method.

    `every` are the combinations of a comparison, in any number. SettingsError: the text names none of them,
    or leaves open which one is meant.
    """
    if not text:
        return method_of(every[0])
    by_key = combinations(every)
    different = by_key.values()
    baseline = {}
    for key, wanted in _pairs(text):
        known = {text_of(varied[key]): varied[key] for varied in different if key in varied}
        if not known:
            varies = ", ".join(every[0]) or "nothing"
            raise SettingsError(f"baseline {text}: {key} does not vary; what varies is {varies}")
        same = [value for shown, value in known.items() if _are_equal(shown, wanted)]
        if not same:
            raise SettingsError(f"baseline {text}: no {key} is {wanted!r}; there are {', '.join(known)}")
        baseline[key] = same[0]
    if not any(baseline.items() <= varied.items() for varied in different):
        raise SettingsError(f"baseline {text}: no combination of settings has all of these")
    for varied in different:
        reference_of(varied, baseline, by_key)
    return baseline


def combinations(every: Iterable[Varied]) -> dict[str, Varied]:
    """Return different combinations by a text that stands for each of them, see `key_of`."""
    return {key_of(varied): varied for varied in every}


def key_of(varied: Varied) -> str:
    """Return a text that is the same for equal combinations."""
    return str(sorted(varied.items()))


def reference_of(varied: Varied, baseline: Baseline, every: Mapping[str, Varied]) -> str:
    """Return the key of the combination that another one is compared to; nothing if there is none.

    `every` are all `combinations`. A method that the baseline does not name in full may have options that its
    reference lacks. SettingsError: there are several such.
    """
    wanted = {**varied, **baseline}
    if (key := key_of(wanted)) in every:
        return key
    needed = {key: value for key, value in wanted.items() if key in baseline or key not in OF_METHOD}
    found = [key for key, other in every.items() if needed.items() <= other.items()]
    if len(found) > 1:
        several = " or ".join(label_of(method_of(every[key])) for key in found[:MAX_NAMED])
        raise SettingsError(f"baseline {label_of(baseline)}: for {label_of(varied)}, is it {several}?")
    return found[0] if found else ""


def _pairs(text: str) -> list[tuple[str, str]]:
    """Split `KEY=VALUE,KEY=VALUE`, where a value may be a spec that has options of its own."""
    known = Settings().as_mapping().keys() | {"folder"}
    pairs: list[tuple[str, str]] = []
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if pairs and key not in known:
            pairs[-1] = pairs[-1][0], f"{pairs[-1][1]},{part.strip()}"
        elif key and equals and value:
            pairs.append((key, value))
        else:
            raise SettingsError(f"baseline {text}: {part!r} is not KEY=VALUE, such as strategy=fedavg")
    return pairs


def _are_equal(shown: str, wanted: str) -> bool:
    """Whether two texts are the same value: 0.10 is 0.1."""
    try:
        return shown == wanted or float(shown) == float(wanted)
    except ValueError:
        return False
