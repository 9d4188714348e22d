"""Shakespeare's plays: the next character, one client for each speaking role."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from fedtide.base.allowed import Checked, Count
from fedtide.base.download import download, obtaining
from fedtide.base.errors import SettingsError
from fedtide.base.files import read_bytes
from fedtide.tasks.data import Examples, FederatedData, PartitionedData
from fedtide.tasks.dataset import choose_clients, consecutive
from fedtide.tasks.partition import PartitionFn
from fedtide.tasks.sizes import SizesFn

ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""The characters, as LEAF numbers them; any other becomes a space."""

TRAIN_SHARE = 0.8
MAX_BYTES = 1 << 24  # of a play; the longest has 288 kB
SOURCE = Path(__file__).parent / "shakespeare.toml"
_CODES = np.full(256, ALPHABET.index(" "), np.uint8)
_CODES[[ord(character) for character in ALPHABET]] = np.arange(len(ALPHABET))
Roles = dict[tuple[str, str], list[str]]
"""Lines by play and role."""


@dataclass(frozen=True, kw_only=True)
class Shakespeare(Checked):
    """Next character in Shakespeare's plays, after the 80 before it; one client for each speaking role.

    As in LEAF, the first four fifths of a role's text are its training data, the rest are test data, and a
    client's examples are all sequences of 80 characters. Of the roles with enough lines, --num-clients are
    drawn by the seed. Plays missing from the directory are downloaded into it: 37 files, 7.6 MB, Moby's texts
    with Jon Bosak's markup, in the public domain or free to copy. LEAF takes Project Gutenberg's edition,
    whose roles differ a little.

    Caldas et al., LEAF: A Benchmark for Federated Settings, 2018; McMahan et al., AISTATS 2017.

    Attributes
    ----------
    data_dir
        Directory of the plays (``shakespeare/*.xml`` in it).
    length
        Characters before the one to predict.
    min_lines
        Roles with fewer lines are left out.
    stride, test_stride
        Characters from the beginning of a training or test sequence to that of the next: with 80, one in 80
        of LEAF's test sequences is used.
    """

    data_dir: str = "data"
    length: Count = 80
    min_lines: Count = 5
    stride: Count = 1
    test_stride: Count = 80

    clients_are_apart: ClassVar[bool] = True
    default_partition: ClassVar[None] = None
    default_model: ClassVar[str] = "lstm"

    def federate(
        self, num_clients: int, partition: PartitionFn | None, sizes: SizesFn, holdout: float, seed: int
    ) -> FederatedData:
        roles = read_plays(Path(self.data_dir))
        texts = {
            f"{play}: {role}": " ".join(" ".join(lines).split())
            for (play, role), lines in sorted(roles.items())
            if len(lines) >= self.min_lines
        }
        long_enough = [
            name
            for name, text in texts.items()  # each part needs one sequence and the character after it
            if min(cut := int(TRAIN_SHARE * len(text)), len(text) - cut) > self.length
        ]
        what = f"roles with at least {self.min_lines} lines and enough text"
        names = choose_clients("shakespeare", what, long_enough, num_clients, sizes, seed)
        return self._divide({name: texts[name] for name in names}, holdout, seed)

    def _divide(self, texts: dict[str, str], holdout: float, seed: int) -> FederatedData:
        codes = [_CODES[np.frombuffer(t.encode("latin-1", "replace"), np.uint8)] for t in texts.values()]
        train, test, begin = [], [], 0
        for text in codes:
            cut, end = begin + int(TRAIN_SHARE * len(text)), begin + len(text)
            train.append(np.arange(begin, cut - self.length, self.stride, dtype=np.int32))
            test.append(np.arange(cut, end - self.length, self.test_stride, dtype=np.int32))
            begin = end
        stored = [(starts, np.zeros(len(starts), np.uint8)) for starts in map(np.concatenate, (train, test))]
        own = (len(ALPHABET), consecutive(map(len, train)), holdout, seed)
        derive = Sequences(np.concatenate(codes), self.length)
        return PartitionedData.divide(
            stored[0], stored[1], *own, client_names=[*texts], derive=derive, vocabulary=len(ALPHABET)
        )


@dataclass(frozen=True)
class Sequences:
    """Makes examples of their positions in a text: `length` characters, and the one after them."""

    text: NDArray[np.uint8]
    length: int

    def __call__(self, stored: Examples) -> Examples:
        """Return numbers of characters, shape (n, length), and of those that follow, shape (n,)."""
        starts, _ = stored
        found = self.text[starts[:, None] + np.arange(self.length + 1)].astype(np.int64)
        return found[:, :-1].copy(), found[:, -1].copy()


def read_plays(data_dir: Path) -> Roles:
    """Read the plays of a directory, after downloading them if there are none."""
    folder = data_dir / "shakespeare"
    source = tomllib.loads(SOURCE.read_text(encoding="utf-8"))
    roles: Roles = {}
    with obtaining("task shakespeare", "plays", folder, f"put the .xml files of {source['page']} there"):
        if not any(folder.glob("[!.]*.xml")):
            # Elsewhere first: an interrupted download must not look like a complete one.
            part = data_dir / "shakespeare.part"
            for name, sha256 in source["files"].items():
                download(f"{source['url']}/{name}", part / name, sha256)
            part.rename(folder)
        for path in sorted(folder.glob("[!.]*.xml")):
            title, lines = read_play(path)
            roles |= {(title, role): own for role, own in lines.items()}
    return roles


def read_play(path: Path) -> tuple[str, dict[str, list[str]]]:
    """Read a play in Jon Bosak's markup: its title, and by role its lines, without stage directions.

    A speech of several speakers belongs to each of them. OSError or ValueError is raised if the file cannot
    be read, or is not a play.
    """
    try:
        play = ElementTree.fromstring(read_bytes(path, MAX_BYTES))  # Expat limits what entities become
    except (ElementTree.ParseError, ValueError, LookupError) as error:  # LookupError: an unknown encoding
        raise SettingsError(f"{path}: {error}") from None
    lines: dict[str, list[str]] = {}
    for speech in play.iter("SPEECH"):
        speakers = [name.upper() for speaker in speech.iter("SPEAKER") if (name := _text(speaker))]
        for text in filter(None, map(_text, speech.iter("LINE"))):
            for speaker in speakers:
                lines.setdefault(speaker, []).append(text)
    if not lines:
        raise SettingsError(f"{path}: no speech with a SPEAKER and a LINE")
    return next(filter(None, map(_text, play.iter("TITLE"))), ""), lines


def _text(element: ElementTree.Element) -> str:
    """Return the text of an element, but not that of the elements in it."""
    return " ".join("".join([element.text or "", *(child.tail or "" for child in element)]).split())
