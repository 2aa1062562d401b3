"""Design of a release of noisy scores on simulated records: start, noise and clip bound."""

from __future__ import annotations

import math

from dataclasses import dataclass, replace

import numpy as np
import pymc as pm

from pymc_dp.display import Shown
from pymc_dp.errors import UnsupportedModel
from pymc_dp.model.sums.clipped_vectors import larger_over_own
from pymc_dp.planning.local_information import local_information
from pymc_dp.planning.simulator import Simulator
from pymc_dp.privacy.accounting.noise_choice import least_noise
from pymc_dp.privacy.budget.budget import PrivacyBudget
from pymc_dp.privacy.mechanisms.l2_laplace import L2Laplace
from pymc_dp.privacy.mechanisms.mechanism import Accesses, Gaussian
from pymc_dp.queries.stand_in_design import StandInDesign
from pymc_dp.scores.check_design import CheckDesign, TailMisfit, design_check, tail_misfit
from pymc_dp.scores.clipped_scores import clip_rows, unbiased_rows
from pymc_dp.scores.linearized import floored, information_of
from pymc_dp.scores.releases import ScoreHistogram
from pymc_dp.scores.second_moments import MOST_PRODUCTS, moment_sensitivity, n_products
from pymc_dp.steps.noisy_gradients import Coordinates

__all__ = ["MomentDesign", "ScoreDesign", "SimulatedScores", "StartDesign", "best_design"]

#: Candidates for the clip bound: quantiles of the norms of simulated scores.
_QUANTILES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.998, 1.0)
#: Factor above the largest simulated norm, for the bound that is to clip nothing.
_MARGIN = 1.2
#: Candidates for the part of the budget that the start takes; large ones only if less cannot arrive, or with a
#: stand-in.
_SHARES, _LARGE_SHARES = (0.0, 0.001, 0.003, 0.01, 0.02, 0.05, 0.1), (0.2, 0.4, 0.6, 0.75)
#: Scores are nearly linear in the parameters up to this distance (in roots of a record's variance): if the prior
#: allows larger ones, noisy Newton steps come first, which double, then halve: at least so many. Two sums after
#: them get the rest of the start's part of the budget.
_NEAR, _LEAST_STEPS, _STEPS_PART = 2.0, 4, 0.5
#: Length of the noise on a record's mean score, relative to the clip bound, at which far steps still point
#: to the posterior.
_MOST_NOISE = 0.3
#: Relative difference of equal norms.
_ROUNDING = 1e-9
#: Largest part of the budget before the main release.
_MOST_BEFORE = 0.75
#: Part of several steps that is expected in their final average.
_AVERAGED = 1 / 3
#: Relative error of a stand-in's information that is allowed for: that part of the distance from the reference
#: shifts the posterior. So with a stand-in the start may take more of the budget, and has several steps: a sum far
#: from the posterior would keep its part of that shift.
_STAND_IN_ERROR = 0.5
#: Parts of the budget for the moments that correct a stand-in; the relative error of the information that is left,
#: in units of that of the moments (greater where the information is small).
_MOMENT_SHARES, _AMPLIFIED = (0.1, 0.2, 0.3), 1.6
#: Largest error of a reference that counts, squared.
_LARGEST_ERROR = 10.0
#: Noise multiplier of a run without protection (infinite epsilon): records still mix.
_MIN_NOISE = 0.3

_UNKNOWN = TailMisfit()
#: Accesses of the start.
Steps = tuple[tuple[Gaussian | L2Laplace, int], ...]


@dataclass(frozen=True, eq=False)
class ScoreDesign(Shown):
    """Clip bound of a release, and what is expected of it.

    Parameters
    ----------
    bound : float
        In coordinates in which the posterior's precision is 1 per record.
    clipped : float
        Fraction of the simulated records that are clipped.
    sd_ratios : array of shape (n_dim,)
        Posterior standard deviation of each parameter given the release, over the one without privacy.
    cost : float
        Mean square of the errors of noise and misfit, in posterior variances without privacy.
    """

    bound: float
    clipped: float
    sd_ratios: np.ndarray
    cost: float


class SimulatedScores(Shown):
    """Scores of records simulated at a position, in coordinates in which the posterior's precision is 1 per record.

    Parameters
    ----------
    simulator : Simulator
    theta : array of shape (n_dim,)
    rng : numpy.random.Generator

    Attributes
    ----------
    directions : array of shape (n_dim, d)
        The coordinates, of the parameters on which the likelihood depends.
    norms : array of shape (n,)
        Of the simulated scores, in these coordinates.
    unbiased : bool
        Whether clipped scores have a mean of zero here given the covariates, and so do not depend on a stand-in's errors.
    """

    def __init__(self, simulator: Simulator, theta: np.ndarray, rng: np.random.Generator) -> None:
        self.theta, self._n = theta, simulator.n_records
        local = local_information(simulator, theta, rng)
        self._scores = local.gradients
        part = np.flatnonzero((self._scores != 0).any(axis=0))
        if not len(part):
            raise UnsupportedModel(
                "the log-likelihood of simulated records does not change with the parameters."
            )
        mass = local.precision[np.ix_(part, part)] / (simulator.temperature * self._n)
        self.directions: np.ndarray = Coordinates(mass, part, len(theta)).directions  # type: ignore[assignment]
        self._vectors = self._scores @ self.directions
        self.norms = np.linalg.norm(self._vectors, axis=1)
        self._logp = local.logp
        fisher = self._scores.T @ self._scores / len(self._scores)
        self._temperature = simulator.temperature
        #: Relative error of the information that is allowed for.
        self.information_error = (
            _STAND_IN_ERROR if isinstance(simulator.covariates, pm.Model) else 0.0
        )
        self.unbiased = self.information_error > 0 and simulator.likelihood.is_binary
        self._can_simulate = simulator.simulated.can_simulate
        self._whole = local.precision
        self._prior = local.precision - self._temperature * self._n * fisher
        #: Squared distance of a draw of the prior from its mean, in total and in the widest direction.
        self.prior_square, self.prior_width = self._prior_distances(part, mass)

    def _prior_distances(self, part: np.ndarray, mass: np.ndarray) -> tuple[float, float]:
        root = np.linalg.inv(np.linalg.cholesky(mass))
        prior = floored(self._prior, self._whole)[np.ix_(part, part)]
        squares = 1 / np.linalg.eigvalsh(root @ prior @ root.T)
        return float(squares.sum()), float(np.sqrt(squares.max()))

    @property
    def spread(self) -> np.ndarray:
        """Covariance of the parameters around the position, as far as scores are nearly linear, shape ``(n_dim, n_dim)``."""
        return min(self.prior_width, _NEAR) ** 2 * self.directions @ self.directions.T

    @property
    def n_features(self) -> int:
        """Dimension of a release."""
        return self._vectors.shape[1]

    def moment_design(self, mechanism: Gaussian | L2Laplace, factor: float) -> MomentDesign:
        """Clip bound of the moments that correct a stand-in, and the error of the information that is left."""
        bound = float(np.median(self.norms[self.norms > 0]))
        noise_sd = moment_sensitivity(factor, bound) * mechanism.noise_sd / self._n
        # Mean of a squared coordinate that clipping leaves; noise on the image of a unit vector.
        left = np.minimum(self.norms, bound) ** 2
        error = noise_sd / (left.mean() / self.n_features) * math.sqrt((self.n_features + 1) / 2)
        return MomentDesign(mechanism, bound, _AMPLIFIED * error)

    @property
    def has_moments(self) -> bool:
        """Whether moments may be released, to correct a stand-in."""
        few = n_products(self.n_features) <= MOST_PRODUCTS
        return self.information_error > 0 and self._can_simulate and few

    def misfit(self, histogram: ScoreHistogram, reference_error: float) -> TailMisfit:
        """What a histogram of the records' norms at this position says; see :func:`tail_misfit`."""
        return tail_misfit(histogram, self.norms, self._vectors, reference_error)

    @property
    def _clipped_norms(self) -> np.ndarray:
        """Those that the bound clips: with `unbiased`, of the larger of the scores of both outcomes."""
        return self.norms * larger_over_own(self._logp) if self.unbiased else self.norms

    def design(self, noise_sd: float, misfit: TailMisfit = _UNKNOWN) -> ScoreDesign:
        """Choose the clip bound with the least error of noise and misfit.

        Parameters
        ----------
        noise_sd : float
            Standard deviation of each coordinate of the noise, for a clip bound of 1.
        misfit : TailMisfit
            What is known of the records' scores; by default nothing.
        """
        norms = self._clipped_norms
        bounds = {float(b) for b in np.quantile(norms, _QUANTILES) if b > 0}
        bounds = {b * (_MARGIN if b == norms.max() else 1) for b in bounds}
        return min(
            (self.evaluate(b, noise_sd, misfit) for b in bounds), key=lambda design: design.cost
        )

    def evaluate(self, bound: float, noise_sd: float, misfit: TailMisfit = _UNKNOWN) -> ScoreDesign:
        """What is expected with a clip bound."""
        if self.unbiased:
            features = unbiased_rows(self._vectors, self._logp, bound)
        else:
            features = clip_rows(self._vectors.copy(), bound)
        noise = (noise_sd * bound) ** 2 * np.eye(self.n_features)
        information, pull = information_of(self._scores, features, noise, self._n)
        covariance = np.linalg.inv(
            floored(self._prior + self._temperature * information, self._whole)
        )
        without = np.diag(np.linalg.inv(self._whole))
        # Shift of the posterior mean if the model is wrong about a part of what is cut off.
        lost = misfit.beyond(bound) * np.abs(self._vectors - features).mean(axis=0)
        shift = np.abs(covariance @ pull) @ lost * self._n * self._temperature
        squares = np.diag(covariance) / without
        return ScoreDesign(
            bound=bound,
            clipped=float(np.mean(self._clipped_norms > bound * (1 + _ROUNDING))),
            sd_ratios=np.sqrt(squares),
            cost=float(np.mean(squares - 1 + shift**2 / without)),
        )


@dataclass(frozen=True)
class MomentDesign(Shown):
    """Release of the moments that correct a stand-in.

    Parameters
    ----------
    mechanism : Gaussian or L2Laplace
    bound : float
        Of the norms of scores, in coordinates in which the posterior's precision is 1 per record.
    information_error : float
        Relative error of a record's information that is left.
    """

    mechanism: Gaussian | L2Laplace
    bound: float
    information_error: float


@dataclass(frozen=True, eq=False)
class StartDesign(Shown):
    """Releases that find the reference, and the main one.

    Parameters
    ----------
    moments : MomentDesign or None
        Of the moments that correct a stand-in.
    steps : tuple of (Mechanism, int)
        Noise on each Newton step of the start, and their number; empty if no step is made.
    sums : tuple of (Mechanism, int)
        Noise on each sum between these steps and the main one, and their number; empty if there is none. They
        stay in the posterior; the steps do not.
    main : Gaussian or L2Laplace
    check : CheckDesign or None
        Of the fit check.
    design : ScoreDesign
        Of the main release, at the position of the plan.
    reference_error : float
        Expected squared distance of the reference from the mean of the posterior, in variances of a record.
    cost : float
        Mean square of the errors of the main release in posterior variances without privacy, and the spread that
        the distance from the reference adds to its terms.
    stand_in : StandInDesign or None
        Of covariates of which only ranges are known.
    """

    moments: MomentDesign | None
    steps: Steps
    sums: Steps
    main: Gaussian | L2Laplace
    check: CheckDesign | None
    design: ScoreDesign
    reference_error: float
    cost: float
    stand_in: StandInDesign | None = None

    @property
    def accesses(self) -> Accesses:
        """All that is claimed."""
        check: Accesses = ((self.check.mechanism, 1),) if self.check else ()
        return (*self.before, (self.main, 1), *check)

    @property
    def before(self) -> Accesses:
        """Accesses before the main one."""
        moments: Accesses = ((self.moments.mechanism, 1),) if self.moments else ()
        stand_in: Accesses = self.stand_in.accesses if self.stand_in else ()
        return (*stand_in, *moments, *self.start)

    @property
    def start(self) -> Steps:
        """Accesses of the start."""
        return (*self.steps, *self.sums)


def best_design(
    simulated: SimulatedScores,
    budget: PrivacyBudget,
    n_records: int,
    noise: str,
    fit_share: float,
    stand_in: StandInDesign | None = None,
) -> StartDesign:
    """Start, noise and clip bound with the least expected error.

    Noise is calibrated twice: without moments and start, and with the chosen ones. Between them, the part of the
    budget that these take is taken from the epsilon of l2 noise, or from the squared ``mu`` of Gaussian noise. So
    is `fit_share`, the part that the fit check takes; its noise is the least that the rest of the budget pays for.
    """
    d, factor = simulated.n_features, budget.adjacency.sensitivity_factor
    epsilon, delta = budget.epsilon, budget.delta
    if epsilon == math.inf:
        alone: Gaussian | L2Laplace = Gaussian(_MIN_NOISE)
    else:
        alone = least_noise(d, epsilon, delta, noise=noise, accountant=budget.accountant)
    width = simulated.prior_width
    many = _LEAST_STEPS + max(0, math.ceil(2 * math.log2(width)))
    if stand_in is not None and (stand_in.is_joint or width > _NEAR):
        # The error of the stand-in is in the law of all sums, so those from afar may stay.
        starts = ((many, 2),) if width > _NEAR else ((0, 1), (0, 2), (0, 3), (0, 4))
    elif simulated.information_error:
        starts = ((many, 0),) if width > _NEAR else ((0, 1), (2, 0), (3, 0), (many, 0))
    else:
        starts = ((many, 2),) if width > _NEAR else ((0, 1),)
    found: list[StartDesign] = []
    has_moments = simulated.has_moments and stand_in is None
    for moments in (0.0, *_MOMENT_SHARES) if has_moments else (0.0,):
        for share in (*_SHARES, *_LARGE_SHARES):
            if share in _LARGE_SHARES and not simulated.information_error:
                if width <= _NEAR or found[-1].reference_error < width**2:
                    break
            if moments + share > _MOST_BEFORE:
                break
            for numbers in starts if share else ((0, 0),):
                shares = moments, share
                found.append(_start_design(simulated, alone, shares, numbers, factor, n_records))
    best = replace(min(found, key=lambda candidate: candidate.cost), stand_in=stand_in)
    if epsilon == math.inf:
        return best
    return _calibrated(best, simulated, budget, n_records, noise, fit_share)


def _start_design(
    simulated: SimulatedScores,
    alone: Gaussian | L2Laplace,
    shares: tuple[float, float],
    numbers: tuple[int, int],
    factor: float,
    n_records: int,
) -> StartDesign:
    """Moments, a start of so many steps and sums, and the main release with the rest; without a fit check."""
    d, wrong, moments = simulated.n_features, simulated.information_error, None
    if shares[0]:
        part = _part(alone, shares[0], n_products(d))
        moments = simulated.moment_design(part, factor)
        wrong = wrong * moments.information_error / math.hypot(wrong, moments.information_error)
    design = simulated.design(factor * _part(alone, 1 - sum(shares), d).noise_sd)
    share = shares[1] * (_STEPS_PART if all(numbers) else 1.0)
    steps, sums = (((_part(alone, share / n, d), n),) if n else () for n in numbers)
    error, length = simulated.prior_square, math.sqrt(d) * factor / n_records
    if not steps or length * steps[0][0].noise_sd < _MOST_NOISE:  # else they do not arrive
        for mechanism, number in (*steps, *sums):
            noise = (design.bound * length * mechanism.noise_sd) ** 2
            error = noise / max(1.0, _AVERAGED * number) + error * wrong ** (2 * number)
    cost = design.cost + min(error, _LARGEST_ERROR) + wrong**2 * n_records * error / d
    return StartDesign(moments, steps, sums, alone, None, design, error, cost)


def _calibrated(
    best: StartDesign,
    simulated: SimulatedScores,
    budget: PrivacyBudget,
    n_records: int,
    noise: str,
    fit_share: float,
) -> StartDesign:
    """The design with the noise that the budget pays for, given the start, and with the fit check."""
    main, check = best.main, None
    if best.before:
        kind = "l2" if isinstance(main, L2Laplace) else "gaussian"
        main = least_noise(
            simulated.n_features, budget.epsilon, budget.delta, before=best.before, noise=kind,
            accountant=budget.accountant,
        )  # fmt: skip
    if fit_share:
        main = _reduced(main, fit_share)
        before = (*best.before, (main, 1))
        check = design_check(simulated.norms, budget, n_records, before, noise)
    design = simulated.design(budget.adjacency.sensitivity_factor * main.noise_sd)
    return replace(best, main=main, check=check, design=design)


def _reduced(mechanism: Gaussian | L2Laplace, share: float) -> Gaussian | L2Laplace:
    """The mechanism without a share of its epsilon (l2 noise), or of its squared ``mu``."""
    if isinstance(mechanism, L2Laplace):
        return replace(mechanism, epsilon=(1 - share) * mechanism.epsilon)
    return Gaussian(mechanism.noise_multiplier / math.sqrt(1 - share))


def _part(alone: Gaussian | L2Laplace, share: float, n_dim: int) -> Gaussian | L2Laplace:
    """A mechanism for so many coordinates with a share of the epsilon, or of the squared ``mu``."""
    if isinstance(alone, L2Laplace):
        return L2Laplace(share * alone.epsilon, n_dim)
    return Gaussian(alone.noise_multiplier / math.sqrt(share))
