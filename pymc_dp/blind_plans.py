"""Plans for steps whose proposals do not look at the data: lengths, clip bounds and rules."""

from __future__ import annotations

import math

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from pymc_dp.acceptance import AcceptanceRule, Barker, Lazy, Penalty
from pymc_dp.costs import LEAST_DRAWS, decision_cost, decisions, sides_of
from pymc_dp.normal_chains import effective_part
from pymc_dp.pilot import Moves, Pilot
from pymc_dp.privacy.budget import PrivacyBudget
from pymc_dp.privacy.families import DecisionFamily, Family, PoissonMinibatchFamily
from pymc_dp.privacy.ledger import Accesses
from pymc_dp.privacy.mechanisms import Mechanism
from pymc_dp.steps.barker import DPBarker
from pymc_dp.steps.base import DPStep
from pymc_dp.steps.fast_mh import DPFastMH
from pymc_dp.steps.penalty import DPPenalty
from pymc_dp.steps.proposals import RandomWalk

__all__ = ["MOST_CLIPPED", "WITHIN", "Candidate", "Terms", "Weighed", "plan_blind", "rule_of"]

#: Clip bounds to choose from: parts of the simulated records that are within.
WITHIN = (0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.9995, 0.9998, 0.9999, 1.0)
MOST_CLIPPED = 0.1
# Lengths: root mean square of a proposal, in posterior standard deviations.
_LENGTHS = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.4, 2.0)
_LAZINESS = (1.0, 0.5, 0.25, 0.125)
_BARKER = tuple((None, w) for w in _LAZINESS)
#: Noise, if any, and laziness.
_RULES: dict[type[DPStep], tuple[tuple[float | None, float], ...]] = {
    DPPenalty: tuple((s, w) for s in (1.4, 2.0, 2.5) for w in _LAZINESS),
    DPBarker: _BARKER,
    DPFastMH: _BARKER,
}


class Terms(NamedTuple):
    """What all plans are made for."""

    budget: PrivacyBudget
    besides: Accesses  # what else is going to be claimed
    left: float  # sum of prices that may be spent
    temperature: float
    n_records: int
    max_draws: int

    def price(self, mechanism: Mechanism) -> float:
        """Price of an access (expected, if proposals decide) in what the budget composes adaptively."""
        price = self.budget.terms.adaptive.price
        return mechanism.mean_price(price) if isinstance(mechanism, Family) else price(mechanism)

    @property
    def sides(self) -> float:
        """Most that neighbouring data sets change a sum by, in units of the clip bound."""
        return sides_of(self.budget)


class Weighed:
    """What candidates are compared by, in posterior standard deviations."""

    bias: float
    effective_draws: float

    @property
    def lasting(self) -> float:
        """Error that more draws do not mend."""
        return self.bias

    @property
    def error(self) -> float:
        """Expected error, Monte Carlo error included."""
        return math.sqrt(self.lasting**2 + 1 / max(self.effective_draws, 1e-12))


def rule_of(noise_scale: float | None, laziness: float) -> AcceptanceRule:
    """Barker's rule, or the penalty rule with some noise; lazy or not."""
    rule: AcceptanceRule = Barker() if noise_scale is None else Penalty(noise_scale)
    return rule if laziness == 1 else Lazy(rule, laziness)


@dataclass(frozen=True)
class Candidate(Weighed):
    """One choice of settings for blind proposals, and what is expected of it.

    Parameters
    ----------
    shape : {"local", "pilot"}
        Covariance of the proposal: that of the normal approximation, or of a chain on simulated records.
    length : float
        Root mean square length of a proposal, in posterior standard deviations.
    noise_scale : float or None
        Of the penalty rule; None for Barker's.
    laziness : float
    clip_bound : float
        Per standard deviation of the proposal.
    clipped : float
        Part of the records whose changes are clipped.
    acceptance : float
        Of all draws, lazy ones among them.
    draws : float
        Of each chain.
    effective_draws : float
        Of all chains together, in the slowest direction, roughly.
    bias : float
        Error of the posterior mean that comes from clipping, in posterior standard deviations.
    """

    COLUMNS: ClassVar[str] = (
        "length  clip bound  clipped  noise  lazy  draws  effective  bias  error"
    )

    shape: str
    length: float
    noise_scale: float | None
    laziness: float
    clip_bound: float
    clipped: float
    acceptance: float
    draws: float
    effective_draws: float
    bias: float

    @property
    def title(self) -> str:
        """What moves, and how far."""
        return f"random walk of {self.length:g} posterior standard deviations ({self.shape} covariance), {self.acceptance:.0%} accepted"

    @property
    def row(self) -> str:
        """Line of a table with these `COLUMNS`."""
        return (
            f"{self.length:6.2g}{self.clip_bound:12.3g}{self.clipped:9.2%}{self.noise_scale or 0:7.2g}{self.laziness:6.3g}"
            f"{self.draws:7.0f}{self.effective_draws:11.0f}{self.bias:6.2f}{self.error:7.2f}"
        )


def plan_blind(
    step: type[DPStep], pilot: Pilot, terms: Terms
) -> tuple[dict[str, Any], list[Candidate]]:
    """Settings of :class:`DPPenalty`, :class:`DPBarker` or :class:`DPFastMH`, and candidates, the chosen first."""
    candidates = [
        candidate
        for shape in pilot.shapes
        for length in _LENGTHS
        for candidate in _candidates(pilot.moves(shape, length), _RULES[step], terms)
        if candidate.draws >= LEAST_DRAWS
        and candidate.effective_draws > 0
        and candidate.clipped <= MOST_CLIPPED
    ]
    if not candidates:
        return {}, []
    best = min(candidates, key=lambda c: c.error)
    d = pilot.n_dim
    settings: dict[str, Any] = {
        "proposal": RandomWalk(pilot.shapes[best.shape] * best.length**2 / d, metric="proposal"),
        "clip_bound": best.clip_bound,
        "laziness": best.laziness,
        "temperature": terms.temperature,
    }
    # What was expected of a typical proposal, from their whole law: some per cent less.
    z = np.random.default_rng(0).standard_normal((2000, d))
    distances = tuple(np.linalg.norm(z, axis=1).tolist())
    per_distance = terms.temperature * best.clip_bound
    family: Family = DecisionFamily(
        terms.sides * per_distance, rule_of(best.noise_scale, 1), None, best.laziness, distances
    )
    if step is DPPenalty:
        settings["noise_scale"] = best.noise_scale
    elif step is DPFastMH:
        settings["batch_rate"] = max(1.0, terms.n_records * per_distance * math.sqrt(d))
        family = PoissonMinibatchFamily(
            per_distance, rule_of(None, best.laziness), settings["batch_rate"], terms.n_records, None, distances,
        )  # fmt: skip
    draws = decisions(terms.left, terms.price(family), terms.budget.chains, best.draws)
    worth = _worth(best, pilot, terms)
    candidates = [replace(c, effective_draws=c.effective_draws * worth) for c in candidates if c is not best]  # fmt: skip
    effective = best.effective_draws * worth * draws / best.draws
    return settings, [replace(best, draws=draws, effective_draws=effective), *candidates]


def _worth(candidate: Candidate, pilot: Pilot, terms: Terms) -> float:
    """Effective draws of chains in the normal approximation, relative to what neighbours let expect."""
    root = pilot.white(np.linalg.cholesky(pilot.shapes[candidate.shape]))
    root *= candidate.length / math.sqrt(pilot.n_dim)
    normal = np.random.default_rng(2).standard_normal

    def propose(state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        new = state + normal(state.shape) @ root.T
        return new, ((state**2).sum(axis=1) - (new**2).sum(axis=1)) / 2

    guess = candidate.effective_draws / candidate.draws / terms.budget.chains
    rule = rule_of(candidate.noise_scale, candidate.laziness)
    return min(1.0, effective_part(propose, rule, pilot.n_dim, guess) / guess)


def _candidates(
    moves: Moves, choices: tuple[tuple[float | None, float], ...], terms: Terms
) -> Iterator[Candidate]:
    """The best rule for proposals of one length and each clip bound."""
    size = math.sqrt(np.mean(moves.sizes**2))
    chains = terms.budget.chains
    rules = {(s, w): rule_of(s, w) for s, w in choices}
    accepted = {
        key: float(np.mean([rule.probability(x) for x in moves.ratios]))
        for key, rule in rules.items()
    }
    for within in WITHIN:
        bound, clipped, bias = moves.clipping(within)
        sensitivity = terms.sides * terms.temperature * bound * size
        found = []
        for (noise_scale, laziness), rule in rules.items():
            # Where most records do not change at all, some of the bounds are 0, which no step takes.
            cost = decision_cost(terms.budget, rule, sensitivity)
            draws = decisions(terms.left, cost, chains, terms.max_draws) if bound else 0.0
            # Of each draw, in the slowest direction; from the autocorrelation of neighbours.
            fall = min(1.0, accepted[noise_scale, laziness] * moves.slowest / 2)
            found.append(
                Candidate(
                    moves.shape, moves.length, noise_scale, laziness, bound, clipped,
                    accepted[noise_scale, laziness], draws, chains * draws * fall / (2 - fall), bias,
                )
            )  # fmt: skip
        yield min(found, key=lambda candidate: candidate.error)
