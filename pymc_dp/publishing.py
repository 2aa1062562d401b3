"""What may be published: an allow-list, applied to a result of ``pm.sample``."""

from __future__ import annotations

import logging
import math
import warnings

from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np

from pymc_dp.containers import bare, clean, group_of
from pymc_dp.errors import PrivacyLeak, PrivacyLeakWarning
from pymc_dp.host_arguments import as_model
from pymc_dp.model.allow_list import record_dims, record_lengths, withheld
from pymc_dp.model.graphs.public_arrays import PublicArrays
from pymc_dp.model.identity import model_token
from pymc_dp.privacy.budget.budget import PrivacyBudget, check_is_budget
from pymc_dp.privacy.budget.coverage import covered_by
from pymc_dp.privacy.budget.draws import TOKEN, check_draws
from pymc_dp.privacy.budget.report import PrivacyReport
from pymc_dp.privacy.mechanisms.mechanism import Adjacency

_log = logging.getLogger("pymc.dp")

#: Statistics that are charged for (decisions) or computed from what is public.
PUBLIC_STATS = ("accepted", "acceptance_rate", "step_distance", "epsilon_spent", "noise_multiplier")
_OWN_STATS = {*PUBLIC_STATS, "exhausted", "budget_token"}
#: Statistics that PyMC adds to any run, without information on the data.
_IGNORED_STATS = {"warning"}
#: Vehtari et al. (2021), https://doi.org/10.1214/20-BA1221, recommend an R-hat up to 1.01, and 400 effective draws; private chains
#: are short. Where draws are free, so many must be effective, or a tenth of all if there are few.
_LARGEST_R_HAT, _LEAST_EFFECTIVE, _EFFECTIVE_PART = 1.1, 400, 0.1
#: What helps if chains disagree: where the budget pays for each draw, and where draws are free.
_HELP = {
    True: "More records, a larger epsilon, fewer chains or a simpler model would help (a hierarchical one: centred); the budget does not "
    "allow a longer run.",
    False: "Draws are free: sample(step=DPScore(PrivateScores.of(result)), draws=...) makes more of them from the same scores. If "
    "chains disagree again, the scores leave these parameters nearly free: a narrower prior, or a larger epsilon, would help.",
}


def release(
    idata: Any,
    model: Any = None,
    budget: PrivacyBudget | None = None,
    *,
    public: Sequence[Any] = (),
    keep: Sequence[str] = (),
) -> Any:
    """Reduce a result to what the budget has paid for, and attach the privacy report.

    Kept: draws of the free variables, and of Deterministics in whose graph every array is public;
    acceptance, proposal distance and epsilon spent per draw. Dropped: observed and constant data,
    log-likelihoods, other Deterministics (such as ``X @ beta``), variables with an axis as long as
    the data, coordinates that label records, sampling time, all other groups and attributes, and
    calls made after the allowance was used up.

    With a released result alone, ``release(released)`` drops what was added to it since.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        Result of ``pm.sample``; not changed.
    model : pm.Model
        The model that was sampled.
    budget : PrivacyBudget
        The budget of every step of this run.
    public : sequence of str or array
        Public arrays, such as a table of weights: names of ``pm.Data`` or of named constants, or the
        arrays themselves. Names and shapes are in the report. What was declared to the steps need not be
        repeated.
    keep : sequence of str
        Variables to keep although they must not be published. They are outside the guarantee.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        Groups ``posterior`` and ``sample_stats``. The report is in the attributes (of the result
        and of both groups) as ``privacy_report`` (JSON), with ``epsilon`` (infinite if nothing is
        protected), ``delta`` and ``adjacency``; they survive netCDF and Zarr. It lists what it
        covers: :meth:`PrivacyReport.of <pymc_dp.PrivacyReport.of>` names what was
        added later.

    Raises
    ------
    PrivacyLeak
        If a draw was made by a step that is not private, or not on this budget; if the budget has
        not paid for so many chains; or if its steps were built on another model.
    ValueError
        If `public` or `keep` names what the model does not have, or the result was released before.

    Warns
    -----
    PrivacyLeakWarning
        If a variable is kept that shows the data.

    Examples
    --------
    >>> budget = dp.PrivacyBudget(epsilon=4.0, delta=1e-6, chains=1)
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 0, 10)
    ...     _ = pm.Normal("y", mu, 1.0, observed=np.random.default_rng(1).normal(size=5000))
    ...     step = dp.DPPenalty(budget=budget, clip_bound=3.0, proposal=dp.RandomWalk(0.02))
    ...     idata = pm.sample(50, step=step, tune=0, callback=budget, chains=1)
    >>> released = dp.release(idata, model, budget)
    >>> "observed_data" in released
    False
    """
    if budget is None and model is None:
        return clean(idata)
    if budget is None:
        raise PrivacyLeak("A run without a budget has no privacy to report; it cannot be released.")
    if model is None:
        raise ValueError("Give the model that was sampled: it determines what may be published.")
    check_is_budget(budget)
    as_model(model)
    stats, posterior = group_of(idata, "sample_stats"), group_of(idata, "posterior")
    if "privacy_report" in stats.attrs:
        raise ValueError(
            "This carries a privacy report: it has been released already. release(released), without model and budget, drops what was added to it."
        )
    _check_origin(stats, posterior.sizes["chain"], model, budget)
    steps = budget.steps.values()
    declared = [entry for access in steps for entry in access.public]
    return reduced(
        idata, model, budget.report(), {access.n_records for access in steps},
        stats=PUBLIC_STATS, public=[*public, *declared], keep=keep, n_draws=_number_of_draws(stats),
    )  # fmt: skip


def reduced(
    idata: Any,
    model: Any,
    report: PrivacyReport,
    n_records: Iterable[int],
    *,
    stats: Iterable[str],
    public: Sequence[Any] = (),
    keep: Sequence[str] = (),
    n_draws: int | None = None,
) -> Any:
    """Reduce a result to what may be published under a report, and attach the report; the draws' origin is not checked."""
    statistics, posterior = group_of(idata, "sample_stats"), group_of(idata, "posterior")
    choice = _public_variables(model, report.adjacency, n_records, posterior, public, keep)
    groups = {
        "posterior": posterior[choice.names],
        "sample_stats": statistics[[n for n in stats if n in statistics]],
    }
    groups = _clean(groups, choice, n_draws)
    return bare(idata, groups, _attributes(report, choice, groups))


def _check_origin(stats: Any, n_chains: int, model: Any, budget: PrivacyBudget) -> None:
    """Raise unless private steps on this budget made these draws, from this model."""
    foreign = sorted(map(str, set(stats.data_vars) - _OWN_STATS - _IGNORED_STATS))
    if foreign or "epsilon_spent" not in stats:
        raise PrivacyLeak(
            f"These draws were not made by private steps alone (foreign statistics: {', '.join(foreign) or 'none'}"
            f"{'' if 'epsilon_spent' in stats else '; none of ours'}). Nothing can be released."
        )
    steps = budget.steps.values()
    tokens = stats[TOKEN] if TOKEN in stats else None
    check_draws(tokens, [access.token for access in steps], budget.id)
    if any(access.model != model_token(model) for access in steps):
        raise PrivacyLeak(
            "The steps of this budget were built on another model than the given one, which therefore does not determine what may be "
            "published. Pass the model object that was sampled."
        )
    _check_chains(n_chains, budget)


def _check_chains(n_chains: int, budget: PrivacyBudget) -> None:
    """Raise if the budget has paid for fewer chains."""
    claims = budget.ledger.claims(budget.id)
    labels = {claim.step for claim in claims}
    paid = max((sum(c.step == label for c in claims) for label in labels), default=0)
    if n_chains > paid:
        raise PrivacyLeak(
            f"The result has {n_chains} chain(s), but this budget has paid for {paid}. Release with the budget of this run."
        )


def _number_of_draws(stats: Any) -> int:
    """Number of draws of each chain before the first unpaid one.

    The callback has removed the others already; those of a run without it are removed here. With several steps a draw
    counts only if all of them made it.
    """
    flags = np.asarray(stats["exhausted"], dtype=bool)
    frozen = np.max(flags.reshape(*flags.shape[:2], -1), axis=2)
    return int(np.where(frozen.any(axis=1), frozen.argmax(axis=1), frozen.shape[1]).min())


class _Choice(NamedTuple):
    """Names of variables to publish, with the names and lengths of dimensions that label records.

    For the report: `public` arrays, and variables `kept` although they show data.
    """

    names: list[str]
    dims: set[str]
    lengths: set[int]
    public: tuple[str, ...]
    kept: tuple[str, ...]


def _public_variables(
    model: Any, adjacency: str, n_records: Iterable[int], posterior: Any, public: Sequence[Any], keep: Sequence[str]
) -> _Choice:  # fmt: skip
    """Choose the variables to publish by the allow-list; warn of those kept against it."""
    named = {v.name for v in (*model.free_RVs, *model.deterministics)}
    _check_names(keep, named)
    arrays = PublicArrays(model, public)
    # Under add/remove the number of records is private, and nothing may depend on it.
    lengths: set[int] = set()
    if adjacency == Adjacency.SUBSTITUTE.value:
        lengths = {*n_records, *record_lengths(model, arrays)}
    shapes = {str(n): v.shape[2:] for n, v in posterior.data_vars.items()}
    reasons = withheld(model, arrays, lengths=lengths, shapes=shapes)
    hidden = set(reasons) & set(shapes)
    for name in sorted(hidden - set(keep)):
        _log.info("Not released: %s %s.", name, reasons[name])
    kept = sorted(hidden & set(keep))
    if kept:
        warnings.warn(
            f"{', '.join(kept)} would show something of the data; what was kept at your "
            "wish is outside the guarantee.",
            PrivacyLeakWarning,
            stacklevel=4,
        )
    allowed = named - (hidden - set(keep))
    return _Choice(
        names=[name for name in shapes if name in allowed],
        dims=record_dims(model, lengths, arrays),
        lengths=lengths,
        public=tuple(dict.fromkeys(arrays.descriptions)),
        kept=tuple(kept),
    )


def _check_names(keep: Sequence[str], named: set[str]) -> None:
    if isinstance(keep, str):
        raise ValueError(f"keep must be a sequence of names, got {keep!r}: put it in a list.")
    if unknown := sorted(set(keep) - named):
        raise ValueError(
            f"keep= names variables that are not free variables or Deterministics of the model: {', '.join(unknown)}."
        )


def _clean(groups: dict[str, Any], choice: _Choice, n_draws: int | None) -> dict[str, Any]:
    """Groups with the first draws of each chain and without coordinates of records."""
    return {
        name: group.drop_vars(_unwanted_coordinates(group, choice)).isel(draw=slice(0, n_draws))
        for name, group in groups.items()
    }


def _unwanted_coordinates(group: Any, choice: _Choice) -> list[Any]:
    """Coordinates that no variable uses, that label records, or whose length is the number of records."""
    used = {d for v in group.data_vars.values() for d in v.dims}
    return [
        name
        for name, values in group.coords.items()
        if name not in used
        or name in choice.dims
        or (name not in ("chain", "draw") and not choice.lengths.isdisjoint(values.shape))
    ]


def _attributes(report: PrivacyReport, choice: _Choice, groups: dict[str, Any]) -> dict[str, Any]:
    """The report as JSON, and its main numbers for programs."""
    if choice.kept:  # outside the guarantee, and in the same file
        power = dict.fromkeys(report.attack_power, 1.0)
        report = replace(report, protected=False, attack_power=power)
    report = replace(report, public=choice.public, kept=choice.kept, covers=covered_by(groups))
    return {
        "privacy_report": report.to_json(),
        "epsilon": report.epsilon if report.protected else math.inf,
        "delta": report.delta,
        "adjacency": report.adjacency,
        "pymc_dp_version": version("pymc-dp"),
    }


def warn_of_chains(released: Any, pays: bool) -> None:
    """Warn if the chains have not converged: from released draws only."""
    import arviz as az

    posterior = az.convert_to_dataset(released)
    if pays:
        _check_moved(released.sample_stats["accepted"])
    if posterior.sizes["chain"] == 1 or posterior.sizes["draw"] < 4:
        return
    worst = {name: float(r.max()) for name, r in az.rhat(posterior).data_vars.items()}
    bad = {name: round(r, 2) for name, r in worst.items() if r > _LARGEST_R_HAT}
    found = [f"disagree (R-hat {bad})"] if bad else []
    if not pays:
        n_draws = posterior.sizes["chain"] * posterior.sizes["draw"]
        counts = [az.ess(posterior, method=kind).data_vars for kind in ("bulk", "tail")]
        least = {name: min(float(c[name].min()) for c in counts) for name in worst}
        wanted = min(_LEAST_EFFECTIVE, _EFFECTIVE_PART * n_draws)
        if few := {name: int(n) for name, n in least.items() if n < wanted}:
            found.append(f"mix slowly (effective draws {few})")
    if found:
        warnings.warn(
            f"The chains {' and '.join(found)}: their draws are too few to describe the posterior. {_HELP[pays]}",
            stacklevel=4,
        )


def _check_moved(accepted: Any) -> None:
    """Warn of chains whose proposals were all rejected."""
    axes = [axis for axis in accepted.dims if axis != "chain"]
    still = [int(c) for c in accepted.chain[~accepted.any(axes)]]
    if still:
        warnings.warn(
            f"Chains {still} have not moved: the proposal is too long for this posterior, or the budget too small.",
            stacklevel=5,
        )
