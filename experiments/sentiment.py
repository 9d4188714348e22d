"""Users who train while they sleep, and tweets whose mood depends on the hour: FedLaAvg's Sentiment140.

    python experiments/sentiment.py posts.csv --num-clients 200 --data-dir data    # when each client posts
    python sim.py --config experiments/fedlaavg-figure6.toml --data-dir data

Yan et al. 2020, section 6.1.3: tweets are left out at random until a share alpha of those posted from
midnight to one is positive, and 1 - alpha of those from noon to one, linearly between. There, a client is a
user with more than 40 tweets. To need no more than a part of the data set, a client here is a group of users
who post at the same time of the day.
"""

from __future__ import annotations

import argparse
import csv
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))

from fedtide.tasks import FederatedData
from fedtide.tasks.partition import PartitionFn
from fedtide.tasks.sizes import SizesFn
from fedtide.tasks.texts import Row, Sentiment140, Table

HOURS = 24


@dataclass(frozen=True, kw_only=True)
class Moods(Sentiment140):
    """Sentiment140 with the share of positive tweets by the hour; see `moods`."""

    alpha: float = 0.0

    def federate(
        self, num_clients: int, partition: PartitionFn | None, sizes: SizesFn, holdout: float, seed: int
    ) -> FederatedData:
        """Divide the users into clients, and leave tweets out."""
        clients = grouped(rows_in(self.data_dir), num_clients)
        rng = np.random.default_rng([seed, *b"moods"])
        kept = np.split(
            keep([row for own in clients for row in own], self.alpha, rng),
            np.cumsum([len(own) for own in clients])[:-1],
        )
        tweets = [
            [own[position] for position in np.flatnonzero(chosen)]
            for own, chosen in zip(clients, kept, strict=True)
        ]
        if min(map(len, tweets)) < self.min_tweets:
            raise ValueError(f"too few tweets for {num_clients} clients, give fewer with --num-clients")
        return self.divide(tweets, holdout, seed)


def moods(
    *, data_dir: str = "data", alpha: float = 0.0, words: int = 25, vocabulary: int = 2000, glove: str = ""
) -> Moods:
    """Tweets, a share alpha positive at midnight and 1 - alpha at noon; a client posts at one time."""
    return Moods(
        data_dir=data_dir, words=words, min_tweets=2, vocabulary=vocabulary, glove=glove, alpha=alpha
    )


def rows_in(data_dir: str) -> list[Row]:
    """Return the rows of Sentiment140's table, or of a part of it."""
    return [*Table(Path(data_dir) / "sentiment140").rows()]


def seconds(row: Row) -> int:
    """Return when a tweet was posted, in seconds after midnight."""
    hour, minute, second = row.date.split()[3].split(":")
    return int(hour) * 3600 + int(minute) * 60 + int(second)


def grouped(rows: list[Row], num_clients: int) -> list[list[Row]]:
    """Divide the users, in the order of the time of their first tweet, into groups with as many tweets."""
    users: dict[str, list[Row]] = {}
    for row in rows:
        users.setdefault(row.user, []).append(row)
    order = sorted(users.values(), key=lambda own: (seconds(own[0]), own[0].number))
    ends = np.cumsum([len(own) for own in order])
    clients: list[list[Row]] = [[] for _ in range(num_clients)]
    for own, end in zip(order, ends, strict=True):
        clients[(end - 1) * num_clients // ends[-1]].extend(own)
    return clients


def keep(rows: list[Row], alpha: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Return which tweets stay for as many of them to be positive in each hour as there should be."""
    hours = np.array([seconds(row) // 3600 for row in rows])
    labels = np.array([row.label for row in rows])
    noon = 1 - abs(np.arange(HOURS) - HOURS // 2) / (HOURS // 2)  # 0 at midnight, 1 at noon
    positive = alpha + (1 - 2 * alpha) * noon
    stays = np.zeros(len(rows), np.bool_)
    for hour, share in enumerate(positive):
        of = [np.flatnonzero((hours == hour) & (labels == label)) for label in (0, 1)]
        shares = (1 - share, share)
        total = min(len(own) / part for own, part in zip(of, shares, strict=True) if part)
        for own, part in zip(of, shares, strict=True):
            stays[rng.permutation(own)[: round(total * part)]] = True
    return stays


def main() -> None:
    """Write when each client posts, for `--trace sleep:file=FILE`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, help="what to write")
    parser.add_argument("--num-clients", type=int, default=200)
    parser.add_argument("--data-dir", default="data")
    arguments = parser.parse_args()
    with arguments.file.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["client", "seconds"])
        for client, own in enumerate(grouped(rows_in(arguments.data_dir), arguments.num_clients)):
            writer.writerows([client, seconds(row)] for row in own)


if __name__ == "__main__":
    main()
