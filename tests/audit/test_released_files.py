"""A released result that something was added to says so first, and can be cleaned."""

from __future__ import annotations

import json
import math
import pickle

import arviz as az
import numpy as np
import pymc as pm
import pytest

import pymc_dp as dp

from pymc_dp import PrivacyBudget, PrivacyReport, RandomWalk, release
from pymc_dp.errors import PrivacyLeak
from pymc_dp.privacy.budget import coverage
from pymc_dp.privacy.budget.coverage import covered_by, uncovered
from tests.audit.audited_samplers import sample

pytestmark = pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")

N = 40
Y = np.random.default_rng(3).normal(2.0, 1.0, N) + 1e-3 / 7


@pytest.fixture(scope="module")
def run():
    with pm.Model(coords={"person": [f"person-{k}" for k in range(N)]}) as model:
        mu = pm.Normal("mu", 0, 5)
        pm.Normal("y", mu, 1.0, observed=Y, dims="person")
        pm.Deterministic("squared", mu**2)
    budget = PrivacyBudget(3.0, 1e-5, chains=2)
    step = dp.DPPenalty(budget=budget, clip_bound=1.0, proposal=RandomWalk(0.05), model=model)
    return sample(model, step, budget, draws=20, chains=2), model, budget


@pytest.fixture
def released(run):
    return release(*run)


def with_data(public, model):
    """As users do: both add to the result in place."""
    quiet = {"model": model, "progressbar": False}
    pm.sample_posterior_predictive(public, extend_inferencedata=True, **quiet)
    pm.compute_log_likelihood(public, **quiet)
    return public


ADDED = {"observed_data", "posterior_predictive", "log_likelihood"}
FORMS = {
    "pickled": lambda public, path: pickle.loads(pickle.dumps(public)),
    "netCDF": lambda public, path: (public.to_netcdf(str(path / "a.nc")), az.from_netcdf(str(path / "a.nc")))[1],
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_release_of_a_released_result_cleans_it(run, released, form, tmp_path):
    """Its report names what was added, where it used to state the guarantee; neither model nor budget is needed."""
    before = PrivacyReport.of(released)
    assert before.protected and before.uncovered == ()
    there = FORMS[form](with_data(pickle.loads(pickle.dumps(released)), run[1]), tmp_path)
    report = PrivacyReport.of(there)
    assert set(report.uncovered) == ADDED and report.epsilon <= 3.0  # of what it does cover
    assert not report.protected and set(report.attack_power.values()) == {1.0}
    for text in (str(report), report.to_markdown(), report.to_html()):
        first = text.splitlines()[0]
        assert "NOT cover" in first and all(name in first for name in ADDED)
    assert str(report).splitlines()[2].startswith("NOT PROTECTED")
    cleaned = release(there)
    assert PrivacyReport.of(cleaned) == before
    assert "observed_data" in there  # the argument is not changed
    assert not any(name in cleaned for name in ADDED)
    assert cleaned.attrs == released.attrs
    for name in ("posterior", "sample_stats"):
        assert cleaned[name].attrs == released[name].attrs
        assert set(cleaned[name].variables) == set(released[name].variables)
        for variable in released[name].variables:
            assert np.array_equal(cleaned[name][variable], released[name][variable])
    assert PrivacyReport.of(release(cleaned)) == before


def dataset(group):
    return group.to_dataset() if hasattr(group, "to_dataset") else group


def replaced(public, **groups):
    """A result with other groups."""
    copy = pickle.loads(pickle.dumps(public))
    for name, group in groups.items():
        copy[name] = type(copy)(group) if hasattr(copy, "children") else group
    return copy


CHANGES = {
    "an attribute": lambda p: p.assign_attrs(largest=float(Y.max())),
    "an attribute of a variable": lambda p: p.assign(mu=p["mu"].assign_attrs(largest=2.0)),
    "a variable": lambda p: p.assign(fitted=("person", Y)),
    "a coordinate": lambda p: p.assign_coords(age=("draw", Y[: p.sizes["draw"]])),
    "an index": lambda p: p.expand_dims(person=[f"person-{k}" for k in range(3)]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_added_to_a_group(released, change):
    changed = CHANGES[change](dataset(released.posterior))
    there = replaced(released, posterior=changed)
    for holder in (there, changed):
        found = PrivacyReport.of(holder).uncovered
        assert found and all(name.startswith("posterior: ") for name in found)
    if change != "an index":
        clean = release(there)
        assert PrivacyReport.of(clean).protected and not PrivacyReport.of(clean).uncovered


def test_more_draws_than_were_released(run, released):
    """Such as those of another run, on another budget."""
    import xarray as xr

    group = dataset(released.posterior)
    longer = xr.concat([group, group], dim="draw", combine_attrs="override")
    there = replaced(released, posterior=longer)
    n = group.sizes["draw"]
    assert PrivacyReport.of(there).uncovered == (f"posterior: draw of length {2 * n}, released with {n}",)  # fmt: skip
    with pytest.raises(PrivacyLeak, match="more than was released"):
        release(there)


def test_parts_are_covered(released):
    """Thinned, cut, single chains, single groups and single variables."""
    group = dataset(released.posterior)
    for part in (group, group.isel(draw=slice(5, None, 2)), group.isel(chain=[1]), group[["mu"]]):
        assert PrivacyReport.of(part).protected
    assert PrivacyReport.of(dataset(released.sample_stats)).protected
    assert PrivacyReport.of(replaced(released, posterior=group.isel(draw=slice(3)))).protected


def test_a_report_that_does_not_say_what_it_covers(released):
    values = json.loads(released.attrs["privacy_report"])
    del values["covers"]
    old = pickle.loads(pickle.dumps(released))
    old.attrs["privacy_report"] = json.dumps(values)
    report = PrivacyReport.of(old)
    assert not report.protected and report.uncovered[0].startswith("everything")
    with pytest.raises(PrivacyLeak, match="does not list what it covers"):
        release(old)


def test_reproducible_randomness_has_no_epsilon(run):
    """Attributes used to state epsilon = 3, beside a report that guaranteed nothing."""
    _, model, _ = run
    budget = PrivacyBudget(3.0, 1e-5, chains=1)
    step = dp.DPPenalty(
        budget=budget, clip_bound=1.0, proposal=RandomWalk(0.05), model=model, reproducible=True
    )
    public = release(sample(model, step, budget), model, budget)
    for holder in (public, public.posterior, public.sample_stats):
        assert holder.attrs["epsilon"] == math.inf
    assert not PrivacyReport.of(public).protected


def test_planted_faults_are_found(released, run, monkeypatch):
    """Controls: a list that covers everything, and groups that are not looked at."""
    there = with_data(pickle.loads(pickle.dumps(released)), run[1])
    groups = {n: dataset(there[n]) for n in (*ADDED, "posterior", "sample_stats")}
    assert uncovered(there, covered_by(groups)) == ()
    assert set(uncovered(there, PrivacyReport.of(there).covers)) == ADDED
    monkeypatch.setattr(coverage, "_groups", lambda holder, above="": iter(()))
    assert PrivacyReport.of(there).protected
