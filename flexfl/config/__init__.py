"""The settings of a run, and the specs that name methods, tasks and traces."""

from flexfl.config.settings import Settings
from flexfl.config.specs import Spec, bind, build, options_of, parse, parse_options

__all__ = ["Settings", "Spec", "bind", "build", "options_of", "parse", "parse_options"]
