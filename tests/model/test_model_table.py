"""The table of accepted and refused models; in accepted ones no record changes the term of another."""

from __future__ import annotations

import re

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr

from pytensor.compile.mode import Mode

import pymc_dp as dp

from pymc_dp.errors import UnsupportedModel
from pymc_dp.model import RecordLikelihood
from pymc_dp.model.row_positions import check_neighbours
from tests.model import accepted_models, refused_models, refused_places  # noqa: F401 (they fill the table)
from tests.model.table_entries import TABLE, N

pytestmark = [
    pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS"),
    pytest.mark.filterwarnings("ignore:Scan return signature will change:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:pytensor.as_op is deprecated:FutureWarning"),
]
OPTIONS = {"mode": Mode("py", None)}
ACCEPTED = [e for e in TABLE if e.refused is None]
#: Accepted models in the default suite, one of each kind; the others are slow tests.
QUICK = {
    "logistic regression with pm.Data",
    "softmax of three classes",
    "lags within a person",
    "rows of a longer container",
    "a custom likelihood that captures a column",
    "two observed variables",
    "centred by public numbers",
    "numbers from 0 upwards, as an index",
}


def test_size_of_the_table():
    assert len(TABLE) >= 155 and len({e.name for e in TABLE}) == len(TABLE)
    assert {e.name for e in ACCEPTED} > QUICK


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param(e, id=e.name, marks=[pytest.mark.slow] if "two dimensions" in e.name else [])
        for e in TABLE
        if e.refused
    ],
)
def test_refused(entry):
    model = entry.build()
    with pytest.raises(UnsupportedModel, match=re.compile(entry.refused, re.S)) as refused:
        likelihood = RecordLikelihood(
            model, records=entry.records, public=entry.public, compile_kwargs=OPTIONS
        )
        assert likelihood.by_position  # what substitution allows
        check_neighbours(likelihood, entry.adjacency)
    for array in entry.data.values():  # messages show no private value
        assert not any(f"{v:.4f}" in str(refused.value) for v in np.ravel(array).astype(float))


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param(e, id=e.name, marks=[] if e.name in QUICK else pytest.mark.slow)
        for e in ACCEPTED
    ],
)
def test_no_record_moves_another_ones_term(entry):
    """Bit by bit, near the initial point and far from it, for several other values of the record."""

    def terms(data):
        likelihood = RecordLikelihood(
            entry.build(data), records=entry.records, public=entry.public, compile_kwargs=OPTIONS
        )
        has_rows = any(isinstance(p, str) and p == "X" for p in entry.public)
        if not has_rows:
            check_neighbours(likelihood, "add_remove")
        return np.array([likelihood.logp(theta) for theta in points(likelihood)])

    before = terms(entry.data)
    owner = np.arange(N) if entry.records is None else entry.records
    for row in (0, 5, N - 1):
        data = {k: v.copy() for k, v in entry.data.items()}
        other = next(k for k in range(N) if owner[k] != owner[row])
        for array in data.values():
            array[row] = array[other]  # in the support of the distribution
            if array.dtype.kind == "f" and array.ndim == 1:
                array[row] = 0.97 * array[row]
        after = terms(data)
        same = np.arange(before.shape[1]) != owner[row]
        if len(next(iter(data.values()))) > N:  # a longer container, of which some rows are used
            same[[max(row - 1, 0), row]] = False
        np.testing.assert_array_equal(before[:, same], after[:, same])
        assert not np.array_equal(before[:, ~same], after[:, ~same], equal_nan=True)


def points(likelihood):
    rng = np.random.default_rng(8)
    d = likelihood.n_dim
    return [scale * rng.normal(size=d) for scale in (0.1, 0.4, 3.0)] + [60 + rng.normal(size=d)]


def test_the_comparison_finds_a_dependence(monkeypatch):
    """Control: with the proof switched off, the comparison finds a model that would be refused."""
    monkeypatch.setattr("pymc_dp.model.likelihood.prove_independence", lambda *_: [])
    (entry,) = (e for e in TABLE if e.name == "centred pm.Data")
    with pytest.raises(AssertionError, match="not equal"):
        test_no_record_moves_another_ones_term(entry)


def test_line_1_every_door_knows_the_adjacency():
    """Positions are accepted under substitution, and refused under add/remove with nothing spent: line 1."""
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("b") * (pt.arange(N) % 2), 1.0, observed=np.linspace(0.0, 1.0, N))
    simulator = dp.Simulator(model, covariates="public")
    options = {"clip_bound": 1.0, "proposal": dp.RandomWalk(scale=0.1)}
    released = {"posterior": xr.Dataset({"b": (("chain", "draw"), np.zeros((1, 4)))})}
    doors = {
        "step": lambda b: dp.DPPenalty(budget=b, likelihood=simulator.likelihood, model=model, **options),
        "plan": lambda b: dp.plan(budget=b, simulator=simulator),
        "scores": lambda b: dp.private_scores(simulator, budget=b),
        "compare": lambda b: dp.private_compare(
            dict.fromkeys("ab", released), dict.fromkeys("ab", simulator), budget=b, bound=1.0
        ),
    }  # fmt: skip
    doors["step"](dp.PrivacyBudget(1.0, 1e-6, chains=1))
    for name, enter in doors.items():
        budget = dp.PrivacyBudget(1.0, 1e-6, chains=1, adjacency="add_remove")
        with pytest.raises(UnsupportedModel, match="positions"):
            enter(budget)
        assert budget.report().epsilon == 0, name
