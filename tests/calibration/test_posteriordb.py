"""The exact samplers on posteriordb's cases with hardly any noise: the posterior of real models is that of reference draws.

Tight clip bounds would hide what a wrong gradient does, so there are none; what differs from the other tests of exactness
are the models (scales on the log scale, strong correlations, regressions) and the second opinion, which is Stan's.
"""

from __future__ import annotations

import json
import math

from pathlib import Path

import numpy as np
import pymc as pm
import pytest

from scipy import stats

from pymc_dp import DPHMC, DPBarker, DPFastMH, DPPenalty, PrivacyBudget, RandomWalk
from tests.exactness.test_exactness import HUGE, N_BATCHES, batch_means

DATA = Path(__file__).parents[3] / "shared" / "data" / "posteriordb"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not DATA.is_dir(), reason=f"no posteriordb in {DATA}"),
]
#: False alarms: 1e-4 for the whole file, shared by 60 comparisons.
LIMIT = 1e-4 / 60


def line(y, design, scale=None):
    """``y ~ N(design @ beta, sigma)`` with flat priors but for the scale's."""
    beta = pm.Flat("beta", shape=design.shape[1])
    sigma = pm.HalfFlat("sigma") if scale is None else scale("sigma")
    pm.Normal("y", pm.math.dot(design, beta), sigma, observed=y)


def kidiq(d):
    line(d["kid_score"], with_ones(d["mom_iq"]), lambda name: pm.HalfCauchy(name, 2.5))


def earnings(d):
    line(np.log(d["earn"]), with_ones(d["height"], d["male"]))


def blr(d):
    x = np.array(d["X"])
    beta = pm.Normal("beta", 0, 10, shape=x.shape[1])
    pm.Normal("y", pm.math.dot(x, beta), pm.HalfNormal("sigma", 10), observed=np.array(d["y"]))


def nes_logit(d):
    beta = pm.Flat("beta", shape=2)
    pm.Bernoulli(
        "vote", logit_p=pm.math.dot(with_ones(d["income"]), beta), observed=np.array(d["vote"])
    )


def with_ones(*covariates):
    return np.column_stack([np.ones(len(covariates[0])), *covariates]).astype(float)


CASES = {
    "kidiq-kidscore_momiq": kidiq,
    "earnings-logearn_height_male": earnings,
    "sblri-blr": blr,
    "nes_logit_data-nes_logit_model": nes_logit,
}


def to_real_line(params, draws):
    """Scales, which come last, as their logarithms."""
    scales = np.array(["sigma" in name for name in params])
    return np.where(scales, np.log(np.where(scales, draws, 1.0)), draws)


def p_values(chain, reference):
    """Means and standard deviations of a chain against independent reference draws."""
    centre, spread = reference.mean(axis=0), reference.std(axis=0)
    columns = []
    for x in (chain, reference):
        z = (x - centre) / spread
        columns.append(np.column_stack([z, np.clip(z, -3, 3) ** 2]))
    found, truth = columns
    mean, error, time = batch_means(found)
    assert time.max() < len(chain) / N_BATCHES / 2, f"the chain is too short: {time.max():.0f}"
    error = np.hypot(error, truth.std(axis=0) / math.sqrt(len(truth)))
    return 2 * stats.t.sf(np.abs(mean - truth.mean(axis=0)) / error, N_BATCHES - 1)


def hmc(covariance, **options):
    return DPHMC(
        mass_matrix=np.linalg.inv(covariance), step_size=0.6, n_leapfrog=3, clip_bound=HUGE,
        gradient_clip_bound=HUGE, gradient_noise_multiplier=1e-3 / (2 * HUGE), **options,
    )  # fmt: skip


def walk(covariance, part=1.0):
    return RandomWalk(part**2 * 2.4**2 / len(covariance) * covariance, metric="proposal")


def penalty(covariance, **options):
    return DPPenalty(clip_bound=HUGE, proposal=walk(covariance), noise_scale=0.5, **options)


def barker(covariance, **options):
    return DPBarker(clip_bound=HUGE, proposal=walk(covariance), **options)


def fast_mh(covariance, **options):
    """Short moves, on which no record comes near the bound, so that batches are a part of the records."""
    short, typical = walk(covariance, 0.2), math.sqrt(len(covariance))
    step = DPFastMH(clip_bound=0.3 / typical, proposal=short, batch_rate=60.0, **options)
    assert step.expected_batch(typical) < 0.5 * step.likelihood.n_records
    return step


#: Draws, and the least part of them that are moves.
SAMPLERS = {hmc: (9000, 0.4), penalty: (40_000, 0.1), barker: (40_000, 0.1), fast_mh: (80_000, 0.1)}  # fmt: skip
WALKS = {
    penalty: ["kidiq-kidscore_momiq"],
    barker: ["nes_logit_data-nes_logit_model"],
    fast_mh: ["kidiq-kidscore_momiq"],
}
ALL = [
    pytest.param(s, n, marks=[] if n == "kidiq-kidscore_momiq" else pytest.mark.long)
    for s, names in {hmc: list(CASES), **WALKS}.items()
    for n in names
]


@pytest.mark.parametrize(("sampler", "name"), ALL)
def test_reference_draws(sampler, name, seed=1):
    data = json.loads((DATA / f"{name}.data.json").read_text())
    archive = np.load(DATA / f"{name}.npz")
    reference = to_real_line(archive["params"], archive["draws"])
    n_draws, moves = SAMPLERS[sampler]
    with pm.Model() as model:
        CASES[name](data)
        budget = PrivacyBudget(math.inf, 1e-6, chains=1)
        step = sampler(np.cov(reference.T), budget=budget, reproducible=True)
    del model
    step.set_rng(np.random.default_rng(seed))
    step.stop_tuning()
    step._open()
    theta, draws = reference[seed], np.empty((n_draws, reference.shape[1]))
    for i in range(n_draws):
        theta, _, _ = step.transition(theta)
        draws[i] = theta
    assert np.unique(draws[:, 0]).size > moves * n_draws
    found = p_values(draws, reference)
    assert found.min() > LIMIT, dict(zip([*archive["params"]] * 2, found, strict=False))
    # A quarter of a standard deviation would have been seen.
    assert p_values(draws + 0.25 * reference.std(axis=0), reference).min() < LIMIT
