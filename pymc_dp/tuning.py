"""Plans: settings of a private sampler, chosen on records that were drawn from the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pymc as pm

from pymc_dp.acceptance import AcceptanceRule
from pymc_dp.blind_plans import Candidate, Terms, plan_blind
from pymc_dp.costs import check_draws
from pymc_dp.errors import PrivacyBudgetExhausted
from pymc_dp.path_plans import PathCandidate, plan_paths
from pymc_dp.pilot import Pilot
from pymc_dp.preparation import note_on, prepare
from pymc_dp.privacy.binding import check_paid
from pymc_dp.privacy.budget import PrivacyBudget
from pymc_dp.privacy.ledger import Accesses
from pymc_dp.privacy.mechanisms import Adjacency
from pymc_dp.sghmc_plans import SGHMCCandidate, plan_sghmc
from pymc_dp.starting import PrivateStart
from pymc_dp.steps.barker import DPBarker
from pymc_dp.steps.base import DPStep
from pymc_dp.steps.fast_mh import DPFastMH
from pymc_dp.steps.hmc import DPHMC
from pymc_dp.steps.penalty import DPPenalty
from pymc_dp.steps.schedules import Constant
from pymc_dp.steps.sghmc import DPSGHMC

__all__ = ["Plan", "plan"]

AnyCandidate = Candidate | PathCandidate | SGHMCCandidate
#: What chooses the settings of each sampler.
_PLANNERS: dict[type[DPStep], Callable[..., tuple[dict[str, Any], list[Any]]]] = {
    DPPenalty: plan_blind,
    DPBarker: plan_blind,
    DPFastMH: plan_blind,
    DPHMC: plan_paths,
    DPSGHMC: plan_sghmc,
}


@dataclass(frozen=True)
class Plan:
    """Settings for a step; print it to see what was weighed against what.

    Parameters
    ----------
    step : type
        What the plan is for.
    settings : dict
        Arguments of the step.
    chosen : Candidate, PathCandidate or SGHMCCandidate
        What is expected of them.
    candidates : tuple of such
        What was considered, by expected error, each with its best rule; the eight best are printed.
    chains : int
    epsilon, delta : float
    n_records : int
    position : dict of str to array
        Where records were drawn from the model.
    notes : tuple of str
        What the user should know.
    budget_id : str or None
        The budget that paid for the private start it was made at: another one is refused.
    """

    step: type[DPStep]
    settings: dict[str, Any]
    chosen: AnyCandidate
    candidates: tuple[AnyCandidate, ...]
    chains: int
    epsilon: float
    delta: float
    n_records: int
    position: dict[str, np.ndarray] = field(repr=False)
    notes: tuple[str, ...]
    budget_id: str | None = None

    def build(self, budget: PrivacyBudget, model: pm.Model, **options: Any) -> DPStep:
        """Make the step."""
        if isinstance(budget, PrivacyBudget):
            check_paid("plan (by its private start)", self.budget_id, budget.id)
        return self.step(budget=budget, model=model, **self.settings, **options)

    def __str__(self) -> str:
        """The settings, what is expected of them, and alternatives."""
        c = self.chosen
        short = {k: _shown(v) for k, v in self.settings.items()}
        lines = [
            f"Plan for epsilon = {self.epsilon:g} at delta = {self.delta:g}, {self.n_records} records, {self.chains} chain(s)",
            "made on records drawn from the model: private data were not looked at",
            "",
            f"{self.step.__name__}: {c.title},",
            "           " + ", ".join(f"{name} = {text}" for name, text in short.items() if text),
            f"expected:  {c.draws:.0f} draws in each chain, about {c.effective_draws:.0f} effective draws in all,",
            f"           {c.clipped:.2%} of records clipped, which shifts means by about {c.bias:.2f} posterior standard deviations",
            "",
            c.COLUMNS,
            *(candidate.row for candidate in self.candidates[:8]),
        ]
        return "\n".join([*lines, *(f"Note: {note}" for note in self.notes)])


def _shown(value: Any) -> str:
    """A setting, if it is short."""
    if isinstance(value, float | Constant):
        return f"{value.step_size if isinstance(value, Constant) else value:.4g}"
    return (
        value.name
        if isinstance(value, AcceptanceRule)
        else str(value)
        if isinstance(value, int)
        else ""
    )


def plan(
    *,
    budget: PrivacyBudget,
    step: type[DPStep] = DPPenalty,
    at: PrivateStart | Mapping[str, Any] | str | None = None,
    temperature: float = 1.0,
    max_draws: int = 20_000,
    besides: Accesses = (),
    public_covariates: bool = False,
    stand_in: pm.Model | None = None,
    stand_in_records: Any = None,
    records: Any = None,
    public: Sequence[Any] = (),
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

    Paths of :class:`~pymc_dp.DPHMC` are compared in a normal approximation, with the noise and the
    clipping of their gradients, which cost acceptance; the six best are then followed on the simulated
    records. Chains of :class:`~pymc_dp.DPSGHMC` have a stationary law in closed form there, whose
    error is part of what is weighed (the relative error of its standard deviations counts as a bias).

    Parameters
    ----------
    budget : PrivacyBudget
        To be used; nothing is claimed.
    step : type
        What to plan for: :class:`~pymc_dp.DPPenalty` (default), :class:`~pymc_dp.DPBarker`,
        :class:`~pymc_dp.DPFastMH` with Barker's rule, :class:`~pymc_dp.DPHMC` or
        :class:`~pymc_dp.DPSGHMC`. Half of the expected batch of DPFastMH does not depend on the proposal
        (`batch_rate`), which changes the cost by a few per cent only.
    at : PrivateStart, dict or "prior", optional
        Where to draw records: parameters by names, as in ``initvals``; or at a draw from the prior, another
        one for each `random_seed`, before there are any data. PyMC's initial point by default, which says
        little if the prior is vague.
    temperature : float
        Power of the likelihood.
    max_draws : int
        Most draws of each chain, for time's sake.
    besides : sequence of (Mechanism, int)
        What else is going to be claimed.
    public_covariates, stand_in, stand_in_records, records, public, n_records
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
    PrivacyLeak
        If another budget paid for the private start.
    ValueError
        As :func:`~pymc_dp.private_start`; for another step; for DPFastMH under add/remove, where its
        cost is not proved, or by the accountant 'gaussian', which has no bound for it.

    References
    ----------
    Expected squared jumping distance: Pasarica, Gelman (2010), Adaptively scaling the Metropolis
    algorithm using expected squared jumped distance, Statistica Sinica 20, 343-364.
    """
    if step not in _PLANNERS:
        raise ValueError(
            f"step must be one of {', '.join(s.__name__ for s in _PLANNERS)}, got {getattr(step, '__name__', step)!r}; "
            "for DPControlVariate there is plan_surrogate()."
        )
    if step is DPFastMH and budget.adjacency is Adjacency.ADD_REMOVE:
        raise ValueError(
            "The cost of DPFastMH is proved for adjacency 'substitute' only, the budget has 'add_remove'."
        )
    if step is DPFastMH and budget.accountant == "gaussian":
        raise ValueError(
            "The accountant 'gaussian' has no bound for the batches of DPFastMH: use 'best' or 'rdp'."
        )
    max_draws = check_draws(max_draws)
    paid_by = getattr(at, "budget_id", None)
    check_paid("private start", paid_by, budget.id)
    prepared = prepare(
        budget=budget, model=model, temperature=temperature, public_covariates=public_covariates, stand_in=stand_in,
        stand_in_records=stand_in_records, records=records, public=public, n_records=n_records,
    )  # fmt: skip
    theta = at.theta if isinstance(at, PrivateStart) else prepared.position(at, random_seed)
    pilot = Pilot(prepared, theta, np.random.default_rng(random_seed))
    terms = Terms(
        budget, besides, budget.left(besides), temperature, prepared.n_records, max_draws
    )  # fmt: skip
    settings, candidates = _PLANNERS[step](step, pilot, terms)
    if not candidates:
        raise PrivacyBudgetExhausted(
            f"epsilon = {budget.epsilon:g} at delta = {budget.delta:g} does not pay for ten draws in each of {budget.chains} "
            f"chain(s) on {prepared.n_records} records. Use fewer chains or a larger epsilon."
        )
    chosen = candidates[0]
    notes = list(pilot.notes)
    if step is DPSGHMC and pilot.is_curved:
        notes.append(
            "what DPSGHMC makes of such a posterior is not known: the plan has that of a normal one."
        )
    if chosen.effective_draws < 30:
        notes.append(
            f"about {chosen.effective_draws:.0f} effective draws are few: intervals will be rough. More records, a larger epsilon, fewer "
            "parameters or fewer chains would help."
        )
    notes.extend(note_on(at))
    return Plan(
        step=step,
        settings=settings,
        chosen=chosen,
        candidates=tuple(sorted(candidates, key=lambda c: c.error)),
        chains=budget.chains,
        epsilon=budget.epsilon,
        delta=budget.delta,
        n_records=prepared.n_records,
        position=prepared.likelihood.unravel(theta),
        notes=tuple(notes),
        budget_id=paid_by,
    )
