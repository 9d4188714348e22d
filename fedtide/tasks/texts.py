"""Texts as numbers of their words or characters, or as vectors of words, such as those of GloVe."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedtide.ground.errors import SettingsError
from fedtide.ground.files import open_regular
from fedtide.tasks.data import Examples
from fedtide.tasks.download import reason_of

PADDING, UNKNOWN = 0, 1  # numbers that stand for no token
FIRST = 2  # number of the first known token
CODES = 0x110000  # of characters
MAX_NUMBERS = 2000  # of a word's vector
MAX_BYTES = 64 * MAX_NUMBERS  # of a line with one
_WORD = re.compile(r"[\w']+|[.,!?;]")

Integers = NDArray[np.signedinteger]


@dataclass(frozen=True)
class Tokens:
    """The first `length` words, in lower case, or characters of each text.

    `found` are those of all texts, one text after the other, as positions in `names`; `lengths` says how many
    each text has, shape (n,).
    """

    found: NDArray[np.intp]
    lengths: NDArray[np.intp]
    names: list[str]
    length: int

    @classmethod
    def of(cls, kind: Literal["words", "characters"], texts: list[str], length: int) -> Tokens:
        """Split texts."""
        return cls._characters(texts, length) if kind == "characters" else cls._words(texts, length)

    @classmethod
    def _words(cls, texts: list[str], length: int) -> Tokens:
        cut = [_WORD.findall(text.lower())[:length] for text in texts]
        lengths = np.array([len(words) for words in cut], np.intp)
        known: dict[str, int] = {}
        found = (known.setdefault(word, len(known)) for word in chain.from_iterable(cut))
        return cls(np.fromiter(found, np.intp, int(lengths.sum())), lengths, [*known], length)

    @classmethod
    def _characters(cls, texts: list[str], length: int) -> Tokens:
        cut = [text[:length] for text in texts]
        lengths = np.array([len(text) for text in cut], np.intp)
        codes = np.frombuffer("".join(cut).encode("utf-32-le", "surrogatepass"), np.uint32)
        there = np.zeros(CODES, np.bool_)
        there[codes] = True
        position = np.cumsum(there) - 1
        names = [chr(code) for code in np.flatnonzero(there).tolist()]
        return cls(position[codes], lengths, names, length)

    def frequent(self, train: NDArray[np.bool_], vocabulary: int) -> list[int]:
        """Return the positions in `names` of the tokens that have a number of their own.

        They are the most frequent ones of the training texts; with the padding and the one number of all
        others, there are at most `vocabulary` numbers.
        """
        counts = np.bincount(self.found[np.repeat(train, self.lengths)], minlength=len(self.names))
        most = sorted(np.flatnonzero(counts).tolist(), key=lambda token: (-counts[token], self.names[token]))
        return most[: max(0, vocabulary - FIRST)]

    def numbered(self, known: list[int]) -> Integers:
        """Return the numbers of each text's tokens, shape (n, length), after the padding of shorter texts."""
        dtype = np.int16 if len(known) < 2**15 - FIRST else np.int32
        numbers = np.full(len(self.names), UNKNOWN, dtype)
        numbers[known] = np.arange(len(known)) + FIRST
        x = np.full((len(self.lengths), self.length), PADDING, dtype)
        x[np.arange(self.length) >= self.length - self.lengths[:, None]] = numbers[self.found]
        return x


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
