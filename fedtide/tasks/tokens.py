"""Texts as numbers of their words or characters."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import chain
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedtide.tasks.data import Examples

PADDING, UNKNOWN = 0, 1  # numbers that stand for no token
CODES = 0x110000  # of characters
_WORD = re.compile(r"[\w']+|[.,!?;]")


def wide(stored: Examples) -> Examples:
    """Return tokens that are stored in fewer bits as models get them, and the same targets."""
    return stored[0].astype(np.int64), stored[1]


@dataclass(frozen=True)
class Tokens:
    """How texts become numbers: the first `length` words, in lower case, or characters of each.

    There are `vocabulary` numbers at most: one for what is padded at the front of shorter texts, one for
    unknown tokens, and the others for the most frequent ones of the training texts.
    """

    kind: Literal["words", "characters"]
    length: int
    vocabulary: int

    def numbered(self, texts: list[str], train: NDArray[np.bool_]) -> tuple[NDArray[np.signedinteger], int]:
        """Return the numbers of all texts, shape (n, length), and how many different ones there may be."""
        split = self._characters if self.kind == "characters" else self._words
        found, lengths, names = split(texts)
        counts = np.bincount(found[np.repeat(train, lengths)], minlength=len(names))
        most = sorted(np.flatnonzero(counts).tolist(), key=lambda token: (-counts[token], names[token]))
        kept = most[: max(0, self.vocabulary - UNKNOWN - 1)]
        dtype = np.int16 if len(kept) < 2**15 - UNKNOWN - 1 else np.int32
        numbers = np.full(len(names), UNKNOWN, dtype)
        numbers[kept] = np.arange(len(kept)) + UNKNOWN + 1
        x = np.full((len(texts), self.length), PADDING, dtype)
        x[np.arange(self.length) >= self.length - lengths[:, None]] = numbers[found]
        return x, len(kept) + UNKNOWN + 1

    def _words(self, texts: list[str]) -> tuple[NDArray[np.intp], NDArray[np.intp], list[str]]:
        """Return the words of all texts as positions in a list, how many are of each text, and the list."""
        cut = [_WORD.findall(text.lower())[: self.length] for text in texts]
        lengths = np.array([len(words) for words in cut], np.intp)
        known: dict[str, int] = {}
        found = (known.setdefault(word, len(known)) for word in chain.from_iterable(cut))
        return np.fromiter(found, np.intp, int(lengths.sum())), lengths, [*known]

    def _characters(self, texts: list[str]) -> tuple[NDArray[np.intp], NDArray[np.intp], list[str]]:
        """Likewise, of characters."""
        cut = [text[: self.length] for text in texts]
        lengths = np.array([len(text) for text in cut], np.intp)
        codes = np.frombuffer("".join(cut).encode("utf-32-le", "surrogatepass"), np.uint32)
        there = np.zeros(CODES, np.bool_)
        there[codes] = True
        position = np.cumsum(there) - 1
        return position[codes], lengths, [chr(code) for code in np.flatnonzero(there).tolist()]
