"""The layers on top of a strategy, from their specs."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from fedtide.ground import dotted
from fedtide.ground.errors import SettingsError
from fedtide.ground.specs import bind
from strategies.core import Layer, LayerFactory
from strategies.parts.amplification import Amplification
from strategies.parts.server_optimizers import SERVER_OPTIMIZERS


def layers_of(server_opt: str, amplify: str) -> tuple[LayerFactory, ...]:
    """Return the layers, the lowest one first; ValueError if a text or a value in it is not allowed.

    `server_opt` is a spec such as `adam:rate=0.1`, `amplify` is `PERIOD,FACTOR`; empty: there is none.
    """
    layers: list[LayerFactory] = []
    if server_opt:
        optimizer = bind("server-opt", SERVER_OPTIMIZERS, server_opt)
        layers.append(partial(optimizer.factory, **optimizer.options))
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
        dotted.expect("server-opt", server_opt, made, Layer, "derive it from ServerOptimizer")
    return tuple(layers)
