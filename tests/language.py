"""Tiny language models and texts for tests: folders as transformers' `save_pretrained` writes them."""

from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers")
from tokenizers import Regex, Tokenizer, models, pre_tokenizers  # noqa: E402

CHARACTERS = "\n !,.?" + "".join(map(chr, (*range(65, 91), *range(97, 123))))
TOKENS = {"<end>": 0} | {character: k for k, character in enumerate(CHARACTERS, start=1)}
SIZE = {"vocab_size": len(TOKENS), "bos_token_id": 0, "eos_token_id": 0}
CONFIGS = {
    "gpt2": transformers.GPT2Config(
        n_positions=17, n_embd=16, n_layer=2, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, **SIZE
    ),
    "llama": transformers.LlamaConfig(
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=17,
        tie_word_embeddings=True,
        **SIZE,
    ),
}
SPEECHES = (
    "To be, or not to be? ",
    "That is the question. ",
    "Words, words, words. ",
    "The rest is silence! ",
)


def write_model(folder: Path, kind: str, weights: bool = True) -> Path:
    """Write a model of random weights, and a tokenizer of characters; return the folder."""
    config = CONFIGS[kind]
    if weights:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(1)
            transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    else:
        config.save_pretrained(folder)
    characters = Tokenizer(models.WordLevel(TOKENS, unk_token="<end>"))
    characters.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    transformers.PreTrainedTokenizerFast(tokenizer_object=characters, eos_token="<end>").save_pretrained(
        folder
    )
    return folder


def write_texts(folder: Path, clients: int = 4) -> Path:
    """Write a file for each client, of different lengths; return the folder."""
    folder.mkdir()
    for k in range(clients):
        (folder / f"role{k}.txt").write_text(SPEECHES[k % 4] * (3 + 2 * k) + "!" * k, encoding="utf-8")
    return folder
