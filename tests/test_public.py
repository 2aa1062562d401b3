"""The front door: names, documentation, examples in docstrings, what an import costs."""

import doctest
import importlib
import inspect
import pkgutil

import pytest

import pymc_dp

#: But the one that imports JAX, whose threads do not go with the forks of other tests.
MODULES = sorted({m.name for m in pkgutil.walk_packages(pymc_dp.__path__, "pymc_dp.")} - {"pymc_dp.model.graphs.jax_products"})  # fmt: skip


PLACES = [pymc_dp, *(getattr(pymc_dp, n) for n in ("checks", "comparison", "errors", "model", "planning", "plots", "privacy", "privatized", "queries", "scores", "sites", "steps"))]  # fmt: skip


@pytest.mark.parametrize("place", PLACES, ids=lambda m: m.__name__)
def test_public_names_resolve_and_are_documented(place):
    assert inspect.getdoc(place) and len(place.__all__) <= 36
    for name in place.__all__:
        assert inspect.getdoc(getattr(place, name)), name


def test_unknown_names():
    with pytest.raises(AttributeError, match="nonsense"):
        _ = pymc_dp.nonsense


#: Examples that compile a model of their own take seconds.
COMPILED = ("checks", "comparison", "scores", "steps.hmc", "steps.sghmc", "plans", "planning.simulator", "planning.start")  # fmt: skip


@pytest.mark.parametrize(
    "module",
    [
        pytest.param(m, marks=pytest.mark.slow if any(c in m for c in COMPILED) else [])
        for m in MODULES
    ],
)
def test_examples_in_docstrings(module):
    failed, _ = doctest.testmod(importlib.import_module(module))
    assert failed == 0


def test_there_are_examples():
    finder = doctest.DocTestFinder(exclude_empty=True)
    examples = [t for m in MODULES for t in finder.find(importlib.import_module(m)) if t.examples]
    assert len(examples) >= 3
