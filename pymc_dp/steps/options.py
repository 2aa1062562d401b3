"""Arguments that steps pass on to their base classes, and what a step replies if arguments are missing."""

from __future__ import annotations

import inspect
import re

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from pymc_dp.model.reductions import Reductions

__all__ = ["StepOptions", "check_nothing_is_missing", "describe_options"]

#: Hints for required arguments that are missing.
_SOURCES = {
    "budget": "budget=PrivacyBudget(epsilon=..., delta=..., chains=...), or None for a run without privacy",
}
_PLANS = (
    "plan(step={}, budget=budget) finds settings on simulated records, at no cost in privacy; sample(epsilon=..., delta=...) "
    "chooses a sampler with its settings"
)


class StepOptions(TypedDict, total=False):
    """Arguments that every step passes on to :class:`~pymc_dp.steps.DPStep`, which documents them."""

    records: Any
    public: Sequence[Any]
    reproducible: bool
    model: Any
    likelihood: Reductions | None
    blocked: bool
    rng: Any
    compile_kwargs: dict | None


def describe_options(step: type) -> None:
    """Put the arguments that a constructor passes on in the place of ``**options``.

    In its signature these are the keys of ``**options: Unpack[...]``, with the defaults of the base
    class; in the docstring of the step, the entries of the base class for these parameters.
    """
    constructor, base = vars(step)["__init__"], step.__mro__[1]
    signature = inspect.signature(constructor)
    *own, last = signature.parameters.values()
    if not str(last.annotation).startswith("Unpack["):
        return
    keys = constructor.__globals__[last.annotation[7:-1]].__annotations__
    of_base = inspect.signature(base.__init__).parameters  # type: ignore[misc]
    parameters = [*own, *(p for name, p in of_base.items() if name in keys)]
    parameters.sort(key=lambda p: (p.kind, p.default is not p.empty))
    constructor.__signature__ = signature.replace(parameters=parameters)
    doc = inspect.cleandoc(step.__doc__ or "")
    entries = _entries(doc)
    if "**options" in entries:
        known = _entries(inspect.getdoc(base) or "") | entries
        shown = dict.fromkeys(known[p.name] for p in parameters if p.name in known)
        step.__doc__ = doc.replace("\n".join(dict.fromkeys(entries.values())), "\n".join(shown))


def _entries(doc: str) -> dict[str, str]:
    """Entries in the section on parameters of a docstring, by the names of the parameters."""
    section = re.search(r"^Parameters\n-+\n((?:.+\n?)*)", doc, re.M)
    found = re.findall(r"^\S.*(?:\n .*)*", section[1], re.M) if section else []
    return {name: entry for entry in found for name in re.split(" : |\n", entry)[0].split(", ")}


def check_nothing_is_missing(step: type, given: Mapping[str, Any], *, has_plan: bool) -> None:
    """Raise TypeError with the names of all missing arguments, and where to get them."""
    parameters = inspect.signature(step.__init__).parameters.values()  # type: ignore[misc]
    needed = [p.name for p in parameters if (p.kind, p.default) == (p.KEYWORD_ONLY, p.empty)]
    missing = [name for name in dict.fromkeys([*needed, "budget"]) if name not in given]
    if not missing:
        return
    hints = [_SOURCES[name] for name in missing if name in _SOURCES]
    if has_plan and not _SOURCES.keys() >= set(missing):
        hints.append(_PLANS.format(step.__name__))
    raise TypeError("; ".join([f"{step.__name__} needs {', '.join(missing)}", *hints]) + ".")
