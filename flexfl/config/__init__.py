"""The settings of a run."""

from flexfl.config.settings import Settings

__all__ = ["Settings"]
