"""private_scores(): plan and release noisy sums of clipped scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pymc as pm

from pymc_dp.arguments import as_float
from pymc_dp.data import Sites
from pymc_dp.errors import PrivacyBudgetExhausted, UnsupportedModel
from pymc_dp.host_arguments import as_model, check_seed
from pymc_dp.model.proper_priors import check_proper
from pymc_dp.planning.compiled_once import simulator_of
from pymc_dp.planning.plan import notes_on_position
from pymc_dp.planning.simulator import (
    Guess,
    Simulator,
    check_is_simulator,
)
from pymc_dp.privacy.budget.budget import PrivacyBudget, check_is_budget
from pymc_dp.privacy.budget.report import weak_delta
from pymc_dp.progress import note, shown
from pymc_dp.queries.ranges import Ranges
from pymc_dp.queries.stand_in_design import StandInDesign, design_stand_in
from pymc_dp.scores.design import best_design
from pymc_dp.scores.releases import PrivateScores
from pymc_dp.scores.score_plan import ScorePlan
from pymc_dp.scores.search import first_reference

#: Parts of the budget (of the squared ``mu``, or of epsilon) for a stand-in from ranges: if combinations are counted; else the
#: first one with which the noise on a count is at most this part of the number of records, or the last one.
_CELL_SHARE, _STAND_IN_SHARES, _COUNT_NOISE = 0.2, (0.05, 0.1, 0.2, 0.4), 0.01


def private_scores(
    simulator: Simulator | None = None,
    *,
    budget: PrivacyBudget,
    guess: Guess = None,
    interest: Any = None,
    noise: str = "auto",
    fit_share: float = 0.03,
    model: pm.Model | None = None,
    covariates: str | pm.Model | Ranges | None = None,
    records: Any = None,
    stand_in_records: Any = None,
    public: Sequence[Any] = (),
    n_records: int | None = None,
    random_seed: Any = None,
    progressbar: bool | str = True,
) -> PrivateScores:
    """Release noisy sums of clipped scores: all that :class:`~pymc_dp.DPScore` needs.

    A *score* is the gradient of a record's log-likelihood at a public reference, in coordinates in which the
    posterior's precision is 1 per record. A part of the budget, at most a fifth unless the prior is wide or
    covariates are those of a stand-in, may pay for first sums, which move the reference from the guess to the bulk of
    the posterior; the rest for one sum there. With a stand-in of the user a further part pays for second moments of the
    scores, which its rows are weighted to have; where only ranges of the covariates are given, another
    part, a fifth if combinations are counted, else 5 to 40 per cent, pays for a stand-in that is
    made from these; if a record is a Bernoulli outcome, scores are then clipped by factors that do not depend on it,
    so that errors of the stand-in do not shift sums at the reference. Noise and all
    parts are those with the least expected error on records drawn from the model, and so is the clip bound,
    unless the histogram of the fit check, which is released before, has tails unlike the model's: private data decide about nothing else.

    Parameters
    ----------
    simulator : Simulator, optional
        The model, and how its records are simulated; or give its arguments, from `model` to `n_records`.
    budget : PrivacyBudget
        Pays for the releases, all of it: nothing else can be claimed on it later. Its `chains` have no
        meaning here.
    guess, interest, noise : optional
        As those of :func:`~pymc_dp.plan`.
    fit_share : float
        Part of the budget for a noisy histogram of the norms of the scores, with which
        :func:`~pymc_dp.scores.check_fit` tests the model; 0 for none.
    model, covariates, records, stand_in_records, public, n_records
        As those of :class:`~pymc_dp.Simulator`.
    random_seed : int or Generator, optional
        For the simulations. The noise is secret in any case.
    progressbar : bool
        Show what is being done, and what part of the budget is being spent.

    Returns
    -------
    PrivateScores
        Public.

    Raises
    ------
    PrivacyBudgetExhausted
        If something was claimed on the budget before, or its account does not pay for it.
    ValueError, TypeError, UnsupportedModel
        As :class:`~pymc_dp.Simulator`, and for improper priors (``pm.Flat``) or ones that are too wide for the budget,
        before anything is accessed.

    References
    ----------
    Releases and posterior: the page on noisy scores. l2 noise: Joseph, Kulesza, Yu (2025),
    https://arxiv.org/abs/2502.15929. Factors that do not depend on outcomes: Künsch, Stefanski, Carroll (1989),
    https://doi.org/10.1080/01621459.1989.10478791.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_dp as dp
    >>> y = np.random.default_rng(1).poisson(3.0, size=300)
    >>> with pm.Model():
    ...     rate = pm.Gamma("rate", 2.0, 1.0)
    ...     _ = pm.Poisson("y", rate, observed=y)
    ...     budget = dp.PrivacyBudget(epsilon=1.0, delta=1e-6, chains=1)
    ...     scores = dp.private_scores(budget=budget)
    >>> scores.n_records
    300
    """
    with shown(progressbar):
        if simulator is None:
            check_proper(as_model(model))
            simulator = simulator_of(
                model, covariates=covariates, records=records, stand_in_records=stand_in_records, public=public,
                n_records=n_records,
            )  # fmt: skip
        return plan_scores(
            simulator,
            budget,
            guess=guess,
            interest=interest,
            noise=noise,
            fit_share=fit_share,
            random_seed=random_seed,
        ).release()


def plan_scores(
    simulator: Simulator,
    budget: PrivacyBudget,
    *,
    guess: Guess = None,
    interest: Any = None,
    noise: str = "auto",
    fit_share: float = 0.03,
    random_seed: Any = None,
) -> ScorePlan:
    """Choose first sums, noise and clip bound of a release on simulated records; arguments are those of `private_scores`."""
    check_is_simulator(simulator)
    check_is_budget(budget)
    check_seed(random_seed)
    check_proper(simulator.model)
    simulator.check_budget(budget)
    simulator.check_data()
    if budget.steps or budget.one_off_accesses:
        raise PrivacyBudgetExhausted(
            "Scores use up all of a budget, and this one has been used already. Make a new PrivacyBudget; to keep one account for the data set, "
            "give both the same ledger file. Nothing was accessed."
        )
    note("planning on simulated records")
    simulator = simulator.interested_in(interest)
    rng = np.random.default_rng(random_seed)
    try:
        simulated = first_reference(simulator, guess, rng)
    except UnsupportedModel as error:
        if incomplete := simulator.incomplete_arrays():
            raise UnsupportedModel(f"{error} Not finite: {'; '.join(incomplete)}.") from None
        raise
    if not 0 <= as_float(fit_share) <= 0.5:
        raise ValueError(f"fit_share must lie in [0, 0.5], got {fit_share!r}.")
    if simulator.likelihood.noise_laws == ("gaussian",):
        if noise == "l2":
            raise ValueError("These sites add Gaussian noise, got noise='l2': leave it out.")
        noise = "gaussian"
    n_records, ranges = simulator.n_records, simulator.ranges
    stand_in = None if ranges is None else _stand_in_design(ranges, budget, n_records)
    design = best_design(simulated, budget, n_records, noise, fit_share, stand_in)
    if isinstance(sites := getattr(simulator.likelihood, "records", None), Sites):
        least = min(m.noise_sd for m, _ in design.accesses)  # type: ignore[attr-defined]
        sites.check_noise(least * budget.adjacency.sensitivity_factor / 2)
    weak = filter(None, [weak_delta(budget.delta, n_records)])
    notes = (*weak, *(() if simulated.there else notes_on_position(guess)))
    if design.start and not simulated.is_near():
        notes = (*notes, f"the prior is wide, its draws lie {simulated.distance:.2g} standard deviations of a record apart: {design.start[0][1]} first sums search "
            "for the parameters, and the forecast holds if they find them. Narrower priors need fewer.")  # fmt: skip
    return ScorePlan(budget, simulator, simulated, design, notes, rng)


def _stand_in_design(ranges: Ranges, budget: PrivacyBudget, n_records: int) -> StandInDesign:
    """Counts of all cells if these are possible; else the smallest share of the budget that gives accurate counts."""
    joint = design_stand_in(ranges, budget, n_records, _CELL_SHARE)
    if joint.is_joint:
        return joint
    designs = [design_stand_in(ranges, budget, n_records, share) for share in _STAND_IN_SHARES]
    most = _COUNT_NOISE * n_records
    accurate = [d for d in designs if d.count_noise(budget.adjacency, len(ranges.columns)) <= most]
    return (accurate or designs[-1:])[0]
