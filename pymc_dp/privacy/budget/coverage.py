"""Contents of a result that a privacy report covers: groups, variables, coordinates and lengths of axes.

A report is stored in the attributes of a result, to which PyMC and ArviZ add groups in place
(``extend_inferencedata=True``). So it lists the contents it was made for, and is compared with the result when
it is read. Values are not compared: replaced values under the same names are not detected.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

#: Attributes that PyMC and ArviZ give to any result; those that are kept; those of release() and sample().
_OF_HOSTS = ("creation_library_language", "created_at", "arviz_version", "sample_dims")
KEPT_ATTRIBUTES = (
    "inference_library", "inference_library_version", "creation_library", "creation_library_version",
)  # fmt: skip
OWN_ATTRIBUTES = (
    "privacy_report", "epsilon", "delta", "adjacency", "pymc_dp_version", "private_scores",
    "fit_check", "fit_check_p",
)  # fmt: skip
ATTRIBUTES = (*_OF_HOSTS, *KEPT_ATTRIBUTES, *OWN_ATTRIBUTES)
#: For each group: names of its variables and coordinates, and lengths of its axes.
Coverage = dict[str, dict[str, Any]]


def covered_by(groups: Mapping[str, Any]) -> Coverage:
    """List the contents of groups, ``xarray.Dataset`` by name."""
    return {
        str(name): {
            "variables": tuple(sorted(map(str, group.data_vars))),
            "coords": tuple(sorted(map(str, group.coords))),
            "sizes": {str(axis): int(n) for axis, n in group.sizes.items()},
        }
        for name, group in groups.items()
    }


def uncovered(holder: Any, covers: Coverage | None) -> tuple[str, ...]:
    """Names in a result, or in a group of it, that a report does not cover."""
    if not covers:
        return ("everything: the report does not list what it covers",)
    if hasattr(holder, "data_vars") and not getattr(holder, "children", None):  # a single group
        names = {*map(str, holder.data_vars)}
        known = max(covers, key=lambda name: len(names.intersection(covers[name]["variables"])))
        return tuple(_added(str(getattr(holder, "name", None) or known), holder, covers[known]))
    found = [*_added("/", holder, {"variables": (), "coords": (), "sizes": {}})]  # at the root
    for name, group in _groups(holder):
        found += _added(name, group, covers[name]) if name in covers else [name]
    return tuple(dict.fromkeys(found))  # InferenceData may list a group twice


def _groups(holder: Any) -> Iterator[tuple[str, Any]]:
    if hasattr(holder, "descendants"):  # a tree
        yield from ((str(node.relative_to(holder)), node) for node in holder.descendants)
    elif isinstance(holder, Mapping):
        yield from ((str(name), group) for name, group in holder.items())
    else:  # InferenceData; groups() leaves out none
        yield from ((str(name), getattr(holder, name)) for name in holder.groups())


def _added(name: str, group: Any, known: Mapping[str, Any]) -> Iterator[str]:
    names, variables = [*known["variables"], *known["coords"]], getattr(group, "variables", {})
    yield from (f"{name}: {v}" for v in map(str, variables) if v not in names)
    yield from (
        f"{name}: attribute {a}" for a in getattr(group, "attrs", ()) if a not in ATTRIBUTES
    )
    yield from (f"{name}: attributes of {v}" for v, values in variables.items() if values.attrs)
    for axis, n in getattr(group, "sizes", {}).items():
        was = known["sizes"].get(str(axis), 0)
        if n > was:
            yield f"{name}: {axis} of length {n}, released with {was or 'no such axis'}"
