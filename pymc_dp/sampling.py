"""Plan, sample, release: the main job in one call."""

from __future__ import annotations

import inspect
import logging
import math
import os
import warnings

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pymc as pm

from pymc.backends.base import BaseTrace
from pymc.backends.zarr import ZarrTrace

from pymc_dp.costs import LEAST_DRAWS, check_account
from pymc_dp.errors import StartNotFound
from pymc_dp.preparation import note_on, prepare
from pymc_dp.privacy.budget import PrivacyBudget
from pymc_dp.privacy.ledger import Ledger
from pymc_dp.privacy.mechanisms import Adjacency, Gaussian, whole
from pymc_dp.release import release
from pymc_dp.starting import find_start, start_accesses
from pymc_dp.steps.base import DPStep
from pymc_dp.steps.control_variate import DPControlVariate
from pymc_dp.steps.penalty import DPPenalty
from pymc_dp.surrogate_plans import plan_for, setting_at
from pymc_dp.surrogates import release_surrogate

__all__ = ["sample"]

_log = logging.getLogger("pymc.dp")

#: Arguments of the planned step that the plan has to know, too; and those that only the plan has.
_SHARED, _OF_PLAN = ("temperature", "records", "public"), ("stand_in_records", "n_records")
#: Draws of each chain that are worth their time: they are nearly independent.
_MOST_DRAWS = 1000
#: Who gives one of these has a plan: of :class:`DPPenalty`.
_PLANNED = {"clip_bound", "proposal", "noise_scale", "noise_multiplier", "laziness", "batch_size"}
#: Vehtari et al. (2021), https://doi.org/10.1214/20-BA1221, want 1.01; private chains are short.
_LARGEST_R_HAT = 1.1


def sample(
    *,
    epsilon: float,
    delta: float,
    step: Callable[..., DPStep] | None = None,
    chains: int = 4,
    draws: int | None = None,
    adjacency: str | Adjacency = Adjacency.SUBSTITUTE,
    accountant: str = "best",
    ledger: str | os.PathLike | Ledger | None = None,
    start: Mapping[str, Any] | None = None,
    start_share: float = 0.15,
    public_covariates: bool = False,
    stand_in: pm.Model | None = None,
    dry_run: bool = False,
    model: pm.Model | None = None,
    **kwargs: Any,
) -> Any:
    """Sample a private posterior that uses up a budget, and release it.

    Without a `step` everything is planned, at no cost, on records that are drawn from the model: a
    private start takes a share of the budget to find the bulk of the posterior
    (:func:`~pymc_dp.private_start`); there a noisy sum of gradients is released
    (:func:`~pymc_dp.private_surrogate`), from which the rest of the log-likelihood of each record is so
    small that what is left of the budget pays for many decisions (:class:`~pymc_dp.DPControlVariate`).
    Steps that decide about the whole log-likelihood, as :class:`~pymc_dp.DPPenalty` does, need ten to
    a hundred times as many records for as many draws.

    Parameters
    ----------
    epsilon, delta : float
        Budget of all chains together.
    step : callable, optional
        A step class, such as :class:`~pymc_dp.DPHMC`, whose arguments you give; ``DPPenalty`` if you
        give ``clip_bound`` or ``proposal`` without one.
    chains : int
        Number of chains, among which the budget is shared.
    draws : int, optional
        Draws per chain; by default as many as the budget allows (without a `step` at most 1000: they
        are nearly independent). Fewer do not cost less: a chain claims its whole share. More are an
        error, or without a `step`, where it shows late, a warning in the log.
    adjacency, accountant, ledger
        See :class:`~pymc_dp.PrivacyBudget`.
    start, start_share, public_covariates, stand_in
        Without a `step`: public guess of where to begin, and the rest, see
        :func:`~pymc_dp.private_start`.
    dry_run : bool
        Without a `step`: return the plan that can be made now, and neither touch data nor claim anything.
        It is for records as the model draws them at `start`, or at PyMC's initial point.
    model : pm.Model, optional
        The model, else the one on the context stack.
    **kwargs
        The step's own arguments (``clip_bound``, ``proposal``, ...; of a planned one ``temperature``,
        ``records``, ``public``, ``reproducible``, and of the plan ``stand_in_records``, ``n_records``), and others
        for ``pm.sample`` (``cores``, ``initvals``, ``random_seed``, ``progressbar``, ...).

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        What :func:`~pymc_dp.release` returns: may be published. A :class:`~pymc_dp.SurrogatePlan` if
        this is a dry run.

    Raises
    ------
    PrivacyBudgetExhausted
        If the budget does not allow one draw per chain, before any data are touched.
    ValueError, TypeError
        If the model has covariates, and it was not said what may be known of them; if an argument for
        ``pm.sample`` is none, or wrong. Before any data are touched.
    StartNotFound
        If the private start has not come near to the posterior. The rest of the budget is not spent.

    Every exception that leaves this after its arguments were checked, interruptions included, has
    the budget as attribute ``budget``: ``error.budget.report()`` states what was spent.

    Warns
    -----
    UserWarning
        If the released chains have not mixed, or have not moved, unless ``compute_convergence_checks=False``.
    """
    model = pm.modelcontext(model)
    if not (step is None or callable(step)):
        raise TypeError(
            f"step must be a step class such as DPPenalty, got a {type(step).__name__}."
        )
    ours = sorted({"tune", "callback", "return_inferencedata"} & set(kwargs))
    if ours:
        raise TypeError(f"sample() sets {', '.join(ours)} itself; leave out.")
    draws = None if draws is None else whole("draws", draws, 1)
    _check_arguments(kwargs, step, model)
    budget = PrivacyBudget(
        epsilon, delta, chains=chains, adjacency=adjacency, accountant=accountant, ledger=ledger
    )
    try:
        return _sample(
            budget,
            step,
            draws,
            start,
            start_share,
            public_covariates,
            stand_in,
            dry_run,
            model,
            kwargs,
        )
    except BaseException as error:
        # What was spent is spent: whoever catches this can report it, and pay from the same account.
        error.budget = budget  # type: ignore[attr-defined]
        raise


def _sample(
    budget: PrivacyBudget,
    step: Callable[..., DPStep] | None,
    draws: int | None,
    start: Mapping[str, Any] | None,
    start_share: float,
    public_covariates: bool,
    stand_in: pm.Model | None,
    dry_run: bool,
    model: pm.Model,
    kwargs: dict[str, Any],
) -> Any:
    """:func:`sample` on a budget that is made already."""
    epsilon, delta, chains = budget.epsilon, budget.delta, budget.chains
    if step is None and not _PLANNED.isdisjoint(kwargs):
        step = DPPenalty
    is_planned = step is None
    if step is None:
        shared = {name: kwargs[name] for name in _SHARED if name in kwargs}
        shared |= {name: kwargs.pop(name) for name in _OF_PLAN if name in kwargs}
        shared |= {"public_covariates": public_covariates, "stand_in": stand_in, "model": model}
        most = _MOST_DRAWS if draws is None else max(draws, LEAST_DRAWS)
        before = start_accesses(budget, start_share)
        prepared = prepare(budget=budget, **shared)
        first = plan_for(setting_at(prepared, start), budget, most, before, note_on(start))
        if dry_run:
            return first
        _log.info(
            "Before anything is spent: about %.0f effective draws are expected, and means that are off by %.2f posterior standard "
            "deviations, if the data are like those the model draws.",
            first.chosen.effective_draws, first.chosen.error,
        )  # fmt: skip
        check_account(budget, [*before, (Gaussian(first.chosen.noise_multiplier), 1)])
        found = find_start(prepared, budget, start_share, start)
        if not found.at_rest:
            raise StartNotFound(
                f"The private start was moving to its end: a posterior from there would be wrong. It has spent {start_share:.0%} of the budget, "
                "the rest is not touched. Give a start= that is nearer, by public knowledge: where this one came to is public, too (start.point of "
                "this error). What was spent counts besides (budget of this error): with ledger= the rest of an account pays for it.",
                found,
            )
        setting = setting_at(prepared, found)
        the_plan = plan_for(setting, budget, most)
        _log.info("%s", the_plan)
        step = DPControlVariate
        kwargs.pop("temperature", None)  # the surrogate has it
        kwargs["surrogate"] = release_surrogate(setting, budget, the_plan.chosen, max_draws=most)
    elif dry_run or public_covariates or start is not None or stand_in is not None:
        raise ValueError(
            "dry_run, start, public_covariates and stand_in are for planned runs: leave out step= and its settings, or them."
        )
    names = _parameters(step)
    own = {name: kwargs.pop(name) for name in [*kwargs] if name in names}
    method = step(budget=budget, model=model, **own)
    expected = budget.expected_draws()
    if math.isinf(expected) and draws is None:
        raise ValueError("An infinite epsilon never stops a run: give draws.")
    varying = any(allowance.share is not None for allowance in budget.plan().values())
    # Under a filter the proposals decide when a chain stops, and short chains vary most (by a fifth
    # at 200 draws): room enough that the budget ends them and not this limit.
    limit = (
        math.inf
        if math.isinf(expected)
        else math.ceil(1.25 * expected) + 100
        if varying
        else int(expected)
    )
    if is_planned or (step is DPControlVariate and draws is None):
        asked, draws = draws, int(min(limit, _MOST_DRAWS if draws is None else draws))
        if asked is not None and draws < asked:
            # Start and sum are paid for: an error would lose them.
            _log.warning("draws=%d is more than the budget pays for: about %d per chain.", asked, expected)  # fmt: skip
    if draws is not None and draws > limit:
        raise ValueError(
            f"draws={draws} is more than epsilon = {epsilon:g} pays for: {expected:g} per chain. Leave out draws=."
        )
    _log.info(
        "Plan: %s%s draws in each of %d chains, epsilon = %g at delta = %g (%s). Each draw: %s.",
        "about " if varying and draws is None else "", f"{draws if draws is not None else expected:g}", chains,
        epsilon, delta, budget.adjacency.value, "; ".join(f"{k} x {m.name}" for m, k in method.mechanisms()),
    )  # fmt: skip
    idata = pm.sample(
        draws=int(limit if draws is None else draws),
        tune=0,
        chains=chains,
        step=method,
        callback=budget,
        model=model,
        **kwargs,
    )
    released = release(idata, model, budget)
    if kwargs.get("compute_convergence_checks", True):
        _check(released, chains)
    return released


def _parameters(step: Callable[..., DPStep]) -> Mapping[str, inspect.Parameter]:
    # PyMC's __new__ hides a step's signature; its __init__ has it.
    constructor = step.__init__ if isinstance(step, type) else step  # type: ignore[misc]
    return inspect.signature(constructor).parameters


def _check_arguments(kwargs: Mapping[str, Any], step: Any, model: pm.Model) -> None:
    """Raise for what PyMC would refuse only when it begins to sample, with the budget spent on a start."""
    known = set()
    for each in (DPControlVariate, DPPenalty) if step is None else (step,):
        known |= set(_parameters(each))
    known |= {*inspect.signature(pm.sample).parameters, *_OF_PLAN, *_SHARED}
    known -= {"kwargs", "nuts_sampler", "nuts_sampler_kwargs", "init", "n_init"}
    if unknown := sorted(set(kwargs) - known):
        raise TypeError(f"sample() knows no argument {', '.join(unknown)}: leave out.")
    if (cores := kwargs.get("cores")) is not None:
        whole("cores", cores, 1)
    trace = kwargs.get("trace")
    if not (trace is None or isinstance(trace, BaseTrace | ZarrTrace)):
        raise TypeError(f"trace must be one of PyMC's, got a {type(trace).__name__}.")
    seed = kwargs.get("random_seed")
    try:
        if not isinstance(seed, np.random.Generator | np.random.RandomState):
            np.random.SeedSequence(seed)
    except (TypeError, ValueError):
        raise ValueError(
            f"random_seed must be a whole number, a sequence of them, or a Generator, got {seed!r}."
        ) from None
    names = {v.name for v in (*model.value_vars, *model.unobserved_RVs)}
    given = kwargs.get("initvals") or {}
    for points in [given] if isinstance(given, Mapping) else given:
        wanted = [*(points or {}), *(kwargs.get("var_names") or ())]
        if unknown := sorted({getattr(v, "name", v) for v in wanted} - names):
            raise ValueError(
                f"The model has no variables {', '.join(map(str, unknown))}, in initvals or var_names."
            )


def _check(released: Any, chains: int) -> None:
    """Warn if the chains are not what one would report: from released draws only."""
    import arviz as az

    posterior = az.convert_to_dataset(released)
    moved = released.sample_stats["accepted"]
    axes = [axis for axis in moved.dims if axis != "chain"]
    still = [int(c) for c in moved.chain[~moved.any(axes)]]
    if still:
        warnings.warn(
            f"Chains {still} have not moved: the proposal is too long for this posterior, or the budget too small.",
            stacklevel=4,
        )
    if chains == 1 or posterior.sizes["draw"] < 4:
        return
    worst = {name: float(r.max()) for name, r in az.rhat(posterior).data_vars.items()}
    bad = {name: round(r, 2) for name, r in worst.items() if r > _LARGEST_R_HAT}
    if bad:
        warnings.warn(
            f"The chains disagree (R-hat {bad}): their draws are too few to describe the posterior. More records, a larger epsilon, "
            "fewer chains or a simpler model would help (a hierarchical one: centred); a longer run is not to be had.",
            stacklevel=4,
        )
