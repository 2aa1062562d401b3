"""What may be published: an allow-list, applied to a result of ``pm.sample``."""

from __future__ import annotations

import logging
import warnings

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pymc_dp.errors import PrivacyLeak, PrivacyLeakWarning

# The rest is imported where it is used: the package imports this module at once, since it shares
# its name with its function, and must stay light.
if TYPE_CHECKING:
    from pymc_dp.privacy.budget import PrivacyBudget

__all__ = ["release"]

_log = logging.getLogger("pymc.dp")

#: Statistics that are charged for (decisions) or computed from what is public.
PUBLIC_STATS = ("accepted", "acceptance_rate", "step_distance", "epsilon_spent", "noise_multiplier")
_OWN_STATS = {*PUBLIC_STATS, "exhausted"}
#: Statistics that PyMC's own code adds to any run and that say nothing.
_IGNORED_STATS = {"warning"}
_PUBLIC_ATTRIBUTES = (
    "inference_library",
    "inference_library_version",
    "creation_library",
    "creation_library_version",
)


def release(idata: Any, model: Any, budget: PrivacyBudget, *, keep: Sequence[str] = ()) -> Any:
    """Strip a result down to what the budget has paid for, and attach the privacy report.

    Kept: draws of the free variables and of Deterministics that do not depend on the data;
    acceptance, proposal distance and epsilon spent per draw. Dropped: observed and constant data,
    log-likelihoods, Deterministics computed from data (such as ``X @ beta``), coordinates that
    label records, sampling time, all other groups and attributes, and calls made after the
    allowance was used up.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        As returned by ``pm.sample``; not changed.
    model : pm.Model
        The model that was sampled.
    budget : PrivacyBudget
        The budget that paid.
    keep : sequence of str
        Deterministics to keep although they look as if they were computed from data. What they
        contain is then outside the guarantee.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        Groups ``posterior`` and ``sample_stats``. The report is in the attributes (of the result
        and of both groups) as ``privacy_report`` (JSON), with ``epsilon``, ``delta`` and
        ``adjacency``; they survive netCDF and Zarr.

    Raises
    ------
    PrivacyLeak
        If the draws carry statistics of a step that is not private, or the budget has not paid for
        them.

    Warns
    -----
    PrivacyLeakWarning
        If something is kept that shows the data.
    """
    from pymc_dp import __version__
    from pymc_dp.model.checks import depends_on_data

    if budget is None:
        raise PrivacyLeak("A run without a budget has no privacy to report; it cannot be released.")
    stats = _group(idata, "sample_stats")
    posterior = _group(idata, "posterior")
    if "privacy_report" in stats.attrs:
        raise ValueError("This carries a privacy report: it has been released already.")
    foreign = sorted(map(str, set(stats.data_vars) - _OWN_STATS - _IGNORED_STATS))
    if foreign or "epsilon_spent" not in stats:
        raise PrivacyLeak(
            f"These draws were not made by private steps alone (foreign statistics: {', '.join(foreign) or 'none'}"
            f"{'' if 'epsilon_spent' in stats else '; none of ours'}). Nothing can be released."
        )
    claims = budget.ledger.claims(budget.id)
    n_chains = posterior.sizes["chain"]
    paid = max(
        (sum(c.step == label for c in claims) for label in {c.step for c in claims}), default=0
    )
    if n_chains > paid:
        raise PrivacyLeak(
            f"The result has {n_chains} chain(s), but this budget has paid for {paid}. Release with the budget of this run."
        )

    free = {v.name for v in model.free_RVs}
    derived = {v.name: v for v in model.deterministics}
    unknown = sorted(set(keep) - set(derived))
    if unknown:
        raise ValueError(
            f"keep= names variables that are not Deterministics of the model: {', '.join(unknown)}."
        )
    from_data = {n for n, v in derived.items() if n in posterior and depends_on_data(model, v)}
    hidden, risky = from_data - set(keep), from_data & set(keep)
    if hidden:
        _log.info("Not released, since computed from data: %s.", ", ".join(sorted(hidden)))
    if risky:
        warnings.warn(
            f"{', '.join(sorted(risky))} would show something of the data; what was kept at your "
            "wish is outside the guarantee.",
            PrivacyLeakWarning,
            stacklevel=2,
        )
    names = [n for n in posterior.data_vars if n in free or (n in derived and n not in hidden)]

    # Draws taken back by the callback are gone already; those of a run without it are cut here. Of
    # several steps each has its flag: a draw counts only if all of them made it.
    flags = np.asarray(stats["exhausted"], dtype=bool)
    frozen = np.max(flags.reshape(n_chains, posterior.sizes["draw"], -1), axis=2)
    draws = int(np.where(frozen.any(axis=1), frozen.argmax(axis=1), frozen.shape[1]).min())

    record_dims = {
        dims[0] for v in model.observed_RVs if (dims := model.named_vars_to_dims.get(v.name))
    }
    report = budget.report()
    attributes = {
        "privacy_report": report.to_json(),
        "epsilon": report.epsilon,
        "delta": report.delta,
        "adjacency": report.adjacency,
        "pymc_dp_version": __version__,
    }
    groups = {
        "posterior": posterior[names],
        "sample_stats": stats[[n for n in PUBLIC_STATS if n in stats]],
    }
    for name, group in groups.items():
        used = {d for v in group.data_vars.values() for d in v.dims}
        unwanted = [c for c in group.coords if c not in used or c in record_dims]
        clean = group.drop_vars(unwanted).isel(draw=slice(0, draws)).copy(deep=True)
        for variable in clean.variables.values():
            variable.attrs, variable.encoding = {}, {}
        clean.encoding = {}
        clean.attrs = {
            k: group.attrs[k] for k in _PUBLIC_ATTRIBUTES if k in group.attrs
        } | attributes
        groups[name] = clean
    return _like(idata, groups, attributes)


def _group(idata: Any, name: str) -> Any:
    """Return a group as an ``xarray.Dataset``, on either generation of ArviZ."""
    try:
        group = idata[name]
    except KeyError:
        raise ValueError(
            f"The result has no group {name!r}; pass what pm.sample returned."
        ) from None
    return group.to_dataset() if hasattr(group, "to_dataset") else group


def _like(idata: Any, groups: dict[str, Any], attributes: dict[str, Any]) -> Any:
    """Build a container of the same kind as ``idata``."""
    if hasattr(type(idata), "from_dict") and hasattr(idata, "children"):  # DataTree, ArviZ 1.x
        tree = type(idata).from_dict(groups)
        tree.attrs = dict(attributes)
        return tree
    return type(idata)(attrs=dict(attributes), **groups)
