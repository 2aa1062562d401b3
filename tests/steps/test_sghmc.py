"""DPSGHMC: its update, its own stationary law, what it is charged for, and PyMC as its host."""

import functools
import itertools
import math
import pickle

import cloudpickle
import numpy as np
import pymc as pm
import pytest

from scipy import stats
from scipy.linalg import solve_discrete_lyapunov

from pymc_dp import DPSGHMC, PrivacyBudget, RecordLikelihood, release, sample
from pymc_dp.errors import PrivacyBudgetExhausted
from pymc_dp.privacy.accounting import epsilon_of
from pymc_dp.privacy.mechanisms import Gaussian
from pymc_dp.privacy.noise import OperatingSystemBits
from pymc_dp.privacy.sampled import SampledGaussian, Sampling
from pymc_dp.steps import base, gradients, sghmc

QUIET = {"progressbar": False, "compute_convergence_checks": False}
LIMIT = 5.0  # standard deviations; some 200 comparisons
DENSE = np.array([[2.0, 0.6], [0.6, 0.5]])

# ---------------------------------------------------------------- two models with linear gradients

N = 60
W = np.column_stack([np.ones(N), np.random.default_rng(21).normal(0.5, 1.0, N)])
Y = W @ [0.4, -0.8] + np.random.default_rng(22).normal(0, 1.5, N)
REGRESSION_SD, PRIOR_SD = 1.5, 2.0

with pm.Model() as REGRESSION:
    pm.Normal("y", W @ pm.Normal("beta", 0, PRIOR_SD, shape=2), REGRESSION_SD, observed=Y)

X = np.random.default_rng(23).normal(0.7, 2.0, N)
MEAN_SD = 2.0

with pm.Model() as MEAN:
    pm.Normal("y", pm.Normal("mu", 0, 1), MEAN_SD, observed=X)


@pytest.fixture(autouse=True)
def compiled_once(monkeypatch):
    """Steps on the models above share their compiled likelihoods, which hold no state."""
    monkeypatch.setattr(base, "RecordLikelihood", shared_likelihood)


LIKELIHOODS = {}


def shared_likelihood(model, **options):
    if model not in (REGRESSION, MEAN) or any(v is not None for v in options.values()):
        return RecordLikelihood(model, **options)
    if id(model) not in LIKELIHOODS:
        LIKELIHOODS[id(model)] = RecordLikelihood(model)
    return LIKELIHOODS[id(model)]


def constant(step_size):
    return lambda t: step_size


def make(model, kind=DPSGHMC, **options):
    """A step that records its paths; without privacy unless told otherwise."""
    defaults = {
        "budget": None, "step_size": constant(0.05), "n_steps": 5, "gradient_clip_bound": 100.0, "friction": 3.0,
        "reproducible": True,
    }  # fmt: skip
    options = defaults | options
    if not {"batch_size", "sampling_probability"} & set(options):
        options["sampling_probability"] = 1.0
    options.setdefault("record_trajectories", options["budget"] is None)
    return kind(model=model, **options)


def start(step, seed=0):
    """As PyMC begins a chain."""
    step.set_rng(np.random.default_rng(seed))
    step.stop_tuning()
    return step


def sampled_path(step, theta, draws=1, seed=0):
    """Positions and momenta (steps + 1, 2, d) of draws that follow on each other."""
    start(step, seed)
    point = step.likelihood.unravel(np.asarray(theta, dtype=float))
    for _ in range(draws):
        point, _ = step.step(point)
    return [[(p.theta, p.momentum) for p in t.phases] for t in step.trajectories]


def record_randomness(monkeypatch):
    """Batches and noise on their sums, in the order they are drawn; and the noise's standard deviation."""
    batches, noises, scales = [], [], []
    noisy_sum = gradients.noisy_sum

    def noise(steps, exponent, scale, bits):
        total = noisy_sum(steps, exponent, scale, bits)
        noises.append(total - np.ldexp(steps.astype(float), exponent))
        scales.append(scale)
        return total

    monkeypatch.setattr(gradients, "noisy_sum", noise)
    for name in ("poisson", "without_replacement"):
        drawn = getattr(sghmc, name)
        monkeypatch.setattr(
            sghmc, name, lambda *a, d=drawn: (batches.append(d(*a)), batches[-1])[1]
        )
    return batches, noises, scales


# ---------------------------------------------------------------- the update, by hand


def by_hand(theta, p, batch, noise, *, mass, step_size, friction, bound, temperature, part):
    """One step in the model's own coordinates, where friction is ``friction * mass``; from the formulas alone.

    `noise` is that on the sum of clipped gradients in coordinates in which the mass is the identity.
    """
    root = np.linalg.cholesky(mass)
    velocity = np.linalg.inv(mass)
    total = np.zeros(2)
    for i in batch:
        g = np.linalg.solve(root, W[i] * (Y[i] - W[i] @ theta) / REGRESSION_SD**2)
        total += g * min(1, bound / np.linalg.norm(g))
    gradient = temperature / part * root @ (total + noise) - theta / PRIOR_SD**2
    p = p + step_size * gradient - step_size * (friction * mass) @ velocity @ p
    return theta + step_size * velocity @ p, p


@pytest.mark.parametrize("refresh", [True, False])
@pytest.mark.parametrize(
    "batch, part", [({}, 1.0), ({"sampling_probability": 0.3}, 0.3), ({"batch_size": 15}, 0.25)]
)
@pytest.mark.parametrize(
    "mass, bound, temperature",
    [(None, 0.3, 1.0), ([2.0, 0.5], 0.4, 0.6), (DENSE, 0.4, 0.3), (DENSE, math.inf, 1.0)],
)
def test_update_is_that_of_the_formulas(
    mass, bound, temperature, batch, part, refresh, monkeypatch
):
    batches, noises, scales = record_randomness(monkeypatch)
    step = make(
        REGRESSION, mass_matrix=mass, gradient_clip_bound=bound, temperature=temperature, noise_estimate=1.0,
        refresh_momentum=refresh, step_size=0.08, **batch,
    )  # fmt: skip
    paths = sampled_path(step, [1.0, 2.0], draws=3)
    batches = iter(batches) if batch else itertools.repeat(range(N))
    dense = np.eye(2) if mass is None else np.diag(mass) if np.ndim(mass) == 1 else mass
    root = np.linalg.cholesky(dense)
    noises = iter(noises)
    for t, path in enumerate(paths, 1):
        step_size = 0.08 * t ** (-1 / 3)
        assert scales[5 * (t - 1)] == pytest.approx(
            math.sqrt(2 * 2.0 / step_size) * part / temperature
        )
        if t > 1:
            assert np.array_equal(path[0][0], paths[t - 2][-1][0])
            assert np.array_equal(path[0][1], paths[t - 2][-1][1]) != refresh
        theta, p = path[0][0], root @ path[0][1]
        for new_theta, new_momentum in path[1:]:
            theta, p = by_hand(
                theta, p, next(batches), next(noises), mass=dense, step_size=step_size, friction=3.0,
                bound=bound, temperature=temperature, part=part,
            )  # fmt: skip
            # Gradients are rounded to 2**-30 of the bound.
            np.testing.assert_allclose(new_theta, theta, rtol=1e-7, atol=1e-7)
            np.testing.assert_allclose(new_momentum, np.linalg.solve(root, p), rtol=1e-6, atol=1e-6)
    assert len(list(noises)) == 0


def test_schedule():
    step = make(REGRESSION, step_size=0.3, budget=PrivacyBudget(math.inf, 1e-5, chains=1))
    found = []
    start(step)
    point = REGRESSION.initial_point()
    for _ in range(5):
        point, (statistics,) = step.step(point)
        found.append(statistics["noise_multiplier"])
    expected = [math.sqrt(2 * 3.0 / (0.3 * t ** (-1 / 3))) / 200 for t in range(1, 6)]
    np.testing.assert_allclose(found, expected)
    assert make(REGRESSION, step_size=lambda t: 0.1 * t)._step_size_at(3) == pytest.approx(0.3)
    with pytest.raises(ValueError, match="for draw 2"):
        make(REGRESSION, step_size=lambda t: 2.0 - t).noise_multiplier(2)


@pytest.mark.parametrize("adjacency, sides", [("add_remove", 1), ("substitute", 2)])
@pytest.mark.parametrize("mass", [None, DENSE])
def test_noise_multiplier(adjacency, sides, mass):
    """sqrt(2 (C - B) / eta) q / (T b), halved where a record is replaced; the mass matrix is in the bound's units."""
    step = make(
        REGRESSION, budget=PrivacyBudget(math.inf, 1e-5, chains=1, adjacency=adjacency), mass_matrix=mass,
        step_size=0.7, friction=5.0, noise_estimate=2.0, temperature=0.25, gradient_clip_bound=1.7, sampling_probability=0.4,
    )  # fmt: skip
    for t in (1, 2, 50):
        z = math.sqrt(2 * 3.0 / (0.7 * t ** (-1 / 3))) * 0.4 / (0.25 * 1.7 * sides)
        assert step.noise_multiplier(t) == pytest.approx(z, rel=1e-12)


# ---------------------------------------------------------------- friction


def energies(kind):
    """Mean energy at the ends of draws, all records, friction without noise."""
    step = make(
        REGRESSION,
        kind,
        noise_estimate=3.0,
        refresh_momentum=False,
        step_size=constant(0.02),
        n_steps=20,
    )
    paths = sampled_path(step, [5.0, 5.0], draws=12)
    precision, mode = posterior()
    return np.array([
        ((path[-1][0] - mode) @ precision @ (path[-1][0] - mode) + path[-1][1] @ path[-1][1]) / 2 for path in paths
    ])  # fmt: skip


def posterior(temperature=1.0):
    precision = temperature * W.T @ W / REGRESSION_SD**2 + np.eye(2) / PRIOR_SD**2
    return precision, np.linalg.solve(precision, temperature * W.T @ Y / REGRESSION_SD**2)


class FrictionForwards(DPSGHMC):
    """The sign of the thesis (erratum E10)."""

    def _step(self, phase, step_size, noise_sd):
        new = super()._step(phase, step_size, noise_sd)
        by = 2 * step_size * self.friction * phase.momentum
        return gradients.Phase(
            self.coordinates.moved(new.theta, step_size * by), new.momentum + by, new.gradient
        )


def test_friction_takes_energy_out():
    found = energies(DPSGHMC)
    assert (np.diff(found) < 0).all()
    assert found[-1] < 0.01 * found[0]
    wrong = energies(FrictionForwards)
    assert (np.diff(wrong) > 0).all()
    assert wrong[-1] > 100 * wrong[0]


# ---------------------------------------------------------------- noise, batches: path by path

Z = (X - X.mean()) / MEAN_SD**2  # centred gradients of the records of MEAN
PRECISION = 1 + N / MEAN_SD**2


def kicks(step, steps=1500, seed=1):
    """What a path of MEAN adds to friction and the exact gradient, its exact variance, and where it was.

    All of it in coordinates in which the mass is the identity.
    """
    object.__setattr__(step, "n_steps", steps)
    (path,) = sampled_path(step, [0.4], seed=seed)
    theta, v = (np.array([p[i][0] for p in path]) for i in (0, 1))
    unit = step.coordinates.moved(np.zeros(1), np.ones(1))[0]  # dtheta / dw
    eta, tempered = step._step_size_at(1), step.temperature
    gradient = unit * (tempered * (X.sum() - N * theta) / MEAN_SD**2 - theta)
    kick = v[1:] - v[:-1] - eta * (gradient[:-1] - 3.0 * v[:-1])
    each = (X[:, None] - theta[None, :-1]) / MEAN_SD**2
    q = step.sampling_probability
    if step.batch_size is None:
        of_batch = (1 - q) / q * (each**2).sum(axis=0)
    else:
        of_batch = (1 - q) / q * N * np.var(each, axis=0, ddof=1)
    variance = 2 * (3.0 - step.noise_estimate) * eta + (eta * tempered * unit) ** 2 * of_batch
    moved = (theta[1:] - theta[:-1]) / unit - eta * v[1:]
    return kick, variance, v[:-1], (theta[:-1] - theta.mean()) / theta.std(), moved


def check_path(step, steps=1500, seed=1):
    """Kicks have mean 0 and the right variance whatever the state, and do not repeat themselves: martingale differences."""
    kick, variance, v, theta, moved = kicks(step, steps, seed)
    unit = kick / np.sqrt(variance)
    assert np.abs(unit).max() < 7, "kicks are not of the size of noise"
    terms = {
        "mean": unit, "with momentum": unit * v, "with position": unit * theta, "variance": unit**2 - 1,
        "variance with momentum": (unit**2 - 1) * (v**2 - (v**2).mean()), "next": unit[1:] * unit[:-1],
    }  # fmt: skip
    for name, term in terms.items():
        z = term.mean() / (term.std() / math.sqrt(len(term)))
        assert abs(z) < LIMIT, (name, z)
    assert np.all(np.abs(moved) <= 1e-9 * (1 + np.abs(v))), (
        "position does not follow the new momentum"
    )


SETTINGS = {
    "all records": {},
    "Poisson": {"sampling_probability": 0.3},
    "fixed size": {"batch_size": 15},
    "noise estimate": {"sampling_probability": 0.2, "noise_estimate": 2.0},
    "temperature": {"batch_size": 20, "temperature": 0.3},
    "mass": {"sampling_probability": 0.5, "mass_matrix": [4.0]},
    "mostly batches": {"batch_size": 6, "noise_estimate": 2.9},
    "bound": {"gradient_clip_bound": 1e4, "step_size": constant(0.12)},
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_noise_and_batches(setting):
    """Noise on the momentum is 2 (C - B) eta whatever else is set, plus the batches' own."""
    check_path(make(MEAN, **SETTINGS[setting]))


class NoiseWithoutTwo(DPSGHMC):
    def _noise_sd(self, draw):
        return super()._noise_sd(draw) / math.sqrt(2)


class NoiseWithoutEstimate(DPSGHMC):
    def _noise_sd(self, draw):
        added = 2 * self.friction / self._step_size_at(draw)
        return math.sqrt(added) * self.sampling_probability / self.temperature


class NoiseWithoutTemperature(DPSGHMC):
    def _noise_sd(self, draw):
        return super()._noise_sd(draw) * self.temperature


class FrictionOnce(DPSGHMC):
    """Friction that is not multiplied by the step size."""

    def _step(self, phase, step_size, noise_sd):
        slower = phase._replace(momentum=phase.momentum * (1 - 1e-3) / (1 - step_size * 3.0))
        return super()._step(slower, step_size, noise_sd)


class UnscaledBatches(DPSGHMC):
    """The sum over the batch in place of an estimate of that over all records."""

    def _step(self, phase, step_size, noise_sd):
        gradient = self._gradient(
            phase.theta, noise_sd / self.sampling_probability, self._bits, index=self._batch()
        )
        momentum = phase.momentum + step_size * (gradient - self.friction * phase.momentum)
        return gradients.Phase(
            self.coordinates.moved(phase.theta, step_size * momentum), momentum, gradient
        )


class OneBatchForAll(DPSGHMC):
    kept = None

    def _batch(self):
        if self.kept is None:
            self.kept = super()._batch()
        return self.kept


class RepeatedBatches(DPSGHMC):
    """Each batch is used twice."""

    kept = None

    def _batch(self):
        self.kept, given = (super()._batch(), None) if self.kept is None else (None, self.kept)
        return self.kept if given is None else given


class OldMomentum(DPSGHMC):
    """Positions move before momenta."""

    def _step(self, phase, step_size, noise_sd):
        new = super()._step(phase, step_size, noise_sd)
        return new._replace(theta=self.coordinates.moved(phase.theta, step_size * phase.momentum))


FAULTS = {
    FrictionForwards: "all records",
    NoiseWithoutTwo: "all records",
    NoiseWithoutEstimate: "noise estimate",
    NoiseWithoutTemperature: "temperature",
    FrictionOnce: "all records",
    UnscaledBatches: "fixed size",
    OneBatchForAll: "mostly batches",
    RepeatedBatches: "mostly batches",
    OldMomentum: "all records",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.__name__)
def test_planted_fault_is_found(fault):
    # What moves away from the mean leaves the numbers if it is given time.
    with pytest.raises(AssertionError):
        check_path(make(MEAN, fault, **SETTINGS[FAULTS[fault]]), 400)


# ---------------------------------------------------------------- batches


@pytest.mark.parametrize("part", [0.02, 0.3, 0.8])
def test_poisson_batches(part, monkeypatch):
    """Sizes are binomial, every record is drawn as often as the others; empty batches are steps like any others."""
    batches, _, _ = record_randomness(monkeypatch)
    step = make(MEAN, sampling_probability=part, n_steps=1500)
    (path,) = sampled_path(step, [0.4])
    sizes = np.array([len(b) for b in batches])
    assert np.isfinite(path).all()
    assert len(batches) == 1500 == len(path) - 1
    counts = np.bincount(sizes, minlength=N + 1)
    expected = stats.binom(N, part).pmf(np.arange(N + 1)) * 1500
    tested = expected > 5
    rest = [counts[~tested].sum()], [expected[~tested].sum()]
    seen, hoped = np.append(counts[tested], rest[0]), np.append(expected[tested], rest[1])
    assert stats.chisquare(seen, hoped * seen.sum() / hoped.sum()).pvalue > 1e-6
    drawn = np.bincount(np.concatenate(batches), minlength=N)
    assert np.abs(drawn - 1500 * part).max() < LIMIT * math.sqrt(1500 * part * (1 - part)) + 1
    assert (np.bincount(sizes)[0] > 300) == (part == 0.02)


def test_batches_of_fixed_size(monkeypatch):
    batches, _, _ = record_randomness(monkeypatch)
    step = make(MEAN, batch_size=12, n_steps=1500)
    sampled_path(step, [0.4])
    assert {len(set(b)) for b in batches} == {12} and len(batches) == 1500
    drawn = np.bincount(np.concatenate(batches), minlength=N)
    assert np.abs(drawn - 300).max() < LIMIT * math.sqrt(1500 * 0.2 * 0.8)
    together = np.mean([np.isin([3, 4], b).all() for b in batches])
    assert together == pytest.approx(12 * 11 / (N * (N - 1)), abs=LIMIT * math.sqrt(0.037 / 1500))
    assert len({tuple(b) for b in batches}) > 1490


def test_all_records_need_no_batch(monkeypatch):
    batches, _, _ = record_randomness(monkeypatch)
    for option in ({"batch_size": N}, {"sampling_probability": 1.0}):
        step = make(MEAN, **option)
        sampled_path(step, [0.4])
        assert step.sampling_probability == 1.0 and step.batch_size is None
    assert not batches


# ---------------------------------------------------------------- stationary law


def law_of_a_draw(precision, *, step_size, friction, noise, n_steps, refresh):
    """Map and noise of (momentum, position) over a draw: the discretised recursion, which is linear."""
    d = len(precision)
    eye = np.eye(d)
    v_row = np.hstack([(1 - step_size * friction) * eye, -step_size * precision])
    once = np.vstack([v_row, np.hstack([np.zeros((d, d)), eye]) + step_size * v_row])
    kick = np.vstack([eye, step_size * eye])
    move, added = np.eye(2 * d), np.zeros((2 * d, 2 * d))
    for _ in range(n_steps):
        move, added = once @ move, once @ added @ once.T + noise * kick @ kick.T
    if refresh:
        added = added + move[:, :d] @ move[:, :d].T
        move = np.hstack([np.zeros((2 * d, d)), move[:, d:]])
    return move, added


def check_law(draws, kind=DPSGHMC, *, step_size=0.15, mass=None, refresh=True, temperature=1.0):
    """A chain of REGRESSION has the law of the recursion: innovations are standard normal, the covariance is Lyapunov's."""
    step = make(
        REGRESSION, kind, step_size=constant(step_size), mass_matrix=mass, refresh_momentum=refresh, n_steps=4,
        noise_estimate=0.5, temperature=temperature,
    )  # fmt: skip
    precision, mode = posterior(temperature)
    paths = sampled_path(step, mode, draws=draws)
    root = np.linalg.cholesky(
        np.eye(2) if mass is None else mass
    )  # momenta are p = root v, w = root' theta
    ends = np.array([np.concatenate([p[-1][1], root.T @ (p[-1][0] - mode)]) for p in paths])
    whitened = np.linalg.solve(root, np.linalg.solve(root, precision).T).T
    move, added = law_of_a_draw(
        whitened, step_size=step_size, friction=3.0, noise=2 * 2.5 * step_size, n_steps=4, refresh=refresh
    )  # fmt: skip
    innovations = np.linalg.solve(
        np.linalg.cholesky(added), (ends[1:] - ends[:-1] @ move.T).T
    ).ravel()
    assert stats.kstest(innovations, "norm").pvalue > 1e-6
    z = ((innovations**2).mean() - 1) / math.sqrt(2 / len(innovations))
    assert abs(z) < LIMIT, z

    law = solve_discrete_lyapunov(move, added)
    for direction in np.eye(4)[2:]:
        # Errors of mean and variance of a stationary Gaussian series, from its autocovariances.
        series, lag, autocovariance = ends[20:] @ direction, np.eye(4), []
        for _ in range(400):
            autocovariance.append(direction @ lag @ law @ direction)
            lag = move @ lag
        both = np.array([*autocovariance[:0:-1], *autocovariance])
        assert abs(series.mean()) < LIMIT * math.sqrt(both.sum() / len(series))
        error = (series**2).mean() - autocovariance[0]
        assert abs(error) < LIMIT * math.sqrt(2 * (both**2).sum() / len(series)), error
    # It is not the posterior's: friction and noise of this test make it narrower, long steps wider.
    return np.linalg.inv(root.T) @ law[2:, 2:] @ np.linalg.inv(root), np.linalg.inv(precision)


@pytest.mark.parametrize(
    "options",
    [{}, {"refresh": False}, {"mass": DENSE, "step_size": 0.1}, {"temperature": 0.4}],
    ids=lambda o: ", ".join(o) or "plain",
)
def test_law_is_that_of_the_recursion(options):
    law, exact = check_law(900, **options)
    assert np.abs(law / exact - 1).max() > 0.02  # biased, as it says


@pytest.mark.slow
@pytest.mark.parametrize("refresh", [True, False])
@pytest.mark.parametrize("mass", [None, DENSE], ids=["identity", "dense"])
def test_law_is_that_of_the_recursion_on_long_chains(mass, refresh):
    check_law(10_000, mass=mass, refresh=refresh, step_size=0.1)


@pytest.mark.parametrize("fault", [FrictionForwards, NoiseWithoutTwo, OldMomentum])
def test_law_with_a_fault_is_found(fault):
    with pytest.raises((AssertionError, ValueError, np.linalg.LinAlgError)):
        check_law(300, fault)


def test_bias_vanishes_with_the_step_size():
    """Without batches and clipping the law becomes the posterior, at first order in the step size."""
    precision, _ = posterior()
    found = []
    for step_size in (0.04, 0.02, 0.01, 0.005):
        # Draws of the same time, so that refreshing, which is exact, stays the same.
        move, added = law_of_a_draw(
            precision, step_size=step_size, friction=3.0, noise=2 * 3.0 * step_size,
            n_steps=round(0.4 / step_size), refresh=True,
        )  # fmt: skip
        law = solve_discrete_lyapunov(move, added)[2:, 2:]
        found.append(np.abs(law @ precision - np.eye(2)).max())
    ratios = np.array(found[:-1]) / found[1:]
    assert np.all((1.7 < ratios) & (ratios < 2.6)), found
    assert found[-1] < 0.03


@pytest.mark.parametrize("n_steps", [1, 4, 10])
def test_bias_of_draws_of_few_steps(n_steps):
    """If each draw has a new momentum, ever shorter steps lead to J / (J + 1) of the variance, not to all of it.

    Over J short steps the momentum moves by J eta v, the gradient by eta^2 g J (J + 1) / 2. Kept
    momentum has no such bias.
    """
    precision, _ = posterior()
    for refresh, limit in ((True, n_steps / (n_steps + 1)), (False, 1.0)):
        move, added = law_of_a_draw(
            precision, step_size=1e-3, friction=3.0, noise=2 * 3.0 * 1e-3, n_steps=n_steps, refresh=refresh
        )  # fmt: skip
        law = solve_discrete_lyapunov(move, added)[2:, 2:]
        np.testing.assert_allclose(law @ precision, limit * np.eye(2), atol=0.01)


def moments_with_batches(step_size, friction, part, size, n_steps):
    """Stationary second moments of (momentum, position - mode) of MEAN on batches, whose noise depends on the position."""
    mode = X.sum() / MEAN_SD**2 / PRECISION
    once = np.array([[1 - step_size * friction, -step_size * PRECISION], [0, 1]])
    once[1] += step_size * once[0]
    kick = np.outer([1, step_size], [1, step_size])
    spread = (1 - part) / part * N * np.var(Z, ddof=1)
    first, second = np.zeros(2), np.diag([1.0, 1 / PRECISION])
    for _ in range(4000):
        first, second = np.array([0, first[1]]), np.diag([1.0, second[1, 1]])
        for _ in range(n_steps):
            of_batch = spread
            if size is None:  # E sum (x - theta)^2: also a random number of records
                away = second[1, 1] + 2 * (mode - X.mean()) * first[1] + (mode - X.mean()) ** 2
                of_batch = (1 - part) / part * ((Z**2).sum() + N * away / MEAN_SD**4)
            added = 2 * friction * step_size + step_size**2 * of_batch
            first, second = once @ first, once @ second @ once.T + added * kick
    return mode, second[1, 1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "batch", [{"sampling_probability": 0.15}, {"batch_size": 9}], ids=["Poisson", "fixed"]
)
def test_law_on_batches(batch):
    """The batches' noise widens the law by exactly what it adds."""
    step = make(MEAN, step_size=constant(0.1), n_steps=8, **batch)
    mode, variance = moments_with_batches(0.1, 3.0, 0.15, batch.get("batch_size"), 8)
    chain = np.array([p[-1][0][0] for p in sampled_path(step, [mode], draws=9000)]) - mode
    parts = chain[: len(chain) // 60 * 60].reshape(
        60, -1
    )  # means of blocks far longer than the memory
    for got, expected in ((parts.mean(axis=1), 0.0), ((parts**2).mean(axis=1), variance)):
        assert abs(got.mean() - expected) < LIMIT * got.std(ddof=1) / math.sqrt(60)
    assert variance > 1.3 / PRECISION


# ---------------------------------------------------------------- energy of the naive variant


def test_energy_grows_without_friction_and_not_with_it():
    """Batches of fixed size, equilibrium at the start: each step adds eta^2 V / 2 on average."""
    eta, size, steps, n_paths = 0.05, 6, 600, 16
    variance = (N / size) ** 2 * size * (1 - size / N) * np.var(X, ddof=1) / MEAN_SD**4
    right = eta * variance / 2
    mode = X.sum() / MEAN_SD**2 / PRECISION
    found = {}
    for friction in (0.0, right):
        step = make(
            MEAN, step_size=constant(eta), n_steps=steps, batch_size=size, friction=friction, noise_estimate=friction,
            gradient_clip_bound=math.inf,
        )  # fmt: skip
        energy = []
        for seed in range(n_paths):
            at = mode + np.random.default_rng([9, seed]).standard_normal() / math.sqrt(PRECISION)
            step.trajectories.clear()
            (path,) = sampled_path(step, [at], seed=seed)
            theta, v = (np.array([p[i][0] for p in path]) for i in (0, 1))
            energy.append((PRECISION * (theta - mode) ** 2 + v**2) / 2)
        found[friction] = np.array(energy)
    naive, rubbed = found[0.0], found[right]
    gain = (naive[:, -1] - naive[:, 0]) / steps
    expected = (
        eta**2 * variance / 2 / (1 - eta**2 * PRECISION / 4)
    )  # of the leapfrog's shadow energy
    assert abs(gain.mean() - expected) < LIMIT * gain.std(ddof=1) / math.sqrt(n_paths)
    assert naive[:, -100:].mean() > 30  # one degree of freedom: 1 in equilibrium
    assert 0.6 < rubbed[:, 100:].mean() < 1.7
    assert rubbed.max() < 20


# ---------------------------------------------------------------- accounting


class Instrumented:
    """A likelihood that notes each access to the records."""

    def __init__(self, likelihood):
        self.likelihood, self.accesses = likelihood, []

    def __getattr__(self, name):
        if name in ("logp", "logp_at", "clipped_sum", "clipped_grad"):
            raise AssertionError(f"{name} looks at the records, and is not accounted for")
        return getattr(self.likelihood, name)

    def clipped_grad_steps(self, theta, bound, index=None, *, directions=None, logp=None):
        assert logp is None  # log-likelihoods are not accounted for
        self.accesses.append((bound, None if index is None else len(index)))
        return self.likelihood.clipped_grad_steps(theta, bound, index, directions=directions)


def instrument(step):
    spy = Instrumented(step.likelihood)
    object.__setattr__(step, "likelihood", spy)
    step._gradient._likelihood = spy
    return spy.accesses


KINDS = {
    "fixed, substitute": ("substitute", {"batch_size": 6}, Sampling.WITHOUT_REPLACEMENT),
    "Poisson, substitute": ("substitute", {"sampling_probability": 0.1}, Sampling.POISSON),
    "Poisson, add or remove": ("add_remove", {"sampling_probability": 0.1}, Sampling.POISSON),
    "all, substitute": ("substitute", {"batch_size": N}, None),
    "all, add or remove": ("add_remove", {"sampling_probability": 1.0}, None),
}


def stairs(t):
    """Few step sizes, as costs take a while to compute."""
    return 0.002 / (1 + t // 16) ** 0.5


def private_step(kind, made=DPSGHMC):
    adjacency, batch, sampling = KINDS[kind]
    budget = PrivacyBudget(1.5, 1e-5, chains=1, adjacency=adjacency, accountant="rdp")
    # The noise multiplier is 4 at first on batches, 35 on all records.
    return make(
        MEAN, made, budget=budget, reproducible=False, step_size=stairs, gradient_clip_bound=0.5, n_steps=3,
        friction=(0.5 if sampling else 0.3) * (1 if adjacency == "add_remove" else 4), **batch,
    )  # fmt: skip


def check_charges(kind, monkeypatch, made=DPSGHMC):
    """Run a chain to its end: what happened, by the likelihood and the noise, composes to what was charged."""
    adjacency, _, sampling = KINDS[kind]
    _, _, scales = record_randomness(monkeypatch)
    step = private_step(kind, made=made)
    accesses = instrument(step)
    planned = step.budget.expected_draws()
    start(step)
    point, draws = MEAN.initial_point(), 0
    while True:
        point, (statistics,) = step.step(point)
        if statistics["exhausted"]:
            break
        draws += 1
        assert len(accesses) == len(scales) == 3 * draws
        assert statistics["epsilon_spent"] <= 1.5
    for _ in range(5):
        step.step(point)
    assert draws == planned > 20
    assert len(accesses) == len(scales) == 3 * draws, "the data were looked at after the end"
    assert step.likelihood is not None and statistics["epsilon_spent"] == pytest.approx(
        1.5, rel=0.06
    )

    def happened(shrink=1.0):
        """The mechanisms that were run, from the bounds and noises that were seen."""
        q = 6 / N
        for (bound, _), scale in zip(accesses, scales, strict=True):
            z = shrink * scale / (bound * (2 if adjacency == "substitute" else 1))
            yield (
                (Gaussian(z) if sampling is None else SampledGaussian(z, q, sampling, adjacency)),
                1,
            )

    charged = [access for t in range(1, draws + 1) for access in step.schedule()(t)]
    noises = [m.noise_multiplier for m, k in charged for _ in range(k)]
    actual = [m.noise_multiplier for m, _ in happened()]
    assert len(noises) == len(actual)
    ratio = np.array(actual) / noises
    assert ratio.min() >= 1 and ratio.max() <= 1.01 * (1 + 1e-9)
    assert {m for m, _ in charged} == {
        type(m)(z, *_rest(m)) for (m, _), z in zip(charged, noises[::3], strict=True)
    }
    for (m, _), (other, _) in zip(charged, happened(), strict=False):
        assert _rest(m) == _rest(other) and type(m) is type(other)

    assert epsilon_of(happened(), 1e-5, "rdp") <= 1.5
    assert (
        epsilon_of(charged, 1e-5, "rdp")
        <= 1.5
        < epsilon_of([*charged, *step.schedule()(draws + 1)], 1e-5, "rdp")
    )
    # No fewer draws than 1 % less noise in all of them would pay for.
    assert epsilon_of(happened(0.985), 1e-5, "rdp") > 1.5 * 0.97
    claims = step.budget.ledger.claims()
    assert len(claims) == 1
    assert step.budget.spent() == pytest.approx(epsilon_of(charged, 1e-5, "rdp"), rel=1e-6)
    if sampling is None:
        assert {n for _, n in accesses} == {None}
    elif sampling is Sampling.WITHOUT_REPLACEMENT:
        assert {n for _, n in accesses} == {6}
    else:
        assert len({n for _, n in accesses}) > 5


def _rest(mechanism):
    if isinstance(mechanism, Gaussian):
        return ()
    return mechanism.sampling_probability, mechanism.sampling, mechanism.adjacency


@pytest.mark.parametrize("kind", KINDS)
def test_charged_is_what_happened(kind, monkeypatch):
    check_charges(kind, monkeypatch)


class ChargesOneSide(DPSGHMC):
    """The noise multiplier of adding a record, for replacing one."""

    @property
    def _sides(self):
        return 1.0


class ChargesFewerGradients(DPSGHMC):
    def schedule(self):
        return lambda t, right=super().schedule(): tuple((m, k - 1) for m, k in right(t))


class ChargesTheFirstDraw(DPSGHMC):
    """Later draws, with their shorter steps, would cost less; longer ones more."""

    def schedule(self):
        return lambda t, right=super().schedule(): right(1)


class ChargesRoundedUp(DPSGHMC):
    def schedule(self):
        def too_much(t, right=super().schedule()):
            ((m, k),) = right(t)
            return ((SampledGaussian(m.noise_multiplier * 1.01, *_rest(m)), k),)

        return too_much


class DrawsFixedBatches(DPSGHMC):
    """Batches without replacement, charged as Poisson (erratum E11)."""

    def _batch(self):
        return sghmc.without_replacement(N, 6, self._bits)


class LooksAgain(DPSGHMC):
    def _step(self, phase, step_size, noise_sd):
        self._gradient(phase.theta, noise_sd, self._bits, index=self._batch(), part=0.1)
        return super()._step(phase, step_size, noise_sd)


class LooksAtTheLikelihood(DPSGHMC):
    def _step(self, phase, step_size, noise_sd):
        self.likelihood.logp(phase.theta)
        return super()._step(phase, step_size, noise_sd)


@pytest.mark.parametrize(
    "fault",
    [pytest.param(ChargesOneSide, marks=pytest.mark.slow), ChargesFewerGradients, ChargesTheFirstDraw, ChargesRoundedUp, LooksAgain, LooksAtTheLikelihood],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_wrong_charge_is_found(fault, monkeypatch):
    with pytest.raises(AssertionError):
        check_charges("fixed, substitute", monkeypatch, fault)


def test_batches_that_are_not_those_charged_for_are_found(monkeypatch):
    with pytest.raises(AssertionError):
        check_charges("Poisson, add or remove", monkeypatch, DrawsFixedBatches)


# ---------------------------------------------------------------- Table 6.3

PUBLISHED = {1e-6: 0.881, 1e-5: 0.763, 1e-4: 0.629, 1e-3: 0.473, 1e-2: 0.273}


def of_the_thesis(budget):
    """C = 1, L = 0.7, q = 0.01, beta = 3, J = 10; its noise multiplier is ours at temperature q."""
    return make(
        MEAN, budget=budget, step_size=3.0, friction=1.0, gradient_clip_bound=0.7, sampling_probability=0.01,
        temperature=0.01, n_steps=10, reproducible=False,
    )  # fmt: skip


def test_epsilon_of_the_thesis():
    budget = PrivacyBudget(math.inf, 1e-5, chains=1, adjacency="add_remove")
    step = of_the_thesis(budget)
    for t in (1, 7, 200):
        assert step.noise_multiplier(t) == pytest.approx(math.sqrt(2 / (0.49 * 3 * t ** (-1 / 3))))
    run = [access for t in range(1, 201) for access in step.schedule()(t)]
    assert sum(k for _, k in run) == 2000
    for delta, published in PUBLISHED.items():
        assert published * 0.995 < epsilon_of(run, delta, "pld") < published * 1.015


@pytest.mark.slow
@pytest.mark.parametrize("factor, fits", [(1.015, True), (0.995, False)])
def test_budget_of_the_thesis(factor, fits):
    """A budget of 1.5 % more than is published pays for the 200 draws, one of less does not."""
    budget = PrivacyBudget(0.763 * factor, 1e-5, chains=1, adjacency="add_remove")
    of_the_thesis(budget)
    assert (200 <= budget.expected_draws() < 212) == fits
    assert (150 < budget.expected_draws() < 200) != fits


def test_large_batches_cost_no_privacy():
    """With the step's noise multiplier, proportional to q, the cost depends on q only where the multiplier is small."""
    budget = PrivacyBudget(math.inf, 1e-5, chains=1, adjacency="add_remove")
    found = {}
    for part in (0.01, 0.05, 1.0):
        step = make(
            MEAN, budget=budget, step_size=constant(0.01), friction=50.0, gradient_clip_bound=1.0, sampling_probability=part,
        )  # fmt: skip
        z = step.noise_multiplier(1)
        assert z == pytest.approx(100 * part)
        release_ = SampledGaussian(z, part, "poisson", "add_remove")
        found[part] = epsilon_of([(release_, 3000)], 1e-5)
    assert found == pytest.approx({0.01: 3.19, 0.05: 2.25, 1.0: 2.21}, abs=0.01)


# ---------------------------------------------------------------- clipping


@functools.cache
def with_last(value):
    """A likelihood of the regression, with another value for the last record."""
    with pm.Model() as model:
        beta, y = pm.Normal("beta", 0, 1, shape=2), np.append(Y[:-1], value)
        pm.Normal("y", W @ beta, REGRESSION_SD, observed=y)
    return RecordLikelihood(model)


@pytest.mark.parametrize("mass", [None, DENSE], ids=["identity", "dense"])
def test_a_record_moves_the_sum_by_no_more_than_its_bound(mass, monkeypatch):
    """Replaced, it moves the sum by 2 b, removed by b, at the most; outliers do so nearly."""
    bound, outliers = 0.5, [1e6, -1e6, 3.0, math.inf]
    coordinates = gradients.Coordinates(mass, np.arange(2), 2)
    thetas = np.random.default_rng(5).normal(size=(20, 2))

    def sums(value):
        likelihood = with_last(value)
        return np.array([
            [likelihood.clipped_grad(t, bound, index, directions=coordinates.directions) for index in (None, np.arange(N - 1))]
            for t in thetas
        ])  # fmt: skip

    all_of, others = zip(*[np.moveaxis(sums(out), 1, 0) for out in outliers], strict=True)
    for one, two in itertools.pairwise(others):
        assert np.array_equal(one, two)
    added = [np.linalg.norm(a - o, axis=1) for a, o in zip(all_of, others, strict=True)]
    assert np.max(added) <= bound * (1 + 1e-8)
    assert np.max(added) > bound * (1 - 1e-6)
    replaced = [np.linalg.norm(a - b, axis=1).max() for a, b in itertools.combinations(all_of, 2)]
    assert 2 * bound * (1 - 1e-6) < max(replaced) <= 2 * bound * (1 + 1e-8)


def test_clipping_the_batch_lets_one_record_turn_it():
    """Erratum E9: the norm of what is released is bounded by L, but adding one record moves it by up to 2 L."""
    bound = 0.5
    rng = np.random.default_rng(6)
    moved = {"records": 0.0, "batch": 0.0}
    for _ in range(200):
        others = rng.normal(size=(10, 2)) + rng.normal(size=2)
        one = -1e3 * others.sum(axis=0)

        def clip(g):
            return g * np.minimum(1, bound / np.linalg.norm(g, axis=-1, keepdims=True))

        by_batch = clip((others.sum(axis=0) + one)[None])[0] - clip(others.sum(axis=0)[None])[0]
        by_record = clip(np.vstack([others, one])).sum(axis=0) - clip(others).sum(axis=0)
        moved["batch"] = max(moved["batch"], np.linalg.norm(by_batch))
        moved["records"] = max(moved["records"], np.linalg.norm(by_record))
    assert moved["records"] <= bound * (1 + 1e-12)
    assert moved["batch"] > 1.99 * bound


# ---------------------------------------------------------------- in pm.sample


def hosted(model, budget, **options):
    defaults = {
        "step_size": 0.002, "n_steps": 3, "gradient_clip_bound": 2.0, "batch_size": 40, "friction": 50.0,
    }  # fmt: skip
    return DPSGHMC(budget=budget, model=model, **defaults | options)


@pytest.mark.parametrize(
    "parallel",
    [
        {"cores": 1},
        {"cores": 2, "mp_ctx": "fork"},
        pytest.param({"cores": 2, "mp_ctx": "spawn"}, marks=pytest.mark.slow),
    ],
    ids=["one", "fork", "spawn"],
)
def test_stops_when_spent_and_loses_no_draw(normal_model, parallel):
    budget = PrivacyBudget(2.0, 1e-5, chains=2, accountant="rdp")
    step = hosted(normal_model, budget)
    planned = int(budget.expected_draws())
    with normal_model:
        idata = pm.sample(
            draws=planned + 400, tune=0, chains=2, step=step, callback=budget, **QUIET, **parallel
        )
    assert idata.posterior.sizes["chain"] == 2
    assert idata.posterior.sizes["draw"] == planned == min(budget.report().draws)
    assert not np.any(idata.sample_stats["exhausted"])
    assert 1.9 < float(idata.sample_stats["epsilon_spent"][:, -1].max()) <= 2.0
    assert budget.spent() <= 2.0
    values = np.asarray(idata.sample_stats["noise_multiplier"])
    np.testing.assert_allclose(
        values, [[step.noise_multiplier(t) for t in range(1, planned + 1)]] * 2
    )
    assert float(idata.posterior["mu"][:, -1].min()) > 0.05  # on its way from 0 to 1.1
    public = release(idata, normal_model, budget)
    assert "mu" in public.posterior and "residual" not in public.posterior


def test_pickles_hold_no_private_state(normal_model):
    budget = PrivacyBudget(2.0, 1e-5, chains=2, accountant="rdp")
    step = start(hosted(normal_model, budget, refresh_momentum=False))
    point = normal_model.initial_point()
    for _ in range(3):
        point, _ = step.step(point)
    assert isinstance(step._bits, OperatingSystemBits) and not vars(step._bits)
    dump = cloudpickle.dumps(step)  # as for a process that is spawned
    shipped = pickle.loads(dump)
    assert shipped.budget.ledger.path == budget.ledger.path
    with pytest.raises(PrivacyBudgetExhausted, match="claimed nothing"):
        shipped.transition(np.zeros(1))
    start(shipped).step(point)
    assert len(budget.ledger.claims()) == 2
    start(shipped)
    with pytest.raises(PrivacyBudgetExhausted, match="chains=2"):
        shipped.step(point)


def test_momentum_does_not_pass_to_the_next_chain():
    step = make(MEAN, refresh_momentum=False)
    sampled_path(step, [0.0], seed=1)
    start(step, 2)
    assert step._momentum is None


def test_sample(normal_model):
    public = sample(
        epsilon=2.0, delta=1e-5, chains=2, step=DPSGHMC, model=normal_model, cores=1, accountant="rdp", step_size=0.002, n_steps=3,
        gradient_clip_bound=2.0, batch_size=40, friction=50.0, **QUIET,
    )  # fmt: skip
    assert set(public.posterior.data_vars) == {"mu", "squared"}
    assert float(public.posterior.attrs["epsilon"]) <= 2.0


def test_what_leaves_the_numbers_is_a_draw_that_stays():
    """Far too long steps: no warning, no nan; without privacy and with it."""
    for options in (
        {"gradient_clip_bound": math.inf, "step_size": constant(50.0), "friction": 0.0, "n_steps": 400},
        {"step_size": constant(50.0), "friction": 30.0, "n_steps": 400, "budget": PrivacyBudget(math.inf, 1e-5, chains=1)},
    ):  # fmt: skip
        step = start(make(MEAN, **options))
        point = MEAN.initial_point()
        for _ in range(3):
            point, (statistics,) = step.step(point)
            assert np.isfinite(point["mu"]).all()
        assert not statistics["accepted"]


@pytest.mark.parametrize(
    "options, match",
    [
        ({"n_steps": 0}, "n_steps"),
        ({"gradient_clip_bound": 0.0}, "gradient_clip_bound"),
        ({"gradient_clip_bound": math.inf}, "gradient_clip_bound"),
        ({"gradient_clip_bound": math.nan}, "gradient_clip_bound"),
        ({"friction": -1.0}, "friction"),
        ({"friction": math.inf}, "friction"),
        ({"friction": 0.0}, "not private"),
        ({"friction": 1.0, "noise_estimate": 1.0}, "not private"),
        ({"noise_estimate": -0.1}, "noise_estimate"),
        ({"noise_estimate": 4.0}, "noise_estimate"),
        ({"temperature": 0.0}, "temperature"),
        ({"temperature": 1.5}, "temperature"),
        ({"record_trajectories": True}, "budget=None"),
        ({"step_size": 0.0}, "step_size"),
        ({"step_size": lambda t: math.nan}, "for draw 1"),
        ({"step_size": lambda t: np.random.default_rng().uniform(0.1, 0.2)}, "draw alone"),
        ({"batch_size": 10, "sampling_probability": 0.1}, "Give batch_size"),
        ({"batch_size": None, "sampling_probability": None}, "Give batch_size"),
        ({"sampling_probability": 0.0}, "sampling_probability"),
        ({"sampling_probability": 1.1}, "sampling_probability"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": N + 1}, "batch_size"),
        ({"mass_matrix": [-1.0]}, "mass_matrix"),
        ({"mass_matrix": [1.0, 1.0]}, "shape"),
    ],
    ids=lambda value: value if isinstance(value, str) else ", ".join(value),
)
def test_refused(options, match):
    with pytest.raises(ValueError, match=match):
        make(MEAN, **{"budget": PrivacyBudget(1.0, 1e-5, chains=1)} | options)


def test_fixed_batches_are_refused_where_a_record_may_be_added():
    with pytest.raises(ValueError, match="not proved"):
        make(MEAN, budget=PrivacyBudget(1.0, 1e-5, chains=1, adjacency="add_remove"), batch_size=6)


@pytest.mark.parametrize("name", [*DPSGHMC.settled])
def test_settled(name):
    step = make(MEAN, budget=PrivacyBudget(math.inf, 1e-5, chains=1))
    with pytest.raises(AttributeError, match="cannot be changed"):
        setattr(step, name, getattr(step, name))
