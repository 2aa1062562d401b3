"""What may be published: an allow-list, applied to a result of ``pm.sample``."""

from __future__ import annotations

import logging
import math
import warnings

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pymc_dp.containers import bare, clean, group_of
from pymc_dp.errors import PrivacyLeak, PrivacyLeakWarning

# The rest is imported where it is used: the package imports this module at once, since it shares
# its name with its function, and must stay light.
if TYPE_CHECKING:
    from pymc_dp.privacy.budget import PrivacyBudget

__all__ = ["release"]

_log = logging.getLogger("pymc.dp")

#: Statistics that are charged for (decisions) or computed from what is public.
PUBLIC_STATS = ("accepted", "acceptance_rate", "step_distance", "epsilon_spent", "noise_multiplier")
_OWN_STATS = {*PUBLIC_STATS, "exhausted", "budget_token"}
#: Statistics that PyMC's own code adds to any run and that say nothing.
_IGNORED_STATS = {"warning"}


def release(
    idata: Any,
    model: Any = None,
    budget: PrivacyBudget | None = None,
    *,
    public: Sequence[Any] = (),
    keep: Sequence[str] = (),
) -> Any:
    """Strip a result down to what the budget has paid for, and attach the privacy report.

    Kept: draws of the free variables, and of Deterministics in whose graph every array is public;
    acceptance, proposal distance and epsilon spent per draw. Dropped: observed and constant data,
    log-likelihoods, other Deterministics (such as ``X @ beta``), variables with an axis as long as
    the data, coordinates that label records, sampling time, all other groups and attributes, and
    calls made after the allowance was used up.

    With a released result alone, ``release(released)``, whatever was added to it since is dropped.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        As returned by ``pm.sample``; not changed.
    model : pm.Model
        The model that was sampled.
    budget : PrivacyBudget
        The budget that paid: the one that was given to every step of this run.
    public : sequence of str or array
        Arrays that everybody may know, such as a table of weights: names of ``pm.Data`` or of named
        constants, or the arrays themselves. Names and shapes are in the report. What was declared
        to the steps need not be repeated.
    keep : sequence of str
        Variables to keep although they may not be published. What they contain is then outside the
        guarantee.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        Groups ``posterior`` and ``sample_stats``. The report is in the attributes (of the result
        and of both groups) as ``privacy_report`` (JSON), with ``epsilon`` (infinite if nothing is
        protected), ``delta`` and ``adjacency``; they survive netCDF and Zarr. It lists what it
        covers: :meth:`PrivacyReport.of <pymc_dp.privacy.report.PrivacyReport.of>` names what was
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
        If something is kept that shows the data.
    """
    if budget is None and model is None:
        return clean(idata)
    if budget is None:
        raise PrivacyLeak("A run without a budget has no privacy to report; it cannot be released.")
    if model is None:
        raise ValueError("Give the model that was sampled: what may be published is read off it.")
    from pymc_dp import __version__
    from pymc_dp.privacy.coverage import covered_by

    stats, posterior = group_of(idata, "sample_stats"), group_of(idata, "posterior")
    if "privacy_report" in stats.attrs:
        raise ValueError(
            "This carries a privacy report: it has been released already. release(released), without model and budget, drops what was added to it."
        )
    _check_origin(stats, posterior.sizes["chain"], model, budget)
    names, records, said = _publishable(model, budget, posterior, public, keep)

    # Draws taken back by the callback are gone already; those of a run without it are cut here. Of
    # several steps each has its flag: a draw counts only if all of them made it.
    flags = np.asarray(stats["exhausted"], dtype=bool)
    frozen = np.max(flags.reshape(*flags.shape[:2], -1), axis=2)
    draws = int(np.where(frozen.any(axis=1), frozen.argmax(axis=1), frozen.shape[1]).min())

    groups = {
        "posterior": posterior[names],
        "sample_stats": stats[[n for n in PUBLIC_STATS if n in stats]],
    }
    for name, group in groups.items():
        unwanted = _unwanted_coordinates(group, records)
        groups[name] = group.drop_vars(unwanted).isel(draw=slice(0, draws))
    report = budget.report()
    if said.kept:  # outside the guarantee, and in the same file
        report = replace(
            report, protected=False, attack_power=dict.fromkeys(report.attack_power, 1.0)
        )
    report = replace(report, public=said.public, kept=said.kept, covers=covered_by(groups))
    attributes = {
        "privacy_report": report.to_json(),
        "epsilon": report.epsilon if report.protected else math.inf,
        "delta": report.delta,
        "adjacency": report.adjacency,
        "pymc_dp_version": __version__,
    }
    return bare(idata, groups, attributes)


def _check_origin(stats: Any, n_chains: int, model: Any, budget: PrivacyBudget) -> None:
    """Raise unless these draws, of this model, were made by private steps on this budget."""
    from pymc_dp.model.identity import model_token
    from pymc_dp.privacy.binding import TOKEN, check_draws

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
            "The steps of this budget were built on another model than the one that is given, so what may be published cannot be read off "
            "it. Pass the model object that was sampled."
        )
    claims = budget.ledger.claims(budget.id)
    paid = max(
        (sum(c.step == label for c in claims) for label in {c.step for c in claims}), default=0
    )
    if n_chains > paid:
        raise PrivacyLeak(
            f"The result has {n_chains} chain(s), but this budget has paid for {paid}. Release with the budget of this run."
        )


class _Labels(NamedTuple):
    """Which coordinates are those of records: names of dimensions, and lengths."""

    dims: set[str]
    lengths: set[int]


class _Said(NamedTuple):
    """What the report says of the choice of variables."""

    public: tuple[str, ...]
    kept: tuple[str, ...]


def _publishable(
    model: Any, budget: PrivacyBudget, posterior: Any, public: Sequence[Any], keep: Sequence[str]
) -> tuple[list[str], _Labels, _Said]:
    """Variables to publish, coordinates of records, and what the report says of the choice."""
    from pymc_dp.model.public_arrays import PublicArrays
    from pymc_dp.model.publishing import record_dims, record_lengths, withheld
    from pymc_dp.privacy.mechanisms import Adjacency

    free, derived = ({v.name for v in vs} for vs in (model.free_RVs, model.deterministics))
    if isinstance(keep, str):
        raise ValueError(f"keep must be a sequence of names, got {keep!r}: put it in a list.")
    unknown = sorted(set(keep) - free - derived)
    if unknown:
        raise ValueError(
            f"keep= names variables that are not free variables or Deterministics of the model: {', '.join(unknown)}."
        )
    told = [entry for access in budget.steps.values() for entry in getattr(access, "public", ())]
    arrays = PublicArrays(model, [*public, *told])
    # Under add/remove the number of records is private, and nothing may depend on it.
    lengths: set[int] = set()
    if budget.adjacency is Adjacency.SUBSTITUTE:
        lengths = {access.n_records for access in budget.steps.values()}
        lengths |= record_lengths(model, arrays)
    shapes = {str(n): v.shape[2:] for n, v in posterior.data_vars.items()}
    hidden = withheld(model, arrays, lengths=lengths, shapes=shapes)
    hidden = {name: reason for name, reason in hidden.items() if name in posterior}
    risky = sorted(set(hidden) & set(keep))
    for name in sorted(set(hidden) - set(keep)):
        _log.info("Not released: %s %s.", name, hidden[name])
    if risky:
        warnings.warn(
            f"{', '.join(risky)} would show something of the data; what was kept at your "
            "wish is outside the guarantee.",
            PrivacyLeakWarning,
            stacklevel=3,
        )
    names = [
        name
        for name in posterior.data_vars
        if name in free | derived and (name not in hidden or name in keep)
    ]
    labels = record_dims(model, lengths, arrays)
    said = _Said(tuple(dict.fromkeys(arrays.descriptions)), tuple(risky))
    return names, _Labels(labels, lengths), said


def _unwanted_coordinates(group: Any, records: _Labels) -> list[Any]:
    """Coordinates of no variable here, those that label records, and those that are as long as the data."""
    used = {d for v in group.data_vars.values() for d in v.dims}
    labels, lengths = records
    return [
        name
        for name, values in group.coords.items()
        if name not in used
        or name in labels
        or (name not in ("chain", "draw") and not lengths.isdisjoint(values.shape))
    ]
