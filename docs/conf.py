"""Configuration of Sphinx: python -m sphinx -W --keep-going docs docs/_build."""

import inspect
import sys

from pathlib import Path

import pymc_dp

sys.path.insert(0, str(Path(__file__).resolve().parent / "_ext"))

project = "pymc_dp"
author = "The pymc_dp developers"
copyright = "The pymc_dp developers"
version = release = pymc_dp.__version__.partition("+")[0]

extensions = [
    "myst_nb",
    "notebooks",  # in docs/_ext
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.mathjax",
    "sphinx_copybutton",
    "sphinx_design",
]

exclude_patterns = ["_build", "jupyter_execute"]
templates_path = ["_templates"]

myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # notebooks are shown with the outputs they are stored with
copybutton_prompt_text = r">>> |\.\.\. |\$ "  # is not copied
copybutton_prompt_is_regexp = True
copybutton_exclude = ".linenos, .gp, .go"

autosummary_generate = True
autodoc_preserve_defaults = True  # as they are written
autodoc_typehints = "none"  # numpydoc docstrings name the types
python_maximum_signature_line_length = 88
numpydoc_show_class_members = False  # the template of a class lists its own

# The build needs no network: docs/inventories has, as text, those names of other projects that
# our pages use. Add a line there to link one more.
other_projects = {
    "arviz": "https://python.arviz.org/en/v0.23.4",
    "numpy": "https://numpy.org/doc/stable",
    "pymc": "https://www.pymc.io/projects/docs/en/stable",
    "pytensor": "https://pytensor.readthedocs.io/en/latest",
    "python": "https://docs.python.org/3",
    "xarray": "https://docs.xarray.dev/en/stable",
}
intersphinx_mapping = {
    name: (address, f"inventories/{name}.inv") for name, address in other_projects.items()
}

# Types of arguments and results are links.
numpydoc_xref_param_type = True
numpydoc_xref_ignore = "all"  # other words than these
numpydoc_xref_aliases = {
    **{name: f":obj:`{name} <pymc_dp.{name}>`" for name in pymc_dp.__all__},
    "Generator": ":class:`~numpy.random.Generator`",
    "TensorVariable": ":class:`~pytensor.tensor.TensorVariable`",
    "array": ":class:`array <numpy.ndarray>`",
    "array_like": ":data:`array_like <numpy.typing.ArrayLike>`",
    "bool": ":class:`bool`",
    "generator": "generator",
    "iterable": ":class:`iterable <collections.abc.Iterable>`",
    "mapping": ":class:`mapping <collections.abc.Mapping>`",
    "ndarray": ":class:`~numpy.ndarray`",
    "path-like": ":class:`path-like <os.PathLike>`",
    "pm.Model": ":class:`pm.Model <pymc.Model>`",
    "scalar": "scalar",
    "sequence": ":class:`sequence <collections.abc.Sequence>`",
    **{
        name: f":class:`{name}`"
        for name in (
            "arviz.InferenceData",
            "numpy.ndarray",
            "numpy.random.Generator",
            "pymc.Model",
            "xarray.DataTree",
            "xarray.Dataset",
        )
    },
}

html_theme = "pymc_sphinx_theme"
html_title = "pymc_dp"
html_show_sourcelink = False
html_css_files = ["pages.css"]
html_sidebars = {"index": []}
html_static_path = ["_static"]
html_theme_options = {
    "google_analytics_id": "",  # the theme otherwise counts visitors for PyMC's site
    "icon_links": [
        {
            "name": "GitHub",
            "url": "https://github.com/pymc-dp/pymc-dp",
            "icon": "fa-brands fa-github",
        }
    ],
    "logo": {"text": "pymc_dp"},
    "navbar_end": ["theme-switcher", "navbar-icon-links"],
    "pygments_dark_style": "github-dark",
    "secondary_sidebar_items": ["page-toc"],
    "show_prev_next": True,
    "use_search_override": False,  # the search of PyMC's site does not know these pages
}


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
    app.connect("autodoc-process-signature", signature_of_steps)
