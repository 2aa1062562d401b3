"""Arguments that steps pass on to their base classes, and what a step replies if these are missing or wrong."""

from __future__ import annotations

import inspect
import re

from collections.abc import Mapping, Sequence
from typing import Any, Required, TypedDict

from pymc.util import get_value_vars_from_user_vars

from pymc_dp.model.base_likelihood import Likelihood
from pymc_dp.model.identity import model_token
from pymc_dp.privacy.budget.budget import PrivacyBudget
from pymc_dp.steps.proposals import Proposal

#: Hints for required arguments that are missing.
_SOURCES = {
    "budget": "budget=PrivacyBudget(epsilon=..., delta=..., chains=...), or None for a run without privacy",
}
_PLANS = (
    "plan(step={}, budget=budget) finds settings on simulated records, at no cost in privacy; sample(epsilon=..., delta=...) "
    "chooses a sampler with its settings"
)


class StepOptions(TypedDict, total=False):
    """Arguments that every step passes on to :class:`~pymc_dp.steps.DPStep`, which documents them.

    Examples
    --------
    >>> options: dp.steps.StepOptions = {"public": ["weights"], "reproducible": True}
    """

    records: Any
    public: Sequence[Any]
    reproducible: bool
    model: Any
    likelihood: Likelihood | None
    blocked: bool
    rng: Any
    compile_kwargs: dict | None


class DecisionOptions(StepOptions, total=False):
    """Arguments of :class:`~pymc_dp.steps.AcceptRejectStep`, which documents them."""

    budget: Required[PrivacyBudget | None]
    clip_bound: Required[float]
    laziness: float
    temperature: float


class ProposalOptions(DecisionOptions, total=False):
    """Arguments of :class:`~pymc_dp.steps.ProposalStep`, which documents them."""

    proposal: Required[Proposal]


class BatchOptions(ProposalOptions, total=False):
    """Arguments of :class:`~pymc_dp.steps.accept_reject.BatchStep`, which documents them."""

    batch_size: int | None


def describe_options(step: type) -> None:
    """Replace ``**options`` by the arguments that a constructor passes on.

    In the signature these are the keys of ``**options: Unpack[...]`` with the defaults of the base class; in the
    docstring of the step, the base class's entries for them.
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
    """Entries of the Parameters section of a docstring, by the names of the parameters."""
    section = re.search(r"^Parameters\n-+\n((?:.+\n?)*)", doc, re.M)
    found = re.findall(r"^\S.*(?:\n .*)*", section[1], re.M) if section else []
    return {name: entry for entry in found for name in re.split(" : |\n", entry)[0].split(", ")}


def check_nothing_is_missing(step: Any, given: Mapping[str, Any]) -> None:
    """Raise TypeError with the names of all missing arguments and where to get them."""
    parameters = inspect.signature(step.__init__).parameters.values()
    needed = [p.name for p in parameters if (p.kind, p.default) == (p.KEYWORD_ONLY, p.empty)]
    missing = [name for name in dict.fromkeys([*needed, "budget"]) if name not in given]
    if not missing:
        return
    hints = [_SOURCES[name] for name in missing if name in _SOURCES]
    if step.plan and not _SOURCES.keys() >= set(missing):
        hints.append(_PLANS.format(step.__name__))
    raise TypeError("; ".join([f"{step.__name__} needs {', '.join(missing)}", *hints]) + ".")


def check_likelihood(likelihood: Any, model: Any, budget: PrivacyBudget | None) -> None:
    """Raise ValueError if it is of another model, or if its errors may show private values of a private run.

    A copy of a model, pickled or not, has the token of the original.
    """
    token = model_token(model)
    if getattr(likelihood, "model_token", token) != token:
        raise ValueError(
            "likelihood= was compiled from another model than the one of this step. Pass the model that it was compiled from, or leave "
            "out likelihood=."
        )
    if budget is not None and not getattr(likelihood, "_private", True):
        raise ValueError(
            "likelihood= was compiled with private=False: its errors may show private values. Leave out private=."
        )


def value_vars(vars: Sequence[Any], model: Any) -> list[Any]:
    """Value variables of the variables that a user names; ValueError unless the model has them."""
    given = [vars] if isinstance(vars, str) else list(vars)
    if names := [v for v in given if isinstance(v, str)]:
        raise TypeError(
            f"vars must be variables, got the name {names[0]!r}: vars=[model[{names[0]!r}]], or leave out for all."
        )
    return get_value_vars_from_user_vars(given, model)
