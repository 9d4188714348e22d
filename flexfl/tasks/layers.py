"""What the models have in common: normalisation, initial weights, and checks of their options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import nn


def image_shape(model: str, input_shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return channels, height and width; raise ValueError if the inputs are no images of 4x4 pixels."""
    if len(input_shape) != 3 or min(input_shape[1:]) < 4:
        raise ValueError(
            f"model {model}: inputs must be images of at least 4x4 pixels, not of shape {input_shape}; "
            f"use logistic or mlp"
        )
    return input_shape


def whole_numbers(what: str, text: str) -> list[int]:
    """Return the numbers of a text such as ``256+64``.

    Raises
    ------
    ValueError
        One of them is no whole number from 1 to 1,000,000.
    """
    parts = [part.strip() for part in text.split("+")]
    if not all(part.isascii() and part.isdigit() and 1 <= int(part[:8]) <= 10**6 for part in parts):
        raise ValueError(f"{what} must be whole numbers of at least 1 with + between them, not {text!r}")
    return [int(part) for part in parts]


def share(what: str, value: float) -> float:
    """Return a number in [0, 1), such as a probability of dropout; raise ValueError if it is not."""
    if not 0 <= value < 1:
        raise ValueError(f"{what} must be in [0, 1), not {value:g}")
    return value


def normalisation(what: str, norm: str, channels: int) -> list[nn.Module]:
    """Return the layers that normalise so many channels: one, or none.

    Parameters
    ----------
    what : str
        The option, for messages.
    norm : str
        ``batch``; ``group``: groups of 16 channels (Wu and He, 2018), so that examples stay independent and
        nothing but weights has to be averaged; or ``none``.
    channels : int
        How many there are.

    Raises
    ------
    ValueError
        `norm` is something else.
    """
    from torch import nn

    if norm == "batch":
        return [nn.BatchNorm2d(channels)]
    if norm == "group":
        return [nn.GroupNorm(channels // 16 if channels % 16 == 0 else 1, channels)]
    if norm == "none":
        return []
    raise ValueError(f"{what} must be batch, group or none, not {norm!r}")


def start_for_relu(module: nn.Module, mode: Literal["fan_in", "fan_out"] = "fan_out") -> None:
    """Draw the weights of a convolution or linear layer as He et al. (2015) do; its biases are 0."""
    from torch import nn

    if isinstance(module, nn.Conv2d | nn.Linear):
        nn.init.kaiming_normal_(module.weight, mode=mode, nonlinearity="relu")
        if module.bias is not None:
            nn.init.zeros_(module.bias)
