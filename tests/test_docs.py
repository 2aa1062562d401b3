"""Numbers in the documentation are those the code gives."""

import ast
import re
import subprocess
import sys

from pathlib import Path

import pytest

from pymc_dp import Barker
from pymc_dp.privacy import Decision, PoissonMinibatchDecision
from pymc_dp.privacy.mechanisms import ORDERS

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "page, script, part",
    [
        ("accounting", "gain_table", ["narrow banana", "circle"]),  # all rows take minutes
        ("fast_mh", "fast_mh_table", []),
        ("guarantees", "clipping_table", []),
    ],
)
def test_tables(page, script, part):
    """The tables of a page are what its command prints."""
    text = (ROOT / "docs" / f"{page}.md").read_text()
    mark = rf"<!-- [^\n]*: python examples/{script}\.py -->\n(.*?)\n<!-- end"
    stored = [line for part in re.findall(mark, text, flags=re.DOTALL) for line in part.split("\n")]
    command = [sys.executable, str(ROOT / "examples" / f"{script}.py"), *part]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    expected = [line for line in printed.splitlines() if line]
    assert len(expected) > 5
    assert expected == ([line for line in stored if line in expected] if part else stored)


#: What a page takes for granted: data, a model, and one of the same parameters with made-up records.
GIVEN = """
import arviz as az
import numpy as np
import pymc as pm

import pymc_dp as dp

rng = np.random.default_rng(1)
X = rng.normal(size=(100_000, 4))
y = (rng.random(len(X)) < 1 / (1 + np.exp(-X @ [-1.5, 0.5, -0.3, 0.0]))).astype(int)


def heights(records):
    with pm.Model() as model:
        mu, sigma = pm.Normal("mu", 0, 10), pm.HalfNormal("sigma", 10)
        pm.Normal("height", mu, sigma, observed=records)
    return model


model = heights(rng.normal(2, 3, size=100_000))
made_up = heights(np.zeros(20_000))
"""
#: Pages that say what they need themselves.
COMPLETE = {"accounting", "fast_mh", "howto", "privatized", "sghmc", "tutorial"}
LONG = {"README", "control_variates", "planning", "privatized", "sghmc"}


def pages():
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        blocks = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
        if blocks:
            marks = [pytest.mark.slow] if page.stem in LONG else []
            yield pytest.param(page.stem, blocks, marks=marks, id=page.stem)


# Chains of examples are short, and PyMC says so.
@pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS|The effective sample size")
@pytest.mark.parametrize("page, blocks", [*pages()])
def test_code_blocks(page, blocks, tmp_path, monkeypatch):
    """The Python of a page runs, from top to bottom."""
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    if page not in COMPLETE:
        exec(GIVEN, names)
    for block in blocks:
        exec(block, names)


def test_minibatches_buy_no_privacy():
    """0.4 % more than the decision on all records at a high base rate, three times as much at a low one."""
    full = Decision(Barker(), 0.002).renyi(ORDERS)
    for rate, ratio in ((500, 1.004), (5, 3.0)):
        batch = PoissonMinibatchDecision(Barker(), 0.001, rate, 50_000).renyi(ORDERS)
        assert batch[ORDERS == 2] / full[ORDERS == 2] == pytest.approx(ratio, rel=0.02)
        assert (batch >= full * (1 - 1e-3)).all()


def referred_to():
    """Tests that the documentation names, with the page."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    found = [
        (page.name, reference)
        for page in pages
        for reference in re.findall(r"tests/[\w/]+\.py(?:::\w+)*", page.read_text())
    ]
    assert len(found) > 40
    return found


def exists(reference):
    path, *names = reference.split("::")
    if not (ROOT / path).is_file():
        return False
    body = ast.parse((ROOT / path).read_text()).body
    for name in names:
        inner = [node for node in body if getattr(node, "name", None) == name]
        if not inner:
            return False
        body = inner[0].body
    return True


def test_tests_that_are_named_exist():
    assert [x for x in referred_to() if not exists(x[1])] == []
    assert not exists("tests/test_docs.py::test_that_is_not_there")
    assert not exists(
        "tests/privacy/test_accounting.py::TestPublishedTable::test_that_is_not_there"
    )
