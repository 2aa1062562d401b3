"""Checks that a model can be sampled privately; each refusal states what to change.

A model qualifies if its likelihood is a product over records, each factor of which depends on one
record and the parameters alone, and if its prior does not depend on data. Both are proved on the
model's own graph, before PyMC evaluates anything: every array has rows of records, used row by row
(`independence`), or is declared public, or is a pattern made without data (`exposed`, `prior_data`). Everything
else is refused.

Refusals name variables and shapes, never values. They depend on values in four ways only: whether an
array without rows is a pattern such as ``np.zeros(3)``; whether one array equals another one shifted by
some rows (`independence`); under add/remove, whether a column is ``np.arange(n)`` (`row_positions`); and
whether public bounds of a pm.Censored are finite for some rows only (`simulation`). A graph does not show
arrays that were centred or combined across rows in NumPy, nor scalars computed from data: these are not
found.
"""

from __future__ import annotations

from collections.abc import Sequence

import pymc as pm

from pymc.distributions.continuous import InterpolatedRV
from pymc.distributions.distribution import PartialObservedRV
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.random.type import RandomType

from pymc_dp.errors import UnsupportedModel
from pymc_dp.model.graphs.data_variables import observed_arrays


def check_model(model: pm.Model) -> list[int]:
    """Check the variables of a model; number of rows of each observed variable.

    UnsupportedModel if there are no observed or no free variables, if free variables are discrete, observations are
    missing, or an observed variable is a single number.
    """
    _refuse_missing(model)
    if not model.observed_RVs:
        raise UnsupportedModel(
            "the model has no observed variables, so there is no likelihood with one term per "
            "record. Pass the data as observed= of a distribution (pm.CustomDist for a likelihood "
            "of your own), not through pm.Potential."
        )
    if not model.free_RVs:
        raise UnsupportedModel("the model has no free random variables: there is nothing to infer.")
    discrete = [rv.name for rv in model.free_RVs if rv.dtype.startswith(("int", "uint", "bool"))]
    if discrete:
        raise UnsupportedModel(
            f"the free variables {discrete} are discrete; private steps sample continuous "
            "parameters only. Sum them out, e.g. with pm.Mixture."
        )
    arrays = observed_arrays(model)
    for rv, array in zip(model.observed_RVs, arrays, strict=True):
        _check_observed(rv, array.ndim)
    return [len(array) for array in arrays]


def has_binary_outcome(model: pm.Model) -> bool:
    """Whether one Bernoulli variable with an entry per row is the only observed variable."""
    if len(model.observed_RVs) != 1:
        return False
    (outcome,) = model.observed_RVs
    return isinstance(outcome.owner.op, pm.Bernoulli.rv_type) and outcome.ndim == 1


def _refuse_missing(model: pm.Model) -> None:
    names = set(model.named_vars)
    for rv in model.free_RVs:
        imputed = rv.name.removesuffix("_unobserved")  # PyMC's name for masked entries
        if isinstance(rv.owner.op, PartialObservedRV) or (
            imputed != rv.name and {imputed, f"{imputed}_observed"} <= names
        ):
            raise UnsupportedModel(
                f"{rv.name!r} belongs to a variable with missing observations, which PyMC turns "
                "into parameters that show which records are incomplete. Drop incomplete records "
                "or impute them before, as a function of each record alone."
            )


def _check_observed(rv: Variable, ndim: int) -> None:
    if isinstance(rv.owner.op, InterpolatedRV):
        raise UnsupportedModel(
            f"{rv.name!r} is a pm.Interpolated, whose log-density PyMC derives from constants only. Write it as a pm.CustomDist."
        )
    if ndim == 0:
        raise UnsupportedModel(
            f"{rv.name!r} is observed as a single number, without an axis for the records. "
            "Observe an array with one row per record."
        )


def check_graphs(model: pm.Model, graphs: Sequence[Variable]) -> None:
    """Raise UnsupportedModel if an elementwise log-likelihood is random or lacks an entry per row."""
    for rv, graph in zip(model.observed_RVs, graphs, strict=True):
        if any(is_random(v) for v in ancestors([graph, model.rvs_to_values[rv]])):
            raise UnsupportedModel(
                f"the likelihood of {rv.name!r} draws random numbers (pm.Minibatch, total_size or "
                "a simulator). Use all rows and a closed-form likelihood; private steps draw the "
                "batches they need."
            )
        if graph.ndim == 0:
            raise UnsupportedModel(
                f"the log-likelihood of {rv.name!r} is one number for all its rows, not one per "
                "row: a time series, a Gaussian process, a single multivariate observation, or a "
                "pm.CustomDist whose logp sums over rows. Put the records on the leading axis (a "
                "batch of series or vectors is fine) and return one log-likelihood per record."
            )


def is_random(variable: Variable) -> bool:
    """Whether a variable is random or the state of a generator."""
    op = variable.owner.op if variable.owner is not None else None
    return (
        isinstance(variable.type, RandomType)
        or isinstance(op, RandomVariable)
        or "Minibatch" in type(op).__name__
    )
