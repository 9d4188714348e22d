"""A small GPT that has read tweets, and clients of two kinds: roles of plays by Shakespeare, and more tweets.

    python experiments/language_model.py data lm tweets.txt   # reads data/shakespeare, writes lm
    python sim.py --config experiments/language.toml          # in the folder with lm

The first clients are roles. Tokens are pairs of bytes (BPE), learnt from what the model reads; the tweets of
clients are not among it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset

sys.path.insert(0, str(Path(__file__).parents[1]))

from fedtide.base.allowed import Share
from fedtide.tasks.language import Blocks, Tokenizer, next_tokens
from fedtide.tasks.shakespeare import read_plays
from traces.rates import Numbers, RateTrace

END = "<|endoftext|>"
LINES = 8  # of a role, together in a text


@dataclass(frozen=True, kw_only=True)
class RareRoles(RateTrace, name="rare-roles"):
    """The first half of the clients, who are roles, is online at a lower rate than the other half."""

    roles: Share = 0.05
    tweets: Share = 0.8

    @property
    def rates(self) -> Numbers:
        """Each client's rate, shape (N,)."""
        return np.where(np.arange(self.num_clients) * 2 < self.num_clients, self.roles, self.tweets)


def main() -> None:
    """Write both."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data_dir", type=Path, help="directory of the plays (shakespeare/*.xml in it)")
    parser.add_argument("folder", type=Path, help="where to write gpt and messages")
    parser.add_argument("read", type=Path, help="tweets, a line each")
    parser.add_argument("--steps", type=int, default=1500, help="of 32 blocks each (1500)")
    parser.add_argument("--length", type=int, default=64, help="tokens of a block (64)")
    parser.add_argument("--width", type=int, default=128, help="of the GPT's vectors (128)")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=1024)
    parser.add_argument("--clients", type=int, default=20, help="of each kind (20)")
    parser.add_argument("--characters", type=int, default=10_000, help="of each client (10,000)")
    given = parser.parse_args()
    torch.manual_seed(0)
    tweets = iter(given.read.read_text(encoding="utf-8").splitlines())
    roles = [
        (f"{role} in {play}", iter(["\n".join(lines[i : i + LINES]) for i in range(0, len(lines), LINES)]))
        for (play, role), lines in sorted(read_plays(given.data_dir).items())
        if sum(map(len, lines)) >= given.characters
    ]
    chosen = np.linspace(0, len(roles) - 1, given.clients).astype(int)  # of all plays
    rows = [
        {"client": client, "kind": kind, "said": text}
        for kind, clients in {
            "role": [roles[i] for i in chosen],
            "tweets": [(f"tweets {i:02}", tweets) for i in range(given.clients)],
        }.items()
        for client, texts in clients
        for text in first(texts, given.characters)
    ]
    Dataset.from_list(rows).save_to_disk(given.folder / "messages")
    model = pretrained(given.folder / "gpt", [*tweets], given)
    print(f"{sum(p.numel() for p in model.parameters()):,} weights, {len(rows)} messages")


def first(texts: Iterator[str], characters: int) -> Iterator[str]:
    """Take texts until they have so many characters."""
    while characters > 0:
        text = next(texts)
        characters -= len(text)
        yield text


def pretrained(folder: Path, texts: list[str], given: argparse.Namespace) -> torch.nn.Module:
    """Train a GPT and its tokenizer on texts, with AdamW and a rate that falls to 0; write both."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import AutoModelForCausalLM, GPT2Config, PreTrainedTokenizerFast

    bytes_of = ByteLevelBPETokenizer()
    bytes_of.train_from_iterator(texts, given.vocabulary, special_tokens=[END], show_progress=False)
    PreTrainedTokenizerFast(tokenizer_object=bytes_of._tokenizer, eos_token=END).save_pretrained(folder)
    config = GPT2Config(
        vocab_size=given.vocabulary,
        n_positions=given.length,
        n_embd=given.width,
        n_layer=given.layers,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder)  # so that `Tokenizer` knows the number of tokens
    tokens = Tokenizer(str(folder)).documents(texts)
    x, y = map(
        torch.from_numpy, next_tokens(Blocks.joined([Blocks.cut(own, given.length) for own in tokens]))
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=given.steps)
    for step in range(1, given.steps + 1):
        rows = torch.randint(len(x), (32,))
        logits = model(input_ids=x[rows]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), y[rows].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0 or step == given.steps:
            print(f"step {step}: perplexity {loss.exp():.1f}", flush=True)
    model.save_pretrained(folder)
    return model


if __name__ == "__main__":
    main()
