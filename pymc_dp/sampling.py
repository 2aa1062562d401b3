"""sample(): plan, run and publish in one call."""

from __future__ import annotations

import logging
import math
import warnings

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Never

import pymc as pm

from pymc_dp.arguments import as_integer, check_named
from pymc_dp.data_versions import check_data_are_those
from pymc_dp.errors import explain
from pymc_dp.host_arguments import (
    as_model,
    check_host_arguments,
    check_memory,
    checked_initvals,
)
from pymc_dp.model.identity import model_of, model_token
from pymc_dp.planning.plan import MIN_DRAWS, Plan
from pymc_dp.planning.simulator import Guess, check_is_simulator
from pymc_dp.plans import plan as make_plan
from pymc_dp.privacy.budget.budget import PrivacyBudget
from pymc_dp.progress import counted, note, shown, silenced
from pymc_dp.publishing import release, warn_of_chains
from pymc_dp.queries.ranges import Ranges
from pymc_dp.scores.fit_check import check_fit
from pymc_dp.scores.releases import PrivateScores
from pymc_dp.scores.results import released_draws, warn_of_distance
from pymc_dp.scores.score_plan import ScorePlan
from pymc_dp.scores.score_step import DPScore
from pymc_dp.steps.base import DPStep

_log = logging.getLogger("pymc.dp")

#: Arguments of the budget and of plan() that sample() passes on.
_BUDGET = {"adjacency", "accountant", "ledger"}
_PLANNING = {
    "guess", "interest", "noise", "simulator", "covariates", "records", "stand_in_records", "public",
    "n_records", "temperature", "data",
}  # fmt: skip
_DRAWS, _CHAINS = 1000, 4
_NAMES = {"plan", "step", "epsilon", "delta", "chains", "draws", "model", "reproducible", *_BUDGET, *_PLANNING}  # fmt: skip


def sample(
    *unnamed: Never,
    plan: ScorePlan | Plan | None = None,
    step: DPScore | DPStep | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    chains: int | None = None,
    draws: int | None = None,
    covariates: str | pm.Model | Ranges | None = None,
    guess: Guess = None,
    interest: Any = None,
    noise: str | None = None,
    reproducible: bool = False,
    model: pm.Model | None = None,
    **kwargs: Any,
) -> Any:
    """Sample a private posterior that uses up a budget, and reduce it to what may be published.

    Give a budget (`epsilon` and `delta`), a plan, or a step.

    With a budget, a few noisy sums of clipped scores are planned on simulated records
    (:func:`~pymc_dp.plan`) and released (:func:`~pymc_dp.private_scores`). The rest accesses no data: chains
    of :class:`~pymc_dp.DPScore` sample the posterior given these sums, so draws and chains are free.

    The samplers that pay for each draw, such as :class:`~pymc_dp.DPPenalty`, are run by their step or plan.
    They stop when their budget is used up.

    Parameters
    ----------
    plan : ScorePlan or Plan, optional
        Run this plan, on its budget and compiled model.
    step : DPScore or DPStep, optional
        Run this step, such as ``DPPenalty(budget=budget, clip_bound=3.0, proposal=RandomWalk(0.02))``, on its
        budget and model. (To combine several steps, call ``pm.sample`` with ``callback=budget`` and
        ``tune=0``, then :func:`~pymc_dp.release`.)
    epsilon, delta : float, optional
        Plan and release noisy scores for this budget. With ``delta=0`` their noise is l2 noise (pure DP).
    chains : int, optional
        Number of chains of :class:`~pymc_dp.DPScore`, 4 by default. Any other step has the number that shares
        its budget.
    draws : int, optional
        Draws per chain. :class:`~pymc_dp.DPScore`: 1000 by default. Other steps: by default as many as the
        budget allows, at most `max_draws` of a plan. Fewer do not cost less: a chain claims its whole share.
        More are an error.
    covariates, guess, interest, noise : optional
        With `epsilon`: how records are simulated if the model has covariates (no default for such models), where, of which
        parameters the posterior is to be narrow, and the law of the noise, as those of :func:`~pymc_dp.plan`.
    reproducible : bool
        With a :class:`~pymc_dp.Plan`: draw decisions from ``random_seed``. This breaks the guarantee, and the
        report states it: for tests and public data. The noise of scores is always secret.
    model : pm.Model, optional
        The model; by default that of the plan or step, or the one on the context stack. With ``data=records``
        (:class:`~pymc_dp.Records`, which need not fit into memory, or :class:`~pymc_dp.Shards`) its ``pm.Data`` are columns.
    **kwargs
        With `epsilon`: further arguments of :func:`~pymc_dp.plan` (``data``, ``ledger``, ``adjacency``, ``accountant``,
        ``records``, ``public``, ``temperature``, ``n_records``, ...). In any case: arguments of ``pm.sample``
        (``cores``, ``random_seed``, ``progressbar``, ...). ``random_seed`` reaches the plan, simulations and proposals, and
        never the secret bits of noise and decisions (but with `reproducible`): one seed gives other draws each time.
        ``progressbar=False`` is silent, but for warnings. There is no ``tune``: a chain that adapts to private data
        pays for each draw that it throws away, or reveals the data through its settings. (:class:`~pymc_dp.DPScore`
        adapts to the released sums, which are public.)

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        As :func:`~pymc_dp.release` returns it: may be published. That of :class:`~pymc_dp.DPScore` also carries,
        in its attributes, the scores (:meth:`PrivateScores.of`), from which anybody can go on, and the result
        of the fit check (``fit_check``, in words, and its p-value ``fit_check_p``).

    Raises
    ------
    PrivacyBudgetExhausted
        If the account does not pay for the releases, or the budget for one draw per chain, before any data are
        accessed.
    ValueError, TypeError
        If an argument is wrong or missing, before any data are accessed.

    Every exception after the arguments were checked, interruptions included, has the budget as attribute
    ``budget`` (``error.budget.report()`` states what was spent), and the released scores as attribute
    ``scores``: ``dp.sample(step=dp.DPScore(error.scores))`` goes on from them at no cost.

    Warns
    -----
    UserWarning
        If the fit check rejects the model; if draws are far from the posterior that the scores give in normal
        approximation; if the chains have not mixed, or have not moved, unless
        ``compute_convergence_checks=False``.

    Examples
    --------
    >>> with pm.Model():
    ...     rate = pm.Gamma("rate", 2.0, 1.0)
    ...     _ = pm.Poisson("y", rate, observed=np.repeat([2, 3, 4], 100))
    ...     idata = dp.sample(epsilon=1.0, delta=1e-6, cores=1, progressbar=False)
    >>> idata.posterior["rate"].shape, idata.attrs["epsilon"] <= 1.0
    ((4, 1000), True)
    """
    check_named("sample", unnamed)
    planning: dict[str, Any] = _given(
        covariates=covariates, guess=guess, interest=interest, noise=noise
    )
    planning |= {name: kwargs.pop(name) for name in _BUDGET | _PLANNING if name in kwargs}
    _check_source(plan, step, epsilon, delta, planning)
    numbers = {n: as_integer(n, x, 1) for n, x in _given(draws=draws, chains=chains).items()}
    model = _model(plan, step, planning.get("simulator"), model)
    check_host_arguments(kwargs, _NAMES, model)
    is_shown = bool(kwargs.get("progressbar", True)) and not kwargs.get("quiet", False)
    if isinstance(plan, Plan) or isinstance(step, DPStep):
        _check_draws_are_paid(step, chains, reproducible)
        of_run: Any = plan, step, numbers.get("draws"), reproducible, is_shown, model, kwargs
        with silenced(not is_shown):
            return _sample_by_steps(*of_run)
    _check_draws_are_free(kwargs, reproducible)
    if epsilon is not None:
        _add_budget(planning, epsilon, delta, model)
    kwargs = {"draws": _DRAWS, "chains": _CHAINS, "model": model} | numbers | kwargs
    with silenced(not is_shown):
        return _sample_scores(plan, step, planning, is_shown, kwargs)


def _add_budget(planning: dict[str, Any], epsilon: Any, delta: Any, model: pm.Model) -> None:
    """Replace the budget's terms by a new budget for scores; add the model if there is no simulator."""
    terms = {name: planning.pop(name) for name in _BUDGET & set(planning)}
    planning["budget"] = PrivacyBudget(epsilon, delta, chains=1, **terms)
    if "simulator" not in planning:
        planning["model"] = model


def _given(**arguments: Any) -> dict[str, Any]:
    """Arguments that are not None."""
    return {name: value for name, value in arguments.items() if value is not None}


def _sample_scores(
    plan: ScorePlan | None, step: DPScore | None, planning: dict[str, Any], is_shown: bool, kwargs: dict[str, Any]
) -> Any:  # fmt: skip
    """Release scores, unless given, and sample the posterior given them."""
    budget: PrivacyBudget | None = planning.get("budget")
    scores: PrivateScores | None = None
    try:
        if step is None:
            seed = kwargs.get("random_seed")
            made: Any = plan or make_plan(**planning, random_seed=seed, progressbar=is_shown)
            budget = made.budget
            _log.info("%s", made)
            check_memory(kwargs["draws"], kwargs["chains"], made.simulator.model)
            with shown(is_shown):
                scores = made.release()
                step = DPScore(scores, simulator=made.simulator, model=made.simulator.model)
        scores = step.scores
        if step.simulator.likelihood.is_remote:
            kwargs.setdefault("cores", 1)  # a process with connections cannot be forked safely
        callback = counted(is_shown, kwargs["draws"] * kwargs["chains"])
        idata = pm.sample(step=step, tune=0, callback=callback, **kwargs)
        with shown(is_shown):
            note("checking the fit")
            fit = check_fit(scores, step.simulator, approximation=step.approximation)
        released = released_draws(idata, step, fit)
        if fit is not None and fit.is_rejected:
            warnings.warn(str(fit), stacklevel=3)
        warn_of_distance(released)
        if kwargs.get("compute_convergence_checks", True):
            warn_of_chains(released, pays=False)
        return released
    except BaseException as error:
        # What was released is paid for, and all that is needed to go on.
        scores = scores or getattr(error, "scores", None)
        error.budget, error.scores = budget, scores  # type: ignore[attr-defined]
        explain(error, budget, scores)
        raise


def _sample_by_steps(
    plan: Plan | None, step: DPStep | None, draws: int | None, reproducible: bool, is_shown: bool, model: pm.Model,
    kwargs: dict[str, Any],
) -> Any:  # fmt: skip
    """Run a step that accesses the data in each draw."""
    budget: PrivacyBudget = (plan or step).budget  # type: ignore[union-attr, assignment]
    try:
        if step is None:
            assert plan is not None
            if draws is not None:
                plan = replace(plan, max_draws=max(draws, MIN_DRAWS))
            _log.info("%s", plan)
            with shown(is_shown):
                note(f"compiling {plan.step.__name__}")
                step = plan.build(reproducible=reproducible)
            kwargs.setdefault("initvals", plan.position)
        check_data_are_those(step.likelihood, model)
        n_draws = _number_of_draws(step, plan, budget, draws)
        _check_begin(step, kwargs.get("initvals"), n_draws, model)
        if step.likelihood.is_remote:
            kwargs.setdefault("cores", 1)
        chains, callback = budget.chains, counted(is_shown, n_draws * budget.chains, budget)
        idata = pm.sample(n_draws, tune=0, chains=chains, step=step, callback=callback, model=model, **kwargs)  # fmt: skip
        released = release(idata, model, budget)
        if kwargs.get("compute_convergence_checks", True):
            warn_of_chains(released, pays=True)
        return released
    except BaseException as error:
        # What was spent is spent: the caller can report it, and pay from the same account.
        error.budget = budget  # type: ignore[attr-defined]
        explain(error, budget)
        raise


def _check_begin(step: DPStep, initvals: Any, draws: int, model: pm.Model) -> None:
    """Raise before the first chain for initvals that later chains would refuse, or draws that exceed memory."""
    chains = 1 if step.budget is None else step.budget.chains
    check_memory(draws, chains, model)
    for point in checked_initvals(initvals, chains, model) or ():
        step.check_begin(point)


def _number_of_draws(
    step: DPStep, plan: Plan | None, budget: PrivacyBudget, asked: int | None
) -> int:
    """Draws per chain: what the budget pays for, or fewer if asked; ValueError for more."""
    expected = budget.expected_draws()
    varying = any(allocation.share is not None for allocation in budget.plan().values())
    limit, most = _limit(expected, varying), math.inf if plan is None else plan.max_draws
    draws: float = min(limit, most) if asked is None else asked
    if math.isinf(draws):
        raise ValueError("An infinite epsilon never stops a run: give draws.")
    if draws > limit:
        raise ValueError(
            f"draws={draws} is more than epsilon = {budget.epsilon:g} pays for: {expected:g} per chain. Leave out draws=."
        )
    is_approximate = varying and asked is None and plan is None
    _log.info(
        "Plan: %s%s draws in each of %d chains, epsilon = %g at delta = %g (%s). Each draw: %s.",
        "about " if is_approximate else "", f"{expected if is_approximate else draws:g}", budget.chains,
        budget.epsilon, budget.delta, budget.adjacency.value, "; ".join(f"{k} x {m.name}" for m, k in step.mechanisms()),
    )  # fmt: skip
    return int(draws)


def _limit(expected: float, varying: bool) -> float:
    """Largest number of draws to request from PyMC.

    If proposals set the cost, the number of draws varies, by a fifth for 200 draws: the limit is so much larger that
    the budget ends a chain, and not the limit.
    """
    if math.isinf(expected):
        return math.inf
    return math.ceil(1.25 * expected) + 100 if varying else int(expected)


def _check_source(
    plan: Any, step: Any, epsilon: Any, delta: Any, planning: Mapping[str, Any]
) -> None:
    """Raise unless exactly one of plan, step and budget is given, without arguments that it fixes."""
    budget = _given(epsilon=epsilon, delta=delta)
    if len(_given(plan=plan, step=step)) + bool(budget) != 1:
        raise TypeError(
            "sample() needs exactly one of plan= (from plan()), step= (such as DPPenalty(budget=budget, ...)), or epsilon= and delta=."
        )
    if len(budget) == 1:
        raise TypeError(f"sample() needs both epsilon= and delta=, got {epsilon!r} and {delta!r}.")
    if not isinstance(plan, ScorePlan | Plan | None):
        raise TypeError(
            f"plan must be a ScorePlan or Plan, as plan() returns it, got a {type(plan).__name__}."
        )
    if step is not None:
        _check_step(step)
    if (simulator := planning.get("simulator")) is not None:
        check_is_simulator(simulator)
    if planning and not budget:
        raise TypeError(
            f"{', '.join(sorted(planning))}: with {'plan' if step is None else 'step'}= these are fixed already, leave out."
        )


def _check_step(step: Any) -> None:
    """Raise unless this is an instance of a step whose draws can be published."""
    if isinstance(step, type) and issubclass(step, DPStep | DPScore):
        raise TypeError(
            f"step must be an instance: make it in the model's context, {step.__name__}(budget=PrivacyBudget(epsilon=..., delta=..., chains=...), "
            f"...), and pass it to sample(step=step). For a planned one, sample(plan=plan(step={step.__name__}, ...))."
        )
    if not isinstance(step, DPStep | DPScore):
        raise TypeError(
            f"step must be one private step, such as DPPenalty(budget=budget, ...), got {_kind(step)}. PyMC's own steps read the data "
            "without privacy: leave out step= and give epsilon= and delta=. With several private steps, call pm.sample(step=[...], "
            "callback=budget, tune=0), then release()."
        )
    if isinstance(step, DPStep) and step.budget is None:
        raise ValueError(
            "This step has budget=None, so nothing pays for its draws and they cannot be released: run it with pm.sample."
        )


def _kind(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"


def _check_draws_are_paid(step: DPStep | DPScore | None, chains: Any, reproducible: bool) -> None:
    """Raise for arguments fixed by the budget or the step, if each draw is paid for."""
    if chains is not None:
        raise TypeError("chains: the budget of this sampler has a number of chains, leave out.")
    if step is not None and reproducible:
        raise TypeError("reproducible= is an argument of the step: leave out.")


def _check_draws_are_free(kwargs: Mapping[str, Any], reproducible: bool) -> None:
    """Raise for arguments without meaning if draws are free."""
    if reproducible:
        raise TypeError("The noise of scores is always secret: leave out reproducible=.")
    if kwargs.get("initvals") is not None:
        raise TypeError("Chains of DPScore begin near the scores' reference: leave out initvals=.")


def _model(
    plan: ScorePlan | Plan | None, step: DPScore | DPStep | None, simulator: Any, model: pm.Model | None
) -> Any:  # fmt: skip
    """The model to sample; it also determines what may be published."""
    if plan is not None:
        simulator = plan.simulator
    if isinstance(step, DPScore):
        simulator = step.simulator
    own = None if simulator is None else simulator.model
    if isinstance(step, DPStep):
        own = model_of(step._model_token)
    if model is not None:
        as_model(model)
    if own is None:
        return as_model(model)
    if model is not None and model_token(model) != model_token(own):
        raise ValueError("model= is another model than that of the plan or step: leave out.")
    return own
