"""What a task does to a table, texts or images, as JSON: others can prepare examples for its model alike.

Whoever prepares rows, on the server or on a board, encodes them by these classes, to the same bits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedtide.base.files import parse_json
from fedtide.base.numbers import Decimals, exact

PREPROCESSING = "preprocessing.json"  # in a run folder
CLASSIFICATION, REGRESSION = "classification", "regression"
LARGEST = float(np.finfo(np.float32).max)
PADDING, UNKNOWN = 0, 1
"""Numbers that stand for no token of a text, and for any that has no number of its own."""
FIRST = 2
"""The number of the first token that has one of its own."""
TokenKind = Literal["words", "characters"]
_WORD = re.compile(r"[\w']+|[.,!?;]")
_MISSING = {*("", "na", "n/a", "nan", "-nan", "<na>", "null", "none", "?")}
_MISSING |= {*("#n/a", "#na", "#div/0!", "#ref!", "#value!", "#name?", "#num!", "#null!")}  # of spreadsheets


def require_value(text: str) -> None:
    """Raise ValueError if a value of a table is missing."""
    if text.lower() in _MISSING:
        raise ValueError("a value is missing; add it, or remove the row")


@dataclass(frozen=True)
class Numbers:
    """A column of numbers, from which the mean is subtracted before they are divided by the deviation.

    Both are lists where each row has several numbers.
    """

    column: str
    mean: float | list[float] = 0.0
    deviation: float | list[float] = 1.0

    def scaled(self, numbers: Any) -> Any:
        """Return a float, or an array of float64, scaled."""
        scaled = numbers - self.mean
        scaled /= self.deviation
        return scaled

    def target(self, text: str, number: Decimals) -> float:
        """Return the number that a text is, scaled; ValueError: it is none, or too large."""
        require_value(text)
        if isinstance(self.mean, list):
            raise ValueError(f"the run's table has {len(self.mean)} numbers in a row of this column")
        scaled: float = self.scaled(number(text))
        if abs(scaled) > LARGEST:
            raise ValueError("the number is too large")
        return scaled

    def features(self, text: str, number: Decimals) -> list[float]:
        """Return the same as the only feature."""
        return [self.target(text, number)]


@dataclass(frozen=True)
class Category:
    """A column of texts: a feature of 0 or 1 for each of these values, or a class for each of them.

    Values that are all numbers are compared as numbers: 1, 1.0 and 01 are the same.
    """

    column: str
    values: tuple[str, ...]

    def target(self, text: str, number: Decimals) -> int:
        """Return which of the values a text is; ValueError: it is none of them."""
        require_value(text)
        keys: Sequence[Any] = (exact([text]) if self._of_numbers else None) or [text]
        if (position := self._positions.get(keys[0])) is None:
            raise ValueError(f"{text[:40]!r} is not one of {'+'.join(self.values)[:200]}")
        return position

    def features(self, text: str, number: Decimals) -> list[float]:
        """Return 1 for the value that a text is, and 0 for the others; ValueError: it is none of them."""
        features = [0.0] * len(self.values)
        features[self.target(text, number)] = 1.0
        return features

    @cached_property
    def _positions(self) -> dict[Any, int]:
        keys: Sequence[Any] = exact(self.values) or self.values
        return {key: position for position, key in enumerate(keys)}

    @cached_property
    def _of_numbers(self) -> bool:
        return exact(self.values) is not None


def tokens_of(kind: TokenKind, text: str, length: int) -> Sequence[str]:
    """Return the first words of a text, in lower case, or its first characters."""
    return (_WORD.findall(text.lower()) if kind == "words" else text)[:length]


@dataclass(frozen=True)
class Texts:
    """A column of texts: each becomes the numbers of its first `length` tokens, padded at the front.

    The tokens of the `vocabulary` are numbered in its order, from `FIRST` on; all others are `UNKNOWN`.
    """

    column: str
    tokens: TokenKind
    length: int
    vocabulary: tuple[str, ...]

    def features(self, text: str, number: Decimals) -> list[int]:
        """Return the numbers of a text."""
        found = [self._numbers.get(token, UNKNOWN) for token in tokens_of(self.tokens, text, self.length)]
        return [PADDING] * (self.length - len(found)) + found

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {token: FIRST + position for position, token in enumerate(self.vocabulary)}


Feature = Numbers | Category | Texts


@dataclass(frozen=True)
class Channels:
    """Mean and deviation of each channel, of pixels from 0 to 1."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    def standardise(self, images: NDArray[np.float32]) -> None:
        """Subtract the means from images, shape (n, C, H, W), and divide them by the deviations."""
        if images.shape[1] != len(self.mean):
            raise ValueError(f"{images.shape[1]} channels where the run's images have {len(self.mean)}")
        for channel, (mean, deviation) in enumerate(zip(self.mean, self.deviation, strict=True)):
            images[:, channel] -= mean
            images[:, channel] /= deviation


@dataclass(frozen=True)
class Preprocessing:
    """What a task does to its data."""

    kind: str = CLASSIFICATION  # or `regression`, or the name of another criterion
    unit: float = 1.0  # what one unit of the targets is in the unit of the metric (regression)
    pixels: Channels | None = None  # how images are standardised; None: they are not, or there are none
    target: Numbers | Category | None = None  # the column to predict; None: the data are not a table
    features: tuple[Feature, ...] = ()  # the columns that become inputs, in their order
    unused: tuple[str, ...] = ()  # further columns that the table may have

    @property
    def vocabulary(self) -> int:
        """How many numbers the tokens of texts have; 0: inputs are no tokens."""
        known = [len(column.vocabulary) for column in self.features if isinstance(column, Texts)]
        return FIRST + known[0] if known else 0

    def to_json(self) -> str:
        """Return it as one line of JSON; nothing if there is nothing to say."""
        return "" if self == Preprocessing() else json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Preprocessing:
        """Read what `to_json` returned; ValueError: it is something else."""
        if not text:
            return cls()
        try:
            given = parse_json(text)
            pixels, target = given["pixels"], given["target"]
            return cls(
                given["kind"],
                given["unit"],
                pixels and Channels(tuple(pixels["mean"]), tuple(pixels["deviation"])),
                target and _target(target),
                tuple(map(_feature, given["features"])),
                tuple(given["unused"]),
            )
        except (AttributeError, KeyError, TypeError, ValueError):
            raise ValueError("preprocessing: another version has written it") from None


def _target(given: dict[str, Any]) -> Numbers | Category:
    if "values" in given:
        return Category(given["column"], tuple(given["values"]))
    return Numbers(**given)


def _feature(given: dict[str, Any]) -> Feature:
    if "vocabulary" in given:
        return Texts(**{**given, "vocabulary": tuple(given["vocabulary"])})
    return _target(given)


def scale_of(column: str, numbers: NDArray[np.float64]) -> Numbers:
    """Return what gives these numbers, shape (n, d), mean 0 and deviation 1; those all alike become 0.

    ValueError: there are none, or they are too large to have a deviation.
    """
    if not len(numbers):
        raise ValueError("has no number in training to standardise by")
    with np.errstate(over="ignore", invalid="ignore"):
        mean, deviation = numbers.mean(0), numbers.std(0)
    if not np.isfinite(deviation).all():
        raise ValueError(f"has numbers as large as {np.abs(numbers).max():.3g}, whose deviation is infinite")
    alike = np.ptp(numbers, axis=0) == 0  # their deviation, and their distance to the mean, is rounding
    mean[alike], deviation[alike] = numbers[0, alike], 1
    found = (mean.tolist(), deviation.tolist())
    return Numbers(column, *(each[0] if len(mean) == 1 else each for each in found))
