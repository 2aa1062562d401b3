"""Scores of simulated records, and the clip bound with the least expected error."""

from __future__ import annotations

import copy
import math

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
import pymc as pm

from pymc_dp.display import Shown, one_line
from pymc_dp.errors import UnsupportedModel
from pymc_dp.model.sums.clipped_vectors import norm_ratios
from pymc_dp.model.terms import ClippedScores, ScoreProducts
from pymc_dp.planning.local_information import floored, information_of, local_information
from pymc_dp.planning.simulator import Simulator
from pymc_dp.privacy.mechanisms.l2_laplace import L2Laplace
from pymc_dp.privacy.mechanisms.mechanism import Adjacency, Gaussian
from pymc_dp.queries.noisy_total import Release
from pymc_dp.scores.check_design import TailMisfit, largest_shifts, tail_misfit
from pymc_dp.steps.noisy_gradients import Coordinates

#: Candidates for the clip bound: quantiles of the norms of simulated scores.
QUANTILES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.998, 1.0)
#: Factor above the largest simulated norm, for the bound that is to clip nothing.
_MARGIN = 1.2
#: Relative difference of equal norms.
_ROUNDING = 1e-9
#: Scores are nearly linear in the parameters up to this distance (in roots of a record's variance).
NEAR = 2.0
#: Relative error of a stand-in's information that is allowed for: that part of the distance from the reference
#: shifts the posterior. So with a stand-in the start may take more of the budget, and has several steps: a sum far
#: from the posterior would keep its part of that shift.
_STAND_IN_ERROR = 0.5
#: Quantile of the distances of draws.
_FAR = 0.8
#: Least information; variance that counts as none.
_SINGULAR, _TINY = 1e-12, 1e-300
#: Candidates for the weight of coordinates without interest, over the root of their number.
_WEIGHTS = (3.2, 1.6, 0.8)
#: What the variance of other parameters counts beside that of interest: so much of it may be given for a unit.
_OTHERS = 0.2
#: Largest number of products that is released.
_MOST_PRODUCTS = 4096
#: Relative error of the information that is left by moments, in units of that of the moments (greater where the
#: information is small).
_AMPLIFIED = 1.6
#: Draws of the parameters' law over which a release is designed, of so many parameters in all, but at least some; and records
#: simulated at each: least, and for each parameter.
_MOST_DRAWS, _MOST_PARAMETERS, _LEAST_DRAWS, _LEAST_RECORDS, _RECORDS_EACH = 16, 400, 4, 2000, 20

_UNKNOWN = TailMisfit()


@dataclass(frozen=True, eq=False)
class ScoreDesign(Shown):
    """Clip bound of a release and its forecast; shifts, in standard deviations, if no record followed the model."""

    bound: float
    clipped: float
    sd_ratios: np.ndarray
    cost: float
    largest_shifts: np.ndarray
    interest_ratios: np.ndarray
    weight: float


class Law(NamedTuple):
    """Records simulated at some parameters, of which a sum is released at a reference.

    Scores at the parameters; vectors and log-likelihoods at the reference; the part of a feature that is not its mean given
    the covariates; precision of the prior, and with all records; gradients of what is of interest, a row for each.
    """

    scores: np.ndarray
    vectors: np.ndarray
    logp: np.ndarray
    part: np.ndarray
    prior: np.ndarray
    whole: np.ndarray
    interest: np.ndarray

    def __repr__(self) -> str:
        return one_line(self)

    def features(self, term: ClippedScores) -> np.ndarray:
        """Clipped scores, without their mean given the covariates."""
        return self.part * term.clipped(self.vectors.copy(), self.logp)


class SimulatedScores(Shown):
    """Scores of records simulated at a position, in coordinates with a posterior precision of 1 per record.

    A release at the position is designed for the parameters `draws`, shape ``(n, n_dim)``, or for the position itself.
    """

    def __init__(
        self, simulator: Simulator, theta: np.ndarray, rng: np.random.Generator,
        draws: np.ndarray | None = None, n_least: int | None = None,
    ) -> None:  # fmt: skip
        self.theta, self.draws, self.n_records = theta, draws, simulator.n_records
        local = local_information(simulator, theta, rng, n_least)
        self._scores, self._records = local.gradients, local.records
        part = np.flatnonzero((self._scores != 0).any(axis=0))
        if not len(part):
            raise UnsupportedModel(
                "the log-likelihood of simulated records does not change with the parameters."
            )
        mass = local.precision[np.ix_(part, part)] / (simulator.temperature * self.n_records)
        self.directions: np.ndarray = Coordinates(mass, part, len(theta)).directions  # type: ignore[assignment]
        self.weight = 1.0
        self._set_vectors()
        #: Without weights.
        self._whitening, self._coordinates = self.directions, self._vectors
        self._logp = local.records.logp(theta)
        fisher = self._scores.T @ self._scores / len(self._scores)
        self._temperature = simulator.temperature
        #: Relative error of the information that is allowed for.
        self.information_error = (
            _STAND_IN_ERROR if isinstance(simulator.covariates, pm.Model) else 0.0
        )
        #: See :class:`~pymc_dp.model.ClippedScores`. The mean of midpoint features is that of the real rows.
        self.clipping = "norm"
        if simulator.likelihood.is_binary and simulator.simulated.is_binary:
            if self.information_error:
                self.clipping = "outcome_free"
            elif simulator.has_real_rows:
                self.clipping = "midpoint"
        self._can_simulate = simulator.simulated.can_simulate
        self._whole = local.precision
        self._interest, self._axes = self._of_interest(simulator, part)
        #: A root of the posterior's covariance without privacy, or of that of the draws, coordinate by coordinate.
        self.root = np.linalg.inv(np.linalg.cholesky(local.precision)).T if draws is None else np.diag(draws.std(axis=0))  # fmt: skip
        self._prior = local.precision - self._temperature * self.n_records * fisher
        #: Squared distance of a draw of the prior from its mean, in total and in the widest direction.
        self.prior_square, self.prior_width = self._prior_distances(part, mass)
        #: The same at draws of the parameters.
        self.there: list[SimulatedScores] = []
        self.at_draws = partial(_possible, simulator, draws, rng)
        if not self.information_error:
            self.there += self.at_draws()
        self._laws = [each.seen_from(self) for each in (self.there or [self])]
        #: Root mean square distance of the parameters from others that are possible, in roots of a record's variance: a high
        #: quantile over draws, as data are often nearer to the model than draws of a wide prior are; or that of the prior.
        self.distance = math.sqrt(self.prior_square)
        if self.there:
            positions = np.array([each.theta for each in self.there])
            distances = [each._distance_to(positions) for each in self.there]
            self.distance = float(np.quantile(distances, _FAR))
        elif draws is not None:
            self.distance = self._distance_to(draws)

    def seen_from(self, reference: SimulatedScores) -> Law:
        """The records here, whose scores are released at a reference."""
        vectors, logp, part = self._vectors, self._logp, np.ones((len(self._logp), 1))
        if self.clipping == "midpoint":  # y - p, over y - 1/2
            part = 2 * (1 - np.exp(self._logp))[:, None]
        if reference is not self:
            with np.errstate(all="ignore"):
                vectors = self._records.gradients(reference.theta) @ reference.directions
                logp = self._records.logp(reference.theta)
        return Law(self._scores, vectors, logp, part, self._prior, self._whole, self._interest)

    def _of_interest(self, simulator: Simulator, part: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Gradients of what is of interest; an orthonormal basis of the coordinates of a score that it depends on.

        Hyperparameters, which have no scores, depend on other parameters through their conditional mean.
        """
        if simulator.interest is None:
            return np.zeros((0, len(self.theta))), np.eye(self.n_features)
        gradients = simulator.interest.gradients(simulator.likelihood, self.theta)
        rest = np.setdiff1d(np.arange(len(self.theta)), part)
        whole = self._whole[rest]
        inner = gradients[:, part] - gradients[:, rest] @ np.linalg.solve(whole[:, rest], whole[:, part])  # fmt: skip
        axes, lengths, _ = np.linalg.svd(self.directions[part].T @ inner.T, full_matrices=False)
        return gradients, axes[:, lengths > _ROUNDING * lengths.max(initial=0.0)]

    @property
    def weights(self) -> list[float]:
        """Candidates for the weight of coordinates without interest."""
        if self._axes.shape[1] in (0, self.n_features):
            return [1.0]
        return [1.0, *(w for c in _WEIGHTS if (w := c / math.sqrt(self.n_features)) < 1)]

    def weighted(self, weight: float) -> SimulatedScores:
        """The same with coordinates without interest times a weight: clipped scores tell less of them, and more of the others.

        With the interest in a single parameter, its coordinate is its efficient score.
        """
        if weight == 1:
            return self
        new = copy.copy(self)
        scaling = weight * np.eye(self.n_features) + (1 - weight) * self._axes @ self._axes.T
        new.weight, new.directions = weight, self.directions @ scaling
        new._set_vectors()
        vars(new).pop("_of_directions", None)  # cached without weights
        new._laws = [law._replace(vectors=law.vectors @ scaling) for law in self._laws]
        new.there = [each.weighted(weight) for each in self.there]
        return new

    def _set_vectors(self) -> None:
        self._vectors = self._scores @ self.directions
        self.norms = np.linalg.norm(self._vectors, axis=1)

    def _prior_distances(self, part: np.ndarray, mass: np.ndarray) -> tuple[float, float]:
        root = np.linalg.inv(np.linalg.cholesky(mass))
        prior = floored(self._prior, self._whole)[np.ix_(part, part)]
        squares = 1 / np.linalg.eigvalsh(root @ prior @ root.T)
        return float(squares.sum()), float(np.sqrt(squares.max()))

    def _distance_to(self, positions: np.ndarray) -> float:
        moves = (positions - self.theta) @ np.linalg.pinv(self.directions).T
        return math.sqrt((moves**2).sum(axis=1).mean())

    @property
    def direction_bound(self) -> float:
        """A clip bound for sums of directions: nearly all records are clipped, however far away the parameters are."""
        norms = self._clipped_norms
        return float(np.quantile(norms[norms > 0], QUANTILES[0]))

    @property
    def near_distance(self) -> float:
        """Distance up to which scores are nearly linear."""
        return NEAR * math.sqrt(self.n_features)

    def is_near(self, distance: float | None = None) -> bool:
        """Whether scores are nearly linear up to a distance, by default that of the parameters that are possible."""
        return (self.distance if distance is None else distance) <= self.near_distance

    def left_by(self, noise_sd: float) -> float:
        """Distance that a sum of directions leaves, in units of the one before: its error if records are as at the position.

        The median over the draws of the parameters, if given.
        """
        if self.there:
            return float(np.median([each.left_by(noise_sd) for each in self.there]))
        law, features = self._of_directions
        noise = (noise_sd * self.direction_bound) ** 2 * np.eye(self.n_features)
        information = information_of(law.vectors, features, noise, self.n_records)[0]
        information += self.directions.T @ law.prior @ self.directions
        return math.sqrt(np.sum(1 / np.maximum(np.linalg.eigvalsh(information), _SINGULAR)))

    @cached_property
    def _of_directions(self) -> tuple[Law, np.ndarray]:
        """The law of the records at the position, and their directions."""
        law = self.seen_from(self)
        return law, law.features(self.term(self.direction_bound))

    @property
    def spread(self) -> np.ndarray:
        """Covariance of the parameters around the position, shape ``(n_dim, n_dim)``, where scores are nearly linear."""
        return min(self.prior_width, NEAR) ** 2 * self.directions @ self.directions.T

    def term(self, bound: float) -> ClippedScores:
        """What is released at this position with a clip bound."""
        return ClippedScores(self.theta, bound, self.directions, self.clipping)

    @property
    def n_features(self) -> int:
        """Dimension of a release."""
        return self._vectors.shape[1]

    def moment_design(self, mechanism: Gaussian | L2Laplace, adjacency: Adjacency) -> MomentDesign:
        """Clip bound of the moments that correct a stand-in, and the error of the information that is left."""
        bound = float(np.median(self.norms[self.norms > 0]))
        term = ScoreProducts(self.theta, self.directions, bound)
        noise_sd = term.sensitivity(adjacency) * mechanism.noise_sd / self.n_records
        # Mean of a squared coordinate that clipping leaves; noise on the image of a unit vector.
        left = np.minimum(self.norms, bound) ** 2
        error = noise_sd / (left.mean() / self.n_features) * math.sqrt((self.n_features + 1) / 2)
        return MomentDesign(mechanism, bound, _AMPLIFIED * error)

    @property
    def n_products(self) -> int:
        """Number of products of the coordinates of a score."""
        return ScoreProducts(self.theta, self.directions, 1.0).n_dim

    @property
    def has_moments(self) -> bool:
        """Whether moments can correct the stand-in."""
        few = self.n_products <= _MOST_PRODUCTS
        return self.information_error > 0 and self._can_simulate and few

    def misfit(self, histogram: Release, reference_error: float) -> TailMisfit:
        """What a histogram of the records' norms at this position says; see :func:`tail_misfit`."""
        return tail_misfit(histogram, self.norms, self._coordinates, reference_error)

    @property
    def _clipped_norms(self) -> np.ndarray:
        """Norms that the bound clips."""
        return self.norms if self.clipping == "norm" else self.norms * norm_ratios(self.clipping, self._logp)  # fmt: skip

    def _cut_off(self, bound: float) -> np.ndarray:
        """Mean length cut off in each coordinate.

        If factors do not depend on outcomes, the length follows from the probability ``p`` of the rarer outcome: if ``p`` is
        wrong by a fraction of itself, the mean score is wrong by this fraction of ``p |x|``, with ``x`` the difference of both
        scores. The score observed has the length ``(1 - q) |x|``, with ``q`` its probability, the midpoint feature ``|x| / 2``.
        """
        clipped = self.term(bound).clipped(self._vectors.copy(), self._logp)
        if self.clipping == "norm":
            return np.abs(self._vectors - clipped).mean(axis=0)
        own = np.exp(self._logp)[:, None]
        if self.clipping == "midpoint":
            differences = 2 * self._vectors * norm_ratios("midpoint", self._logp)[:, None]
            lengths = np.abs(differences - 2 * clipped) * np.minimum(own, 1 - own)
        else:
            lengths = np.abs(self._vectors - clipped) / 2 / np.maximum(own, 1 - own)
        return lengths.mean(axis=0)

    def design(self, noise_sd: float, misfit: TailMisfit = _UNKNOWN) -> ScoreDesign:
        """Clip bound with the least error from noise and misfit."""
        norms = self._clipped_norms
        bounds = {float(b) for b in np.quantile(norms, QUANTILES) if b > 0}
        bounds = {b * (_MARGIN if b == norms.max() else 1) for b in bounds}
        return min(
            (self.evaluate(b, noise_sd, misfit) for b in bounds), key=lambda design: design.cost
        )

    def evaluate(self, bound: float, noise_sd: float, misfit: TailMisfit = _UNKNOWN) -> ScoreDesign:
        """Forecast for a clip bound: the median over the laws."""
        term, noise = self.term(bound), (noise_sd * bound) ** 2 * np.eye(self.n_features)
        lost, found, largest = misfit.beyond(bound) * self._cut_off(bound), [], []
        for law in self._laws:
            features = law.features(term)
            information, pull = information_of(law.scores, features, noise, self.n_records)
            precision = floored(law.prior + self._temperature * information, law.whole)
            covariance, whole = np.linalg.inv(precision), np.linalg.inv(law.whole)
            gain = self._temperature * covariance @ pull
            gradients = np.vstack([np.eye(len(whole)), law.interest])
            variances, without = (((gradients @ c) * gradients).sum(axis=1) + _TINY for c in (covariance, whole))  # fmt: skip
            # Shift of the posterior mean if the model is wrong about a part of what is cut off.
            shift = np.abs(gradients @ gain) @ lost * self.n_records
            found.append((variances / without, shift**2 / without))
            largest.append(largest_shifts(gain, covariance, term, self.n_records))
        squares, shifts = np.median(found, axis=0)
        n_dim, n_interest = len(self.theta), len(self._interest)
        costs = squares - 1 + shifts
        cost = costs[:n_dim].mean()
        if n_interest:
            cost = costs[n_dim:].mean() + _OTHERS * cost
        return ScoreDesign(
            bound=bound,
            clipped=float(np.mean(self._clipped_norms > bound * (1 + _ROUNDING))),
            sd_ratios=np.sqrt(squares[:n_dim]),
            cost=float(cost),
            largest_shifts=np.median(largest, axis=0),
            interest_ratios=np.sqrt(squares[n_dim:]),
            weight=self.weight,
        )

    def forecast(self, noise_sd: float, distance: float | None) -> ScoreDesign:
        """Of a release here; or, after others, so far from the parameters: the median over draws of these."""
        if distance is None or not self.there:
            return self.design(noise_sd)
        found = [(each._from_afar(distance) if distance else each).design(noise_sd) for each in self.there]  # fmt: skip
        middle = sorted(found, key=lambda each: each.cost)[len(found) // 2]
        names = "sd_ratios", "largest_shifts", "interest_ratios"
        return replace(
            middle, **{n: np.median([getattr(d, n) for d in found], axis=0) for n in names}
        )

    def _from_afar(self, distance: float) -> SimulatedScores:
        """The same for a release at a reference with this root mean square distance, in a random direction."""
        new = copy.copy(self)
        step = np.random.default_rng(0).standard_normal(self.n_features)
        new.theta = self.theta + self._whitening @ step * distance / math.sqrt(self.n_features)
        new._laws = [self.seen_from(new)]
        return new


def _possible(
    simulator: Simulator, draws: np.ndarray | None, rng: np.random.Generator
) -> Iterator[SimulatedScores]:
    """Simulated scores at the first draws of the parameters, if any, where records can be simulated."""
    if draws is None:
        return
    n = max(_LEAST_DRAWS, min(_MOST_DRAWS, _MOST_PARAMETERS // draws.shape[1]))
    for theta in draws[:n]:
        try:
            yield SimulatedScores(simulator, theta, rng, None, max(_LEAST_RECORDS, _RECORDS_EACH * len(theta)))  # fmt: skip
        except (ValueError, np.linalg.LinAlgError):  # UnsupportedModel is a ValueError
            continue


@dataclass(frozen=True)
class MomentDesign(Shown):
    """Release of the moments that correct a stand-in."""

    mechanism: Gaussian | L2Laplace
    bound: float
    information_error: float
