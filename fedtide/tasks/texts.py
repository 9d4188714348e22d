"""Texts as numbers of their words or characters, or as vectors of words; and the tweets of Sentiment140."""

from __future__ import annotations

import csv
import zipfile
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import TextIOWrapper
from itertools import chain
from pathlib import Path
from typing import IO, Annotated, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtide.base.allowed import Checked, Count, Range
from fedtide.base.download import download, obtaining, reason_of
from fedtide.base.errors import SettingsError
from fedtide.base.files import open_regular
from fedtide.base.preprocessing import FIRST, PADDING, UNKNOWN, TokenKind, tokens_of
from fedtide.tasks.data import TEST_SHARE, Examples, FederatedData, PartitionedData
from fedtide.tasks.dataset import choose_clients, consecutive, counted_rows
from fedtide.tasks.partition import PartitionFn
from fedtide.tasks.sizes import SizesFn

CODES = 0x110000  # of characters
MAX_NUMBERS = 2000  # of a word's vector
MAX_BYTES = 64 * MAX_NUMBERS  # of a line with one

TABLE = "training.1600000.processed.noemoticon.csv"
ARCHIVE = "trainingandtestdata.zip"
URL = f"https://cs.stanford.edu/people/alecmgo/{ARCHIVE}"
SHA256 = "004a3772c8a7ff9bbfeb875880f47f0679d93fc63e5cf9cff72d54a8a6162e57"
MAX_TABLE = 1 << 29  # bytes of it; it has 239 MB
LABELS = {"0": 0, "4": 1}


@dataclass(frozen=True)
class Tokens:
    """Texts as their first `length` words, in lower case, or characters."""

    found: NDArray[np.intp]  # the tokens of one text after the other, as positions in `names`
    lengths: NDArray[np.intp]  # number of tokens in each text, shape (n,)
    names: list[str]
    length: int

    @classmethod
    def of(cls, kind: TokenKind, texts: list[str], length: int) -> Tokens:
        cut = [tokens_of(kind, text, length) for text in texts]
        lengths = np.array([*map(len, cut)], np.intp)
        if kind == "characters":
            whole = "".join(map(str, cut))  # of characters, each is a text
            codes = np.frombuffer(whole.encode("utf-32-le", "surrogatepass"), np.uint32)
            found, names = numbered_characters(codes)
            return cls(found, lengths, names, length)
        known: dict[str, int] = {}
        positions = (known.setdefault(word, len(known)) for word in chain.from_iterable(cut))
        return cls(np.fromiter(positions, np.intp, int(lengths.sum())), lengths, [*known], length)

    def frequent(self, train: NDArray[np.bool_], vocabulary: int) -> list[int]:
        """Return the most frequent tokens of the training texts, as positions in `names`.

        They are at most `vocabulary` - 2: two numbers stand for padding and for all other tokens.
        """
        counts = np.bincount(self.found[np.repeat(train, self.lengths)], minlength=len(self.names))
        most = sorted(np.flatnonzero(counts).tolist(), key=lambda token: (-counts[token], self.names[token]))
        return most[: max(0, vocabulary - FIRST)]

    def numbered(self, known: list[int]) -> NDArray[np.signedinteger]:
        """Return each text as numbers of the known tokens, shape (n, length), padded at the front."""
        dtype = np.int16 if len(known) < 2**15 - FIRST else np.int32
        numbers = np.full(len(self.names), UNKNOWN, dtype)
        numbers[known] = np.arange(len(known)) + FIRST
        x = np.full((len(self.lengths), self.length), PADDING, dtype)
        x[np.arange(self.length) >= self.length - self.lengths[:, None]] = numbers[self.found]
        return x


def numbered_characters(codes: NDArray[np.uint32]) -> tuple[NDArray[np.intp], list[str]]:
    """Return the positions of characters, given by code, among those that occur, and these in order."""
    there = np.zeros(CODES, np.bool_)
    there[codes] = True
    names = [chr(code) for code in np.flatnonzero(there).tolist()]
    return (np.cumsum(there) - 1)[codes], names


def wide(stored: Examples) -> Examples:
    """Return tokens that are stored in fewer bits as models get them, and the same targets."""
    return stored[0].astype(np.int64), stored[1]


@dataclass(frozen=True)
class WordVectors:
    """Replaces the numbers of words by their vectors, shape (V, D)."""

    vectors: NDArray[np.float32]

    def __call__(self, stored: Examples) -> Examples:
        """Return vectors, shape (n, L, D), for numbers of words, shape (n, L), and the same targets."""
        return self.vectors[stored[0]], stored[1]


def read_vectors(path: Path, words: Collection[str]) -> tuple[list[str], NDArray[np.float32]]:
    """Read the vectors of some words from a file of UTF-8 with a word and its numbers in each line.

    A first line with two numbers, as of word2vec, is skipped. Returns those of the words that are in the
    file, in its order, and their vectors, shape (len(found), D). ValueError is raised if the file cannot be
    read, a line is not a word and its numbers, or the file has none of the words.
    """
    found: dict[str, NDArray[np.float32]] = {}
    width = number = 0
    try:
        with open_regular(path) as file:
            while line := file.readline(MAX_BYTES):
                number += 1
                word, *numbers = line.decode("utf-8").rstrip().split(" ")
                if number == 1 and len(numbers) == 1:
                    continue
                width = width or len(numbers)
                if not 0 < len(numbers) == width <= MAX_NUMBERS:
                    raise SettingsError(f"{len(numbers)} numbers after the word, where {width} are expected")
                if word in words and word not in found:
                    vector = np.array(numbers, np.float64)
                    if not (np.abs(vector) < 1e6).all():  # False for NaN
                        raise SettingsError("a number is not finite, or too large")
                    found[word] = vector.astype(np.float32)
    except (OSError, ValueError) as error:
        where = f"line {number}: " if number else ""
        raise SettingsError(f"glove file {path}: {where}{reason_of(error)}") from None
    if not found:
        raise SettingsError(f"glove file {path}: it has none of the {len(words)} words of the data")
    return [*found], np.stack([*found.values()])


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
    absent: tuple[int, ...] = ()  # clients that never come

    default_partition: ClassVar[None] = None
    default_model: ClassVar[str] = "lstm:embedding=25,hidden=16"

    def federate(
        self, num_clients: int, partition: PartitionFn | None, sizes: SizesFn, holdout: float, seed: int
    ) -> FederatedData:
        table = Table(Path(self.data_dir) / "sentiment140")
        counts = Counter(row.user for row in table.rows())
        users = sorted(user for user, count in counts.items() if count >= self.min_tweets)
        what = f"users with at least {self.min_tweets} tweets"
        chosen = choose_clients("sentiment140", what, users, num_clients, sizes, seed)
        tweets: dict[str, list[Row]] = {user: [] for user in chosen}
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
        parts = consecutive(cuts)
        tokens = Tokens.of("words", [row.text for row in rows], self.words)
        derive: Callable[[Examples], Examples] = wide
        if self.glove:
            position = {word: k for k, word in enumerate(tokens.names)}
            found, vectors = read_vectors(Path(self.glove), position)
            x = tokens.numbered([position[word] for word in found])
            derive = WordVectors(np.pad(vectors, ((FIRST, 0), (0, 0))))
        else:
            counted = counted_rows(train, parts, self.absent)
            x = tokens.numbered(tokens.frequent(counted, self.vocabulary))
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
    """The rows of the table, in a folder or an archive there; it is downloaded if it is missing."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / TABLE
        if not self.path.exists():
            self.path = folder / ARCHIVE
            with obtaining("task sentiment140", "tweets", folder, f"put {URL}, or {TABLE} of it, there"):
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
                if archive.getinfo(TABLE).file_size > MAX_TABLE:
                    raise SettingsError(f"{TABLE} in it is larger than {MAX_TABLE >> 20} MiB")
                file = stack.enter_context(archive.open(TABLE))
            yield stack.enter_context(TextIOWrapper(file, "latin-1", newline=""))
