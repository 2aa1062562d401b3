"""Contents of a result that a privacy report covers: groups, variables, coordinates and lengths of axes.

A report is stored in the attributes of a result, to which PyMC and ArviZ add groups in place
(``extend_inferencedata=True``). So it lists the contents it was made for, and is compared with the result when
it is read. Values are not compared: replaced values under the same names are not detected.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

#: Attributes of a released result, including those that PyMC and ArviZ add.
ATTRIBUTES = (
    "inference_library", "inference_library_version", "creation_library", "creation_library_version",
    "creation_library_language", "created_at", "arviz_version", "sample_dims",
    "privacy_report", "epsilon", "delta", "adjacency", "pymc_dp_version", "private_scores",
    "fit_check", "fit_check_p",
)  # fmt: skip
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
    if hasattr(holder, "data_vars") and not _children(holder):
        # A single group: the one with most variables in common.
        name, known = max(covers.items(), key=lambda item: _in_common(holder, item[1]))
        return tuple(_added(str(getattr(holder, "name", None) or name), holder, known))
    found: list[str] = []
    if len(getattr(holder, "variables", ())):  # at the root of a tree
        found += _added("/", holder, {"variables": (), "coords": (), "sizes": {}})
    found += [
        f"attribute {name}" for name in getattr(holder, "attrs", {}) if name not in ATTRIBUTES
    ]
    for name, group in _groups(holder):
        found += _added(name, group, covers[name]) if name in covers else [name]
    return tuple(dict.fromkeys(found))  # InferenceData may list a group twice


def _children(holder: Any) -> Mapping[str, Any]:
    return getattr(holder, "children", None) or {}


def _groups(holder: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(holder, Mapping) and not hasattr(holder, "children"):
        yield from ((str(name), group) for name, group in holder.items())
    elif hasattr(holder, "children"):
        for name, node in holder.children.items():
            yield f"{above}{name}", node
            yield from _groups(node, f"{above}{name}/")
    else:  # InferenceData; groups() leaves out none
        for name in holder.groups():
            yield str(name), getattr(holder, name)


def _in_common(group: Any, known: Mapping[str, Any]) -> int:
    return len(set(map(str, group.data_vars)) & set(known["variables"]))


def _added(name: str, group: Any, known: Mapping[str, Any]) -> Iterator[str]:
    names = [*known["variables"], *known["coords"]]
    yield from (f"{name}: {v}" for v in map(str, group.variables) if v not in names)
    yield from (f"{name}: attribute {a}" for a in group.attrs if a not in ATTRIBUTES)
    yield from (
        f"{name}: attributes of {v}" for v, values in group.variables.items() if values.attrs
    )
    for axis, n in group.sizes.items():
        was = known["sizes"].get(str(axis), 0)
        if n > was:
            yield f"{name}: {axis} of length {n}, released with {was or 'no such axis'}"
