"""Design of a release of noisy scores on simulated records: start, noise and clip bound."""

from __future__ import annotations

import math

from dataclasses import dataclass, replace

from pymc_dp.display import Shown
from pymc_dp.privacy.accounting.composition import Cost
from pymc_dp.privacy.accounting.noise_choice import least_noise
from pymc_dp.privacy.budget.budget import PrivacyBudget
from pymc_dp.privacy.mechanisms.l2_laplace import L2Laplace
from pymc_dp.privacy.mechanisms.mechanism import Accesses, Adjacency, Gaussian
from pymc_dp.queries.noisy_total import check_can_be_made
from pymc_dp.queries.stand_in_design import StandInDesign
from pymc_dp.scores.check_design import CheckDesign, design_check
from pymc_dp.scores.simulated_scores import NEAR, MomentDesign, ScoreDesign, SimulatedScores

#: Candidates for the part of the budget that a first sum takes; and a start with a stand-in or a wide prior, large ones only if
#: less cannot arrive, or with a stand-in.
_FIRST_SHARES = (0.0, 0.02, 0.1, 0.2)
_SHARES, _LARGE_SHARES = (0.0, 0.001, 0.003, 0.01, 0.02, 0.05, 0.1), (0.2, 0.4, 0.6, 0.75)
#: If the prior allows distances beyond `NEAR`, noisy Newton steps come first, which double, then halve: at least so
#: many. Two sums after them get the rest of the start's part of the budget.
_LEAST_STEPS, _STEPS_PART = 4, 0.5
#: Length of the noise on a record's mean score, relative to the clip bound, at which far steps still point
#: to the posterior.
_MOST_NOISE = 0.3
#: Largest part of the budget before the main release.
_MOST_BEFORE = 0.75
#: Least epsilon of the main release alone, relative to that of the budget.
_LEAST_MAIN = 0.1
#: Part of several steps that is expected in their final average.
_AVERAGED = 1 / 3
#: Parts of the budget for the moments that correct a stand-in.
_MOMENT_SHARES = (0.1, 0.2, 0.3)
#: Largest error of a reference that counts, squared.
_LARGEST_ERROR = 10.0
#: Noise multiplier of a run without protection (infinite epsilon): records still mix.
_MIN_NOISE = 0.3

#: Accesses of the start.
Steps = tuple[tuple[Gaussian | L2Laplace, int], ...]


@dataclass(frozen=True, eq=False)
class StartDesign(Shown):
    """Releases before the main one, which find its reference, and the main one."""

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
        """All accesses that are claimed."""
        check: Accesses = ((self.check.mechanism, 1),) if self.check else ()
        return (*self.before, (self.main, 1), *check)

    @property
    def before(self) -> Accesses:
        """Accesses before the main release."""
        moments: Accesses = ((self.moments.mechanism, 1),) if self.moments else ()
        stand_in: Accesses = self.stand_in.accesses if self.stand_in else ()
        return (*stand_in, *moments, *self.start)

    @property
    def start(self) -> Steps:
        """Accesses of the start."""
        return (*self.steps, *self.sums)

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
    width = simulated.prior_width
    many = _LEAST_STEPS + max(0, math.ceil(2 * math.log2(width)))
    if stand_in is not None and (stand_in.is_joint or width > NEAR):
        # The error of the stand-in is in the law of all sums, so those from afar may stay.
        starts = ((many, 2),) if width > NEAR else ((0, 1), (0, 2), (0, 3), (0, 4))
    elif simulated.information_error:
        starts = ((many, 0),) if width > NEAR else ((0, 1), (2, 0), (3, 0), (many, 0))
    else:
        starts = ((many, 2),) if width > NEAR else ((0, 1),)
    found: list[StartDesign] = []
    has_moments = simulated.has_moments and stand_in is None
    for moments in (0.0, *_MOMENT_SHARES) if has_moments else (0.0,):
        for share in _FIRST_SHARES if simulated.there else (*_SHARES, *_LARGE_SHARES):
            is_large = share in _LARGE_SHARES and not (
                simulated.information_error or simulated.there
            )
            if is_large and (width <= NEAR or found[-1].reference_error < width**2):
                break
            if moments + share > _MOST_BEFORE:
                break
            for numbers in starts if share else ((0, 0),):
                shares = moments, share
                found.append(
                    _start_design(simulated, alone, shares, numbers, budget.adjacency, n_records)
                )
    best = replace(min(found, key=lambda candidate: candidate.cost), stand_in=stand_in)
    if epsilon == math.inf:
        return best
    return _calibrated(best, simulated, budget, n_records, noise, fit_share)


def _start_design(
    simulated: SimulatedScores,
    alone: Gaussian | L2Laplace,
    shares: tuple[float, float],
    numbers: tuple[int, int],
    adjacency: Adjacency,
    n_records: int,
) -> StartDesign:
    """Moments, a start of so many steps and sums, and the main release with the rest; without a fit check."""
    factor = adjacency.sensitivity_factor
    d, wrong, moments = simulated.n_features, simulated.information_error, None
    if shares[0]:
        part = _part(alone, shares[0], simulated.n_products)
        moments = simulated.moment_design(part, adjacency)
        wrong = wrong * moments.information_error / math.hypot(wrong, moments.information_error)
    design = simulated.forecast(factor * _part(alone, 1 - sum(shares), d).noise_sd, shares[1] > 0)
    share = shares[1] * (_STEPS_PART if all(numbers) else 1.0)
    steps, sums = (((_part(alone, share / n, d), n),) if n else () for n in numbers)
    error, length = simulated.prior_square, math.sqrt(d) * factor / n_records
    if not steps or length * steps[0][0].noise_sd < _MOST_NOISE:  # else they do not arrive
        for mechanism, number in (*steps, *sums):
            noise = (design.bound * length * mechanism.noise_sd) ** 2
            error = noise / max(1.0, _AVERAGED * number) + error * wrong ** (2 * number)
    cost = design.cost + wrong**2 * n_records * error / d
    if steps or sums or not simulated.there:  # else the forecast has the distance
        cost += min(error, _LARGEST_ERROR)
    return StartDesign(moments, steps, sums, alone, None, design, error, cost)


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
        before = (*best.before, (main, 1))
        check = design_check(simulated.norms, budget, n_records, before, noise)
    noise_sd = budget.adjacency.sensitivity_factor * main.noise_sd
    design = simulated.forecast(noise_sd, bool(best.start))
    return replace(best, main=main, check=check, design=design)


def _part(alone: Gaussian | L2Laplace, share: float, n_dim: int) -> Gaussian | L2Laplace:
    """A mechanism for `n_dim` coordinates with a share of the epsilon or of the squared ``mu``."""
    if isinstance(alone, L2Laplace):
        return L2Laplace(share * alone.epsilon, n_dim)
    return Gaussian(alone.noise_multiplier / math.sqrt(share))
