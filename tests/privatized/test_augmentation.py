"""Data augmentation: exact posteriors, the bound of the guarantee, PyMC as a host.

Posteriors are known by enumerating all records, by quadrature, or in closed form. Tolerances are
four Monte Carlo standard errors, which ArviZ estimates from the chains.
"""

from __future__ import annotations

import itertools

import cloudpickle
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
@pytest.mark.parametrize(
    "epsilon",
    [1.0, pytest.param(0.2, marks=pytest.mark.slow), pytest.param(4.0, marks=pytest.mark.slow)],
)
def test_binary_counts_with_geometric_noise(epsilon):
    n, released = 12, 9
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
def test_gaussian_release_of_gaussian_records():
    """Closed form: the mean of n records is released with Gaussian noise, all is normal."""
    n, noise, released, prior = 20, 0.8, 2.0, 1.5
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, prior)
        x = pm.Normal("x", mu, 1, shape=n)
        pm.Normal("released", x.mean(), noise, observed=released)
    idata = sampled(model, ["x"])
    variance = 1 / n + noise**2
    precision = 1 / prior**2 + 1 / variance
    mu = idata.posterior["mu"].values
    check_mean(mu, released / variance / precision)
    check_mean((mu - released / variance / precision) ** 2, 1 / precision)


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


@pytest.mark.slow
def test_categorical_records_by_enumeration():
    """Class and feature of four people, their cross table with Laplace noise."""
    n, scale = 4, 1.3
    table = np.array([[2.4, 0.1], [0.3, 1.9]])
    with pm.Model() as model:
        p = pm.Dirichlet("p", np.array([2.0, 1.0]))
        q = pm.Beta("q", 1, 1, shape=2)
        y = pm.Categorical("y", p, shape=n)
        x = pm.Bernoulli("x", q[y], shape=n)
        pm.Laplace("released", pt.zeros((2, 2))[y, x].inc(1), scale, observed=table)
    idata = sampled(model, ["y", "x"])
    weights, classes = [], []
    for cells in itertools.product(range(4), repeat=n):
        counts = np.bincount(cells, minlength=4).reshape(2, 2)
        rows = counts.sum(1)
        log_weight = (
            special.betaln(2 + rows[0], 1 + rows[1])
            + sum(special.betaln(1 + c[0], 1 + c[1]) for c in counts)
            - abs(counts - table).sum() / scale
        )
        weights.append(np.exp(log_weight))
        classes.append(rows[1])
    weights = np.array(weights) / np.sum(weights)
    expected = np.bincount(classes, weights, minlength=n + 1)
    check_probabilities(idata.posterior["y"].values.sum(-1), expected)
    mean = weights @ ((1 + np.array(classes)) / (3 + n))
    check_mean(idata.posterior["p"].values[..., 1], mean)


@pytest.mark.slow
def test_randomized_response():
    """Each answer is released; given p, these are independent."""
    answers = np.array([0, 1, 1, 1, 0, 1, 1, 1, 0, 1])
    epsilon = 1.2
    with pm.Model() as model:
        x = pm.Bernoulli("x", pm.Beta("p", 2, 2), shape=len(answers))
        dp.RandomizedResponse("answers", x, epsilon=epsilon, observed=answers)
    idata = sampled(model, ["x"], epsilon=epsilon)
    grid = np.linspace(0, 1, 4001)[1:-1]
    keep = special.expit(epsilon)
    chance = grid * keep + (1 - grid) * (1 - keep)
    posterior = stats.beta.pdf(grid, 2, 2) * stats.binom.pmf(answers.sum(), len(answers), chance)
    posterior /= posterior.sum()
    check_mean(idata.posterior["p"].values, posterior @ grid)
    # The first person said no, the second yes.
    for person in (0, 1):
        said = keep if answers[person] else 1 - keep
        true = posterior @ (grid * said / np.where(answers[person], chance, 1 - chance))
        check_mean(idata.posterior["x"].values[..., person], true)


def exponential_mechanism(total, value, epsilon):
    """Log-probability of selecting `value`, of scores ``-abs(total)`` of all candidates."""
    scores = -abs(total) * epsilon / 2
    return scores[value] - pt.logsumexp(scores)


@pytest.mark.slow
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


@pytest.mark.slow
def test_objective_perturbation():
    """The minimum of a ridge logistic loss plus noise times the parameter: density by change of variables.

    Of the released minimum the noise is a function, with a derivative: both are of sums over records,
    of gradients and of second derivatives of the loss (Chaudhuri, Monteleoni and Sarwate 2011).
    """
    n, ridge, scale, released = 6, 1.0, 0.8, 0.6
    sides = np.array([-1.0, 0.4, 1.0])  # label times feature, of three kinds of people

    def density(value, gradients, curvatures):
        noise = -(gradients + ridge * value)
        return pm.logp(pm.Laplace.dist(0, scale), noise) + pt.log(curvatures + ridge)

    with pm.Model() as model:
        tilt = pm.Normal("tilt")
        x = pm.Categorical("x", pm.math.softmax(tilt * np.arange(3.0)), shape=n)
        side = pt.as_tensor(sides)[x]
        chance = pm.math.sigmoid(-side * released)
        sums = (-side * chance).sum(), (side**2 * chance * (1 - chance)).sum()
        pm.CustomDist("released", *sums, logp=density, observed=released)
    idata = sampled(model, ["x"])
    kinds = np.array(list(itertools.product(range(3), repeat=n)))
    side = sides[kinds]
    chance = special.expit(-side * released)
    noise = (side * chance).sum(1) - ridge * released
    curvature = (side**2 * chance * (1 - chance)).sum(1) + ridge
    mechanism = stats.laplace.pdf(noise, scale=scale) * curvature
    grid = np.linspace(-5, 5, 101)
    law = special.softmax(grid[:, None] * np.arange(3), axis=1)
    weights = stats.norm.pdf(grid)[:, None] * np.prod(law[:, kinds], axis=2) * mechanism
    weights /= weights.sum()
    check_mean(idata.posterior["tilt"].values, weights.sum(1) @ grid)
    check_mean(idata.posterior["x"].values.sum(-1), weights.sum(0) @ kinds.sum(1))


@pytest.mark.slow
def test_records_with_bounds_that_depend_on_a_parameter():
    """Uniform records on (0, top) that PyMC transforms; one record, by quadrature."""
    released, scale = 1.2, 0.5
    with pm.Model() as model:
        top = pm.Exponential("top", 0.5)
        x = pm.Uniform("x", 0, top, shape=1)
        pm.Laplace("released", x.sum(), scale, observed=released)
    idata = sampled(model, ["x"], draws=8000)
    t = np.linspace(0, 40, 8001)[1:]
    u = (np.arange(400) + 0.5) / 400
    likelihood = stats.laplace.pdf(released, t[:, None] * u, scale).mean(1)
    posterior = np.exp(-0.5 * t) * likelihood
    posterior /= posterior.sum()
    check_mean(np.log(idata.posterior["top"].values), posterior @ np.log(t))


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


# ---------------------------------------------------------------------- calibration


def ranks(noise_of_model: float, n_replicates: int, seed: int) -> np.ndarray:
    """Ranks of the true mean among draws, where data have Laplace noise of scale 1.5."""
    n, rng = 8, np.random.default_rng(seed)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        x = pm.Normal("x", mu, 1, shape=n)
        z = pm.math.clip(x, -1, 2)
        sums = pt.stack([z.sum(), (z**2).sum()])
        released = pm.Flat("released", shape=2)  # nothing moves it: one step serves all releases
        pm.Potential("mechanism", pm.logp(pm.Laplace.dist(sums, noise_of_model), released).sum())
    step = dp.PrivatizedRecords([x], model=model)
    result = []
    for _ in range(n_replicates):
        truth = rng.normal()
        z = np.clip(rng.normal(truth, 1, size=n), -1, 2)
        point = {"released": rng.laplace([z.sum(), (z**2).sum()], 1.5), "x": np.zeros(n)}
        point["mu"] = np.asarray(rng.normal())
        step.set_rng(rng)
        below = 0
        for k in range(21 * 30):
            point, _ = step.step(point)
            mean = point["x"].sum() / (n + 1)  # mu given the records
            point["mu"] = np.asarray(rng.normal(mean, 1 / np.sqrt(n + 1)))
            below += k % 30 == 29 and k >= 60 and point["mu"] < truth
        result.append(below)
    return np.array(result)  # 0 to 19


@pytest.mark.slow
def test_simulation_based_calibration():
    counts = np.bincount(ranks(1.5, 800, seed=1) // 2, minlength=10)
    assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.slow
def test_calibration_would_show_a_wrong_noise_scale():
    counts = np.bincount(ranks(0.2, 800, seed=1) // 2, minlength=10)
    assert stats.chisquare(counts).pvalue < 1e-6


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


@pytest.mark.slow
def test_parallel_chains_and_seeds():
    """The same seed, the same draws: in processes of their own and one after the other."""
    model = binary_count()
    draws = []
    for seed, options in ((3, {"cores": 2, "mp_ctx": "forkserver"}), (3, {}), (4, {})):
        with model:
            step = dp.PrivatizedRecords([model["x"]])
            idata = pm.sample(50, tune=20, chains=2, step=step, random_seed=seed, **QUIET | options)
        draws.append(idata.posterior["x"].values)
    np.testing.assert_array_equal(draws[0], draws[1])
    assert (draws[0] != draws[2]).any()
    assert (draws[0][0] != draws[0][1]).any()
    assert idata.sample_stats["record_accepted"].shape == (2, 50, 12)


@pytest.mark.slow
def test_parameters_by_metropolis():
    model = binary_count()
    with model:
        steps = [dp.PrivatizedRecords([model["x"]]), pm.Metropolis([model["p"]])]
        idata = pm.sample(4000, tune=500, chains=2, step=steps, random_seed=2, **QUIET)
    _, mean = count_posterior(12, 1.0, 7)
    check_mean(idata.posterior["p"].values, mean)


@pytest.mark.slow
def test_points_may_hold_numbers():
    """In place of arrays without dimensions."""
    with pm.Model() as model:
        scale = pm.Flat("scale")
        x = pm.Normal("x", pm.Flat("mu"), 1, shape=5)
        pm.Laplace("released", x.sum(), scale, observed=1.0)
    step = dp.PrivatizedRecords([x], model=model, rng=1)
    new, _ = step.step({"scale": 2.0, "mu": np.float64(1.0), "x": np.zeros(5)})
    assert new["x"].shape == (5,)


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


@pytest.mark.slow
def test_a_step_survives_pickling():
    model = binary_count()
    step = dp.PrivatizedRecords([model["x"]], model=model, rng=3)
    point, _ = step.step(model.initial_point())
    copy = cloudpickle.loads(cloudpickle.dumps(step))
    for one, other in zip(step.step(point), copy.step(point), strict=True):
        np.testing.assert_equal(one, other)


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
