"""The layers on top of a strategy, from their specs."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from fedtide.ground import dotted
from fedtide.ground.errors import SettingsError
from fedtide.ground.specs import Part
from strategies import Layer
from strategies.core.layers import LayerFactory
from strategies.parts.amplification import Amplification


def layers_of(server_opt: Part | None, amplify: str) -> tuple[LayerFactory, ...]:
    """Return the layers, the lowest one first; ValueError if a value is not allowed.

    `server_opt` is a server optimiser, and `amplify` is `PERIOD,FACTOR`, or empty.
    """
    layers: list[LayerFactory] = []
    if server_opt:
        layers.append(partial(server_opt.factory, **server_opt.options))
    if amplify:
        try:
            period, factor = (kind(text) for kind, text in zip((int, float), amplify.split(","), strict=True))
        except ValueError:
            raise SettingsError(f"amplify {amplify!r} is not PERIOD,FACTOR such as 10,2.0") from None
        if not 1 <= factor < math.inf:
            raise SettingsError(f"amplify: the factor is {factor}; it must be at least 1")
        layers.append(partial(Amplification, period=int(period), factor=factor))
    for layer in layers:
        made = layer(np.zeros(0))  # checks the values
        if server_opt:
            dotted.expect("server-opt", server_opt.name, made, Layer, "derive it from ServerOptimizer")
    return tuple(layers)
