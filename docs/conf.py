"""Sphinx settings of the site, which `make docs` builds from pages and code."""

import pathlib
import sys

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import site_events  # noqa: E402

from albert_tf import __version__  # noqa: E402

project = "albert_tf"
version = release = __version__
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
templates_path: list[str] = []
exclude_patterns = ["conf.py"]

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4  # anchors for headings, as on a code host
nb_merge_streams = True
nb_execution_mode = "off"  # show the stored outputs
nb_ipywidgets_js: dict = {}  # the default loads a script from the web

toc_object_entries_show_parents = "hide"
default_role = "code"  # one backtick, as in the docstrings
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the signature contains the types
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 70
napoleon_use_rtype = False

html_theme = "furo"
html_title = f"albert_tf {__version__}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = False


def setup(app):
    """Connect the functions that generate and check pages to Sphinx events."""
    app.connect("builder-inited", site_events.write_generated_pages)
    app.connect("autodoc-process-signature", site_events.signature_of_init)
    app.connect("doctree-read", site_events.put_languages_side_by_side)
    app.connect("build-finished", site_events.require_offline_pages)
