"""The front door: names, documentation, examples in docstrings, what an import costs."""

import doctest
import importlib
import inspect
import pkgutil
import subprocess
import sys

import pytest

import pymc_dp

MODULES = sorted(m.name for m in pkgutil.walk_packages(pymc_dp.__path__, "pymc_dp."))


def test_public_names_resolve_and_are_documented():
    assert set(pymc_dp.__all__) <= set(dir(pymc_dp))
    for name in pymc_dp.__all__:
        assert inspect.getdoc(getattr(pymc_dp, name)), name
    with pytest.raises(AttributeError, match="nonsense"):
        _ = pymc_dp.nonsense


def test_a_function_that_shares_its_name_with_a_module_stays_a_function():
    importlib.import_module("pymc_dp.sampling")
    importlib.import_module("pymc_dp.release")
    assert callable(pymc_dp.release)


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings(module):
    failed, _ = doctest.testmod(importlib.import_module(module))
    assert failed == 0


def test_there_are_examples():
    finder = doctest.DocTestFinder(exclude_empty=True)
    examples = [t for m in MODULES for t in finder.find(importlib.import_module(m)) if t.examples]
    assert len(examples) >= 3


def test_the_ledgers_command_line_does_not_wait_for_pymc():
    program = "import sys, pymc_dp.privacy.ledger; sys.exit('pymc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
