"""Plans for a surrogate: settings, and shares of the budget, chosen on records drawn from the model."""

from __future__ import annotations

import math

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pymc as pm

from pymc_dp.costs import LEAST_DRAWS, check_draws, check_filter, decisions, sides_of
from pymc_dp.errors import PrivacyBudgetExhausted
from pymc_dp.model.records import RecordLikelihood
from pymc_dp.model.simulated import SimulatedRecords
from pymc_dp.newton import surroundings
from pymc_dp.preparation import Prepared, note_on, prepare
from pymc_dp.privacy.binding import check_paid
from pymc_dp.privacy.budget import PrivacyBudget
from pymc_dp.privacy.ledger import Accesses
from pymc_dp.privacy.mechanisms import Gaussian
from pymc_dp.remainders import POSITIONS, bounds_on_the_rest, effective
from pymc_dp.starting import PrivateStart
from pymc_dp.steps.features import Features
from pymc_dp.steps.gradients import Coordinates
from pymc_dp.steps.surrogate import Surrogate

__all__ = [
    "Setting",
    "SurrogateChoice",
    "SurrogatePlan",
    "plan_for",
    "plan_surrogate",
    "setting_at",
]

# What is tried out: parts of the gradients that are within the bound; parts of what is left of the
# budget for the sum of gradients.
_GRADIENTS_WITHIN = (0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.998, 1.0)
_PARTS = (0.1, 0.25, 0.4, 0.55, 0.7, 0.8, 0.9, 0.96)
#: Noise multiplier of the sum if epsilon is infinite.
_LEAST_NOISE = 1e-3
#: Room above the longest of the simulated gradients, if nothing is to be clipped.
_ROOM = 1.2
#: The reference is not at the centre of the posterior: noise of a start, in that of the sum with this
#: part of the budget.
_FAR, _TYPICAL = 2.0, 0.7
#: Simulated records that choices are judged by.
_RECORDS = 20_000


@dataclass(frozen=True)
class SurrogateChoice:
    """One choice of settings, and what is expected of it; errors are in posterior standard deviations.

    Parameters
    ----------
    gradient_clip_bound : float
        Of gradients, in coordinates in which the precision is 1 for each record.
    gradients_clipped : float
        Part of the records.
    within : float
        Part of the simulated records that the bound on what is left is to hold.
    noise_multiplier : float
        Of the sum of gradients.
    part : float
        Part of the budget that the sum takes, of what is left of it (in what composes adaptively: decisions
        are paid for by a filter).
    noise : float
        Error of a posterior mean that comes from the noise.
    bias : float
        That comes from what bounds cut off.
    draws : float
        Of each chain.
    effective_draws : float
        Of all chains together, roughly: proposals are nearly independent, and half of them rejected.
    budget_id : str or None
        The budget that paid for the private start it was made at: another one is refused.

    Notes
    -----
    In a plan, `within` and what follows from it are best on average over places where the sum may lead
    to. :func:`~pymc_dp.private_surrogate` chooses it anew for the place it has led to, unless it is
    given a choice.
    """

    gradient_clip_bound: float
    gradients_clipped: float
    within: float
    noise_multiplier: float
    part: float
    noise: float
    bias: float
    draws: float
    effective_draws: float
    budget_id: str | None = None

    @property
    def error(self) -> float:
        """Expected error of a posterior mean, in all."""
        return math.sqrt(self.noise**2 + self.bias**2 + 1 / self.effective_draws)


@dataclass(frozen=True)
class SurrogatePlan:
    """Choices for :func:`~pymc_dp.private_surrogate`; print it, or plot it, to see what was weighed against what.

    Parameters
    ----------
    choices : tuple of SurrogateChoice
        All that are possible, by expected error; the eight best are printed.
    chains : int
    epsilon, delta : float
    n_records : int
    position : dict of str to array
        Where records were drawn from the model.
    notes : tuple of str
        What the user should know.
    """

    choices: tuple[SurrogateChoice, ...]
    chains: int
    epsilon: float
    delta: float
    n_records: int
    position: dict[str, np.ndarray] = field(repr=False)
    notes: tuple[str, ...] = ()

    @property
    def chosen(self) -> SurrogateChoice:
        """The best choice."""
        return self.choices[0]

    def __str__(self) -> str:
        """The settings, what is expected, and alternatives."""
        c = self.chosen
        lines = [
            f"Plan for epsilon = {self.epsilon:g} at delta = {self.delta:g}, {self.n_records} records, {self.chains} chain(s)",
            "made on records drawn from the model: private data were not looked at",
            "",
            f"DPControlVariate: one sum of gradients, clipped at {c.gradient_clip_bound:.4g} ({c.gradients_clipped:.2%} of records), noise multiplier",
            f"           {c.noise_multiplier:.4g}, for {c.part:.0%} of the budget left; the rest for decisions on what that leaves of each record",
            f"expected:  {c.draws:.0f} draws in each chain, about {c.effective_draws:.0f} effective draws in all; means are off by {c.noise:.2f} posterior",
            f"           standard deviations for the noise and {c.bias:.2f} for clipping",
            "",
            "gradient bound  clipped  rest within  part  noise  bias  draws  effective  error",
        ]
        lines += [
            f"{x.gradient_clip_bound:14.3g}{x.gradients_clipped:9.2%}{x.within:13.4g}{x.part:6.2g}{x.noise:7.2f}{x.bias:6.2f}"
            f"{x.draws:7.0f}{x.effective_draws:11.0f}{x.error:7.2f}"
            for x in self.choices[:8]
        ]
        return "\n".join([*lines, *(f"Note: {note}" for note in self.notes)])


class Setting(NamedTuple):
    """Where a surrogate is going to be, and the law of gradients there."""

    likelihood: RecordLikelihood
    simulated: SimulatedRecords
    theta: np.ndarray
    coordinates: Coordinates
    norms: np.ndarray
    temperature: float
    n_records: int
    rng: np.random.Generator
    budget_id: str | None = None


def plan_surrogate(
    *,
    budget: PrivacyBudget,
    at: PrivateStart | Mapping[str, Any] | str | None = None,
    temperature: float = 1.0,
    max_draws: int = 1000,
    besides: Accesses = (),
    public_covariates: bool = False,
    stand_in: pm.Model | None = None,
    stand_in_records: Any = None,
    records: Any = None,
    public: Sequence[Any] = (),
    n_records: int | None = None,
    random_seed: Any = None,
    model: pm.Model | None = None,
) -> SurrogatePlan:
    """Choose how to spend a budget on a surrogate and on decisions, without looking at private data.

    On records drawn from the model at one position, as :func:`~pymc_dp.plan`.

    Parameters
    ----------
    budget, at, temperature, besides, random_seed, model
        See :func:`~pymc_dp.plan`.
    max_draws : int
        Most draws of each chain, for time's sake.
    public_covariates, stand_in, stand_in_records, records, public, n_records
        See :func:`~pymc_dp.private_start`.

    Returns
    -------
    SurrogatePlan

    Raises
    ------
    PrivacyBudgetExhausted, PrivacyLeak, ValueError
        As :func:`~pymc_dp.plan`.
    """
    max_draws = check_draws(max_draws)
    check_paid("private start", getattr(at, "budget_id", None), budget.id)
    prepared = prepare(
        budget=budget, model=model, temperature=temperature, public_covariates=public_covariates, stand_in=stand_in,
        stand_in_records=stand_in_records, records=records, public=public, n_records=n_records,
    )  # fmt: skip
    return plan_for(setting_at(prepared, at, random_seed), budget, max_draws, besides, note_on(at))


def setting_at(
    prepared: Prepared, at: PrivateStart | Mapping[str, Any] | str | None, random_seed: Any = None
) -> Setting:
    """Simulate records where a surrogate is going to be."""
    _, likelihood, simulated, temperature, n_records = prepared
    rng = np.random.default_rng(random_seed)
    theta = at.theta if isinstance(at, PrivateStart) else prepared.position(at, random_seed)
    precision, rows, _ = surroundings(prepared, theta, rng)
    d, mass = len(theta), precision / (temperature * n_records)
    coordinates = Coordinates(mass, np.arange(d), d)
    norms = np.linalg.norm(rows @ coordinates.directions, axis=1)
    return Setting(
        likelihood, simulated, theta, coordinates, norms, temperature, n_records, rng,
        getattr(at, "budget_id", None),
    )  # fmt: skip


def plan_for(
    setting: Setting,
    budget: PrivacyBudget,
    max_draws: int,
    besides: Accesses = (),
    notes: Sequence[str] = (),
) -> SurrogatePlan:
    """Plan for what is left of a budget, and of it after what is claimed besides."""
    check_filter(budget)
    left = budget.left(besides)
    choices = [c for c in _choices(setting, budget, left, max_draws) if c.draws >= LEAST_DRAWS]
    if not choices:
        raise PrivacyBudgetExhausted(
            f"epsilon = {budget.epsilon:g} at delta = {budget.delta:g} does not pay for a sum of gradients and ten draws in each of "
            f"{budget.chains} chain(s) on {setting.n_records} records. Use fewer chains or a larger epsilon."
        )
    choices.sort(key=lambda c: c.error)
    notes = [*notes]
    if (error := choices[0].error) > 0.5:
        notes.append(
            f"means will be off by about {error:.1f} posterior standard deviations. More records, a larger epsilon or fewer parameters would help."
        )
    return SurrogatePlan(
        choices=tuple(choices),
        chains=budget.chains,
        epsilon=budget.epsilon,
        delta=budget.delta,
        n_records=setting.n_records,
        position=setting.likelihood.unravel(setting.theta),
        notes=tuple(notes),
    )


def _choices(
    setting: Setting, budget: PrivacyBudget, left: float, max_draws: int
) -> Iterator[SurrogateChoice]:
    simulated, n, t = setting.simulated, setting.n_records, setting.temperature
    d, sides = len(setting.theta), sides_of(budget)
    price = budget.terms.adaptive.price
    sums = dict(_sums(left / price(Gaussian(1.0))))
    if not sums:
        return
    draws: np.ndarray | None = None
    # From the widest bound on, for which the surrogate is easiest to explore.
    for within_bound in reversed(_GRADIENTS_WITHIN):
        bound = float(np.quantile(setting.norms, within_bound))
        bound *= _ROOM if within_bound == 1 else 1
        features = Features(
            simulated, setting.theta, setting.coordinates, bound, 1.0, setting.rng, most=_RECORDS
        )
        if draws is None:
            usual = float(np.quantile(setting.norms, 0.9))
            noise_sd = _FAR * sides * usual * sums[_TYPICAL]
            total = features.expected(n)
            surrogate = Surrogate(features, total, noise_sd, n, t, setting.rng)
            draws = surrogate.draws[setting.rng.integers(len(surrogate.draws), size=POSITIONS)]
        # For a posterior standard deviation, of which there is one per record in these coordinates.
        slope = math.sqrt(n * t * np.trace(features.gain @ features.gain.T) / d) / (n * t)
        noise = slope * sides * bound * t
        clipped = float(np.mean(setting.norms > bound))
        for within, bias, cost in bounds_on_the_rest(simulated, features, draws, n, t, budget):
            for part, z in sums.items():
                number = decisions(left - price(Gaussian(z)), cost, budget.chains, max_draws)
                yield SurrogateChoice(
                    bound, clipped, within, z, part, noise * z, bias, number,
                    effective(budget.chains, number), setting.budget_id,
                )  # fmt: skip


def _sums(most: float) -> Iterator[tuple[float, float]]:
    """Noise multipliers of the sum of gradients for parts of a budget for so many Gaussian releases with multiplier 1."""
    for part in _PARTS if most > 0 else ():
        yield part, max(_LEAST_NOISE, math.sqrt(1 / (part * most)))
