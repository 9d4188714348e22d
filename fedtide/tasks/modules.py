"""PyTorch modules that models are made of."""

from __future__ import annotations

import copy
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedtide.base.errors import SettingsError

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel


class Block(nn.Module):
    """Convolutions whose outputs are added to the inputs, which `shortcut` converts to their shape."""

    def __init__(self, main: list[nn.Module], shortcut: list[nn.Module]) -> None:
        super().__init__()
        self.main, self.shortcut = nn.Sequential(*main), nn.Sequential(*shortcut)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.main(x) + self.shortcut(x))


class Recurrent(nn.Module):
    """Vectors of characters or words, an LSTM over them, and a linear layer on its last output.

    `vectors` maps inputs to vectors, shape (n, L, D).
    """

    def __init__(self, vectors: nn.Module, memory: nn.LSTM, num_outputs: int) -> None:
        super().__init__()
        self.vectors, self.memory = vectors, memory
        self.outputs = nn.Linear(memory.hidden_size, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.memory(self.vectors(x))
        outputs: Tensor = self.outputs(states[:, -1])
        return outputs


class LanguageModel(nn.Module):
    """A causal language model of transformers, or one with adapters of peft, as a map of tokens to logits.

    Its parts that have only constants, such as frequencies of rotary embeddings, become frozen ones, which
    are not sent: that is what parts with weights are of which none is trained. `from_files` says that files
    give its frozen weights back, so that run folders need not hold them; `revision` is of those on the hub.
    """

    def __init__(self, model: PreTrainedModel | PeftModel, from_files: bool, revision: str = "") -> None:
        super().__init__()
        self.model: Any = model
        self.from_files, self.revision = from_files, revision
        self.has_adapters = hasattr(model, "merge_and_unload")
        for part in model.modules():
            if next(part.buffers(), None) is not None and next(part.parameters(), None) is None:
                part.register_parameter("frozen", nn.Parameter(torch.empty(0), requires_grad=False))

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of the token after each of x, (n, L): shape (n, L, V).

        No mask is needed: padding comes last, and no token before it sees it.
        """
        logits: Tensor = self.model(input_ids=x, use_cache=False).logits
        return logits

    def save_merged(self, folder: Path) -> None:
        """Write the model, with its adapters merged into it, and its tokenizer as transformers has them."""
        from transformers import AutoTokenizer

        model = copy.deepcopy(self.model)
        whole = model.merge_and_unload() if self.has_adapters else model
        for part in whole.modules():
            part._parameters.pop("frozen", None)
        whole.save_pretrained(folder)
        with suppress(OSError, ValueError):  # it has none
            found = AutoTokenizer.from_pretrained(
                self.model.name_or_path, revision=self.revision or None, trust_remote_code=False
            )
            found.save_pretrained(folder)

    def save_adapters(self, folder: Path) -> None:
        """Write the adapters as peft has them; SettingsError: there are none."""
        if not self.has_adapters:
            raise SettingsError("the model has no adapters, as lora is 0; use --to transformers")
        self.model.save_pretrained(folder)
