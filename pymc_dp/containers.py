"""Containers of results, for both generations of ArviZ: groups, and copies with chosen variables only."""

from __future__ import annotations

from typing import Any

from pymc_dp.errors import PrivacyLeak
from pymc_dp.privacy.budget.coverage import KEPT_ATTRIBUTES, OWN_ATTRIBUTES, uncovered
from pymc_dp.privacy.budget.report import PrivacyReport


def group_of(idata: Any, name: str) -> Any:
    """A group as an ``xarray.Dataset``, for either generation of ArviZ."""
    try:
        group = idata[name]
    except (TypeError, IndexError):
        raise TypeError(
            f"This must be a result of pm.sample or sample(), got a {type(idata).__name__}."
        ) from None
    except KeyError:
        raise ValueError(
            f"The result has no group {name!r}; pass what pm.sample returned."
        ) from None
    return group.to_dataset() if hasattr(group, "to_dataset") else group


def bare(idata: Any, groups: dict[str, Any], attributes: dict[str, Any]) -> Any:
    """A container of the same kind as ``idata``, with copies of these groups and with these attributes only."""
    copies = {}
    for name, group in groups.items():
        copy = group.copy(deep=True)
        for variable in copy.variables.values():
            variable.attrs, variable.encoding = {}, {}
        copy.encoding = {}
        copy.attrs = {k: group.attrs[k] for k in KEPT_ATTRIBUTES if k in group.attrs}
        copy.attrs |= attributes
        copies[name] = copy
    if hasattr(type(idata), "from_dict") and hasattr(idata, "children"):  # DataTree, ArviZ 1.x
        tree = type(idata).from_dict(copies)
        tree.attrs = dict(attributes)
        return tree
    return type(idata)(attrs=dict(attributes), **copies)


def clean(released: Any) -> Any:
    """Drop from a released result what its report does not cover; ValueError if it carries no report.

    Raises PrivacyLeak if the report does not list what it covers, or an axis is longer than it was.
    """
    covers = PrivacyReport.of(released).covers
    if not covers:
        raise PrivacyLeak(
            "The report of this result does not list what it covers, so what was added later cannot be found. Release the result of "
            "pm.sample again, with its model and budget."
        )
    groups = {}
    for name in sorted(covers.keys() & {"posterior", "sample_stats"}):
        group, known = group_of(released, name), covers[name]
        groups[name] = group.drop_vars(
            set(group.variables) - {*known["variables"], *known["coords"]}
        )
    attributes = released.attrs if "privacy_report" in released.attrs else groups["posterior"].attrs
    attributes = {k: v for k, v in attributes.items() if k in OWN_ATTRIBUTES}
    cleaned = bare(released, groups, attributes)
    if longer := uncovered(cleaned, covers):
        raise PrivacyLeak(
            f"This result has more than was released under its names: {'; '.join(longer)}. It cannot be cleaned; release the result of pm.sample again."
        )
    return cleaned
