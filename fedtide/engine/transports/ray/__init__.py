"""Clients simulated by Ray actors: placement, calls, faults, and shared memory for their replies."""

from importlib.util import find_spec

from fedtide.base.errors import SettingsError


def require_ray(otherwise: str) -> None:
    """Raise SettingsError, which says what to do otherwise, if Ray is not installed."""
    if find_spec("ray") is None:
        raise SettingsError(f"Ray is not installed: pip install ray, or {otherwise}")
