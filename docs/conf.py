"""Sphinx builds the documentation from this: `make docs`."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent)]

import gids  # noqa: E402 - the package of this tree, whatever is installed

project = "gids"
author = "the gids authors"
project_copyright = "2026, the gids authors"
version = release = gids.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "argparse_reference",
    "kernel_table",
]
exclude_patterns = ["examples/*.md", "requirements.txt"]
source_suffix = {".md": "markdown"}
# A page that does not exist yet (a guide that is being written) is no error; a page that no list names is one.
suppress_warnings = ["toc.empty_glob"]

myst_enable_extensions = ["deflist", "colon_fence"]
myst_heading_anchors = 3
# Links from pages to files of the repository lead to GitHub's pages of them only where they are read there; in the site
# they are copied as downloads.
myst_all_links_external = False

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings have shape, dtype and meaning
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True

smartquotes = False  # "--rows" is an option, not a dash

html_theme = "furo"
html_title = f"gids {release}"
html_static_path = ["_static"]
html_css_files = ["gids.css"]
html_copy_source = False
html_show_sphinx = False
# No fonts, scripts or badges from elsewhere: the pages open without network.
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True
