"""plan(): what a private posterior will cost and show, for each sampler that has a planner."""

from __future__ import annotations

import os

from collections.abc import Mapping, Sequence
from typing import Any, Never

import numpy as np
import pymc as pm

from pymc_dp.arguments import as_integer, check_named
from pymc_dp.data import Records, Shards, Sites
from pymc_dp.host_arguments import as_model, check_seed
from pymc_dp.model.proper_priors import check_proper
from pymc_dp.planning.compiled_once import simulator_of
from pymc_dp.planning.plan import MIN_DRAWS, Plan, notes_on_position
from pymc_dp.planning.simulated_runs import PlanningProblem
from pymc_dp.planning.simulator import (
    Guess,
    Simulator,
    check_is_simulator,
    check_number_is_public,
)
from pymc_dp.privacy.budget.budget import PrivacyBudget, check_is_budget
from pymc_dp.privacy.budget.draws import check_paid
from pymc_dp.privacy.budget.ledger import Ledger
from pymc_dp.privacy.mechanisms.mechanism import Accesses, Adjacency
from pymc_dp.progress import note, shown
from pymc_dp.queries.ranges import Ranges
from pymc_dp.scores.private_scores import plan_scores
from pymc_dp.scores.score_plan import ScorePlan
from pymc_dp.scores.score_step import DPScore
from pymc_dp.scores.start import PrivateStart
from pymc_dp.steps.base import DPStep

_MAX_DRAWS = 20_000
_CHAINS = 4


def plan(
    *unnamed: Never,
    epsilon: float | None = None,
    delta: float | None = None,
    budget: PrivacyBudget | None = None,
    step: type[DPScore] | type[DPStep] = DPScore,
    guess: Guess = None,
    interest: Any = None,
    noise: str | None = None,
    chains: int | None = None,
    start: PrivateStart | None = None,
    max_draws: int | None = None,
    other_accesses: Accesses = (),
    simulator: Simulator | None = None,
    model: pm.Model | None = None,
    data: Records | Shards | Sites | None = None,
    covariates: str | pm.Model | Ranges | None = None,
    records: Any = None,
    stand_in_records: Any = None,
    public: Sequence[Any] = (),
    n_records: int | None = None,
    temperature: float = 1.0,
    random_seed: Any = None,
    adjacency: str | Adjacency = Adjacency.SUBSTITUTE,
    accountant: str = "best",
    ledger: str | os.PathLike | Ledger | None = None,
    progressbar: bool | str = True,
) -> ScorePlan | Plan:
    r"""Choose settings without access to private data, and forecast the private posterior.

    The default is a plan of noisy scores: a start, the law of the noise and the clip bound with the least
    expected error, on records drawn from the model at a public guess. It forecasts each parameter's posterior
    standard deviation relative to the one without privacy. Nothing is claimed, and no private record is read.

    For a sampler that pays for each draw (`step`), the plan takes the candidate with the smallest expected
    error of a posterior mean, in posterior standard deviations,

    .. math:: \sqrt{\text{bias}^2 + 1 / \text{effective draws}}.

    Tighter clipping causes more bias, and lets the budget pay for more draws.

    Parameters
    ----------
    epsilon, delta : float
        Budget. The noise of scores may have ``delta=0``.
    budget : PrivacyBudget, optional
        An existing budget, in place of `epsilon`, `delta`, `chains`, `adjacency`, `accountant` and
        `ledger`; the plan is for the unspent part. Scores use up all of a budget.
    step : type
        :class:`~pymc_dp.DPScore`, or :class:`~pymc_dp.DPPenalty`, :class:`~pymc_dp.DPBarker` or
        :class:`~pymc_dp.DPFastMH` (with Barker's rule).
    guess : dict of str to array or "prior", optional
        Where records are drawn: public values by name, as in ``initvals``; or a draw from the prior, another
        one for each `random_seed`. By default PyMC's initial point. Must not be computed from the data.
    interest : str, PyTensor variable, or sequence of these, optional
        Of scores only: parameters or Deterministics, by name, or expressions of them, such as ``b[1] - b[0]``, of which the posterior is to be
        narrow; the others get more noise. By default all parameters alike.
    noise : {"auto", "l2", "gaussian"}, optional
        Of scores only: law of the noise; by default (``"auto"``) the one with the smaller standard deviation.
    chains : int, optional
        Of other steps only: number of chains that share the budget, 4 by default.
    start : PrivateStart, optional
        Of other steps only: where records are drawn, in place of a guess.
    max_draws : int, optional
        Of other steps only: largest number of draws per chain, at least 10, by default 20 000.
    other_accesses : sequence of (Mechanism, int)
        Of other steps only: what else the budget is going to pay for, outside of chains.
    simulator : Simulator, optional
        The compiled model, in place of the following arguments.
    model, data, covariates, records, stand_in_records, public, n_records, temperature
        As those of :class:`~pymc_dp.Simulator`.
    random_seed : int or Generator, optional
        For the draw of a ``"prior"`` guess and for simulated records, so that a plan can be repeated. It never
        decides about noise, or about accept and reject, which take the operating system's secret bits.
    adjacency : {"substitute", "add_remove"}
        Which data sets count as neighbours: one record replaced (default), or one added or removed.
    accountant : {"best", "rdp", "gaussian", "pld", "pure"}
        How costs are composed; the tightest proved one by default.
    ledger : path-like or Ledger, optional
        File that keeps the account of the data set across programs; by default a temporary one.
    progressbar : bool
        Show what is being done, and for how long.

    Returns
    -------
    ScorePlan or Plan
        For ``sample(plan=plan)``. Print it to see what is expected.

    Raises
    ------
    PrivacyBudgetExhausted
        If the budget does not pay for ten draws of each chain, whatever the settings.
    PrivacyLeak
        If another budget paid for the private start.
    TypeError, ValueError
        If an argument is out of its range, missing, or of no use for this step; as
        :class:`~pymc_dp.Simulator`; for a step without planner; for DPFastMH under add/remove, where its cost
        is not proved, or with accountant 'gaussian', which has no bound for it.

    References
    ----------
    Random walks: Pasarica, Gelman (2010), Adaptively scaling the Metropolis algorithm using expected
    squared jumped distance, Statistica Sinica 20, 343-364.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_dp as dp
    >>> y = np.random.default_rng(1).poisson(3.0, size=300)
    >>> with pm.Model() as model:
    ...     _ = pm.Poisson("y", pm.Gamma("rate", 2.0, 1.0), observed=y)
    >>> found = dp.plan(
    ...     epsilon=1.0, delta=0, model=model, guess={"rate": 2.0}, random_seed=1
    ... )
    >>> bool(1 < found.sd_ratios["rate"][0] < 1.5)
    True
    """
    check_named("plan", unnamed)
    of_steps = {
        "chains": chains, "start": start, "max_draws": max_draws, "other_accesses": other_accesses or None,
    }  # fmt: skip
    is_of_scores = step is DPScore
    _check_use(step, of_steps if is_of_scores else {"noise": noise, "interest": interest})
    if budget is None:
        if epsilon is None or delta is None:
            raise TypeError("plan() needs epsilon= and delta=, or budget=.")
        chains = 1 if is_of_scores else _CHAINS if chains is None else chains
        budget = PrivacyBudget(
            epsilon, delta, chains=chains, adjacency=adjacency, accountant=accountant, ledger=ledger
        )
    elif epsilon is not None or delta is not None:
        raise TypeError("Give epsilon= and delta=, or budget=, not both.")
    check_is_budget(budget)
    check_seed(random_seed)
    options = {
        "model": model, "data": data, "covariates": covariates, "records": records, "stand_in_records": stand_in_records,
        "public": public, "n_records": n_records, "temperature": temperature,
    }  # fmt: skip
    if is_of_scores:
        if simulator is None:
            check_proper(as_model(model))
        with shown(progressbar):
            simulator = _simulator(simulator, options, budget)
            return plan_scores(
                simulator, budget, guess=guess, interest=interest, noise=noise or "auto", random_seed=random_seed
            )  # fmt: skip
    _check_step(step)
    max_draws = as_integer("max_draws", _MAX_DRAWS if max_draws is None else max_draws, MIN_DRAWS)
    _check_start(start, guess, budget)
    with shown(progressbar):
        simulator = _simulator(simulator, options, budget)
        theta = simulator.position(guess, random_seed) if start is None else start.theta
        rng = np.random.default_rng(random_seed)
        note("planning on simulated records")
        problem = PlanningProblem(budget, simulator, theta, other_accesses, max_draws, rng)
        candidates, chosen, settings = problem.search(step)
    return Plan(
        step=step,
        budget=budget,
        simulator=simulator,
        candidates=tuple(sorted(candidates, key=lambda c: c.forecast.error)),
        chosen=chosen,
        settings=settings,
        position=simulator.likelihood.unravel(theta),
        notes=(*problem.notes, *notes_on_position(guess if start is None else start)),
        max_draws=max_draws,
    )


def _check_use(step: Any, unused: Mapping[str, Any]) -> None:
    """Raise for arguments that this step does not use."""
    if given := [name for name, value in unused.items() if value is not None]:
        hint = (
            "a plan of noisy scores has no use for it, as draws and chains are free (give their numbers to sample())"
            if step is DPScore
            else f"{getattr(step, '__name__', step)} has no use for it"
        )
        raise TypeError(f"{', '.join(given)}: {hint}. Leave out.")


def _check_step(step: Any) -> None:
    """Raise unless this is a class that has a planner."""
    if not (isinstance(step, type) and getattr(step, "plan", None)):
        got = (
            getattr(step, "__name__", None)
            or f"an instance of {type(step).__name__}, where a class is needed"
        )
        raise ValueError(
            f"step must be one of the classes DPScore, DPPenalty, DPBarker, DPFastMH, got {got}. For other steps there is no planner (a class "
            "method plan()): choose their settings by hand, and pass the step to sample(step=...)."
        )


def _check_start(start: Any, guess: Guess, budget: PrivacyBudget) -> None:
    """Raise unless this is None or a private start that the budget paid for."""
    if start is None:
        return
    if not isinstance(start, PrivateStart):
        raise TypeError(
            f"start must be a PrivateStart, as private_start() returns it, got a {type(start).__name__}: pass public values as guess=, a dict."
        )
    if guess is not None:
        raise TypeError("Give start= or guess=, not both.")
    check_paid("private start", getattr(start, "budget_id", None), budget.id)


def _simulator(
    simulator: Simulator | None, options: dict[str, Any], budget: PrivacyBudget
) -> Simulator:
    """The given simulator, or a new one with these options, checked against the budget."""
    if simulator is None:
        check_number_is_public(budget, options["covariates"], options["n_records"])
        return simulator_of(**options)
    unset = {"public": len(options["public"]) == 0, "temperature": options["temperature"] == 1.0}
    given = [n for n, value in options.items() if not unset.get(n, value is None)]
    if given:
        raise TypeError(f"{', '.join(given)} are those of the simulator: leave out, or leave out simulator=.")  # fmt: skip
    check_is_simulator(simulator)
    simulator.check_budget(budget)
    return simulator
