"""The front door: names, documentation, examples in docstrings, what an import costs."""

import doctest
import importlib
import inspect
import pkgutil
import re

from pathlib import Path

import numpy as np
import pymc as pm
import pytest

from numpydoc.docscrape import NumpyDocString

import pymc_dp

MODULES = sorted(m.name for m in pkgutil.walk_packages(pymc_dp.__path__, "pymc_dp."))

PLACES = [pymc_dp, *(getattr(pymc_dp, n) for n in ("checks", "comparison", "data", "errors", "model", "planning", "plots", "privacy", "privatized", "queries", "scores", "sites", "steps"))]  # fmt: skip


@pytest.mark.parametrize("place", PLACES, ids=lambda m: m.__name__)
def test_public_names_resolve_and_are_documented(place):
    assert inspect.getdoc(place) and len(place.__all__) <= 36
    for name in place.__all__:
        assert inspect.getdoc(getattr(place, name)), name


def test_unknown_names():
    with pytest.raises(AttributeError, match="nonsense"):
        _ = pymc_dp.nonsense


#: Examples that compile a model of their own take seconds.
COMPILED = ("checks", "comparison", "plans", "planning", "publishing", "sampling", "scores", "steps.hmc", "steps.sghmc")  # fmt: skip


@pytest.mark.parametrize(
    "module",
    [
        pytest.param(m, marks=pytest.mark.slow if any(c in m for c in COMPILED) else [])
        for m in MODULES
    ],
)
def test_examples_in_docstrings(module):
    """With the names that all examples may use, and no other names of their module."""
    found = importlib.import_module(module)
    failed, _ = doctest.testmod(found, globs={"np": np, "pm": pm, "dp": pymc_dp})
    assert failed == 0


#: Examples that are shown and not run: figures and results of functions whose own examples take seconds, and sites,
#: which are several processes.
SHOWN = {
    "PrivateComparison", "PrivateComparisons", "PrivatePPC", "PrivateScores", "Site", "Sites", "plot_plan", "plot_ppc"
}  # fmt: skip


def public_objects():
    """All public functions and classes, by name: once each, though some are in two places."""
    found = {name: getattr(place, name) for place in PLACES for name in place.__all__}
    assert len({id(o) for o in found.values()}) == len(found) > 80
    return found


def examples_of(documented):
    return doctest.DocTestParser().get_examples(inspect.getdoc(documented) or "")


def test_every_public_name_has_an_example():
    found = {name: examples_of(o) for name, o in public_objects().items()}
    run = {n for n, all_ in found.items() if any(doctest.SKIP not in e.options for e in all_)}
    assert {name for name, examples in found.items() if not examples} == set()
    assert found.keys() - run == SHOWN


def documented():
    """Public objects, and the public methods and properties that their pages show, by name."""
    for name, o in public_objects().items():
        yield name, o
        for member in vars(o) if inspect.isclass(o) else ():
            plain = inspect.getattr_static(o, member)
            plain = getattr(plain, "__func__", getattr(plain, "fget", plain))
            if not member.startswith("_") and inspect.isfunction(plain):
                yield f"{name}.{member}", plain


def says_nothing(description):
    """Whether a description is empty, or begins with another place to look at."""
    return not description or bool(
        re.match(
            r"(With `\w+`: )?(see|as (for|in|of|given)|the same as)\b", description, re.IGNORECASE
        )
    )


def test_parameters_are_described_where_they_are():
    entries = [
        (name, entry.name, " ".join(entry.desc))
        for name, o in documented()
        for section in ("Parameters", "Attributes")
        for entry in NumpyDocString(inspect.getdoc(o) or "")[section]
        if not (inspect.isclass(o) and entry.name == "**options")  # those of a base class
    ]
    assert len(entries) > 500
    assert [(n, parameter) for n, parameter, text in entries if says_nothing(text)] == []
    assert says_nothing("See :class:`~pymc_dp.Simulator`.") and says_nothing("")
    assert not says_nothing("Power of the likelihood, in (0, 1], see :func:`plan`.")


#: What `sample` and `plan` refuse, and what `sample` hands on.
UNNAMED = {"unnamed", "kwargs"}


def test_parameters_of_functions_are_all_described():
    for name, o in public_objects().items():
        if inspect.isfunction(o):
            sections = NumpyDocString(inspect.getdoc(o) or "")["Parameters"]
            described = {n.strip("* ") for entry in sections for n in entry.name.split(",")}
            assert inspect.signature(o).parameters.keys() - UNNAMED == described - UNNAMED, name


def test_code_in_docstrings_fits_the_page():
    lines = [
        (name, line)
        for name, o in documented()
        for line in (inspect.getdoc(o) or "").splitlines()
        if line.lstrip().startswith((">>>", "..."))
    ]
    assert len(lines) > 300
    assert [(name, line) for name, line in lines if len(line) > 88] == []


def test_the_reference_lists_each_public_name_once():
    text = (Path(__file__).parents[1] / "docs" / "api.md").read_text()
    tables = re.findall(r"\.\. autosummary::\n(?:   :.*\n)+\n((?:   \S+\n)+)", text)
    listed = [name for table in tables for name in table.split()]
    objects = [id(eval(f"pymc_dp.{name}")) for name in listed]
    assert len(tables) >= 13
    assert sorted(objects) == sorted(id(o) for o in public_objects().values())
