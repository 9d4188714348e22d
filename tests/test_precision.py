"""Layers that round what they multiply: as close as they should be, everywhere the same, or refused."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from clients.gradients.flat import FlatModel
from clients.gradients.oracles import ORACLES
from clients.gradients.precision import _has_bfloat16
from fedtide.base.errors import SettingsError

RUN: dict[str, Any] = {
    "model": "cnn3x3:hidden=8,dropout=0.2",
    "strategy": "fedavg",
    "learning_rate": 0.02,
    "trace": "always",
    "num_clients": 4,
    "num_rounds": 3,
    "local_steps": 3,
    "batch_size": 8,
}
rounding = pytest.mark.skipif(not _has_bfloat16(), reason="this processor does not compute in bfloat16")


@rounding
def test_rounded_layers_train_nearly_the_same_weights(simulate: Callable[..., Any]) -> None:
    """Seven bits more or less in each product; the weights that are kept and sent have all of theirs."""
    exact, *rounded = (simulate(**RUN, precision=p).weights for p in ("float32", "bfloat16", "bfloat16"))
    start = simulate(**RUN | {"learning_rate": 1e-12}).weights
    np.testing.assert_array_equal(*rounded)
    moved = np.linalg.norm(exact - start)
    assert 0 < np.linalg.norm(rounded[0] - exact) < 0.2 * moved  # a gradient is off by 5 %
    assert not np.array_equal(rounded[0], torch.from_numpy(rounded[0]).bfloat16().float().numpy())
    vmapped = simulate(**RUN, precision="bfloat16", cohort="vmap").weights
    assert np.linalg.norm(vmapped - rounded[0]) < 0.2 * moved


@rounding
@pytest.mark.slow
def test_rounded_layers_are_the_same_on_ray(simulate: Callable[..., Any]) -> None:
    here, there = (
        simulate(**RUN, precision="bfloat16", engine=engine).weights for engine in ("inline", "ray")
    )
    np.testing.assert_array_equal(here, there)


@pytest.mark.parametrize("cohort", sorted({*ORACLES} - {"loop", "vmap"}))
def test_gradients_that_are_written_out_are_refused(cohort: str) -> None:
    model = FlatModel(nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.Linear(4, 3)), precision="bfloat16")
    with pytest.raises(SettingsError, match="does not compute in bfloat16; use cohort loop or vmap"):
        ORACLES[cohort](model)


def test_what_cannot_be_rounded_is_refused(
    simulate: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SettingsError, match=r"^precision tf32 is for GPUs: take float32, or bfloat16$"):
        simulate(**RUN, precision="tf32", client_gpus=0.0)
    with pytest.raises(SettingsError, match=r"for models of float32, not torch.float64"):
        FlatModel(nn.Linear(6, 4).double(), precision="bfloat16")
    monkeypatch.setattr("clients.gradients.precision._has_bfloat16", lambda: False)
    with pytest.raises(SettingsError, match=r"this processor does not compute with it; take float32$"):
        simulate(**RUN, precision="bfloat16", client_gpus=0.0)
