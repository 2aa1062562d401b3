"""What planning and a private start need of a model: compiled once for all of them."""

from __future__ import annotations

import warnings

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pymc as pm

from pymc.initial_point import make_initial_point_fn

from pymc_dp.model.records import RecordLikelihood
from pymc_dp.model.simulated import SimulatedRecords
from pymc_dp.privacy.budget import PrivacyBudget
from pymc_dp.privacy.mechanisms import Adjacency, real, whole

__all__ = ["Prepared", "initial_point", "note_on", "prepare", "simulation"]


class Prepared(NamedTuple):
    """A model, compiled: the log-likelihood of its records, and records that are drawn from it."""

    model: pm.Model
    likelihood: RecordLikelihood
    simulated: SimulatedRecords
    temperature: float
    n_records: int

    def position(self, at: Mapping[str, Any] | str | None, random_seed: Any = None) -> np.ndarray:
        """PyMC's initial point, but for what is given, or a draw from the prior, as a vector."""
        if isinstance(at, str):
            if at != "prior":
                raise ValueError(f"Positions are given by names of parameters, or 'prior', got {at!r}.")  # fmt: skip
            rng = np.random.default_rng(random_seed)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # of a BLAS that is missing
                drawn = pm.draw(self.model.free_RVs, random_seed=int(rng.integers(2**30)))
            at = {v.name: x for v, x in zip(self.model.free_RVs, drawn, strict=True)}
        theta = self.likelihood.ravel(initial_point(self.model, at))
        if not (np.isfinite(theta).all() and np.isfinite(self.likelihood.log_prior(theta))):
            raise ValueError(f"start is where the prior is zero: {self.likelihood.unravel(theta)}.")
        return theta


def prepare(
    *,
    budget: PrivacyBudget,
    model: pm.Model | None,
    temperature: float = 1.0,
    public_covariates: bool = False,
    stand_in: pm.Model | None = None,
    stand_in_records: Any = None,
    records: Any = None,
    public: Sequence[Any] = (),
    n_records: int | None = None,
    compile_kwargs: dict[str, Any] | None = None,
) -> Prepared:
    """Check what may be known of a model, and compile it; arguments as for :func:`~pymc_dp.private_start`."""
    if not 0 < real(temperature) <= 1:
        raise ValueError(f"temperature must lie in (0, 1], got {temperature!r}.")
    _check_number_is_public(budget, public_covariates, stand_in, n_records)
    model = pm.modelcontext(model)
    likelihood = RecordLikelihood(
        model, records=records, public=public, compile_kwargs=compile_kwargs
    )
    simulated = simulation(model, records, public_covariates, stand_in, stand_in_records, public)
    return Prepared(model, likelihood, simulated, temperature, n_records or likelihood.n_records)


def simulation(
    model: pm.Model,
    records: Any,
    public_covariates: bool,
    stand_in: pm.Model | None,
    stand_in_records: Any = None,
    public: Sequence[Any] = (),
) -> SimulatedRecords:
    """Records to plan with: of the model, or of its stand-in."""
    if stand_in is None:
        return SimulatedRecords(
            model, records=records, public=public, public_covariates=public_covariates
        )
    if records is not None and stand_in_records is None:
        raise ValueError(
            "with records= and a stand-in, say who its rows belong to: stand_in_records=."
        )
    shapes = []
    for m in (model, stand_in):
        point = initial_point(m, None)
        shapes.append([(v.name, np.shape(point[v.name])) for v in m.value_vars])
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"stand_in must have the parameters of the model, {shapes[0]}, but has {shapes[1]} (values on "
            "the unconstrained scale, with their shapes, in this order)."
        )
    return SimulatedRecords(
        stand_in, records=stand_in_records, public_covariates=True, public_data=True
    )


def note_on(at: Any) -> list[str]:
    """What the user of a plan should know about where its records were drawn."""
    if at is None:
        return [
            "records were drawn at PyMC's initial point, which may be far from your data: pass at= a private start or a public guess."
        ]
    if isinstance(at, str):
        return [
            "records were drawn at one draw from the prior: other values of random_seed= show how much the prior leaves open."
        ]
    return []


def initial_point(model: pm.Model, start: Mapping[str, Any] | None) -> dict[str, np.ndarray]:
    """PyMC's initial point, but for what is given."""
    overrides = dict(start or {})
    unknown = sorted(overrides.keys() - {v.name for v in (*model.free_RVs, *model.value_vars)})
    if unknown:
        raise ValueError(f"start has {', '.join(unknown)}, which the model does not.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of a BLAS that is missing
        try:
            fn = make_initial_point_fn(model=model, overrides=overrides, return_transformed=True)
        except TypeError:
            raise ValueError("start has values of other shapes than the parameters.") from None
        return fn(0)


def _check_number_is_public(
    budget: PrivacyBudget,
    public_covariates: bool,
    stand_in: pm.Model | None,
    n_records: int | None,
) -> None:
    """Raise if a plan would show the number of records although neighbours differ in it."""
    if n_records is not None:
        whole("n_records", n_records, 1)
    guessed = stand_in is not None and n_records is not None
    if budget.adjacency is Adjacency.ADD_REMOVE and not (public_covariates or guessed):
        raise ValueError(
            "under add/remove the number of records is private: pass n_records=, a public guess, and stand_in=, or "
            "say public_covariates=True if the model's number of rows is public."
        )
