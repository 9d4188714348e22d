"""Shakespeare, Sentiment140 and GloVe, from small files; and files that are none."""

import hashlib
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtide.base.download import download
from fedtide.tasks import SIZES, TASKS
from fedtide.tasks.shakespeare import ALPHABET, read_play
from fedtide.tasks.texts import ARCHIVE, TABLE, read_vectors

PLAY = """<?xml version="1.0"?>
<!DOCTYPE PLAY SYSTEM "play.dtd">
<PLAY><TITLE>The Play</TITLE><ACT><TITLE>ACT I</TITLE>
<SPEECH><SPEAKER>First Witch</SPEAKER>
<LINE>When shall we <STAGEDIR>Thunder</STAGEDIR>meet &amp; again</LINE></SPEECH>
<SPEECH><SPEAKER>FIRST WITCH</SPEAKER><SPEAKER>Second Witch</SPEAKER><LINE>Fair is
foul</LINE><LINE/></SPEECH></ACT></PLAY>"""


def play_of(roles: dict[str, list[str]], title: str = "P") -> str:
    lines = {role: "".join(f"<LINE>{line}</LINE>" for line in own) for role, own in roles.items()}
    speeches = (f"<SPEECH><SPEAKER>{role}</SPEAKER>{own}</SPEECH>" for role, own in lines.items())
    return f"<PLAY><TITLE>{title}</TITLE>{''.join(speeches)}</PLAY>"


def federate(task: str, folder: Path, clients: int, holdout: float = 0.0, **options: Any) -> Any:
    source = TASKS[task](data_dir=str(folder), **options)
    return source.federate(clients, None, SIZES["equal"], holdout, 0)


def test_a_play_is_what_its_roles_say(write: Callable[..., str]) -> None:
    title, lines = read_play(Path(write(PLAY)))
    assert title == "The Play"
    assert lines == {
        "FIRST WITCH": ["When shall we meet & again", "Fair is foul"],
        "SECOND WITCH": ["Fair is foul"],
    }


def test_roles_are_clients_and_their_last_fifth_is_test_data(tmp_path: Path) -> None:
    folder = tmp_path / "shakespeare"
    folder.mkdir()
    long = [f"line {k}: Hello, World~" for k in range(10)]
    roles = {"A": long, "B": ["short"] * 9, "C": long[:4], "D": long[::-1]}
    (folder / "one.xml").write_text(play_of(roles))
    (folder / "two.xml").write_text(play_of({"A": long}, "Q"))
    options = {"length": 12, "min_lines": 5, "stride": 2, "test_stride": 3}
    data = federate("shakespeare", tmp_path, 3, **options)
    text = " ".join(long).replace("~", " ")
    cut = int(0.8 * len(text))
    assert data.sizes.tolist() == [len(range(0, cut - 12, 2))] * 3
    assert data.client_names == ("P: A", "P: D", "Q: A")
    x, y = data.examples(0, np.array([4, 0]))
    assert "".join(ALPHABET[c] for c in x[0]) == text[8:20]
    assert ALPHABET[y[0]] == text[20]
    x, y = data.test
    assert len(x) == 3 * len(range(cut, len(text) - 12, 3))
    assert "".join(ALPHABET[c] for c in x[1]) == text[cut + 3 : cut + 15]
    assert data.input_shape == (12,)
    assert data.num_outputs == data.vocabulary == 80
    assert len(pickle.dumps(data)) < 30_000
    held = federate("shakespeare", tmp_path, 1, 0.25, **options)
    assert len(held.holdout(np.array([0]))[1]) + held.sizes[0] == data.sizes[0]
    with pytest.raises(
        ValueError, match="there are 3 roles with at least 5 lines and enough text; set --num"
    ):
        federate("shakespeare", tmp_path, 4, **options)
    source = TASKS["shakespeare"](data_dir=str(tmp_path), **options)
    with pytest.raises(ValueError, match=r"examples belong to roles .*; leave --sizes out"):
        source.federate(2, None, SIZES["pareto"], 0.0, 0)


@given(content=st.binary(max_size=300), at=st.integers(0, len(PLAY)))
def test_what_is_not_a_play_is_refused(content: bytes, at: int, tmp_path: Path) -> None:
    valid, path = PLAY.encode(), tmp_path / "play.xml"
    for damaged in (content, valid[:at], valid[:at] + content + valid[at:]):
        lines, reason = {}, ""
        path.write_bytes(damaged)
        try:
            _, lines = read_play(path)
        except ValueError as error:
            reason = str(error)
        assert len(reason.splitlines()) == (not lines)
        assert all(own and all(own) for own in lines.values())


def test_a_billion_laughs_are_refused(tmp_path: Path) -> None:
    entities = "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 10))
    laughs = f'<!DOCTYPE x [<!ENTITY a0 "ha">{entities}]><PLAY>&a9;</PLAY>'
    (tmp_path / "shakespeare").mkdir()
    (tmp_path / "shakespeare" / "x.xml").write_text(laughs)
    with pytest.raises(ValueError, match=r"task shakespeare: .*x\.xml: .*amplification"):
        federate("shakespeare", tmp_path, 1)


def rows(*tweets: tuple[str, int, str, str]) -> str:
    form = '"{}","{}","Mon Apr 06 22:19:45 PDT 2009","NO_QUERY","{}","{}"\n'
    return "".join(form.format(*tweet) for tweet in tweets)


TWEETS = rows(
    *[("0", 10 + k, "ann", f"bad {k} day, isn't it?") for k in range(5)],
    *[("4", 3 - k, "bob", "a good day") for k in range(3)],
    *[("4", 30 + k, "ann", "Good") for k in range(5)],
    ("2", 50, "bob", "neutral"),
    ("4", 60, "cid", "alone"),
)


@pytest.mark.parametrize("packed", [False, True])
def test_users_are_clients_and_their_latest_tweets_are_test_data(packed: bool, tmp_path: Path) -> None:
    folder = tmp_path / "sentiment140"
    folder.mkdir()
    if packed:
        with zipfile.ZipFile(folder / ARCHIVE, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(TABLE, TWEETS)
    else:
        (folder / TABLE).write_text(TWEETS, encoding="latin-1")
    data = federate("sentiment140", tmp_path, 2, words=4, min_tweets=3, vocabulary=6)
    assert data.sizes.tolist() == [8, 2]  # ann's ten, bob's three
    assert data.client_names == ("ann", "bob")
    x, y = data.train_set(np.array([0, 1]))
    assert y.tolist() == [0] * 5 + [1] * 5
    # The most frequent words: day, bad, ",", a; the others are 1, and 0 is the padding.
    day, comma = 2, 3
    assert x[0].tolist() == [5, 1, day, comma] or set(x[0]) == {1, 2, 3, 4}
    assert x[5].tolist()[:3] == [0, 0, 0]
    assert x.max() < data.vocabulary == 6
    of_bob = federate("sentiment140", tmp_path, 2, words=4, min_tweets=3, vocabulary=6, absent=(0,))
    assert of_bob.train_set(np.array([1]))[0].tolist() == [[0, 2, 4, 3]] * 2  # a, day, good
    assert set(of_bob.train_set(np.array([0]))[0].ravel().tolist()) == {0, 1, 3, 4}
    assert data.test[1].tolist() == [1, 1, 1]
    assert federate("sentiment140", tmp_path, 1, min_tweets=4).sizes.tolist() == [8]
    with pytest.raises(ValueError, match="there are 2 users with at least 3 tweets; set --num-clients 2"):
        federate("sentiment140", tmp_path, 3, min_tweets=3)


def test_glove_vectors_stand_for_words(tmp_path: Path) -> None:
    (tmp_path / "sentiment140").mkdir()
    (tmp_path / "sentiment140" / TABLE).write_text(TWEETS, encoding="latin-1")
    glove = tmp_path / "glove.txt"
    glove.write_text("the 9 9\ngood 1 -2\nbad 0.5 3e-1\n")
    data = federate("sentiment140", tmp_path, 2, words=3, min_tweets=3, glove=str(glove))
    x, _ = data.train_set(np.array([0, 1]))
    assert x.shape == (10, 3, 2)
    assert x.dtype == np.float32
    np.testing.assert_allclose(x[0], [[0.5, 0.3], [0, 0], [0, 0]])  # bad 0 day
    np.testing.assert_allclose(x[5], [[0, 0], [0, 0], [1, -2]])  # Good
    assert data.input_shape == (3, 2)
    assert data.vocabulary == 0


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("good 1 2\nbad 1\n", "line 2: 1 numbers after the word, where 2 are expected"),
        ("good 1 x\n", "line 1: could not convert"),
        ("good 1 nan\n", "line 1: a number is not finite"),
        ("other 1 2\n", "it has none of the 1 words"),
        ("", "it has none of the 1 words"),
        ("good" + " 1" * 3000, "line 1: 3000 numbers"),
        (b"\xff\xfe 1 2\n", "line 1: 'utf-8' codec"),
        ("x" * 1_000_000, "line 2: 0 numbers|line 1: 0 numbers"),
    ],
)
def test_what_is_not_a_glove_file_is_refused(content: Any, says: str, write: Callable[..., str]) -> None:
    path = write(content)
    with pytest.raises(ValueError, match=says) as raised:
        read_vectors(Path(path), {"good"})
    assert path in str(raised.value)


@given(content=st.binary(max_size=120), at=st.integers(0, len(TWEETS)), packed=st.booleans())
def test_a_damaged_table_is_refused(content: bytes, at: int, packed: bool, tmp_path: Path) -> None:
    folder = tmp_path / "sentiment140"
    folder.mkdir(exist_ok=True)
    (folder / TABLE).unlink(missing_ok=True)
    path = folder / (ARCHIVE if packed else TABLE)
    if packed:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(TABLE, TWEETS)
        valid = path.read_bytes()
    else:
        valid = TWEETS.encode("latin-1")
    for damaged in (content, valid[:at], valid[:at] + content + valid[at + len(content) :]):
        path.write_bytes(damaged)
        reason = ""
        try:
            assert federate("sentiment140", tmp_path, 1, min_tweets=3).sizes.min() >= 2
        except ValueError as error:
            reason = str(error)
        assert not reason or reason.startswith("task sentiment140: ")
        assert len(reason.splitlines()) <= 1


def test_a_download_is_what_was_expected_or_nothing(tmp_path: Path) -> None:
    content = b"abc" * 1000
    source, target = tmp_path / "source", tmp_path / "folder" / "file"
    source.write_bytes(content)
    url, digest = source.as_uri(), hashlib.sha256(content).hexdigest()
    with pytest.raises(ValueError, match="another file than expected"):
        download(url, target, "0" * 64)
    with pytest.raises(OSError, match="missing"):
        download(url + "missing", target, digest)
    assert [*target.parent.iterdir()] == []
    download(url, target, digest)
    assert target.read_bytes() == content
    download("file:///nowhere", target, "")  # it exists
