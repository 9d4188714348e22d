"""The search before a comparison: the metric against each value that was tried, a line for each method.

It tells whether a ranking depends on the rate: methods whose lines cross are better at different rates.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedtide.base.wording import count
from fedtide.comparison.methods import label_of
from fedtide.comparison.tuning import FILE
from fedtide.engine.records import is_number
from fedtide.engine.run_files import read_json
from fedtide.report import plots
from fedtide.report.plots import Figure, Plot, Toggle
from fedtide.tasks import Metric

MAX_LISTED = 12
KINDS = {"varied": dict, "trials": list, "chosen": dict, "logarithmic": list, "widened": dict, "at_end": dict}
HOLLOW, FILLED, CHOSEN = "circle-open", "circle", "star"  # markers

Trial = Mapping[str, Any]
"""Its `values`, `score` (None: not a number), `rounds`, and whether it was `pruned`."""
Search = Mapping[str, Any]
"""The search for one combination of settings, as `tuning.json` has it: the keys and types of `KINDS`."""


def read_searches(folder: Path, only: str) -> dict[str, Search]:
    """Return the searches of a comparison by label; none if it has no such file, or a damaged one.

    `only` is the label of a comparison in which nothing but the seed varies.
    """
    content = read_json(folder / FILE)
    entries = content.get("searches") if isinstance(content, dict) else None
    found = filter(_is_search, entries if isinstance(entries, list) else [])
    return {label_of(entry["varied"]) or only: entry for entry in found if entry["trials"]}


def _is_search(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and all(isinstance(entry.get(key), kind) for key, kind in KINDS.items())
        and all(_is_trial(trial) for trial in entry["trials"])
    )


def _is_trial(trial: Any) -> bool:
    return (
        isinstance(trial, dict)
        and isinstance(trial.get("values"), dict)
        and all(isinstance(value, str | bool) or is_number(value) for value in trial["values"].values())
        and (trial.get("score") is None or is_number(trial["score"]))
    )


def tuning_figure(
    searches: Mapping[str, Search], panels: Mapping[str, Mapping[str, str]], metrics: Sequence[Metric]
) -> Figure | None:
    """Return the figure of some searches, by key and panel (`Comparison.panels`); None without any.

    `metrics` are those of the task and of the user's choice, one of which was searched for.
    """
    names = list(dict.fromkeys(name for panel in panels.values() for name in panel))[: plots.MAX_LINES]
    drawn = {
        key: {name: searches[panel[name]] for name in names if panel.get(name) in searches}
        for key, panel in panels.items()
    }
    drawn = {key: panel for key, panel in drawn.items() if panel}
    trials = [trial for search in searches.values() for trial in search["trials"]]
    searched = {key: key.replace("-", " ") for trial in trials for key in trial["values"]}
    if not drawn or not searched:
        return None
    goal = next(iter(searches.values())).get("metric")
    metric = next((one for one in metrics if one.key == goal), metrics[0])
    shown = [*drawn.values()]
    toggles = [Toggle("Against", searched), Toggle("With", {str(i): key for i, key in enumerate(drawn)})]
    what = "what was searched" if len(searched) > 1 else "".join(searched.values())
    return Figure(
        "tuning",
        f"{metric.title.capitalize()} against {what}",
        f"{metric.title.capitalize()} on validation data of {count(len(trials), 'trial')}; "
        "the table has the numbers.",
        plots.views(toggles, lambda key, panel: _view(key, shown[int(panel)], names, metric)),
        toggles,
        legend=plots.legend(names, {name for panel in shown for name in panel}),
        table=plots.table_of(
            [*searched, f"{metric.title} %" if metric.is_share else metric.title, "rounds", ""],
            {label: _rows(search, searched, metric) for label, search in searches.items()},
            "search for",
        ),
        notes=_notes(searches),
        height=420,
    )


def _notes(searches: Mapping[str, Search]) -> list[str]:
    shown = "Each point is a trial on validation data; stars are the values that were chosen"
    notes = [f"{shown}, hollow points are trials that were given up, at their last evaluation."]
    found = searches.items()
    widened = [f"{label}, {key} to {of}" for label, s in found for key, of in s["widened"].items()]
    at_end = [f"{label}, {key} ({end})" for label, s in found for key, end in s["at_end"].items()]
    if widened:
        notes.append(f"Ranges that were widened: {plots.listed(widened, MAX_LISTED, '; ')}.")
    if at_end:
        beyond = "At an end, so that a better value may lie beyond"
        notes.append(f"{beyond}: {plots.listed(at_end, MAX_LISTED, '; ')}.")
    return notes


def _view(key: str, panel: Mapping[str, Search], names: Sequence[str], metric: Metric) -> Plot:
    """Return the trials of a panel over the values of one key; a line where nothing else was searched."""
    title, factor = plots.unit(metric)
    tried = {name: [t for t in of["trials"] if key in t["values"]] for name, of in panel.items()}
    values = [trial["values"][key] for trials in tried.values() for trial in trials]
    texts = list(dict.fromkeys(str(value) for value in values if not is_number(value)))

    def place(trial: Trial) -> float:
        value = trial["values"][key]
        return float(texts.index(str(value))) if str(value) in texts else float(value)

    def drawn(trials: Sequence[Trial], hover: str = "", **more: Any) -> Plot:
        x, y = [place(trial) for trial in trials], [factor * trial["score"] for trial in trials]
        return plots.trace(x, y, hover, **more)

    data = []
    for name, search in panel.items():
        i, shown = names.index(name), plots.plain(name)
        known = sorted((trial for trial in tried[name] if trial["score"] is not None), key=place)
        common = {"legendgroup": name, "name": shown}
        hover = f"{shown}<br>%{{text}}<br>%{{y:.4~g}} {title}"
        whole = [trial for trial in known if not trial.get("pruned")]
        if all(len(trial["values"]) == 1 for trial in whole) and len(whole) > 1:
            data.append(drawn(whole, line=plots.line(i), mode="lines", **common))
        for symbol, some in (
            (FILLED, [trial for trial in whole if trial["values"] != search["chosen"]]),
            (HOLLOW, [trial for trial in known if trial.get("pruned")]),
            (CHOSEN, [trial for trial in whole if trial["values"] == search["chosen"]][:1]),
        ):
            if some:
                marker = {"color": plots.colour(i), "symbol": symbol, "size": 14 if symbol == CHOSEN else 8}
                more: Plot = {"text": [_named(trial["values"]) for trial in some], "mode": "markers"}
                data.append(drawn(some, hover, marker=marker, **more, **common))
    axis = plots.axis(key.replace("-", " "))
    if texts:
        axis |= {"tickvals": [*range(len(texts))], "ticktext": [plots.plain(text) for text in texts]}
    elif any(key in search["logarithmic"] for search in panel.values()):
        axis |= {"type": "log"}
    return {"data": data, "layout": plots.layout(xaxis=axis, yaxis=plots.axis(title))}


def _named(values: Mapping[str, Any]) -> str:
    return plots.plain(", ".join(f"{key} {value}" for key, value in values.items()))


def _rows(search: Search, keys: Iterable[str], metric: Metric) -> Iterator[list[str]]:
    """Yield the trials in the order in which they were made."""
    for trial in search["trials"]:
        score = math.nan if trial["score"] is None else trial["score"]
        shown = plots.percent(score) if metric.is_share else (f"{score:.4g}" if score == score else "")
        chosen = "chosen" if trial["values"] == search["chosen"] else ""
        ended = "given up" if trial.get("pruned") else chosen
        tried = [str(trial["values"].get(key, "")) for key in keys]
        yield [*tried, shown, str(trial.get("rounds", "")), ended]
