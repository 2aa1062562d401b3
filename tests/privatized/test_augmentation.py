"""Data augmentation: exact posteriors, the bound of the guarantee, PyMC as a host.

Posteriors are known by enumerating all records, by quadrature, or in closed form. Tolerances are
four Monte Carlo standard errors, which ArviZ estimates from the chains.
"""

from __future__ import annotations

import itertools

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from scipy import special, stats

import pymc_dp as dp

QUIET = {"progressbar": False, "compute_convergence_checks": False, "cores": 1}


def sampled(model: pm.Model, names, draws=4000, seed=1, chains=2, **options):
    """Draws of PyMC, other variables by its own steps."""
    with model:
        step = dp.PrivatizedRecords([model[name] for name in names], **options)
        return pm.sample(draws, tune=500, chains=chains, step=step, random_seed=seed, **QUIET)


def check_mean(values, expected: float) -> None:
    """The mean of some function of draws, shape (chains, draws), against its expectation."""
    values = np.asarray(values, dtype=float)
    # Batches of at least 100 draws, many times as long as these chains remember.
    means = values.reshape(40, -1).mean(axis=1)
    error = means.std(ddof=1) / np.sqrt(len(means))
    assert abs(values.mean() - expected) <= 4 * error, (values.mean(), expected, error)


def check_probabilities(values, expected) -> None:
    """Frequencies of 0, 1, ... among draws."""
    for value, probability in enumerate(expected):
        if probability > 0.01:
            check_mean(values == value, probability)


# ---------------------------------------------------------------------- exact posteriors


def binary_count(n=12, epsilon=1.0, released=7) -> pm.Model:
    with pm.Model() as model:
        x = pm.Bernoulli("x", pm.Beta("p", 1, 1), shape=n)
        dp.DiscreteLaplace("released", x.sum(), scale=1 / epsilon, observed=released)
    return model


def count_posterior(n, epsilon, released):
    """Of the count, with p integrated out (which leaves a uniform prior), and the mean of p."""
    k = np.arange(n + 1)
    weights = np.exp(-epsilon * abs(k - released))
    weights /= weights.sum()
    return weights, ((k + 1) / (n + 2)) @ weights


@pytest.mark.slow
def test_binary_counts_with_geometric_noise():
    n, released, epsilon = 12, 9, 1.0
    idata = sampled(binary_count(n, epsilon, released), ["x"], epsilon=epsilon)
    weights, mean = count_posterior(n, epsilon, released)
    check_mean(idata.posterior["p"].values, mean)
    check_probabilities(idata.posterior["x"].values.sum(-1), weights)
    lowest = idata.sample_stats["min_record_acceptance"].values
    assert lowest.min() >= np.exp(-epsilon) * (1 - 1e-6)


@pytest.mark.slow
def test_tolerances_would_show_a_wrong_noise_scale():
    """Negative control: sampled with half the epsilon."""
    idata = sampled(binary_count(12, 0.5, 9), ["x"])
    _, mean = count_posterior(12, 1.0, 9)
    with pytest.raises(AssertionError):
        check_mean(idata.posterior["p"].values, mean)


@pytest.mark.slow
def test_clamped_records_by_quadrature():
    """Two records with predictor and outcome, clamped; the sum of products is released."""
    released, scale = 1.5, 0.7
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1)
        x = pm.Normal("x", 0.5, 1, shape=2)
        y = pm.Normal("y", b * x, 0.5, shape=2)
        products = pm.math.clip(x, -1, 1) * pm.math.clip(y, -1, 1)
        pm.Laplace("released", products.sum(), scale, observed=released)
    idata = sampled(model, ["x", "y"], draws=8000)
    # The law of one record's product given b, on a grid, then that of the sum of two.
    u = (np.arange(500) + 0.5) / 500
    x = stats.norm.ppf(u, 0.5)[:, None]
    sums = np.linspace(-2, 2, 1601)
    grid = np.linspace(-5, 5, 101)
    likelihood = []
    for value in grid:
        y = value * x + 0.5 * stats.norm.ppf(u)
        law, _ = np.histogram(np.clip(x, -1, 1) * np.clip(y, -1, 1), 801, (-1.00125, 1.00125))
        pair = np.convolve(law, law) / law.sum() ** 2
        likelihood.append(pair @ stats.laplace.pdf(released, sums, scale))
    posterior = stats.norm.pdf(grid) * np.array(likelihood)
    posterior /= posterior.sum()
    b = idata.posterior["b"].values
    check_mean(b, posterior @ grid)
    check_mean(b**2, posterior @ grid**2)


def exponential_mechanism(total, value, epsilon):
    """Log-probability of selecting `value`, of scores ``-abs(total)`` of all candidates."""
    scores = -abs(total) * epsilon / 2
    return scores[value] - pt.logsumexp(scores)


@pytest.mark.slow
@pytest.mark.long
def test_exponential_mechanism():
    """A median by the exponential mechanism: its normalizing constant is a function of sums, too."""
    n, levels, epsilon, released = 5, 4, 1.5, 2
    prior = np.array([0.1, 0.2, 0.3, 0.4])
    with pm.Model() as model:
        tilt = pm.Normal("tilt")
        x = pm.Categorical("x", pm.math.softmax(np.log(prior) + tilt * np.arange(4)), shape=n)
        balance = pt.sign(x[:, None] - np.arange(levels)).sum(axis=0)  # for each candidate
        pm.CustomDist(
            "released",
            balance,
            logp=lambda value, balance: exponential_mechanism(balance, value, epsilon),
            signature="(k)->()",
            observed=released,
            dtype="int64",
        )
    idata = sampled(model, ["x"], epsilon=2 * epsilon)
    x = np.array(list(itertools.product(range(levels), repeat=n)))
    scores = -abs(np.sign(x[:, :, None] - np.arange(levels)).sum(1)) * epsilon / 2
    mechanism = special.softmax(scores, axis=1)[:, released]
    grid = np.linspace(-5, 5, 201)
    law = special.softmax(np.log(prior) + grid[:, None] * np.arange(4), axis=1)
    weights = stats.norm.pdf(grid)[:, None] * np.prod(law[:, x], axis=2) * mechanism
    weights /= weights.sum()
    check_mean(idata.posterior["tilt"].values, weights.sum(1) @ grid)
    check_mean(idata.posterior["x"].values.sum(-1), weights.sum(0) @ x.sum(1))


def test_sweep_has_the_conditional_law_as_its_stationary_law():
    """All transition probabilities of a sweep over three binary records, in closed form."""

    def transition(p, scale):
        """From the rule, by hand: P(next | current) for all 8 x 8 pairs."""
        states = np.array(list(itertools.product((0, 1), repeat=3)))

        def g(total):
            return np.exp(-abs(total - 2.2) / scale)

        matrix = np.eye(8)
        for i in range(3):
            step = np.zeros((8, 8))
            for a, state in enumerate(states):
                for value, probability in ((0, 1 - p), (1, p)):
                    proposal = state.copy()
                    proposal[i] = value
                    b = int("".join(map(str, proposal)), 2)
                    accept = min(1, g(proposal.sum()) / g(state.sum()))
                    step[a, b] += probability * accept
                    step[a, a] += probability * (1 - accept)
            matrix = matrix @ step
        law = np.array([np.prod(np.where(s, p, 1 - p)) * g(s.sum()) for s in states])
        return states, matrix, law / law.sum()

    states, matrix, law = transition(0.3, 0.8)
    np.testing.assert_allclose(law @ matrix, law, rtol=1e-12)
    with pm.Model() as model:
        x = pm.Bernoulli("x", 0.3, shape=3)
        pm.Laplace("released", x.sum(), 0.8, observed=2.2)
    step = dp.PrivatizedRecords([x], model=model, rng=5)
    step._started = True
    n = 4000
    for start in (0, 5):
        after = np.array(
            [step.step({"x": states[start].astype("int64")})[0]["x"] for _ in range(n)]
        )
        observed = np.bincount(after @ [4, 2, 1], minlength=8)
        expected = matrix[start] * n
        assert stats.chisquare(observed, expected).pvalue > 1e-4


# ---------------------------------------------------------------------- the guarantee


@pytest.mark.slow
def test_a_release_with_too_little_noise_contradicts_its_epsilon():
    with pytest.raises(ValueError, match=r"not 0.5-differentially private"):
        sampled(binary_count(12, 1.0, 7), ["x"], epsilon=0.5)


@pytest.mark.slow
def test_forgotten_clamping_contradicts_its_epsilon():
    with pm.Model() as model:
        x = pm.Normal("x", pm.Normal("mu"), 5, shape=30)
        pm.Laplace("released", x.sum(), 2.0, observed=1.0)
    with pytest.raises(ValueError, match="clamping"):
        sampled(model, ["x"], epsilon=1.0)


# ---------------------------------------------------------------------- the start of a chain


def test_a_chain_starts_with_records_that_go_with_the_release():
    """Nearly no noise: by accident, records of the prior would fit once in 1e6 sweeps."""
    with pm.Model() as model:
        x = pm.Bernoulli("x", pm.Beta("p", 1, 1), shape=200)
        pm.Normal("released", x.sum(), 0.3, observed=12)
    step = dp.PrivatizedRecords([x], model=model, rng=1)
    point = model.initial_point()
    for _ in range(2):  # as PyMC begins a second chain with the same step
        step.set_rng(np.random.default_rng(2))
        new, _ = step.step(point)
        assert abs(new["x"].sum() - 12) <= 2


def bounded_noise() -> pm.Model:
    with pm.Model() as model:
        top = pm.Uniform("top", 1, 3)
        x = pm.Bernoulli("x", pm.Beta("p", 1, 1), shape=30)
        y = pm.Uniform("y", 0, top, shape=30)
        count, total = x.sum(), y.sum()
        pm.DiscreteUniform("count", count - 2, count + 2, observed=5)
        pm.Uniform("total", total - 1, total + 1, observed=43.0)
    return model


@pytest.mark.slow
@pytest.mark.long
def test_records_are_given_initial_values_with_which_the_release_is_possible():
    """Noise without tails: with PyMC's own initial values, all ones here, it is impossible."""
    model = bounded_noise()
    with pytest.raises(pm.exceptions.SamplingError):
        model.check_start_vals(model.initial_point())
    idata = sampled(model, ["x", "y"], draws=2000)
    count = idata.posterior["x"].values.sum(-1)
    assert abs(count - 5).max() == 2
    assert abs(idata.posterior["y"].values.sum(-1) - 43).max() <= 1
    # Given a count between 3 and 7 all are equally probable, with p integrated out.
    check_probabilities(count, [0, 0, 0] + 5 * [0.2])


def test_a_release_that_no_records_make_possible():
    with pm.Model() as model:
        x = pm.Bernoulli("x", pm.Beta("p", 1, 1), shape=5)
        pm.DiscreteUniform("count", x.sum() - 2, x.sum() + 2, observed=9)
    step = dp.PrivatizedRecords([x], model=model)
    with pytest.raises(ValueError, match="The release is impossible"):
        step.step(model.initial_point())


# ---------------------------------------------------------------------- PyMC as a host


def test_statistics_of_a_sweep():
    model = binary_count()
    step = dp.PrivatizedRecords([model["x"]], model=model, rng=3)
    point = model.initial_point()
    rates, accepted = [], []
    for _ in range(3000):
        point, (statistics,) = step.step(point)
        assert statistics["record_accepted"].shape == (12,)
        assert 0 < statistics["min_record_acceptance"] <= statistics["record_acceptance_rate"] <= 1
        rates.append(statistics["record_acceptance_rate"])
        accepted.append(statistics["record_accepted"].mean())
    difference = np.array(rates) - accepted  # a martingale
    assert abs(difference.mean()) < 4 * difference.std() / np.sqrt(len(difference))


@pytest.mark.slow
def test_many_records_are_not_listed_with_each_draw():
    model = binary_count(n=10_001, released=7000)
    with model:
        step = dp.PrivatizedRecords([model["x"]])
        idata = pm.sample(20, tune=0, chains=1, step=step, var_names=["p"], random_seed=1, **QUIET)
    assert "record_acceptance_rate" in idata.sample_stats
    assert "record_accepted" not in idata.sample_stats
    assert list(idata.posterior.data_vars) == ["p"]


def test_points_are_not_changed():
    model = binary_count()
    step = dp.PrivatizedRecords([model["x"]], model=model, rng=3)
    point = model.initial_point()
    before = {k: v.copy() for k, v in point.items()}
    step.step(point)
    np.testing.assert_equal(point, before)


@pytest.mark.parametrize("epsilon", [0, -1.0, np.inf, np.nan])
def test_epsilon_must_be_a_positive_number(epsilon):
    model = binary_count()
    with pytest.raises(ValueError, match="epsilon must be positive"):
        dp.PrivatizedRecords([model["x"]], epsilon=epsilon, model=model)


def test_records_must_be_free_variables_of_the_model():
    model = binary_count()
    with pytest.raises(ValueError, match="not random variables"):
        dp.PrivatizedRecords([model["released"]], model=model)


def test_variables_of_records_stay_together():
    with binary_count() as model, pytest.raises(ValueError, match="blocked=True"):
        dp.PrivatizedRecords([model["x"]], blocked=False)


def test_proposals_that_are_impossible_are_rejected():
    """Rejected where the release would have no probability, or none that is a number."""
    with pm.Model() as model:
        x = pm.Normal("x", 0, 1, shape=4)
        size = pt.switch(x > 1, np.nan, pt.switch(x < -1, np.inf, x))
        pm.Potential("released", -abs(size.sum()))
    step = dp.PrivatizedRecords([x], model=model, rng=1)
    point = model.initial_point()
    for _ in range(300):
        point, (statistics,) = step.step(point)
        assert (abs(point["x"]) <= 1).all()
        assert np.isfinite(statistics["record_acceptance_rate"])
