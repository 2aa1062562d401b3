"""Plans: settings of a private sampler, chosen on records that were drawn from the model."""

from __future__ import annotations

import math

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pymc as pm

from pymc_dp.acceptance import AcceptanceRule, Barker, Lazy, Penalty
from pymc_dp.costs import decision_cost, decisions, renyi_left, sides_of
from pymc_dp.errors import PrivacyBudgetExhausted
from pymc_dp.model.records import RecordLikelihood
from pymc_dp.newton import initial_point, simulation
from pymc_dp.pilot import Moves, Pilot
from pymc_dp.privacy.budget import PrivacyBudget
from pymc_dp.privacy.families import DecisionFamily, Family, PoissonMinibatchFamily
from pymc_dp.privacy.ledger import Accesses
from pymc_dp.privacy.mechanisms import ORDERS, Adjacency
from pymc_dp.starting import PrivateStart, check_number_is_public
from pymc_dp.steps.accept_reject import AcceptRejectStep
from pymc_dp.steps.barker import DPBarker
from pymc_dp.steps.fast_mh import DPFastMH
from pymc_dp.steps.penalty import DPPenalty
from pymc_dp.steps.proposals import RandomWalk

__all__ = ["Candidate", "Plan", "plan"]

# What is tried out. Lengths: root mean square of a proposal, in posterior standard deviations.
_LENGTHS = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.4, 2.0)
_LAZINESS = (1.0, 0.5, 0.25, 0.125)
_BARKER = tuple((None, w) for w in _LAZINESS)
#: Noise, if any, and laziness.
_RULES: dict[type[AcceptRejectStep], tuple[tuple[float | None, float], ...]] = {
    DPPenalty: tuple((s, w) for s in (1.4, 2.0, 2.5) for w in _LAZINESS),
    DPBarker: _BARKER,
    DPFastMH: _BARKER,
}
_WITHIN = (0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.9995, 0.9998, 0.9999, 1.0)
_MOST_CLIPPED = 0.1


@dataclass(frozen=True)
class Candidate:
    """One choice of settings, and what is expected of it.

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
    def error(self) -> float:
        """Expected error of a posterior mean, in posterior standard deviations: bias and Monte Carlo error."""
        return math.sqrt(self.bias**2 + 1 / max(self.effective_draws, 1e-12))


@dataclass(frozen=True)
class Plan:
    """Settings for a step with blind proposals; print it to see what was weighed against what.

    Parameters
    ----------
    step : type
        :class:`~pymc_dp.DPPenalty`, :class:`~pymc_dp.DPBarker` or :class:`~pymc_dp.DPFastMH`.
    settings : dict
        Arguments of the step.
    chosen : Candidate
        What is expected of them.
    candidates : tuple of Candidate
        What was considered, by expected error, each with its best rule; the eight best are printed.
    chains : int
    epsilon, delta : float
    n_records : int
    position : dict of str to array
        Where records were drawn from the model.
    notes : tuple of str
        What the user should know.
    """

    step: type[AcceptRejectStep]
    settings: dict[str, Any]
    chosen: Candidate
    candidates: tuple[Candidate, ...]
    chains: int
    epsilon: float
    delta: float
    n_records: int
    position: dict[str, np.ndarray] = field(repr=False)
    notes: tuple[str, ...]

    def build(self, budget: PrivacyBudget, model: pm.Model, **options: Any) -> AcceptRejectStep:
        """Make the step."""
        return self.step(budget=budget, model=model, **self.settings, **options)

    def __str__(self) -> str:
        """The settings, what is expected of them, and alternatives."""
        c = self.chosen
        others = {k: v for k, v in self.settings.items() if k not in ("proposal", "clip_bound")}
        lines = [
            f"Plan for epsilon = {self.epsilon:g} at delta = {self.delta:g}, {self.n_records} records, {self.chains} chain(s)",
            "made on records drawn from the model: private data were not looked at",
            "",
            f"{self.step.__name__}: random walk of {c.length:g} posterior standard deviations ({c.shape} covariance), clip_bound = {c.clip_bound:.4g},",
            "           " + ", ".join(f"{name} = {value:.4g}" for name, value in others.items()),
            f"expected:  {c.draws:.0f} draws in each chain, about {c.effective_draws:.0f} effective draws in all; {c.acceptance:.0%} accepted,",
            f"           {c.clipped:.2%} of records clipped, which shifts means by about {c.bias:.2f} posterior standard deviations",
            "",
            "length  clip bound  clipped  noise  lazy  draws  effective  bias  error",
        ]
        lines += [
            f"{x.length:6.2g}{x.clip_bound:12.3g}{x.clipped:9.2%}{x.noise_scale or 0:7.2g}{x.laziness:6.3g}{x.draws:7.0f}"
            f"{x.effective_draws:11.0f}{x.bias:6.2f}{x.error:7.2f}"
            for x in self.candidates[:8]
        ]
        return "\n".join([*lines, *(f"Note: {note}" for note in self.notes)])


def plan(
    *,
    budget: PrivacyBudget,
    step: type[AcceptRejectStep] = DPPenalty,
    at: PrivateStart | Mapping[str, Any] | None = None,
    temperature: float = 1.0,
    max_draws: int = 20_000,
    besides: Accesses = (),
    public_covariates: bool = False,
    stand_in: pm.Model | None = None,
    stand_in_records: Any = None,
    records: Any = None,
    n_records: int | None = None,
    random_seed: Any = None,
    model: pm.Model | None = None,
) -> Plan:
    r"""Choose the settings of a sampler without looking at private data.

    A data set is drawn from the model at one position: a private start, which was paid for, or a
    public guess. On it everything can be computed: the posterior (by its normal approximation, or
    where that is poor by a short chain), how proposals of several lengths would be accepted, how much
    each record would change. Of all choices the plan takes the one with the least expected error of
    a posterior mean,

    .. math:: \text{bias}^2 + 1 / \text{effective draws},

    in posterior standard deviations. Clipping causes the bias; the tighter it is, the more draws the
    budget pays for. Short proposals and lazy rules make more of a budget, until `max_draws` is
    reached: the number of draws for which it lasts grows as the length squared falls, and more of
    them are accepted.

    Parameters
    ----------
    budget : PrivacyBudget
        To be used; nothing is claimed.
    step : type
        What to plan for: :class:`~pymc_dp.DPPenalty`, which makes most of a budget,
        :class:`~pymc_dp.DPBarker`, or :class:`~pymc_dp.DPFastMH` with Barker's rule. Half of the latter's
        expected batch does not depend on the proposal (`batch_rate`), which changes the cost by a few
        per cent only.
    at : PrivateStart or dict, optional
        Where to draw records: parameters by names, as in ``initvals``. PyMC's initial point by
        default, which says little if the prior is vague.
    temperature : float
        Power of the likelihood.
    max_draws : int
        Most draws of each chain, for time's sake.
    besides : sequence of (Mechanism, int)
        What else is going to be claimed.
    public_covariates, stand_in, stand_in_records, records, n_records
        See :func:`~pymc_dp.private_start`.
    random_seed : int or Generator, optional
    model : pm.Model, optional

    Returns
    -------
    Plan

    Raises
    ------
    PrivacyBudgetExhausted
        If the budget does not pay for ten draws of each chain, whatever the settings.
    ValueError
        As :func:`~pymc_dp.private_start`; for another step; for DPFastMH under add/remove, where its
        cost is not proved.

    References
    ----------
    Expected squared jumping distance: Pasarica, Gelman (2010), Adaptively scaling the Metropolis
    algorithm using expected squared jumped distance, Statistica Sinica 20, 343-364.
    """
    if step not in _RULES:
        raise ValueError(
            f"step must be one of {', '.join(s.__name__ for s in _RULES)}, got {getattr(step, '__name__', step)!r}; "
            "for DPControlVariate there is plan_surrogate()."
        )
    if step is DPFastMH and budget.adjacency is Adjacency.ADD_REMOVE:
        raise ValueError(
            "The cost of DPFastMH is proved for adjacency 'substitute' only, the budget has 'add_remove'."
        )
    check_number_is_public(budget, public_covariates, stand_in, n_records)
    model = pm.modelcontext(model)
    rng = np.random.default_rng(random_seed)
    likelihood = RecordLikelihood(model, records=records)
    simulated = simulation(model, records, public_covariates, stand_in, stand_in_records)
    n_records = n_records or likelihood.n_records
    theta = at.theta if isinstance(at, PrivateStart) else likelihood.ravel(initial_point(model, at))
    pilot = Pilot(likelihood, simulated, theta, temperature, n_records, rng)
    sides, left = sides_of(budget), renyi_left(budget, besides)
    candidates = [
        candidate
        for shape in pilot.shapes
        for length in _LENGTHS
        for candidate in _candidates(
            pilot.moves(shape, length),
            _RULES[step],
            sides * temperature,
            left,
            budget.chains,
            max_draws,
        )
    ]
    candidates = [c for c in candidates if c.draws >= 10 and c.clipped <= _MOST_CLIPPED]
    if not candidates:
        raise PrivacyBudgetExhausted(
            f"epsilon = {budget.epsilon:g} at delta = {budget.delta:g} does not pay for ten draws in each of {budget.chains} "
            f"chain(s) on {n_records} records. Use fewer chains or a larger epsilon."
        )
    best = min(candidates, key=lambda c: c.error)
    covariance = pilot.shapes[best.shape] * best.length**2 / likelihood.n_dim
    settings: dict[str, Any] = {
        "proposal": RandomWalk(covariance, metric="proposal"),
        "clip_bound": best.clip_bound,
        "laziness": best.laziness,
        "temperature": temperature,
    }
    # What was expected of a typical proposal, from their whole law: some per cent less.
    z = np.random.default_rng(0).standard_normal((2000, likelihood.n_dim))
    distances = tuple(np.linalg.norm(z, axis=1).tolist())
    family: Family = DecisionFamily(
        sides * temperature * best.clip_bound, _rule(best.noise_scale, 1), None, best.laziness, distances
    )  # fmt: skip
    if step is DPPenalty:
        settings["noise_scale"] = best.noise_scale
    elif step is DPFastMH:
        typical = temperature * best.clip_bound * math.sqrt(likelihood.n_dim)
        settings["batch_rate"] = max(1.0, n_records * typical)
        family = PoissonMinibatchFamily(
            temperature * best.clip_bound, _rule(None, best.laziness), settings["batch_rate"], n_records, None, distances,
        )  # fmt: skip
    draws = decisions(left, family.mean_renyi(ORDERS), budget.chains, best.draws)
    part = draws / best.draws
    chosen = replace(best, draws=best.draws * part, effective_draws=best.effective_draws * part)
    candidates = [chosen, *(c for c in candidates if c is not best)]
    notes = list(pilot.notes)
    if chosen.effective_draws < 30:
        notes.append(
            f"about {chosen.effective_draws:.0f} effective draws are few: intervals will be rough. More records, a larger epsilon, fewer "
            "parameters or fewer chains would help."
        )
    if at is None:
        notes.append(
            "records were drawn at PyMC's initial point, which may be far from your data: pass at= a private start or a public guess."
        )
    return Plan(
        step=step,
        settings=settings,
        chosen=chosen,
        candidates=tuple(sorted(candidates, key=lambda c: c.error)),
        chains=budget.chains,
        epsilon=budget.epsilon,
        delta=budget.delta,
        n_records=n_records,
        position=likelihood.unravel(theta),
        notes=tuple(notes),
    )


def _candidates(
    moves: Moves,
    choices: tuple[tuple[float | None, float], ...],
    sides: float,
    left: np.ndarray,
    chains: int,
    max_draws: int,
) -> Iterator[Candidate]:
    """The best rule for proposals of one length and each clip bound."""
    size = math.sqrt(np.mean(moves.sizes**2))
    rules = {(s, w): _rule(s, w) for s, w in choices}
    accepted = {
        key: float(np.mean([rule.probability(x) for x in moves.ratios]))
        for key, rule in rules.items()
    }
    for within in _WITHIN:
        bound, clipped, bias = moves.clipping(within)
        sensitivity = sides * bound * size
        found = []
        for (noise_scale, laziness), rule in rules.items():
            # Where most records do not change at all, some of the bounds are 0, which no step takes.
            cost = decision_cost(rule, sensitivity)
            draws = decisions(left, cost, chains, max_draws) if bound else 0.0
            # Of each draw, in the slowest direction; from the autocorrelation of neighbours.
            fall = min(1.0, accepted[noise_scale, laziness] * moves.slowest / 2)
            found.append(
                Candidate(
                    moves.shape, moves.length, noise_scale, laziness, bound, clipped,
                    accepted[noise_scale, laziness], draws, chains * draws * fall / (2 - fall), bias,
                )
            )  # fmt: skip
        yield min(found, key=lambda candidate: candidate.error)


def _rule(noise_scale: float | None, laziness: float) -> AcceptanceRule:
    rule: AcceptanceRule = Barker() if noise_scale is None else Penalty(noise_scale)
    return rule if laziness == 1 else Lazy(rule, laziness)
