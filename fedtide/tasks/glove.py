"""Vectors of words, such as those of GloVe."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedtide.ground.errors import SettingsError
from fedtide.ground.files import open_regular
from fedtide.tasks.data import Examples
from fedtide.tasks.download import reason_of

MAX_NUMBERS = 2000  # of a word
MAX_BYTES = 64 * MAX_NUMBERS  # of a line


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
