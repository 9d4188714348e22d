"""The settings of a run."""

from fedtide.config.settings import Settings

__all__ = ["Settings"]
