"""Each move of the sampler of latent records alone leaves the joint law of parameters, records and releases as it is.

Parameters are drawn from the prior, records given them, and releases given the records: an exact draw of the posterior given the
releases. It must still be one after a move (Geweke 2004, https://doi.org/10.1198/016214504000001132). Planted faults are found.
"""

from __future__ import annotations

import copy
import functools
import math

import numpy as np
import pytest

from scipy import stats

from pymc_dp.scores import latent_posterior
from pymc_dp.scores.latent_posterior import LatentPosterior, Walk
from pymc_dp.scores.nuts import Nuts
from pymc_dp.scores.record_sweep import sweep
from pymc_dp.scores.score_features import ScoreFeatures
from tests.scores.score_models import CASES, noise_of, public, simulator_of, template

#: By model: releases (noise, its standard deviation over the root of the number of records, reference, clipped fraction).
RELEASES = {
    "bernoulli": [("l2", 0.5, [0.9], 0.6), ("gaussian", 1.0, [-1.0], 0.5)],
    "location_scale": [("l2", 0.5, [0.3, 0.2], 0.6)],
}
N_REPLICATES, N_MOVES = 300, 2
#: Largest standardized deviation of a mean of changes, and smallest p-value, for moves that are right.
LARGEST, SMALLEST = 4.0, 1e-4


@functools.cache
def compiled(name, has_error):
    """Features and target, to be copied; with one error of a stand-in, as large as the noise, in one of the sums."""
    case = CASES[name]
    releases = [template(case, *r) for r in RELEASES[name]]
    simulated = simulator_of(name).simulated
    found = ScoreFeatures(public(case, releases), simulated)
    error = releases[0].noise_sd * np.eye(len(found.total))[:, : int(has_error)]
    return case, LatentPosterior(found, simulated, simulated, case.n, error), found


def target_of(name, has_error=False):
    case, target, found = map(copy.copy, compiled(name, has_error))
    found.scales, found.is_gaussian = found.scales.copy(), found.is_gaussian.copy()
    target._features = found
    return case, target, found


def records(target, state, rng, case):
    target.update_records(state, rng)
    return state


def parameters(target, state, rng, case):
    if not hasattr(target, "nuts"):
        scales = np.diag(0.5 * case.prior[1])
        target.nuts = Nuts(
            lambda theta: target.log_density(theta, target.current),
            case.prior[0],
            scales,
            rng,
            False,
        )
        target.nuts.stop_tuning()
    target.current = state
    state.theta, _ = target.nuts.move(state.theta)
    return state


def both(target, state, rng, case, walk=Walk):
    """The walk is not that of the prior or of the posterior."""
    walk = walk(case.prior[0] + 0.5 * case.prior[1], np.diag(0.7 * case.prior[1]))
    return target.update_both(state, walk, rng)[0]


MOVES = {f.__name__: f for f in (records, parameters, both)}


def functions(case, state):
    """Functions of parameters, records and residuals."""
    theta, r = state.theta, state.residual
    y, z = state.data[0][0], state.error
    sums = state.features[0].sum(axis=0)
    return np.array([
        *theta, *theta**2, *r, *r**2, np.linalg.norm(r), *theta[0] * r, *sums, *sums**2, *sums * r, *theta[-1] * sums,
        y.mean(), y.mean() * theta[0], y.var(), *z, *z**2, *z * r[0], *z * theta[0],
    ])  # fmt: skip


def replicates(name, move, seed, fault=lambda target, found: None, n=N_REPLICATES, has_error=False):
    """Functions of exact draws of the joint law, before and after moves."""
    case, target, found = target_of(name, has_error)
    releases, truth = found._releases, copy.copy(found)
    rng = np.random.default_rng(seed)
    pairs = []
    for _ in range(n):
        theta = case.prior[0] + case.prior[1] * rng.standard_normal(len(case.prior[0]))
        target._features = truth
        state = target.draw(theta, rng)
        noise = [noise_of(r.noise.kind, r.noise.scale, (1, len(r.total)), rng)[0] for r in releases]
        sums = state.features[0].sum(axis=0)
        state.residual = np.concatenate(noise)
        found.total = sums + target._error_root @ state.error + state.residual
        before = functions(case, state)
        target._features = found
        fault(target, found)
        for _ in range(N_MOVES):
            state = move(target, state, rng, case)
        pairs.append((before, functions(case, state)))
    return np.moveaxis(np.array(pairs), 1, 0)


def deviations(before, after):
    """Standardized means of changes; and p-values of comparisons of one half before with the other half after."""
    change = after - before
    spread = change.std(axis=0)
    moved = spread > 1e-12
    z = change.mean(axis=0)[moved] / spread[moved] * math.sqrt(len(change))
    half = len(before) // 2
    p = [
        stats.ks_2samp(x, y, method="asymp").pvalue
        for x, y in zip(before[:half].T, after[half:].T, strict=True)
    ]
    return np.abs(z).max(), min(p)


@pytest.mark.parametrize("has_error", [False, True])
@pytest.mark.parametrize("move", MOVES)
def test_a_move_leaves_the_joint_law(move, has_error):
    before, after = replicates("location_scale", MOVES[move], seed=1, has_error=has_error)
    assert (before != after).any(axis=1).mean() > 0.1  # else nothing moved
    z, p = deviations(before, after)
    assert z < LARGEST and p > SMALLEST


def test_a_record_is_accepted_by_the_density_of_the_noise(n=60):
    """Record by record, with uniform numbers on either side of the ratio of densities: Gaussian noise of two sums, and l2 of three."""
    rng = np.random.default_rng(5)
    current, proposed, residual = (rng.normal(size=shape) for shape in ((n, 5), (n, 5), 5))
    begin, rest, log_uniforms, expected, ratios = current.copy(), residual.copy(), [], [], []

    def log_noise(x):
        return stats.norm.logpdf(x[:2], scale=1.3).sum() - np.linalg.norm(x[2:]) / 0.7

    for i in range(n):
        new = rest + current[i] - proposed[i]
        ratios.append(log_noise(new) - log_noise(rest))
        expected.append(i % 2 == 0)
        log_uniforms.append(ratios[-1] + (-1e-9 if expected[-1] else 1e-9))
        rest = new if expected[-1] else rest
    accepted, rate = sweep(
        current, proposed, residual, np.array(log_uniforms), np.array([0, 2, 5]), np.array([1.3, 0.7]), np.array([True, False])
    )  # fmt: skip
    assert accepted.tolist() == expected
    np.testing.assert_allclose(residual, rest, atol=1e-12)
    np.testing.assert_array_equal(current, np.where(accepted[:, None], proposed, begin))
    assert rate == pytest.approx(np.exp(np.minimum(ratios, 0)).mean())


def test_records_features_and_residual_belong_together():
    """After all moves, features are those of the records, and the residual is the rest."""
    case, target, found = target_of("location_scale", has_error=True)
    rng = np.random.default_rng(4)
    found.total = np.array([1.0, -0.5])
    state = target.draw(case.prior[0], rng)
    for _ in range(50):
        for move in MOVES.values():
            state = move(target, state, rng, case)
        (values,) = state.data[0]
        (r,) = found._releases
        by_hand = case.score(r.term.theta, values) @ r.term.directions
        by_hand *= np.minimum(1, r.term.bound / np.linalg.norm(by_hand, axis=1, keepdims=True))
        np.testing.assert_allclose(state.features[0], by_hand, atol=1e-12)
        rest = found.total - by_hand.sum(axis=0) - target._error_root @ state.error
        np.testing.assert_allclose(state.residual, rest, atol=1e-9)


# ---------------------------------------------------------------------- planted faults


def no_clipping(target, found):
    """Features of proposed records are not clipped."""
    if not isinstance(found, Unclipped):
        found.__class__ = Unclipped


class Unclipped(ScoreFeatures):
    def of(self, data):
        return np.hstack(
            [
                self._simulated.gradients(r.term.theta, data, None, r.term.directions)
                for r in self._releases
            ]
        )


def twice_the_noise(target, found):
    """The noise is taken to be twice as large."""
    found.scales = np.array([2 * r.noise.scale for r in found._releases])


def l2_as_gaussian(target, found):
    """l2 noise is taken to be Gaussian, of the same variance."""
    found.is_gaussian = np.ones_like(found.is_gaussian)
    found.scales = np.array([r.noise_sd for r in found._releases])


class Forgetful(Walk):
    """Leaves out the ratio of the proposals' densities."""

    def proposal(self, theta, rng):
        return super().proposal(theta, rng)[0], 0.0


FAULTS = {
    "records": (no_clipping, twice_the_noise, l2_as_gaussian),
    "both": (no_clipping, twice_the_noise, l2_as_gaussian),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("move", "fault"), [(m, f) for m, faults in FAULTS.items() for f in faults]
)
def test_a_fault_is_found(move, fault):
    n = 8000 if (move, fault) == ("both", l2_as_gaussian) else 1500
    z, _ = deviations(*replicates("location_scale", MOVES[move], seed=5, fault=fault, n=n))
    assert z > LARGEST + 1, z


@pytest.mark.slow
def test_a_missing_hastings_ratio_is_found():
    move = functools.partial(both, walk=Forgetful)
    z, _ = deviations(*replicates("location_scale", move, seed=6, n=1500))
    assert z > LARGEST + 1, z


@pytest.mark.slow
def test_a_stale_residual_is_found(monkeypatch):
    """Each sweep decides by a residual that is brought up to date only when it is over."""
    right = latent_posterior.sweep

    def stale(current, proposed, residual, log_uniforms, *rest):
        accepted = np.zeros(len(current), dtype=bool)
        start = residual.copy()
        for i in range(len(current)):
            one = slice(i, i + 1)
            old = current[one].copy()
            accepted[one], _ = right(
                current[one], proposed[one], start.copy(), log_uniforms[one], *rest
            )
            residual += (old - current[one])[0]
        return accepted, 1.0

    monkeypatch.setattr(latent_posterior, "sweep", stale)
    z, _ = deviations(*replicates("location_scale", records, seed=7, n=1500))
    assert z > LARGEST + 1, z


@pytest.mark.slow
def test_an_error_of_the_stand_in_that_forgets_its_law_is_found(monkeypatch):
    """Moves that leave a wider normal law invariant."""
    right = LatentPosterior._update_error

    def wider(self, state, rng):
        state.error = state.error / 1.3
        self._error_root = self._error_root * 1.3
        right(self, state, rng)
        state.error = state.error * 1.3
        self._error_root = self._error_root / 1.3

    monkeypatch.setattr(LatentPosterior, "_update_error", wider)
    z, _ = deviations(*replicates("location_scale", records, seed=9, n=1500, has_error=True))
    assert z > LARGEST + 1, z


@pytest.mark.slow
def test_wrong_weights_of_parameters_are_found(monkeypatch):
    """The gradient and the density of the parameters forget the prior."""
    monkeypatch.setattr(LatentPosterior, "log_density", _without_prior)
    z, _ = deviations(*replicates("location_scale", parameters, seed=8, n=1500))
    assert z > LARGEST + 1, z


def _without_prior(self, theta, state):
    return self._simulated.weighted_sum(theta, state.data[0], self._weights[0])
