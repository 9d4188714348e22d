"""Sentiment140: is a tweet positive or negative; one client for each user."""

from __future__ import annotations

import csv
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Annotated, ClassVar, NamedTuple

import numpy as np

from fedtide.ground.allowed import Checked, Count, Range
from fedtide.ground.errors import SettingsError
from fedtide.ground.files import open_regular
from fedtide.tasks.data import TEST_SHARE, Examples, FederatedData, PartitionedData
from fedtide.tasks.dataset import choose_clients
from fedtide.tasks.download import download, obtaining, reason_of
from fedtide.tasks.partition import PartitionFn
from fedtide.tasks.sizes import SizesFn
from fedtide.tasks.texts import FIRST, Tokens, WordVectors, read_vectors, wide

TABLE = "training.1600000.processed.noemoticon.csv"
ARCHIVE = "trainingandtestdata.zip"
URL = f"https://cs.stanford.edu/people/alecmgo/{ARCHIVE}"
SHA256 = "004a3772c8a7ff9bbfeb875880f47f0679d93fc63e5cf9cff72d54a8a6162e57"
MAX_BYTES = 1 << 29  # of the table; it has 239 MB
LABELS = {"0": 0, "4": 1}


class Row(NamedTuple):
    """A tweet: its number, which grows with time, its label, when it was posted, by whom, and its text."""

    number: int
    label: int
    date: str
    user: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Sentiment140(Checked):
    """Whether a tweet is positive or negative, from its first 25 words; one client for each user.

    The input shape is (25,), numbers of words, for a model that learns vectors for them, or with `glove` (25,
    D), the words' vectors. Shorter tweets are padded at the front. The last fifth of a user's tweets are test
    data. Of the users with enough tweets, --num-clients are drawn by the seed. If the table is missing from
    the directory, an archive of 81 MB is downloaded into it. No formal licence, and Twitter's terms: cite the
    paper.

    Go, Bhayani and Huang, Twitter Sentiment Classification using Distant Supervision, 2009; Caldas et al.,
    LEAF: A Benchmark for Federated Settings, 2018.

    Attributes
    ----------
    data_dir
        Directory of the table (``sentiment140/training.1600000.processed.noemoticon.csv`` in it).
    words
        How many words of a tweet count.
    min_tweets
        Users with fewer tweets are left out; 41 leaves the 1,473 of FedLaAvg's experiments.
    vocabulary
        How many words have a number of their own: the most frequent ones in the clients' training data,
        including the padding and one number for all other words.
    glove
        File with a word and its D numbers in each line, such as glove.6B.25d.txt; other words are zero.
    """

    data_dir: str = "data"
    words: Count = 25
    min_tweets: Annotated[int, Range(least=2)] = 41
    vocabulary: Annotated[int, Range(least=3)] = 10_000
    glove: str = ""

    default_partition: ClassVar[None] = None
    default_model: ClassVar[str] = "lstm:embedding=25,hidden=16"

    def federate(
        self, num_clients: int, partition: PartitionFn | None, sizes: SizesFn, holdout: float, seed: int
    ) -> FederatedData:
        """Give each client the tweets of a user; see `TaskSource.federate`."""
        table = Table(Path(self.data_dir) / "sentiment140")
        counts = Counter(row.user for row in table.rows())
        users = sorted(user for user, count in counts.items() if count >= self.min_tweets)
        what = f"users with at least {self.min_tweets} tweets"
        chosen = choose_clients("sentiment140", what, len(users), num_clients, sizes, seed)
        tweets: dict[str, list[Row]] = {users[position]: [] for position in chosen}
        for row in table.rows():
            if row.user in tweets:
                tweets[row.user].append(row)
        return self.divide([*tweets.values()], holdout, seed, [*tweets])

    def divide(
        self, clients: list[list[Row]], holdout: float, seed: int, names: Sequence[str] = ()
    ) -> FederatedData:
        """Number the words of each client's tweets; the last fifth of them are test data."""
        rows = [row for own in clients for row in sorted(own)]
        cuts = [len(own) - max(1, int(TEST_SHARE * len(own))) for own in clients]
        train = np.concatenate([np.arange(len(own)) < cut for own, cut in zip(clients, cuts, strict=True)])
        parts = np.split(np.arange(train.sum()), np.cumsum(cuts)[:-1])
        tokens = Tokens.of("words", [row.text for row in rows], self.words)
        derive: Callable[[Examples], Examples] = wide
        if self.glove:
            position = {word: k for k, word in enumerate(tokens.names)}
            found, vectors = read_vectors(Path(self.glove), position)
            x = tokens.numbered([position[word] for word in found])
            derive = WordVectors(np.pad(vectors, ((FIRST, 0), (0, 0))))
        else:
            x = tokens.numbered(tokens.frequent(train, self.vocabulary))
        y = np.array([row.label for row in rows], np.int64)
        return PartitionedData.divide(
            (x[train], y[train]),
            (x[~train], y[~train]),
            *(2, parts, holdout, seed),
            client_names=names,
            derive=derive,
            vocabulary=0 if self.glove else self.vocabulary,
        )


class Table:
    """The rows of the table, which is in a folder, or in an archive there; downloaded if it is missing.

    Raises
    ------
    ValueError
        It cannot be downloaded.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / TABLE
        if not self.path.exists():
            self.path = folder / ARCHIVE
            with obtaining("sentiment140", "tweets", folder, f"put {URL}, or {TABLE} of it, there"):
                download(URL, self.path, SHA256)

    def rows(self) -> Iterator[Row]:
        """Yield all rows except neutral tweets; raises ValueError if the table cannot be read."""
        line = 0
        try:
            with self._open() as text:
                for row in csv.reader(text, strict=True):
                    line += 1
                    if len(row) != 6 or row[0] not in (*LABELS, "2") or not row[1].isdecimal():
                        raise SettingsError("not polarity (0, 2 or 4), number, date, query, user and text")
                    if row[0] in LABELS:
                        yield Row(int(row[1][:20]), LABELS[row[0]], row[2], row[4], row[5])
        except Exception as error:  # zipfile and its decompressors raise many kinds for a damaged archive
            where = f"task sentiment140: {self.path}: line {max(1, line)}"
            raise SettingsError(f"{where}: {reason_of(error)}") from None

    @contextmanager
    def _open(self) -> Iterator[TextIOWrapper]:
        with ExitStack() as stack:
            file: IO[bytes] = stack.enter_context(open_regular(self.path))
            if self.path.name == ARCHIVE:
                archive = stack.enter_context(zipfile.ZipFile(file))
                if archive.getinfo(TABLE).file_size > MAX_BYTES:
                    raise SettingsError(f"{TABLE} in it is larger than {MAX_BYTES >> 20} MiB")
                file = stack.enter_context(archive.open(TABLE))
            yield stack.enter_context(TextIOWrapper(file, "latin-1", newline=""))
