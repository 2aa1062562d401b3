"""First sums of scores: each is released at the best reference for the parameters given the sums before."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from scipy.optimize import minimize

from pymc_dp.planning.simulator import Guess, Simulator
from pymc_dp.privacy.mechanisms.l2_laplace import L2Laplace
from pymc_dp.privacy.mechanisms.mechanism import Adjacency, Gaussian
from pymc_dp.queries.noisy_total import Release, noisy_total
from pymc_dp.scores.check_design import TailMisfit
from pymc_dp.scores.releases import PrivateScores
from pymc_dp.scores.score_features import ScoreFeatures
from pymc_dp.scores.simulated_scores import QUANTILES, SimulatedScores
from pymc_dp.scores.sum_law import NormalSums

#: Draws of the parameters that are tried as start of a search for the mode, or have a predictive law; records simulated from this.
N_DRAWS, _N_RECORDS = 40, 20_000
#: Simulated records for the mean of the sums: the next reference needs no more.
_MOST_SIMULATED = 20_000
#: Steps to the reference.
_N_STEPS = 100
#: Part of the largest information, in nats, that the least bound of a sum of a search has.
_MOST_INFORMATION = 0.95
#: Part of the records of the predictive law whose density must be positive at a reference.
_POSSIBLE = 0.99


def predictive_reference(
    simulator: Simulator, draws: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """The parameters nearest to the predictive law of draws, in Kullback-Leibler divergence: most likely for its records.

    Scores have the scale of the residuals that are expected there: of a normal regression, the residual variance is that of
    the noise and of the coefficients. Parameters without scores have their median.
    """
    simulated, sets = simulator.simulated, []
    some = simulated.some(-(-_N_RECORDS // len(draws)), rng)
    for theta in draws:
        try:
            with np.errstate(all="ignore"):
                sets.append((simulated.draw(theta, rng), some))
        except ValueError:  # NumPy's, for parameters that are out of range
            continue
    start, scale = np.median(draws, axis=0), draws.std(axis=0)
    if not sets:
        return start
    records = simulated.pooled(sets)

    def loss(z: np.ndarray) -> tuple[float, np.ndarray]:
        with np.errstate(all="ignore"):
            logp = records.logp(start + scale * z)
            is_possible = np.isfinite(logp)
            if is_possible.mean() < _POSSIBLE:
                return np.inf, np.zeros(len(z))
            scores = records.gradients(start + scale * z)[is_possible]
        return -logp[is_possible].mean(), -scale * np.nan_to_num(scores).mean(axis=0)

    if not np.isfinite(loss(np.zeros(len(start)))[0]):
        return start
    found = minimize(loss, np.zeros(len(start)), jac=True, method="L-BFGS-B", options={"maxiter": _N_STEPS})  # fmt: skip
    return start + scale * found.x


def first_reference(
    simulator: Simulator, guess: Guess, rng: np.random.Generator
) -> SimulatedScores:
    """Simulated scores at a guess, or for draws of the prior."""
    theta = simulator.position(guess, rng)
    if guess is None:
        with suppress(NotImplementedError):  # a pm.CustomDist without random
            return at_draws(simulator, theta, simulator.prior_draws(N_DRAWS, rng), rng)
    return SimulatedScores(simulator, theta, rng)


def released_sum(
    simulator: Simulator, simulated: SimulatedScores, mechanism: Gaussian | L2Laplace, adjacency: Adjacency,
    misfit: TailMisfit | None = None,
) -> Release:  # fmt: skip
    """Release a sum, which is paid for, with the best clip bound at its reference; the main one has a misfit."""
    noise_sd = adjacency.sensitivity_factor * mechanism.noise_sd
    if misfit or simulated.is_near():
        bound = simulated.design(noise_sd, misfit or TailMisfit()).bound
    else:
        bound = search_bound(simulated, noise_sd)
    return noisy_total(simulator.likelihood, simulated.term(bound), mechanism, adjacency)


def search_bound(simulated: SimulatedScores, noise_sd: float) -> float:
    """Clip bound of a sum of a search: the least one with most of the largest information about draws of the parameters.

    Each coordinate is predicted from its own sum, linearly (linear Bayes). If the model has a scale, these are sums of
    directions; with a fixed one they would show only on which side of the reference the parameters lie.
    """
    if not (there := simulated.there or [*simulated.at_draws()]):
        return simulated.direction_bound
    laws, n = [each.seen_from(simulated) for each in there], simulated.n_records
    moves = np.array([each.theta for each in there]) - simulated.theta
    coordinates = moves @ np.linalg.pinv(simulated.directions).T
    coordinates -= coordinates.mean(axis=0)
    norms = np.concatenate([np.linalg.norm(law.vectors, axis=1) for law in laws])
    bounds = np.quantile(norms[norms > 0], QUANTILES)

    def information(bound: float) -> float:
        features = [law.features(simulated.term(bound)) for law in laws]
        means = np.array([x.mean(axis=0) for x in features])
        means -= means.mean(axis=0)
        errors = np.mean([x.var(axis=0) for x in features], axis=0) / n + (noise_sd * bound / n) ** 2  # fmt: skip
        explained = np.mean(coordinates * means, axis=0) ** 2 / np.mean(coordinates**2, axis=0)
        return -float(np.log1p(-explained / (np.mean(means**2, axis=0) + errors)).sum())

    found = np.array([information(bound) for bound in bounds])
    return float(bounds[np.argmax(found >= _MOST_INFORMATION * found.max())])


def after_sums(
    simulator: Simulator, releases: Sequence[Release], last: SimulatedScores, adjacency: Adjacency,
    rng: np.random.Generator,
) -> SimulatedScores:  # fmt: skip
    """Simulated scores at the best reference given sums, of which the last one was released at `last`.

    If records cannot be simulated there, they are `last`: the sums are paid for.
    """
    n, shapes = simulator.n_records, simulator.likelihood.shapes
    scores = PrivateScores(tuple(releases), shapes, n, adjacency.value, ())
    features = ScoreFeatures(scores, simulator.simulated)
    try:
        starts = [last.theta, *(() if last.draws is None else last.draws)]
        target = NormalSums(simulator, features, starts, last.root, rng, _MOST_SIMULATED)
        draws = target.draws(N_DRAWS, np.mean(starts, axis=0), last.root, rng)
        return at_draws(simulator, target.centre, draws, rng)
    except (ValueError, np.linalg.LinAlgError):  # UnsupportedModel is a ValueError
        return last


def at_draws(
    simulator: Simulator, theta: np.ndarray, draws: np.ndarray, rng: np.random.Generator
) -> SimulatedScores:
    """Simulated scores for draws of the parameters: at their centre, or if they are far apart at the best reference."""
    found = SimulatedScores(simulator, theta, rng, draws)
    if not found.is_near():
        found = SimulatedScores(simulator, predictive_reference(simulator, draws, rng), rng, draws)
    return found
