"""Causal language models of Hugging Face's transformers, and low-rank adapters of them (LoRA, by peft)."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fedtide.base.allowed import CountOrZero, Range, checked
from fedtide.base.errors import SettingsError
from fedtide.tasks.language import EXTRA, check_place, reason

if TYPE_CHECKING:
    from torch import nn

# Chosen here, as a foreign config.json may name code of the hub; `vmap` takes it, and GPUs round it alike.
ATTENTION = "eager"


@checked
def hf_lm(
    input_shape: tuple[int, ...],
    num_outputs: int,
    *,
    path: str,
    revision: str = "",
    lora: CountOrZero = 0,
    alpha: CountOrZero = 0,
    dropout: Annotated[float, Range(least=0, below=1)] = 0.0,
    layers: str = "",
) -> nn.Module:
    """Causal language model of transformers: all of its weights are trained, or adapters of low rank (LoRA).

    A folder with a config.json and no weights makes random ones. Weights are read from safetensors alone, as
    float32, and no code of a model is run. It needs transformers and peft.

    Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, ICLR 2022.

    Parameters
    ----------
    input_shape, num_outputs
        See `MODELS`; (L,) for L tokens, and how many different ones there are.
    path
        Folder of the model, or its name on the Hugging Face hub.
    revision
        Which commit, branch or tag, on the hub.
    lora
        Rank of the adapters, the only weights that are then trained and sent; 0: all weights are.
    alpha
        Adapters are scaled by alpha / rank; 0: twice the rank.
    dropout
        Share of the adapters' inputs that is dropped in training.
    layers
        Names of the layers with adapters, with `+` between them, or `all-linear`; default: those that peft
        chooses for this kind of model, mostly of the attention.

    Raises
    ------
    ValueError
        There is no such model, or it does not fit the task.
    """
    try:
        import peft
        import transformers
    except ImportError as error:
        raise SettingsError(f"model hf-lm: {error.name} is not installed; {EXTRA}") from None
    from fedtide.tasks.modules import LanguageModel

    where = f"model hf-lm: {path}"
    if len(input_shape) != 1:
        raise SettingsError(f"{where} is for the tokens of a text, not for inputs of shape {input_shape}")
    if not lora and (alpha or dropout or layers):
        raise SettingsError("model hf-lm: alpha, dropout and layers are of adapters: set lora, their rank")
    with quietly(where):
        check_place(path)
        config = transformers.AutoConfig.from_pretrained(
            path, revision=revision or None, trust_remote_code=False
        )
        _check(config, input_shape[0], num_outputs)
        model = _loaded(path, revision, config)
        if lora:
            adapters = peft.LoraConfig(
                task_type="CAUSAL_LM",
                r=lora,
                lora_alpha=alpha or 2 * lora,
                lora_dropout=dropout,
                target_modules=layers if layers == "all-linear" else layers.split("+") if layers else None,
            )
            model = peft.get_peft_model(model, adapters, revision=revision or None)
        _check_causal(model)
    return LanguageModel(model, _has_weights(path), revision)


def _check(config: Any, length: int, vocabulary: int) -> None:
    """Raise SettingsError if a model of this kind does not suit blocks of so many tokens."""
    known = config.get_text_config()
    if known.vocab_size != vocabulary:
        raise SettingsError(
            f"it has {known.vocab_size:,} tokens, and the task {vocabulary:,}: name it as its tokenizer"
        )
    most = getattr(known, "max_position_embeddings", None)
    if most and length > most:
        raise SettingsError(f"it takes at most {most:,} tokens; set length={most} or less in the task")


def _loaded(path: str, revision: str, config: Any) -> Any:
    """Return a model of transformers, with its own weights or with random ones."""
    import torch
    from transformers import AutoModelForCausalLM as Auto

    made = {"trust_remote_code": False, "attn_implementation": ATTENTION}
    folder, has_weights = Path(path), _has_weights(path)
    if (folder / "adapter_config.json").exists():
        raise SettingsError("it has adapters of a model; merge them into it first (merge_and_unload)")
    if not has_weights and (others := [*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.h5")]):
        raise SettingsError(f"its weights are in {others[0].name}; save them as safetensors ")
    if not has_weights or torch.get_default_device().type == "meta":
        model = Auto.from_config(config, dtype=torch.float32, **made)
        model.name_or_path = config._name_or_path = path
        return model
    model, loading = Auto.from_pretrained(
        path,
        config=config,
        revision=revision or None,
        dtype=torch.float32,
        use_safetensors=True,
        output_loading_info=True,
        **made,
    )
    if missing := [*loading["missing_keys"], *loading["mismatched_keys"]]:
        raise SettingsError(f"its files lack {len(missing)} weights, such as {sorted(map(str, missing))[0]}")
    if getattr(model, "_hf_peft_config_loaded", False):
        raise SettingsError("it has adapters of a model; merge them into it first (merge_and_unload)")
    return model


def _has_weights(path: str) -> bool:
    folder = Path(path)
    return not folder.is_dir() or any(folder.glob("*.safetensors"))


def _check_causal(model: Any) -> None:
    """Raise SettingsError if what a model gives for a token depends on the next one, as BERT's does."""
    import torch

    if model.device.type == "meta":  # see `check_fits`
        return
    given, training = torch.tensor([[0, 0], [0, 1]]), model.training
    with torch.no_grad():
        one, other = model.eval()(input_ids=given, use_cache=False).logits[:, 0]
    model.train(training)
    if not torch.allclose(one, other, rtol=1e-3, atol=1e-4):
        raise SettingsError("it is not causal: what it gives for a token depends on those after it")


@contextmanager
def quietly(where: str) -> Iterator[None]:
    """Keep progress bars and advice of the libraries away, and say in one line what they raise."""
    from transformers.utils import logging as library

    bars, level = library.is_progress_bar_enabled(), library.get_verbosity()
    library.disable_progress_bar()
    library.set_verbosity(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Exception as error:  # of HTTP, of JSON, of a model's own kind
        raise SettingsError(f"{where}: {reason(error)}") from None
    finally:
        library.set_verbosity(level)
        if bars:
            library.enable_progress_bar()
