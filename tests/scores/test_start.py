"""private_start: what it looks at is what was paid for, it finds the posterior, and says so if it does not."""

from __future__ import annotations

import functools
import math

import numpy as np
import pymc as pm
import pytest

from scipy import optimize, stats
from scipy.special import expit

from pymc_dp import PrivacyBudget
from pymc_dp.errors import PrivacyBudgetExhausted
from pymc_dp.model import ClippedScores
from pymc_dp.planning import Simulator, local_information, simulator
from pymc_dp.privacy.accounting.calibration import epsilon_of
from pymc_dp.privacy.accounting.composition import Cost
from pymc_dp.privacy.mechanisms import noise_law
from pymc_dp.privacy.mechanisms.mechanism import Gaussian
from pymc_dp.privacy.randomness.bits import SeededBits
from pymc_dp.queries import noisy_total
from pymc_dp.scores import private_start, sum_law
from pymc_dp.scores import start as starts

N = 4000
RNG = np.random.default_rng(2024)
Y = RNG.normal(30.0, 2.0, size=N)
X = np.column_stack([np.ones(N), RNG.normal(size=(N, 1))])
RARE = (RNG.random(N) < expit(X @ [-3.3, 0.8])).astype(int)


def normal_model(y=Y, sd=100.0):
    with pm.Model() as model:
        mu, sigma = pm.Normal("mu", 0, sd), pm.HalfNormal("sigma", 10)
        pm.Normal("y", mu, sigma, observed=y)
    return model


def rare_model():
    with pm.Model() as model:
        pm.Bernoulli("y", logit_p=X @ pm.Normal("b", 0, 5, shape=2), observed=RARE)
    return model


def correlated_model(data, covariates):
    """hard-gauss-2d of the benchmark; as a stand-in, with the random variable in place of its data."""
    with pm.Model() as model:
        one, two = pm.Normal("theta1", 0, 10), pm.Normal("theta2", 0, 10)
        x = pm.Normal("x1", one, 1, observed=data[:, 0])
        first = data[:, 0] if covariates else x
        pm.Normal("x2", two + 0.999 * (first - one), math.sqrt(1 - 0.999**2), observed=data[:, 1])
    return model


@functools.cache
def built(name):
    """A model, compiled once, and options of its simulator and of its start."""
    options, start = {}, {}
    if name == "normal":
        model, start["guess"] = normal_model(), {"mu": 20.0, "sigma": 5.0}
    elif name == "rare":
        model, options["covariates"] = rare_model(), "public"
    elif name == "users":
        records = np.arange(N) // 4
        model = normal_model(Y + 2 * RNG.normal(size=N // 4)[records])
        options, start = {"records": records, "covariates": "public"}, {"guess": {"mu": 27.0}}
    else:
        z = np.random.default_rng(3).normal(size=(2, N, 2))
        root = np.linalg.cholesky([[1, 0.999], [0.999, 1]])
        data = z @ root.T + [0.0, 3.0]
        model, stand_in = correlated_model(data[0], True), correlated_model(data[1] + 5, False)
        options["covariates"], start["guess"] = stand_in, {"theta1": 0.1, "theta2": 3.2}
    return Simulator(model, **options), options, start


def begin(name, epsilon=2.0, seed=1, budget=None, **more):
    """A start whose secret bits are seeded."""
    compiled, options, start = built(name)
    bits = np.random.default_rng(1000 + seed)
    budget = budget or PrivacyBudget(epsilon, 1e-6, chains=2)
    start = start | {key: more.pop(key) for key in ("guess", "share") if key in more}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulator, "RecordLikelihood", lambda *_, **__: compiled.likelihood)
        patch.setattr(simulator, "SimulatedRecords", lambda *_, **__: compiled.simulated)
        patch.setattr(noisy_total, "OperatingSystemBits", lambda: SeededBits(bits))
        model = Simulator(compiled.model, **options | more)
        return private_start(model, budget=budget, random_seed=seed, **start)


@functools.cache
def exact(name, temperature=1.0):
    """Mode and precision of the posterior, by Newton's method on everything that is private."""
    likelihood = built(name)[0].likelihood
    theta = begin(name, epsilon=math.inf).theta

    def gradient(x):
        total = likelihood.clipped_grad(x, math.inf)
        return temperature * total + likelihood.grad_log_prior(x)

    for _ in range(15):
        columns = [
            (gradient(theta - 1e-5 * e) - gradient(theta + 1e-5 * e)) / 2e-5
            for e in np.eye(len(theta))
        ]
        precision = (np.array(columns) + np.array(columns).T) / 2
        theta = theta + np.linalg.solve(precision, gradient(theta))
    assert np.abs(gradient(theta)).max() < 1e-3 * np.sqrt(np.diag(precision)).max()
    return theta, precision


# ---------------------------------------------------------------- 1. accesses


def watched(**options):
    """A start, and what was done on the way, in order."""
    events, likelihood = [], built("normal")[0].likelihood
    spend, noisy = PrivacyBudget.spend, noise_law.noisy_sum
    with pytest.MonkeyPatch.context() as patch:

        def claim(self, label, accesses, *data):
            spend(self, label, accesses, *data)
            events.append(("claim", accesses))

        def total(term, index=None):
            assert isinstance(term, ClippedScores) and index is None
            events.append(("sum", term.bound))
            return type(likelihood).total(likelihood, term)

        def noise(steps, exponent, scale, *rest):
            events.append(("noise", scale))
            return noisy(steps, exponent, scale, *rest)

        def other(*_, **__):
            raise AssertionError("the data were looked at in another way")

        patch.setattr(PrivacyBudget, "spend", claim)
        patch.setattr(noise_law, "noisy_sum", noise)
        for name in ("logp", "logp_at", "clipped_change", "clipped_grad"):
            patch.setitem(likelihood.__dict__, name, other)
        patch.setitem(likelihood.__dict__, "total", total)
        try:
            return begin("normal", **options), events
        except PrivacyBudgetExhausted as error:
            return error, events


@pytest.mark.parametrize("adjacency", ["substitute", "add_remove"])
def test_what_is_accessed_is_what_is_paid_for(adjacency):
    budget = PrivacyBudget(1.0, 1e-6, chains=2, adjacency=adjacency)
    _, events = watched(budget=budget, share=0.2, covariates="public", guess=NEAR)
    (claim,), sides = budget.ledger.claims(budget.id), 2 if adjacency == "substitute" else 1
    ((mechanism, n),) = claim.accesses
    # The first sum compiles, and is thrown away.
    assert events[:2] == [("sum", 1.0), ("claim", claim.accesses)] and n > 1
    assert [kind for kind, _ in events[2:]] == ["sum", "noise"] * int(n)
    for (_, bound), (_, scale) in zip(events[2::2], events[3::2], strict=True):
        assert scale == pytest.approx(mechanism.noise_multiplier * sides * bound, rel=1e-14)
    assert "private start" in str(budget.report())
    adaptive = budget.terms.adaptive  # other claims follow
    assert 0.999 < adaptive.reading(Cost.of([(mechanism, n / 0.2)])) <= 1.0
    assert budget.spent() == adaptive.reading(Cost.of([(mechanism, n)]))
    assert epsilon_of([(mechanism, n)], 1e-6) < budget.spent() < 1


def test_nothing_is_accessed_if_the_budget_does_not_pay():
    budget = PrivacyBudget(1.0, 1e-6, chains=2)
    budget.spend("something else", ((Gaussian(epsilon_multiplier(1.0)), 1),))
    error, events = watched(budget=budget)
    assert isinstance(error, PrivacyBudgetExhausted)
    assert events == [("sum", 1.0)]  # compiled, and thrown away
    assert len(budget.ledger.claims(budget.id)) == 1


NEAR = {"mu": 30.0, "sigma": 2.0}


def epsilon_multiplier(epsilon):
    """Of one release that uses an epsilon up."""
    return starts.calibrate(lambda z: [(Gaussian(z), 1)], epsilon, 1e-6)


def test_the_number_of_records_is_private_under_add_remove():
    budget = PrivacyBudget(1.0, 1e-6, chains=2, adjacency="add_remove")
    with pytest.raises(ValueError, match="number of records is private"):
        begin("normal", budget=budget)
    assert not budget.ledger.claims(budget.id)


# ---------------------------------------------------------------- 2. the right answer


def check(name, epsilon, seed=0, n=12, **options):
    """Errors are those that the covariance given the sums has beyond the one given the records."""
    mode, precision = exact(name, options.get("temperature", 1.0))
    root = np.linalg.cholesky(precision).T
    found = [begin(name, epsilon, seed=100 * seed + k, **options) for k in range(n)]
    errors = np.array([root @ (f.theta - mode) for f in found])
    variance = np.mean([root @ f.covariance @ root.T for f in found], axis=0) - np.eye(len(root))
    sd = np.sqrt(np.maximum(np.diag(variance), 0.05))
    # A chi-square variable for each parameter; 5 for the covariances, which are those of 40 draws.
    assert np.all(np.abs(errors.mean(axis=0)) < 5 * sd / math.sqrt(n)), errors / sd
    ratio = np.sum(errors.var(axis=0, ddof=1)) / np.sum(sd**2)
    assert 0.2 < ratio < 3.0, ratio
    return errors


@pytest.mark.slow
@pytest.mark.parametrize(("name", "epsilon"), [("rare", 20.0), ("correlated", 8.0)])
def test_right_answer(name, epsilon):
    check(name, epsilon)


@pytest.mark.slow
def test_users():
    """Rows of one user are alike, which the model does not know: the sum is what is compared."""
    mode, precision = exact("users", 0.5)
    found = begin("users", 8.0, temperature=0.5)
    assert np.abs(np.linalg.cholesky(precision).T @ (found.theta - mode)).max() < 6


class TestHyperparameters:
    """Where the mass of a hierarchical model is, and not its mode: that is where all groups are equal."""

    compiled = None
    SIZES = np.array([40, 60, 90, 140, 210, 320, 480, 700])
    TRUTH = 3 + 0.2 * np.array([0.3, -1.1, 0.9, -0.6, 1.4, -0.8, 0.2, -0.3])

    @functools.cached_property
    def data(self):
        group = np.repeat(np.arange(8), self.SIZES)
        return group, np.random.default_rng(5).normal(self.TRUTH[group], 2.0)

    def model(self):
        group, y = self.data
        with pm.Model() as model:
            mu, tau = pm.Normal("mu", 0, 10), pm.HalfNormal("tau", 5)
            theta = pm.Normal("theta", mu, tau, shape=8)
            pm.Normal("y", theta[group], 2, observed=y)
        return model

    @property
    def simulator(self):
        """Compiled once for all tests of this class."""
        kind = type(self)
        if kind.compiled is None:
            kind.compiled = Simulator(self.model(), covariates="public")
        return kind.compiled

    @functools.cached_property
    def mode(self):
        """Of mu and log(tau) with theta integrated out, and theta there; with the standard deviation of log(tau)."""
        group, y = self.data
        means, errors = np.bincount(group, y) / self.SIZES, 4 / self.SIZES

        def lost(z):
            tau = math.exp(z[1])
            prior = stats.norm.logpdf(z[0], 0, 10) + stats.halfnorm.logpdf(tau, 0, 5) + z[1]
            return -prior - stats.norm.logpdf(means, z[0], np.sqrt(tau**2 + errors)).sum()

        mu, log_tau = optimize.minimize(lost, [3.0, -1.5], tol=1e-10).x
        weight = np.exp(2 * log_tau) / (np.exp(2 * log_tau) + errors)
        h = 1e-3
        curvature = lost([mu, log_tau + h]) + lost([mu, log_tau - h]) - 2 * lost([mu, log_tau])
        return np.array([mu, log_tau, *(weight * means + (1 - weight) * mu)]), h / curvature**0.5

    def start(self, epsilon, seed=3):
        budget = PrivacyBudget(epsilon, 1e-6, chains=1)
        with pytest.MonkeyPatch.context() as patch:
            bits = np.random.default_rng(seed)
            patch.setattr(noisy_total, "OperatingSystemBits", lambda: SeededBits(bits))
            guess = {"mu": 0.0, "tau": 1.0, "theta": np.zeros(8)}
            return budget, private_start(
                self.simulator, budget=budget, random_seed=seed, guess=guess
            )

    @pytest.mark.slow
    def test_marginal_mode(self, monkeypatch):
        """With the prior's own gradient, in place of its average, the start goes to the joint mode."""
        theta, sd = self.mode
        _, found = self.start(math.inf)
        assert abs(found.theta[1] - theta[1]) < 0.5 * sd
        for module in (local_information, sum_law):
            monkeypatch.setattr(module, "averaged", lambda function, *_: function)
        with np.errstate(all="ignore"):
            _, trapped = self.start(math.inf)
        assert trapped.theta[1] < theta[1] - 2 * sd

    @staticmethod
    def two_levels(seed=3):
        """A start in groups of districts, and the mode of mu and the logarithms of two standard deviations."""
        rng = np.random.default_rng(7)
        district, group = np.arange(20) // 4, np.repeat(np.arange(20), 200)
        truth = 3 + 0.15 * rng.normal(size=5)[district] + 0.3 * rng.normal(size=20)
        y = rng.normal(truth[group], 2.0)
        with pm.Model() as model:
            mu, between, within = pm.Normal("mu", 0, 10), pm.HalfNormal("between", 1), pm.HalfNormal("within", 1)  # fmt: skip
            level = pm.Normal("level", mu, between, shape=5)
            theta = pm.Normal("theta", level[district], within, shape=20)
            pm.Normal("y", theta[group], 2, observed=y)
        budget = PrivacyBudget(math.inf, 1e-6, chains=1)
        prepared = Simulator(model, public=["theta"], covariates="public")
        guess = {"mu": 3.0, "between": 0.5, "within": 0.5}
        start = private_start(prepared, budget=budget, guess=guess, random_seed=seed)
        alike, means = district[:, None] == district, np.bincount(group, y) / 200

        def lost(z):
            between, within = np.exp(z[1:])
            covariance = between**2 * alike + (within**2 + 4 / 200) * np.eye(20)
            prior = stats.norm.logpdf(z[0], 0, 10) + stats.halfnorm.logpdf([between, within]).sum()
            fit = stats.multivariate_normal.logpdf(means, np.full(20, z[0]), covariance)
            return -prior - z[1:].sum() - fit

        found = optimize.minimize(lost, [3.0, -1.0, -1.0])
        values = start.point
        own = [values["mu"], values["between_log__"], values["within_log__"]]
        return (np.array(own) - found.x) / np.sqrt(np.diag(found.hess_inv))

    @pytest.mark.slow
    @pytest.mark.long
    def test_two_levels_are_integrated_out(self):
        assert np.abs(self.two_levels()).max() < 0.4

    @pytest.mark.parametrize("d", [1, 3, 8, 40])
    def test_average(self, d):
        """Of the gradient of normal priors, in closed form; of many parameters for independent errors."""
        rng = np.random.default_rng(d)
        root = np.tril(rng.normal(size=(d, d))) if d < 32 else np.diag(rng.uniform(1, 2, d))
        covariance, theta = root @ root.T, rng.normal(size=d + 2)

        def gradient(x):
            mu, log_tau, *rest = x
            off = (rest - mu) / np.exp(2 * log_tau)
            return np.array([off.sum(), (off * (rest - mu)).sum() - d, *-off])

        found = local_information.averaged(gradient, np.arange(2, d + 2), covariance)(theta)
        expected = gradient(theta)
        expected[1] += np.trace(covariance) / np.exp(2 * theta[1])
        assert found == pytest.approx(expected, rel=1e-10)


@pytest.mark.slow
@pytest.mark.long
def test_units_do_not_matter():
    """Parameters whose posterior is wide in their units."""
    y = 1e6 * (Y - 25)
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu", 0, 1e8), 2e6, observed=y)
    budget = PrivacyBudget(4.0, 1e-6, chains=1)
    found = private_start(Simulator(model), budget=budget, random_seed=1)
    sd = math.sqrt(found.covariance[0, 0])
    assert abs(found.theta[0] - y.mean()) < 5 * sd < 50 * 2e6 / math.sqrt(N)


def test_a_start_that_has_not_arrived_warns():
    with pytest.warns(UserWarning, match=r"has not arrived: .*narrower priors, or a guess="):
        begin("normal", epsilon=0.01, guess=None)


# ---------------------------------------------------------------- 3. errors


def test_a_guess_where_the_prior_is_zero():
    budget = PrivacyBudget(1.0, 1e-6, chains=1)
    for guess in ({"sigma": -1.0}, {"mu": math.inf}):
        with pytest.raises(ValueError, match="guess is where the prior is zero"):
            begin("normal", budget=budget, guess=guess)
    assert not budget.ledger.claims(budget.id)


@pytest.mark.parametrize("other", ["names", "shapes", "order"])
def test_stand_in_with_other_parameters(other):
    with pm.Model() as stand_in:
        if other == "order":
            pm.HalfNormal("sigma", 9)
        mu = pm.Normal(
            "m" if other == "names" else "mu", 0, 9, shape=1 if other == "shapes" else ()
        )
        sigma = stand_in["sigma"] if other == "order" else pm.HalfNormal("sigma", 9)
        pm.Normal("y", mu, sigma, observed=Y[:9])
    compiled = built("normal")[0]  # once
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulator, "RecordLikelihood", lambda *_, **__: compiled.likelihood)
        with pytest.raises(ValueError, match=r"stand-in .* must have the parameters of the model"):
            Simulator(compiled.model, covariates=stand_in)
