"""Configuration of Sphinx: python -m sphinx -W --keep-going docs docs/_build."""

import inspect

from pathlib import Path

import pymc_dp

project = "pymc_dp"
author = "The pymc_dp developers"
copyright = "The pymc_dp developers"
version = release = pymc_dp.__version__

extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
]
# No intersphinx: the build needs no network, and a warning is an error.

exclude_patterns = ["_build", "jupyter_execute"]
templates_path = ["_templates"]

myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # notebooks are shown with the outputs they are stored with

autosummary_generate = True
autodoc_preserve_defaults = True  # as they are written
autodoc_typehints = "none"  # numpydoc docstrings name the types
python_maximum_signature_line_length = 88
numpydoc_show_class_members = False  # the template of a class lists its own

html_theme = "pymc_sphinx_theme"
html_title = "pymc_dp"
html_show_sourcelink = False
html_theme_options = {
    "google_analytics_id": "",  # the theme otherwise counts visitors for PyMC's site
    "navbar_end": [],
    "secondary_sidebar_items": ["page-toc"],
}


def copy_notebooks():
    """Copy the examples into the folder of the pages, since Sphinx reads no other one.

    Links from examples to pages are those of the repository, ``../docs/page.md``.
    """
    here = Path(__file__).resolve().parent
    originals = {path.name: path for path in (here.parent / "examples").glob("*.ipynb")}
    (here / "examples").mkdir(exist_ok=True)
    for copy in (here / "examples").glob("*.ipynb"):
        if copy.name not in originals:
            copy.unlink()
    for name, original in originals.items():
        copy, text = here / "examples" / name, original.read_text().replace("](../docs/", "](../")
        if not copy.exists() or copy.read_text() != text:  # only changed notebooks are built again
            copy.write_text(text)


def signature_of_steps(app, what, name, obj, options, signature, return_annotation):
    """Show the arguments of a step method, which PyMC's ``__new__`` hides."""
    if what == "class" and signature == "(*args, **kwargs)":
        own = inspect.signature(obj.__init__)
        parameters = [p.replace(annotation=p.empty) for p in own.parameters.values()][1:]
        return str(own.replace(parameters=parameters, return_annotation=own.empty)), None
    # What takes names only shows PyMC's users who pass a model by position what to write instead.
    return (signature or "").replace("*unnamed", "*") or None, return_annotation


def setup(app):
    """Called by Sphinx."""
    copy_notebooks()
    app.connect("autodoc-process-signature", signature_of_steps)
