"""How the site is built: `sphinx-build -W -n -b html docs docs/_build`."""

from __future__ import annotations

import sys
from importlib.metadata import version as version_of
from pathlib import Path

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent))  # the extensions below are modules of this folder

project = "transfer_async"
author = "the authors of transfer_async"
version = release = version_of("transfer_async")
language = "en"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "_drawings",
    "_reference",
    "_commands",
]
exclude_patterns = ["_build"]
nitpicky = True

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_default_options = {"members": True}
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
default_role = "py:obj"  # for single backticks in a docstring
python_use_unqualified_type_names = True
maximum_signature_line_length = 80
add_module_names = False

linkcheck_ignore = [r"https?://"]  # only the pages' own links are checked: the build needs no network

copybutton_prompt_text = "$ "  # a prompt and the output below it are not copied
copybutton_selector = "div:not(.highlight-text) > div.highlight > pre"  # output needs no button

html_theme = "furo"
html_title = "transfer_async"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {"navigation_with_keys": True}
html_copy_source = html_show_sourcelink = html_show_copyright = False
pygments_style, pygments_dark_style = "default", "github-dark"


def setup(app: Sphinx) -> None:
    """Show CSV as plain text: Pygments has no lexer for it."""
    app.add_lexer("csv", TextLexer)
