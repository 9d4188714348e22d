"""What is checked of settings before data are loaded, without PyTorch."""

from __future__ import annotations

from importlib.util import find_spec

from flexfl.config import Settings
from flexfl.engine.memory_check import check_clients
from flexfl.engine.named import check_names, check_task


def check(settings: Settings, virtual: bool = True) -> None:
    """Check the settings of a run, as far as that takes no time.

    Parameters
    ----------
    settings
        Of the run.
    virtual
        Whether clients are simulated by one of our engines.

    Raises
    ------
    ValueError
        The settings are invalid or do not fit together; the message says why.
    """
    check_names(settings)
    if virtual and settings.engine == "ray":
        require_ray("take --engine inline")
    check_task(settings)
    check_clients(settings.num_clients)


def require_ray(otherwise: str) -> None:
    """Raise ValueError, which says what to do otherwise, where Ray is not installed."""
    if find_spec("ray") is None:
        raise ValueError(f"Ray is not installed: pip install ray, or {otherwise}")
