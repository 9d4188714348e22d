"""Causal language modelling: documents as blocks of tokens, and the loss of every next token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtide.base.allowed import Checked, Count
from fedtide.base.errors import SettingsError, described, why
from fedtide.base.files import read_text
from fedtide.base.numbers import exact
from fedtide.tasks.criteria import ACCURACY, IGNORED, Criterion, Metric
from fedtide.tasks.data import TEST_SHARE, Examples, FederatedData, PartitionedData
from fedtide.tasks.dataset import choose_clients, consecutive
from fedtide.tasks.partition import PartitionFn
from fedtide.tasks.sizes import SizesFn

if TYPE_CHECKING:
    from torch import Tensor

EXTRA = "pip install transformers peft"
OUTPUTS_AT_ONCE = 1 << 24  # logits of a batch of an evaluation (64 MB)
MAX_BYTES = 1 << 30  # of a file
TEXTS = "[!.]*.txt"  # no hidden files, which systems and editors leave
METRICS = ("perplexity",)  # beside the accuracy


class NextToken(Criterion):
    """Cross-entropy of the next token, and accuracy: means over all tokens that are no padding.

    Outputs have shape (n, L, V), targets (n, L), of which those that are `IGNORED` are padding. L and V, the
    `length` and the `vocabulary`, limit the memory of an evaluation.
    """

    metric: ClassVar[Metric] = ACCURACY

    def __init__(self, length: int, vocabulary: int) -> None:
        at_once = OUTPUTS_AT_ONCE // (length * vocabulary)
        self.evaluated_at_once = min(max(1, at_once), Criterion.evaluated_at_once)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """See `Criterion.losses`; the mean over an example's tokens."""
        return _token_losses(outputs, targets).sum(1) / self.counts(targets)

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """See `Criterion.scores`; the share of an example's tokens that are the likeliest."""
        return (outputs.argmax(-1) == targets).sum(1).to(outputs.dtype) / self.counts(targets)

    def counts(self, targets: Tensor) -> Tensor:
        """See `Criterion.counts`: the tokens of each example."""
        return (targets != IGNORED).sum(1)

    def total(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """See `Criterion.total`; the sum over all tokens."""
        return _token_losses(outputs, targets).sum()

    def check(self, targets: NDArray[Any], num_outputs: int) -> None:
        """Raise a ValueError if a target is neither a token nor padding."""
        tokens = targets[targets != IGNORED]
        least, most = (tokens.min(), tokens.max()) if tokens.size else (0, 0)
        if least < 0 or most >= num_outputs:
            raise SettingsError(f"tokens {least} to {most} where the model has {num_outputs}")


def _token_losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the loss of each token, shape (n, L), 0 of padding."""
    from torch.nn import functional

    losses = functional.cross_entropy(
        outputs.flatten(0, -2), targets.flatten(), reduction="none", ignore_index=IGNORED
    )
    return losses.view(targets.shape)


def next_tokens(stored: Examples) -> Examples:
    """Make examples of blocks: return the first L tokens, and those that follow each of them, both (n, L).

    `stored` are L + 1 tokens, and how many of them are there. Padding comes last: what a causal model gives
    for the tokens before does not depend on it.
    """
    tokens, there = stored[0].astype(np.int64), stored[1]
    targets = tokens[:, 1:].copy()
    targets[np.arange(1, tokens.shape[1]) >= there[:, None]] = IGNORED
    return tokens[:, :-1].copy(), targets


class Blocks(NamedTuple):
    """Blocks of L + 1 tokens, shape (n, L + 1), padded with 0 at the end, and how many are there, (n,)."""

    tokens: NDArray[np.int32]
    there: NDArray[np.int32]

    @classmethod
    def cut(cls, tokens: NDArray[np.int32], length: int) -> Blocks:
        """Cut one sequence into blocks, the last token of each is also the first one of the next.

        So each token but the first is predicted once. A sequence of fewer than two has no block.
        """
        starts = np.arange(0, len(tokens) - 1, length)
        padded = np.pad(tokens, (0, length))
        there = np.minimum(len(tokens) - starts, length + 1)
        return cls(padded[starts[:, None] + np.arange(length + 1)], there.astype(np.int32))

    @classmethod
    def joined(cls, parts: Sequence[Blocks]) -> Blocks:
        """Return the blocks of all parts, of which there is at least one."""
        return cls(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


class Tokenizer:
    """The tokenizer of a language model, in a folder or of the Hugging Face hub.

    Its `vocabulary` is the number of tokens of the model, which may have more than its tokenizer.
    SettingsError: there is none, or it would need code of its own.
    """

    def __init__(self, path: str) -> None:
        try:
            from transformers import AutoConfig, AutoTokenizer
        except ImportError:
            raise SettingsError(f"tokenizer {path}: transformers is not installed; {EXTRA}") from None
        try:
            check_place(path)
            self._tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
            model = AutoConfig.from_pretrained(path, trust_remote_code=False)
            self.vocabulary = int(model.get_text_config().vocab_size)
        except Exception as error:  # of HTTP, of JSON, of the tokenizer's own kind
            raise SettingsError(f"tokenizer {path}: {reason(error)}") from None

    def documents(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        """Return the tokens of each text, with those of the tokenizer at its ends, and one that ends it."""
        end = self._tokenizer.eos_token_id
        found = self._tokenizer([*texts], verbose=False)["input_ids"] if texts else []
        ended = (own if end is None or own[-1:] == [end] else [*own, end] for own in found)
        return [np.array(own, np.int32) for own in ended]


def check_place(path: str) -> None:
    """Raise SettingsError for a folder that does not exist, and cannot be a name on the hub."""
    if not Path(path).is_dir() and (path.startswith((".", "/", "~")) or path.count("/") > 1):
        raise SettingsError("there is no such folder")


def reason(error: Exception) -> str:
    """Return in one line why something of transformers cannot be loaded."""
    if "trust_remote_code" in str(error):
        return "it has code of its own, which is never run"
    text = str(error) if isinstance(error, OSError | ValueError) else described(error)
    return " ".join(text.split())[:300]


def federated(
    train: Blocks,
    test: Blocks,
    parts: list[NDArray[np.intp]],
    vocabulary: int,
    holdout: float,
    seed: int,
    names: Sequence[str] = (),
    groups: tuple[str, ...] = (),
) -> PartitionedData:
    """Return blocks of tokens as clients' examples, given the rows of each client; see `PartitionedData`."""
    length = train.tokens.shape[1] - 1
    return PartitionedData.divide(
        train,
        test,
        *(vocabulary, parts, holdout, seed, NextToken(length, vocabulary)),
        client_names=names,
        derive=next_tokens,
        vocabulary=vocabulary,
        client_groups=groups,
    )


@dataclass(frozen=True, kw_only=True)
class TextFiles(Checked):
    """Next token in a client's own texts: a file NAME.txt for each client, or a folder of such files.

    The texts become tokens of a language model and are cut into blocks, which are the examples. The last
    fifth of each client's tokens is for testing. Of more clients than the run has, the seed draws as many.

    Attributes
    ----------
    folder
        Where the files NAME.txt, in UTF-8, or the folders NAME/*.txt are.
    tokenizer
        Folder of the language model, or its name on the Hugging Face hub.
    length
        Tokens of a block, which are predicted from those before them in the block.
    """

    folder: str
    tokenizer: str
    length: Count = 128

    default_partition: ClassVar[None] = None
    metrics: ClassVar[Sequence[str]] = METRICS
    clients_are_apart: ClassVar[bool] = True

    @property
    def default_model(self) -> str:
        return f"hf-lm:path={self.tokenizer}"

    def federate(
        self, num_clients: int, partition: PartitionFn | None, sizes: SizesFn, holdout: float, seed: int
    ) -> FederatedData:
        files = self._files()
        there = sorted(files, key=float if exact([*files]) else str)
        names = choose_clients("text", f"clients in {self.folder}", there, num_clients, sizes, seed)
        tokenizer, train, test = Tokenizer(self.tokenizer), list[Blocks](), list[Blocks]()
        for name in names:
            tokens = np.concatenate(tokenizer.documents([_text(file) for file in files[name]]))
            cut = round((1 - TEST_SHARE) * len(tokens))
            train.append(Blocks.cut(tokens[:cut], self.length))
            test.append(Blocks.cut(tokens[cut:], self.length))
        for split, blocks in (("train", train), ("test", test)):
            if not any(len(part.there) for part in blocks):
                raise SettingsError(f"task text: the texts in {self.folder} are too short to {split} on")
        joined = Blocks.joined(train), Blocks.joined(test)
        parts = consecutive(len(own.there) for own in train)
        return federated(*joined, parts, tokenizer.vocabulary, holdout, seed, names)

    def _files(self) -> dict[str, list[Path]]:
        """Return the files of each client, by its name."""
        folder = Path(self.folder)
        found = {file.stem: [file] for file in folder.glob(TEXTS)}
        for own in (path for path in folder.glob("[!.]*") if path.is_dir()):
            if files := sorted(own.glob(TEXTS)):
                found.setdefault(own.name, []).extend(files)
        if not found:
            raise SettingsError(f"task text: there are no files *.txt in {folder}, nor in folders there")
        return found


def _text(file: Path) -> str:
    try:
        return read_text(file, MAX_BYTES)
    except (OSError, ValueError) as error:
        raise SettingsError(f"{file}: {why(error)}") from None
