"""What the models have in common: the check of their inputs, normalisation, dropout and initial weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from fedtide.ground.errors import SettingsError

if TYPE_CHECKING:
    from torch import nn

Norm = Literal["group", "batch", "none"]
"""Normalisation: groups of 16 channels (Wu and He, 2018), which keep examples independent and need no running
statistics; or batches; or none."""


def image_shape(model: str, input_shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return channels, height and width; raise ValueError unless inputs are images of at least 4x4 pixels."""
    if len(input_shape) != 3 or min(input_shape[1:]) < 4:
        raise SettingsError(
            f"model {model}: inputs must be images of at least 4x4 pixels, not of shape {input_shape}; "
            f"use logistic or mlp"
        )
    return input_shape


def normalisation(norm: Norm, channels: int) -> list[nn.Module]:
    """Return the layers that normalise this many channels: one, or none."""
    from torch import nn

    if norm == "batch":
        return [nn.BatchNorm2d(channels)]
    if norm == "group":
        return [nn.GroupNorm(channels // 16 if channels % 16 == 0 else 1, channels)]
    return []


def pooled(*convolutions: nn.Module) -> list[nn.Module]:
    """Return convolutions, each followed by ReLU and max pooling, and what makes vectors of their outputs."""
    from torch import nn

    return [x for layer in convolutions for x in (layer, nn.ReLU(), nn.MaxPool2d(2))] + [nn.Flatten()]


def dropout_layers(probability: float) -> list[nn.Module]:
    """Return a layer of dropout, or none for a probability of 0."""
    from torch import nn

    return [nn.Dropout(probability)] if probability else []


def start_for_relu(module: nn.Module, mode: Literal["fan_in", "fan_out"] = "fan_out") -> None:
    """Draw the weights of a convolution or linear layer as He et al. (2015) do; its biases are 0."""
    from torch import nn

    if isinstance(module, nn.Conv2d | nn.Linear):
        nn.init.kaiming_normal_(module.weight, mode=mode, nonlinearity="relu")
        if module.bias is not None:
            nn.init.zeros_(module.bias)
