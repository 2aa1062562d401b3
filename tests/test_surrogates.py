"""Surrogates: what they leave of a record, the noise they know of, what a plan says, and the way to a posterior.

Where the model has as many sufficient statistics as parameters, all is known in closed form.
"""

from __future__ import annotations

import copy
import functools
import math

from types import SimpleNamespace

import cloudpickle
import numpy as np
import pymc as pm
import pytest

from scipy import stats
from scipy.special import expit

from pymc_dp import (
    DPControlVariate,
    PrivacyBudget,
    RecordLikelihood,
    SurrogateChoice,
    newton,
    plan_surrogate,
    preparation,
    private_start,
    private_surrogate,
    starting,
    surrogates,
)
from pymc_dp.errors import PrivacyBudgetExhausted
from pymc_dp.privacy.mechanisms import Gaussian
from pymc_dp.privacy.noise import SeededBits
from pymc_dp.remainders import best_within
from pymc_dp.starting import PrivateStart
from pymc_dp.steps import base
from pymc_dp.steps.features import Features
from pymc_dp.steps.gradients import Coordinates
from pymc_dp.steps.surrogate import Surrogate
from tests.steps import test_control_variate as control
from tests.steps.test_control_variate import check_law

pytestmark = pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")

N = 2000
#: One in fifty records is not from the model's law, but on either side alike.
Y = np.random.default_rng(31).normal(0.3, 1.0, (N, 2))
Y[:40] = 0.3 + 20.0 * np.where(np.arange(40) % 2, 1, -1)[:, None] * [1, 0.5]
BEND = 0.6


def normal_model(y=Y[:, 0]):
    with pm.Model() as model:
        pm.Normal("y", pm.Flat("theta"), 1.0, observed=y)
    return model


def curved_model():
    with pm.Model() as model:
        one, two = pm.Normal("theta1", 0, 5), pm.Normal("theta2", 0, 5)
        pm.Normal("x", one, 1.0, observed=Y[:, 0])
        pm.Normal("y", two + BEND * one**2, 1.0, observed=Y[:, 1])
    return model


def curved_logp(theta):
    means = np.array([theta[0], theta[1] + BEND * theta[0] ** 2])
    return -((Y - means) ** 2).sum(axis=1) / 2


MODELS = {"normal": normal_model, "curved": curved_model}


@functools.cache
def built(name):
    """Compiled once."""
    model = MODELS[name]()
    likelihood, simulated = (
        RecordLikelihood(model),
        preparation.simulation(model, None, False, None),
    )
    return SimpleNamespace(model=model, likelihood=likelihood, simulated=simulated)


def features_of(simulated, theta, clip_bound, within=1.0, seed=0):
    coordinates = Coordinates(np.eye(len(theta)), np.arange(len(theta)), len(theta))
    return Features(simulated, theta, coordinates, clip_bound, within, np.random.default_rng(seed))


# ---------------------------------------------------------------- 1. what is left


def left_of_private(features, likelihood, theta):
    """Log-likelihood ratios of the private records, what is left of them, and the coefficients."""
    expansion = features.at(theta)
    ratios = likelihood.logp(theta) - likelihood.logp(features.theta)
    values = features.of(likelihood.gradients(features.theta))
    return ratios, ratios - expansion.intercept - values @ expansion.slope, expansion, values


@pytest.mark.parametrize("name", MODELS)
def test_sufficient_statistics_leave_nothing(name):
    """Also of records that are not from the model; but for clipping."""
    case = built(name)
    d = case.likelihood.n_dim
    reference = np.full(d, 0.2)
    features = features_of(case.simulated, reference, 100.0)
    rng = np.random.default_rng(1)
    for scale in (0.01, 0.1, 2.0):
        theta = reference + scale * rng.normal(size=d)
        ratios, left, expansion, values = left_of_private(features, case.likelihood, theta)
        assert np.abs(ratios).max() > 0.01
        assert np.abs(left).max() < 1e-9 * max(1, np.abs(ratios).max())
        assert expansion.bound < 1e-9
        assert np.abs(features.left(theta, expansion)[1]).max() < 1e-9
        assert abs(features.cut(theta, expansion)) < 1e-10
        if name == "curved":
            exact = (curved_logp(theta) - curved_logp(reference)).sum()
        else:
            exact = ((Y[:, 0] - reference) ** 2 - (Y[:, 0] - theta) ** 2).sum() / 2
        total = case.likelihood.clipped_grad(reference, 100.0, directions=np.eye(d))
        predicted = N * expansion.intercept + expansion.slope @ total
        grid = N * 100.0 * 2.0**-30 * np.abs(expansion.slope).sum()
        assert predicted == pytest.approx(exact, rel=1e-9, abs=grid)
        predicted = N * expansion.intercept + expansion.slope @ values.sum(axis=0)
        assert predicted == pytest.approx(exact, rel=1e-9, abs=1e-8)
        clipped = features_of(case.simulated, reference, 1.0, within=0.9)
        left = left_of_private(clipped, case.likelihood, theta)[1]
        assert np.abs(left).max() > 0.2 * np.abs(ratios).max()


def test_what_is_left_is_of_second_order():
    """Logistic regression: half the move leaves a quarter; what clipping takes is of first order."""
    case = control.built("logit")
    direction = np.array([1.0, -1.0])

    def sizes(clip_bound):
        features = features_of(case.simulated, case.reference, clip_bound, within=0.95)
        for h in (0.02, 0.01):
            _, left, expansion, _ = left_of_private(features, case.likelihood, case.reference + h * direction)  # fmt: skip
            yield np.array([expansion.bound, np.sqrt(np.mean(left**2))])

    far, near = sizes(1e6)
    assert np.all(np.abs(far / near - 4) < 0.25), far / near
    far, near = sizes(0.3)
    assert np.all(np.abs(far / near - 2) < 0.25), far / near


def test_bound_is_the_quantile_and_cut_the_mean():
    case = control.built("logit")
    features = features_of(case.simulated, case.reference, 0.5, within=0.7)
    theta = np.add(case.reference, [0.2, -0.3])
    expansion = features.at(theta)
    ratios, left = features.left(theta, expansion)
    # All simulated records are few enough to be used for both.
    assert np.mean(np.abs(left) <= expansion.bound) == pytest.approx(0.7, abs=1 / len(left))
    data = (*case.public, features._data[0].astype(float))
    exact = case.logp(theta, *data) - case.logp(case.reference, *data)
    np.testing.assert_allclose(ratios, exact, rtol=1e-9, atol=1e-12)
    # Least squares, with an intercept that leaves nothing on average.
    assert abs(left.mean()) < 1e-12 and np.abs(left @ features.values).max() < 1e-8 * len(left)
    mean = -np.clip(left, -expansion.bound, expansion.bound).mean()
    assert features.cut(theta, expansion) == pytest.approx(mean, rel=1e-9)
    assert abs(mean) > 1e-4


def test_nothing_is_cut_off_by_a_bound_beyond_all_records(monkeypatch):
    """Also where coefficients come from few of the records, so that what is left has a mean."""
    monkeypatch.setattr("pymc_dp.steps.features._RECORDS", 200)
    case = control.built("logit")
    features = features_of(case.simulated, case.reference, 0.5, within=0.7)
    theta = np.add(case.reference, [0.2, -0.3])
    expansion = features.at(theta)
    _, left = features.left(theta, expansion)
    assert abs(left.mean()) > 1e-6
    assert features.cut(theta, expansion._replace(bound=np.abs(left).max())) == 0
    beyond = np.sign(left) * np.maximum(np.abs(left) - expansion.bound, 0)
    assert features.cut(theta, expansion) == pytest.approx(beyond.mean(), rel=1e-9)


@pytest.mark.parametrize("seed", range(8))
def test_chance_does_not_decide_how_many_of_few_records_are_clipped(monkeypatch, seed):
    """As many as their part among all, but for one; of records drawn blindly it would be eight at times."""
    monkeypatch.setattr("pymc_dp.steps.features._RECORDS", 300)
    case = control.built("logit")
    features = features_of(case.simulated, case.reference, 0.7, seed=seed)
    few, all_ = (
        np.linalg.norm(values, axis=1) > 0.7 * (1 - 1e-9)
        for values in (features._few[1], features.values)
    )
    assert len(few) == 300 and 0.05 < all_.mean() < 0.95
    assert abs(few.sum() - 300 * all_.mean()) <= 1


def test_features_are_clipped_and_finite():
    case = control.built("logit")
    features = control.surrogate_of("logit", seed=1).features
    rows = np.random.default_rng(2).normal(size=(60, 2)) * 10.0 ** np.arange(-10, 50, 1)[:, None]
    rows[:6] = [[np.nan, 0], [0, np.inf], [-np.inf, np.inf], [1e300, 1.0], [0, 0], [1e-300, 0]]
    values = features.of(rows.copy())
    norms = np.linalg.norm(values, axis=1)
    assert np.isfinite(values).all() and norms.max() <= features.clip_bound * (1 + 1e-12)
    np.testing.assert_array_equal(values[:5], 0.0)
    with np.errstate(all="ignore"):
        vectors = rows @ features.coordinates.directions
        inside = np.linalg.norm(np.nan_to_num(vectors), axis=1) < features.clip_bound
    assert 5 < inside.sum() < 40
    np.testing.assert_allclose(values[inside][2:], vectors[inside][2:], rtol=1e-12)
    long = ~inside
    long[:6] = False
    np.testing.assert_allclose(norms[long], features.clip_bound, rtol=1e-12)
    np.testing.assert_allclose(
        values[long] / norms[long, None],
        vectors[long] / np.linalg.norm(vectors[long], axis=1, keepdims=True),
    )
    # Sums are those that are released, but for the grid, of 2**30 steps or more within the bound.
    directions = features.coordinates.directions
    for theta in (case.reference, case.reference + 1.0):
        own = features.of(case.likelihood.gradients(theta)).sum(axis=0)
        released = case.likelihood.clipped_grad(theta, features.clip_bound, directions=directions)
        np.testing.assert_allclose(own, released, atol=control.N * features.clip_bound * 2.0**-29)
        assert np.abs(own).max() > 1


# ---------------------------------------------------------------- 2. noise


def normal_surrogate(ratio, temperature=1.0, offset=5.0, **options):
    """Of the normal mean, with a noise variance that is so many times the number of records."""
    case = built("normal")
    features = features_of(case.simulated, np.array([0.25]), 1e6)
    sigma = math.sqrt(ratio * N)
    total = features.of(case.likelihood.gradients(features.theta)).sum(axis=0) + offset * sigma / 5
    return Surrogate(
        features, total, sigma, N, temperature, np.random.default_rng(3), **options
    ), sigma  # fmt: skip


def moments(surrogate, centre, sd, extra=lambda position: 0.0):
    """Mean and variance of the density by quadrature; raises if its mass is not within the grid."""
    grid = centre + sd * np.linspace(-10, 10, 401)
    positions = [surrogate.at(np.array([x])) for x in grid]
    logs = np.array([p.density + extra(p) for p in positions])
    weight = np.exp(logs - logs.max())
    weight /= weight.sum()
    if not max(weight[0], weight[-1]) < 1e-6:
        raise AssertionError("improper")
    mean = weight @ grid
    return mean, weight @ (grid - mean) ** 2


@pytest.mark.parametrize("temperature", [1.0, pytest.param(0.5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("ratio", [0.25, 4.0])
def test_noise_of_a_normal_mean(ratio, temperature):
    """Posterior given the noisy sum, tempered: ``N(S/N, 1/(T N) + sigma^2/N^2)``; but for the simulated variance."""
    surrogate, sigma = normal_surrogate(ratio, temperature)
    mean, variance = 0.25 + surrogate.total[0] / N, 1 / (temperature * N) + sigma**2 / N**2
    found = moments(surrogate, mean, math.sqrt(variance))
    # What is simulated has another variance, which matters the more, the more noise there is; its mean
    # does not matter: gradients that are not clipped are known to have mean zero.
    v, m = surrogate.features.values.var(ddof=1), surrogate.features.values.mean()
    assert abs(v - 1) < 5 * math.sqrt(2 / N) and abs(m) > 0.2 / math.sqrt(N)
    known = v * N / (v * N + temperature * sigma**2)
    precision = temperature * N * (1 - v + v * known)
    assert found[1] == pytest.approx(1 / precision, rel=1e-4)
    expected = 0.25 + temperature * known * surrogate.total[0] / precision
    assert found[0] == pytest.approx(expected, abs=1e-4 * math.sqrt(variance))
    error = abs(v - 1) * (1 + ratio * temperature)
    assert found[1] == pytest.approx(variance, rel=1.5 * error + 1e-4)
    assert abs(found[0] - mean) < 3 * error * math.sqrt(variance)

    # What a first order would add is improper as soon as the noise exceeds the data.
    ignorant, _ = normal_surrogate(ratio, temperature, noise_aware=False)

    def first_order(position):
        return temperature**2 * sigma**2 * float(position.expansion.slope @ position.expansion.slope) / 2  # fmt: skip

    if ratio * temperature > 1:
        with pytest.raises(AssertionError, match="improper"):
            moments(ignorant, mean, math.sqrt(variance), first_order)
    else:
        _, wide = moments(ignorant, mean, math.sqrt(variance), first_order)
        assert wide == pytest.approx(1 / (temperature * N * (1 - temperature * ratio)), rel=1e-3)
    mean, variance = moments(ignorant, mean, 1 / math.sqrt(temperature * N))
    assert mean == pytest.approx(0.25 + surrogate.total[0] / N, abs=1e-3 / math.sqrt(N))
    assert variance == pytest.approx(1 / (temperature * N), rel=1e-4)


def test_without_noise_it_does_not_matter_whether_it_is_known():
    one, _ = normal_surrogate(0.0)
    other, _ = normal_surrogate(0.0, noise_aware=False)
    for x in (0.2, 0.3):
        assert one.at(np.array([x])).density == other.at(np.array([x])).density


# ---------------------------------------------------------------- 3. draws


@functools.cache
def skewed(seed=0):
    """The surrogate of six records of an exponential law, and its density on a grid."""
    features = control.surrogate_of("rate", clipped=0.05).features
    n = 6
    surrogate = Surrogate(features, features.expected(n), 0.0, n, 1.0, np.random.default_rng(seed))
    grid = np.linspace(-4.5, 2.5, 600)
    logs = np.array([surrogate.at(np.array([x])).density for x in grid])
    return surrogate, grid, logs


def moved(surrogate, n, seed):
    position, rng, draws = surrogate.at(surrogate.draws[0]), np.random.default_rng(seed), []
    for _ in range(n):
        position = surrogate.move(position, rng)
        draws.append(position.theta[0])
    return np.array(draws[20:])


SEEDS = [1, *(pytest.param(s, marks=pytest.mark.slow) for s in (2, 3, 4))]


@pytest.mark.parametrize("seed", SEEDS)
def test_moves_leave_the_surrogate_invariant(seed):
    surrogate, grid, logs = skewed()
    draws = moved(surrogate, 700, seed)
    check_law(draws, grid, logs)
    for wrong in (draws + 0.6 * draws.std(), draws.mean() + 2.5 * (draws - draws.mean())):
        with pytest.raises(AssertionError, match="wrong law"):
            check_law(wrong, grid, logs)


@pytest.mark.parametrize("seed", SEEDS)
def test_draws_have_the_law_of_the_surrogate(seed):
    surrogate, grid, logs = skewed(seed)
    check_law(surrogate.draws[:, 0], grid, logs)
    with pytest.raises(AssertionError, match="wrong law"):
        check_law(surrogate.draws[:, 0] + 1.2 * surrogate.draws.std(), grid, logs)
    every = math.ceil(len(surrogate.draws) / 500)
    bounds = [surrogate.at(theta).expansion.bound for theta in surrogate.draws[:: 10 * every]]
    np.testing.assert_array_equal(surrogate.bounds[::10], bounds)


def test_bounds_can_be_chosen_when_the_law_is_known():
    """The same draws, other bounds; what is best weighs what they cut off against the draws they allow."""
    case = control.built("logit")
    surrogate = control.surrogate_of("logit", seed=1)
    surrogate = copy.copy(surrogate)
    surrogate.features = copy.copy(surrogate.features)
    some, laws, bounds = surrogate.draws[:3], [], []
    for within in (0.9, 0.99, 1.0):
        surrogate.hold(within)
        laws.append([surrogate.at(theta).density for theta in some])
        bounds.append(surrogate.bounds.copy())
    assert laws[0] == laws[1] == laws[2]
    assert np.all(bounds[0] < bounds[1]) and np.all(bounds[1] < bounds[2])

    found = {
        epsilon: best_within(
            case.simulated, surrogate, PrivacyBudget(epsilon, 1e-6, chains=2), 1000
        )
        for epsilon in (0.05, 0.5, math.inf)
    }
    assert found[0.05] < found[math.inf] == 1.0 and found[0.05] <= found[0.5]


# ---------------------------------------------------------------- 4. what it holds


def test_pickle_holds_nothing_private():
    """None of the private numbers, which a likelihood would hold, and all else."""
    case = built("normal")
    surrogate, _ = normal_surrogate(1.0)
    dumped = cloudpickle.dumps(surrogate)
    assert all(y.tobytes() in cloudpickle.dumps(case.likelihood) for y in Y[:5, 0])
    assert not any(y.tobytes() in dumped for y in Y[:, 0])
    gradients = case.likelihood.gradients(surrogate.features.theta)
    assert not any(g.tobytes() in dumped for g in gradients)
    assert surrogate.total.tobytes() in dumped
    copy = cloudpickle.loads(dumped)
    for theta in surrogate.draws[:3]:
        one, other = surrogate.at(theta), copy.at(theta)
        assert one.density == other.density and one.expansion.bound == other.expansion.bound
    rngs = np.random.default_rng(1), np.random.default_rng(1)
    one, other = (s.move(s.at(s.draws[7]), rng) for s, rng in zip((surrogate, copy), rngs, strict=True))  # fmt: skip
    np.testing.assert_array_equal(one.theta, other.theta)


# ---------------------------------------------------------------- 5. the release

#: Where the likelihood of the clipped records is highest, about.
REFERENCE = 0.31
START = PrivateStart(
    point={"theta": np.array(REFERENCE)}, theta=np.array([REFERENCE]), precision=np.array([[float(N)]]),
    noise=np.zeros((1, 1)), path=[], noise_multiplier=1.0,
)  # fmt: skip
CHOICE = SurrogateChoice(1.7, 0.1, 0.95, 3.0, 0.5, 0.2, 0.1, 100.0, 60.0)


def shared(patch, case):
    """Compile nothing anew."""
    for module in (preparation, base):
        patch.setattr(module, "RecordLikelihood", lambda *_, **__: case.likelihood)
    patch.setattr(preparation, "SimulatedRecords", lambda *_, **__: case.simulated)


def watched(budget, **options):
    """A surrogate whose secret bits are seeded, and what was done on the way to it."""
    case, events = built("normal"), []
    likelihood, spend, noisy = case.likelihood, PrivacyBudget.spend, surrogates.noisy_sum
    with pytest.MonkeyPatch.context() as patch:
        shared(patch, case)

        def claim(self, label, accesses, *data):
            spend(self, label, accesses, *data)
            events.append(("claim", label, accesses))

        def steps(theta, bound, *arguments, **more):
            result = type(likelihood).clipped_grad_steps(likelihood, theta, bound, *arguments, **more)  # fmt: skip
            events.append(("sum", float(theta[0]), bound, result[0]))
            return result

        def noise(steps, exponent, scale, bits):
            events.append(("noise", steps, scale))
            return noisy(steps, exponent, scale, SeededBits(np.random.default_rng(4)))

        def other(*_, **__):
            raise AssertionError("the data were looked at in another way")

        patch.setattr(PrivacyBudget, "spend", claim)
        patch.setattr(surrogates, "noisy_sum", noise)
        for name in ("logp", "logp_at", "clipped_sum", "clipped_grad", "gradients"):
            patch.setitem(likelihood.__dict__, name, other)
        patch.setitem(likelihood.__dict__, "clipped_grad_steps", steps)
        try:
            found = private_surrogate(
                budget=budget, start=START, model=case.model, random_seed=1, **options
            )
        except (PrivacyBudgetExhausted, ValueError) as error:
            found = error
    return found, events


@pytest.mark.parametrize("adjacency", ["substitute", "add_remove"])
def test_one_sum_is_released_and_paid_for(adjacency):
    budget = PrivacyBudget(2.0, 1e-6, chains=2, adjacency=adjacency)
    surrogate, events = watched(budget, choice=CHOICE, public_covariates=True)
    sides = 2 if adjacency == "substitute" else 1
    kinds = [event[0] for event in events]
    # The first sum, elsewhere, is for compiling: nothing is done with it.
    assert kinds == ["sum", "claim", "sum", "noise"]
    assert events[1][1:] == ("sum of gradients", ((Gaussian(3.0), 1),))
    assert events[2][1:3] == (REFERENCE, 1.7)
    _, steps, scale = events[3]
    assert steps is events[2][3]
    assert scale == surrogate.noise_sd == pytest.approx(sides * 1.7 * 3.0, rel=1e-12)
    assert surrogate.features.clip_bound == 1.7
    (claim,) = budget.ledger.claims(budget.id)
    assert (claim.step, claim.accesses) == ("sum of gradients", ((Gaussian(3.0), 1),))
    exact = surrogate.features.of(built("normal").likelihood.gradients(START.theta)).sum(axis=0)
    noise = surrogate.total - exact
    assert 1e-3 * scale < np.abs(noise).max() < 6 * scale
    # A second one would have to be paid for, too: not on this budget.
    error, events = watched(budget, choice=CHOICE, public_covariates=True)
    assert isinstance(error, PrivacyBudgetExhausted) and [e[0] for e in events] == ["sum"]


def test_nothing_is_released_if_the_budget_does_not_pay():
    budget = PrivacyBudget(0.3, 1e-6, chains=2)
    error, events = watched(budget, choice=CHOICE)
    assert isinstance(error, PrivacyBudgetExhausted)
    assert [event[0] for event in events] == ["sum"]
    assert not budget.ledger.claims(budget.id)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"temperature": 0.0}, "temperature must lie in"),
        ({"temperature": 1.5}, "temperature must lie in"),
        ({"temperature": math.nan}, "temperature must lie in"),
        ({"n_records": 0}, "n_records must be at least 1"),
    ],
    ids=str,
)
def test_refused(options, match):
    budget = PrivacyBudget(2.0, 1e-6, chains=1)
    error, events = watched(budget, choice=CHOICE, **options)
    assert isinstance(error, ValueError) and match in str(error)
    assert not events and not budget.ledger.claims(budget.id)


def test_number_of_records_is_private_under_add_remove():
    budget = PrivacyBudget(2.0, 1e-6, chains=1, adjacency="add_remove")
    error, events = watched(budget, choice=CHOICE)
    assert "number of records is private" in str(error) and not events


# ---------------------------------------------------------------- 6. plans


def plan(budget, max_draws=100_000, model=None, case=None, **options):
    """Of the normal mean, without a look at the data."""
    case = (case or built("normal")) if model is None else None
    with pytest.MonkeyPatch.context() as patch:
        if case is not None:
            shared(patch, case)

            def other(*_, **__):
                raise AssertionError("the data were looked at")

            for name in ("logp", "logp_at", "clipped_sum", "clipped_grad", "clipped_grad_steps", "gradients"):  # fmt: skip
                patch.setitem(case.likelihood.__dict__, name, other)
        return plan_surrogate(
            **{"at": {"theta": REFERENCE}, "random_seed": 1, "max_draws": max_draws} | options,
            budget=budget, model=model or case.model,
        )  # fmt: skip


@functools.cache
def normal_plan():
    budget = PrivacyBudget(2.0, 1e-6, chains=2)
    found = plan(budget)
    assert not budget.ledger.claims(budget.id) and budget.spent() == 0
    return found


def test_data_do_not_matter_to_a_plan():
    """To the last digit, whatever was observed; but another number of records matters."""
    other = np.random.default_rng(5).standard_cauchy(N) * 1e3
    budget = PrivacyBudget(2.0, 1e-6, chains=2)
    again = plan(budget, model=normal_model(other))
    first = normal_plan()
    assert again.choices == first.choices and str(again) == str(first)
    assert "private data were not looked at" in str(first)
    assert not budget.ledger.claims(budget.id)


def test_noise_of_a_plan():
    """In posterior standard deviations: of the sum's noise, times the slope of the log-likelihood ratio in clipped gradients."""
    found = normal_plan()
    assert len({c.gradient_clip_bound for c in found.choices}) > 1
    for c in found.choices:
        b, z = c.gradient_clip_bound, c.noise_multiplier
        seen = 1 - 2 * stats.norm.sf(b)
        square = seen - 2 * b * stats.norm.pdf(b) + b**2 * (1 - seen)
        expected = 2 * z * b / math.sqrt(N) * seen / square
        # Draws at which slopes are compared are 32: their spread is known to an eighth.
        assert c.noise == pytest.approx(expected, rel=0.4)
        assert c.gradients_clipped == pytest.approx(1 - seen, abs=0.02)


def test_parts_of_a_plan_are_of_what_decisions_are_paid_from():
    budget = PrivacyBudget(2.0, 1e-6, chains=2)
    adaptive = budget.terms.adaptive
    parts = {c.part: c.noise_multiplier for c in normal_plan().choices}
    assert len(parts) > 3
    for part, z in parts.items():
        assert adaptive.price(Gaussian(z)) / adaptive.limit == pytest.approx(part, rel=2e-6)


@pytest.mark.parametrize("accountant", ["zcdp", "moments", "pld"])
def test_accountants_without_a_filter_are_refused_before_anything_is_spent(accountant):
    budget = PrivacyBudget(2.0, 1e-6, chains=2, accountant=accountant)
    with pytest.raises(ValueError, match="use 'best', 'rdp' or 'gaussian'"):
        plan(budget)
    error, events = watched(budget, choice=CHOICE)
    assert (
        isinstance(error, ValueError)
        and "use 'best', 'rdp' or 'gaussian'" in str(error)
        and not events
    )
    assert not budget.ledger.claims(budget.id)


def test_many_records_are_clipped_less_at_a_start():
    """Where noise is small beside what a model that is not quite true may be wrong about."""
    rows = np.random.default_rng(1).standard_normal((5000, 2))

    def bound(n):
        around = newton.Surroundings(n * np.eye(2), rows, np.zeros_like)
        return newton.newton_step(around, 1.0, 0.5, n).bound

    few, many = bound(100), bound(1_000_000)
    assert few < np.quantile(np.linalg.norm(rows, axis=1), 0.95) < many


@pytest.mark.slow
def test_draws_of_a_plan():
    """Those of the step that is built from the choice, within a factor of two: the posterior is not centred at the reference."""
    found = normal_plan()
    seen = 0
    for choice in found.choices:
        if choice.draws >= 100_000 or seen == 2:  # as many as were allowed
            continue
        budget = PrivacyBudget(2.0, 1e-6, chains=2)
        surrogate, _ = watched(budget, choice=choice)
        with pytest.MonkeyPatch.context() as patch:
            shared(patch, built("normal"))
            DPControlVariate(budget=budget, surrogate=surrogate, model=built("normal").model)
        assert 0.5 < budget.expected_draws() / choice.draws < 2, choice
        seen += 1
    assert seen == 2
    most = plan(PrivacyBudget(2.0, 1e-6, chains=2), max_draws=40).choices
    assert max(c.draws for c in most) == 40


def test_private_covariates_are_refused():
    case = control.built("logit")
    budget = PrivacyBudget(2.0, 1e-6, chains=1)
    with pytest.raises(ValueError, match="public_covariates=True"):
        plan_surrogate(budget=budget, model=case.model)
    assert not budget.ledger.claims(budget.id)


@pytest.mark.slow
def test_a_budget_that_is_too_small():
    budget = PrivacyBudget(1e-3, 1e-6, chains=50)
    case = control.built("logit")
    with pytest.raises(PrivacyBudgetExhausted, match="does not pay for a sum of gradients"):
        plan(budget, case=case, at={"beta": case.reference}, stand_in=case.model)


def test_so_much_noise_that_there_are_no_numbers():
    """Places that a sum leads to overflow: that is no choice, and no warning."""
    group = np.arange(2000) % 2
    with pm.Model() as model:
        mean = pm.Normal("mean", 0, 10) + pm.Normal("effect", 0, 10) * group
        pm.Normal("y", mean, pm.HalfNormal("sd", 10), observed=np.zeros(2000))
    guess = {"mean": 12.0, "effect": 0.5, "sd": 3.0}
    with pytest.raises(PrivacyBudgetExhausted, match="does not pay for a sum of gradients"):
        plan_surrogate(
            budget=PrivacyBudget(0.5, 1e-6, chains=2), at=guess, public_covariates=True, model=model, random_seed=1
        )  # fmt: skip


def test_a_budget_that_is_used_up():
    budget = PrivacyBudget(2.0, 1e-6, chains=1)
    z = starting.calibrate(lambda z: [(Gaussian(z), 1)], 2.0, 1e-6)
    budget.spend("something else", ((Gaussian(z), 1),))
    with pytest.raises(PrivacyBudgetExhausted):
        plan(budget)


def test_infinite_epsilon():
    assert plan(PrivacyBudget(math.inf, 1e-6, chains=1)).chosen.noise < 0.01


# ---------------------------------------------------------------- 7. end to end


def test_on_one_budget():
    """Sum, chains and report; all that was claimed is within epsilon."""
    budget = PrivacyBudget(2.0, 1e-6, chains=2)
    surrogate, _ = watched(budget, max_draws=60)
    case = built("normal")
    assert surrogate.features.within == best_within(case.simulated, surrogate, budget, 60)
    with pytest.MonkeyPatch.context() as patch, case.model:
        shared(patch, case)
        step = DPControlVariate(budget=budget, surrogate=surrogate)
        idata = pm.sample(
            draws=40, tune=0, chains=2, cores=1, step=step, callback=budget, progressbar=False,
            compute_convergence_checks=False, random_seed=1,
        )  # fmt: skip
    labels = [claim.step for claim in budget.ledger.claims(budget.id)]
    assert labels == ["sum of gradients", step.label, step.label]
    assert 1.9 < budget.spent() <= 2.0
    assert "sum of gradients" in str(budget.report())
    draws = idata.posterior["theta"].values
    assert draws.shape[1] > 30
    sd = math.sqrt(1 / N + surrogate.noise_sd**2 / N**2)
    assert abs(draws.mean() - Y[:, 0].mean()) < 8 * sd


def logistic(n=20_000, beta=(-0.5, 0.8, -0.4)):
    rng = np.random.default_rng(8)
    x = np.column_stack([np.ones(n), rng.uniform(-1.7, 1.7, (n, 2))])
    y = (rng.random(n) < expit(x @ beta)) * 1
    with pm.Model() as model:
        pm.Bernoulli("y", logit_p=x @ pm.Normal("beta", 0, 5, shape=3), observed=y)
    mode = np.zeros(3)
    for _ in range(12):
        p = expit(x @ mode)
        precision = (x * (p * (1 - p))[:, None]).T @ x + np.eye(3) / 25
        mode = mode + np.linalg.solve(precision, x.T @ (y - p) - mode / 25)
    case = SimpleNamespace(
        model=model, likelihood=RecordLikelihood(model), simulated=preparation.simulation(model, None, True, None)
    )  # fmt: skip
    return case, mode, np.linalg.inv(precision)


@pytest.mark.slow
def test_posteriors_given_the_noisy_sum_cover_the_posterior(seed=0, repetitions=8):
    """Means are off by as much as the noise explains; intervals hold a draw from the posterior as often as they say."""
    case, mode, covariance = logistic()
    sd, parts, scores = np.sqrt(np.diag(covariance)), [], []
    for k in range(repetitions):
        bits = np.random.default_rng([seed, k, 7])
        budget = PrivacyBudget(2.0, 1e-6, chains=1)
        with pytest.MonkeyPatch.context() as patch:
            shared(patch, case)
            for module in (starting, surrogates):
                patch.setattr(module, "OperatingSystemBits", lambda bits=bits: SeededBits(bits))
            options = {"budget": budget, "public_covariates": True, "model": case.model}
            start = private_start(random_seed=k, **options)
            surrogate = private_surrogate(start=start, random_seed=k, max_draws=500, **options)
            step = DPControlVariate(
                budget=budget, surrogate=surrogate, reproducible=True, model=case.model
            )
        step.set_rng(np.random.default_rng([seed, k]))
        step.stop_tuning()
        point, draws = {"beta": mode}, []
        for _ in range(500):
            point, (row,) = step.step(point)
            if row["exhausted"]:
                break
            draws.append(point["beta"])
        assert len(draws) > 100 and budget.spent() <= 2.0
        mean, own = np.mean(draws, axis=0), np.std(draws, axis=0)
        half = stats.norm.isf(0.05) * own
        parts.append(stats.norm.cdf((mean + half - mode) / sd) - stats.norm.cdf((mean - half - mode) / sd))  # fmt: skip
        scores.append(np.mean((mean - mode) ** 2 / own**2))
    # Errors are no larger than intervals say: less, by the part of their spread that is the posterior's.
    assert np.sum(scores) * 3 < stats.chi2.isf(1e-4, 3 * repetitions)
    # Of 24 intervals, those of a repetition are dependent.
    assert 0.9 - 3.7 * math.sqrt(0.09 / (3 * repetitions)) < np.mean(parts) < 0.99
