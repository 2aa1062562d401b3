"""Which models can be sampled privately; every refusal says what to change.

A model qualifies if its likelihood is a product over records, each factor of which looks at one
record and the parameters alone, and if its prior looks at no data. The first checks read the graph
(`check_model`, `check_graphs`). Whether records see each other's data cannot be read off a graph in
general, so `independence.check_independence` tries it out on the data.

Refusals depend on private data in one way only: a model is found fit or not. That bit is released,
and nothing else; messages name variables, never values. What a graph does not show is not found:
arrays centred or combined across rows in NumPy (or as PyTensor constants, which PyMC evaluates
first: only ``pm.Data`` stays in the graph), prior parameters computed from the data as numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pymc as pm

from pymc.distributions.distribution import PartialObservedRV
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.random.type import RandomType

from pymc_dp.errors import UnsupportedModel
from pymc_dp.model.roots import (
    data_roots,
    depends_on_data,
    is_array_root,
    observed_arrays,
    stored,
    upstream,
)

__all__ = ["check_graphs", "check_model", "data_roots", "depends_on_data"]


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
        if array.ndim == 0:
            raise UnsupportedModel(
                f"{rv.name!r} is observed as a single number, without an axis that runs over the "
                "records. Observe an array with one row per record."
            )
    return [len(array) for array in arrays]


def check_graphs(model: pm.Model, graphs: Sequence[Variable], roots: Sequence[Variable]) -> None:
    """Check the graphs of the likelihood, the priors and the potentials.

    Parameters
    ----------
    model : pymc.Model
    graphs : sequence of Variable
        Elementwise log-likelihood of each observed variable.
    roots : sequence of Variable
        The data: `data_roots`.

    Raises
    ------
    UnsupportedModel
        If a likelihood is random or does not keep its rows apart, or if a prior or a potential
        depends on data.
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
    free = set(model.free_RVs)
    for rv in model.free_RVs:
        seen = upstream(rv.owner.inputs, free.__contains__)
        if _shows_data(seen, model, roots):
            raise UnsupportedModel(
                f"the prior of {rv.name!r} depends on data, so that a record would act through the "
                "prior, where it is not accounted for. Write the prior without the data."
            )
    lengths = {len(array) for array in observed_arrays(model)} - {1}
    for potential in model.potentials:
        seen = upstream([potential], free.__contains__)
        as_long_as_data = any(
            is_array_root(v) and not lengths.isdisjoint(stored(v).shape) for v in seen
        )
        if as_long_as_data or _shows_data(seen, model, roots):
            raise UnsupportedModel(
                f"the potential {potential.name!r} depends on data: the log-likelihood of its "
                "records cannot be told apart. Use an observed pm.CustomDist with one "
                "log-likelihood per record instead. (Potentials of parameters alone are fine.)"
            )


def _is_random(variable: Variable) -> bool:
    op = variable.owner.op if variable.owner is not None else None
    return (
        isinstance(variable.type, RandomType)
        or isinstance(op, RandomVariable)
        or "Minibatch" in type(op).__name__
    )


def _shows_data(seen: set[Variable], model: pm.Model, roots: Sequence[Variable]) -> bool:
    if not seen.isdisjoint(roots) or not seen.isdisjoint(model.observed_RVs):
        return True
    # The same NumPy array used twice makes two constants.
    arrays = [stored(v) for v in seen if is_array_root(v)]
    return any(
        a.size > 1 and a.shape == stored(root).shape and np.array_equal(a, stored(root))
        for a in arrays
        for root in roots
    )
