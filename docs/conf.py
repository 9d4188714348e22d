"""The documentation site: `sphinx-build -W docs site`."""

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE / "_ext")]

os.environ["PYTHONPATH"] = str(HERE.parent)  # of the notebooks' kernel

project = "fedtide"
author = "the fedtide authors"
html_title = "fedtide"
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.viewcode",
    "numpydoc",
    "beside",
    "mathml",
    "tables",
]
html_theme = "furo"
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_css_files = ["math.css"]
html_copy_source = False  # of pages in experiments/, Sphinx would make wrong names
html_show_copyright = False
exclude_patterns = ["methods/README.md"]
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 3

default_role = "code"  # docstrings name code in single backticks
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
numpydoc_show_class_members = False

# The pages in notebooks/ are executed, each in a folder of its own; an error in one ends the build.
nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 600
nb_merge_streams = True
