"""Parameters of interest: functions of the parameters of which a private posterior is to be narrow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm

from pymc.logprob import transforms
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors

from pymc_dp.model.allow_list import private_part
from pymc_dp.model.base_likelihood import Likelihood
from pymc_dp.model.graphs.data_variables import (
    interpreted,
    is_array_root,
    observed_values,
    upstream,
)
from pymc_dp.model.graphs.public_arrays import PublicArrays
from pymc_dp.model.simulation import jacobian

#: Transforms that map each entry by itself.
_ELEMENTWISE = (transforms.LogTransform, transforms.LogOddsTransform, transforms.IntervalTransform, transforms.CircularTransform)  # fmt: skip


class Interest:
    """Parameters, Deterministics and expressions of these, by name, and their gradients at a position.

    They may be functions of public arrays: of declared ones, and of covariates of the observed variables if these are public.
    """

    def __init__(
        self, model: pm.Model, interest: Any, public: Sequence[Any], public_covariates: bool
    ) -> None:
        entries = [*interest] if isinstance(interest, list | tuple) else [interest]
        if not entries:
            raise ValueError("interest= is empty: name parameters or Deterministics, or leave out.")
        self._variables = dict(_named(model, k, entry) for k, entry in enumerate(entries))
        covariates = upstream([v for rv in model.observed_RVs for v in rv.owner.inputs])
        arrays = {*filter(is_array_root, covariates)} - {*ancestors(observed_values(model))}
        declared = PublicArrays(model, [*public, *(arrays if public_covariates else ())])
        for name, variable in self._variables.items():
            if variable not in model.free_RVs and (why := private_part(model, variable, declared)):
                raise ValueError(
                    f"interest= has {name!r}, which {why}: give functions of the parameters alone, such as a coefficient or a contrast, "
                    "or declare public arrays, public=[...]."
                )
        graphs = model.replace_rvs_by_values([*self._variables.values()])
        self._inputs = [v.name for v in model.value_vars]
        self._values = interpreted(model.value_vars, [g.astype("float64").ravel() for g in graphs])

    def at(self, likelihood: Likelihood, theta: np.ndarray) -> list[np.ndarray]:
        """Values at a position, one vector for each."""
        point = likelihood.unravel(theta)
        with np.errstate(all="ignore"):
            return self._values(*(point[name] for name in self._inputs))

    def gradients(self, likelihood: Likelihood, theta: np.ndarray) -> np.ndarray:
        """Gradients at a position, shape ``(n, n_dim)``, 0 where they are not finite; ValueError if all of one are 0."""
        found = jacobian(lambda moved: np.concatenate(self.at(likelihood, moved)), theta)
        found = np.where(np.isfinite(found).all(axis=1, keepdims=True), found, 0.0)
        for name, gradients in self.by_name(likelihood, theta, found).items():
            if not gradients.any():
                raise ValueError(f"interest= has {name!r}, which does not change with the parameters: leave out.")  # fmt: skip
        return found

    def by_name(
        self, likelihood: Likelihood, theta: np.ndarray, values: np.ndarray
    ) -> Mapping[str, np.ndarray]:
        """A value for each entry, by name."""
        ends = np.cumsum([len(each) for each in self.at(likelihood, theta)])
        return dict(zip(self._variables, np.split(values, ends[:-1]), strict=True))


def _named(model: pm.Model, k: int, entry: Any) -> tuple[str, Variable]:
    """A variable of the model, or an expression, with its name or number."""
    if isinstance(entry, Variable):
        return entry.name or f"interest[{k}]", entry
    named = {v.name: v for v in (*model.free_RVs, *model.deterministics)}
    if not isinstance(entry, str) or entry not in named:
        raise ValueError(
            f"interest= names {entry!r}, which the model does not have: give one or more of {', '.join(map(repr, named))}, or an expression of "
            "these, such as b[1] - b[0]."
        )
    return entry, named[entry]


def by_parameter(
    model: pm.Model, likelihood: Likelihood, values: np.ndarray
) -> Mapping[str, np.ndarray]:
    """A value for each unconstrained parameter, under the model's names where a transform maps each entry by itself."""
    transforms_of = model.rvs_to_transforms.items()
    names = {model.rvs_to_values[rv].name: rv.name for rv, t in transforms_of if isinstance(t, _ELEMENTWISE)}  # fmt: skip
    return {names.get(name, name): values[part] for name, part in likelihood.slices.items()}
