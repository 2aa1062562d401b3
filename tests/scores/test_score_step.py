"""DPScore as a step of PyMC: tuning, chains, seeds, and what is refused."""

from __future__ import annotations

import warnings

import numpy as np
import pymc as pm
import pytest

from pymc_dp import DPScore, PrivateScores
from pymc_dp.planning.simulator import Simulator
from pymc_dp.scores import score_step
from pymc_dp.scores.results import warn_of_distance
from tests.scores.score_models import CASES, public, released, simulator_of, template

CASE = CASES["location_scale"]


def scores() -> PrivateScores:
    releases = [template(CASE, "l2", 0.5, [0.1, 0.1], 0.6)]
    return public(CASE, released(CASE, releases, np.array([0.3, 0.0]), np.random.default_rng(1)))


def simulator() -> Simulator:
    return simulator_of(CASE.name)


def step_of(**options):
    options = {"simulator": simulator(), "model": simulator().model} | options
    return DPScore(scores(), **options)


def sample(step, **options):
    options = {"draws": 15, "tune": 5, "chains": 2, "cores": 1, "random_seed": 3} | options
    with simulator().model:
        return pm.sample(step=step, progressbar=False, compute_convergence_checks=False, **options)


def values(idata):
    return np.stack([idata.posterior[name].values for name in ("t", "sigma")])


@pytest.mark.slow  # by default tests/test_sampling.py runs chains
def test_chains_of_pymc(monkeypatch):
    monkeypatch.setattr(score_step, "_WARMUP", 40)  # of each of the nine chains
    step = step_of()
    idata = sample(step)
    found = values(idata)
    assert found.shape == (2, 2, 15) and np.isfinite(found).all() and (found[1] > 0).all()
    assert (found[:, 0] != found[:, 1]).any()  # chains differ
    assert len(np.unique(found[0, 0])) > 5
    # The same seed, the same draws: from any first point, as initial values are not used.
    np.testing.assert_array_equal(values(sample(step, initvals={"t": 9.0, "sigma": 5.0})), found)
    np.testing.assert_array_equal(values(sample(step_of())), found)
    assert (values(sample(step, random_seed=4)) != found).any()
    assert np.isfinite(values(sample(step, tune=0, chains=1))).all()


@pytest.mark.slow
def test_a_lost_chain_is_reported():
    """Distances of draws from the normal approximation are about 1; with a planted shift of 8 there is a warning."""
    step = step_of()
    approximation = step.approximation
    for shift, is_lost in ((0.0, False), (8.0, True)):
        mean = approximation.mean + shift * np.sqrt(np.diag(approximation.covariance))
        step.approximation = approximation._replace(mean=mean)
        idata = sample(step, draws=30, tune=0, chains=1)
        distances = idata.sample_stats["reference_distance"].values
        assert abs(np.median(distances) - max(1, shift)) < 0.6 + shift / 4
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warn_of_distance(idata)
        assert ["of chain" in str(w.message) for w in caught].count(True) == is_lost


@pytest.mark.slow
def test_chains_in_spawned_processes():
    step = step_of()
    alone = values(sample(step, cores=1))
    np.testing.assert_array_equal(values(sample(step, cores=2, mp_ctx="spawn")), alone)


def test_what_is_wrong_is_refused():
    model, other = (
        simulator().model,
        PrivateScores(scores().releases, {"m": (), "s": ()}, 4, "substitute", ()),
    )
    with pytest.raises(TypeError, match="scores must be PrivateScores"):
        DPScore([scores()], simulator=simulator(), model=model)
    with pytest.raises(TypeError, match="covariates are those of the simulator"):
        step_of(covariates="public")
    with pytest.raises(ValueError, match="names, shapes and transforms"):
        DPScore(other, simulator=simulator(), model=model)
    with pytest.raises(ValueError, match="all variables"):
        step_of(vars=[model["t"]])
    step_of(vars=[model["sigma"], model["t"]])
    with pytest.raises(ValueError, match="another model than that of the simulator"):
        step_of(model=pm.Model())
