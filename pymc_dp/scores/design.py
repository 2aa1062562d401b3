"""Design of a release of noisy scores on simulated records: start, noise and clip bound."""

from __future__ import annotations

import math

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pymc_dp.display import Shown
from pymc_dp.privacy.accounting.composition import Cost
from pymc_dp.privacy.accounting.noise_choice import least_noise
from pymc_dp.privacy.budget.budget import PrivacyBudget
from pymc_dp.privacy.mechanisms.l2_laplace import L2Laplace
from pymc_dp.privacy.mechanisms.mechanism import Accesses, Adjacency, Gaussian
from pymc_dp.queries.noisy_total import check_can_be_made
from pymc_dp.queries.stand_in_design import StandInDesign
from pymc_dp.scores.check_design import CheckDesign, design_check
from pymc_dp.scores.simulated_scores import MomentDesign, ScoreDesign, SimulatedScores

#: Candidates for the part of the budget that first sums take: for draws of the parameters; for a position; and also with a
#: stand-in or a wide law of the parameters.
_FIRST_SHARES, _SHARES = (0.0, 0.02, 0.1, 0.2), (0.0, 0.003, 0.01, 0.02, 0.05, 0.1)
_LARGE_SHARES = (0.2, 0.3, 0.4, 0.5, 0.6)
#: Largest number of first sums with a stand-in, and of a search; sums of a search beyond those that are expected to arrive.
_MOST_SUMS, _MOST_ROUNDS, _MORE_ROUNDS = 4, 16, 1
#: Number of sums of a private start, if the prior allows no large distance.
_SUMS = 2
#: Part of the way, in logarithms, that a search must be expected to go, as most go farther; and ratio of standard deviations from
#: which a posterior is useless.
_LEAST_REACH, _USELESS = 0.5, 10.0
#: Factor for distances under wide priors: they are written wider than they are meant, and data are nearer to the model than draws.
_WIDER = 30.0
#: Largest part of the budget before the main release.
_MOST_BEFORE = 0.75
#: Least epsilon of the main release alone, relative to that of the budget.
_LEAST_MAIN = 0.1
#: Parts of the budget for the moments that correct a stand-in.
_MOMENT_SHARES = (0.1, 0.2, 0.3)
#: Largest error of a reference that counts, squared.
_LARGEST_ERROR = 10.0
#: Noise multiplier of a run without protection (infinite epsilon): records still mix.
_MIN_NOISE = 0.3

#: Accesses of the start.
Sums = tuple[tuple[Gaussian | L2Laplace, int], ...]


@dataclass(frozen=True, eq=False)
class StartDesign(Shown):
    """Releases before the main one, which find its reference, and the main one; `even` has no weights for an interest."""

    moments: MomentDesign | None
    start: Sums
    main: Gaussian | L2Laplace
    check: CheckDesign | None
    design: ScoreDesign
    reference_error: float
    cost: float
    stand_in: StandInDesign | None = None
    even: ScoreDesign | None = None

    @property
    def accesses(self) -> Accesses:
        """All accesses that are claimed."""
        check: Accesses = ((self.check.mechanism, 1),) if self.check else ()
        return (*self.before, (self.main, 1), *check)

    @property
    def before(self) -> Accesses:
        """Accesses before the main release."""
        moments: Accesses = ((self.moments.mechanism, 1),) if self.moments else ()
        stand_in: Accesses = self.stand_in.accesses if self.stand_in else ()
        return (*stand_in, *moments, *self.start)

    def check_feasible(self, budget: PrivacyBudget) -> None:
        """Raise ValueError unless all releases can be made and the main one gets at least a tenth of epsilon."""
        check_can_be_made(self.accesses, budget.adjacency)
        main = Cost.of([(self.main, 1)]).epsilon(budget.delta, budget.accountant)
        if budget.epsilon < math.inf and main < _LEAST_MAIN * budget.epsilon:
            raise ValueError(
                f"The main sum of scores would get epsilon = {main:.2g} of {budget.epsilon:g}, less than a tenth: lower fit_share, give a guess= "
                "that is nearer, or release the stand-in on a budget of its own. Nothing was accessed."
            )


def best_design(
    simulated: SimulatedScores,
    budget: PrivacyBudget,
    n_records: int,
    noise: str,
    fit_share: float,
    stand_in: StandInDesign | None = None,
) -> StartDesign:
    """Start, noise and clip bound with the least expected error.

    Noise is calibrated twice: with the stand-in but without moments and start, and then with the chosen ones. In
    between, their share of what the stand-in leaves is subtracted from the epsilon of l2 noise, or from the squared
    ``mu`` of Gaussian noise. So is `fit_share`, the share of the fit check, whose noise is the least that the rest of
    the budget pays for.
    """
    d = simulated.n_features
    epsilon, delta = budget.epsilon, budget.delta
    if epsilon == math.inf:
        alone: Gaussian | L2Laplace = Gaussian(_MIN_NOISE)
    else:
        before = stand_in.accesses if stand_in else ()
        alone = least_noise(
            d, epsilon, delta, before=before, noise=noise, accountant=budget.accountant
        )
    found: list[StartDesign] = []
    has_moments = simulated.has_moments and stand_in is None
    for moments in (0.0, *_MOMENT_SHARES) if has_moments else (0.0,):
        for share in _shares(simulated):
            if moments + share > _MOST_BEFORE:
                break
            for number in _numbers(simulated, alone, share, budget.adjacency):
                shares = moments, share
                found.append(
                    _start_design(simulated, alone, shares, number, budget.adjacency, n_records)
                )
    best = replace(min(found, key=lambda candidate: candidate.cost), stand_in=stand_in)
    if epsilon == math.inf:
        return best
    if simulated.there and not simulated.is_near():
        _check_within_reach(simulated, alone, found[0].design.sd_ratios, budget)
    return _calibrated(best, simulated, budget, n_records, noise, fit_share)


def _shares(simulated: SimulatedScores) -> tuple[float, ...]:
    """Candidates for the part of the budget that first sums take."""
    if simulated.is_near() and simulated.there:
        return _FIRST_SHARES
    may_be_large = simulated.information_error or not simulated.is_near()
    return _SHARES + _LARGE_SHARES if may_be_large else _SHARES


def _numbers(
    simulated: SimulatedScores, alone: Gaussian | L2Laplace, share: float, adjacency: Adjacency
) -> Sequence[int]:
    """Candidates for the number of first sums; of a search those that arrive, or come nearest."""
    if not share:
        return (0,)
    if simulated.is_near():
        return range(1, _MOST_SUMS + 1 if simulated.information_error else 2)
    numbers = range(1, _MOST_ROUNDS + 1)
    left = [_distance_after(simulated, alone, share, number, adjacency) for number in numbers]
    arriving = [n for n, distance in zip(numbers, left, strict=True) if simulated.is_near(distance)]
    return (arriving[0] + _MORE_ROUNDS if arriving else numbers[np.argmin(left)],)


def number_of_first_sums(
    simulated: SimulatedScores, mechanism: Gaussian, adjacency: Adjacency
) -> int:
    """Number of sums of a private start, for which a mechanism is shared."""
    return _SUMS if simulated.is_near() else _numbers(simulated, mechanism, 1.0, adjacency)[0]


def _distance_after(
    simulated: SimulatedScores, alone: Gaussian | L2Laplace, share: float, number: int,
    adjacency: Adjacency, wrong: float = 0.0,
) -> float:  # fmt: skip
    """Expected distance of the last reference; `wrong` is the relative error of the information.

    Scores of a search have the scale of the distance, as long as this is larger than that of a record.
    """
    distance = simulated.distance
    if simulated.draws is not None and not simulated.is_near():
        distance *= _WIDER
    if number:
        noise_sd = _part(alone, share / number, simulated.n_features).noise_sd
        left = simulated.left_by(adjacency.sensitivity_factor * noise_sd)
        for _ in range(number):
            distance = math.hypot(left * max(1.0, distance), wrong * distance)
    return distance


def _check_within_reach(
    simulated: SimulatedScores, alone: Gaussian | L2Laplace, of_one_sum: np.ndarray, budget: PrivacyBudget
) -> None:  # fmt: skip
    """Raise ValueError if neither one sum nor a search finds the parameters, with the epsilon or the prior that would do."""

    def reach(factor: float) -> float:
        """Logarithm of the ratio of distances that a search bridges with a multiple of its part of epsilon."""
        power = 1 if isinstance(alone, L2Laplace) else 2  # of epsilon in a share
        share, scale = _LARGE_SHARES[-1] * factor**power, budget.adjacency.sensitivity_factor
        noise = [(n, scale * _part(alone, share / n, simulated.n_features).noise_sd) for n in range(1, _MOST_ROUNDS + 1)]  # fmt: skip
        return max(0.0, *(-n * math.log(simulated.left_by(sd)) for n, sd in noise))

    needed, found = math.log(simulated.distance / simulated.near_distance), reach(1.0)
    ratio = float(np.median(of_one_sum))
    if found >= _LEAST_REACH * needed or ratio < _USELESS:
        return
    factor = next(f for f in 2.0 ** (np.arange(1, 100) / 4) if reach(f) >= needed)
    raise ValueError(
        f"The prior is too wide for epsilon = {budget.epsilon:g}: its draws lie {simulated.distance:.2g} standard deviations of a record apart, and "
        f"the posterior would be {ratio:.2g} times wider than without privacy. Give epsilon = {factor * budget.epsilon:.2g}, or priors that are "
        f"{math.exp(needed - found):.2g} times narrower, or guess=, public values near the parameters. Nothing was accessed."
    )


def _start_design(
    simulated: SimulatedScores,
    alone: Gaussian | L2Laplace,
    shares: tuple[float, float],
    number: int,
    adjacency: Adjacency,
    n_records: int,
) -> StartDesign:
    """Moments, so many first sums, and the main release with the rest; without a fit check."""
    d, wrong, moments = simulated.n_features, simulated.information_error, None
    if shares[0]:
        part = _part(alone, shares[0], simulated.n_products)
        moments = simulated.moment_design(part, adjacency)
        wrong = wrong * moments.information_error / math.hypot(wrong, moments.information_error)
    noise_sd = adjacency.sensitivity_factor * _part(alone, 1 - sum(shares), d).noise_sd
    design = simulated.forecast(noise_sd, 0.0 if number else None)
    start = ((_part(alone, shares[1] / number, d), number),) if number else ()
    error = _distance_after(simulated, alone, shares[1], number, adjacency, wrong) ** 2
    cost = design.cost + wrong**2 * n_records * error / d
    if start or not simulated.there:  # else the forecast has the distance
        cost += min(error, _LARGEST_ERROR) if simulated.is_near() else error
    elif not simulated.is_near() and simulated.clipping == "norm":
        cost *= _WIDER**2  # midpoint features have no scale
    return StartDesign(moments, start, alone, None, design, error, cost)


def _calibrated(
    best: StartDesign,
    simulated: SimulatedScores,
    budget: PrivacyBudget,
    n_records: int,
    noise: str,
    fit_share: float,
) -> StartDesign:
    """The design with the noise that the budget pays for given the start, and with the fit check."""
    main, check = best.main, None
    if best.before:
        kind = "l2" if isinstance(main, L2Laplace) else "gaussian"
        main = least_noise(
            simulated.n_features, budget.epsilon, budget.delta, before=best.before, noise=kind,
            accountant=budget.accountant,
        )  # fmt: skip
    if fit_share:
        main = _part(main, 1 - fit_share, simulated.n_features)
    noise_sd = budget.adjacency.sensitivity_factor * main.noise_sd
    distance = None
    if best.start and not simulated.is_near(distance := math.sqrt(best.reference_error)):
        # The forecast is for a search that arrives.
        distance = simulated.left_by(
            budget.adjacency.sensitivity_factor * best.start[0][0].noise_sd
        )
    designs = [simulated.weighted(w).forecast(noise_sd, distance) for w in simulated.weights]
    design = min(designs, key=lambda each: each.cost)
    if fit_share:
        before, norms = (*best.before, (main, 1)), simulated.weighted(design.weight).norms
        check = design_check(norms, budget, n_records, before, noise)
    even = designs[0] if len(designs) > 1 else None
    return replace(best, main=main, check=check, design=design, even=even)


def _part(alone: Gaussian | L2Laplace, share: float, n_dim: int) -> Gaussian | L2Laplace:
    """A mechanism for `n_dim` coordinates with a share of the epsilon or of the squared ``mu``."""
    if isinstance(alone, L2Laplace):
        return L2Laplace(share * alone.epsilon, n_dim)
    return Gaussian(alone.noise_multiplier / math.sqrt(share))
