"""How long a model takes to recover from an objective shift: Ruan et al. 2021, Tables 4 and 5.

    python experiments/ruan_shifts.py arrival      # Table 4, SYNTHETIC(1,1)
    python experiments/ruan_shifts.py departure    # Table 5, SYNTHETIC(1,1)
    python experiments/ruan_shifts.py constant     # how often departure=auto is right

The last of 30 devices arrives or departs after round tau_0. The test data are the hold-outs of the members.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from pathlib import Path
from typing import Any

from compare import run

SEEDS = range(5)
LAST = 100  # rounds that are watched after the shift
BASE: dict[str, Any] = {
    "strategy": "scheme-c",
    "task": "synthetic:alpha=1,beta=1",
    "trace": "pools:first=5",  # the paper leaves inactive devices out of these experiments
    "num-clients": 30,
    "local-steps": 10,
    "batch-size": 20,
    "learning-rate": 1.0,
    "lr-schedule": "staircase",
    "evaluate-on": "members",
    "engine": "inline",
}
DEADLINE = 60  # T of the departure's automatic decision


def records(run_dir: str, **changes: Any) -> list[dict[str, Any]]:
    """Run with some settings changed; returns the records of its rounds."""
    values = BASE | {"run-dir": run_dir} | {k.replace("_", "-"): v for k, v in changes.items()}
    summary = run(values, "experiment")
    lines = (Path(summary["run_dir"]) / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def rounds_to_recover(rounds: list[dict[str, Any]], shift: int) -> int:
    """Rounds after `shift` until the accuracy is back at that of the last round before it."""
    target = rounds[shift]["accuracy"]
    after = (t for t in range(shift + 1, len(rounds)) if rounds[t]["accuracy"] >= target)
    return next(after, shift + LAST + 1) - shift


def rounds_to_cross(include: list[dict[str, Any]], exclude: list[dict[str, Any]], shift: int) -> int:
    """Rounds after `shift` until excluding the device gives no higher loss than including it."""
    after = (t for t in range(shift + 1, len(include)) if exclude[t]["loss"] <= include[t]["loss"])
    return next(after, shift + LAST + 1) - shift


def arrival(run_dir: str) -> None:
    """Print Table 4."""
    print("| tau_0 | fast reboot | vanilla | auto | boosted by auto |\n|---|---|---|---|---|")
    for shift in (10, 30, 50, 70):
        found: dict[str, list[int]] = {"on": [], "off": [], "auto": []}
        boosted = 0
        for seed in SEEDS:
            for mode, rounds in found.items():
                watched = records(
                    run_dir,
                    arrivals=f"29={shift + 1}",
                    num_rounds=shift + LAST,
                    option=f"reboot={mode}",
                    seed=seed,
                )
                rounds.append(rounds_to_recover(watched, shift))
                events = [event for record in watched for event in record.get("events", [])]
                boosted += any(event.get("boosted") for event in events)
        print(f"| {shift} | {' | '.join(map(_spread, found.values()))} | {boosted} of {len(SEEDS)} |")


def departure(run_dir: str) -> None:
    """Print Table 5, and what the criterion of Corollary 4.0.3 decides for T = DEADLINE."""
    columns = "tau_0 | rounds to cross | Gamma_l | sqrt(Gamma_l tau_0) | T - tau_0 | auto excludes | right"
    print(f"| {columns} |\n|---|---|---|---|---|---|---|")
    for shift in (10, 15, 20, 25, 30, 35, 40, 45, 50):
        crossings, gammas, excluded, right = [], [], 0, 0
        for seed in SEEDS:
            common = {"departures": f"29={shift + 1}", "seed": seed}
            include, exclude = (
                records(run_dir, num_rounds=shift + LAST, option=f"departure={mode}", **common)
                for mode in ("include", "exclude")
            )
            crossings.append(rounds_to_cross(include, exclude, shift))
            auto = records(run_dir, num_rounds=DEADLINE, option="departure=auto", **common)
            (event,) = auto[shift + 1]["events"]
            gammas.append(event["gamma"])
            excludes = event["objective"] == "exclude"
            excluded += excludes
            right += excludes == (exclude[DEADLINE]["loss"] <= include[DEADLINE]["loss"])
        gamma = statistics.mean(gammas)
        bound = (gamma * shift) ** 0.5
        numbers = f"{_spread(crossings)} | {gamma:.2f} | {bound:.1f} | {DEADLINE - shift}"
        print(f"| {shift} | {numbers} | {excluded} of {len(SEEDS)} | {right} of {len(SEEDS)} |", flush=True)


def constant(run_dir: str) -> None:
    """Print how often excluding by Corollary 4.0.3 gives the lower loss, for several values of its O(.)."""
    cases: list[
        tuple[int, float, bool]
    ] = []  # remaining rounds, sqrt(Gamma tau_0), whether excluding is better
    for alpha, shift, seed in itertools.product(("0.1", "0.5", "1"), (10, 30, 50), range(3)):
        common = {
            "departures": f"29={shift + 1}",
            "seed": seed,
            "task": f"synthetic:alpha={alpha},beta={alpha}",
        }
        include, exclude, auto = (
            records(run_dir, num_rounds=shift + LAST, option=f"departure={mode}", **common)
            for mode in ("include", "exclude", "auto")
        )
        (event,) = auto[shift + 1]["events"]
        for remaining in (5, 10, 20, 40, 60, 100):
            better = exclude[shift + remaining]["loss"] <= include[shift + remaining]["loss"]
            cases.append((remaining, (event["gamma"] * shift) ** 0.5, better))
    print("| departure-constant | right decisions |\n|---|---|")
    for factor in (1, 2, 5, 10, 15, 20, 30, 50):
        right = sum((remaining >= factor * bound) == better for remaining, bound, better in cases)
        print(f"| {factor} | {right} of {len(cases)} |")
    print(f"| 0, always exclude | {sum(better for *_, better in cases)} of {len(cases)} |")


def _spread(values: list[int]) -> str:
    """Median, and all values."""

    def shown(value: float) -> str:
        return f">{LAST}" if value > LAST else f"{value:g}"

    return f"{shown(statistics.median(values))} ({', '.join(map(shown, sorted(values)))})"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", choices=["arrival", "departure", "constant"])
    parser.add_argument("--run-dir", default="runs")
    arguments = parser.parse_args()
    {"arrival": arrival, "departure": departure, "constant": constant}[arguments.table](arguments.run_dir)
