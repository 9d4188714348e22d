"""What a run is told: the settings, and the little language in which methods, tasks and traces are named."""

from flexfl.config.settings import Settings
from flexfl.config.specs import Spec, bind, build, options_of, parse, parse_options

__all__ = ["Settings", "Spec", "bind", "build", "options_of", "parse", "parse_options"]
