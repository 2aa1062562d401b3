"""With private covariates and binary outcomes, errors of a stand-in do not shift sums at the reference."""

import functools

import numpy as np
import pymc as pm
import pytest

from scipy import special

from pymc_dp import DPScore, PrivacyBudget, PrivateScores, Ranges, codec
from pymc_dp.planning.simulator import Simulator
from pymc_dp.privacy.mechanisms.noise_law import NoiseLaw
from pymc_dp.queries.stand_in import StandIn
from pymc_dp.scores import simulated_scores
from pymc_dp.scores.design import best_design
from pymc_dp.scores.private_scores import plan_scores
from pymc_dp.scores.score_features import ScoreFeatures
from pymc_dp.scores.simulated_scores import SimulatedScores
from tests.queries.test_cells import cell_covariance
from tests.terms import clipped_grad_steps, score_release

N, LEVEL, BOUND = 4000, -2.0, 0.4
RANGES = Ranges(g=[0, 1, 3])
SHARES, NOISE_SD = np.array([0.5, 0.3, 0.2]), 0.02
REFERENCE = np.array([0.3])


def model_of(g, y):
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1)
        pm.Bernoulli("y", logit_p=LEVEL + b * pm.Data("g", g), observed=y)
    return model


@functools.cache
def data():
    rng = np.random.default_rng(1)
    g = rng.choice([0.0, 1.0, 3.0], N, p=SHARES)
    return g, rng.binomial(1, special.expit(LEVEL + 0.5 * g))


@functools.cache
def simulator():
    found = Simulator(model_of(*data()), covariates=RANGES)
    return found.standing_in(StandIn(RANGES, (SHARES,), np.eye(1), N, 0, SHARES, NOISE_SD))


def features(clipping):
    release = score_release(REFERENCE, np.eye(1), BOUND, "gaussian", 1.0, np.zeros(1), clipping=clipping)  # fmt: skip
    scores = PrivateScores((release,), {"b": ()}, N, "substitute", ())
    return ScoreFeatures(scores, simulator().simulated)


def means(b, unbiased):
    """Of the features of each g, given the parameter: in closed form."""
    g, p, now = np.array([0, 1, 3.0]), *(special.expit(LEVEL + x * np.array([0, 1, 3.0])) for x in (REFERENCE, b))  # fmt: skip
    one, zero = (1 - p) * g, p * g
    factors = [np.minimum(1, BOUND / np.maximum(s, 1e-9)) for s in (one, zero)]
    if unbiased:
        factors = [np.minimum(*factors)] * 2
    return now * one * factors[0] - (1 - now) * zero * factors[1]


@pytest.mark.parametrize("b", [REFERENCE[0], 0.8])
def test_error_of_the_stand_in(b):
    """Zero at the reference, where that of clipped scores is not; and what the change of their means makes of it elsewhere."""
    covariance = N**2 * cell_covariance(SHARES, [3], [False], NOISE_SD)
    clipped, found = (
        features(clipping).stand_in_error(np.array([b]), N, np.random.default_rng(2))[0, 0]
        for clipping in ("norm", "outcome_free")
    )
    wanted = [means(b, unbiased) @ covariance @ means(b, unbiased) for unbiased in (False, True)]
    assert clipped == pytest.approx(wanted[0], rel=0.1)
    if b == REFERENCE[0]:
        assert wanted[0] > 100 and wanted[1] < 1e-9 and found < 0.02 * wanted[0]
    else:
        assert found == pytest.approx(wanted[1], rel=0.1)


def released(covariates):
    budget = PrivacyBudget(2.0, 1e-6, chains=1)
    simulator = Simulator(model_of(*data()), covariates=covariates)
    return simulator, plan_scores(simulator, budget, fit_share=0, random_seed=1).release()


def test_releases_with_private_covariates(monkeypatch):
    """Sums are of these vectors with ranges or a stand-in, and not with public covariates; files keep it."""
    monkeypatch.setattr(NoiseLaw, "add", lambda _, steps, exponent, bits: np.ldexp(steps.astype(float), exponent))  # fmt: skip
    monkeypatch.setattr(simulated_scores, "QUANTILES", (0.7,))  # so that the bound clips
    rng = np.random.default_rng(3)
    stand_in = model_of(rng.choice([0.0, 1.0, 3.0], 500), np.zeros(500, int))
    for covariates, clipping in [(RANGES, "outcome_free"), (stand_in, "outcome_free"), ("public", "midpoint")]:  # fmt: skip
        simulator, scores = released(covariates)
        assert {release.term.clipping for release in scores.releases} == {clipping}
        assert codec.loads(codec.dumps(scores)).releases[-1].term.clipping == clipping
        release = scores.releases[-1]
        sums = []
        for used in (clipping, "norm"):
            steps, exponent = clipped_grad_steps(
                simulator.likelihood,
                release.term.theta,
                release.term.bound,
                directions=release.term.directions,
                clipping=used,
            )
            sums.append(np.ldexp(steps.astype(float), exponent))
        np.testing.assert_array_equal(release.total, sums[0])
        assert np.abs(sums[1] - sums[0]).max() > release.term.bound


def test_midpoints_need_the_covariates_of_all_records():
    """Their mean is that of the rows: with others, or those of a stand-in, the posterior would be wrong."""
    simulator, scores = released("public")
    assert DPScore(scores, simulator=simulator).scores is scores
    (g, y), few = data(), slice(0, N // 2)
    for model, covariates in [(model_of(g[few], y[few]), "public"), (model_of(g, y), model_of(g, y))]:  # fmt: skip
        with pytest.raises(ValueError, match="centred with the covariates"):
            DPScore(scores, model=model, covariates=covariates)


def test_not_if_a_record_of_the_stand_in_is_two_outcomes():
    model, stand_in = model_of(*data()), model_of(np.ones(300), np.zeros(300, int))
    for size, clipping in [(1, "outcome_free"), (2, "norm")]:
        labels = {"records": np.arange(N), "stand_in_records": np.arange(300) // size}
        found = Simulator(model, covariates=stand_in, **labels)
        assert SimulatedScores(found, REFERENCE, np.random.default_rng(4)).clipping == clipping


@pytest.mark.parametrize("clipping", ["outcome_free", "midpoint"])
def test_features_of_simulated_records_are_those_of_private_ones(clipping):
    """The posterior clips as the release does."""
    simulator, scores = released("public")
    (release, *_) = scores.releases
    release = score_release(release.term.theta, release.term.directions, BOUND, "gaussian", 1.0, release.total, clipping=clipping)  # fmt: skip
    of = ScoreFeatures(PrivateScores((release,), {"b": ()}, N, "substitute", ()), simulator.simulated)  # fmt: skip
    steps, exponent = clipped_grad_steps(
        simulator.likelihood,
        release.term.theta,
        BOUND,
        directions=release.term.directions,
        clipping=clipping,
    )
    found = of.of([data()[1]]).sum(axis=0)
    np.testing.assert_allclose(found, np.ldexp(steps.astype(float), exponent), atol=1e-5)


def test_what_is_cut_off_is_what_a_wrong_probability_makes_of_it():
    """The mean of scores, less that of clipped ones, if the rarer outcome is a tenth more frequent."""
    position = np.array([0.9])  # the rarer outcome is 1, 1 and 0
    found = SimulatedScores(simulator(), position, np.random.default_rng(4))
    root, g = found.directions[0, 0], simulator().covariates["g"].get_value()
    p = special.expit(LEVEL + position[0] * g)
    bound, part = 0.5 * root, 0.1 * np.minimum(p, 1 - p)
    factors = np.minimum(1, bound / np.maximum(np.maximum(p, 1 - p) * g * root, 1e-9))
    wanted = np.mean(part * g * root * (1 - factors))
    assert 0.1 * found._cut_off(bound)[0] == pytest.approx(wanted, rel=0.03)


def closed_form(found, there, noise_sd, g, larger):
    """Forecast of a sum at one position of records that follow the model at another; `larger` makes ``g`` the norm that is clipped."""
    bound = found.design(noise_sd).bound
    root, p = found.directions[0, 0], special.expit(LEVEL + there.theta[0] * g)
    factors = np.minimum(1, bound / np.maximum(larger * g * root, 1e-9))
    slope, square = (np.sum(p * (1 - p) * g**2 * root**k * factors**k) for k in (1, 2))
    whole = 1 + np.sum(p * (1 - p) * g**2)
    return np.sqrt(whole / (1 + slope**2 / (square + (noise_sd * bound) ** 2)))


def test_the_plan_expects_what_comes_out():
    """Bound and information of the design are those of these vectors, in closed form at the plan's position."""
    simulator = Simulator(model_of(*data()), covariates=RANGES)
    budget = PrivacyBudget(0.1, 1e-6, chains=1)
    plan = plan_scores(simulator, budget, guess={"b": 0.0}, fit_share=0, random_seed=1)
    found, design, g = plan.simulated, plan.design.design, simulator.covariates["g"].get_value()
    p = special.expit(LEVEL + found.theta[0] * g)
    larger, noise_sd = np.maximum(p, 1 - p), 2 * plan.design.main.noise_sd
    clipped = np.mean(larger * g * found.directions[0, 0] > 1.001 * design.bound)
    assert 0.2 < design.clipped == pytest.approx(clipped, abs=0.02)
    wanted = closed_form(found, found, noise_sd, g, larger)
    assert plan.sd_ratios["b"][0] == pytest.approx(wanted, rel=0.03)


@pytest.mark.parametrize("arrives", [False, True])
def test_forecasts_are_medians_over_the_law_of_the_parameters(arrives):
    """Of a midpoint sum at the guess, or where the parameters are, in closed form given the covariates, within 1 % with four seeds."""
    public, noise_sd = Simulator(model_of(*data()), covariates="public"), 30.0
    law, rng = np.linspace(-1.5, 2.5, 16)[:, None], np.random.default_rng(4)
    found = SimulatedScores(public, np.zeros(1), rng, law)
    pairs = [(there if arrives else found, there) for there in found.there]
    wanted = np.median([closed_form(*pair, noise_sd, data()[0], 0.5) for pair in pairs])
    forecast = found.forecast(noise_sd, 0.0 if arrives else None).sd_ratios[0]
    assert forecast == pytest.approx(wanted, rel=0.02)
    # A first sum leads to the parameters, or is not needed.
    budget = PrivacyBudget(0.2 if arrives else 2.0, 1e-6, chains=1)
    assert bool(best_design(found, budget, N, "auto", 0.0).start) == arrives
    # A planted fault: at the guess alone.
    alone = SimulatedScores(public, np.zeros(1), rng).forecast(noise_sd, arrives).sd_ratios[0]
    assert alone != pytest.approx(wanted, rel=0.05)
