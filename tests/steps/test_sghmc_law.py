"""DPSGHMC: its update, friction, noise and batches, and its own stationary law."""

import itertools
import math

import numpy as np
import pytest

from scipy import stats
from scipy.linalg import solve_discrete_lyapunov

from pymc_dp import DPSGHMC, PrivacyBudget
from pymc_dp.steps.hmc import Phase
from tests.steps.sghmc_building import (
    DENSE,
    LIMIT,
    MEAN,
    MEAN_SD,
    PRIOR_SD,
    REGRESSION,
    REGRESSION_SD,
    N,
    W,
    X,
    Y,
    compiled_once,  # noqa: F401 - a fixture of all tests
    constant,
    make,
    record_randomness,
    sampled_path,
    start,
)

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


#: Each mass, each kind of batch, finite and infinite bounds, and momenta that are kept and that are not.
UPDATES = [
    (None, 0.3, 1.0, {"batch_size": 15}, 0.25, True),
    ([2.0, 0.5], 0.4, 0.6, {"batch_size": 15}, 0.25, False),
    (DENSE, 0.4, 0.3, {"sampling_probability": 0.3}, 0.3, True),
    (DENSE, math.inf, 1.0, {}, 1.0, False),
]


@pytest.mark.parametrize("mass, bound, temperature, batch, part, refresh", UPDATES, ids=range(4))
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
    assert make(REGRESSION, step_size=lambda t: 0.1 * t).schedule().step_size_at(
        3
    ) == pytest.approx(0.3)
    with pytest.raises(ValueError, match="for draw 2"):
        make(REGRESSION, step_size=lambda t: 2.0 - t).noise_multiplier(2)


@pytest.mark.parametrize(
    "adjacency, sides, mass", [("add_remove", 1, None), ("substitute", 2, DENSE)]
)
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
        return Phase(
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
    eta, tempered = step.schedule().step_size_at(1), step.temperature
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
    "Poisson": {"sampling_probability": 0.3, "gradient_clip_bound": 1e4, "step_size": constant(0.12)},
    "fixed size": {"batch_size": 15},
    "temperature, mass, noise estimate": {
        "batch_size": 20, "temperature": 0.3, "mass_matrix": [4.0], "noise_estimate": 2.0,
    },
    "mostly batches": {"batch_size": 6, "noise_estimate": 2.9},
}  # fmt: skip


@pytest.mark.parametrize("setting", ["Poisson", "fixed size", "temperature, mass, noise estimate"])
def test_noise_and_batches(setting):
    """Noise on the momentum is 2 (C - B) eta whatever else is set, plus the batches' own."""
    check_path(make(MEAN, **SETTINGS[setting]))


class NoiseWithoutTwo(DPSGHMC):
    def _step(self, phase, step_size, noise_sd):
        return super()._step(phase, step_size, noise_sd / math.sqrt(2))


class NoiseWithoutEstimate(DPSGHMC):
    def _step(self, phase, step_size, noise_sd):
        added = 2 * self.friction / step_size
        noise_sd = math.sqrt(added) * self.sampling_probability / self.temperature
        return super()._step(phase, step_size, noise_sd)


class NoiseWithoutTemperature(DPSGHMC):
    def _step(self, phase, step_size, noise_sd):
        return super()._step(phase, step_size, noise_sd * self.temperature)


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
        return Phase(self.coordinates.moved(phase.theta, step_size * momentum), momentum, gradient)


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
    NoiseWithoutEstimate: "temperature, mass, noise estimate",
    NoiseWithoutTemperature: "temperature, mass, noise estimate",
    FrictionOnce: "all records",
    UnscaledBatches: "fixed size",
    OneBatchForAll: "mostly batches",
    RepeatedBatches: "mostly batches",
    OldMomentum: "all records",
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.__name__)
def test_planted_fault_is_found(fault):
    # What moves away from the mean leaves the numbers if it is given time.
    with pytest.raises(AssertionError):
        check_path(make(MEAN, fault, **SETTINGS[FAULTS[fault]]), 400)


# ---------------------------------------------------------------- batches


@pytest.mark.parametrize("part", [0.02, 0.3])
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


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{"refresh": False}, {"mass": DENSE, "step_size": 0.1, "temperature": 0.4}],
    ids=lambda o: ", ".join(o) or "plain",
)
def test_law_is_that_of_the_recursion(options):
    law, exact = check_law(900, **options)
    assert np.abs(law / exact - 1).max() > 0.02  # biased, as it says


@pytest.mark.parametrize("fault", [FrictionForwards, NoiseWithoutTwo])
def test_law_with_a_fault_is_found(fault):
    with pytest.raises((AssertionError, ValueError, np.linalg.LinAlgError)):
        check_law(300, fault)


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


# ---------------------------------------------------------------- energy of the naive variant


@pytest.mark.slow
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
