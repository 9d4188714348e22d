"""Whether a departing device is kept in the objective: Ruan et al. 2021, Table 5.

    python experiments/ruan_departures.py table5      # SYNTHETIC(1,1)
    python experiments/ruan_departures.py table5 --alpha 0.1
    python experiments/ruan_departures.py constant    # how often departure=auto decides correctly

The last of 30 devices departs after round tau_0. The test data are the hold-outs of those in the
objective.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from typing import Any

from ruan_arrivals import DATA, LAST, records_of, spread

NUM_ROUNDS = 60  # T of the runs with departure=auto


def records(run_dir: str, **changes: Any) -> list[dict[str, Any]]:
    """Run with some settings changed; returns the records of the rounds."""
    changed = {key.replace("_", "-"): value for key, value in changes.items()}
    return records_of(DATA["synthetic"] | {"run-dir": run_dir} | changed)


def rounds_until_excluding_pays(
    include: list[dict[str, Any]], exclude: list[dict[str, Any]], shift: int
) -> int:
    """Return the number of rounds after `shift` until excluding gives no higher loss than including."""
    after = (t for t in range(shift + 1, len(include)) if exclude[t]["loss"] <= include[t]["loss"])
    return next(after, shift + LAST + 1) - shift


def decision(auto: list[dict[str, Any]], shift: int) -> dict[str, Any]:
    """Return the event of the departure after round `shift`, with what was decided."""
    (event,) = (event for event in auto[shift + 1]["events"] if event["event"] == "departure")
    return dict(event)


def table5(run_dir: str, alpha: str, shifts: list[int], seeds: range) -> None:
    """Print Table 5, and the decisions by the criterion of Corollary 4.0.3 for T = NUM_ROUNDS."""
    task = f"synthetic:alpha={alpha},beta={alpha}"
    columns = "tau_0 | rounds until excluding pays | Gamma_l | sqrt(Gamma_l tau_0) | T - tau_0"
    print(f"| {columns} | auto excludes | correct |\n|---|---|---|---|---|---|---|")
    for shift in shifts:
        waits, gammas, excluded, correct = [], [], 0, 0
        for seed in seeds:
            common = {"departures": f"29={shift + 1}", "seed": seed, "task": task}
            include, exclude = (
                records(run_dir, num_rounds=shift + LAST, option=f"departure={mode}", **common)
                for mode in ("include", "exclude")
            )
            waits.append(rounds_until_excluding_pays(include, exclude, shift))
            auto = records(run_dir, num_rounds=NUM_ROUNDS, option="departure=auto", **common)
            event = decision(auto, shift)
            gammas.append(event["gamma"])
            excludes = event["objective"] == "exclude"
            excluded += excludes
            correct += excludes == (exclude[NUM_ROUNDS]["loss"] <= include[NUM_ROUNDS]["loss"])
        gamma = statistics.mean(gammas)
        bound = (gamma * shift) ** 0.5
        numbers = f"{spread(waits)} | {gamma:.2f} | {bound:.1f} | {NUM_ROUNDS - shift}"
        print(f"| {shift} | {numbers} | {excluded} of {len(seeds)} | {correct} of {len(seeds)} |", flush=True)


def constant(run_dir: str) -> None:
    """Print how often Corollary 4.0.3 decides correctly, for several constants in place of its O(.)."""
    # Remaining rounds, sqrt(Gamma_l tau_0), and whether excluding is better.
    cases: list[tuple[int, float, bool]] = []
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
        event = decision(auto, shift)
        for remaining in (5, 10, 20, 40, 60, 100):
            better = exclude[shift + remaining]["loss"] <= include[shift + remaining]["loss"]
            cases.append((remaining, (event["gamma"] * shift) ** 0.5, better))
    print("| departure-constant | correct decisions |\n|---|---|")
    for factor in (1, 2, 5, 10, 15, 20, 30, 50):
        correct = sum((remaining >= factor * bound) == better for remaining, bound, better in cases)
        print(f"| {factor} | {correct} of {len(cases)} |")
    print(f"| 0, always exclude | {sum(better for *_, better in cases)} of {len(cases)} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", choices=["table5", "constant"])
    parser.add_argument("--alpha", default="1", help="of table5: SYNTHETIC(alpha, alpha) (default: 1)")
    parser.add_argument("--shifts", type=int, nargs="+", default=[*range(10, 51, 5)], help="of table5")
    parser.add_argument("--seeds", type=int, default=5, help="of table5: how many (default: 5)")
    parser.add_argument("--run-dir", default="runs")
    arguments = parser.parse_args()
    if arguments.table == "table5":
        table5(arguments.run_dir, arguments.alpha, arguments.shifts, range(arguments.seeds))
    else:
        constant(arguments.run_dir)
