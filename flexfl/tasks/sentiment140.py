"""Sentiment140: is a tweet positive or negative; one client for each user."""

from __future__ import annotations

import csv
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np

from flexfl.ground.files import open_regular
from flexfl.tasks.data import FederatedData, PartitionedData
from flexfl.tasks.download import download
from flexfl.tasks.glove import WordVectors, read_vectors
from flexfl.tasks.partition_base import PartitionFn
from flexfl.tasks.sizes import SizesFn
from flexfl.tasks.texts import DerivedData, choose_clients

TABLE = "training.1600000.processed.noemoticon.csv"
ARCHIVE = "trainingandtestdata.zip"
URL = f"https://cs.stanford.edu/people/alecmgo/{ARCHIVE}"
SIZE = 81_363_704
CHECKSUM = "sha256:004a3772c8a7ff9bbfeb875880f47f0679d93fc63e5cf9cff72d54a8a6162e57"
MAX_BYTES = 1 << 29  # of the table; it has 239 MB
TEST_SHARE = 0.2
PADDING, UNKNOWN = 0, 1  # numbers of what are no words
LABELS = {"0": 0, "4": 1}
_WORD = re.compile(r"[\w']+|[.,!?;]")


def sentiment140(
    *,
    data_dir: str = "data",
    words: Annotated[int, "at least 1"] = 25,
    min_tweets: Annotated[int, "at least 2"] = 41,
    vocabulary: Annotated[int, "at least 3"] = 10_000,
    glove: str = "",
) -> Sentiment140Task:
    """Whether a tweet is positive or negative, from its first 25 words; one client for each user.

    The input shape is (25,), numbers of words, for a model that learns vectors for them, or with `glove` (25,
    D), the words' vectors. Shorter tweets are padded at the front. The last fifth of a user's tweets are test
    data. Of the users with enough tweets, --num-clients are drawn by the seed. If the table is missing from
    the directory, an archive of 81 MB is downloaded into it. No formal licence, and Twitter's terms: cite the
    paper.

    Parameters
    ----------
    data_dir : str
        Directory of the table (``sentiment140/training.1600000.processed.noemoticon.csv`` in it).
    words : int
        How many words of a tweet count.
    min_tweets : int
        Users with fewer tweets are left out; 41 leaves the 1,473 of FedLaAvg's experiments.
    vocabulary : int
        How many words have a number of their own: the most frequent ones in the clients' training data;
        among them count the padding, and all other words together.
    glove : str
        File with a word and its D numbers in each line, such as glove.6B.25d.txt; other words are zero.

    Returns
    -------
    Sentiment140Task
        The task; its `federate` raises ValueError if the table is missing and cannot be downloaded.

    Raises
    ------
    ValueError
        An option is too small.

    References
    ----------
    Go, Bhayani and Huang, Twitter Sentiment Classification using Distant Supervision, 2009; Caldas et al.,
    LEAF: A Benchmark for Federated Settings, 2018.
    """
    for name, value, least in (
        ("words", words, 1),
        ("min-tweets", min_tweets, 2),
        ("vocabulary", vocabulary, 3),
    ):
        if value < least:
            raise ValueError(f"task sentiment140: {name} must be at least {least}, not {value}")
    return Sentiment140Task(data_dir, words, min_tweets, vocabulary, glove)


class Tweet(NamedTuple):
    """A tweet: its number, which grows with time, its label, and its words."""

    number: int
    label: int
    words: list[str]


@dataclass(frozen=True)
class Sentiment140Task:
    """The tweets, and how they become examples; see `sentiment140`."""

    data_dir: str
    words: int
    min_tweets: int
    vocabulary: int
    glove: str
    default_partition: None = None
    default_model: str = "lstm:embedding=25,hidden=16"

    def federate(
        self, num_clients: int, partition: PartitionFn | None, sizes: SizesFn, holdout: float, seed: int
    ) -> FederatedData:
        """Give each client the tweets of a user; see `TaskSource.federate`."""
        table = Table(Path(self.data_dir) / "sentiment140")
        counts = Counter(row.user for row in table.rows())
        users = sorted(user for user, count in counts.items() if count >= self.min_tweets)
        what = f"users with at least {self.min_tweets} tweets"
        chosen = choose_clients("sentiment140", what, len(users), num_clients, sizes, seed)
        tweets: dict[str, list[Tweet]] = {users[position]: [] for position in chosen}
        for row in table.rows():
            if row.user in tweets:
                tweets[row.user].append(self.tweet(row))
        return self.divide([sorted(own) for own in tweets.values()], holdout, seed)

    def tweet(self, row: Row) -> Tweet:
        """Return a row of the table with its text as words, no more than count."""
        return Tweet(row.number, row.label, _WORD.findall(row.text.lower())[: self.words])

    def divide(self, clients: list[list[Tweet]], holdout: float, seed: int) -> FederatedData:
        """Number the words of each client's tweets; the last fifth of them are test data."""
        cuts = [len(own) - max(1, int(TEST_SHARE * len(own))) for own in clients]
        train = [tweet for own, cut in zip(clients, cuts, strict=True) for tweet in own[:cut]]
        test = [tweet for own, cut in zip(clients, cuts, strict=True) for tweet in own[cut:]]
        parts = np.split(np.arange(len(train)), np.cumsum(cuts)[:-1])
        if self.glove:
            used = {word for tweet in (*train, *test) for word in tweet.words}
            known, vectors = read_vectors(Path(self.glove), used)
            numbers = {word: UNKNOWN + 1 + position for position, word in enumerate(known)}
        else:
            counts = Counter(word for tweet in train for word in tweet.words)
            most = sorted(counts, key=lambda word: (-counts[word], word))[: self.vocabulary - UNKNOWN - 1]
            numbers = {word: UNKNOWN + 1 + position for position, word in enumerate(most)}
        stored = [self._numbered(tweets, numbers) for tweets in (train, test)]
        data = PartitionedData.divide(stored[0], stored[1], 2, parts, holdout, seed)
        if self.glove:
            return DerivedData(data, WordVectors(np.pad(vectors, ((UNKNOWN + 1, 0), (0, 0)))))
        return DerivedData(data, _same, self.vocabulary)

    def _numbered(self, tweets: list[Tweet], numbers: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
        x = np.full((len(tweets), self.words), PADDING, np.int64)
        for row, tweet in zip(x, tweets, strict=True):
            own = [numbers.get(word, UNKNOWN) for word in tweet.words]
            row[self.words - len(own) :] = own
        return x, np.array([tweet.label for tweet in tweets], np.int64)


def _same(stored: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    return stored


class Row(NamedTuple):
    """A row of the table: the tweet's number, its label, when it was posted, by whom, and its text."""

    number: int
    label: int
    date: str
    user: str
    text: str


class Table:
    """The rows of the table, which is in a folder, or in an archive there.

    Parameters
    ----------
    folder : Path
        Where it is, or else downloaded to.

    Raises
    ------
    ValueError
        It is not there, and cannot be downloaded.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / TABLE
        if self.path.exists():
            return
        self.path = folder / ARCHIVE
        try:
            download(URL, self.path, SIZE, CHECKSUM)
        except OSError as error:
            reason = f"{error.filename}: {error.strerror}" if error.filename else str(error)
            raise ValueError(
                f"sentiment140: cannot read the tweets from directory '{folder}' or download them into it "
                f"({reason}); put {URL}, or {TABLE} of it, there, or set --data-dir"
            ) from None

    def rows(self) -> Iterator[Row]:
        """Yield the rows but for neutral tweets; raises ValueError if the table cannot be read."""
        line = 0
        try:
            with self._open() as text:
                for row in csv.reader(text, strict=True):
                    line += 1
                    if len(row) != 6 or row[0] not in (*LABELS, "2") or not row[1].isdecimal():
                        raise ValueError("not polarity (0, 2 or 4), number, date, query, user and text")
                    if row[0] in LABELS:
                        yield Row(int(row[1][:20]), LABELS[row[0]], row[2], row[4], row[5])
        # Of an archive that is encrypted or packed in another way, zipfile says so by RuntimeError.
        except (
            OSError,
            ValueError,
            csv.Error,
            zipfile.BadZipFile,
            zlib.error,
            EOFError,
            RuntimeError,
        ) as error:
            reason = getattr(error, "strerror", None) or str(error)[:200]
            raise ValueError(f"sentiment140: {self.path}: line {max(1, line)}: {reason}") from None

    @contextmanager
    def _open(self) -> Iterator[TextIOWrapper]:
        if self.path.name == TABLE:
            with open_regular(self.path) as file, TextIOWrapper(file, "latin-1", newline="") as text:
                yield text
            return
        with open_regular(self.path) as file, zipfile.ZipFile(file) as archive:
            try:
                info = archive.getinfo(TABLE)
            except KeyError:
                raise ValueError(f"there is no {TABLE} in it") from None
            if info.file_size > MAX_BYTES:
                raise ValueError(f"{TABLE} in it is larger than {MAX_BYTES >> 20} MiB")
            with archive.open(info) as member, TextIOWrapper(member, "latin-1", newline="") as text:
                yield text
