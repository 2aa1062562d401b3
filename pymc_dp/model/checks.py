"""Which models can be sampled privately; every refusal says what to change.

A model qualifies if its likelihood is a product over records, each factor of which depends on one
record and the parameters alone, and if its prior depends on no data. Both are proved on the model's
own graph, before PyMC evaluates anything: every array is rows of records, reached row by row
(`independence`), or declared public, or a pattern made without data (`exposed`). Everything else is
refused.

Refusals name variables and shapes, never values. They depend on values in two ways only: whether an
array that has no rows is a pattern such as ``np.zeros(3)``, and whether one array holds another one
shifted by some rows (`independence`). What a graph does not show is not found: arrays centred or
combined across rows in NumPy, and scalars computed from data.
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
from pymc_dp.model.roots import observed_arrays

__all__ = ["check_graphs", "check_model"]


def check_model(model: pm.Model) -> list[int]:
    """Check the variables of a model.

    Returns
    -------
    list of int
        Number of rows of each observed variable.

    Raises
    ------
    UnsupportedModel
        If nothing is observed or nothing is free, free variables are discrete, observations are
        missing, or an observed variable is a single number.
    """
    names = set(model.named_vars)
    for rv in model.free_RVs:
        imputed = rv.name.removesuffix("_unobserved")  # PyMC's name for what a mask hides
        if isinstance(rv.owner.op, PartialObservedRV) or (
            imputed != rv.name and {imputed, f"{imputed}_observed"} <= names
        ):
            raise UnsupportedModel(
                f"{rv.name!r} belongs to a variable with missing observations, which PyMC turns "
                "into parameters that show which records are incomplete. Drop incomplete records "
                "or impute them before, as a function of each record alone."
            )
    if not model.observed_RVs:
        raise UnsupportedModel(
            "the model has no observed variables, so that there is no likelihood of which the "
            "records could be told apart. Pass the data as observed= of a distribution (of "
            "pm.CustomDist for a likelihood of your own), not through pm.Potential."
        )
    if not model.free_RVs:
        raise UnsupportedModel("the model has no free random variables: there is nothing to infer.")
    discrete = [rv.name for rv in model.free_RVs if rv.dtype.startswith(("int", "uint", "bool"))]
    if discrete:
        raise UnsupportedModel(
            f"the free variables {discrete} are discrete; private steps move continuous parameters "
            "only. Sum them out, e.g. with pm.Mixture."
        )
    arrays = observed_arrays(model)
    for rv, array in zip(model.observed_RVs, arrays, strict=True):
        if isinstance(rv.owner.op, InterpolatedRV):
            raise UnsupportedModel(
                f"{rv.name!r} is a pm.Interpolated, which PyMC derives from constants only. Write it as a pm.CustomDist."
            )
        if array.ndim == 0:
            raise UnsupportedModel(
                f"{rv.name!r} is observed as a single number, without an axis that runs over the "
                "records. Observe an array with one row per record."
            )
    return [len(array) for array in arrays]


def check_graphs(model: pm.Model, graphs: Sequence[Variable]) -> None:
    """Check the graphs of the likelihood.

    Parameters
    ----------
    model : pymc.Model
    graphs : sequence of Variable
        Elementwise log-likelihood of each observed variable.

    Raises
    ------
    UnsupportedModel
        If a likelihood is random or does not have an entry for each row.
    """
    for rv, graph in zip(model.observed_RVs, graphs, strict=True):
        if any(_is_random(v) for v in ancestors([graph, model.rvs_to_values[rv]])):
            raise UnsupportedModel(
                f"the likelihood of {rv.name!r} draws random numbers (pm.Minibatch, total_size or "
                "a simulator). Use all rows and a closed-form likelihood; batches are drawn by "
                "the private steps that use them."
            )
        if graph.ndim == 0:
            raise UnsupportedModel(
                f"the log-likelihood of {rv.name!r} is one number for all its rows, not one per "
                "row: a time series, a Gaussian process, a single multivariate observation, or a "
                "pm.CustomDist whose logp adds up. Put the records on the leading axis (a batch "
                "of series or vectors is fine) and return one log-likelihood per record."
            )


def _is_random(variable: Variable) -> bool:
    op = variable.owner.op if variable.owner is not None else None
    return (
        isinstance(variable.type, RandomType)
        or isinstance(op, RandomVariable)
        or "Minibatch" in type(op).__name__
    )
